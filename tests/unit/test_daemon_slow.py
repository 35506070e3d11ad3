# SPDX-License-Identifier: Apache-2.0
"""Looks that may block: made elsewhere, told once, and harmless to each other."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpucorrelate.daemon import slow
from gpucorrelate.daemon.look import Found
from gpucorrelate.daemon.slow import SlowLooks, Task, Wanted
from gpucorrelate.probes.host.reading import Change, Metric, Reading, Sample
from gpucorrelate.probes.wire.schema import Nature
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import pytest

S = 1_000_000_000
METRIC = Metric("m", "", Nature.LEVEL, "what m is")


class Played:
    """A look that is played."""

    def __init__(self, play: Callable[[], Sample | Found]) -> None:
        self._play = play
        self.closed = 0

    def look(self, pids: Collection[int], now_ns: int) -> Found:
        del pids, now_ns
        found = self._play()
        return found if isinstance(found, Found) else Found(found)

    def close(self) -> None:
        self.closed += 1


def looking(**looks: Callable[[], Any]) -> SlowLooks:
    """These looks only, shared by all sessions, as fast as it goes."""
    return SlowLooks(lambda: [Task(name, 1, Played(one)) for name, one in looks.items()], list)


@contextlib.contextmanager
def running(made: SlowLooks, wanted: dict[str, Wanted]) -> Iterator[SlowLooks]:
    try:
        made.want(wanted)
        yield made
    finally:
        made.close()


def brought(looks: SlowLooks, name: str, count: int, session: str = "s") -> list[slow.Outcome]:
    """What a look brought, until it is so much."""
    found: list[slow.Outcome] = []

    def enough() -> bool:
        found.extend(one for one in looks.take() if one.source == name and one.session == session)
        return len(found) >= count

    wait_for(enough, f"{name} looks {count} times")
    return found


def test_only_what_changed_is_told_until_all_is_wanted_again() -> None:
    readings = (Reading(METRIC, "host", 5, 1), Reading(METRIC, "node:0", 6, 1))
    with running(looking(same=lambda: Sample(readings)), {"s": Wanted(1, (1,))}) as looks:
        first, *others = (one.found.sample.readings for one in brought(looks, "same", 3))
        assert first == readings
        assert others[:2] == [(), ()]
        looks.want({"s": Wanted(2, (1,))})
        wait_for(
            lambda: any(o.found.sample.readings == readings for o in brought(looks, "same", 1)),
            "a new file gets all of it",
        )


def test_a_number_speaks_since_it_was_read_before_and_not_since_the_look_before() -> None:
    """A look does not read everything each time: every other one leaves out one number."""
    at = 0

    def look() -> Sample:
        nonlocal at
        at += 1
        often = Reading(METRIC, "often", at, 10 * at)
        return Sample((often, Reading(METRIC, "seldom", at, 10 * at)) if at % 4 == 1 else (often,))

    since: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    with running(looking(one=look), {"s": Wanted(1, ())}) as looks:
        for outcome in brought(looks, "one", 12):
            for one in outcome.found.sample.readings:
                since[one.subject].append((one.t_ns, one.since_ns))
    assert since["often"][:3] == [(10, 0), (20, 10), (30, 20)]
    assert since["seldom"][:3] == [(10, 0), (50, 10), (90, 50)]


def test_a_number_told_again_speaks_since_it_was_read_before() -> None:
    at = 0

    def look() -> Sample:
        nonlocal at
        at += 1
        return Sample((Reading(METRIC, "host", 5, at),))

    with running(looking(one=look), {"s": Wanted(1, ())}) as looks:
        brought(looks, "one", 2)
        looks.want({"s": Wanted(2, ())})
        told: list[Reading] = []

        def again() -> bool:
            for outcome in brought(looks, "one", 1):
                told.extend(outcome.found.sample.readings)
            return bool(told)

        wait_for(again, "it is told again")
    assert told[0].since_ns == told[0].t_ns - 1


def test_looks_at_the_machine_are_made_once_and_told_to_all() -> None:
    made = 0

    def look() -> Found:
        nonlocal made
        made += 1
        changes = (Change(made, made - 1, "pci:1", "driver", "a", "b"),)
        present = (Change(made, 0, "pci:1", "driver", "", "b"),)
        sample = Sample((Reading(METRIC, "host", made, made),))
        return Found(sample, changes=changes, present=present)

    both = {"s": Wanted(1, ()), "t": Wanted(1, ())}
    with running(looking(one=look), {"s": Wanted(1, ())}) as looks:
        first = brought(looks, "one", 2)
        looks.want(both)
        (late, *_) = brought(looks, "one", 2, "t")
    assert [one.found.changes[0].before for one in first[:2]] == ["", "a"]
    assert late.found.changes[0].before == "", "who comes later is told how it is"
    assert late.found.sample.readings[0].since_ns == 0


def test_a_look_that_fails_ends_no_other_and_is_made_again_later() -> None:
    tried = 0

    def broken() -> Sample:
        nonlocal tried
        tried += 1
        raise RuntimeError("the driver is gone")

    with running(looking(broken=broken, fine=Sample), {"s": Wanted(1, ())}) as looks:
        outcomes: list[slow.Outcome] = []

        def enough() -> bool:
            outcomes.extend(looks.take())
            return sum(one.source == "fine" for one in outcomes) > 40

        wait_for(enough, "the other goes on")
        assert tried == 1, "not as often as others are made"
        (failed,) = (one for one in outcomes if one.source == "broken")
        assert failed.failing == "failed: RuntimeError: the driver is gone"
        assert str(failed.fault) == "the driver is gone"
        (task,) = (one for one in looks.tasks("s") if one.name == "broken")
        assert task.look.closed == 1  # type: ignore[attr-defined]
        task.due_ns = 0
        wait_for(lambda: tried > 1, "it is tried again")


def test_what_nobody_takes_is_not_made_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_MOST_READY", 3)
    at = 0

    def look() -> Sample:
        nonlocal at
        at += 1
        return Sample((Reading(METRIC, "host", at, at),))

    with running(looking(one=look), {"s": Wanted(1, ())}) as looks:
        wait_for(lambda: looks._skipped["s", "one"] > 5, "nobody takes it")
        assert at == 3
        skipped = looks.take_skipped()
        assert skipped["s", "one"] > 5
        assert set(skipped) == {("s", "one")}
        taken = [r.value for o in brought(looks, "one", 5) for r in o.found.sample.readings]
    assert taken[:5] == [1, 2, 3, 4, 5], "nothing that was read is lost"


def test_a_look_that_hangs_holds_nobody_up() -> None:
    release = threading.Event()

    def hang() -> Sample:
        release.wait(60)
        return Sample()

    made = looking(hang=hang)
    for _ in range(100):
        made.want({"s": Wanted(1, ())})
        assert made.take() == []
    wait_for(lambda: any(task.began_ns for task in made.all_tasks()), "it is seen to be made")
    made.close()
    assert made._thread is not None
    assert made._thread.is_alive(), "it is waited for a while, and then left to itself"
    release.set()


def test_nothing_is_looked_at_without_a_session() -> None:
    with running(looking(one=Sample), {}) as looks:
        assert looks._thread is None


def test_a_session_that_ended_is_looked_at_no_more() -> None:
    closed: list[Played] = []

    def tasks() -> list[Task]:
        closed.append(Played(Sample))
        return [Task("own", 1, closed[-1])]

    with running(SlowLooks(list, tasks), {"s": Wanted(1, ())}) as looks:
        brought(looks, "own", 2)
        looks.want({})
        wait_for(lambda: not looks.all_tasks() and not looks._told, "it is forgotten")
    assert [one.closed for one in closed] == [1]


def test_what_is_remembered_of_numbers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_MOST_TOLD", 10)
    told = slow._Told()
    told.begin(1)
    for at in range(1, 100):
        told.news((Reading(METRIC, f"gpu:1 pid:{at}", 1, at * 60_000_000_000),))
        assert len(told._values) <= 11
    assert ("m", "gpu:1 pid:99") in told._values


def test_the_cost_of_looks_is_known() -> None:
    def busy() -> Sample:
        sum(range(200_000))
        return Sample()

    with running(looking(busy=busy, idle=Sample), {"s": Wanted(1, ())}) as looks:
        brought(looks, "busy", 4)
        cost = {task.name: task.cost_ns for task in looks.tasks("s")}
    assert cost["busy"] > 3 * cost["idle"]


def test_the_thread_sleeps_while_nothing_is_due_and_wakes_for_who_is_new() -> None:
    made: list[int] = []

    def look() -> Found:
        made.append(1)
        return Found(rest_ns=600 * S)

    idle = Task("absent", S // 200, Played(look))
    busy = Task("there", S // 50, Played(Sample))
    looks = SlowLooks(lambda: [idle, busy], list)
    turns = count_turns(looks)
    with running(looks, {"s": Wanted(1, ())}):
        brought(looks, "there", 20)
        assert len(made) == 1, "it said that there is nothing to look at"
        assert idle.pace_ns == 600 * S
        assert len(turns) <= busy.looks + idle.looks + 3, "no turn for nothing"
        busy.look = Played(lambda: Found(rest_ns=600 * S))
        wait_for(lambda: busy.rest_ns, "that rests, too")
        before = len(turns)
        looks.want({"s": Wanted(1, (1, 2, 3))})
        looks.want({"s": Wanted(2, ()), "t": Wanted(1, ())})
        brought(looks, "absent", 1, "t")
    assert len(turns) - before <= 2
    assert looks.spent_ns > looks.beside_ns > 0


def count_turns(looks: SlowLooks) -> list[float]:
    """How long the thread meant to sleep, of each turn that it made."""
    found: list[float] = []
    real = looks._wait_s

    def noted() -> float:
        found.append(real())
        return found[-1]

    looks._wait_s = noted  # type: ignore[method-assign]
    return found


def test_a_gpu_that_comes_is_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    on_change: list[Callable[[], None]] = []

    class Bus:
        def __init__(self, told: Callable[[], None]) -> None:
            on_change.append(told)

    monkeypatch.setattr(slow, "Devices", Bus)
    _, asked = slow.shared_tasks()
    asked.due_ns = asked.rest_ns = 60 * S
    on_change[0]()
    assert asked.due_ns == 0
