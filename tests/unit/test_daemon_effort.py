# SPDX-License-Identifier: Apache-2.0
"""The daemon's account of its own CPU time: whose it is, and that none is missing."""

from __future__ import annotations

import os
import threading
import time

from gpucorrelate.daemon.effort import OTHER_THREADS, Effort, Meter, Part
from gpucorrelate.daemon.loop import Loop
from gpucorrelate.daemon.values import from_map, to_map
from tests.unit.daemon_kit import Yard, wait_for

_WORK_S = 0.05


def work() -> None:
    """Use so much of a CPU."""
    begun = time.thread_time()
    while time.thread_time() - begun < _WORK_S:
        pass


def parts_of(effort: Effort) -> dict[str, float]:
    """Seconds by part."""
    return {part.name: part.cpu_ns / 1e9 for part in effort.parts}


def test_work_belongs_to_the_part_that_is_named_last() -> None:
    meter = Meter()
    with meter.part(Part.PROCESSES):
        work()
        with meter.part(Part.RINGS):
            work()
            work()
        work()
    work()
    spent = parts_of(meter.effort())
    assert 2 * _WORK_S <= spent["processes"] < 3 * _WORK_S
    assert 2 * _WORK_S <= spent["rings"] < 3 * _WORK_S
    assert _WORK_S <= spent["loop"] < 2 * _WORK_S
    assert spent["storing"] == 0


def test_a_part_ends_with_its_work_even_if_that_fails() -> None:
    meter = Meter()
    try:
        with meter.part(Part.HOST):
            os.close(-1)  # no such descriptor
    except OSError:
        work()
    spent = parts_of(meter.effort())
    assert spent["loop"] >= _WORK_S
    assert spent["host"] < _WORK_S


def test_the_parts_are_all_of_it_and_other_threads_have_their_own() -> None:
    meter = Meter()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with meter.part(Part.STORING):
        work()
    effort = meter.effort()
    spent = parts_of(effort)
    assert sum(part.cpu_ns for part in effort.parts) == effort.cpu_ns
    assert spent[OTHER_THREADS] >= 0.9 * _WORK_S
    assert effort.cpu_ns <= 1.5 * effort.wall_ns
    assert 0 < effort.cpus <= 1.5


def test_time_asleep_is_no_effort() -> None:
    meter = Meter()
    time.sleep(4 * _WORK_S)
    effort = meter.effort()
    assert effort.wall_ns >= 4e9 * _WORK_S
    assert effort.cpu_ns < effort.wall_ns / 2


def test_handlers_count_as_the_part_they_were_added_for() -> None:
    loop = Loop()
    agents = loop.of(Part.AGENTS)
    read, write = os.pipe()
    told: list[int] = []

    def handle(events: int) -> None:
        told.append(events)
        work()

    agents.add(read, handle)
    os.write(write, b"x")
    loop.run_once(1.0)
    assert len(told) == 1
    spent = parts_of(loop.meter.effort())
    assert spent["agents"] >= _WORK_S
    assert spent["loop"] < _WORK_S
    loop.remove(read)
    loop.run_once(0.0)
    assert len(told) == 1, "what one of them added, each can remove"
    loop.close()
    os.close(read)
    os.close(write)


def test_it_travels_to_callers() -> None:
    effort = Meter().effort()
    assert from_map(Effort, to_map(effort)) == effort


def test_a_daemon_says_what_it_uses_and_rests_while_nothing_happens() -> None:
    yard = Yard()
    try:
        daemon = yard.daemon(tick_ms=20, poll_ms=200).start()
        peer = yard.peer(daemon)
        peer.join()
        daemon.client.attach(peer.pid)
        before = daemon.client.status().effort
        wait_for(
            lambda: daemon.client.status().effort.wall_ns > before.wall_ns + 1_500_000_000,
            "some time has passed",
        )
        effort = daemon.client.status().effort
        assert {part.name for part in effort.parts} == {*Part, OTHER_THREADS}
        ticks = (effort.wall_ns - before.wall_ns) / 20e6
        assert 0 < effort.turns - before.turns < ticks / 2, "turns are rarer than ticks"
        assert parts_of(effort)["host"] > 0
        assert effort.cpu_ns > before.cpu_ns
    finally:
        yard.clear()
