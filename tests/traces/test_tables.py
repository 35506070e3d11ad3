# SPDX-License-Identifier: Apache-2.0
"""Tables of Nsight Systems' exports against the same tables made from the exports by SQL."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import sqlite3
from pathlib import Path

import pytest

from gpucorrelate.correlator import tables
from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.tables import write_csv
from gpucorrelate.probes.importers.choose import read_trace
from gpucorrelate.probes.importers.recording import frames_of
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.wire.frame import Decoder

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GPUCORRELATE_TRACES") or ROOT.parent / "shared" / "traces")
EXPORTS = sorted(FOLDER.rglob("*.sqlite")) or [FOLDER / "none"]
MEMORY = """
    SELECT '[CUDA memcpy ' || oper.label || ']' AS name, end - start AS length, bytes
    FROM CUPTI_ACTIVITY_KIND_MEMCPY JOIN ENUM_CUDA_MEMCPY_OPER oper ON oper.id = copyKind
    UNION ALL SELECT '[CUDA memset]', end - start, bytes FROM CUPTI_ACTIVITY_KIND_MEMSET"""
#: Name, and what is summed.
EVENTS = {
    "cuda_api_sum": """
        SELECT bare(value) AS name, end - start AS amount
        FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON StringIds.id = nameId""",
    "cuda_gpu_kern_sum": """
        SELECT value AS name, end - start AS amount
        FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON StringIds.id = demangledName""",
    "cuda_gpu_mem_time_sum": f"SELECT name, length AS amount FROM ({MEMORY})",
    "cuda_gpu_mem_size_sum": f"SELECT name, bytes / 1e6 AS amount FROM ({MEMORY})",
}
#: Median by window functions: the mean of the middle two, which are one of an odd count.
STATISTICS = """
    WITH events AS ({events}),
    ranked AS (
        SELECT name, amount, count(*) OVER (PARTITION BY name) AS n,
            row_number() OVER (PARTITION BY name ORDER BY amount) AS place,
            avg(amount) OVER (PARTITION BY name) AS mean
        FROM events
    )
    SELECT 100.0 * sum(amount) / (SELECT sum(amount) FROM events), sum(amount), count(*),
        avg(amount), avg(CASE WHEN place IN ((n + 1) / 2, (n + 2) / 2) THEN amount END),
        min(amount), max(amount),
        coalesce(sqrt(sum((amount - mean) * (amount - mean)) / nullif(n - 1, 0)), 0), name
    FROM ranked GROUP BY name ORDER BY sum(amount) DESC, name"""

pytestmark = pytest.mark.traces


def _by_sql(path: Path, name: str) -> list[list[str]]:
    """The rows of a table as text; SQLite rounds halves up, as nsys has it do."""
    with contextlib.closing(
        sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    ) as database:
        database.create_function("bare", 1, lambda text: re.sub(r"_v\d+(_pt[sd][zs])?$", "", text))
        size = name == "cuda_gpu_mem_size_sum"
        decimals = 3 if size else 1

        def rounded(value: float) -> str:
            (one,) = database.execute("SELECT round(?, ?)", (value, decimals)).fetchone()
            return f"{one:.{decimals}f}"

        rows = []
        for row in database.execute(STATISTICS.format(events=EVENTS[name])).fetchall():
            share, total, count, mean, median, least, most, deviation, title = row
            whole = rounded if size else str
            numbers = (rounded(mean), rounded(median), whole(least), whole(most))
            fields = [whole(total), str(count), *numbers, rounded(deviation), title]
            rows.append(fields if size else [rounded(share), *fields])
    return rows


@pytest.fixture(scope="module", params=EXPORTS, ids=lambda path: path.name)
def export(request: pytest.FixtureRequest) -> tuple[Path, Capture]:
    """An export, and the recording that it becomes."""
    matcher = StepMatcher()
    trace = read_trace(request.param, matcher)
    decoder = Decoder()
    items = [item for frame in frames_of([trace], matcher) for item in decoder.feed(frame)]
    return request.param, Capture.from_batches([i[0] for i in items if isinstance(i, tuple)])


@pytest.mark.parametrize("name", EVENTS)
def test_tables_are_those_that_sql_makes_of_the_export(
    export: tuple[Path, Capture], name: str
) -> None:
    path, capture = export
    out = io.StringIO()
    write_csv(tables.tables(capture, [name]), out)
    rows = list(csv.reader(out.getvalue().splitlines()))[1:]
    assert rows == _by_sql(path, name)
    assert len(rows) >= 3


def test_calls_and_records_are_joined_within_their_process(export: tuple[Path, Capture]) -> None:
    path, capture = export
    query = """
        SELECT count(*), count(caller.name) FROM CUPTI_ACTIVITY_KIND_{kind} AS record LEFT JOIN (
            SELECT DISTINCT correlationId, globalTid >> 24 AS process, value AS name
            FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON StringIds.id = nameId
            WHERE value LIKE '%{part}%'
        ) AS caller ON caller.correlationId = record.correlationId
            AND caller.process = record.globalPid >> 24"""
    kinds = (("KERNEL", "Launch"), ("MEMCPY", "Memcpy"), ("MEMSET", "Memset"))
    with contextlib.closing(
        sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    ) as database:
        expected = [
            database.execute(query.format(kind=kind, part=part)).fetchone() for kind, part in kinds
        ]
    found = tables.reconcile(capture)
    assert [(one.records, one.own) for one in found.joined] == expected
    assert found.graphs.traced is None
