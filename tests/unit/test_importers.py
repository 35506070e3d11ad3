# SPDX-License-Identifier: Apache-2.0
"""Importing traces of other tools: made here, small, and broken in the ways that occur."""

from __future__ import annotations

import gzip
import json
import sqlite3
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.probes.importers.choose import read_trace
from gpucorrelate.probes.importers.kineto import to_ns
from gpucorrelate.probes.importers.recording import frames_of
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.wire.errors import TraceError
from gpucorrelate.probes.wire.frame import Decoder

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = '"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7'
CALL = '"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9'


def _trace(*events: str, more: str = "") -> str:
    return '{"traceEvents": [' + ", ".join(events) + "]" + more + "}"


def _event(head: str, ts: str, dur: str, correlation: int) -> str:
    return f'{{{head}, "ts": {ts}, "dur": {dur}, "args": {{"correlation": {correlation}}}}}'


GOOD = (_event(CALL, "1000.001", "2.5", 4), _event(KERNEL, "1001.25", "3", 4))


@given(st.integers(0, 1 << 62), st.integers(0, 999))
def test_microseconds_with_decimals_keep_every_nanosecond(us: int, ns: int) -> None:
    us //= 1000
    parsed = json.loads(f"{us}.{ns:03}", parse_float=Decimal)
    assert to_ns(parsed, "ts") == us * 1000 + ns


def test_moments_count_from_the_base_even_when_it_comes_last(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(_trace(*GOOD, more=', "baseTimeNanoseconds": 1700000000000000000'))
    (process,) = read_trace(path, StepMatcher()).processes
    assert process.pid == 9
    assert list(process.api.times()[0]) == [1_700_000_000_001_000_001]
    assert list(process.ops.times()[1]) == [1_700_000_000_001_004_250]
    assert list(process.ops.columns[0]) == [9]  # the process that launches owns the device work


def test_unreadable_events_are_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(_trace(_event(KERNEL, '"x"', "1", 1), f"{{{KERNEL}}}", "7", *GOOD))
    trace = read_trace(path, StepMatcher())
    assert trace.gpu_records == 1
    assert trace.problems.lines() == [
        ("kernel events unread: ts is no number at traceEvents[0]", 1),
        ("kernel events unread: ts is missing at traceEvents[1]", 1),
        ("elements that are no events at traceEvents[2]", 1),
    ]


def test_malformed_json_is_refused_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    text = _trace(*GOOD * 900)
    at = text.rindex('"ts"')
    path.write_text(text[:at] + "!" + text[at + 1 :])
    with pytest.raises(TraceError, match=f"malformed JSON at byte {at:,}:"):
        read_trace(path, StepMatcher())


def test_of_a_gzip_that_is_cut_off_what_came_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    events = [_event(KERNEL, f"{7 * i + 1}.{i % 1000:03}", "3", i) for i in range(20_000)]
    data = gzip.compress(_trace(*events).encode())
    path.write_bytes(data[: len(data) // 2])
    trace = read_trace(path, StepMatcher())
    assert 1000 < trace.gpu_records < 20_000
    ((what, count),) = trace.problems.lines()
    assert what.startswith("the gzip file is cut off at byte ")
    assert count == 1


@pytest.mark.parametrize("data", [b"", b"nothing of ours", b"\x1f\x8b\x00 no gzip"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="neither a Kineto trace"):
        read_trace(path, StepMatcher())


def test_sqlite_without_the_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE x (y)")
    database.close()
    with pytest.raises(TraceError, match="none of the tables"):
        read_trace(path, StepMatcher())


def test_the_recording_holds_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    step = '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#12", "pid": 9, "tid": 9, '
    inner = step.replace("#12", "#12 again")
    path.write_text(
        _trace(step + '"ts": 999, "dur": 9}', inner + '"ts": 1000, "dur": 2}', *GOOD, "7")
    )
    matcher = StepMatcher()
    frames = b"".join(frames_of([read_trace(path, matcher)] * 2, matcher))
    items = [item[0] for item in Decoder().feed(frames) if isinstance(item, tuple)]
    capture = Capture.from_batches(items)
    assert capture.intake.missing == capture.intake.repeated == 0
    assert [info.tgid for info in capture.streams] == [9, 9]
    assert capture.table("gpu_op")["stream"].tolist() == [2, 3]
    assert capture.strings[capture.table("gpu_op")["name"][0]] == "k"
    assert capture.table("worker_step")["step"].tolist() == [12, 12]
    assert capture.table("loss")["count"].tolist() == [1, 1]
