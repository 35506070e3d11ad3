# SPDX-License-Identifier: Apache-2.0
"""Exports that are damaged, or hold what no exporter writes: refused in a line, or counted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.importers.nsys import read_nsys
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.wire.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
CALL = "CUPTI_ACTIVITY_KIND_RUNTIME"
OPS = "globalPid, deviceId, streamId, correlationId, start, 'end', demangledName"


def export(path: Path, *statements: str) -> Path:
    """A database with a kernel of process 1, and what more is said of it."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TABLE {KERNEL} ({OPS})")
        database.execute("CREATE TABLE StringIds (id, value)")
        database.execute("INSERT INTO StringIds VALUES (1, 'k')")
        database.execute(f"INSERT INTO {KERNEL} VALUES (16777216, 0, 7, 3, 5, 9, 1)")
        for statement in statements:
            database.execute(statement)
    return path


def read(path: Path) -> tuple[list[tuple[int, str]], list[tuple[str, int]]]:
    """Number of the device and name of each kernel, and what could not be read."""
    trace = read_nsys(path, StepMatcher())
    (process,) = trace.processes
    names = list(process.texts)
    ops = process.ops
    found = zip(ops.column("device").tolist(), ops.column("name").tolist(), strict=True)
    return [(device, names[name]) for device, name in found], trace.problems.lines()


def test_text_where_a_number_belongs_is_no_number(tmp_path: Path) -> None:
    """It was taken for the number that such a text has among the names."""
    row = f"INSERT INTO {KERNEL} VALUES (16777216, 'second', 7, 4, 10, 12, 1)"
    kernels, problems = read(export(tmp_path / "t.sqlite", row))
    assert kernels == [(0, "k")]
    assert problems == [(f"{KERNEL} rows unread: device is no integer at row 2", 1)]


@pytest.mark.parametrize("value", ["7", "x'00ff'", "NULL", "1.5"])
def test_a_name_that_is_no_text_is_none(tmp_path: Path, value: str) -> None:
    more = [
        f"INSERT INTO StringIds VALUES (2, {value})",
        f"INSERT INTO {KERNEL} VALUES (16777216, 0, 7, 4, 10, 12, 2)",
        "CREATE TABLE NVTX_EVENTS (globalTid, start, 'end', text, textId)",
        f"INSERT INTO NVTX_EVENTS VALUES (16777217, 1, 20, {value}, 2)",
        f"CREATE TABLE {CALL} (globalTid, nameId, correlationId, start, 'end')",
        f"INSERT INTO {CALL} VALUES (16777217, 2, 3, 2, 4)",
    ]
    kernels, problems = read(export(tmp_path / "t.sqlite", *more))
    assert kernels == [(0, "k"), (0, "?")]
    assert problems == []


def test_a_table_whose_rows_have_no_number_is_read(tmp_path: Path) -> None:
    """A column may be called what SQLite calls the row's number."""
    more = [
        f"ALTER TABLE {KERNEL} ADD COLUMN rowid",
        f"UPDATE {KERNEL} SET rowid = 'first'",
        f"INSERT INTO {KERNEL} VALUES (16777216, 'second', 7, 4, 10, 12, 1, 'second')",
    ]
    kernels, problems = read(export(tmp_path / "t.sqlite", *more))
    assert kernels == [(0, "k")]
    assert problems == [(f"{KERNEL} rows unread: device is no integer at row 0", 1)]


def test_what_sqlite_says_of_a_damaged_export_need_not_be_text(tmp_path: Path) -> None:
    path = export(tmp_path / "t.sqlite")
    data = path.read_bytes()
    at = data.index(b"CREATE TABLE CUPTI")
    path.write_bytes(data[: at + 13] + b"\x9e\xff" + data[at + 15 :].replace(b"(", b"\x9e", 1))
    with pytest.raises(TraceError, match="SQLite cannot read it"):
        read_nsys(path, StepMatcher())
