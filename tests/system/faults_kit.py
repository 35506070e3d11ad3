# SPDX-License-Identifier: Apache-2.0
"""What the tests of faults share: an engine with the real agent, cgroups, file systems."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.daemon_kit import ROOT, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.daemon_kit import DaemonProcess, Recorded

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not root")

_ENGINE = """
import json, sys, threading, time
from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.transport import Pace
agent = Agent("vllm", sys.argv[1], Pace(tick_s=0.005, connect_s=0.02))
agent.role("core")
agent.transport.run()
rows, name = agent.rows("span"), agent.texts.number("work")
put = 0
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        rows.put((threading.get_native_id(), name, put, put + 1, 0))
        put += 1
        if not put % 500:
            time.sleep(0.001)
    waits = len(rows) or agent.transport.backlog_bytes
    told = {"put": put, "dropped": agent.drops.count, "on": agent.on, "waits": waits}
    print(json.dumps(told | {"connected": agent.transport.connected}), flush=True)
"""


class Engine:
    """A process with the project's own agent, which counts the rows that it is given.

    Args:
        daemon: Where its agent connects.
    """

    def __init__(self, daemon: DaemonProcess) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ENGINE, daemon.ingest],
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._line() == b"ready\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def put(self, rows: int = 0) -> dict[str, Any]:
        """Give the agent so many rows, numbered on; what it says then."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % rows)
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._line())
        return told

    def attach(self, daemon: DaemonProcess) -> str:
        """Have the daemon record it; the session's id."""
        wait_for(lambda: self.put()["connected"], "the agent connects")
        session = daemon.client.attach(self.pid).session.session
        wait_for(lambda: self.put()["on"], "the agent is told to send")
        return session

    def settle(self) -> dict[str, Any]:
        """Wait until the agent has sent all it had; what it says then."""
        wait_for(lambda: not self.put()["waits"], "the agent has sent everything")
        return self.put()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def numbers(found: Recorded) -> list[int]:
    """Which of the engine's rows a recording holds."""
    return found.values("span", "start_ns")


def all_told(daemon: DaemonProcess, session: str, engine: Engine) -> Recorded:
    """The recording, once every row that the engine made is in it or told as lost."""
    told = engine.settle()

    def sums() -> bool:
        found = daemon.recorded(session)
        return len(numbers(found)) + found.lost("agent.queue") >= int(told["put"])

    wait_for(sums, f"{told} are all recorded or told as lost")
    found = daemon.recorded(session)
    kept = numbers(found)
    assert len(kept) + found.lost("agent.queue") == told["put"]
    assert found.lost("agent.queue") == told["dropped"]
    assert kept == sorted(set(kept)), "in order, and once"
    assert not found.damage
    assert found.missing == 0
    return found


class Group:
    """A cgroup of the first version for one controller; gone with the ``with`` block."""

    def __init__(self, controller: str) -> None:
        self.path = Path(f"/sys/fs/cgroup/{controller}/gpucorrelate-test-{os.getpid()}")

    def __enter__(self) -> Group:
        try:
            self.path.mkdir()
        except OSError as exc:
            pytest.skip(f"no such cgroup can be made: {exc}")
        return self

    def __exit__(self, *_: object) -> None:
        wait_for(lambda: not (self.path / "cgroup.procs").read_text(), "the group is empty")
        self.path.rmdir()

    def take(self, pid: int) -> None:
        """Have a process be in it."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def read(self, name: str) -> int:
        """A number of it."""
        return int((self.path / name).read_text())

    def write(self, name: str, value: int) -> None:
        """Set a number of it."""
        (self.path / name).write_text(str(value))


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Disk:
    """A file system of its own on a loop device, which can hang and fail."""

    def __init__(self, place: Path, image: Path, options: str) -> None:
        self.place = place
        self._image = image
        self._options = options

    def mount(self) -> str:
        """Why it cannot be mounted; empty when it was."""
        options = ",".join(filter(None, ("loop", self._options)))
        return _run("mount", "-o", options, self._image, self.place).stderr

    def freeze(self) -> None:
        """Have every write hang."""
        subprocess.run(["fsfreeze", "-f", self.place], check=True)

    def thaw(self) -> None:
        """Have them go on."""
        subprocess.run(["fsfreeze", "-u", self.place], check=True)

    def break_it(self) -> None:
        """Have the kernel meet an error on it."""
        source = Path(_run("findmnt", "-n", "-o", "SOURCE", self.place).stdout.strip())
        fault = Path("/sys/fs/ext4", source.name, "trigger_fs_error")
        if not fault.exists():
            pytest.skip("no error can be made here")
        fault.write_text("made by a test")

    def mend(self) -> None:
        """As an administrator does: unmounted, checked, mounted again."""
        subprocess.run(["umount", self.place], check=True)
        # Whoever copied the mounts of this namespace meanwhile still holds the file system.
        wait_for(lambda: not self._devices(), "nobody has it mounted")
        subprocess.run(["fsck.ext4", "-fy", self._image], capture_output=True, check=False)
        assert not self.mount()

    def _devices(self) -> str:
        return _run("losetup", "-j", self._image).stdout


@contextlib.contextmanager
def disk(place: Path, *, size_mib: int = 48, options: str = "") -> Iterator[Disk]:
    """A disk, mounted at ``place``."""
    if shutil.which("mkfs.ext4") is None or not Path("/dev/loop-control").exists():
        pytest.skip("no mkfs.ext4 or no loop devices")
    image = place.with_name("image")
    with image.open("wb") as file:
        file.truncate(size_mib << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, capture_output=True)
    made = Disk(place, image, options)
    if reason := made.mount():
        pytest.skip(f"a loop device cannot be mounted: {reason}")
    try:
        yield made
    finally:
        subprocess.run(["fsfreeze", "-u", place], capture_output=True, check=False)
        subprocess.run(["umount", "-l", place], check=True)
