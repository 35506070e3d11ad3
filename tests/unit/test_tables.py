# SPDX-License-Identifier: Apache-2.0
"""Statistics tables on rows made by hand, against figures worked out apart from them."""

from __future__ import annotations

import csv
import functools
import io
import json
import statistics
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator import tables as made
from gpucorrelate.correlator.report import tables as report
from gpucorrelate.correlator.report.page import TextOptions
from gpucorrelate.correlator.search import exact_sum
from gpucorrelate.correlator.tables import Graphs, Joined
from gpucorrelate.probes.wire.schema import CopyKind, GpuOpKind, WaitFlag, WaitKind
from tests.unit.synth import MS, Recording

NONE = (1 << 64) - 1


class Device(Recording):
    """Calls and records of the device, row by row."""

    def call(self, name, start, length, correlation=0, *, by=2, pid=7):
        return self.add(
            "cuda_api", by, pid=pid, tid=pid, name=name, api=1, correlation=correlation,
            start_ns=start, end_ns=start + length,
        )  # fmt: skip

    def op(self, start, length, correlation=0, *, kind=GpuOpKind.KERNEL, name="k", by=2, **more):
        values = {"pid": 7, "gpu_stream": 7, **more}
        return self.add(
            "gpu_op", by, op=int(kind), name=name, correlation=correlation, start_ns=start,
            end_ns=start + length, **values,
        )  # fmt: skip

    def copy(self, start, size, direction=CopyKind.DTOD, correlation=0, **more):
        return self.op(
            start, 10, correlation, kind=GpuOpKind.MEMCPY, copy=int(direction), bytes=size, **more
        )


def written(capture, *names):
    out = io.StringIO()
    report.write_csv(made.tables(capture, names), out)
    return list(csv.reader(out.getvalue().splitlines()))


def shown(capture, *names, width=100, limit=0):
    out = io.StringIO()
    report.render_tables(made.tables(capture, names), out, TextOptions(width=width), limit=limit)
    return out.getvalue()


def document(capture, *names):
    return json.loads(json.dumps(report.tables_to_dict(made.tables(capture, names))))


def test_a_published_row_comes_out_as_nsys_printed_it():
    # Two calls of cudaHostRegister in a published cuda_api_sum: their minimum and maximum.
    r = Device()
    r.call("cudaHostRegister", 1_000, 710_150_544).call("cudaHostRegister", 2_000, 793_565_008)
    assert written(r.capture(), "cuda_api_sum") == [
        ["Time (%)", "Total Time (ns)", "Num Calls", "Avg (ns)", "Med (ns)", "Min (ns)",
         "Max (ns)", "StdDev (ns)", "Name"],
        ["100.0", "1503715552", "2", "751857776.0", "751857776.0", "710150544", "793565008",
         "58982933.1", "cudaHostRegister"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "fields"),
    [
        ([5], ["5", "1", "5.0", "5.0", "5", "5", "0.0"]),
        ([0], ["0", "1", "0.0", "0.0", "0", "0", "0.0"]),
        ([3, 1, 2], ["6", "3", "2.0", "2.0", "1", "3", "1.0"]),
        ([4, 1, 2, 100], ["107", "4", "26.8", "3.0", "1", "100", "48.8"]),
        ([1, 2], ["3", "2", "1.5", "1.5", "1", "2", "0.7"]),
    ],
)
def test_medians_and_deviations(lengths, fields):
    r = Device()
    for at, length in enumerate(lengths):
        r.call("f", 1_000 + at, length)
    share = "100.0" if sum(lengths) else ""
    assert written(r.capture(), "cuda_api_sum")[1] == [share, *fields, "f"]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
def test_statistics_are_those_of_the_standard_library(values):
    row = made.row_of("x", np.array(sorted(values), np.int64))
    assert (row.count, row.total) == (len(values), sum(values))
    assert row.mean == Fraction(sum(values), len(values))
    assert row.median == statistics.median(map(Fraction, values))
    assert (row.least, row.most) == (min(values), max(values))
    assert row.tail == sum(v > made.TAIL_FACTOR * statistics.median(values) for v in values)
    deviation = statistics.stdev(values) if len(values) > 1 else 0
    assert row.deviation == pytest.approx(deviation, rel=1e-9, abs=1e-9)


def test_sums_do_not_overflow():
    values = np.array([(1 << 63) - 1] * 5, np.int64)
    assert exact_sum(values) == 5 * ((1 << 63) - 1)
    assert made.row_of("x", values).tail == 0
    unsigned: Any = np.array([NONE, NONE], np.uint64)
    assert exact_sum(unsigned) == 2 * NONE
    assert made.row_of("x", unsigned).most == NONE


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (Fraction(9, 4), 1, "2.3"),
        (Fraction(41, 20), 1, "2.1"),
        (Fraction(1, 3), 3, "0.333"),
        (0.05, 1, "0.1"),
        (7, 0, "7"),
        (Fraction(5, 2), 0, "3"),
        (None, 1, ""),
    ],
)
def test_halves_go_up(value, decimals, text):
    assert report.fixed(value, decimals) == text


def test_rows_are_sorted_by_their_sums_and_equal_sums_by_name():
    r = Device().call("b", 10, 5).call("a", 20, 5).call("c", 30, 20)
    rows = written(r.capture(), "cuda_api_sum")[1:]
    assert [(row[0], row[-1]) for row in rows] == [("66.7", "c"), ("16.7", "a"), ("16.7", "b")]


def test_records_without_valid_times_are_counted_and_left_out():
    r = Device().op(100, 10).op(0, 10).op(200, -1).op(-5, 10).call("f", 100, 10)
    capture = r.capture()
    (row,) = written(capture, "cuda_gpu_kern_sum")[1:]
    assert row[1:3] == ["10", "1"]
    assert "left out, for its times are not valid: 3 records" in shown(
        capture, "cuda_gpu_kern_sum"
    )
    assert document(capture, "cuda_gpu_kern_sum")["tables"][0]["invalid"] == 3


def test_a_table_without_rows_has_its_titles_only():
    capture = Device().call("f", 100, 10).capture()
    assert written(capture, "cuda_gpu_mem_time_sum") == [
        ["Time (%)", "Total Time (ns)", "Count", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)",
         "StdDev (ns)", "Operation"],
    ]  # fmt: skip
    assert "none recorded" in shown(capture, "cuda_gpu_mem_time_sum", "copy_sizes")


def test_shares_are_of_the_listed_time_and_sums_stand_beside_the_wall():
    r = Device()
    for tid in range(4):
        r.call("cudaDeviceSynchronize", 1_000, 90 * MS, pid=10 + tid)
    capture = r.call("f", 1_000 + 90 * MS, 10 * MS).capture(None)
    text = shown(capture, "cuda_api_sum")
    assert "percent of listed time, summed over threads; not wall\n" in text
    assert "370 ms listed in 100 ms of wall: 3.70 thread-equivalents\n" in text
    (table,) = document(capture, "cuda_api_sum")["tables"]
    assert (table["wall_ns"], table["total"], table["equivalents"]) == (100 * MS, 370 * MS, 3.7)


def test_a_tail_is_counted_and_never_multiplied():
    r = Device()
    for at in range(99):
        r.call("sync", 1_000 + at, 10)
    capture = r.call("sync", 5_000, 4_000).capture()
    (table,) = document(capture, "cuda_api_sum")["tables"]
    (row,) = table["rows"]
    assert (row["avg_ns"], row["med_ns"], row["max_ns"]) == (49.9, 10.0, 4_000)
    assert row["above_10x_median"] == 1
    assert row["total_ns"] == table["total"] == 4_990


def test_operations_have_the_names_of_nsys():
    r = Device()
    for at, kind in enumerate(CopyKind):
        r.copy(100 + at, 8, kind)
    r.op(500, 1, kind=GpuOpKind.MEMSET, bytes=4)
    names = {row[-1] for row in written(r.capture(), "cuda_gpu_mem_time_sum")[1:]}
    assert {
        "[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]", "[CUDA memset]",
        "[CUDA memcpy Device-to-Device]", "[CUDA memcpy Peer-to-Peer]",
        "[CUDA memcpy Array-to-Host]", "[CUDA memcpy Unknown]",
    } <= names  # fmt: skip
    assert len(names) == len(CopyKind) + 1


def test_sizes_are_megabytes_of_ten_to_the_six():
    r = Device().copy(100, 8_388_608).copy(200, 1_000).copy(300, 524_288, CopyKind.HTOD)
    assert written(r.capture(), "cuda_gpu_mem_size_sum") == [
        ["Total (MB)", "Count", "Avg (MB)", "Med (MB)", "Min (MB)", "Max (MB)", "StdDev (MB)",
         "Operation"],
        ["8.390", "2", "4.195", "4.195", "0.001", "8.389", "5.931",
         "[CUDA memcpy Device-to-Device]"],
        ["0.524", "1", "0.524", "0.524", "0.524", "0.524", "0.000",
         "[CUDA memcpy Host-to-Device]"],
    ]  # fmt: skip


def test_a_size_that_was_not_recorded_is_unknown_and_not_zero():
    r = Device().copy(100, 0).copy(200, 0).copy(300, 0, CopyKind.HTOD).copy(400, 64, CopyKind.HTOD)
    capture = r.capture()
    assert written(capture, "cuda_gpu_mem_size_sum")[1:] == [
        ["0.000", "1", "0.000", "0.000", "0.000", "0.000", "0.000",
         "[CUDA memcpy Host-to-Device]"],
        ["", "2", "", "", "", "", "", "[CUDA memcpy Device-to-Device]"],
    ]  # fmt: skip
    rows = document(capture, "cuda_gpu_mem_size_sum")["tables"][0]["rows"]
    assert rows[1]["total_bytes"] is None
    text = shown(capture, "cuda_gpu_mem_size_sum", "copy_sizes")
    assert "[CUDA memcpy Host-to-Device]: no size recorded of 1 operations" in text
    assert "no size recorded of 2 copies" in text


def test_the_size_that_moves_most_dominates_and_tails_are_told():
    r = Device()
    for at in range(40):
        r.copy(100 + at, 4 + at)
    for at in range(10):
        r.copy(200 + at, 524_288)
    capture = r.copy(300, 65).copy(400, 1 << 20).copy(500, 16 << 20, CopyKind.HTOD).capture()
    up, within = made.copy_sizes(capture)
    assert (up.name, up.large, up.tiny) == ("[CUDA memcpy Host-to-Device]", 1, 0)
    assert (within.dominant_bytes, within.dominant_count) == (524_288, 10)
    assert (within.tiny, within.large, within.count) == (40, 0, 52)
    assert [(c.from_bytes, c.to_bytes, c.count) for c in within.classes] == [
        (1, 65, 40), (65, 1 << 10, 1), (256 << 10, 1 << 20, 10), (1 << 20, 16 << 20, 1),
    ]  # fmt: skip
    assert sum(c.total for c in within.classes) == within.total
    assert "dominant size 524,288 B x 10 = 5.24 MB" in shown(capture, "copy_sizes")
    assert written(capture, "copy_sizes")[1] == [
        "72.7", "16.777", "1", str(16 << 20), str((256 << 20) - 1), "[CUDA memcpy Host-to-Device]",
    ]  # fmt: skip


# -- calls and records


def test_calls_and_records_are_joined_by_process_and_correlation():
    r = Device()
    r.call("cudaLaunchKernel", 10, 5, 1).op(20, 5, 1)
    r.call("cuLaunchKernelEx", 30, 5, 2).op(40, 5, 2, pid=8)  # another process's number 2
    r.call("cudaMemcpyAsync", 50, 5, 3).op(60, 5, 3, name="copy as kernel")
    r.copy(70, 8, correlation=4).call("cudaMemsetAsync", 80, 5, 0)
    r.call("cudaLaunchHostFunc", 90, 5, 9)
    found = made.reconcile(r.capture())
    assert found.joined == (
        Joined("launch", "kernel", 2, 1, 3, 1, 0, 1, 1),
        Joined("memcpy", "copy", 1, 0, 1, 0, 0, 0, 1),
        Joined("memset", "fill", 1, 1, 0, 0, 0, 0, 0),
    )
    assert found.graphs.traced is None


def test_ranks_with_the_same_process_id_stay_apart():
    r = Device()
    for rank in (2, 3):
        r.add("stream", 1, stream=rank, tgid=7, producer="import", role=f"rank {rank}")
    r.call("cudaLaunchKernel", 10, 5, 1, by=2).op(20, 5, 1, by=2).op(30, 5, 1, by=3)
    (launches, _, _) = made.reconcile(r.capture()).joined
    assert (launches.own, launches.orphans) == (1, 1)


@pytest.mark.parametrize("name", ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"])
def test_nodes_of_graphs_are_told_from_launches(name):
    r = Device().call("cudaLaunchKernel", 10, 5, 1).op(20, 5, 1)
    r.call(name, 30, 5, 2).call(name, 40, 5, 3).call(name, 50, 5, 4)
    for at in range(3):
        r.op(60 + at, 1, 2)
    capture = r.op(70, 1, 3).copy(80, 8, correlation=3).copy(90, 8, correlation=3).capture()
    found = made.reconcile(capture)
    assert found.graphs == Graphs(3, 1, 4, 6, 3, 3, 0)
    assert (found.joined[0].own, found.joined[0].graph, found.joined[1].graph) == (1, 4, 2)
    assert report.graph_note(found.graphs) == (
        "graph nodes traced: yes (4 kernels under 3 graph launches); 3 device records a launch; "
        "1 launch without any"
    )
    json_ = document(capture, "cuda_api_sum")
    assert json_["graphs"]["nodes_traced"] is True
    assert json_["reconciliation"][0]["records_under_graph_launch"] == 4


def test_graphs_whose_nodes_were_not_traced_are_said_to_be_so():
    capture = Device().call("cudaGraphLaunch", 30, 5, 2).op(60, 1).capture()
    graphs = made.reconcile(capture).graphs
    assert graphs.traced is False
    assert report.graph_note(graphs) == (
        "graph nodes traced: no (nothing of the device is recorded under 1 graph launch)"
    )
    marked = made.reconcile(Device().op(60, 1, graph=5).capture()).graphs
    assert marked.traced is True
    assert "yes (1 kernel; the launches" in report.graph_note(marked)


def test_published_numbers_do_not_support_that_copies_are_graph_replay():
    joined = Joined("memcpy", "copy", 411_272, 0, 422_336, 411_272, 0, 0, 11_064)
    assert report.joined_note(joined) == (
        "411,272 memcpy calls for 422,336 GPU copies: at least 97% have a call of their own, so "
        "they are not graph replay; 11,064 have no call in the recording"
    )
    replay = Joined("memcpy", "copy", 4, 4, 100, 0, 100, 0, 0)
    assert report.joined_note(replay) == (
        "4 memcpy calls for 100 GPU copies: 100% are nodes of launched graphs; 4 calls without a "
        "GPU record"
    )
    assert report.joined_note(Joined("memset", "fill", 0, 0, 0, 0, 0, 0, 0)) == ""


# -- OS waits


def waits(threshold=None):
    r = Recording()
    if threshold is not None:
        r.add("meta", 1, t_ns=1, key="min_wait_ns", value=threshold)
    r.wait(11, 1_000, 2_000, syscall=232).wait(11, 3_000, 6_000, syscall=232)
    r.wait(12, 1_000, 3_000, kind=WaitKind.FUTEX, syscall=202)
    return r.wait(12, 4_000, 4_500, kind=WaitKind.PREEMPTED, syscall=202)


def test_waits_are_listed_by_system_call():
    assert written(waits().capture(), "osrt_sum")[1:] == [
        ["61.5", "4000", "2", "2000.0", "2000.0", "1000", "3000", "1414.2", "epoll_wait"],
        ["30.8", "2000", "1", "2000.0", "2000.0", "2000", "2000", "0.0", "futex"],
        ["7.7", "500", "1", "500.0", "500.0", "500", "500", "0.0", "[preempted]"],
    ]


def test_waits_that_were_only_summed_leave_open_what_is_not_known():
    r = waits("10000")
    for tid in (11, 12):
        r.add(
            "wait_sum", 2, tid=tid, tgid=1, start_ns=1_000, end_ns=9_000, wait_kind=WaitKind.FUTEX,
            count=100, sum_ns=50_000, max_ns=9_000 + tid,
        )  # fmt: skip
    capture = r.capture()
    assert written(capture, "osrt_sum")[1] == [
        "93.9", "100000", "200", "500.0", "", "", "9012", "", "[futex] short waits, summed",
    ]  # fmt: skip
    text = shown(capture, "osrt_sum")
    assert "minimum duration of a listed wait: 10.0 us; shorter ones are only summed" in text
    (table,) = document(capture, "osrt_sum")["tables"]
    assert table["min_duration_ns"] == 10_000
    assert table["rows"][0]["med_ns"] is table["rows"][0]["min_ns"] is None


@pytest.mark.parametrize(
    ("threshold", "words"), [(None, "not recorded"), ("0", "none, all are listed")]
)
def test_the_threshold_is_told_or_unknown(threshold, words):
    text = shown(waits(threshold).capture(), "osrt_sum")
    assert f"minimum duration of a listed wait: {words}\n" in text


def test_a_wait_that_was_reported_while_open_counts_once():
    r = Recording().wait(11, 1_000, 2_000, syscall=232, flags=WaitFlag.OPEN)
    r.wait(11, 1_000, 5_000, syscall=232).wait(12, 1_000, 9_000, syscall=7, flags=WaitFlag.OPEN)
    capture = r.capture()
    rows = written(capture, "osrt_sum")[1:]
    assert [(row[1], row[2], row[-1]) for row in rows] == [
        ("8000", "1", "poll"),
        ("4000", "1", "epoll_wait"),
    ]
    assert "1 of the waits began before or end after" in shown(capture, "osrt_sum")


def test_waits_of_unknown_kinds_and_calls_have_a_name():
    r = Recording().wait(11, 3_000, 4_000, syscall=-1)
    r.add("wait", 2, tid=11, tgid=11, start_ns=1_000, end_ns=2_000, wait_kind=99, syscall=-1)
    capture = r.wait(11, 5_000, 6_000, syscall=999).capture()
    names = {row[-1] for row in written(capture, "osrt_sum")[1:]}
    assert names == {"[kernel]", "[epoll]", "syscall 999"}


# -- the command


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A recording with device activity and no waits."""
    r = Device()
    for at in range(30):
        r.call(f"cuda{at}", 10 + at, 1_000 + at, at + 1)
        r.op(50 + at, 7, at + 1, name=f"void {'k' * 150}{at}")
    return _save(r.copy(100, 64), tmp_path_factory.mktemp("tables") / "d.gpcf")


def _save(made_, path):
    made_.capture(60_000)
    path.write_bytes(b"".join(made_.frames))
    return path


@pytest.fixture
def run(run):
    """Runs the command; its exit code, standard output and standard error."""
    return functools.partial(run, "tables")


def test_all_tables_come_without_a_name_and_what_is_not_there_is_said(run, file):
    code, out, err = run(file)
    assert code == 0
    for name in made.CUDA_NAMES:
        assert f"\n{name}  " in f"\n{out}"
    assert err == "gpucorrelate: this recording holds no OS waits: left out osrt_sum\n"
    assert max(map(len, out.splitlines())) <= 100
    assert "10 more rows, " in out
    assert "more row" not in run("--limit", 0, file)[1]


def test_the_file_is_the_word_that_is_no_table(run, file, tmp_path):
    first = run("cuda_api_sum", file)
    assert first[0] == 0
    assert first == run(file, "cuda_api_sum") == run("cuda_api_sum", file, "cuda_api_sum")
    assert "cuda_gpu_kern_sum" not in first[1]
    code, out, err = run("cuda_api_summ", file)
    assert (code, out) == (2, "")
    assert "cuda_api_summ is neither a table nor a file; tables are cuda_api_sum, cuda_" in err
    assert run(file, tmp_path)[0] == 2
    assert run(file, "--session", "s")[0] == 2
    assert run("cuda_api_sum", tmp_path / "none.gpcf")[0] == 3


def test_csv_and_json_hold_every_row(run, file):
    lines = run("cuda_api_sum", "--format", "csv", "--limit", 1, file)[1].splitlines()
    assert len(lines) == 31
    assert lines[0].startswith("Time (%),Total Time (ns),Num Calls,")
    several = run("cuda_api_sum", "cuda_gpu_kern_sum", "--format", "csv", file)[1].splitlines()
    assert several[0] == "# cuda_api_sum"
    assert several[32:34] == ["", "# cuda_gpu_kern_sum"]
    got = json.loads(run("cuda_gpu_kern_sum", "--format", "json", "--limit", 1, file)[1])
    assert got["schema"] == report.SCHEMA
    assert len(got["tables"][0]["rows"]) == 30
    assert got["copy_sizes"] is None


def test_output_goes_to_a_file_or_a_folder_of_csv(run, file, tmp_path):
    target = tmp_path / "t.csv"
    assert run("copy_sizes", "--format", "csv", "-o", target, file)[:2] == (0, "")
    assert target.read_text() == run("copy_sizes", "--format", "csv", file)[1]
    assert run("--format", "csv", "-o", f"{tmp_path}/all/", file)[0] == 0
    written_ = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert written_ == sorted(f"{name}.csv" for name in made.CUDA_NAMES)
    assert (tmp_path / "all/copy_sizes.csv").read_text() == target.read_text()
    assert run("--format", "json", "-o", f"{tmp_path}/all/", file)[0] == 2


def test_a_recording_without_device_activity_says_so(run, tmp_path):
    path = _save(waits(), tmp_path / "w.gpcf")
    code, out, err = run("cuda_gpu_kern_sum", path)
    assert (code, out) == (3, "")
    assert "cuda_gpu_kern_sum: this recording holds no device activity" in err
    code, out, err = run(path)
    assert code == 0
    assert out.startswith("osrt_sum  ")
    assert err.count("\n") == 1
    assert "this recording holds no device activity: left out cuda_api_sum, " in err
    code, _, err = run(_save(Recording(), tmp_path / "n.gpcf"))
    assert code == 3
    assert "this recording holds no device activity and no OS waits" in err
