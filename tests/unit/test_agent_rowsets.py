# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to the batch, a reader rebuilds every step's rows exactly."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.vllm.rowsets import ListRowsets, StepRowsets


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    num_tokens: int = 0
    num_preemptions: int = 0
    is_prefill_chunk: bool = True


@dataclass
class Batch:
    """What a step schedules, computed by the rules a scheduler keeps to."""

    alive: dict[str, Request] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)

    def plan(self, chunk: int, speculative: bool = False) -> SimpleNamespace:
        scheduled, new, cached, before = {}, [], [], []
        for name, request in self.alive.items():
            if name in self.paused:
                continue
            left = request.num_tokens - request.num_computed_tokens
            scheduled[name] = max(1, min(chunk, left))
            if name in self.known:
                cached.append(name)
                before.append(request.num_computed_tokens)
            else:
                computed = request.num_computed_tokens
                new.append(SimpleNamespace(req_id=name, num_computed_tokens=computed))
                self.known.add(name)
        self.truth = [
            (name, count, self.alive[name].num_computed_tokens, self.alive[name].num_prompt_tokens)
            for name, count in scheduled.items()
        ]
        for name, count in scheduled.items():
            request = self.alive[name]
            request.num_computed_tokens += count
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
            if not request.is_prefill_chunk:
                request.num_tokens += 1
        self.sampled = [not self.alive[name].is_prefill_chunk for name in scheduled]
        return SimpleNamespace(
            num_scheduled_tokens=scheduled,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=SimpleNamespace(req_ids=cached, num_computed_tokens=before),
            scheduled_spec_decode_tokens={"x": [1]} if speculative else {},
        )


class Reader:
    """Keeps statements as a reader of the stream would."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.sets: dict[int, list[tuple]] = {}

    def read(self) -> None:
        for number, *columns in self.agent.rowsets.take():
            assert number not in self.sets
            self.sets[number] = list(zip(*columns, strict=True))

    def rows(self, number: int, age: int):
        self.read()
        if not number:
            return []
        return [
            (name, count, computed + age * count, prompt)
            for name, count, computed, prompt, _, _ in self.sets[number]
        ]

    def must(self, number: int):
        return [bool(row[5]) for row in self.sets[number]] if number else []


@pytest.fixture
def agent(tmp_path):
    return Agent("vllm", str(tmp_path / "nobody"))


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_every_step_come_back(agent, seed):
    rng, batch, reader = random.Random(seed), Batch(), Reader(agent)
    rowsets = StepRowsets(agent, lambda: batch.alive, lambda new, request: None)
    steady = 0
    for step in range(1, 200):
        event = rng.random()
        if event < 0.08:
            prompt = rng.randint(1, 60)
            batch.alive[f"r{step}"] = Request(f"r{step}", prompt, 0, prompt)
        elif event < 0.14 and batch.alive:
            batch.alive.pop(rng.choice(list(batch.alive)))
        elif event < 0.18 and batch.alive:  # preempted: computed again from the start
            victim = batch.alive[rng.choice(list(batch.alive))]
            victim.num_computed_tokens = 0
            victim.num_preemptions += 1
        elif event < 0.22 and batch.alive:
            batch.paused ^= {rng.choice(list(batch.alive))}
        elif event < 0.24:
            agent.drops.add(1)
        output = batch.plan(chunk=16, speculative=rng.random() < 0.05)
        number, age = rowsets.of_step(step, output)
        steady += age > 0
        assert reader.rows(number, age) == batch.truth
        assert reader.must(number) == batch.sampled
    assert steady > 10


def test_nothing_stated_before_a_loss_or_a_start_is_referred_to(agent):
    batch = Batch({"a": Request("a", 1, 1, 2)}, {"a"})
    rowsets = StepRowsets(agent, lambda: batch.alive, lambda new, request: None)
    first, _ = rowsets.of_step(1, batch.plan(8))
    assert rowsets.of_step(2, batch.plan(8)) == (first, 1)
    agent.drops.add(1)
    second, age = rowsets.of_step(3, batch.plan(8))
    assert second > first
    assert age == 0
    agent.started("again")
    third, age = rowsets.of_step(4, batch.plan(8))
    assert third > second
    assert age == 0


def test_a_statement_that_was_refused_is_not_referred_to(agent):
    batch = Batch({"a": Request("a", 1, 1, 2)}, {"a"})
    rowsets = StepRowsets(agent, lambda: batch.alive, lambda new, request: None)
    agent.rowsets.limit = 0
    assert rowsets.of_step(1, batch.plan(8)) == (0, 0)
    assert rowsets.of_step(2, batch.plan(8)) == (0, 0)
    agent.rowsets.limit = 100
    number, age = rowsets.of_step(3, batch.plan(8))
    assert number > 0
    assert age == 0


def out(name, tokens=1):
    return SimpleNamespace(request_id=name, new_token_ids=[7] * tokens)


def test_outputs_are_stated_once_while_every_row_gives_one_token(agent):
    names = ["a", "b", "c"]
    batch = Batch({n: Request(n, 1, 1, 2) for n in names}, set(names))
    reader = Reader(agent)
    rowsets = StepRowsets(agent, lambda: batch.alive, lambda new, request: None)
    seen = set()
    for step in range(1, 5):
        rowsets.of_step(step, batch.plan(8))
        number, tokens = rowsets.of_outputs(step, [out(n) for n in names], alone=True)
        assert tokens == 3
        seen.add(number)
    assert len(seen) == 1
    reader.read()
    assert [row[:2] for row in reader.sets[seen.pop()]] == [(n, 1) for n in names]


@pytest.mark.parametrize(
    ("outputs", "alone"),
    [
        ([out("a"), out("c")], True),
        ([out("a"), out("b"), out("c", 2)], False),
        ([out("a", 3), out("b"), out("c")], True),
        ([out("a"), out("b"), out("x")], True),
    ],
)
def test_outputs_that_are_not_the_steps_rows_are_stated_as_they_are(agent, outputs, alone):
    names = ["a", "b", "c"]
    batch = Batch({n: Request(n, 1, 1, 2) for n in names}, set(names))
    reader = Reader(agent)
    rowsets = StepRowsets(agent, lambda: batch.alive, lambda new, request: None)
    for step in (1, 2):
        rowsets.of_step(step, batch.plan(8))
        number, tokens = rowsets.of_outputs(step, outputs, alone=alone)
        reader.read()
        expected = [(o.request_id, len(o.new_token_ids)) for o in outputs]
        assert [row[:2] for row in reader.sets[number]] == expected
        assert tokens == sum(count for _, count in expected)
    assert rowsets.of_outputs(3, [], alone=True) == (0, 0)


def test_a_list_that_changes_in_place_is_stated_again(agent):
    rowsets, reader = ListRowsets(agent), Reader(agent)
    packed = ["a", "b"]
    first = rowsets.of(packed)
    assert rowsets.of(packed) == first
    packed[0] = "c"
    second = rowsets.of(packed)
    reader.read()
    assert [row[0] for row in reader.sets[first]] == ["a", "b"]
    assert [row[0] for row in reader.sets[second]] == ["c", "b"]
    assert rowsets.of([]) == 0
