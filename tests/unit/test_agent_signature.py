# SPDX-License-Identifier: Apache-2.0
"""Hooks are put in place only where what they wrap is what they were written for."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.vllm import contract, engine, shm_queue, worker
from gpucorrelate.probes.agents.vllm.patch import MARK, unmet, wrap
from gpucorrelate.probes.agents.vllm.signature import Need, Shape, complaint, shape_of
from gpucorrelate.probes.wire.schema import CapabilityState

NEED = Need("m", "Owner", "method", ("first", "second"))


class Owner:
    def method(self, first, second, *rest, third=None, **more):
        return first, second, rest, third, more

    async def waits(self, first):
        return first

    @contextmanager
    def managed(self, timeout=None, indefinite=False):
        yield timeout, indefinite

    @staticmethod
    def static(first):
        return first


def decorated(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


def test_shape_of_a_method_in_its_class():
    assert shape_of(Owner.method) == Shape(("first", "second"), False, True)
    assert shape_of(Owner.waits) == Shape(("first",), True)
    assert shape_of(Owner.managed).parameters == ("timeout", "indefinite")
    assert shape_of(decorated(Owner.method)).parameters == ("first", "second")


def test_shape_of_a_bound_method_leaves_self_out_too():
    assert shape_of(Owner().method, bound=True) == Shape(("first", "second"), False, True)
    assert shape_of(decorated(Owner().method), bound=True).parameters == ("first", "second")
    assert shape_of(lambda first, second: None, bound=True).parameters == ("first", "second")


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (Shape(("first", "second")), ""),
        (Shape(("first", "second", "new")), ""),
        (Shape(("second", "first")), "takes ('second', 'first')"),
        (Shape(("first",)), "takes ('first',)"),
        (Shape((), False, True), "takes nothing"),
        (Shape(("first", "second"), True), "is a coroutine"),
        (None, "is missing"),
    ],
)
def test_complaints(shape, why):
    assert (why in complaint(NEED, shape)) if why else complaint(NEED, shape) == ""


def test_what_is_optional_may_be_missing_but_not_different():
    need = Need("m", "Owner", "method", ("first",), optional=True)
    assert complaint(need, None) == ""
    assert complaint(need, Shape(("other",)))


def test_wrap_is_done_once_and_only_on_a_classs_own_plain_methods():
    class Child(Owner):
        def own(self):
            return 1

    def make(original):
        def hook(self, *args):
            return "hook", original(self, *args)

        return hook

    assert wrap(Child, "own", make)
    assert wrap(Child, "own", make)
    assert Child().own() == ("hook", 1)
    assert getattr(Child.own, MARK)
    assert Child.own.__name__ == "own"
    assert not wrap(Child, "method", make)
    assert not wrap(Child, "static", make)


def module(name: str, **members) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(members)
    return made


@pytest.fixture
def agent(tmp_path):
    return Agent("vllm", str(tmp_path / "nobody"))


def standing(agent: Agent, part: str):
    return agent.part(part).state, agent.part(part).reason


def test_a_module_whose_methods_changed_is_left_untouched(agent):
    class MessageQueue:
        def enqueue(self, payload):
            pass

        def dequeue(self):
            pass

        def acquire_write(self):
            pass

    class ShmRingBuffer:
        pass

    made = module(contract.QUEUE, MessageQueue=MessageQueue, ShmRingBuffer=ShmRingBuffer)
    before = dict(vars(MessageQueue))
    shm_queue.install(agent, made)
    state, reason = standing(agent, contract.PART_QUEUE)
    assert state is CapabilityState.OFF
    assert "MessageQueue.enqueue takes ('payload',), expected ('obj',)" in reason
    assert "MessageQueue.acquire_read is missing" in reason
    assert contract.LOST[contract.PART_QUEUE] in reason
    assert dict(vars(MessageQueue)) == before


def test_a_part_that_was_refused_stays_off_when_started(agent):
    worker.install(agent, module(contract.RUNNER))
    assert standing(agent, contract.PART_WORKER)[0] is CapabilityState.OFF
    agent.started("s")
    assert not agent.part(contract.PART_WORKER).on
    assert agent.part(contract.PART_QUEUE).on


def test_an_engine_with_a_scheduler_of_its_own_kind_is_refused_and_still_runs(agent):
    class EngineCore:
        def __init__(self):
            self.vllm_config = SimpleNamespace()
            self.scheduler = SimpleNamespace(
                schedule=lambda: "plan",
                update_from_output=lambda plan, results: "outputs",
            )
            self.model_executor = SimpleNamespace(execute_model=lambda scheduler_output: None)

        def step(self):
            return self.scheduler.update_from_output(self.scheduler.schedule(), None)

        def add_request(self, request):
            return request

    engine.install(agent, module(contract.CORE, EngineCore=EngineCore))
    agent.started("s")
    core = EngineCore()
    assert core.add_request("r") == "r"
    assert core.step() == "outputs"
    state, reason = standing(agent, contract.PART_ENGINE)
    assert state is CapabilityState.OFF
    assert "update_from_output takes ('plan', 'results')" in reason


def test_a_raising_step_passes_through_a_refused_engine(agent):
    class EngineCore:
        vllm_config = scheduler = model_executor = None

        def step(self):
            raise KeyError("the engine's own")

        def add_request(self, request):
            return request

    engine.install(agent, module(contract.CORE, EngineCore=EngineCore))
    agent.started("s")
    with pytest.raises(KeyError, match="the engine's own"):
        EngineCore().step()


def test_every_need_belongs_to_a_part_that_says_what_is_lost():
    assert set(contract.NEEDS) == set(contract.LOST)
    assert set(contract.FIELDS) <= set(contract.NEEDS)


def test_unmet_only_asks_for_what_the_module_should_have():
    other = module("somewhere.else")
    assert unmet(other, contract.NEEDS[contract.PART_QUEUE]) == []
