# SPDX-License-Identifier: Apache-2.0
"""Importing traces of other tools: made here, small, and broken in the ways that occur."""

from __future__ import annotations

import gzip
import sqlite3
import tracemalloc
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.probes.importers import events, jsontext
from gpucorrelate.probes.importers.choose import read_trace
from gpucorrelate.probes.importers.recording import frames_of
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.importers.values import to_ns
from gpucorrelate.probes.wire.errors import TraceError
from gpucorrelate.probes.wire.frame import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True, scope="module", params=["scanned", "decoded"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled scanner, and as without it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "decoded":
            patch.setattr(events, "scanner", lambda: None)
        else:
            assert events.scanner() is not None, "the importers' C part is not built: make native"
        yield


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
    assert to_ns(f"{us}.{ns:03}".encode(), "ts") == us * 1000 + ns


@given(
    st.lists(
        st.from_regex(r"\A(0|[1-9][0-9]{0,14})(\.[0-9]{1,6})?\Z")
        | st.from_regex(r"\A[1-9]\.[0-9]{1,9}[eE](-?[0-9]|\+?1[0-4])\Z"),
        min_size=1,
    )
)
def test_moments_however_they_are_written_are_rounded_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("moments") / "t.json"
    path.write_text(_trace(*(_event(KERNEL, text, "0", 1) for text in texts)))
    (process,) = read_trace(path, StepMatcher()).processes
    assert list(process.ops.times()[0]) == [round(Fraction(text) * 1000) for text in texts]


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


MANY = [_event(KERNEL, f"{7 * i + 1}.{i % 1000:03}", "3", i) for i in range(3000)]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (MANY[0].replace('"args": {', '"args": 5, "x": {'), "args is no object"),
        (MANY[0].replace('"tid": 7', '"tid": [7]').replace('"dur": 3', '"dur": {}'), "dur is no"),
        (MANY[0].replace('"dur": 3', '"dur": 1e999999999999999999999'), "dur is out of range"),
        (MANY[0].replace('"dur": 3', f'"dur": {"9" * 5000}'), "dur is out of range"),
        (MANY[0].replace('"correlation": 0', '"device": 1e99'), "device is out of range"),
        (MANY[0].replace('"correlation": 0', f'"bytes": {1 << 64}'), "bytes is out of range"),
        ('[{"a": 1}, {"b": 2}]', "elements that are no events"),
        ('{"x": ' + "[" * 1_000_000 + "]" * 1_000_000 + "}", "elements nested too deeply"),
        ('{"x": "' + '},{\\"' * 1_500_000 + '"}', "elements too long"),
    ],
    ids=lambda text: text[:20],
)
def test_an_event_that_cannot_be_read_costs_itself(tmp_path: Path, bad: str, problem: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        _trace(*MANY[:1700], bad, *MANY[1700:], more=', "distributedInfo": {"rank": 2}')
    )
    trace = read_trace(path, StepMatcher())
    (process,) = trace.processes
    assert list(process.ops.columns[process.ops.kind.index("correlation")]) == list(range(3000))
    assert process.rank == 2
    ((what, count),) = trace.problems.lines()
    assert problem in what
    assert what.endswith(" at traceEvents[1700]")
    assert count == 1


@pytest.mark.parametrize(
    "odd",
    [
        MANY[0].replace('"name": "k"', '"name": "k\\ud800"'),  # half a letter
        MANY[0].replace('"tid": 7', '"tid": {"x": ["},{", 1e999999999999999999999]}'),
        MANY[0].replace('"ph"', '"args": {"correlation": 9}, "\\u0070h"'),
        MANY[0].replace('"tid": 7', '"tid": true').replace('"correlation": 0', '"stream": null'),
        MANY[0].replace('"cat": "kernel"', '"cat": "Kernel"').replace('"k"', "null"),
    ],
)
def test_an_odd_event_is_kept(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(_trace(*MANY[:10], odd, *MANY[10:20]))
    trace = read_trace(path, StepMatcher())
    assert trace.problems.lines() == []
    assert trace.gpu_records == 21


@pytest.mark.parametrize("block_bytes", [1, 2, 7, 300])
def test_it_does_not_matter_where_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(jsontext, "_BLOCK_BYTES", block_bytes)
    named = [event.replace('"k"', '"},{ \\\\\\" \u00e9 \U0001f600"') for event in MANY[:40]]
    path = tmp_path / "t.json"
    text = '{"a": [{}, {}], "traceEvents" : [' + " ,\n ".join(named) + ' ] , "z": [{"y": 1}, {}]} '
    path.write_text(text, encoding="utf-8-sig")
    trace = read_trace(path, StepMatcher())
    (process,) = trace.processes
    assert trace.problems.lines() == []
    assert list(process.ops.columns[process.ops.kind.index("correlation")]) == list(range(40))
    assert list(process.texts) == ["", '},{ \\" \u00e9 \U0001f600']


@given(st.data())
def test_of_a_text_that_breaks_off_what_came_before_is_kept(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "t.json"
    text = '{"baseTimeNanoseconds": 5000, ' + _trace(*MANY[:6], more=', "rest": ["x", 1.5]')[1:]
    size = data.draw(st.integers(1, len(text) - 1))
    path.write_text(text[:size])
    trace = read_trace(path, StepMatcher())
    assert trace.gpu_records == text[:size].count("}}")
    ((what, count),) = trace.problems.lines()
    assert (what, count) == (f"the text breaks off at byte {size:,}", 1)


@pytest.mark.parametrize(
    "text",
    [
        '[{"ts": NaN}]',
        '[{"x": -Infinity}]',
        "[1, 2,]",
        "[, 1]",
        "[1,, 2]",
        "[1}",
        "[1] 2",
        '{"traceEvents": [{}]] }',
        '{"traceEvents": [{}], "a" 1}',
        "{5: 1}",
        '{"a": 01}',
        "{,}",
        '{"traceEvents": [{"a": "\t"}]}',
    ],
)
def test_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match="malformed JSON at byte "):
        read_trace(path, StepMatcher())


def test_facts_that_are_nonsense_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    more = ', "baseTimeNanoseconds": 1e30, "deviceProperties": [7, {"name": [1]}], '
    more += '"distributedInfo": [], "traceEvents": 5, "baseTimeNanoseconds": 6'
    path.write_text(_trace(*GOOD, more=more))
    trace = read_trace(path, StepMatcher())
    (process,) = trace.processes
    assert list(process.api.times()[0]) == [1_000_001]
    assert process.role == ""
    assert [what.split(" at ")[0] for what, _ in trace.problems.lines()] == [
        "traceEvents is no list",
        "baseTimeNanoseconds is out of range",
    ]


def test_the_text_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    unused = '{"ph": "X", "cat": "cpu_op", "args": {"x": "' + "y" * 2000 + '"}}'
    path.write_bytes(gzip.compress(_trace(*MANY, *[unused] * 10_000).encode(), 1))
    read_trace(path, StepMatcher())  # what is imported late is not counted
    tracemalloc.start()
    try:
        trace = read_trace(path, StepMatcher())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trace.gpu_records == 3000
    assert peak_bytes < 5_000_000  # of 20 MB of text


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
    # The second has an id of its own: the same number is another process there.
    assert [info.tgid for info in capture.streams] == [9, (1 << 22) + 1]
    assert capture.table("gpu_op")["stream"].tolist() == [2, 3]
    assert capture.strings[capture.table("gpu_op")["name"][0]] == "k"
    assert capture.table("worker_step")["step"].tolist() == [12, 12]
    assert capture.table("loss")["count"].tolist() == [1, 1]
