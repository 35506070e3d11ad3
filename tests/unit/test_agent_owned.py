# SPDX-License-Identifier: Apache-2.0
"""A host program that closes descriptors it does not know loses nothing of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

from gpucorrelate.probes.agents.owned import Owned, Wake

if TYPE_CHECKING:
    from pathlib import Path

# In a process of its own: pytest's descriptors must survive.
_HOST = textwrap.dedent(
    """
    import os, socket, struct, sys, time
    import msgpack
    from gpucorrelate.probes.agents.agent import Agent

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    agent = Agent("vllm", sys.argv[1])
    agent.role("core")
    agent.transport.run()
    peer, _ = listener.accept()
    start = msgpack.packb({"op": "start", "session": "s"})
    peer.sendall(struct.pack("<I", len(start)) + start)
    while not agent.on:
        time.sleep(0.01)
    os.closerange(3, 256)
    for sock in (listener, peer):
        sock.detach()
    pairs = [socket.socketpair() for _ in range(4)]
    ends = [end for pair in pairs for end in pair]
    put = agent.rows("span").put
    for n in range(10):
        put((1, "x", n, n + 1, 0))
    for n, end in enumerate(ends):
        end.setblocking(False)
        end.sendall(f"to the other end of {n}".encode())
    time.sleep(1.5)
    got = [end.recv(4000).decode() for end in ends]
    expected = [f"to the other end of {n ^ 1}" for n in range(len(ends))]
    assert got == expected, got
    child = os.fork()
    if not child:
        os.closerange(3, 256)
        note = open(sys.argv[2], "w")
        if os.fork() == 0:
            note.write("kept")
            note.flush()
            os._exit(0)
        os.wait()
        os._exit(0)
    os.waitpid(child, 0)
    print(open(sys.argv[2]).read())
    """
)


def test_the_hosts_own_descriptors_are_left_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _HOST, str(tmp_path / "s"), str(tmp_path / "note")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout.strip()) == (0, "kept"), done.stderr


def test_a_number_that_means_something_else_is_not_ours() -> None:
    read, write = os.pipe()
    owned = Owned(read)
    before = owned.ours
    other, rest = os.pipe()
    os.dup2(other, read)
    assert (before, owned.ours) == (True, False)
    owned.close()
    os.fstat(read)  # still open
    for fd in (read, write, other, rest):
        os.close(fd)
    assert not owned.ours


def test_a_wake_rings_once_and_never_blocks() -> None:
    wake = Wake()
    for _ in range(100_000):
        wake.ring()
    while wake.ours:
        try:
            os.read(wake.fd, 1 << 16)
        except BlockingIOError:
            break
    wake.heard()
    first = wake.fd
    os.close(first)
    wake.ring()
    assert not wake.ours
    wake.renew()
    assert wake.ours
    wake.close()  # type: ignore[unreachable]
