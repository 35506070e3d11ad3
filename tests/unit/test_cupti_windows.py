# SPDX-License-Identifier: Apache-2.0
"""When the GPU is recorded, and when that ends because it costs too much."""

from __future__ import annotations

import random

from gpucorrelate.probes.agents.cupti.windows import Action, Windows
from gpucorrelate.probes.wire.gpu import GpuMode, GpuPlan

MS = 1_000_000
PLAN = GpuPlan(GpuMode.WINDOW, window_ms=2_000, every_ms=10_000)


def steps(windows: Windows, start_ns: int, count: int, length_ns: int) -> int:
    """So many steps one after the other, every eighth a prefill; returns when the last ends."""
    rng = random.Random(count)
    for at in range(count):
        length = length_ns * (9 if at % 8 == 7 else 1) + rng.randrange(length_ns // 100 + 1)
        windows.step(start_ns, start_ns + length)
        start_ns += length
    return start_ns


def window(windows: Windows, now: int, *, before_ns: int, inside_ns: int) -> int:
    """Steps, a window with steps, and its end."""
    now = steps(windows, now, 60, before_ns)
    windows.began(now)
    now = steps(windows, now, 60, inside_ns)
    windows.ended()
    return now


def test_windows_come_in_their_time_and_end_in_theirs() -> None:
    windows = Windows(PLAN)
    begins, ends = [], []
    for ms in range(5, 40_000, 5):
        action = windows.due(ms * MS)
        if action is Action.BEGIN:
            windows.began(ms * MS)
            begins.append(ms)
        elif action is Action.END:
            windows.ended()
            ends.append(ms)
    assert begins == [5, 10_005, 20_005, 30_005]
    assert ends == [2_005, 12_005, 22_005, 32_005]


def test_a_window_ends_after_its_steps() -> None:
    windows = Windows(GpuPlan(steps=16))
    windows.began(MS)
    steps(windows, MS, 15, MS)
    assert windows.due(2 * MS) is Action.NOTHING
    steps(windows, 100 * MS, 1, MS)
    assert windows.due(200 * MS) is Action.END


def test_off_never_begins_and_always_never_ends() -> None:
    assert Windows(GpuPlan(GpuMode.OFF)).due(1 << 60) is Action.NOTHING
    always = Windows(GpuPlan(GpuMode.ALWAYS))
    assert always.due(1) is Action.BEGIN
    always.began(1)
    assert always.due(1 << 60) is Action.NOTHING
    always.stop("told to")
    assert always.due(1 << 60) is Action.END
    always.ended()
    assert always.due(1 << 61) is Action.NOTHING


def test_what_was_refused_is_tried_again_in_the_next_windows_time() -> None:
    windows = Windows(PLAN)
    windows.refused(MS)
    assert windows.due(9_000 * MS) is Action.NOTHING
    assert windows.due(10_001 * MS) is Action.BEGIN


def test_what_costs_less_than_the_budget_goes_on() -> None:
    windows, now = Windows(PLAN), MS
    for _ in range(5):
        now = window(windows, now, before_ns=20 * MS, inside_ns=20 * MS + MS // 2)
        assert windows.cost_ppm() is not None
    assert windows.stopped == ""


def test_two_windows_over_the_budget_are_the_last() -> None:
    windows, now = Windows(PLAN), MS
    now = window(windows, now, before_ns=20 * MS, inside_ns=24 * MS)
    assert windows.stopped == "", "one window may have met something else"
    now = window(windows, now, before_ns=20 * MS, inside_ns=20 * MS)
    now = window(windows, now, before_ns=20 * MS, inside_ns=24 * MS)
    assert windows.stopped == "", "they were not one after the other"
    now = window(windows, now, before_ns=20 * MS, inside_ns=24 * MS)
    assert windows.stopped.startswith("steps were 2")
    assert windows.stopped.endswith("more than the 5.0% allowed")
    assert windows.due(now + 60_000 * MS) is Action.NOTHING


def test_more_prefills_in_a_window_are_not_its_cost() -> None:
    windows = Windows(PLAN)
    now = steps(windows, MS, 60, 20 * MS)
    windows.began(now)
    for at in range(60):
        length = (300 if at % 2 else 20) * MS
        windows.step(now, now + length)
        now += length
    windows.ended()
    assert (windows.cost_ppm() or 0) < PLAN.budget_ppm


def test_few_steps_say_nothing_and_those_across_a_border_count_nowhere() -> None:
    windows = Windows(PLAN)
    now = steps(windows, MS, 29, 20 * MS)
    windows.step(now, now + 1000 * MS)
    windows.began(now + 500 * MS)
    windows.step(now, now + 5000 * MS)
    steps(windows, now + 500 * MS, 29, 90 * MS)
    windows.ended()
    assert windows.cost_ppm() is None
    assert windows.stopped == ""
