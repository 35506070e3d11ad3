# SPDX-License-Identifier: Apache-2.0
"""Who is born, renamed and gone, and which processes become targets by birth."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.wire.errors import NoSuchProcessError
from gpucorrelate.probes.wire.schema import TaskEvent, WaitKind
from tests.kernel.observe import Seen, observed, scenario, wait_until

if TYPE_CHECKING:
    from gpucorrelate.probes.ebpf.tracer import Tracer


def test_births_renames_execs_and_deaths_are_told(tracer: Tracer) -> None:
    truth, seen = observed(tracer, "births")
    tgid, thread = truth["tgid"], truth["thread"]
    told = {(row.tid, row.event): row for row in seen.get("task")}

    assert told[tgid, TaskEvent.SEEN].comm == "gpc-scenario"
    assert told[tgid, TaskEvent.SEEN].parent_tgid == os.getpid()
    assert told[tgid, TaskEvent.SEEN].ns_tid == tgid

    assert told[thread, TaskEvent.FORK].tgid == tgid
    assert told[thread, TaskEvent.FORK].parent_tgid == tgid
    assert told[thread, TaskEvent.RENAMED].comm == "gpc-thread"
    assert told[thread, TaskEvent.EXIT].comm == "gpc-thread"

    child, program = truth["child"], truth["exec"]
    assert told[child, TaskEvent.FORK].parent_tgid == tgid
    assert told[child, TaskEvent.EXIT].tgid == child
    assert told[program, TaskEvent.EXEC].comm == "sleep"
    assert told[program, TaskEvent.EXIT].comm == "sleep"
    for born in (child, program):
        # Followed: its own waits are there without anybody having asked for it.
        sleeps = seen.get("wait", tid=born, wait_kind=WaitKind.SLEEP)
        assert len(sleeps) == 1
        assert sleeps[0].tgid == born


def test_a_child_becomes_a_target_and_its_death_ends_that(tracer: Tracer) -> None:
    seen = Seen(tracer)
    with scenario("grandchild") as made:
        tracer.add_target(made.pid)
        assert tracer.new_targets() == ()
        made.go()
        child = made.truth()["child"]
        seen.drain()
        assert tracer.new_targets() == ((child, made.pid),)
        assert tracer.new_targets() == ()
        assert tracer.targets() == {made.pid, child}
        wait_until(
            lambda: "gpc-grandchild" in seen.drain().comms(child), "the grandchild's new name"
        )
        made.go()
        wait_until(lambda: tracer.targets() == {made.pid}, "the grandchild leaves the targets")
    wait_until(lambda: tracer.targets() == frozenset(), "the process leaves the targets")


def test_a_removed_target_is_no_longer_seen(tracer: Tracer) -> None:
    with scenario("sleeps", 20, 200) as made:
        tracer.add_target(made.pid)
        tracer.remove_target(made.pid)
        Seen(tracer).drain()
        made.go()
        made.truth()
        seen = Seen(tracer).drain()
        assert seen.get("wait", tgid=made.pid) == []
    tracer.remove_target(made.pid)  # gone, and not a target: harmless


def test_a_process_that_is_not_there_is_refused(tracer: Tracer) -> None:
    with scenario("sleeps", 0, 0) as made:
        pass
    with pytest.raises(NoSuchProcessError):
        tracer.add_target(made.pid)
    assert made.pid not in tracer.targets()


def test_names_are_told_again_to_a_later_session(tracer: Tracer) -> None:
    """The waker's name was told before; who attaches later must learn it all the same."""
    for _ in range(2):
        truth, seen = observed(tracer, "minor_fault")
        us = os.getpid()
        # We write the line that starts the scenario: its first wait was ended by this process.
        ours = [row for row in seen.get("wait", tid=truth["tid"]) if row.waker_tgid == us]
        assert ours
        assert seen.comms(ours[0].waker_tid)
