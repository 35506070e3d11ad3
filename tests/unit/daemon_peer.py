# SPDX-License-Identifier: Apache-2.0
"""A process that plays an engine's agent over the real socket, told what to do on its stdin.

Run as a script; one JSON list ``[verb, argument...]`` a line, one JSON answer a line.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

from gpucorrelate.probes.wire.frame import Batch, StreamWriter, columns_of, encode
from gpucorrelate.probes.wire.schema import BY_NAME, Anchor

LENGTH = struct.Struct("<I")


class Peer:
    """An agent that does exactly what it is told, right or wrong."""

    def __init__(self) -> None:
        self.writer = StreamWriter()
        self.sock: socket.socket | None = None
        self.heard = bytearray()
        self.drops = 0
        self.start_ns = time.monotonic_ns()
        self.rowset = 0
        self.forked: list[int] = []
        self.children: list[subprocess.Popen[bytes]] = []

    def connect(self, path: str) -> str:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(path)
        self.heard.clear()
        self.writer.strings.restate()
        return "connected"

    def greet(self, role: str = "core", producer: str = "vllm") -> int:
        row = (0, 12345, self.start_ns, producer, role)  # a process id that is not its own
        kind = BY_NAME["stream"]
        columns = columns_of(kind, [row], self.writer.strings)
        fresh = self.writer.strings.take_fresh()
        self.send(encode(Batch(kind.id, 1, columns, 0, self.drops, fresh)))
        return len(fresh)

    def send(self, data: bytes) -> int:
        assert self.sock is not None
        self.sock.sendall(data)
        return len(data)

    def raw(self, text: str) -> int:
        return self.send(bytes.fromhex(text))

    def frames(self, name: str, rows: list[list[Any]]) -> bytes:
        kind = BY_NAME[name]
        columns = columns_of(kind, rows, self.writer.strings)
        return b"".join(self.writer.frames(kind, len(rows), columns, drops=self.drops))

    def rows(self, name: str, rows: list[list[Any]]) -> int:
        return self.send(self.frames(name, rows))

    def keep(self, name: str, rows: list[list[Any]]) -> str:
        """Frames for later, as hexadecimal text; their numbers are used up."""
        return self.frames(name, rows).hex()

    def half(self, name: str, rows: list[list[Any]]) -> str:
        """Send the first half of a frame; the whole comes back."""
        frame = self.frames(name, rows)
        self.send(frame[: len(frame) // 2])
        return frame.hex()

    def steps(self, first: int, count: int, end: bool = True) -> int:
        """Steps as an engine core would report them, with one unchanging set of rows."""
        tid = os.getpid()
        if not self.rowset:
            self.rowset = 1
            row = [1, 0, "request-1", 1, 10, 10, 0, 1]
            self.rows("step_rows", [row])
        begin, done, update = [], [], []
        for step in range(first, first + count):
            now = time.monotonic_ns()
            begin.append([step, tid, now, now, now, 1, step - first, 1, 1, 0])
            done.append([step, tid, now, 0, ""])
            update.append([step, tid, now, now, now, 1, 1, 0])
        self.rows("step_begin", begin)
        if end:
            self.rows("step_end", done)
            self.rows("step_update", update)
        return self.writer.seq

    def request(self, name: str, anchors: list[str]) -> int:
        now = time.monotonic_ns()
        rows = [[name, 0, int(Anchor[a]), now, os.getpid(), 0, ""] for a in anchors]
        return self.rows("request", rows)

    def unknown(self, kind: int) -> int:
        """A batch of a kind that no schema knows."""
        self.writer.seq += 1
        return self.send(encode(Batch(kind, 3, (b"abcdef",), self.writer.seq, self.drops)))

    def skip(self, batches: int) -> int:
        """Use up sequence numbers, as batches that never arrive do."""
        self.writer.seq += batches
        return self.writer.seq

    def dropped(self, rows: int) -> int:
        self.drops += rows
        return self.drops

    def flood(self, megabytes: int) -> str:
        """Junk without end; returns when it is all taken or the daemon hangs up."""
        assert self.sock is not None
        junk = os.urandom(1 << 20)
        try:
            for _ in range(megabytes):
                self.sock.sendall(junk)
        except OSError as exc:
            return type(exc).__name__
        return "taken"

    def strings(self, count: int, size: int) -> int:
        """State strings without any row; how many frames of them were taken."""
        assert self.sock is not None
        kind = BY_NAME["stream"]
        self.sock.settimeout(0.5)
        for at in range(0, count, 500):
            pairs = tuple((at + n + 1, f"{at + n}-".ljust(size, "x")) for n in range(500))
            frame = encode(Batch(kind.id, 0, (b"",) * len(kind.columns), strings=pairs))
            try:
                self.sock.sendall(frame)
            except OSError:
                return at // 500
        return count // 500

    def redefine(self, batches: int) -> str:
        """Thread rows whose texts have the same few ids and are others each time."""
        assert self.sock is not None
        kind = BY_NAME["thread"]
        none = bytes(800)
        ids = struct.pack("<200I", *range(1, 201))
        for at in range(batches):
            tids = struct.pack("<200I", *range(at * 200 + 1, at * 200 + 201))
            strings = tuple((n, f"{at}-{n}-".ljust(1000, "x")) for n in range(1, 201))
            self.writer.seq += 1
            batch = Batch(kind.id, 200, (tids, ids, none), self.writer.seq, 0, strings)
            try:
                self.sock.sendall(encode(batch))
            except OSError as exc:
                return type(exc).__name__
        return "taken"

    def hear(self, timeout_s: float = 5.0) -> dict[str, Any] | None:
        """The daemon's next word; None when it says nothing, {} when it has hung up."""
        import msgpack

        assert self.sock is not None
        self.sock.settimeout(timeout_s)
        try:
            while len(self.heard) < 4 or len(self.heard) < 4 + LENGTH.unpack_from(self.heard)[0]:
                data = self.sock.recv(4096)
                if not data:
                    return {}
                self.heard += data
        except TimeoutError:
            return None
        except OSError:
            return {}
        size = LENGTH.unpack_from(self.heard)[0]
        message: dict[str, Any] = msgpack.unpackb(bytes(self.heard[4 : 4 + size]))
        del self.heard[: 4 + size]
        return message

    def again(self) -> str:
        """As after an exec: another agent, that knows nothing of the one before."""
        self.writer = StreamWriter()
        self.drops = self.rowset = 0
        self.start_ns = time.monotonic_ns()
        return "again"

    def close(self) -> str:
        assert self.sock is not None
        self.sock.close()
        return "closed"

    def spawn(self) -> int:
        """A child that does nothing."""
        child = subprocess.Popen(["/bin/sleep", "60"])
        self.children.append(child)
        return child.pid

    def spawn_agent(self, path: str) -> int:
        """A child with an agent of its own: it connects, and reports a thread when told to."""
        pid = os.fork()
        if pid == 0:
            child = Peer()
            child.connect(path)
            child.greet("worker")
            if child.hear() is not None:
                child.rows("thread", [[os.getpid(), "MainThread", "worker0.main"]])
            time.sleep(60)
            os._exit(0)
        self.forked.append(pid)
        return pid

    def end(self) -> str:
        for pid in self.forked:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.forked.clear()
        for child in self.children:
            child.kill()
            child.wait()
        self.children.clear()
        return "ended"


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    peer = Peer()
    _tell("ready")
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        _tell(json.dumps(getattr(peer, verb)(*arguments)))
    peer.end()


if __name__ == "__main__":
    main()
