# SPDX-License-Identifier: Apache-2.0
"""The report commands on a small recording in a file."""

from __future__ import annotations

import json

import pytest

from gpucorrelate.cli.select import REQUEST_KEYS, STEP_KEYS
from tests.unit.synth import CORE, MS, Recording
from tests.unit.test_requests import recording


def save(made: Recording, path, end_ns=60_000_000):
    made.capture(end_ns)
    path.write_bytes(b"".join(made.frames))
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A recording of one request and forty steps."""
    return save(recording(40), tmp_path_factory.mktemp("recording") / "r.gpcf")


def test_a_summary_comes_without_being_asked_for(run, file):
    code, out, err = run("report", file)
    assert (code, err) == (0, "")
    assert out.startswith("recording of 60.0 ms: 1 request, 40 steps, 40 tokens out")


@pytest.mark.parametrize("wanted", ["x-1-0", "x-1", "x-*", "x…0", "?-1-0", "x-1-0-ab"])
def test_a_request_is_found_by_its_id_or_part_of_it(run, file, wanted):
    code, out, _ = run("report", "--request", wanted, file)
    assert code == 0
    assert out.startswith("request x-1-0  finished: length")


@pytest.mark.parametrize("wanted", ["y", "*y*", "y…", ""])
def test_a_request_that_is_not_there_is_not_found(run, file, wanted):
    code, out, err = run("report", "--request", wanted or "nobody", file)
    assert (code, out) == (3, "")
    assert err.startswith("gpucorrelate: no request ")
    assert "  hint: list them: gpucorrelate requests" in err


@pytest.mark.parametrize("wanted", ["x-1-0", "x-1", "1", "x-*", "x…0", "x-1-0-ab"])
def test_a_list_finds_by_the_same_ids_as_a_report(run, file, wanted):
    code, out, _ = run("requests", "--id", wanted, "--format", "json", file)
    assert code == 0
    row = json.loads(out)
    assert (row["request_id"], row["internal_id"]) == ("x-1-0", "x-1-0-ab")
    assert row["aliases"] == ["x-1"]


def test_json_of_a_request_sums_exactly(run, file):
    code, out, _ = run("report", "--request", "x-1", "--format", "json", file)
    document = json.loads(out)
    assert code == 0
    lengths = [one["end_ns"] - one["start_ns"] for one in document["segments"]]
    assert sum(lengths) == document["wall_ns"] == 41_200_000


def test_a_step_is_found_by_its_number(run, file):
    assert run("report", "--step", 3, file)[1].startswith("step 3  decode  ok")
    document = json.loads(run("report", "--step", 3, "--format", "json", file)[1])
    assert document["step"] == 3
    code, _, err = run("report", "--step", 999, file)
    assert code == 3
    assert "step 999 was not recorded (recorded: 1 to 40)" in err


def test_the_slowest_come_as_reports(run, file):
    assert "request x-1-0" in run("report", "--slowest", 5, file)[1]
    lines = run("report", "--slowest", 5, "--format", "json", file)[1].splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["x-1-0"]


def test_all_requests_go_to_a_folder_a_file_or_standard_output(run, file, tmp_path):
    code, out, err = run("report", "--all", "-o", f"{tmp_path}/new/", file)
    assert (code, out) == (0, "")
    assert "1 request in" in err
    one = json.loads((tmp_path / "new/requests/x-1-0.json").read_text())
    assert json.loads((tmp_path / "new/summary.json").read_text())["requests"] == 1
    assert run("report", "--all", "-o", tmp_path / "all.jsonl", file)[0] == 0
    (line,) = (tmp_path / "all.jsonl").read_text().splitlines()
    assert json.loads(line) == one
    assert json.loads(run("report", "--all", file)[1]) == one
    assert json.loads(run("report", "--all", "-o", "-", file)[1]) == one


def test_text_goes_to_a_file_without_color(run, file, tmp_path):
    target = tmp_path / "report.txt"
    code, out, _ = run("report", "--slowest", 1, "-o", target, file)
    assert (code, out) == (0, "")
    assert target.read_text().startswith("request x-1-0")


@pytest.mark.parametrize("key", REQUEST_KEYS)
def test_requests_sort_by_every_key(run, file, key):
    code, out, _ = run("requests", "--sort", key, file)
    assert code == 0
    assert "x-1-0" in out
    assert key in out or key in ("arrival", "id", "wall", "ttft", "tokens-in", "tokens-out")


@pytest.mark.parametrize("key", STEP_KEYS)
def test_steps_sort_by_every_key(run, file, key):
    code, out, _ = run("steps", "--sort", key, "--limit", 2, "--format", "json", file)
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, len(rows)) == (0, 2)
    if key != "step":
        column = {"wall": "wall_ns", "worker": "worker_ns", "prefill": "prefill_tokens"}.get(
            key, key
        )
        assert rows[0][column] >= rows[1][column]


def test_lists_filter_by_time_id_and_kind(run, file):
    assert run("requests", "--since", "20ms", file)[0] == 0
    assert run("requests", "--until", "0.000500", file)[0] == 3
    assert run("requests", "--id", "x*", file)[0] == 0
    code, _, err = run("requests", "--id", "y*", file)
    assert code == 3
    assert "no request fits; the recording has 1" in err
    kinds = run("steps", "--kind", "prefill", "--format", "json", file)[1].splitlines()
    assert [json.loads(line)["step"] for line in kinds] == [1]
    late = run("steps", "--since", "30ms", "--format", "json", "--limit", 0, file)[1].splitlines()
    assert 0 < len(late) < 40


def test_a_limit_says_that_there_is_more(run, file):
    assert "2 of 40 steps; --limit shows more" in run("steps", "--limit", 2, file)[1]
    assert "shows more" not in run("steps", "--limit", 0, file)[1]


def test_a_damaged_recording_is_read_as_far_as_it_goes(run, file, tmp_path):
    whole = file.read_bytes()
    cut = tmp_path / "cut.gpcf"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    code, out, _ = run("report", cut)
    assert code == 0
    assert "LOST/WRONG" in out
    assert run("report", "--strict", cut)[0] == 8
    assert run("requests", "--strict", file)[0] == 0
    code, out, err = run("report", "--format", "json", cut)
    assert json.loads(out)["ledger"]["clean"] is False
    assert err.startswith("gpucorrelate: warning: ")


def test_a_recording_without_requests_says_so(run, tmp_path):
    made = Recording().process(3, 100, "api")
    empty = save(made, tmp_path / "empty.gpcf")
    code, out, err = run("report", empty)
    assert code == 3
    assert "no request was seen" in out
    assert "the recording holds no request" in err
    for args in (("requests",), ("steps",), ("report", "--slowest", 1), ("report", "--all")):
        assert run(*args, empty)[0] == 3


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("missing", 3, "no such file"),
        ("", 7, "no recording in this directory"),
        ("text", 7, "not a gpucorrelate recording"),
        ("nothing", 7, "the recording is empty"),
    ],
)
@pytest.mark.parametrize("command", ["report", "requests", "steps"])
def test_what_is_no_recording_is_one_line(run, tmp_path, command, name, code, says):
    (tmp_path / "text").write_text("# not a recording\n" * 1000)
    (tmp_path / "nothing").touch()
    got, out, err = run(command, tmp_path / name)
    assert (got, out) == (code, "")
    assert says in err.splitlines()[0]
    assert all(line.startswith(("gpucorrelate: ", "  hint: ")) for line in err.splitlines())


@pytest.mark.parametrize(
    "args",
    [
        ("report", "--step", "1", "--all"),
        ("report", "--since", "5m"),
        ("report", "--step", "-1"),
        ("report", "a", "b"),
        ("report", "--session", "s", "FILE"),
        ("requests", "--sort", "beauty"),
        ("requests", "--since", "1s", "--until", "2s"),
        ("requests", "--since", "yesterday"),
        ("steps", "--limit", "-1"),
        ("attach",),
        ("attach", "--pid", "0"),
        ("attach", "--pid", "x"),
        ("attach", "--pid", "1", "--detach", "--duration", "5s"),
        ("attach", "--pid", "1", "--duration", "never"),
        ("detach",),
        ("detach", "--pid", "1", "--all"),
        ("record", "--pid", "1"),
        ("record", "-o", "x"),
        ("record", "-o", "x", "--pid", "1", "--session", "s"),
        ("daemon", "--session-max-mib", "100", "--total-max-mib", "10"),
        ("nonsense",),
        ("--nonsense",),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_a_line_and_exit_code_2(run, file, args):
    code, out, err = run(*(file if one == "FILE" else one for one in args))
    if args[0] in ("requests",) and args[1] == "--since":
        code, out, err = run(*args, file)
    assert (code, out) == (2, "")
    assert err.startswith("gpucorrelate: ")
    assert len(err.splitlines()) <= 2


def test_output_that_cannot_be_written_is_named(run, file, tmp_path):
    missing = tmp_path / "no/such/folder.json"
    for place, says, expected in (
        (tmp_path, tmp_path, 2),
        (missing, missing.parent, 2),
        ("/proc/gpucorrelate-none", "/proc/gpucorrelate-none", 1),
    ):
        code, _, err = run("report", "-o", place, file)
        assert code == expected
        assert err.startswith(f"gpucorrelate: {says}: ")


def test_a_folder_without_reports_is_not_made(run, file, tmp_path):
    target = tmp_path / "reports"
    assert run("report", "--all", "--until", "0.000001", "-o", f"{target}/", file)[0] == 3
    assert not target.exists()


LONG, MANY = "a" * 70_000, "9" * 5_000


@pytest.mark.parametrize(
    "args",
    [
        ("attach", "--pid", "99999999999999999999"),
        ("attach", "--pid", MANY),
        ("detach", "--pid", "99999999999999999999"),
        ("record", "-o", "x", "--pid", "99999999999999999999"),
        ("attach", "--pid", "1", "--duration", "999999999999h"),
        ("attach", "--pid", "1", "--duration", MANY),
        ("report", "--slowest", "9999999999999999999999"),
        ("report", "--step", "99999999999999999999"),
        ("requests", "--limit", "99999999999999999999"),
        ("steps", "--limit", MANY),
        ("requests", "--since", MANY, "FILE"),
        ("daemon", "--ring-kib", "99999999999999999999"),
        ("daemon", "--session-max-mib", "99999999999999999999"),
        ("requests", "--session", LONG),
        ("detach", "--session", LONG),
        ("record", "-o", "x", "--session", LONG),
        ("report", "--request", LONG, "FILE"),
        ("requests", "--id", LONG, "FILE"),
        ("requests", LONG),
        ("report", "-o", LONG, "FILE"),
        ("record", "-o", LONG, "--pid", "1"),
        ("status", "--control", LONG),
        ("requests", "--sort", LONG),
        (LONG,),
    ],
    ids=lambda args: " ".join(args)[:40],
)
def test_what_is_too_large_or_too_long_is_a_short_line_and_exit_code_2(run, file, args):
    code, out, err = run(*(file if one == "FILE" else one for one in args))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) <= 2
    assert max(map(len, err.splitlines())) < 700


@pytest.mark.parametrize(
    "args",
    [
        ("report", "--slowest", str((1 << 63) - 1)),
        ("requests", "--limit", str((1 << 63) - 1)),
        ("steps", "--since", "999999999999999999h"),
        ("steps", "--until", "9999999999999999999"),
    ],
    ids=" ".join,
)
def test_the_largest_numbers_do_what_they_say(run, file, args):
    assert run(*args, file)[0] == 0


@pytest.mark.parametrize(
    "command",
    ["check", "daemon", "attach", "detach", "status", "requests", "steps", "report", "record"],
)
def test_help_teaches_with_an_example(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Examples:\n  " in out
    assert f"gpucorrelate {command}" in out.split("Examples:")[1]
    listed = run("--help")[1]
    assert f"\n  {command} " in listed


@pytest.fixture(scope="module")
def two_cores(tmp_path_factory):
    """Two engine cores whose steps have the same numbers."""
    made = Recording()
    for stream, pid in ((4, CORE), (5, CORE + 1)):
        made.process(stream, pid, "core")
        made.wait(pid, 1, 2)
        for number in (1, 2):
            at = number * 10 * MS + pid
            made.add("step_begin", stream, step=number, tid=pid, sched_start_ns=at,
                     sched_end_ns=at + 1, start_ns=at + 1)  # fmt: skip
            made.add("step_update", stream, step=number, tid=pid, start_ns=at + MS,
                     end_ns=at + MS + 1)  # fmt: skip
    return save(made, tmp_path_factory.mktemp("cores") / "r.gpcf")


def test_a_step_of_several_engine_cores_is_asked_for_by_process(run, two_cores):
    code, _, err = run("report", "--step", 1, two_cores)
    assert code == 2
    both = f"EngineCore/{CORE}, EngineCore/{CORE + 1}"
    assert f"2 engine cores have a step 1: {both}" in err
    assert "--process NAME" in err
    for name in (f"EngineCore/{CORE + 1}", CORE + 1):
        code, out, _ = run("report", "--step", 1, "--process", name, two_cores)
        assert (code, out.splitlines()[0].split()[:2]) == (0, ["step", "1"])
        assert f"EngineCore/{CORE + 1} " in out
        assert f"EngineCore/{CORE} " not in out


def test_a_process_that_did_no_step_is_not_found(run, two_cores, file):
    code, _, err = run("report", "--step", 1, "--process", "nobody", two_cores)
    assert code == 3
    assert f"no process 'nobody' has steps (there are: EngineCore/{CORE}, " in err
    code, out, _ = run("report", "--step", 3, "--process", "EngineCore", file)
    assert (code, out[:6]) == (0, "step 3")


def test_a_step_shows_the_ids_that_other_reports_show(run, file):
    out = run("report", "--step", 3, file)[1]
    (line,) = (line for line in out.splitlines() if line.startswith("requests"))
    assert line.split() == ["requests", "x-1-0"]
    document = json.loads(run("report", "--step", 3, "--format", "json", file)[1])
    assert document["request_ids"] == ["x-1-0-ab"]
    assert document["requests"] == [{"request_id": "x-1-0", "internal_id": "x-1-0-ab"}]


@pytest.mark.parametrize(
    ("command", "acts"),
    [("report", True), ("compare", True), ("attach", True), ("check", False), ("tables", False),
     ("steps", False), ("requests", False), ("status", False)],
)  # fmt: skip
def test_commands_take_top_where_it_acts(run, command, acts):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert ("--top" in out) == acts


def test_a_profile_is_read_without_root_too(run):
    assert "Nor does a GPU profile by PyTorch" in run("--help")[1]
