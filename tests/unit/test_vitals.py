# SPDX-License-Identifier: Apache-2.0
"""What ``watch`` makes of numbers and changes; what a real kernel does is in tests/kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.cli import view_watch
from gpucorrelate.daemon import vitals
from gpucorrelate.daemon.look import Found
from gpucorrelate.daemon.slow import Task
from gpucorrelate.daemon.vitals import VitalSigns
from gpucorrelate.probes.host import gpu_metrics, process_metrics, psi
from gpucorrelate.probes.host.reading import (
    BLOCKED_IN,
    Change,
    Metric,
    Missing,
    Reading,
    Round,
    Sample,
    Standing,
)
from gpucorrelate.probes.wire.roles import ROLE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

S = 1_000_000_000
STALLED = psi.METRICS["io"]["some"]["total"]


class Source:
    """A source that is played: what it brings, look by look."""

    def __init__(self, *rounds: Round | Exception) -> None:
        self.rounds = list(rounds)
        self.stands = Standing()
        self.closed = 0
        self.expected = 0

    def poll(self, pids: Collection[int], *, everything: bool) -> Round:
        assert self.expected in (0, *pids)
        del everything
        found = self.rounds.pop(0) if self.rounds else Round()
        if isinstance(found, Exception):
            raise found
        return found

    def look(self, pids: Collection[int], now_ns: int) -> Found:
        del now_ns
        found = self.poll(pids, everything=False)
        return Found(found.sample, self.stands, found.changes)

    def standing(self) -> Standing:
        return self.stands

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child.pid
        child.kill()


def signs(
    monkeypatch: pytest.MonkeyPatch, pid: int, source: Source, asked: Source | None = None
) -> VitalSigns:
    """Of these sources, with a look each second."""
    tasks = [Task("gpu", 0, asked)] if asked is not None else []
    monkeypatch.setattr(vitals, "SOURCES", {"played": lambda: source})
    monkeypatch.setattr(vitals, "shared_tasks", lambda: tasks)
    monkeypatch.setattr(vitals, "session_tasks", lambda **_: [])
    clock = SimpleNamespace(monotonic_ns=iter(range(S, 99 * S, S)).__next__)
    monkeypatch.setattr("gpucorrelate.daemon.vitals.time", clock)
    source.expected = pid
    return VitalSigns(pid)


def reading(metric: Metric, value: int, at_s: int, subject: str = "host") -> Reading:
    return Reading(metric, subject, value, at_s * S)


def numbers(*found: Reading) -> Round:
    return Round(Sample(found))


def test_only_what_grew_by_enough_is_told_with_the_time_it_speaks_for(
    monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    source = Source(
        numbers(reading(STALLED, 5 * S, 1)),
        numbers(reading(STALLED, 5 * S + S // 20, 2)),  # 5%
        numbers(reading(STALLED, 5 * S + S // 20 + S // 2, 3)),
    )
    with signs(monkeypatch, pid, source) as watching:
        assert [watching.look().numbers for _ in range(2)] == [(), ()]
        found = watching.look()
    (one,) = found.numbers
    assert (one.grown, one.since_ns, one.until_ns) == (S // 2, 2 * S, 3 * S)
    (line,) = view_watch.lines(found, 5)
    assert line.split("  ", 1)[1].split("  ")[0] == "50.0% of 1.00 s"
    (document,) = map(json.loads, view_watch.documents(found))
    assert (document["share_ppm"], document["least_ppm"]) == (500_000, 100_000)
    assert document["meaning"] == STALLED.meaning


def test_the_largest_of_a_kind_come_first_and_how_many_more_there_are(
    monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    faults = process_metrics.MAJOR_FAULTS
    before = [reading(faults, 0, 1, f"pid:{pid}") for pid in range(900_001, 900_008)]
    after = [reading(faults, pid % 10, 2, f"pid:{pid}") for pid in range(900_001, 900_008)]
    with signs(monkeypatch, pid, Source(numbers(*before), numbers(*after))) as watching:
        watching.look()
        found = watching.look()
    lines = list(view_watch.lines(found, 3))
    assert ["  7 in" in lines[0], "  6 in" in lines[1], "  5 in" in lines[2]] == [True] * 3
    assert lines[3].endswith("and 4 more (--top)")
    assert len(list(view_watch.documents(found))) == 7, "JSON has all"


def test_levels_of_gpus_are_told_when_they_are_others(
    monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    used, gpu = gpu_metrics.MEMORY_USED, "gpu:GPU-1"
    values = [10 << 30, (10 << 30) + (64 << 20), 30 << 30, 30 << 30]
    asked = Source(*(numbers(reading(used, v, at + 1, gpu)) for at, v in enumerate(values)))
    with signs(monkeypatch, pid, Source(), asked) as watching:
        looks = [watching.look() for _ in values]
    assert [len(one.numbers) for one in looks] == [1, 0, 1, 0]
    assert "10.7 GB to 32.2 GB" in next(view_watch.lines(looks[2], 5))
    assert "memory allocated" in next(view_watch.lines(looks[0], 5))


def test_what_was_so_to_begin_with_is_no_change(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    first = Change(S, 0, "pid:1", "cgroup of cpu", "", "/a")
    moved = (
        Change(2 * S, S, "pid:900001", "cgroup of cpu", "/a", "/b"),
        Change(2 * S, S, "pid:900001", "cgroup of memory", "/a", "/b"),
        Change(2 * S, 0, "pid:900002", "cgroup of cpu", "", "/b"),
        Change(2 * S, S, "tid:900001", ROLE, "", "zmq (guessed by its name)"),
        Change(2 * S, 0, "tid:900001", BLOCKED_IN, "", "folio_wait_bit_common"),
    )
    with signs(
        monkeypatch, pid, Source(Round(changes=(first,)), Round(changes=moved))
    ) as watching:
        assert watching.look().changes == ()
        found = watching.look()
    told = [line.split(None, 1)[1].split() for line in view_watch.lines(found, 5)]
    assert [" ".join(one) for one in told] == [
        "changed cgroup: /a became /b pid/900001",
        "at this look blocked in page I/O (folio_wait_bit_common) tid/900001",
    ]


def test_a_source_that_fails_or_lacks_all_is_named_once(
    monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    source = Source(ValueError("what the kernel wrote"), ValueError("what the kernel wrote"))
    asked = Source()
    asked.stands = Standing(works=False, missing=(Missing("nvml", "host", "no driver"),))
    with signs(monkeypatch, pid, source, asked) as watching:
        looks = [watching.look() for _ in range(5)]
    assert source.closed == 2 + 1
    told = [line for one in looks for line in view_watch.lacks(one)]
    assert told == [
        "nothing of played: played: failed: ValueError: what the kernel wrote",
        "nothing of gpu: nvml: no driver",
    ]
    kinds = [json.loads(text)["kind"] for one in looks for text in view_watch.documents(one)]
    assert kinds == ["lack", "lack"]
