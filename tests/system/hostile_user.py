# SPDX-License-Identifier: Apache-2.0
"""What a local user without any right tries against the daemon. Run as a script, as root:

    hostile_user.py UID INGEST CONTROL WHAT ARGUMENT...

It becomes that user first. One line ``done`` with what came of it when the attack is under way;
it goes on until its standard input ends.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import random
import socket
import struct
import sys
import time

import msgpack

from gpucorrelate.probes.wire.frame import Batch, StreamWriter, columns_of, encode
from gpucorrelate.probes.wire.schema import BY_NAME

_LENGTH = struct.Struct("<I")


def connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(path)
    return sock


def steps(writer: StreamWriter, count: int) -> bytes:
    kind = BY_NAME["step_end"]
    rows = [(step, 1, 1, 0, "x" * 100) for step in range(count)]
    return b"".join(writer.frames(kind, count, columns_of(kind, rows, writer.strings)))


def flood(ingest: str, _: str, pid: str) -> dict[str, object]:
    """Twenty processes, each with frames as fast as it can, in the name of somebody else."""
    del pid
    for _number in range(20):
        if os.fork() == 0:
            sock = connected(ingest)
            writer = StreamWriter()
            until = time.monotonic() + 3
            with contextlib.suppress(OSError):
                while time.monotonic() < until:
                    sock.sendall(steps(writer, 200))
            os._exit(0)
    return {}


def lies(ingest: str, _: str, pid: str) -> dict[str, object]:
    """Says that it is the engine, and has done steps."""
    sock = connected(ingest)
    kind = BY_NAME["stream"]
    writer = StreamWriter()
    row = (3, int(pid), 1, "vllm", "core")
    columns = columns_of(kind, [row], writer.strings)
    sock.sendall(encode(Batch(kind.id, 1, columns, 0, 0, writer.strings.take_fresh(), stream=3)))
    sock.sendall(steps(writer, 50))
    time.sleep(0.2)
    return {"told": _told(sock)}


def halves(ingest: str, _: str, pid: str) -> dict[str, object]:
    """Half frames from many processes, of which each dies in the middle of one."""
    del pid
    for _number in range(60):
        child = os.fork()
        if not child:
            sock = connected(ingest)
            frame = steps(StreamWriter(), 100)
            sock.sendall(frame[: random.Random(os.getpid()).randrange(1, len(frame))])
            os._exit(0)
        os.waitpid(child, 0)
    return {}


def churn(ingest: str, _: str, pid: str) -> dict[str, object]:
    """Connects and hangs up as fast as it can."""
    del pid
    done = 0
    until = time.monotonic() + 2
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket_ = socket.socket(socket.AF_UNIX)
            socket_.setblocking(False)
            socket_.connect(ingest)
            done += 1
            socket_.close()
    return {"done": done}


def descriptors(ingest: str, _: str, pid: str) -> dict[str, object]:
    """Sends open files with its bytes, as many as fit."""
    del pid
    sock = connected(ingest)
    fds = array.array("i", [os.open("/dev/null", os.O_RDONLY) for _ in range(200)])
    sent = 0
    with contextlib.suppress(OSError):
        for _number in range(50):
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            sent += sock.sendmsg([b"x" * 100], ancillary)
    return {"sent": sent}


def asks(_: str, control: str, pid: str) -> dict[str, object]:
    """Everything that the control socket answers, about somebody else's process."""
    answers = {}
    for op in ("status", "sessions", "progress", "open", "detach", "attach", "nonsense"):
        sock = connected(control)
        body = msgpack.packb({"op": op, "pid": int(pid) if op in ("attach", "detach") else None})
        sock.sendall(_LENGTH.pack(len(body)) + body)
        answers[op] = _told(sock)
        sock.close()
    return {"answers": answers}


def questions(_: str, control: str, pid: str) -> dict[str, object]:
    """More callers than there is room for, that never read, or say half a question."""
    del pid
    held = []
    body = msgpack.packb({"op": "status"})
    for number in range(40):
        with contextlib.suppress(OSError):
            sock = connected(control)
            held.append(sock)
            sock.settimeout(0.05)
            if number % 2:
                sock.sendall(_LENGTH.pack(len(body)) + body[:3])
            else:
                sock.sendall((_LENGTH.pack(len(body)) + body) * 2000)
    globals()["_held"] = held
    return {"held": len(held)}


def _told(sock: socket.socket) -> object:
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < 4 or len(data) < 4 + _LENGTH.unpack_from(data)[0]:
            more = sock.recv(65536)
            if not more:
                return "hung up"
            data += more
        return msgpack.unpackb(data[4 : 4 + _LENGTH.unpack_from(data)[0]])
    return "nothing"


def main() -> None:
    uid, ingest, control, what, *arguments = sys.argv[1:]
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    found = globals()[what](ingest, control, *arguments)
    sys.stdout.write(f"done {json.dumps(found, default=str)}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
