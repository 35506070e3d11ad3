# SPDX-License-Identifier: Apache-2.0
"""Tables of a recording: requests, steps, devices, and what all of it rests on.

Paths are in ``paths``. Every table is built from what reports are built from, so sums agree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.api import waits
from gpucorrelate.api.arrow import Chosen, Known, Values, rows_to_table, table_of
from gpucorrelate.api.paths import PathTables
from gpucorrelate.api.schema import TABLES
from gpucorrelate.api.values import (
    Capability,
    Fact,
    HostNumber,
    LedgerEntry,
    Request,
    Row,
    Step,
    Token,
)
from gpucorrelate.correlator.report.redact import RedactedRun
from gpucorrelate.correlator.report.values import PhaseName
from gpucorrelate.correlator.steps import status_name
from gpucorrelate.probes.wire.schema import Anchor, CapabilityState, GpuOpKind, Nature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from gpucorrelate.api.arrow import ArrowTable
    from gpucorrelate.correlator.capture import Table as Rows
    from gpucorrelate.correlator.report import build
    from gpucorrelate.correlator.report.device_values import DeviceStepRow
    from gpucorrelate.correlator.report.values import RequestRow
    from gpucorrelate.correlator.requests import Request as Joined

    Columns = dict[str, Values | NDArray[np.generic]]

_NO_STREAM = (1 << 64) - 1
_OPS = {GpuOpKind.KERNEL: "kernel", GpuOpKind.MEMCPY: "copy", GpuOpKind.MEMSET: "fill"}


class Recorded:
    """The tables of a recording.

    Args:
        run: The recording, correlated.
    """

    def __init__(self, run: build.Run) -> None:
        self.run = run
        self._paths = PathTables(run)
        self._strings = run.capture.strings
        self._makers = {
            "requests": self._requests,
            "tokens": self._tokens,
            "steps": self._steps,
            "step_requests": self._step_requests,
            "gpu_ops": self._gpu_ops,
            "context": self._context,
            "counters": self._counters,
            "changes": self._changes,
            "ledger": self._ledger,
            "losses": self._losses,
            "capabilities": self._capabilities,
            "meta": self._meta,
        }

    def parts(self, name: str) -> Iterator[ArrowTable]:
        """Rows of a table in order, some at a time."""
        if name in ("segments", "step_segments", "causes"):
            yield from self._paths.parts(name)
        elif name == "waits":
            yield from waits.parts(self.run.states, self._paths.describe)
        else:
            yield self._makers[name]()

    def path(self, name: str, key: int) -> Iterator[ArrowTable]:
        """Rows of ``segments`` of one request, or of ``step_segments`` of one step."""
        return self._paths.path(name, key)

    def close(self) -> None:
        """Nothing is held but memory."""

    # -- requests

    def _requests(self) -> ArrowTable:
        rows = self.run.requests()
        joined = zip(rows, self.run.requests_, strict=True)
        made = [_request(k, row, one) for k, (row, one) in enumerate(joined)]
        if isinstance(self.run, RedactedRun):
            # Whoever has the caller's traces would know the request by it.
            made = [replace(one, trace_id=None) for one in made]
        return rows_to_table(TABLES["requests"], made)

    def _tokens(self) -> ArrowTable:
        number = self.run.steps_.number
        rows = [
            Token(
                key, n, int(number[token.step]) if token.step >= 0 else None, token.made_ns,
                token.processed_ns, token.written_ns or None,
            )
            for key, one in enumerate(self.run.requests_)
            for n, token in enumerate(one.tokens)
        ]  # fmt: skip
        return rows_to_table(TABLES["tokens"], rows)

    # -- steps

    def _steps(self) -> ArrowTable:
        profile = self.run.is_profile
        rows = self.run.devices.rows() if profile else ()
        made: Iterable[Step] = map(_device_step, range(len(rows)), rows)
        return rows_to_table(TABLES["steps"], list(made if profile else self._engine_steps()))

    def _engine_steps(self) -> Iterator[Step]:
        s = self.run.steps_
        labels = {tid: self._paths.core(tid) for tid in np.unique(s.tid).tolist()}
        for i in range(len(s)):
            start, end = int(s.sched_ns[i]), s.end_ns(i) or None
            prefill = int(s.prefill_tokens[i])
            yield Step(
                i, int(s.number[i]), labels[int(s.tid[i])], None, start, end,
                None if end is None else end - start, s.kind(i), status_name(int(s.status[i])),
                int(s.rows[i]), int(s.tokens[i]), None if prefill < 0 else prefill,
                int(s.waiting[i]), s.worker_ns(i), None, None, None, None,
            )  # fmt: skip

    def _step_requests(self) -> ArrowTable:
        requests, number = self.run.requests_, self.run.steps_.number
        keys = np.repeat(np.arange(len(requests)), [len(one.steps) for one in requests])
        steps = np.array([at for one in requests for at in one.steps], np.int64)
        tokens = np.array([n for one in requests for n in one.step_tokens], np.int64)
        order = np.lexsort((keys, steps))
        keys, steps, tokens = keys[order], steps[order], tokens[order]
        columns: Columns = {
            "step_key": steps,
            "step": number[steps] if len(steps) else steps,
            "request_key": keys,
            "request_id": Chosen(keys, [one.external_id for one in requests]),
            "tokens": Known(tokens, tokens >= 0),
        }
        return table_of(TABLES["step_requests"], columns)

    # -- devices

    def _gpu_ops(self) -> ArrowTable:
        device = self.run.states.device
        ops, calls, steps = device.ops, device.calls, self.run.states.device_steps
        table, none = ops.table, np.zeros(0, np.int64)
        call, launched = np.maximum(ops.call, 0), ops.call >= 0
        empty = not len(calls)
        stream = np.array([one.number for one in device.streams], np.uint64)[ops.stream]
        owner = steps.of if len(steps.of) == len(ops) else np.full(len(ops), -1)
        number = np.append(steps.number.astype(np.uint64), np.uint64(0))[owner]
        tid = calls.table["tid"]

        def of_call(values: NDArray[np.generic], *, zero: bool = True) -> Known:
            if empty:
                return Known(np.zeros(len(ops), np.int64), np.zeros(len(ops), bool))
            chosen = values[call]
            return Known(chosen, launched & ((chosen != 0) if not zero else True))

        name, called = self._words(table["name"]), None
        if not empty:
            called = self._words(np.where(launched, calls.table["name"][call], 0))
        columns: Columns = {
            "process": Chosen(ops.process, self._paths.processes()),
            "pid": Known(table["pid"], table["pid"] > 0),
            "device": table["device"],
            "stream": Known(stream, stream != np.uint64(_NO_STREAM)),
            "kind": Chosen(table["op"], self._kinds(table["op"])),
            "name": Chosen(name.which, [one or "" for one in name.texts]),
            "start_ns": ops.start_ns,
            "end_ns": ops.end_ns,
            "length_ns": ops.end_ns - ops.start_ns,
            "bytes": Known(table["bytes"], table["bytes"] > 0),
            "step": Known(number, (owner >= 0) & (number > 0)),
            "step_key": Known(owner, (owner >= 0) & self.run.is_profile),
            "call": called or Chosen(np.zeros(len(ops), np.int64), [None]),
            "call_tid": of_call(tid if len(tid) else none, zero=False),
            "call_start_ns": of_call(calls.start_ns),
            "call_end_ns": of_call(calls.end_ns),
            "correlation": Known(table["correlation"], table["correlation"] > 0),
        }
        return table_of(TABLES["gpu_ops"], columns)

    def _kinds(self, op: NDArray[np.generic]) -> list[str | None]:
        most = int(op.max()) if len(op) else 0
        names = {int(kind): name for kind, name in _OPS.items()}
        return [names.get(n) for n in range(most + 1)]

    # -- the host

    def _context(self) -> ArrowTable:
        host, states = self._paths.host, self.run.states
        found = host.of(states.start_ns, states.end_ns)
        rows = [
            HostNumber(
                one.metric, one.subject, one.who or None, one.unit or None, one.nature,
                one.before, one.after, one.grown, one.since_ns, one.until_ns, one.note or None,
                one.meaning or None,
            )
            for one in (found.numbers if found is not None else ())
        ]  # fmt: skip
        return rows_to_table(TABLES["context"], rows)

    def _counters(self) -> ArrowTable:
        rows = self.run.capture.table("counter")
        rows = rows.select(np.argsort(rows["t_ns"], kind="stable"))
        metric = rows["metric"]
        known = self.run.capture.table("metric")
        at = np.zeros(len(self._strings) + 1, np.int64)
        at[known["name"]] = np.arange(1, len(known) + 1)
        described = at[metric]
        natures = {int(nature): nature.name.lower() for nature in Nature}
        units = [None, *(self._strings[one] or None for one in known["unit"].tolist())]
        nature = [None, *(natures.get(one, "level") for one in known["nature"].tolist())]
        columns: Columns = {
            "t_ns": rows["t_ns"],
            "since_ns": Known(rows["since_ns"], rows["since_ns"] > 0),
            "metric": self._words(metric),
            "subject": self._words(rows["subject"]),
            "unit": Chosen(described, units),
            "nature": Chosen(described, nature),
            "value": rows["value"],
        }
        return table_of(TABLES["counters"], columns)

    def _changes(self) -> ArrowTable:
        rows = self.run.capture.table("change")
        since = rows["since_ns"]
        columns: Columns = {
            "t_ns": rows["t_ns"],
            "since_ns": Known(since, since > 0),
            **self._texts(rows, "subject", "what"),
            **self._texts(rows, "before", "after", unknown=True),
        }
        return table_of(TABLES["changes"], columns)

    # -- what it rests on

    def _ledger(self) -> ArrowTable:
        ledger = self.run.ledger
        rows = [
            LedgerEntry(
                line.name, line.count, line.note or None, "check" if line.check else "count",
                line.bad,
            )
            for line in ledger.lines
        ]  # fmt: skip
        rows += [LedgerEntry(one, None, None, "missing", bad=False) for one in ledger.missing]
        return rows_to_table(TABLES["ledger"], rows)

    def _losses(self) -> ArrowTable:
        rows = self.run.capture.table("loss")
        columns: Columns = {
            "t_ns": rows["t_ns"],
            "since_ns": Known(rows["since_ns"], rows["since_ns"] > 0),
            **self._texts(rows, "hop"),
            **self._texts(rows, "what", unknown=True),
            "count": rows["count"],
        }
        return table_of(TABLES["losses"], columns)

    def _capabilities(self) -> ArrowTable:
        rows, known = self.run.capture.table("capability"), list(CapabilityState)
        fields = zip(
            *(rows[c].tolist() for c in ("t_ns", "source", "state", "reason")), strict=True
        )
        made: list[Row] = [
            Capability(
                t_ns,
                self._strings[source],
                CapabilityState(state).name.lower() if state in known else "unknown",
                self._strings[reason] or None,
            )
            for t_ns, source, state, reason in fields
        ]
        return rows_to_table(TABLES["capabilities"], made)

    def _meta(self) -> ArrowTable:
        facts = self.run.capture.facts()
        return rows_to_table(TABLES["meta"], [Fact(f.key, f.value, f.stream) for f in facts])

    # -- texts

    def _words(self, ids: NDArray[np.generic]) -> Chosen:
        """Texts by their ids; no text is unknown."""
        distinct, which = np.unique(ids, return_inverse=True)
        return Chosen(which, [self._strings[at] or None for at in distinct.tolist()])

    def _texts(self, rows: Rows, *names: str, unknown: bool = False) -> Columns:
        none = None if unknown else ""
        return {name: [self._strings[at] or none for at in rows[name].tolist()] for name in names}


def _request(key: int, row: RequestRow, one: Joined) -> Request:
    phases = dict(row.by_phase)
    preempted = sum(1 for anchor, _ in one.marks if anchor is Anchor.PREEMPTED)
    return Request(
        key, row.request_id, row.internal_id or None, row.aliases, row.status, row.arrival_ns,
        row.arrival_ns + row.wall_ns, row.wall_ns, one.first_token_ns, row.ttft_ns, row.tokens_in,
        row.tokens_out, _cached(one), preempted,
        len(one.steps), one.complete, one.path or None, one.http_status,
        None if one.trace is None else f"{one.trace.trace_id:032x}",
        *(phases.get(phase, 0) for phase in PhaseName),
    )  # fmt: skip


def _cached(one: Joined) -> int | None:
    """Prompt tokens found in the prefix cache, as reports have it."""
    mark = one.mark(Anchor.PREFIX_HIT)
    seen = one.steps and one.mark(Anchor.ADMITTED) is not None
    return mark.value if mark else 0 if seen else None


def _device_step(key: int, row: DeviceStepRow) -> Step:
    return Step(
        key, row.step, row.process, row.name or None, row.start_ns, row.end_ns, row.wall_ns, None,
        None, None, None, None, None, None, row.ops, row.launches, row.gpu_sum_ns,
        row.gpu_busy_ns,
    )  # fmt: skip
