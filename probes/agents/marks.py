# SPDX-License-Identifier: Apache-2.0
"""Steps and requests that a program marks itself: any engine, any loop.

``with step("decode", requests=ids): ...`` costs two clock readings and three rows while a daemon
records, and one look at a flag while none does. Nothing a mark does reaches the program: its
faults are counted and told as a capability, as those of an engine's hooks are.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import time
from threading import get_native_id
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpucorrelate.probes.agents import disabled
from gpucorrelate.probes.agents.agent import LOG
from gpucorrelate.probes.agents.current import process_agent
from gpucorrelate.probes.agents.raised import told_of
from gpucorrelate.probes.wire.schema import MARKS, Anchor, StepStatus, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from gpucorrelate.probes.agents.agent import Agent

#: The part of the agent, as in ``capability`` rows.
PART = "marks"

_EXECUTE = int(WorkerPhase.EXECUTE)
_OK, _ERROR = int(StepStatus.OK), int(StepStatus.ERROR)
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_MOST_REQUESTS = 8192

Called = TypeVar("Called", bound="Callable[..., Any]")


class _Marks:
    """What marks write to."""

    def __init__(self) -> None:
        self.agent: Agent = process_agent(MARKS)
        self.part = self.agent.part(PART)
        self.part.works()
        self.numbers = itertools.count(1)
        self.rank = _rank()
        self.agent.rank(self.rank)


def _rank() -> int:
    for name in _RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value.isdigit():
            return min(int(value), 65_535)
    return 0


class _NoMarks:
    """Where the agent is switched off."""

    class part:
        on = False


@functools.cache
def _marks() -> _Marks:
    if disabled():
        return cast("_Marks", _NoMarks)
    return _Marks()


def begin() -> None:
    """Have the agent connect now, so that the first mark is not lost to that. Never raises."""
    try:
        _marks()
    except Exception:  # noqa: BLE001 - nothing of ours may keep the program from running
        LOG.exception("gpucorrelate: the agent could not start")


class step:
    """A step of a program's loop: what it computes for some requests at once.

    A context manager and a decorator, of plain and of coroutine functions. GPU work that is
    launched within it is the step's, however much later it runs. Steps of one thread do not
    overlap; one within another is only named.

    Args:
        name: Name of the step: ``prefill``, ``decode``...; at most 1,024 are told apart.
        requests: Ids of the requests it computes for, in the order of the batch.
        tokens: Tokens it computes, all requests together; 0: not known.
    """

    def __init__(self, name: str, *, requests: Sequence[str] = (), tokens: int = 0) -> None:
        self._name = name
        self._requests = requests
        self._tokens = tokens
        self._number = self._start_ns = self._rowset = 0

    def __enter__(self) -> step:
        marks = _marks()
        if marks.part.on:
            try:
                self._begin(marks)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the program
                self._number = 0
                marks.part.fault(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        number, self._number = self._number, 0
        if not number:
            return
        end = time.monotonic_ns()
        marks = _marks()
        try:
            self._end(marks, number, end, error)
        except Exception as fault:  # noqa: BLE001
            marks.part.fault(fault)

    def __call__(self, function: Called) -> Called:
        """Mark each call of a function."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with step(self._name, requests=self._requests, tokens=self._tokens):
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with step(self._name, requests=self._requests, tokens=self._tokens):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    def _begin(self, marks: _Marks) -> None:
        agent, ids = marks.agent, list(map(str, self._requests[:_MOST_REQUESTS]))
        self._rowset = _rowset(agent, ids)
        self._number = next(marks.numbers)
        self._start_ns = start = time.monotonic_ns()
        if marks.rank == 0:
            row = (self._number, get_native_id(), 0, 0, start, self._rowset, 0, len(ids))
            agent.rows("step_begin").put((*row, self._tokens, 0))

    def _end(self, marks: _Marks, number: int, end: int, error: BaseException | None) -> None:
        agent, tid, start = marks.agent, get_native_id(), self._start_ns
        name = agent.texts.number(self._name)
        agent.rows("span").put((tid, name, start, end, number))
        agent.rows("worker_step").put(
            (number, tid, marks.rank, _EXECUTE, start, end, self._rowset)
        )
        if marks.rank == 0:
            text = agent.texts.number(told_of(error)) if error is not None else 0
            status = _OK if error is None else _ERROR
            agent.rows("step_end").put((number, tid, end, status, text))


def _rowset(agent: Agent, ids: list[str]) -> int:
    if not ids:
        return 0
    number, zeros = agent.next_rowset(), (0,) * len(ids)
    kept = agent.rowsets.put((number, ids, zeros, zeros, zeros, zeros, zeros))
    return number if kept else 0


class request:
    """A request's life in a program that serves it itself, from its arrival to its end.

    A context manager, also for code that awaits within it.

    Args:
        request_id: Its id, as in the steps' ``requests``.
        prompt_tokens: Tokens of its prompt; 0: not known.
    """

    def __init__(self, request_id: str, *, prompt_tokens: int = 0) -> None:
        self._id = str(request_id)
        self._prompt = prompt_tokens
        self._begun = False
        self.output_tokens = 0

    def __enter__(self) -> request:
        self._begun = self._put(Anchor.ADMITTED, self._prompt, "")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._begun:
            return
        if error is None:
            self._put(Anchor.FINISHED, self.output_tokens, "")
        else:
            self._put(Anchor.FAILED, self.output_tokens, told_of(error))

    def _put(self, anchor: Anchor, value: int, detail: str) -> bool:
        marks = _marks()
        if not marks.part.on:
            return False
        try:
            row = (self._id, 0, int(anchor), time.monotonic_ns(), get_native_id(), value, detail)
            return marks.agent.rows("request").put(row)
        except Exception as fault:  # noqa: BLE001
            marks.part.fault(fault)
            return False
