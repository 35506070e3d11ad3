# SPDX-License-Identifier: Apache-2.0
"""A run as typed values and as tables: the report's numbers, the same again from Parquet."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpucorrelate
from gpucorrelate.api import SCHEMA_VERSION, TABLES, Run, Segment, StepSegment, Wait
from gpucorrelate.api.schema import page
from gpucorrelate.cli import main
from gpucorrelate.correlator.report import json as report_json
from gpucorrelate.probes.wire.errors import NotFoundError, RecordingError, UsageError
from gpucorrelate.probes.wire.schema import Anchor
from scripts.schema_page import PAGE
from tests.truth.synthetic.check import simulate
from tests.truth.synthetic.options import DeviceOptions
from tests.unit.synth import API, CORE, MS, Recording
from tests.unit.test_cli_profiles import EVENTS, write
from tests.unit.test_cli_reports import save
from tests.unit.test_perfetto import OPTIONS, OTHERS
from tests.unit.test_requests import anchor
from tests.unit.test_requests import recording as one_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

PHASES = [name for name in TABLES["requests"].names if name.startswith("phase_")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with kernels, steps that overlap, disturbances of every kind."""
    path = tmp_path_factory.mktemp("recording") / "run.gpcf"
    path.write_bytes(simulate(replace(OPTIONS, device=DeviceOptions(graph=12, kernels=3)))[1])
    return path


@pytest.fixture(scope="module")
def run(place: Path) -> Iterator[Run]:
    with gpucorrelate.open(place) as opened:
        yield opened


@pytest.fixture(name="run_command")
def _run_command(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def go(*words: object) -> tuple[int, str, str]:
        code = main.run([str(word) for word in words])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return go


@pytest.fixture(scope="module")
def results(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run.results"
    run.save(folder)
    return folder


# --- sums and reports -------------------------------------------------------------------------


def test_the_segments_of_a_request_tile_it(run: Run) -> None:
    found: dict[int, list[Segment]] = defaultdict(list)
    for one in run.segments:
        found[one.request_key].append(one)
    assert len(found) == len(run.requests) == OPTIONS.requests
    for request in run.requests:
        mine = found[request.request_key]
        assert (mine[0].start_ns, mine[-1].end_ns) == (request.arrival_ns, request.end_ns)
        assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(mine))
        assert sum(one.length_ns for one in mine) == request.wall_ns
        assert sum(getattr(request, name) for name in PHASES) == request.wall_ns
        by_phase: Counter[str] = Counter()
        for one in mine:
            by_phase[one.phase] += one.length_ns
        phases = {name: getattr(request, name) for name in PHASES if getattr(request, name)}
        assert {f"phase_{name}_ns": ns for name, ns in by_phase.items()} == phases


def test_the_segments_of_a_step_tile_it(run: Run) -> None:
    sums: Counter[int] = Counter()
    for one in run.table("step_segments"):
        sums[one.step_key] += one.length_ns
    walls = {step.step_key: step.wall_ns for step in run.steps if step.wall_ns is not None}
    assert sums == walls
    assert len(walls) > 5


def test_causes_say_how_much_of_all_paths_they_explain(run: Run) -> None:
    sums: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for one in run.segments:
        sums[one.cause_key] += one.length_ns
        counts[one.cause_key] += 1
    causes = {cause.cause_key: cause for cause in run.table("causes")}
    assert len(causes) == len(run.table("causes"))
    assert {key: causes[key].request_ns for key in sums} == sums
    assert {key: causes[key].request_segments for key in counts} == counts
    for one in run.segments:
        cause = causes[one.cause_key]
        assert (one.category, one.actor, one.tid, one.span, one.cause) == (
            cause.category, cause.actor, cause.tid, cause.span, cause.cause,
        )  # fmt: skip


def test_rows_are_those_of_the_json_report(run: Run) -> None:
    for row in run.requests:
        one = run.request(row.internal_id or "")
        document = report_json.request_to_dict(one.report())
        same = ("wall_ns", "ttft_ns", "tokens_in", "tokens_out", "status", "request_id")
        assert {name: document[name] for name in same} == {
            name: getattr(row, name) for name in same
        }
        told = [
            (d["start_ns"], d["end_ns"], d["category"], d["phase"], d["actor"],
             d["tid"] or None, d["span"], None if d["phase"] in OTHERS else d["step"])
            for d in document["segments"]
        ]  # fmt: skip
        mine = list(one.segments())
        # The table has an edge more where two phases of one name meet.
        assert joined(
            (s.start_ns, s.end_ns, s.category, s.phase, s.actor, s.tid, s.span,
             None if s.phase in OTHERS else s.step)
            for s in mine
        ) == joined(told)  # fmt: skip
        slack = {(d["start_ns"], d["end_ns"]): d["slack_ns"] for d in document["segments"]}
        same_place = [s for s in mine if (s.start_ns, s.end_ns) in slack]
        assert len(same_place) > len(mine) * 9 // 10
        assert all(s.slack_ns == slack[s.start_ns, s.end_ns] for s in same_place)


def joined(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Stretches (start, end, what...) with neighbours of which the same is said as one."""
    found: list[tuple[Any, ...]] = []
    for start, end, *what in rows:
        if found and found[-1][1] == start and found[-1][2:] == tuple(what):
            start = found.pop()[0]
        found.append((start, end, *what))
    return found


def test_waits_are_those_that_reports_tell(run: Run) -> None:
    of: dict[int, list[Wait]] = defaultdict(list)
    for row in run.waits:
        of[row.tid].append(row)
        assert row.length_ns == row.end_ns - row.start_ns > 0
        if row.run_queue_ns is not None:
            assert row.woken_ns is not None
            assert row.start_ns <= row.woken_ns
            assert row.woken_ns + row.run_queue_ns == row.end_ns
    for mine in of.values():
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(mine))
    kinds, compared = Counter(row.kind for row in run.waits), 0
    assert {"futex", "epoll", "interpreter lock", "preempted"} <= set(kinds)
    for request in run.requests:
        for told in run.request(request).report().waits:
            if told.kind not in ("futex", "epoll") or told.cause.actor is None:
                continue
            around = [
                row
                for row in of[told.waiter.tid]
                if row.start_ns <= told.start_ns and told.end_ns <= row.end_ns
            ]
            assert [row.by_tid for row in around] == [told.cause.actor.tid]
            assert [row.by_actor for row in around] == [told.cause.actor.label]
            compared += 1
    assert compared > 0


def test_the_segments_of_one_step_are_those_of_the_table(run: Run, results: Path) -> None:
    every: dict[int, list[StepSegment]] = defaultdict(list)
    for one in run.table("step_segments"):
        every[one.step_key].append(one)
    with gpucorrelate.open(results) as again:
        for step in run.steps:
            assert list(run.step(step).segments()) == every[step.step_key]
            assert list(again.step(step).segments()) == every[step.step_key]


def test_the_ledger_is_the_reports(run: Run) -> None:
    told = {line.name: line.count for line in run.summary().ledger.lines}
    assert {row.name: row.count for row in run.table("ledger") if row.kind != "missing"} == told


def test_a_step_has_its_requests_and_its_report(run: Run) -> None:
    step = next(one for one in run.steps if one.rows and one.wall_ns is not None)
    members = [one for one in run.table("step_requests") if one.step_key == step.step_key]
    assert len(members) == step.rows
    assert run.step(step.step, step.process).report().wall_ns == step.wall_ns


def test_a_profile_has_steps_and_what_the_device_did(
    run_command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    profile = write(tmp_path / "trace.json", EVENTS)
    recording = tmp_path / "run.gpcf"
    assert run_command("import", profile, "-o", recording)[0] == 0
    with gpucorrelate.open(recording) as run:
        assert len(run.requests) == len(run.segments) == 0
        reports = json.loads(run_command("report", "--step", 1, "--format", "json", recording)[1])
        steps = list(run.steps)
        assert [step.step for step in steps] == [1, 2]
        assert steps[0].wall_ns == reports["wall_ns"]
        for step in steps:
            assert sum(one.length_ns for one in run.step(step).segments()) == step.wall_ns
            assert (step.rows, step.tokens, step.kind) == (None, None, None)
        ops = list(run.table("gpu_ops"))
        assert [(one.kind, one.length_ns, one.step) for one in ops] == [
            ("kernel", 20_000, 1), ("kernel", 30_000, 1), ("kernel", 250_000, 2),
        ]  # fmt: skip
        run.save(tmp_path / "results")
        with gpucorrelate.open(tmp_path / "results") as again:
            assert list(again.table("gpu_ops")) == ops
            assert list(again.steps) == steps


# --- unknown ------------------------------------------------------------------------------------


def test_unknown_is_null_and_never_zero(tmp_path: Path) -> None:
    made = Recording().process(3, API, "api").process(4, CORE, "core")
    anchor(made, Anchor.RECEIVED, 1 * MS, http=1, detail="/v1/completions x-1")
    anchor(made, Anchor.TOKENISE_START, 2 * MS, request="x-1-0-ab")
    anchor(made, Anchor.LINKED, 3 * MS, request="x-1-0-ab", http=1, detail="x-1-0")
    file = save(made, tmp_path / "r.gpcf")
    with gpucorrelate.open(file) as run:
        (row,) = run.requests
        assert not row.complete
        assert (row.ttft_ns, row.first_token_ns, row.tokens_in, row.http_status) == (None,) * 4
        table = run.requests.to_arrow()
        assert table["ttft_ns"].null_count == table["tokens_in"].null_count == 1
        assert run.sql("SELECT ttft_ns FROM requests").to_pylist() == [{"ttft_ns": None}]
        frame = run.requests.to_pandas()
        assert frame["ttft_ns"].isna().all()
        assert str(frame["wall_ns"].dtype) == "Int64"


def test_columns_that_are_never_unknown_have_no_null(run: Run) -> None:
    for name, schema in TABLES.items():
        table = run.table(name).to_arrow()
        for column in schema.columns:
            if not column.nullable:
                assert table[column.name].null_count == 0, (name, column.name)


# --- round trip ---------------------------------------------------------------------------------


def test_what_was_saved_is_what_was_there(run: Run, results: Path) -> None:
    with gpucorrelate.open(results) as again:
        for name, schema in TABLES.items():
            mine, saved = run.table(name).to_arrow(), again.table(name).to_arrow()
            assert saved.to_pylist() == mine.to_pylist(), name
            assert list(again.table(name)) == list(run.table(name)), name
            assert saved.schema.names == list(schema.names)
        for row in run.requests:
            mine_segments = list(run.request(row.internal_id or "").segments())
            assert list(again.request(row.internal_id or "").segments()) == mine_segments
        with pytest.raises(UsageError, match="no evidence"):
            again.request(row.request_id).report()


def test_the_same_recording_gives_the_same_bytes(
    place: Path, results: Path, tmp_path: Path
) -> None:
    with gpucorrelate.open(place) as other:
        list(other.table("causes"))  # what was asked before makes no difference
        other.save(tmp_path / "again")
    digests = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        for folder in (results, tmp_path / "again")
    ]
    assert digests[0] == digests[1]
    assert set(digests[0]) == {f"{name}.parquet" for name in TABLES}


def test_files_say_what_their_columns_mean(results: Path) -> None:
    for name, schema in TABLES.items():
        found = pq.read_schema(results / f"{name}.parquet")
        assert found.metadata[b"gpucorrelate.schema"] == str(SCHEMA_VERSION).encode()
        assert found.metadata[b"gpucorrelate.table"] == name.encode()
        for column in schema.columns:
            field = found.field(column.name)
            assert field.metadata[b"description"].decode() == column.meaning


def test_the_page_of_the_schema_is_what_the_code_says() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m scripts.schema_page"
    for schema in TABLES.values():
        assert list(get_type_hints(schema.row)) == list(schema.names)


def test_results_are_replaced_as_a_whole_and_nothing_else_is(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run.save(folder)
    (folder / "requests.parquet").write_bytes(b"")
    run.save(folder)
    assert pq.read_table(folder / "requests.parquet").num_rows == OPTIONS.requests
    (folder / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match=r"mine\.txt"):
        run.save(folder)
    assert (folder / "mine.txt").read_text() == "x"
    with pytest.raises(UsageError, match="no such folder"):
        run.save(tmp_path / "not" / "there")


@pytest.mark.parametrize("what", ["missing", "cut", "other", "newer", "column"])
def test_results_that_are_not_whole_are_refused(
    run: Run, tmp_path: Path, results: Path, what: str
) -> None:
    folder = tmp_path / "r"
    run.save(folder)
    path = folder / "steps.parquet"
    if what == "missing":
        path.unlink()
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif what == "other":
        path.write_bytes((results / "tokens.parquet").read_bytes())
    else:
        table = pq.read_table(path)
        metadata = dict(table.schema.metadata)
        if what == "newer":
            metadata[b"gpucorrelate.schema"] = str(SCHEMA_VERSION + 1).encode()
        else:
            table = table.drop_columns(["wall_ns"])
        pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(RecordingError) as raised:
        gpucorrelate.open(folder)
    assert "steps" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_columns_of_later_versions_are_no_harm(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "r")
    path = tmp_path / "r" / "steps.parquet"
    table = pq.read_table(path)
    more = table.append_column("more", pa.array([1] * len(table))).replace_schema_metadata(
        table.schema.metadata
    )
    pq.write_table(more, path)
    with gpucorrelate.open(tmp_path / "r") as again:
        assert list(again.steps) == list(run.steps)


# --- the way in ---------------------------------------------------------------------------------


def test_a_session_folder_that_is_still_written_opens(place: Path, tmp_path: Path) -> None:
    data = place.read_bytes()
    folder = tmp_path / "session"
    folder.mkdir()
    # The last frame is half there.
    (folder / "000001.gpcf").write_bytes(data[: len(data) * 2 // 3])
    with gpucorrelate.open(folder) as run:
        assert 0 < len(run.requests) <= OPTIONS.requests
        sums: Counter[int] = Counter()
        for one in run.segments:
            sums[one.request_key] += one.length_ns
        assert sums == {one.request_key: one.wall_ns for one in run.requests}


def test_what_is_not_there_is_one_line(tmp_path: Path, run: Run) -> None:
    with pytest.raises(NotFoundError, match="no such file or folder"):
        gpucorrelate.open(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(RecordingError, match="not a gpucorrelate recording"):
        gpucorrelate.open(tmp_path / "text")
    with pytest.raises(NotFoundError, match="no table 'nope'"):
        run.table("nope")
    with pytest.raises(NotFoundError, match="no request"):
        run.request("nobody")
    with pytest.raises(NotFoundError, match="no step 99999"):
        run.step(99_999)


def test_a_request_is_found_by_any_of_its_ids(tmp_path: Path) -> None:
    file = save(one_request(12), tmp_path / "r.gpcf")
    with gpucorrelate.open(file) as run:
        found = {run.request(name).row.request_key for name in ("x-1-0", "x-1", "x-1-0-ab", "x-*")}
    assert found == {0}


def test_sums_in_sql_are_whole_numbers_of_64_bits(run: Run) -> None:
    found = run.sql("SELECT sum(length_ns) AS ns, avg(length_ns) AS mean FROM segments")
    assert found.schema.types == [pa.int64(), pa.float64()]
    assert found["ns"].to_pylist() == [sum(one.wall_ns for one in run.requests)]
    wide = run.sql("SELECT sum(length_ns::HUGEINT) * 1000000000000000 AS ns FROM segments")
    assert wide["ns"].to_pylist()[0] == found["ns"].to_pylist()[0] * 10**15


def test_frames_have_the_rows(run: Run) -> None:
    rows = run.requests.to_arrow().to_pylist()
    assert run.requests.to_polars().to_dicts() == rows
    frame = run.requests.to_pandas()
    assert frame["wall_ns"].tolist() == [row["wall_ns"] for row in rows]
    assert frame["request_id"].tolist() == [row["request_id"] for row in rows]


def test_importing_the_package_takes_nothing_heavy_in() -> None:
    code = (
        "import sys, json, gpucorrelate; before = set(sys.modules); assert 'open' in "
        "dir(gpucorrelate); gpucorrelate.open; "
        "print(json.dumps([sorted(before), sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = (set(names) for names in json.loads(done.stdout))
    assert not before & {"numpy", "pyarrow", "duckdb", "gpucorrelate.api"}
    assert "gpucorrelate.api.runs" in after
    assert not after & {"pyarrow", "duckdb", "pandas", "polars"}


@pytest.mark.parametrize(
    ("missing", "call", "hint"),
    [
        ("rich", "gpucorrelate.open(place)", "gpucorrelate[api]"),
        ("pyarrow", "gpucorrelate.open(place).requests.to_arrow()", "gpucorrelate[api]"),
        ("duckdb", "gpucorrelate.open(place).sql('SELECT 1')", "gpucorrelate[sql]"),
        ("pandas", "gpucorrelate.open(place).requests.to_pandas()", "pip install pandas"),
        ("polars", "gpucorrelate.open(place).requests.to_polars()", "pip install polars"),
    ],
)
def test_what_is_not_installed_is_named(place: Path, missing: str, call: str, hint: str) -> None:
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import gpucorrelate
place = {str(place)!r}
try:
    {call}
except Exception as exc:
    print(exc, getattr(exc, "hint", ""))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"the package {missing}, which is not installed" in done.stdout
    assert hint in done.stdout


@pytest.mark.parametrize("command", ["--help", "report --help", "requests --help", "sql --help"])
def test_other_commands_do_not_load_them(command: str) -> None:
    code = (
        "import sys; from gpucorrelate.cli import main; "
        f"main.run({command.split()!r}); "
        "assert not {'pyarrow', 'duckdb'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
