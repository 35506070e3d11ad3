# SPDX-License-Identifier: Apache-2.0
"""``report --format perfetto``, ``folded`` and ``speedscope`` from the command line."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys

import pytest

from tests.unit.perfetto_trace import Trace
from tests.unit.test_cli_reports import save
from tests.unit.test_requests import recording

WALL_NS = 41_200_000


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A recording of one request and forty steps."""
    return save(recording(40), tmp_path_factory.mktemp("recording") / "r.gpcf")


def test_a_trace_goes_to_a_file_and_says_how_to_look_at_it(run, file, tmp_path):
    target = tmp_path / "run.pftrace"
    code, out, err = run("report", "--format", "perfetto", "-o", target, file)
    assert (code, out) == (0, "")
    assert "slices and marks of the whole recording" in err
    assert "https://ui.perfetto.dev" in err
    counts = Trace(target.read_bytes()).counts
    assert (counts["request"], counts["step"]) == (1, 40)


def test_a_name_that_ends_in_gz_is_compressed(run, file, tmp_path):
    plain, packed = tmp_path / "a.pftrace", tmp_path / "a.pftrace.gz"
    assert run("report", "--format", "perfetto", "-o", plain, file)[0] == 0
    assert run("report", "--format", "perfetto", "-o", packed, file)[0] == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.stat().st_size < plain.stat().st_size


@pytest.mark.parametrize(
    ("chosen", "steps"),
    [
        (("--request", "x-1"), 40),
        (("--slowest", 1), 40),
        # A step of less than 1 ms, and 1 ms on either side of it.
        (("--step", 20), 3),
        (("--since", "0.0101", "--until", "0.0105"), 1),
    ],
)
def test_a_part_is_the_time_around_what_is_chosen(run, file, tmp_path, chosen, steps):
    target = tmp_path / "part.pftrace"
    code, _, err = run("report", *chosen, "--format", "perfetto", "-o", target, file)
    assert code == 0, err
    trace = Trace(target.read_bytes())
    assert trace.counts["step"] == steps
    assert trace.counts["request"] == 1


def test_a_pipe_gets_the_trace_and_a_terminal_does_not(file, tmp_path):
    code = "import sys; from gpucorrelate.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "report", "--format", "perfetto", str(file)]
    piped = subprocess.run(command, capture_output=True, check=True)
    assert Trace(piped.stdout).counts["request"] == 1
    ours, theirs = pty.openpty()
    try:
        shown = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown.returncode == 2
    assert shown.stderr.decode().splitlines() == [
        "gpucorrelate: a Perfetto trace is binary and standard output is a terminal",
        "  hint: name a file: -o run.pftrace",
    ]


def test_what_is_not_installed_is_one_line(run, file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "perfetto", None)
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    target = tmp_path / "no.pftrace"
    code, out, err = run("report", "--format", "perfetto", "-o", target, file)
    assert (code, out) == (1, "")
    assert "which is not installed\n  hint: pip install 'gpucorrelate[perfetto]'\n" in err
    assert not target.exists()


@pytest.mark.parametrize("form", ["perfetto", "folded", "speedscope"])
def test_all_is_json(run, file, form):
    code, out, err = run("report", "--all", "--format", form, file)
    assert (code, out) == (2, "")
    assert "--all is a JSON document for each request" in err


def test_a_folder_that_is_not_there_is_refused(run, file):
    code, _, err = run("report", "--format", "perfetto", "-o", "/nowhere/x.pftrace", file)
    assert code == 2
    assert "/nowhere: no such folder" in err


@pytest.mark.parametrize("chosen", [(), ("--request", "x-1"), ("--slowest", 1)])
def test_flame_graphs_weigh_what_the_request_took(run, file, tmp_path, chosen):
    code, out, err = run("report", *chosen, "--format", "folded", file)
    assert (code, err) == (0, "")
    assert sum(int(line.rpartition(" ")[2]) for line in out.splitlines()) == WALL_NS
    target = tmp_path / "x.speedscope.json"
    assert run("report", *chosen, "--format", "speedscope", "-o", target, file)[0] == 0
    profiles = json.loads(target.read_text())["profiles"]
    assert len(profiles) == (2 if chosen else 1)
    assert {profile["endValue"] for profile in profiles} == {WALL_NS}


def test_a_flame_graph_of_a_step_weighs_its_wall_time(run, file):
    report = json.loads(run("report", "--step", 3, "--format", "json", file)[1])
    out = run("report", "--step", 3, "--format", "folded", file)[1]
    assert sum(int(line.rpartition(" ")[2]) for line in out.splitlines()) == report["wall_ns"]


def test_nobody_is_not_drawn(run, file):
    code, out, err = run("report", "--request", "nobody", "--format", "folded", file)
    assert (code, out) == (3, "")
    assert "no request 'nobody'" in err
    code, out, _ = run("report", "--since", "1ns", "--format", "folded", file)
    assert (code, out) == (3, "")


def test_redacted_drawings_hold_no_ids(run, file, tmp_path):
    target = tmp_path / "r.pftrace"
    assert run("report", "--redact", "--format", "perfetto", "-o", target, file)[0] == 0
    data = target.read_bytes()
    assert b"x-1" not in data
    assert Trace(data).of("request")[0].name.startswith("id-")
    out = run("report", "--redact", "--slowest", 1, "--format", "speedscope", file)[1]
    assert "x-1" not in out
