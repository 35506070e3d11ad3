# SPDX-License-Identifier: Apache-2.0
"""Profiles and their steps as plain values for JSON: integer nanoseconds, null for unknown.

A step may have a million segments. What is written to a file goes there as it is made: a step in
a profile, and a segment in a step, is gone when the next one comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.kernels import decode
from gpucorrelate.correlator.report.json import Actors, Json, ledger_to_dict, segments_to_list

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.correlator.report.device_values import (
        DeviceLedger,
        DeviceRunReport,
        DeviceStepReport,
        DeviceStepRow,
        GapHost,
        GapOp,
        GapReturn,
        IdleGap,
        KernelShare,
        RankSkew,
        Skew,
        StepDevice,
        SyncShare,
    )
    from gpucorrelate.correlator.report.values import Category, Ledger, Segment

RUN_SCHEMA = "gpucorrelate.profile.v1"
STEP_SCHEMA = "gpucorrelate.profile-step.v1"
STEP_ROW_SCHEMA = "gpucorrelate.profile-step-row.v1"

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_indented = json.JSONEncoder(indent=2, allow_nan=False).encode


def write_run(
    run: DeviceRunReport,
    steps: Iterable[tuple[DeviceStepReport, Iterable[Segment]]],
    out: IO[str],
) -> None:
    """Writes a whole profile as one document: indented, but each step on a line of its own.

    Args:
        run: The profile.
        steps: Its steps, each with its segments, which may be made as they are read.
        out: An open text file.
    """
    separator = "{\n"
    for key, value in _run(run, iter(steps)).items():
        out.write(f'{separator}  "{key}": ')
        if isinstance(value, Iterator):
            _write_list(value, out, "\n    ", "\n  ")
        else:
            out.write(_indented(value).replace("\n", "\n  "))
        separator = ",\n"
    out.write("\n}\n")


def write_step(step: DeviceStepReport, segments: Iterable[Segment], out: IO[str]) -> None:
    """Writes one step as one document on one line."""
    _write_pairs(_document(step, segments), out)
    out.write("\n")


def _write_list(values: Iterable[object], out: IO[str], before: str = "", end: str = "") -> None:
    out.write("[")
    separator = before
    for value in values:
        out.write(separator)
        if isinstance(value, Iterator):
            _write_pairs(value, out)
        else:
            out.write(_encode(value))
        separator = f",{before}"
    out.write(f"{end}]")


def _write_pairs(pairs: Iterable[tuple[str, object]], out: IO[str]) -> None:
    separator = "{"
    for key, value in pairs:
        out.write(f'{separator}"{key}":')
        if isinstance(value, Iterator):
            _write_list(value, out)
        else:
            out.write(_encode(value))
        separator = ","
    out.write("}")


def _run(
    run: DeviceRunReport, steps: Iterator[tuple[DeviceStepReport, Iterable[Segment]]]
) -> Json:
    """A profile; its steps are yet to be made, each as its keys and values."""
    return {
        "schema": RUN_SCHEMA,
        "sources": list(run.sources),
        "start_ns": run.start_ns,
        "end_ns": run.end_ns,
        "wall_ns": run.wall_ns,
        "gpu_busy_ns": run.gpu_busy_ns,
        "gpu_sum_ns": run.gpu_sum_ns,
        "gpu_span_ns": run.gpu_span_ns,
        "devices": [
            {
                "process": one.process,
                "device": one.device,
                "ops": one.ops,
                "gpu_busy_ns": one.gpu_busy_ns,
                "gpu_sum_ns": one.gpu_sum_ns,
                "gpu_span_ns": one.gpu_span_ns,
            }
            for one in run.devices
        ],
        "by_category": _categories(run.by_category),
        "classes": _shares(run.classes),
        "top": _kernels(run.top),
        "skew": None if run.skew is None else _skew(run.skew),
        "steps": (_step(step, segments) for step, segments in steps),
        "ledger": _ledger(run.ledger, run.device_ledger),
    }


def _document(step: DeviceStepReport, segments: Iterable[Segment]) -> Iterator[tuple[str, object]]:
    yield "schema", STEP_SCHEMA
    yield from _step(step, segments)
    yield "ledger", _ledger(step.ledger, step.device_ledger)


def step_row_to_dict(row: DeviceStepRow) -> Json:
    """One line of a list of steps as plain values."""
    return {
        "schema": STEP_ROW_SCHEMA,
        "step": row.step,
        "name": row.name or None,
        "process": row.process,
        "implied": row.implied,
        "start_ns": row.start_ns,
        "end_ns": row.end_ns,
        "wall_ns": row.wall_ns,
        "gpu_busy_ns": row.gpu_busy_ns,
        "gpu_sum_ns": row.gpu_sum_ns,
        "gpu_records": row.ops,
        "launches": row.launches,
        "graph_launches": row.graph_launches,
        "by_category": _categories(row.by_category),
    }


def _step(step: DeviceStepReport, segments: Iterable[Segment]) -> Iterator[tuple[str, object]]:
    """Keys and values; the actors are known when the segments have been read."""
    actors = Actors()
    yield from {
        "step": step.step,
        "name": step.name or None,
        "process": step.process,
        "implied": step.implied,
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
        "wall_ns": step.wall_ns,
        "verdict": {
            "text": step.verdict.text,
            "unknown_ns": step.verdict.unknown_ns,
            "doubts": list(step.verdict.doubts),
        },
        **_device(step.device),
        "by_category": _categories(step.by_category),
        "communication": {
            "length_ns": step.communication.length_ns,
            "waited_ns": step.communication.waited_ns,
        },
        "path_work": {
            "copies_ns": step.copies.copies_ns,
            "fills_ns": step.copies.fills_ns,
            "kernels_ns": step.copies.kernels_ns,
        },
        "gaps": [_gap(gap) for gap in step.gaps],
        "segments": (
            {key: value for key, value in one.items() if key != "phase"}
            for segment in segments
            for one in segments_to_list((segment,), actors)
        ),
    }.items()
    yield "actors", actors.table()


def _device(device: StepDevice) -> Json:
    return {
        "gpu_busy_ns": device.gpu_busy_ns,
        "gpu_sum_ns": device.gpu_sum_ns,
        "gpu_span_ns": device.gpu_span_ns,
        "gpu_records": device.ops,
        "kernels": device.kernels,
        "copies": device.copies,
        "fills": device.fills,
        "parts": dict(device.parts),
        "calls": device.calls,
        "launches": device.launches,
        "launch_ns": device.launch_ns,
        "graph_launches": device.graph_launches,
        "graph_records": device.graph_ops,
        "syncs": [_sync(sync) for sync in device.syncs],
        "classes": _shares(device.classes),
        "top": _kernels(device.top),
        "clamped": device.clamped,
        "assigned_by_stream": device.by_stream,
        "assigned_by_time": device.by_time,
    }


def _sync(sync: SyncShare) -> Json:
    return {
        "kind": sync.kind,
        "count": sync.count,
        "length_ns": sync.length_ns,
        "busy_ns": sync.busy_ns,
        "over_wait_ns": sync.over_wait_ns,
    }


def _gap(gap: IdleGap) -> Json:
    """An idle gap; its last five keys answer a question each."""
    return {
        "start_ns": gap.start_ns,
        "end_ns": gap.end_ns,
        "length_ns": gap.length_ns,
        "stream": gap.after.stream,
        "before": gap.before.name,
        "after": gap.after.name,
        "launch": gap.after.launch,
        "launched_ns": gap.after.launched_ns,
        "doing": dict(gap.doing),
        "meanwhile": _shares(gap.meanwhile),
        "launched_before": {**_gap_op(gap.before), "pending": gap.pending},
        "host": None if gap.host is None else _host(gap.host),
        "copies": [
            {
                "when": when,
                **_gap_op(op),
                "direction": op.direction,
                "size_bytes": op.size_bytes,
            }
            for when, op in gap.copies
        ],
        "communication": [
            {"when": when, **_gap_op(op), "waited_ns": op.waited_ns}
            for when, op in gap.communication
        ],
        "corresponds": {
            "completion": None if gap.completion is None else _completion(gap.completion),
            "receive": None if gap.receive is None else _gap_op(gap.receive),
            "launch": None if gap.after.launch is None else _gap_op(gap.after),
        },
    }


def _gap_op(op: GapOp) -> Json:
    return {
        "operation": op.name,
        "kind": op.kind,
        "stream": op.stream,
        "start_ns": op.start_ns,
        "end_ns": op.end_ns,
        "call": op.launch,
        "called_ns": op.launched_ns,
        "thread": op.thread,
    }


def _host(host: GapHost) -> Json:
    return {
        "thread": host.thread,
        "in_calls_ns": host.in_calls_ns,
        "between_calls_ns": host.between_calls_ns,
        "waiting_ns": host.waiting_ns,
        "communication_ns": host.communication_ns,
        "calls": dict(host.calls),
    }


def _completion(one: GapReturn) -> Json:
    return {
        "call": one.call,
        "returned_ns": one.returned_ns,
        "operation": one.operation,
        "ended_ns": one.ended_ns,
    }


def _skew(skew: Skew) -> Json:
    return {
        "collectives": skew.collectives,
        "left_out": dict(skew.left_out),
        "ranks": [_rank(one) for one in skew.ranks],
        "steps": [
            {
                "step": one.step,
                "collectives": one.collectives,
                "off_ns": one.off_ns,
                "ranks": [_rank(rank) for rank in one.ranks],
            }
            for one in skew.steps
        ],
    }


def _rank(one: RankSkew) -> Json:
    return {
        "process": one.process,
        "length_ns": one.length_ns,
        "waited_ns": one.waited_ns,
        "last": one.last,
        "held_up_ns": one.held_up_ns,
    }


def _shares(shares: Iterable[KernelShare]) -> list[Json]:
    return [{"name": one.name, "count": one.count, "length_ns": one.length_ns} for one in shares]


def _kernels(shares: Iterable[KernelShare]) -> list[Json]:
    """Operations by name, with what the name says."""
    found = []
    for one in shares:
        known = decode(one.name)
        found.append(
            {
                "name": one.name,
                "short": known.short,
                "class": str(known.cls),
                "library": known.library,
                "arch": known.arch,
                "dtype": known.dtype,
                "schedule": list(known.schedule),
                "fused_ops": list(known.fused_ops),
                "count": one.count,
                "length_ns": one.length_ns,
            }
        )
    return found


def _categories(pairs: Iterable[tuple[Category, int]]) -> Json:
    return {str(category): length for category, length in pairs}


def _ledger(ledger: Ledger, device: DeviceLedger) -> Json:
    return {
        "gpu_records": device.gpu_records,
        "assigned": device.assigned,
        "assigned_by": {
            "launch": device.by_launch,
            "stream": device.by_stream,
            "time": device.by_time,
        },
        "unassigned": dict(device.unassigned),
        "clamped": device.clamped,
        "invalid": device.invalid,
        "without_call": device.without_call,
        "calls": device.calls,
        "calls_invalid": device.calls_invalid,
        "launches": device.launches,
        "launches_without_record": device.launches_without_record,
        "repeated_ids": device.repeated_ids,
        "inferred": device.inferred,
        **ledger_to_dict(ledger),
    }
