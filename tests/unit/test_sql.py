# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate sql`` and ``save``: queries that read the tables and nothing else."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import gpucorrelate
from gpucorrelate.api import TABLES
from gpucorrelate.api.query import Database
from gpucorrelate.probes.wire.errors import UsageError
from tests.truth.synthetic.check import simulate
from tests.unit.synth import Recording
from tests.unit.test_cli_reports import save
from tests.unit.test_perfetto import OPTIONS
from tests.unit.test_requests import recording as one_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Go = Callable[..., tuple[int, str, str]]

BY_CATEGORY = "SELECT category, sum(length_ns) AS ns FROM segments GROUP BY 1 ORDER BY 1"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "run.gpcf"
    path.write_bytes(simulate(OPTIONS)[1])
    return path


@pytest.fixture(scope="module")
def results(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run's results"
    with gpucorrelate.open(file) as run:
        run.save(folder)
    return folder


@pytest.fixture(params=["recording", "results"])
def place(request: pytest.FixtureRequest, file: Path, results: Path) -> Path:
    return file if request.param == "recording" else results


def rows(run: Go, query: str, place: Path, *more: str) -> list[dict[str, Any]]:
    code, out, err = run("sql", query, "--format", "json", *more, place)
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


# --- what it answers ----------------------------------------------------------------------------


def test_sums_over_segments_are_the_requests_wall_times(run: Go, place: Path) -> None:
    (sums,) = rows(
        run,
        "SELECT (SELECT sum(length_ns) FROM segments) AS path, sum(wall_ns) AS wall FROM requests",
        place,
    )
    assert sums["path"] == sums["wall"] > 0
    assert isinstance(sums["path"], int)


def test_each_request_sums_exactly(run: Go, place: Path) -> None:
    query = (
        "SELECT request_key, wall_ns, sum(length_ns) AS path FROM requests "
        "JOIN segments USING (request_key) GROUP BY ALL"
    )
    found = rows(run, query, place)
    assert len(found) == OPTIONS.requests
    assert all(row["wall_ns"] == row["path"] for row in found)


def test_answers_are_those_of_the_json_report(run: Go, place: Path, file: Path) -> None:
    out = run("report", "--all", file)[1]
    sums: dict[str, int] = {}
    for line in out.splitlines():
        for one in json.loads(line)["segments"]:
            length = one["end_ns"] - one["start_ns"]
            sums[one["category"]] = sums.get(one["category"], 0) + length
    assert {row["category"]: row["ns"] for row in rows(run, BY_CATEGORY, place)} == sums


@pytest.mark.parametrize("query", ["SHOW TABLES", "FROM (SHOW TABLES)"])
def test_all_tables_are_listed_and_described(run: Go, place: Path, query: str) -> None:
    assert {row["name"] for row in rows(run, query, place)} == set(TABLES)
    found = rows(run, "DESCRIBE segments", place)
    told = [(one.name, one.sql_type) for one in TABLES["segments"].columns]
    assert [(row["column_name"], row["column_type"]) for row in found] == told


def test_no_column_needs_quotes(results: Path) -> None:
    with gpucorrelate.open(results) as opened, Database(opened) as database:
        for name, table in TABLES.items():
            for column in table.names:
                found = database.ask(f"SELECT {column}, t.{column} FROM {name} t LIMIT 0")
                assert found.names[0] == column


def test_every_table_has_the_same_rows_in_both(run: Go, file: Path, results: Path) -> None:
    for name in TABLES:
        query = f"FROM {name}"
        assert rows(run, query, file) == rows(run, query, results), name


def test_a_table_that_only_a_text_names_is_there(run: Go, place: Path) -> None:
    (row,) = rows(run, "SELECT count(*) AS n FROM query('FROM Segments')", place)
    assert row["n"] > 0


def test_csv_and_text_have_the_same(run: Go, place: Path) -> None:
    told = rows(run, BY_CATEGORY, place)
    out = run("sql", BY_CATEGORY, "--format", "csv", place)[1]
    read = list(csv.DictReader(io.StringIO(out)))
    assert [(row["category"], int(row["ns"])) for row in read] == [
        (row["category"], row["ns"]) for row in told
    ]
    out = run("sql", BY_CATEGORY, place)[1]
    for row in told:
        assert f"{row['ns']:,}" in out


def test_unknown_is_null_empty_and_a_mark(run: Go, place: Path) -> None:
    query = "SELECT NULL AS a, 0 AS b, 'nan'::DOUBLE AS c, true AS d"
    assert rows(run, query, place) == [{"a": None, "b": 0, "c": None, "d": True}]
    assert run("sql", query, "--format", "csv", place)[1] == "a,b,c,d\n,0,nan,true\n"
    assert run("sql", query, place)[1].split() == ["a", "b", "c", "d", "?", "0", "nan", "true"]


def test_text_shows_as_many_rows_as_fit_and_says_how_many_more(run: Go, place: Path) -> None:
    query = f"SELECT request_key AS k FROM requests ORDER BY k LIMIT {OPTIONS.requests}"
    out = run("sql", query, "--limit", "5", place)[1].splitlines()
    assert [line.strip() for line in out[:6]] == ["k", "0", "1", "2", "3", "4"]
    assert out[6] == f"{OPTIONS.requests - 5} more rows; --limit 0 shows all"
    assert len(run("sql", query, "--limit", "0", place)[1].splitlines()) == OPTIONS.requests + 2


def test_rows_wider_than_the_page_are_blocks(run: Go, place: Path) -> None:
    out = run("sql", "FROM requests LIMIT 2", "--width", "60", place)[1]
    names = TABLES["requests"].names
    assert [line.split()[0] for line in out.splitlines()[: len(names)]] == list(names)
    assert all(len(line) <= 60 for line in out.splitlines())


def test_control_characters_do_not_reach_a_terminal(run: Go, place: Path) -> None:
    out = run("sql", "SELECT chr(27) || '[31m' AS x", place)[1]
    assert "\x1b" not in out


def test_a_query_comes_from_standard_input_and_goes_to_a_file(
    run: Go, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 1 AS one"))
    assert run("sql", "-", "--format", "csv", "-o", tmp_path / "o.csv", place) == (0, "", "")
    assert (tmp_path / "o.csv").read_text() == "one\n1\n"


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_own_tables_are_joined(run: Go, place: Path, tmp_path: Path, form: str) -> None:
    first = rows(run, "SELECT request_id FROM requests ORDER BY request_key LIMIT 1", place)
    mine = tmp_path / f"it's mine.{form}"
    record = {"request_id": first[0]["request_id"], "tenant": "alice"}
    if form == "csv":
        mine.write_text("request_id,tenant\n" + ",".join(record.values()) + "\n")
    elif form == "json":
        mine.write_text(json.dumps([record]))
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([record]), mine)
    query = "SELECT tenant, request_key FROM requests JOIN who USING (request_id)"
    found = rows(run, query, place, "--with", f"who={mine}")
    assert found == [{"tenant": "alice", "request_key": 0}]


# --- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "COPY requests TO '{out}'",
        "WITH a AS (COPY (SELECT 1) TO '{out}') SELECT * FROM a",
        "EXPORT DATABASE '{out}'",
        "ATTACH '{out}'",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_parquet('{secret}')",
        "SELECT * FROM glob('{secret}')",
        "FROM '{secret}'",
        "FROM query('FROM read_text(''{secret}'')')",
        "FROM 'http://127.0.0.1:9/x.parquet'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '1GB'",
        "PRAGMA enable_profiling",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO requests SELECT * FROM requests",
        "DROP VIEW requests",
        "SELECT 1; SELECT 2",
    ],
)
def test_a_query_reads_the_tables_and_nothing_else(
    run: Go, place: Path, tmp_path: Path, query: str
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    text = query.format(out=tmp_path / "out", secret=secret)
    code, out, err = run("sql", text, place)
    assert (code, out) == (2, "")
    assert "hunter2" not in err
    assert len(err.splitlines()) <= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_nothing_can_be_written_over_the_results(run: Go, results: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("a\n1\n")
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    for target in (results / "requests.parquet", mine):
        text = str(target).replace("'", "''")
        query = f"WITH a AS (COPY (SELECT 1) TO '{text}') SELECT * FROM a"
        assert run("sql", query, "--with", f"mine={mine}", results)[0] == 2
    assert {path.name: path.read_bytes() for path in results.iterdir()} == before
    assert mine.read_text() == "a\n1\n"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("", "empty"),
        ("SELECT nope FROM requests", "nope"),
        ("FROM nope", "tables are requests, tokens"),
        ("SELECT 'a'::INT", "Conversion"),
    ],
)
def test_a_wrong_query_is_one_line(run: Go, place: Path, query: str, said: str) -> None:
    code, out, err = run("sql", query, place)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) <= 2


def test_two_columns_of_one_name_are_no_json(run: Go, place: Path) -> None:
    code, out, err = run("sql", "SELECT 1 AS a, 2 AS a", "--format", "json", place)
    assert (code, out) == (2, "")
    assert "two columns are called 'a'" in err
    assert run("sql", "SELECT 1 AS a, 2 AS a", "--format", "csv", place)[1] == "a,a\n1,2\n"


@pytest.mark.parametrize(
    ("given", "code"),
    [("who", 2), ("=x.csv", 2), ("who=", 2), ("who=nowhere.csv", 3), ("requests=x.csv", 2),
     ("a b=x.csv", 2), ("who=/etc/hostname", 2)],
)  # fmt: skip
def test_a_table_of_ones_own_that_is_none_is_refused(
    run: Go, file: Path, given: str, code: int
) -> None:
    assert run("sql", "SELECT 1", "--with", given, file)[0] == code


def test_damaged_files_are_told_by_their_name(
    run: Go, results: Path, tmp_path: Path, file: Path
) -> None:
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 no more")
    code, _, err = run("sql", "SELECT 1", "--with", f"bad={bad}", file)
    assert code == 7
    assert str(bad) in err
    with gpucorrelate.open(file) as opened:
        opened.save(tmp_path / "r")
    path = tmp_path / "r" / "segments.parquet"
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4)
    path.write_bytes(bytes(data))
    code, _, err = run("sql", "SELECT sum(length_ns) FROM segments", tmp_path / "r")
    assert code == 7
    assert "segments.parquet" in err
    assert len(err.splitlines()) <= 2


def test_ctrl_c_ends_a_query(run: Go, file: Path) -> None:
    query = "SELECT sum(a.range * b.range) FROM range(100000000) a, range(100000000) b"
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        code, out, err = run("sql", query, file)
    finally:
        timer.join()
    assert (code, out, err.strip()) == (130, "", "")


def test_a_database_answers_several_times(file: Path) -> None:
    with gpucorrelate.open(file) as opened, Database(opened) as database:
        first = list(database.ask(BY_CATEGORY).rows)
        with pytest.raises(UsageError):
            database.ask("FROM nope")
        assert list(database.ask(BY_CATEGORY).rows) == first


# --- save ---------------------------------------------------------------------------------------


def test_save_writes_a_folder_and_says_what(run: Go, file: Path, tmp_path: Path) -> None:
    code, out, err = run("save", file, "-o", tmp_path / "r")
    assert (code, out) == (0, "")
    assert err.startswith(f"gpucorrelate: {len(TABLES)} tables with ")
    assert {path.stem for path in (tmp_path / "r").iterdir()} == set(TABLES)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    code, _, err = run("save", tmp_path / "r", "-o", tmp_path / "again")
    assert (code, (tmp_path / "again").exists()) == (2, False)
    assert "results already" in err


def test_save_into_what_holds_something_else_is_refused_at_once(
    run: Go, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("x")
    code, _, err = run("save", file, "-o", tmp_path)
    assert code == 2
    assert "mine.txt" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


class _Named(Recording):
    def add(self, kind_name: str, by: int = 2, /, **values: int | str) -> Recording:
        named = {
            column: value.replace("x-1", "alice-smith-7") if isinstance(value, str) else value
            for column, value in values.items()
        }
        return super().add(kind_name, by, **named)


def test_redacted_results_have_no_id(
    run: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.test_requests.Recording", _Named)
    made = one_request(12)
    made.add("trace_context", 3, http=1, trace_high=7, trace_low=9, parent=5, flags=1)
    file = save(made, tmp_path / "r.gpcf")
    for name, more in (("plain", ()), ("redacted", ("--redact",))):
        assert run("save", *more, file, "-o", tmp_path / name)[0] == 0
    found = {
        name: "".join(json.dumps(rows(run, f"FROM {table}", tmp_path / name)) for table in TABLES)
        for name in ("plain", "redacted")
    }
    assert "alice" in found["plain"]
    assert "alice" not in found["redacted"]
    query = "SELECT request_id, trace_id FROM requests"
    (row,) = rows(run, query, tmp_path / "redacted")
    assert row["request_id"].startswith("id-")
    assert row["trace_id"] is None
    assert rows(run, query, tmp_path / "plain")[0]["trace_id"] == f"{(7 << 64) | 9:032x}"


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary folders of queries go with them."""
    space = tmp_path.parent / f"{tmp_path.name}.space"
    space.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(space))
    yield
    assert list(space.iterdir()) == []
