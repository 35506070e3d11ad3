# SPDX-License-Identifier: Apache-2.0
"""Profiles and their steps as plain values for JSON: integer nanoseconds, null for unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.kernels import decode
from gpucorrelate.correlator.report import digest
from gpucorrelate.correlator.report.json import Actors, Json, ledger_to_dict, segments_to_list

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.correlator.report.device_values import (
        DeviceLedger,
        DeviceRunReport,
        DeviceStepReport,
        DeviceStepRow,
        IdleGap,
        KernelShare,
        StepDevice,
        SyncShare,
    )
    from gpucorrelate.correlator.report.values import Category, Ledger

RUN_SCHEMA = "gpucorrelate.profile.v1"
STEP_SCHEMA = "gpucorrelate.profile-step.v1"
STEP_ROW_SCHEMA = "gpucorrelate.profile-step-row.v1"


def run_to_dict(run: DeviceRunReport, steps: Iterable[DeviceStepReport]) -> Json:
    """A whole profile with all its steps as plain values."""
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
        "steps": [_step(step) for step in steps],
        "ledger": _ledger(run.ledger, run.device_ledger),
    }


def step_to_dict(step: DeviceStepReport) -> Json:
    """One step as plain values."""
    return {
        "schema": STEP_SCHEMA,
        **_step(step),
        "ledger": _ledger(step.ledger, step.device_ledger),
    }


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


def _step(step: DeviceStepReport) -> Json:
    actors = Actors()
    return {
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
        "by_category": _categories(digest.by_category(step.segments)),
        "gaps": [_gap(gap) for gap in step.gaps],
        "segments": [
            {key: value for key, value in one.items() if key != "phase"}
            for one in segments_to_list(step.segments, actors)
        ],
        "actors": actors.table(),
    }


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
    return {
        "start_ns": gap.start_ns,
        "end_ns": gap.end_ns,
        "length_ns": gap.length_ns,
        "stream": gap.stream,
        "before": gap.before or None,
        "after": gap.after,
        "launch": gap.launch or None,
        "launched_ns": gap.launched_ns,
        "doing": dict(gap.doing),
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
