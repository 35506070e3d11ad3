# SPDX-License-Identifier: Apache-2.0
"""Engine steps: begin, end, update, rows and the workers' calls joined by step number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.search import busy_union_ns
from gpucorrelate.probes.wire.schema import StepStatus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table

    I64 = NDArray[np.int64]
    Mask = NDArray[np.bool_]


_MOST_STEPS = 1 << 40

#: Spans that rows of an engine's plugin imply: they name a phase of a step, not the step.
_PHASES = {"schedule", "execute", "sample", "update", "output"}


@dataclass(frozen=True)
class Rowsets:
    """Rowsets of all streams; ``find`` gives the slice of one."""

    key: I64  # stream << 32 | rowset, ascending
    first: I64
    count: I64
    request: I64  # per row: id in the capture's string table
    scheduled: I64
    computed: I64
    prompt: I64
    must_sample: I64

    def find(self, stream: NDArray[np.generic], rowset: NDArray[np.generic]) -> I64:
        """Positions in ``key``; -1 where the rowset was never stated (or is 0)."""
        wanted = (stream.astype(np.int64) << 32) | rowset.astype(np.int64)
        if not len(self.key):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(self.key, wanted), len(self.key) - 1)
        return np.where((self.key[at] == wanted) & (rowset != 0), at, -1).astype(np.int64)

    def expand(self, at: I64) -> tuple[I64, I64]:
        """For positions from ``find``: owner index and row index of every row, flattened."""
        count = np.where(at >= 0, self.count[at] if len(self.count) else 0, 0)
        owner = np.repeat(np.arange(len(at)), count)
        start = np.repeat(np.where(at >= 0, self.first[at] if len(self.first) else 0, 0), count)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        return owner.astype(np.int64), (start + within).astype(np.int64)


def rowsets(capture: Capture) -> Rowsets:
    """All rowsets, sorted by stream and number, rows in their stated order."""
    rows = capture.table("step_rows")
    key = (rows["stream"].astype(np.int64) << 32) | rows["rowset"].astype(np.int64)
    order = np.lexsort((rows["row"], key))
    key, rows = key[order], rows.select(order)
    # After damage a rowset may have been stated twice.
    once = np.ones(len(key), bool)
    once[1:] = (key[1:] != key[:-1]) | (rows["row"][1:] != rows["row"][:-1])
    key, rows = key[once], rows.select(once)
    unique, first, count = np.unique(key, return_index=True, return_counts=True)
    return Rowsets(
        unique,
        first.astype(np.int64),
        count.astype(np.int64),
        *(
            rows[name].astype(np.int64)
            for name in ("request", "scheduled", "computed", "prompt", "must_sample")
        ),
    )


@dataclass(frozen=True)
class Steps:
    """All steps, sorted by engine stream and number; 0 or -1 where something was not seen.

    Attributes:
        stream: Stream of the engine core.
        number: Step number.
        tid: Thread that ran the step in the engine core.
        sched_ns: schedule() began (or the hand-over, where that was not seen).
        begin_ns: Handed to the executor.
        done_ns: Future finished and sampling returned; 0: not seen.
        update_start_ns: update_from_output() began; 0: not seen.
        update_ns: It returned; 0: not seen.
        stamp_ns: The engine's stamp on the outputs; 0: none.
        status: ``StepStatus``.
        rows, tokens, waiting: As the scheduler said.
        prefill_tokens, prefill_rows: From the rowset; -1: unknown.
        row_owner, row_index: Every row of every step: index of the step, row of the rowsets.
        row_age: Steps since the rowset was stated, per row.
        out_owner, out_index: The same for rows that produced output.
        call_off, call_start_ns, call_end_ns: The workers' calls, by step, sorted by start.
        named: What a program calls the step at an index, where its rows do not say what it is.
    """

    stream: I64
    number: I64
    tid: I64
    sched_ns: I64
    begin_ns: I64
    done_ns: I64
    update_start_ns: I64
    update_ns: I64
    stamp_ns: I64
    status: I64
    error: I64
    rows: I64
    tokens: I64
    waiting: I64
    prefill_tokens: I64
    prefill_rows: I64
    row_owner: I64
    row_index: I64
    row_age: I64
    out_owner: I64
    out_index: I64
    call_off: I64
    call_start_ns: I64
    call_end_ns: I64
    request_ids: tuple[int, ...]  # every request in any step: ids of the string table
    missing_begin: int
    missing_end: int
    missing_rows: int
    named: dict[int, str]

    def __len__(self) -> int:
        return len(self.number)

    def kind(self, i: int) -> str:
        """prefill, decode, mixed, empty, what a program calls it, or unknown."""
        rows, prefill = int(self.rows[i]), int(self.prefill_rows[i])
        if i in self.named:
            return self.named[i]
        if rows == 0:
            return "empty"
        if prefill < 0:
            return "unknown"
        return "decode" if prefill == 0 else "prefill" if prefill >= rows else "mixed"

    def worker_ns(self, i: int) -> int | None:
        """Busy union of the workers' calls for a step; ``None`` if none was recorded."""
        low, high = int(self.call_off[i]), int(self.call_off[i + 1])
        if low == high:
            return None
        return busy_union_ns(self.call_start_ns[low:high], self.call_end_ns[low:high])

    def end_ns(self, i: int) -> int:
        """Update's end, or the best known end before it; 0: still in flight."""
        return int(self.update_ns[i] or self.done_ns[i])

    @cached_property
    def _in_order(self) -> tuple[I64, I64, I64]:
        """Starts, ascending; each one's index; and when all that started before had ended."""
        order = np.argsort(self.sched_ns, kind="stable")
        end = np.where(self.update_ns > 0, self.update_ns, self.done_ns)[order]
        end = np.where(end > 0, end, np.iinfo(np.int64).max)
        before = np.concatenate((np.zeros(1, np.int64), np.maximum.accumulate(end)[:-1]))
        return self.sched_ns[order], order, before[: len(order)]

    def alone_in(self, start_ns: int, end_ns: int) -> int:
        """The number of the one step that was in flight all through an interval.

        0 where there was none, or another one too, or where there are several engine cores.
        """
        starts, order, before = self._in_order
        at = int(starts.searchsorted(start_ns, side="right")) - 1
        if at < 0 or before[at] > start_ns or self.stream[0] != self.stream[-1]:
            return 0
        i = int(order[at])
        following = int(starts[at + 1]) if at + 1 < len(starts) else end_ns
        return int(self.number[i]) if end_ns <= min(self.end_ns(i), following) else 0


def _possible(table: Table) -> Table:
    """Rows whose step number an engine can reach: far below what a key has room for."""
    return table.select(table["step"] < _MOST_STEPS)


def _named(capture: Capture, keys: I64, unsaid: Mask) -> dict[int, str]:
    """Index of a step -> the name that its program gives it: its longest span's."""
    if not unsaid.any():
        return {}
    spans = _possible(capture.table("span"))
    spans = spans.select(
        np.flatnonzero((spans["step"] > 0) & np.isin(_keyed(spans), keys[unsaid]))
    )
    spans = spans.select(np.argsort(spans["end_ns"] - spans["start_ns"], kind="stable"))
    at = {int(key): i for i, key in enumerate(keys.tolist())}
    names = [capture.strings[name] for name in spans["name"].tolist()]
    found = zip(_keyed(spans).tolist(), names, strict=True)
    return {at[key]: name for key, name in found if name and name not in _PHASES}


def _keyed(table: Table) -> I64:
    return (table["stream"].astype(np.int64) << 44) | table["step"].astype(np.int64)


def _pick(keys: I64, table: Table, name: str) -> I64:
    """A column of the table at each key's last row; 0 where there is none."""
    have = _keyed(table)
    if not len(have):
        return np.zeros(len(keys), np.int64)
    order = np.argsort(have, kind="stable")
    at = np.searchsorted(have[order], keys, side="right") - 1
    row = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (have[row] == keys), table[name][row], 0).astype(np.int64)


def build(capture: Capture, sets: Rowsets) -> Steps:
    """Join everything said about each step."""
    begin, end, update, worker = (
        _possible(capture.table(name))
        for name in ("step_begin", "step_end", "step_update", "worker_step")
    )
    keys, at = np.unique(_keyed(begin), return_index=True)
    begin = begin.select(at)
    order = np.lexsort((begin["start_ns"], begin["stream"]))
    keys, begin = keys[order], begin.select(order)
    found = sets.find(begin["stream"], begin["rowset"])
    owner, index = sets.expand(found)
    age = begin["rowset_age"].astype(np.int64)[owner]
    left = sets.prompt[index] - (sets.computed[index] + age * sets.scheduled[index])
    prefill = np.clip(np.minimum(left, sets.scheduled[index]), 0, None)
    n = len(keys)
    prefill_tokens = np.bincount(owner, prefill, n).astype(np.int64)
    prefill_rows = np.bincount(owner, prefill > 0, n).astype(np.int64)
    # A program that marks its own steps says whose they are, not how many tokens each got.
    told = np.bincount(owner, sets.scheduled[index] > 0, n) > 0
    known = (found >= 0) & (told | (begin["rows"] == 0))
    update_at = update.select(np.unique(_keyed(update), return_index=True)[1])
    out_owner, out_index = _outputs(keys, update_at, sets)
    call_off, call_start, call_end = _worker_calls(keys, begin["stream"], worker)
    sched = begin["sched_start_ns"]
    status = _pick(keys, end, "status")
    return Steps(
        stream=begin["stream"].astype(np.int64),
        number=begin["step"].astype(np.int64),
        tid=begin["tid"].astype(np.int64),
        sched_ns=np.where(sched > 0, sched, begin["start_ns"]).astype(np.int64),
        begin_ns=begin["start_ns"].astype(np.int64),
        done_ns=_pick(keys, end, "end_ns"),
        update_start_ns=_pick(keys, update, "start_ns"),
        update_ns=_pick(keys, update, "end_ns"),
        stamp_ns=_pick(keys, update, "stamp_ns"),
        status=status,
        error=_pick(keys, end, "error"),
        rows=begin["rows"].astype(np.int64),
        tokens=begin["tokens"].astype(np.int64),
        waiting=begin["waiting"].astype(np.int64),
        prefill_tokens=np.where(known, prefill_tokens, -1),
        prefill_rows=np.where(known, prefill_rows, -1),
        row_owner=owner,
        row_index=index,
        row_age=age,
        out_owner=out_owner,
        out_index=out_index,
        call_off=call_off,
        call_start_ns=call_start,
        call_end_ns=call_end,
        request_ids=tuple(np.unique(sets.request[index]).tolist()),
        missing_begin=int((~np.isin(_keyed(end), keys)).sum()),
        missing_end=int((_pick(keys, end, "end_ns") == 0).sum()),
        named=_named(capture, keys, ~known | (begin["rows"] == 0)),
        missing_rows=int(((found < 0) & (begin["rows"] > 0)).sum()),
    )


def _outputs(keys: I64, update: Table, sets: Rowsets) -> tuple[I64, I64]:
    """Rows that produced output: index of the step, row of the rowsets."""
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], _keyed(update))
    at = order[np.minimum(at, max(0, len(keys) - 1))] if len(keys) else at
    good = keys[at] == _keyed(update) if len(keys) else np.zeros(len(update), bool)
    found = np.where(good, sets.find(update["stream"], update["rowset"]), -1)
    owner, index = sets.expand(found)
    return at[owner].astype(np.int64), index


def _worker_calls(keys: I64, stream: NDArray[np.generic], worker: Table) -> tuple[I64, I64, I64]:
    """The workers' calls sorted by step and start, and each step's first.

    Workers know the engine's step number but write streams of their own, so the join is by
    number alone; with several engine cores in one recording it is left out.
    """
    n = len(keys)
    if not len(worker) or len(np.unique(stream)) != 1:
        empty = np.zeros(0, np.int64)
        return np.zeros(n + 1, np.int64), empty, empty
    number = keys & ((1 << 44) - 1)
    order = np.argsort(number, kind="stable")
    at = np.minimum(np.searchsorted(number[order], worker["step"].astype(np.int64)), n - 1)
    at = order[at]
    good = number[at] == worker["step"].astype(np.int64)
    at, worker = at[good], worker.select(good)
    by = np.lexsort((worker["start_ns"], at))
    return (
        np.searchsorted(at[by], np.arange(n + 1)).astype(np.int64),
        worker["start_ns"][by].astype(np.int64),
        worker["end_ns"][by].astype(np.int64),
    )


def status_name(status: int) -> str:
    """The name of a ``StepStatus`` value."""
    return StepStatus(status).name.lower() if status in set(StepStatus) else str(status)
