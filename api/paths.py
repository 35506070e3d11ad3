# SPDX-License-Identifier: Apache-2.0
"""Tables of critical paths: segments of requests and of steps, and what is said of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.api.arrow import Chosen, Known, Values, pyarrow, rows_to_table, table_of
from gpucorrelate.api.schema import TABLES
from gpucorrelate.api.source import PART_ROWS
from gpucorrelate.api.values import Cause
from gpucorrelate.correlator.report.paths import PHASES, PathFinder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.api.arrow import ArrowTable
    from gpucorrelate.correlator.causes import Describer
    from gpucorrelate.correlator.context import HostContext
    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.paths import Said, Stretches

    I64 = NDArray[np.int64]
    Columns = dict[str, Values | NDArray[np.generic]]

_PHASES = [str(phase) for phase in PHASES]


@dataclass
class _Sum:
    """How often something is said, and of how long a time in all."""

    rows: int = 0
    length_ns: int = 0


class PathTables:
    """Segments and causes of a recording, walked when they are asked for.

    Args:
        run: The recording.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._finder = PathFinder(run)
        self._keys: dict[Said, int] = {}
        self._sums: dict[str, dict[int, _Sum]] = {}

    @property
    def describe(self) -> Describer:
        """Says who threads are."""
        return self._finder.describe

    @property
    def host(self) -> HostContext:
        """The host's numbers."""
        return self._finder.describe.host

    def core(self, tid: int) -> str:
        """An engine core's label, by the thread that does its steps."""
        actor = self._finder.describe.actor(self._run.states.threads.one(tid))
        return f"{actor.process or 'pid'}/{actor.pid}"

    def processes(self) -> list[str]:
        """Labels of the processes that work with devices."""
        roles = {info.stream: info.role for info in self._run.capture.streams}
        return [
            role if (role := roles.get(one.stream, "")) not in ("", "?") else f"pid {one.pid}"
            for one in self._run.states.device.processes
        ]

    def parts(self, name: str) -> Iterator[ArrowTable]:
        """Rows of ``segments``, ``step_segments`` or ``causes``, about ``PART_ROWS`` at a time."""
        if name == "causes":
            yield self._causes()
        else:
            yield from gathered(self._walked(name), name)

    def path(self, name: str, key: int) -> Iterator[ArrowTable]:
        """Rows of ``segments`` of one request, or of ``step_segments`` of one step."""
        some, run = range(key, key + 1), self._run
        if name == "segments":
            for _, found in self._finder.requests([run.requests_[key]]):
                yield self._segments(some, found)
            return
        walk = self._finder.profile if run.is_profile else self._finder.steps
        for _, found in walk([key]):
            yield self._of_steps(some, found)

    def _walked(self, name: str) -> Iterator[ArrowTable]:
        """Tables of all paths; when the last one was taken, the sums of what is said are known."""
        sums: dict[int, _Sum] = {}
        ours = name == "segments"
        for some, found in self._requests() if ours else self._steps():
            self._count(found, sums)
            yield self._segments(some, found) if ours else self._of_steps(some, found)
        self._sums[name] = sums

    def _requests(self) -> Iterator[tuple[range, Stretches]]:
        return self._finder.requests(self._run.requests_)

    def _steps(self) -> Iterator[tuple[range, Stretches]]:
        run = self._run
        if run.is_profile:
            return self._finder.profile(range(len(run.devices.steps)))
        return self._finder.steps(range(len(run.steps_)))

    def _segments(self, some: range, found: Stretches) -> ArrowTable:
        requests = [self._run.requests_[at] for at in some]
        columns: Columns = {
            "request_key": found.owner + some.start,
            "request_id": Chosen(found.owner, [one.external_id for one in requests]),
            "phase": Chosen(found.phase, _PHASES),
            **self._of_stretches(found),
        }
        columns["step"] = Known(found.step, found.step >= 0)
        return table_of(TABLES["segments"], columns)

    def _of_steps(self, some: range, found: Stretches) -> ArrowTable:
        key = found.owner + some.start
        columns: Columns = {
            "step_key": key,
            "step": self._numbers[key] if len(key) else key,
            **self._of_stretches(found),
        }
        return table_of(TABLES["step_segments"], columns)

    @cached_property
    def _numbers(self) -> NDArray[np.generic]:
        run = self._run
        return run.devices.steps.number if run.is_profile else run.steps_.number

    def _of_stretches(self, found: Stretches) -> Columns:
        """The columns that segments of requests and of steps have in common."""
        said, which = found.said, found.which
        tid = np.array([one.actor.tid for one in said] or [0], np.int64)[which]
        return {
            "start_ns": found.start_ns,
            "end_ns": found.end_ns,
            "length_ns": found.end_ns - found.start_ns,
            "category": Chosen(which, [str(one.category) for one in said]),
            "actor": Chosen(which, [one.actor.label for one in said]),
            "tid": Known(tid, tid > 0),
            "span": Chosen(which, [one.span or None for one in said]),
            "cause": Chosen(which, [one.cause.text if one.cause else None for one in said]),
            "cause_key": np.array(self._keys_of(said) or [0], np.int64)[which],
            "slack_ns": Known(found.slack_ns, found.slack_ns >= 0),
        }

    # -- causes

    def _keys_of(self, said: Sequence[Said]) -> list[int]:
        """Keys made from what is said, so that they do not depend on what was asked before."""
        keys = []
        for one in said:
            key = self._keys.get(one)
            if key is None:
                key = self._keys[one] = _key(one)
            keys.append(key)
        return keys

    def _count(self, found: Stretches, sums: dict[int, _Sum]) -> None:
        count = len(found.said)
        rows = np.bincount(found.which, minlength=count)
        lengths = np.zeros(count, np.int64)
        np.add.at(lengths, found.which, found.end_ns - found.start_ns)
        keys = self._keys_of(found.said)
        for key, n, length in zip(keys, rows.tolist(), lengths.tolist(), strict=True):
            one = sums.setdefault(key, _Sum())
            one.rows += n
            one.length_ns += length

    def _causes(self) -> ArrowTable:
        for name in ("segments", "step_segments"):
            if name not in self._sums:
                for _ in self._walked(name):
                    pass
        requests, steps = self._sums["segments"], self._sums["step_segments"]
        distinct = {key: one for one, key in self._keys.items()}
        none = _Sum()
        rows = [
            _cause(key, one, requests.get(key, none), steps.get(key, none))
            for key, one in distinct.items()
            if key in requests or key in steps
        ]
        rows.sort(key=lambda row: (-row.request_ns, -row.step_ns, row.cause_key))
        return rows_to_table(TABLES["causes"], rows)


def gathered(tables: Iterable[ArrowTable], name: str) -> Iterator[ArrowTable]:
    """The same rows in parts of about ``PART_ROWS``; of nothing one part without rows."""
    pa = pyarrow()
    waiting: list[ArrowTable] = []
    rows, gave = 0, False
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= PART_ROWS:
            yield pa.concat_tables(waiting).unify_dictionaries()
            waiting, rows, gave = [], 0, True
    if rows or not gave:
        empty = rows_to_table(TABLES[name], ())
        yield pa.concat_tables([*waiting, empty]).unify_dictionaries()


def _key(said: Said) -> int:
    """63 bits of a hash."""
    by = said.cause.actor if said.cause is not None else None
    words = [str(said.category), said.actor.label, said.actor.tid, said.actor.pid, said.span]
    if said.cause is not None:
        words += [said.cause.verb, said.cause.detail]
    words += [] if by is None else [by.label, by.tid, by.pid]
    digest = hashlib.blake2b(repr(words).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _cause(key: int, said: Said, requests: _Sum, steps: _Sum) -> Cause:
    actor, cause = said.actor, said.cause
    by = cause.actor if cause is not None else None
    return Cause(
        key, str(said.category), actor.label, actor.tid or None, actor.pid or None,
        actor.process or None, actor.role or None, actor.traced, said.span or None,
        cause.verb if cause else None, by.shown if by else None, by.tid or None if by else None,
        by.pid or None if by else None, cause.detail or None if cause else None,
        cause.text if cause else None,
        requests.rows, requests.length_ns, steps.rows, steps.length_ns,
    )  # fmt: skip
