# SPDX-License-Identifier: Apache-2.0
"""Which requests a step holds, stated once and referred to until they change.

In steady decode a batch of requests runs for dozens of steps with nothing changing but the
count of computed tokens, which grows by what was scheduled. Saying so costs one comparison of
two dictionaries and one sum, both in C; only a change costs work per row.
"""

from __future__ import annotations

from operator import attrgetter, not_
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.probes.agents.agent import Agent

_PROMPT = attrgetter("num_prompt_tokens")
_PREEMPTIONS = attrgetter("num_preemptions")
_CHUNK = attrgetter("is_prefill_chunk")
_ID = attrgetter("request_id")
_TOKENS = attrgetter("new_token_ids")

#: Steps whose rows are remembered until their outputs come; an engine has a few in flight.
_MAX_IN_FLIGHT = 64

Rows = tuple["list[str]", bool]


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


class _Stated:
    """What the last statement said, and in which session and loss state it was made."""

    __slots__ = ("drops", "epoch", "number")

    def __init__(self) -> None:
        self.number = self.drops = self.epoch = -1


class Statements:
    """Makes statements in one process; knows when earlier ones no longer count.

    After any dropped row, and at every start, nothing that was said before is referred to: the
    statement itself may be what was lost.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def valid(self, stated: _Stated) -> bool:
        """Whether a statement may still be referred to."""
        agent = self._agent
        return stated.drops == agent.drops.count and stated.epoch == agent.epoch

    def state(self, stated: _Stated, ids: Sequence[str], *columns: Sequence[int]) -> int:
        """State a rowset; returns its number, or 0 when it was refused."""
        agent = self._agent
        stated.epoch = agent.epoch
        number = agent.next_rowset()
        zeros = (0,) * len(ids)
        scheduled, computed, prompt, preemptions, must = (
            *columns,
            zeros,
            zeros,
            zeros,
            zeros,
            zeros,
        )[:5]
        if not agent.rowsets.put((number, ids, scheduled, computed, prompt, preemptions, must)):
            number = 0
        stated.drops = agent.drops.count
        stated.number = number
        return number


class StepRowsets:
    """Rowsets of scheduled steps and of the outputs they gave."""

    def __init__(
        self,
        agent: Agent,
        requests: Callable[[], dict[str, Any]],
        first_seen: Callable[[Any, Any], None],
    ) -> None:
        self._statements = Statements(agent)
        self._requests = requests
        self._first_seen = first_seen
        self._step = _Stated()
        self._output = _Stated()
        self._scheduled: dict[str, int] = {}
        self._stated_at = 0
        self._computed_sum = 0
        self._tokens = 0
        self._steady = False
        self._ids: list[str] = []
        self._output_ids: list[str] | None = None
        self._output_counts: list[int] = []
        self._in_flight: dict[int, Rows] = {}

    def of_step(self, step: int, output: Any) -> tuple[int, int, int]:
        """Rowset, its age in steps, and the count of rows of a scheduler output."""
        scheduled: dict[str, int] = output.num_scheduled_tokens
        age = step - self._stated_at
        speculative = bool(output.scheduled_spec_decode_tokens)
        if (
            self._steady
            and scheduled == self._scheduled
            and not speculative
            and not output.scheduled_new_reqs
            and self._statements.valid(self._step)
            and sum(output.scheduled_cached_reqs.num_computed_tokens)
            == self._computed_sum + age * self._tokens
        ):
            number = self._step.number
        else:
            number, age = self._state_step(step, output, scheduled, speculative), 0
        in_flight = self._in_flight
        in_flight[step] = (self._ids, speculative)
        if len(in_flight) > _MAX_IN_FLIGHT:
            del in_flight[next(iter(in_flight))]
        return number, age, len(scheduled)

    def _state_step(
        self, step: int, output: Any, scheduled: dict[str, int], speculative: bool
    ) -> int:
        ids, tokens = list(scheduled), list(scheduled.values())
        cached = output.scheduled_cached_reqs
        before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=False))
        requests = self._requests()
        for new in output.scheduled_new_reqs:
            before[new.req_id] = new.num_computed_tokens
            self._first_seen(new, requests.get(new.req_id))
        computed = [before[request_id] for request_id in ids]
        rows = [requests[request_id] for request_id in ids]
        prompt = list(map(_PROMPT, rows))
        if rows and hasattr(rows[0], "is_prefill_chunk"):
            must = list(map(not_, map(_CHUNK, rows)))
        else:
            must = [bool(_completes(row)) for row in rows]
        if rows and hasattr(rows[0], "num_preemptions"):
            preemptions = list(map(_PREEMPTIONS, rows))
        else:
            preemptions = [0] * len(rows)
        self._ids, self._scheduled, self._stated_at = ids, scheduled, step
        self._computed_sum, self._tokens = sum(computed), sum(tokens)
        if not ids:
            self._steady = False
            return 0
        number = self._statements.state(
            self._step, ids, tokens, computed, prompt, preemptions, must
        )
        self._steady = bool(number) and not speculative and all(must)
        return number

    def of_outputs(self, step: int, outputs: Sequence[Any], *, alone: bool) -> tuple[int, int]:
        """Rowset and count of tokens of the outputs one client gets of a step.

        Args:
            step: The step they come from.
            outputs: Engine outputs, in order.
            alone: Whether this client gets all of the step's outputs.
        """
        count = len(outputs)
        if not count:
            return 0, 0
        rows = self._in_flight.get(step)
        if rows is not None and alone and not rows[1] and count == len(rows[0]):
            # Every row gave an output: they are in the step's order, one token each.
            ids = rows[0]
            if (
                outputs[0].request_id == ids[0]
                and outputs[-1].request_id == ids[-1]
                and len(outputs[0].new_token_ids) == 1
            ):
                if ids is self._output_ids and self._statements.valid(self._output):
                    return self._output.number, count
                return self._state_outputs(ids, [1] * count), count
        ids = list(map(_ID, outputs))
        counts = list(map(len, map(_TOKENS, outputs)))
        if (
            ids == self._output_ids
            and counts == self._output_counts
            and self._statements.valid(self._output)
        ):
            return self._output.number, sum(counts)
        return self._state_outputs(ids, counts), sum(counts)

    def _state_outputs(self, ids: list[str], counts: list[int]) -> int:
        self._output_ids, self._output_counts = ids, counts
        number = self._statements.state(self._output, ids, counts)
        if not number:
            self._output_ids = None
        return number

    def done(self, step: int) -> None:
        """The step's outputs are out."""
        self._in_flight.pop(step, None)

    def forget(self) -> None:
        """Nothing is in flight any more."""
        self._in_flight.clear()


class ListRowsets:
    """Rowsets of something that has a list of request ids: a runner's batch, a frontend's."""

    def __init__(self, agent: Agent) -> None:
        self._statements = Statements(agent)
        self._stated = _Stated()
        self._ids: list[str] | None = None
        self._counts: list[int] | None = None

    def of(self, ids: Sequence[str], counts: list[int] | None = None) -> int:
        """Rowset of these ids in this order (and these token counts), 0 when there are none."""
        if not ids:
            return 0
        if ids == self._ids and counts == self._counts and self._statements.valid(self._stated):
            return self._stated.number
        self._ids, self._counts = list(ids), counts
        columns = () if counts is None else (counts,)
        number = self._statements.state(self._stated, self._ids, *columns)
        if not number:
            self._ids = None
        return number

    def of_outputs(self, outputs: Sequence[Any]) -> tuple[int, int]:
        """Rowset and count of tokens of a batch of engine outputs."""
        counts = list(map(len, map(_TOKENS, outputs)))
        return self.of(list(map(_ID, outputs)), counts), sum(counts)
