# SPDX-License-Identifier: Apache-2.0
"""When the tracer asks to be drained before its time, and what it tells without being asked."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.ebpf.ring import SLOT
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from tests.kernel.observe import Seen, at_rest, scenario, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_RING_BYTES = 1 << 16
_HELD = _RING_BYTES // SLOT.itemsize


@pytest.fixture(scope="module")
def small(backend: str) -> Iterator[Tracer]:
    """A tracer with rings that fill soon."""
    made = Tracer.start(TracerConfig(ring_bytes=_RING_BYTES, faults=False, backend=backend))
    yield made
    made.stop()


def asks(tracer: Tracer, limit_s: float = 0.0) -> bool:
    """Whether the tracer asks for a drain, at once or after a while."""
    return bool(select.select([tracer], [], [], limit_s)[0])


def calm(tracer: Tracer) -> Seen:
    seen = Seen(tracer)
    tracer.calm()
    return seen.drain()


@pytest.mark.parametrize("cpu", ["0"])
def test_a_ring_that_fills_asks_for_a_drain(small: Tracer, cpu: str) -> None:
    with scenario("sleeps", _HELD * 3 // 4, 20, cpu) as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        small.add_target(made.pid)
        seen = calm(small)
        assert not asks(small)
        made.go()
        assert asks(small, 10.0)
        made.truth()
        small.calm()
        assert not asks(small), "asked once, and not for every record more"
        seen.drain()
        assert seen.losses == []
    calm(small)


def test_a_few_records_wait_for_the_clock(small: Tracer) -> None:
    with scenario("sleeps", _HELD // 16, 20) as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        small.add_target(made.pid)
        seen = calm(small)
        made.go()
        truth = made.truth()
        assert not asks(small)
        assert len(seen.drain().get("wait", tid=truth["tid"])) >= _HELD // 16
    calm(small)


def test_a_new_process_is_told_at_once(small: Tracer) -> None:
    with scenario("grandchild") as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        small.add_target(made.pid)
        assert small.new_targets(told=True) == ()
        seen = calm(small)
        made.go()
        assert asks(small, 10.0)
        small.calm()
        child = made.truth()["child"]
        seen.drain()
        assert small.new_targets(told=True) == ((child, made.pid),)
        assert small.new_targets(told=True) == ()
        assert small.new_targets() == (), "nor again by those who look for themselves"
        made.go()
        wait_until(lambda: small.targets() == {made.pid}, "the grandchild leaves the targets")
    calm(small)


def test_what_records_do_not_tell_is_found_by_looking(small: Tracer) -> None:
    with scenario("grandchild") as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        small.add_target(made.pid)
        calm(small)
        made.go()
        child = made.truth()["child"]
        # Nobody drained, so that no record told of it.
        assert small.new_targets(told=True) == ()
        assert small.new_targets() == ((child, made.pid),)
        calm(small)
        assert small.new_targets(told=True) == (), "the record that comes late tells nothing new"
    calm(small)


def test_a_full_ring_is_noticed_until_losses_are_read(small: Tracer) -> None:
    with scenario("sleeps", 3 * _HELD, 20, "0") as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        small.add_target(made.pid)
        calm(small)
        seen = [small.dropping]
        made.go()
        made.truth()
        seen.append(small.dropping)
        assert sum(loss.count for loss in small.losses()) > _HELD
        seen.append(small.dropping)
        assert seen == [False, True, False]
    calm(small)
