# SPDX-License-Identifier: Apache-2.0
"""Devices in recordings that somebody else made: every column holds any value of its type.

Whatever the rows say, steps' paths and parts are exact partitions, sums are sums, the ledger adds
up, everything renders, and nothing takes longer than its size allows.
"""

from __future__ import annotations

import io
import json as json_
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucorrelate.correlator import tables
from gpucorrelate.correlator.report import compare, device_text
from gpucorrelate.correlator.report import tables as report_tables
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.page import TextOptions
from gpucorrelate.probes.wire.errors import GpucorrelateError
from gpucorrelate.probes.wire.frame import StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, CTYPES, GpuOpKind, SyncKind
from tests.unit.profile_json import run_document
from tests.unit.synth import Recording

Row = tuple[str, int, dict[str, Any]]

U32, U64 = (1 << 32) - 1, (1 << 64) - 1
LEAST, MOST = -(1 << 63), (1 << 63) - 1
CALLS = (
    "cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemset",
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaEventQuery",
    "cudaStreamWaitEvent", "cudaEventRecord", "", "\x1b[31m\r\n", "<" * 300,
)  # fmt: skip
#: Kinds that a profile holds, and one of a recording with waits.
KINDS = (
    "cuda_api", "cuda_api", "gpu_op", "gpu_op", "gpu_sync", "gpu_window", "worker_step", "span",
    "stream", "session", "wait",
)  # fmt: skip
#: Columns whose values should often agree between rows.
COMMON: dict[str, tuple[int, ...]] = {
    "pid": (11, 11, 11, 12, 0, U32),
    "tid": (11, 11, 12, 13, 0, U32),
    "tgid": (11, 11, 12, 0),
    "waker_tid": (11, 12, 0, U32),
    "device": (0, 0, 0, 1, U32),
    "context": (0, 1, 1, 2, U32),
    "gpu_stream": (7, 7, 8, 9, 0, U64),
    "record_stream": (7, 7, 8, 9, 0, U64),
    "correlation": (*range(10), U64, 1 << 63),
    "record": (*range(10), U64),
    "step": (0, 1, 1, 2, 3, 1 << 63, U64),
    "op": (1, 1, 1, 2, 3, 0, 255),
    "sync": (1, 2, 2, 3, 4, 0, 255),
    "copy": (0, 1, 2, 8, 10, 11, 255),
    "stream": (3, 4, 9),
}


def capture(rows: list[Row], *, profile: bool = True):
    """The rows as a capture; those of a kind in one batch, so that many are no matter."""
    line = Recording()
    if profile:
        line.add("meta", 1, t_ns=1, key="clock", value="trace")
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for name, by, values in rows:
        groups.setdefault((name, by), []).append(values)
    for (name, by), many in groups.items():
        kind, writer = BY_NAME[name], line.writers.setdefault(by, StreamWriter(by))
        cells = [
            [values.get(c.name, "" if c.ctype == "str" else 0) for c in kind.columns]
            for values in many
        ]
        line.frames += writer.frames(kind, len(cells), columns_of(kind, cells, writer.strings))
    return line.capture(end_ns=None)


def checked(run: Run) -> Run:
    """All that must hold of a profile, whatever is in it."""
    devices = run.devices
    counts = devices.ledger
    assert counts.complete
    assert counts.assigned == counts.by_launch + counts.by_stream + counts.by_time
    whole, reports = devices.whole(), list(devices.reports())
    assert 0 <= whole.gpu_busy_ns <= whole.gpu_sum_ns
    for row, step in zip(whole.steps, reports, strict=True):
        _step_holds(row, step)
    assert len(run_document(whole, reports)["steps"]) == len(reports)
    for width in (60, 140):
        _renders(whole, reports, width)
    assert len(devices.slowest(3)) == min(3, len(reports))
    _others(run)
    return run


def _step_holds(row, step) -> None:
    at = step.start_ns
    sums: Counter[str] = Counter()
    for one in step.segments:
        assert one.start_ns == at < one.end_ns
        at = one.end_ns
        sums[one.category] += one.length_ns
    assert at == step.end_ns
    assert sums == dict(row.by_category)
    device = step.device
    assert all(length >= 0 for _, length in device.parts)
    assert sum(length for _, length in device.parts) == step.wall_ns == row.wall_ns
    assert 0 <= device.gpu_busy_ns <= device.gpu_sum_ns
    assert device.gpu_busy_ns <= device.gpu_span_ns
    assert row.gpu_sum_ns == device.gpu_sum_ns
    assert device.launch_ns >= 0
    assert sum(one.length_ns for one in device.top) <= device.gpu_sum_ns
    assert all(one.length_ns >= 0 for one in (*device.classes, *device.top))
    for sync in device.syncs:
        assert 0 <= sync.busy_ns <= sync.length_ns
        assert 0 <= sync.over_wait_ns <= sync.length_ns
    for gap in step.gaps:
        assert 0 < sum(length for _, length in gap.doing) <= gap.length_ns


def _renders(whole, reports, width: int) -> None:
    out = io.StringIO()
    device_text.render_run(whole, out, TextOptions(width=width))
    for step in reports[:4]:
        device_text.render_step(step, out, TextOptions(width=width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in out.getvalue()


def _others(run: Run) -> None:
    """Comparison and tables."""
    out = io.StringIO()
    if run.is_profile and len(run.devices.steps):
        found = compare.of(run, run)
        compare.render(found, out)
        compare.write_json(found, out)
    made = tables.tables(run.capture, tables.NAMES)
    json_.dumps(report_tables.tables_to_dict(made))
    report_tables.write_csv(made, out)
    report_tables.render_tables(made, out, TextOptions(width=60), limit=3)


# --- any rows -----------------------------------------------------------------------------

_NEAR = st.integers(1, 40) | st.integers(1, 40).map(lambda n: 1_000 * n)
_EDGES = st.sampled_from((LEAST, LEAST + 1, -1, 0, 1, 1 << 62, MOST - 1, MOST))


def _value(column, moments):
    if column.name == "session":
        return st.just("s")  # rows of several are refused
    if column.ctype == "str":
        return st.sampled_from(CALLS)
    if column.name.endswith("_ns") and column.ctype == "i64":
        return moments
    if column.name in COMMON:
        return st.sampled_from(COMMON[column.name])
    bits = 8 * CTYPES[column.ctype][1]
    if column.ctype[0] == "i":
        return st.sampled_from((0, 1, -1, -(1 << bits - 1), (1 << bits - 1) - 1))
    return st.sampled_from((0, 1, 2, (1 << bits) - 1))


@st.composite
def _row(draw, moments) -> Row:
    name = draw(st.sampled_from(KINDS))
    values = {column.name: draw(_value(column, moments)) for column in BY_NAME[name].columns}
    if "end_ns" in values and draw(st.integers(0, 3)):
        values["start_ns"], values["end_ns"] = sorted((values["start_ns"], values["end_ns"]))
    by = {"stream": 1, "session": 1, "wait": 2}.get(name) or draw(st.sampled_from((3, 3, 4)))
    return name, by, values


def _rows(moments):
    return st.lists(_row(moments), max_size=24)


_BOUNDED = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@given(_rows(_NEAR), st.booleans())
@_BOUNDED
def test_rows_with_times_that_can_be_hold_what_a_profile_must(rows, profile) -> None:
    checked(Run.of(capture(rows, profile=profile)))


@given(_rows(_NEAR | _EDGES), st.booleans())
@_BOUNDED
def test_rows_with_any_times_hold_what_a_profile_must(rows, profile) -> None:
    try:
        run = Run.of(capture(rows, profile=profile))
    except GpucorrelateError:
        return
    checked(run)


@given(_rows(st.just(1_000)))
@settings(_BOUNDED, max_examples=30)
def test_rows_all_at_one_moment_hold_what_a_profile_must(rows) -> None:
    checked(Run.of(capture(rows)))


# --- named cases --------------------------------------------------------------------------


def call(correlation: int, start: int, end: int, name="cudaLaunchKernel", by=3, **more) -> Row:
    return "cuda_api", by, {"pid": 11, "tid": 11, "name": name, "correlation": correlation,
                            "start_ns": start, "end_ns": end} | more  # fmt: skip


def op(correlation: int, start: int, end: int, by=3, **more) -> Row:
    return "gpu_op", by, {"pid": 11, "gpu_stream": 7, "op": int(GpuOpKind.KERNEL), "name": "k",
                          "correlation": correlation, "start_ns": start,
                          "end_ns": end} | more  # fmt: skip


def step(number: int, start: int, end: int, by=3, **more) -> Row:
    return "worker_step", by, {"step": number, "tid": 11, "start_ns": start,
                               "end_ns": end} | more  # fmt: skip


def sync(correlation: int, kind: SyncKind, **more) -> Row:
    return "gpu_sync", 3, {"pid": 11, "sync": int(kind), "gpu_stream": 7, "event": U64,
                           "correlation": correlation, "record_stream": U64,
                           "start_ns": 1, "end_ns": 2} | more  # fmt: skip


def test_nothing_at_all_is_an_empty_profile() -> None:
    run = checked(Run.of(capture([])))
    assert run.devices.rows() == ()


@pytest.mark.parametrize("number", [1 << 63, U64])
def test_a_step_may_have_any_number(number: int) -> None:
    rows = [call(1, 10, 20), op(1, 30, 40), step(number, 1, 25)]
    run = checked(Run.of(capture(rows)))
    assert run.devices.report(run.devices.find(number)).step == number


def test_what_step_0_launched_is_its_own_work() -> None:
    rows = [call(1, 10, 20), op(1, 30, 40), step(0, 1, 25)]
    (row,) = checked(Run.of(capture(rows))).devices.rows()
    assert {str(what) for what, _ in row.by_category} >= {"gpu"}


def test_a_step_of_another_process_with_the_same_number_is_not_the_step_itself() -> None:
    # One thread id in both processes: a call of the first waits for what the second runs.
    rows = [
        call(1, 10, 20), op(1, 30, 900), step(5, 1, 1_000),
        call(2, 40, 50, by=4, pid=12, name="cudaMemcpy"), op(2, 60, 70, by=4, pid=12),
        step(5, 1, 80, by=4, tid=11),
        call(3, 100, 950, "cudaDeviceSynchronize"),
    ]  # fmt: skip
    checked(Run.of(capture(rows)))


def test_lengths_whose_sum_no_column_holds_are_summed() -> None:
    rows = [row for i in range(1, 5) for row in (call(i, 1, MOST), op(i, 1, MOST, gpu_stream=i))]
    (found,) = checked(Run.of(capture(rows))).devices.rows()
    assert found.gpu_sum_ns == 4 * (MOST - 1)
    assert found.gpu_busy_ns == MOST - 1


@pytest.mark.parametrize("window", [(LEAST, MOST), (LEAST, LEAST), (-5, 100), (0, 25), (90, 3)])
def test_a_step_whose_times_cannot_be_is_none(window: tuple[int, int]) -> None:
    run = checked(Run.of(capture([call(1, 10, 20), op(1, 30, 40), step(1, *window)])))
    (row,) = run.devices.rows()
    assert row.implied


def test_waits_for_events_in_a_circle_end() -> None:
    rows = []
    for k in range(6):
        rows += [call(1 + k, 10, 20), op(1 + k, 30, 30, gpu_stream=k % 3)]
        rows += [
            call(20 + k, 5, 25, "cudaStreamWaitEvent"),
            call(40 + k, 4, 26, "cudaEventRecord"),
        ]
        rows.append(sync(20 + k, SyncKind.STREAM_WAIT_EVENT, gpu_stream=k % 3,
                         record_stream=(k + 1) % 3, record=40 + k))  # fmt: skip
    rows.append(call(99, 28, 31, "cudaDeviceSynchronize"))
    checked(Run.of(capture(rows)))


def test_threads_that_wait_for_what_the_other_launched_at_the_same_moment_end() -> None:
    rows = []
    for k, tid in enumerate((11, 12)):
        rows.append(call(1 + k, 1_000, 1_000, tid=23 - tid))
        rows.append(op(1 + k, 1_000, 1_000, gpu_stream=k))
        rows.append(call(9 + k, 999, 1_001, "cudaStreamSynchronize", tid=tid))
        rows.append(sync(9 + k, SyncKind.STREAM, gpu_stream=k))
    checked(Run.of(capture(rows)))


def test_synchronisations_that_name_what_is_not_there_say_nothing() -> None:
    rows = [call(1, 10, 20), op(1, 30, 40), call(2, 25, 45, "cudaEventSynchronize")]
    for kind in (*SyncKind, 77):
        for value in (0, 1, 2, 3, U64):
            rows.append(sync(value, kind, record=value, record_stream=value, context=U32, pid=12))
            rows.append(sync(value, kind, record=value, record_stream=value, gpu_stream=value))
    checked(Run.of(capture(rows)))


# --- many rows ----------------------------------------------------------------------------

MANY = 4_000


def _pairs(count: int) -> list[Row]:
    rows = []
    for i in range(count):
        at = 500 + 100 * i
        rows += [call(i + 1, at, at + 20), op(i + 1, at + 100, at + 190)]
    return rows


def _steps(count: int) -> list[Row]:
    return [step(i + 1, 500 + 100 * i, 600 + 100 * i) for i in range(count)]


def _with(count: int, **same: int) -> list[Row]:
    return [(kind, by, values | same) for kind, by, values in _pairs(count)]


def _one_each(count: int, column: str) -> list[Row]:
    rows = []
    for kind, by, values in _pairs(count):
        named = column in {c.name for c in BY_NAME[kind].columns}
        rows.append((kind, by, values | ({column: values["correlation"]} if named else {})))
    return rows


def _synchronised(count: int) -> list[Row]:
    rows = _pairs(count)
    for i in range(count):
        at, known = 500 + 100 * i, count + i + 1
        rows.append(call(known, at, at + 90, "cudaStreamSynchronize", tid=12))
        rows.append(sync(known, SyncKind.STREAM))
    return rows


CROWDS = {
    "streams": lambda n: _one_each(n, "gpu_stream"),
    "devices": lambda n: _one_each(n, "device"),
    "processes": lambda n: _one_each(n, "pid"),
    "steps": lambda n: _pairs(n) + _steps(n),
    "steps under one long operation": lambda n: [
        *_pairs(n),
        *_steps(n),
        call(U64, 1, 2),
        op(U64, 3, 100 * n, gpu_stream=8),
    ],
    "synchronisations": _synchronised,
    "one id": lambda n: _with(n, correlation=1),
    "one moment": lambda n: _with(n, start_ns=7, end_ns=7),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_many_rows_take_no_longer_than_their_number_allows(crowd: str) -> None:
    # A rule that compares each with each takes 64 times as long for eight times as many.
    few, many = (min(_cost(crowd, count) for _ in range(3)) for count in (MANY // 8, MANY))
    assert many < 32 * few


def _cost(crowd: str, count: int) -> float:
    found = capture(CROWDS[crowd](count))
    began = time.process_time()
    run = Run.of(found)
    rows = run.devices.rows()
    assert run.devices.whole().device_ledger.complete
    for i in range(0, len(rows), 20):
        run.devices.report(i)
    tables.tables(found, tables.NAMES)
    return time.process_time() - began
