# SPDX-License-Identifier: Apache-2.0
"""Profiles from the command line: import, report, steps, tables, compare, and bad input."""

from __future__ import annotations

import gzip
import io
import json
import re
import sqlite3
from pathlib import Path

import pytest

from gpucorrelate.cli.options import Source
from gpucorrelate.cli.source import open_run
from gpucorrelate.correlator.report import device_json
from tests.unit.profile_json import run_document

PID = 4711


def event(cat, name, ts, dur, correlation=0, **args):
    pid, tid = (0, 7) if cat in ("kernel", "gpu_memcpy") else (PID, PID)
    if correlation:
        args["correlation"] = correlation
    if pid == 0:
        args |= {"device": 0, "stream": 7}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def launch(ts, start, dur, correlation, kernel="k"):
    return [
        event("cuda_runtime", "cudaLaunchKernel", ts, 5, correlation),
        event("kernel", kernel, start, dur, correlation),
    ]


def step(number, ts, dur):
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


#: Two steps: in the first the device waits for the host, in the second the host for the device.
EVENTS = [
    step(1, 1000, 200),
    *launch(1050, 1060, 20, 1),
    *launch(1150, 1160, 30, 2, "ampere_sgemm_128x64_tn"),
    step(2, 1200, 300),
    *launch(1210, 1220, 250, 3, "ampere_sgemm_128x64_tn"),
    event("cuda_runtime", "cudaStreamSynchronize", 1220, 260, 4),
]


def write(path, events, **more):
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 10**18, **more}))
    return path


@pytest.fixture
def imported(run, tmp_path):
    """A recording of the two steps."""
    out = tmp_path / "run.gpcf"
    code, shown, err = run("import", write(tmp_path / "t.json", EVENTS), "-o", out)
    assert (code, shown) == (0, "")
    assert err.startswith("gpucorrelate: 3 GPU records of 1 process, 2 steps, ")
    # Of so small a file bytes or thousands of them, no fractions of a million.
    assert re.search(r", [0-9.]+ (bytes|kB) in ", err)
    return out


def test_a_profile_is_reported_as_json(run, imported):
    code, out, err = run("report", "--format", "json", imported)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["wall_ns"], found["gpu_sum_ns"], found["gpu_busy_ns"]) == (
        500_000, 300_000, 300_000,
    )  # fmt: skip
    first, second = found["steps"]
    assert [first["step"], second["step"]] == [1, 2]
    assert first["by_category"] == {"host": 200_000}
    # Launched at 1,215; the device began at 1,220, and was done ten before the call returned.
    assert second["by_category"] == {
        "gpu": 250_000,
        "host": 35_000,
        "sync-return": 10_000,
        "launch-gap": 5_000,
    }
    assert second["syncs"] == [
        {"kind": "stream", "count": 1, "length_ns": 260_000, "busy_ns": 250_000,
         "over_wait_ns": 10_000},
    ]  # fmt: skip
    assert second["parts"] == {
        "own GPU work": 250_000,
        "GPU work of other steps": 0,
        "host before the first launch": 10_000,
        "first launch to first GPU work": 10_000,
        "GPU idle in between": 0,
        "host after the last GPU work": 30_000,
    }
    ledger = found["ledger"]
    assert (ledger["gpu_records"], ledger["assigned"], ledger["unassigned"]) == (3, 3, {})


def test_the_gap_of_a_starved_device_is_the_hosts(run, imported):
    _, out, _ = run("report", "--step", 1, "--format", "json", imported)
    (gap,) = json.loads(out)["gaps"]
    assert gap["length_ns"] == 80_000
    assert (gap["before"], gap["after"]) == ("k", "ampere_sgemm_128x64_tn")
    assert gap["launch"] == "cudaLaunchKernel"
    assert gap["launched_ns"] - gap["start_ns"] == 70_000


@pytest.mark.parametrize("options", [(), ("--step", 2), ("--slowest", 2)])
def test_text_says_busy_sum_and_ledger(run, imported, options):
    code, out, _ = run("report", *options, imported)
    assert code == 0
    for word in ("GPU busy" if options else "busy", "GPU records", "3 in a step", "ledger"):
        assert word in out


def test_steps_are_listed_by_what_was_asked(run, imported):
    _, out, _ = run("steps", "--sort", "gpu-idle", "--format", "json", imported)
    assert [json.loads(line)["step"] for line in out.splitlines()] == [1, 2]
    code, _, err = run("steps", "--sort", "rows", imported)
    assert code == 2
    assert "gpu-busy" in err


def test_what_a_profile_does_not_hold_is_said(run, imported):
    assert run("report", "--request", "x", imported)[0] == 3
    assert run("report", "--step", 9, imported)[0] == 3
    assert run("requests", imported)[0] == 3
    assert run("report", "--all", "-o", f"{imported.parent}/", imported)[0] == 2
    assert run("report", "--process", "rank 0", imported)[0] == 2
    code, _, err = run("report", "--step", 1, "--process", "rank 9", imported)
    assert (code, f"there are: pid {PID}" in err) == (3, True)


def test_a_profile_is_not_written_over_nor_read_twice(run, tmp_path):
    path = write(tmp_path / "t.json", EVENTS)
    before = path.read_bytes()
    link = tmp_path / "link.json"
    link.symlink_to(path)
    for out in (path, link):
        code, _, err = run("import", path, "-o", out, "--force")
        assert (code, "is a profile to be read" in err) == (2, True)
    assert run("import", path, link, "-o", tmp_path / "o.gpcf")[0] == 2
    assert path.read_bytes() == before


def test_a_profile_given_for_a_recording_says_how_to_import_it(run, tmp_path):
    code, _, err = run("report", write(tmp_path / "t.json", EVENTS))
    assert code == 7
    assert "gpucorrelate import" in err


def test_two_profiles_are_compared(run, imported, tmp_path):
    slower = [*EVENTS[:5], step(2, 1200, 400), *launch(1210, 1220, 350, 3)]
    out = tmp_path / "slower.gpcf"
    assert run("import", write(tmp_path / "s.json", slower), "-o", out)[0] == 0
    code, text, _ = run("compare", imported, out, "--format", "json")
    assert code == 0
    found = json.loads(text)
    wall = found["groups"][0]["changes"][0]
    assert (wall["name"], wall["before"], wall["after"], wall["delta"]) == (
        "wall", 250_000, 300_000, 50_000,
    )  # fmt: skip
    assert found["verdict"].startswith("a step takes 50.0 us (20.0%) longer on average")
    assert run("compare", imported, out)[0] == 0


def test_ranks_with_the_same_ids_are_kept_apart(run, tmp_path):
    ranks = [
        write(tmp_path / f"{rank}.json", EVENTS, distributedInfo={"rank": rank})
        for rank in range(2)
    ]
    out = tmp_path / "ranks.gpcf"
    assert run("import", *ranks, "-o", out)[0] == 0
    found = json.loads(run("report", "--format", "json", out)[1])
    assert [one["process"] for one in found["steps"]] == [
        "rank 0", "rank 0", "rank 1", "rank 1",
    ]  # fmt: skip
    assert [one["gpu_records"] for one in found["steps"]] == [2, 1, 2, 1]
    code, _, err = run("report", "--step", 1, out)
    assert (code, "rank 0, rank 1" in err) == (2, True)
    assert run("report", "--step", 1, "--process", "rank 1", out)[0] == 0


def test_without_steps_the_whole_trace_is_one(run, tmp_path):
    out = tmp_path / "run.gpcf"
    events = [one for one in EVENTS if one["cat"] != "user_annotation"]
    assert run("import", write(tmp_path / "t.json", events), "-o", out)[0] == 0
    (only,) = json.loads(run("report", "--format", "json", out)[1])["steps"]
    assert (only["implied"], only["gpu_records"], only["wall_ns"]) == (True, 3, 430_000)


def test_steps_may_be_named(run, tmp_path):
    events = [*EVENTS, event("user_annotation", "forward 7", 1000, 100)]
    out = tmp_path / "run.gpcf"
    args = ("--step-regex", "^forward", "-o", out)
    assert run("import", write(tmp_path / "t.json", events), *args)[0] == 0
    found = json.loads(run("report", "--format", "json", out)[1])
    assert [one["name"] for one in found["steps"]] == ["forward 7"]
    assert found["ledger"]["unassigned"] == {"launched outside every step": 2}


def _empty_database(path):
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda p: p.write_text("not a trace"), 7, "neither a Kineto trace"),
        (lambda p: p.write_bytes(b""), 7, "neither a Kineto trace"),
        (_empty_database, 7, "has none of the tables of CUDA activity"),
        (lambda p: write(p, []), 3, "this trace holds no device activity"),
        (lambda p: write(p, EVENTS[:2]), 3, "this trace holds no device activity"),
        (lambda p: p.mkdir(), 2, "is no file"),
        (lambda p: None, 3, "no such file"),
    ],
    ids=["text", "empty", "no tables", "no events", "no device", "folder", "missing"],
)
def test_bad_input_is_one_line_and_leaves_no_file(run, tmp_path, make, code, said):
    path, out = tmp_path / "trace", tmp_path / "run.gpcf"
    make(path)
    got, shown, err = run("import", path, "-o", out)
    assert (got, shown) == (code, "")
    assert said in err
    assert "Traceback" not in err
    assert not out.exists()
    assert [one.name for one in tmp_path.iterdir() if one != path] == []


def test_one_bad_file_of_several_costs_only_itself(run, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("[nonsense")
    out = tmp_path / "run.gpcf"
    code, _, err = run("import", bad, write(tmp_path / "good.json", EVENTS), "-o", out)
    assert code in (0, 7)
    assert "bad.json" in err
    assert json.loads(run("report", "--format", "json", out)[1])["ledger"]["gpu_records"] == 3


def test_a_cut_off_archive_keeps_what_was_read(run, tmp_path):
    whole = gzip.compress(json.dumps({"traceEvents": EVENTS * 200}).encode())
    path, out = tmp_path / "t.json.gz", tmp_path / "run.gpcf"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    code, _, err = run("import", path, "-o", out)
    assert code in (0, 7)
    assert "warning" in err or "t.json.gz" in err
    if code == 0:
        assert run("report", "--strict", out)[0] == 8


def test_an_existing_recording_is_not_written_over(run, imported, tmp_path):
    args = ("import", tmp_path / "t.json", "-o", imported)
    before = imported.read_bytes()
    code, _, err = run(*args)
    assert (code, "exists" in err) == (2, True)
    assert imported.read_bytes() == before
    assert run(*args, "--force")[0] == 0


@pytest.mark.parametrize("pattern", ["(", "*", "a" * 2000])
def test_a_pattern_that_is_none_is_refused(run, tmp_path, pattern):
    args = ("--step-regex", pattern, "-o", tmp_path / "o.gpcf")
    assert run("import", write(tmp_path / "t.json", EVENTS), *args)[0] == 2


def test_invalid_times_and_repeated_ids_are_counted(run, tmp_path):
    events = [
        *EVENTS,
        event("kernel", "no start", 0, 5, 9),
        event("cuda_runtime", "cudaLaunchKernel", 1300, 5, 3),
        event("kernel", "early", 1299, 3, 12),
        event("cuda_runtime", "cudaLaunchKernel", 1300, 5, 12),
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    out = tmp_path / "run.gpcf"
    assert run("import", path, "-o", out)[0] == 0
    ledger = json.loads(run("report", "--format", "json", out)[1])["ledger"]
    assert (ledger["gpu_records"], ledger["invalid"]) == (5, 1)
    assert (ledger["clamped"], ledger["repeated_ids"]) == (1, 1)
    assert ledger["assigned"] + sum(ledger["unassigned"].values()) + ledger["invalid"] == 5


def _rank(rank):
    """Two steps of a rank: a copy that is waited for, and a collective to which rank 1 is late."""
    late = 40 * rank
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    events = [
        step(1, 1000, 200),
        event("cuda_runtime", "cudaMemcpyAsync", 1010, 5, 1),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1020, 10, 1, bytes=64),
        event("cuda_runtime", "cudaStreamSynchronize", 1016, 16, 2),
        *launch(1060 + late, 1070 + late, 90 - late, 3, nccl),
        *launch(1110, 1170, 10, 4),
        step(2, 1200, 100),
        *launch(1210, 1220, 50, 5),
    ]
    return {"events": events, "distributedInfo": {"rank": rank}}


@pytest.fixture
def two_ranks(run, tmp_path):
    """A recording of two ranks."""
    out = tmp_path / "ranks.gpcf"
    files = [write(tmp_path / f"rank{rank}.json", **_rank(rank)) for rank in range(2)]
    assert run("import", *files, "-o", out)[0] == 0
    return out


def test_a_profile_is_written_as_it_is_made(two_ranks):
    devices = open_run(Source(two_ranks, "", None)).devices
    out = io.StringIO()

    def parts():
        for i in range(len(devices.steps)):
            assert out.getvalue().count('"segments"') == i
            report, segments = devices.parts(i)
            assert report.segments == ()
            yield report, watched(segments)

    def watched(segments):
        before = out.getvalue().count('"slack_ns"')
        for k, one in enumerate(segments):
            assert out.getvalue().count('"slack_ns"') == before + k
            yield one

    device_json.write_run(devices.whole(), parts(), out)
    found = json.loads(out.getvalue())
    assert found == run_document(devices.whole(), devices.reports())
    assert [len(one["segments"]) > 0 for one in found["steps"]] == [True] * 4
    lines = [line for line in out.getvalue().splitlines() if '"segments"' in line]
    assert [json.loads(line.rstrip(","))["step"] for line in lines] == [1, 2, 1, 2]


def test_who_came_late_is_in_text_and_json(run, two_ranks):
    found = json.loads(run("report", "--format", "json", two_ranks)[1])
    assert found["skew"]["ranks"] == [
        {"process": "rank 1", "length_ns": 50_000, "waited_ns": 0, "last": 1,
         "held_up_ns": 40_000},
        {"process": "rank 0", "length_ns": 90_000, "waited_ns": 40_000, "last": 0,
         "held_up_ns": 0},
    ]  # fmt: skip
    assert "rank 1 began 1 last and held up the others for 40.0 us" in " ".join(
        run("report", two_ranks)[1].split()
    )


#: What is below these is described in another page.
_ELSEWHERE = {"segments", "actors", "lines"}
#: What is below these are words and not keys.
_WORDS = {"parts", "by_category", "unassigned", "left_out", "doing", "calls"}


def _keys(value):
    """Every key of a document, but for words."""
    for one in value if isinstance(value, list) else ():
        yield from _keys(one)
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key
        if key not in _ELSEWHERE and key not in _WORDS:
            yield from _keys(inner)


@pytest.mark.parametrize(
    "args",
    [
        ("report",),
        ("report", "--step", 1, "--process", "rank 0"),
        ("steps", "--limit", 1),
        ("compare", None),
        ("tables",),
    ],
    ids=lambda args: args[0],
)
def test_every_key_of_a_profile_is_documented(run, two_ranks, args):
    args = [two_ranks if one is None else one for one in args]
    code, out, _ = run(*args, "--format", "json", two_ranks)
    assert code == 0
    found = json.loads(out)
    page = (Path(__file__).parents[2] / "docs/import.md").read_text(encoding="utf-8")
    keys = set(_keys(found)) - {"schema"}
    assert [key for key in sorted(keys) if not re.search(rf"`{key}(\[\])?`", page)] == []
    assert f"`{found['schema']}`" in page
    if args[0] == "report":
        assert {"copies", "communication", "completion", "size_bytes", "waited_ns"} <= keys


def test_of_many_processes_with_a_step_some_are_named_and_the_rest_counted(run, tmp_path):
    out = tmp_path / "ranks.gpcf"
    files = [write(tmp_path / f"rank{rank}.json", **_rank(rank)) for rank in range(8)]
    assert run("import", *files, "-o", out)[0] == 0
    code, _, err = run("report", "--step", 1, out)
    assert code == 2
    four = ", ".join(f"rank {n}" for n in range(4))
    assert f"8 processes have a step 1: {four} and 4 more" in err
