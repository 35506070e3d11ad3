# SPDX-License-Identifier: Apache-2.0
"""Which rows, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.cli.moments import moment_ns
from gpucorrelate.correlator.report.values import PhaseName
from gpucorrelate.probes.wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.device_values import DeviceStepRow
    from gpucorrelate.correlator.report.values import RequestRow, StepRow

_PHASES = tuple(name.value for name in PhaseName)
REQUEST_KEYS = ("arrival", "id", "wall", "ttft", "tokens-in", "tokens-out", *_PHASES)
STEP_KINDS = ("prefill", "decode", "mixed", "empty")

_STEP_ORDER: dict[str, Callable[[StepRow], int]] = {
    "step": lambda row: row.step,
    "wall": lambda row: -row.wall_ns,
    "worker": lambda row: -_known(row.worker_ns),
    "rows": lambda row: -row.rows,
    "tokens": lambda row: -row.tokens,
    "prefill": lambda row: -(row.prefill_tokens or 0),
    "waiting": lambda row: -row.waiting,
}
STEP_KEYS = tuple(_STEP_ORDER)

_PROFILE_ORDER: dict[str, Callable[[DeviceStepRow], tuple[str, int] | int]] = {
    "step": lambda row: (row.process, row.start_ns),
    "wall": lambda row: -row.wall_ns,
    "gpu-busy": lambda row: -row.gpu_busy_ns,
    "gpu-idle": lambda row: row.gpu_busy_ns - row.wall_ns,
    "launches": lambda row: -row.launches,
}
PROFILE_KEYS = tuple(_PROFILE_ORDER)


def _known(value: int | None) -> int:
    """The value; one that is unknown comes after every known one."""
    return -1 if value is None else value


def phase_of(key: str) -> PhaseName | None:
    """The phase a sort key stands for, if it is one."""
    return PhaseName(key) if key in _PHASES else None


def _request_order(key: str) -> Callable[[RequestRow], int | str]:
    phase = phase_of(key)
    if phase is not None:
        return lambda row: -sum(ns for name, ns in row.by_phase if name is phase)
    orders: dict[str, Callable[[RequestRow], int | str]] = {
        "arrival": lambda row: row.arrival_ns,
        "id": lambda row: row.request_id,
        "wall": lambda row: -row.wall_ns,
        "ttft": lambda row: -_known(row.ttft_ns),
        "tokens-in": lambda row: -_known(row.tokens_in),
        "tokens-out": lambda row: -_known(row.tokens_out),
    }
    return orders[key]


def sort_requests(rows: Sequence[RequestRow], key: str, *, reverse: bool) -> list[RequestRow]:
    """Rows by one of ``REQUEST_KEYS``: the largest first, but arrival and id ascending."""
    return sorted(rows, key=_request_order(key), reverse=reverse)  # type: ignore[arg-type, unused-ignore]


def sort_steps(rows: Sequence[StepRow], key: str, *, reverse: bool) -> list[StepRow]:
    """Rows by one of ``STEP_KEYS``: the largest first, but step numbers ascending.

    Raises:
        UsageError: that is a key of a profile's steps.
    """
    if key not in _STEP_ORDER:
        raise UsageError(f"steps of an engine sort by one of {', '.join(STEP_KEYS)}, not {key}")
    return sorted(rows, key=_STEP_ORDER[key], reverse=reverse)


def sort_profile_steps(
    rows: Sequence[DeviceStepRow], key: str, *, reverse: bool
) -> list[DeviceStepRow]:
    """Rows by one of ``PROFILE_KEYS``: the largest first, but steps in order of time.

    Raises:
        UsageError: that is a key of an engine's steps.
    """
    if key not in _PROFILE_ORDER:
        raise UsageError(f"steps of a profile sort by one of {', '.join(PROFILE_KEYS)}, not {key}")
    return sorted(rows, key=_PROFILE_ORDER[key], reverse=reverse)  # type: ignore[arg-type, unused-ignore]


def window(run: Run, since: str, until: str) -> tuple[int | None, int | None]:
    """The time window asked for; lengths count back from the end of the recording.

    Raises:
        UsageError: a time is not written as one, or the window is empty.
    """
    end_ns = run.states.end_ns
    since_ns = moment_ns(since, end_ns) if since else None
    until_ns = moment_ns(until, end_ns) if until else None
    if since_ns is not None and until_ns is not None and since_ns > until_ns:
        raise UsageError("--since is later than --until")
    return since_ns, until_ns
