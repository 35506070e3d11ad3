# SPDX-License-Identifier: Apache-2.0
"""What the checks inside share: cgroups of v2, children in them, and facts for outside."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.unit import daemon_kit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpucorrelate.probes.host.reading import Sample

#: By way of what the programs are to be loaded, for the checks of both ways.
BACKEND_VARIABLE = "GPUCORRELATE_CHECK_BACKEND"
BACKEND = os.environ.get(BACKEND_VARIABLE, "auto")
CGROUPS = Path("/sys/fs/cgroup")
FACTS = Path("/root/facts")
#: Longest that a child runs, whatever becomes of the check.
CHILD_S = 120
BUSY = f"import time\nend = time.monotonic() + {CHILD_S}\nwhile time.monotonic() < end: pass"
IDLE = f"import time\ntime.sleep({CHILD_S})"
MIB = 1 << 20
#: Settings of a daemon whose looks may take what they need: here they take twenty times as long.
GREEDY = {"poll_share_ppm": 1_000_000}


def keep(name: str, fact: object) -> None:
    """Leave a fact for those who look from outside."""
    FACTS.mkdir(exist_ok=True)
    (FACTS / f"{name}.json").write_text(json.dumps(fact, indent=1, sort_keys=True))


def wait_for(
    ask: Callable[[], Any], what: str, limit_s: float = 120.0, seen: Callable[[], Any] = str
) -> Any:
    """What ``ask`` returns once it is true; else a failure that tells what was ``seen``."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if answer := ask():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"never: {what}; {seen()}")


@contextlib.contextmanager
def cgroups(*names: str) -> Iterator[list[Path]]:
    """Cgroups within each other, outermost first; each gives its controllers to the next."""
    folder = CGROUPS
    made: list[Path] = []
    try:
        for name in names:
            (folder / "cgroup.subtree_control").write_text("+cpu +memory +io")
            folder = folder / name
            folder.mkdir()
            made.append(folder)
        yield made
    finally:
        for folder in reversed(made):
            # Held threads die when the quota lets them; memory limits hold nobody's end up.
            (folder / "cpu.max").write_text("max")
            (folder / "cgroup.kill").write_text("1")
        for folder in reversed(made):
            wait_for(functools.partial(_removed, folder), f"{folder} is removed")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def child(code: str, folder: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process in a cgroup, ready to begin; it begins when it is yielded."""
    text = f"import sys; print(flush=True); sys.stdin.readline()\n{code}"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdout.readline()
        if folder is not None:
            # Not before it runs: starting up within a limit takes long.
            (folder / "cgroup.procs").write_text(str(process.pid))
        process.stdin.write(b"\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def daemons() -> Iterator[daemon_kit.Yard]:
    """Daemons that get the time they need on an emulated machine."""
    daemon_kit._PATIENCE_S = 300.0
    yard = daemon_kit.Yard()
    try:
        yield yard
    finally:
        yard.clear()


def cold_file(mib: int) -> Path:
    """A file none of which is in memory."""
    path = Path(f"/var/tmp/cold-{mib}-{os.getpid()}-{time.monotonic_ns()}")
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


Values = dict[tuple[str, str], int]


def values(sample: Sample) -> Values:
    """Numbers by metric and subject."""
    return {(one.metric.name, one.subject): one.value for one in sample.readings}


def grown(first: Values, last: Values, metric: str, subject: str) -> int:
    """How much one grew between two looks."""
    return last[metric, subject] - first[metric, subject]
