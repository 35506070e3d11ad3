# SPDX-License-Identifier: Apache-2.0
"""Which requests a step holds, stated once and referred to until they change.

In steady decode a batch of requests runs for dozens of steps with nothing changing but the
count of computed tokens, which grows by what was scheduled. Saying so costs one comparison of
two dictionaries and one sum, both in C; only a change costs work per row.

A statement may be referred to only while ``Drops.version`` is what it was when it was made:
after any dropped row, and at every start, everything is stated again.
"""

from __future__ import annotations

from operator import attrgetter, not_
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.hot import ListMemo, StepMemo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.probes.agents.agent import Agent

_PROMPT = attrgetter("num_prompt_tokens")
_PREEMPTIONS = attrgetter("num_preemptions")
_CHUNK = attrgetter("is_prefill_chunk")

#: Steps whose rows are remembered until their outputs come; an engine has a few in flight.
_MAX_IN_FLIGHT = 64


def _completes(request: Any) -> int:
    """Whether the row just scheduled completes the request's context and yields a token.

    For releases whose requests do not say so themselves. Called after the scheduler has
    advanced ``num_computed_tokens``; under asynchronous scheduling a request with tokens in
    flight (placeholders) is always decoding.
    """
    if getattr(request, "num_output_placeholders", 0) > 0:
        return 1
    known = getattr(request, "num_tokens", request.num_prompt_tokens)
    return int(request.num_computed_tokens >= known)


def _must_sample(requests: list[Any]) -> list[int]:
    if hasattr(requests[0], "is_prefill_chunk"):
        return list(map(not_, map(_CHUNK, requests)))
    return list(map(_completes, requests))


def _preemptions(requests: list[Any]) -> list[int]:
    if hasattr(requests[0], "num_preemptions"):
        return list(map(_PREEMPTIONS, requests))
    return [0] * len(requests)


def _state(agent: Agent, ids: Sequence[str], *columns: Sequence[int]) -> int:
    """State a rowset; returns its number, or 0 when it was refused."""
    number = agent.next_rowset()
    zeros = (0,) * len(ids)
    rest: tuple[Sequence[int], ...] = (zeros,) * (5 - len(columns))
    scheduled, computed, prompt, preemptions, must = columns + rest
    kept = agent.rowsets.put((number, ids, scheduled, computed, prompt, preemptions, must))
    return number if kept else 0


class StepRowsets(StepMemo):
    """Rowsets of scheduled steps and of the outputs they gave."""

    __slots__ = (
        "_agent",
        "_drops",
        "_first_seen",
        "_requests",
    )

    def __init__(
        self,
        agent: Agent,
        requests: Callable[[], dict[str, Any]],
        first_seen: Callable[[Any, Any], None],
    ) -> None:
        self._agent = agent
        self._drops = agent.drops
        self._requests = requests
        self._first_seen = first_seen
        # The last statement: what was scheduled (None: nothing may refer to it), where the
        # sum of computed tokens must stand at the next step, and when it was made.
        self.scheduled = None
        self.expected = self.tokens = 0
        self.number = self.stated_at = self.version = -1
        self.ids = []
        self.output_ids = None
        self.output_counts = []
        self.output_number = self.output_version = -1
        self.in_flight = {}

    def of_step(self, step: int, output: Any) -> tuple[int, int]:
        """Rowset of a scheduler output, and its age in steps."""
        if (
            output.num_scheduled_tokens == self.scheduled
            and self.version == self._drops.version
            and sum(output.scheduled_cached_reqs.num_computed_tokens) == self.expected
            and not output.scheduled_new_reqs
            and not output.scheduled_spec_decode_tokens
        ):
            self.expected += self.tokens
            self._flies(step, self.ids)
            return self.number, step - self.stated_at
        return self._state_step(step, output), 0

    def _flies(self, step: int, ids: list[str] | None) -> None:
        in_flight = self.in_flight
        in_flight[step] = ids
        if len(in_flight) > _MAX_IN_FLIGHT:
            del in_flight[next(iter(in_flight))]

    def _state_step(self, step: int, output: Any) -> int:
        scheduled: dict[str, int] = output.num_scheduled_tokens
        ids, tokens = list(scheduled), list(scheduled.values())
        speculative = bool(output.scheduled_spec_decode_tokens)
        self._flies(step, None if speculative else ids)
        self.ids, self.scheduled, self.stated_at = ids, None, step
        if not ids:
            return 0
        cached = output.scheduled_cached_reqs
        before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=False))
        requests = self._requests()
        for new in output.scheduled_new_reqs:
            before[new.req_id] = new.num_computed_tokens
            self._first_seen(new, requests.get(new.req_id))
        computed = [before[request_id] for request_id in ids]
        rows = [requests[request_id] for request_id in ids]
        must = _must_sample(rows)
        number = self.number = _state(
            self._agent,
            ids,
            tokens,
            computed,
            list(map(_PROMPT, rows)),
            _preemptions(rows),
            must,
        )
        self.version = self._drops.version
        if number and not speculative and all(must):
            self.scheduled, self.tokens = scheduled, sum(tokens)
            self.expected = sum(computed) + self.tokens
        return number

    def of_outputs(self, step: int, outputs: Sequence[Any], *, alone: bool) -> tuple[int, int]:
        """Rowset and count of tokens of the outputs one client gets of a step.

        Args:
            step: The step they come from; asked for once per step and client.
            outputs: Engine outputs, in order.
            alone: Whether this client gets all of the step's outputs.
        """
        count = len(outputs)
        ids = self.in_flight.pop(step, None)
        if not count:
            return 0, 0
        if ids is not None and alone and count == len(ids):
            # Every row gave an output: they are in the step's order, and one token each.
            first = outputs[0]
            if (
                first.request_id == ids[0]
                and outputs[-1].request_id == ids[-1]
                and len(first.new_token_ids) == 1
            ):
                if ids is self.output_ids and self.output_version == self._drops.version:
                    return self.output_number, count
                return self._state_outputs(ids, [1] * count), count
        ids = [output.request_id for output in outputs]
        counts = [len(output.new_token_ids) for output in outputs]
        if (
            ids == self.output_ids
            and counts == self.output_counts
            and self.output_version == self._drops.version
        ):
            return self.output_number, sum(counts)
        return self._state_outputs(ids, counts), sum(counts)

    def _state_outputs(self, ids: list[str], counts: list[int]) -> int:
        number = self.output_number = _state(self._agent, ids, counts)
        self.output_version = self._drops.version
        self.output_ids, self.output_counts = ids if number else None, counts
        return number

    def forget(self) -> None:
        """Nothing is in flight any more."""
        self.in_flight.clear()


class ListRowsets(ListMemo):
    """Rowsets of something that has a list of request ids: a runner's batch, a frontend's."""

    __slots__ = ("_agent", "_drops")

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._drops = agent.drops
        self.ids = None
        self.counts = None
        self.number = self.version = -1

    def of(self, ids: Sequence[str]) -> int:
        """Rowset of these ids in this order; 0 when there are none."""
        if ids == self.ids and self.version == self._drops.version:
            return self.number
        return self._state(list(ids), None) if ids else 0

    def of_outputs(self, outputs: Sequence[Any]) -> tuple[int, int]:
        """Rowset and count of tokens of a batch of engine outputs."""
        ids = [output.request_id for output in outputs]
        counts = [len(output.new_token_ids) for output in outputs]
        if ids == self.ids and counts == self.counts and self.version == self._drops.version:
            return self.number, sum(counts)
        return (self._state(ids, counts) if ids else 0), sum(counts)

    def _state(self, ids: list[str], counts: list[int] | None) -> int:
        number = self.number = _state(self._agent, ids, *(() if counts is None else (counts,)))
        self.version = self._drops.version
        self.ids, self.counts = ids if number else None, counts
        return number
