# SPDX-License-Identifier: Apache-2.0
"""Run a scenario under the tracer and hold what was seen beside what was done."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucorrelate.probes.wire.frame import StringTable
from gpucorrelate.probes.wire.schema import WaitFlag, WaitKind
from tests.kernel.scenarios import sleeping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpucorrelate.probes.ebpf.tracer import Loss, Rows, Tracer

ROOT = Path(__file__).resolve().parents[2]
_NUMPY = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i16": "<i2", "i64": "<i8",
          "str": "<u4"}  # fmt: skip


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def wait_until(check: Callable[[], Any], what: str, limit_s: float = 10.0) -> Any:
    """The first true value that ``check`` returns."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if value := check():
            return value
        time.sleep(0.002)
    raise AssertionError(f"{what}: not within {limit_s} s")


@dataclass
class Row:
    """One row, its columns as attributes."""

    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def length(self) -> int:
        return int(self.end_ns - self.start_ns)

    def __repr__(self) -> str:
        text = dict(self.values)
        if "wait_kind" in text:
            text["wait_kind"] = WaitKind(text["wait_kind"]).name
            if "flags" in text:
                text["flags"] = WaitFlag(text["flags"])
        return f"Row({text})"


@dataclass
class Seen:
    """Everything drained so far, by kind."""

    tracer: Tracer
    rows: dict[str, list[Row]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    strings: StringTable = field(default_factory=StringTable)
    texts: dict[int, str] = field(default_factory=dict)

    def drain(self) -> Seen:
        self.add(self.tracer.drain(self.strings))
        self.losses += self.tracer.losses()
        return self

    def add(self, found: list[Rows]) -> None:
        self.texts.update(dict(self.strings.take_fresh()))
        for part in found:
            columns = [
                np.frombuffer(data, _NUMPY[column.ctype]).tolist()
                for column, data in zip(part.kind.columns, part.columns, strict=True)
            ]
            names = [column.name for column in part.kind.columns]
            made = [
                Row(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)
            ]
            for row in made:
                if "comm" in row.values:
                    row.values["comm"] = self.texts.get(row.comm, "")
            assert len(made) == part.count
            self.rows.setdefault(part.kind.name, []).extend(made)

    def get(self, kind: str, **wanted: object) -> list[Row]:
        return [
            row
            for row in self.rows.get(kind, [])
            if all(row.values[name] == value for name, value in wanted.items())
        ]

    def waits(self, truth: dict[str, Any], **wanted: object) -> list[Row]:
        """Waits of the truth's thread that lie within its time."""
        return [
            row
            for row in self.get("wait", tid=truth["tid"], **wanted)
            if row.start_ns >= truth["start"] and row.end_ns <= truth["end"]
        ]

    def comms(self, tid: int) -> set[str]:
        return {row.comm for row in self.get("task", tid=tid)}


class Scenario:
    """A scenario's process: started, begun, done."""

    def __init__(self, name: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernel.scenarios", name, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        assert self._stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def go(self) -> None:
        self._stdin.write("\n")
        self._stdin.flush()

    def truth(self) -> dict[str, Any]:
        line = self._stdout.readline()
        assert line, "the scenario's process died"
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        if not self._stdin.closed:
            # A process that died on purpose no longer reads.
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            self._stdout.close()


@contextlib.contextmanager
def scenario(name: str, *arguments: object) -> Iterator[Scenario]:
    made = Scenario(name, *arguments)
    try:
        yield made
    finally:
        made.end()


def observed(tracer: Tracer, name: str, *arguments: object) -> tuple[dict[str, Any], Seen]:
    """Run a scenario as a target from its beginning; what it did, and what was seen."""
    seen = Seen(tracer)
    with scenario(name, *arguments) as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        tracer.add_target(made.pid)
        made.go()
        truth = made.truth()
        seen.drain()
        tracer.remove_target(made.pid)
    seen.drain()
    assert not seen.losses, seen.losses
    return truth, seen


def switches(pid: int) -> int:
    """How often the kernel switched away from a process's main thread, by its own count."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def at_rest(pid: int) -> bool:
    """Whether a process waits: asleep is also who is still on its way to sleep."""
    before = switches(pid)
    time.sleep(0.005)
    return sleeping(pid) and switches(pid) == before


def close(measured_ns: int, true_ns: int) -> bool:
    """Within 5% or 1 ms, whichever is more."""
    return abs(measured_ns - true_ns) <= max(1_000_000, true_ns // 20)
