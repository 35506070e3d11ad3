# SPDX-License-Identifier: Apache-2.0
"""Numbers and layouts that C and Python both write down are the same on either side."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.correlator import causes, native, states, walk
from gpucorrelate.correlator.native import trace
from gpucorrelate.correlator.report import paths
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.probes.importers import events
from gpucorrelate.probes.importers import native as scanner

if TYPE_CHECKING:
    import numpy as np

_WALK = native.LIBRARY.with_name("walk.c")
_TRACE = native.LIBRARY.with_name("trace.c")
_EVENTS = Path(scanner.__file__).with_name("events.c")
_SIZES = {"int64_t": 8, "uint64_t": 8, "int32_t": 4, "uint32_t": 4, "uint8_t": 1}


def code(path: Path) -> str:
    """A C source without its comments."""
    return re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def enum_of(path: Path, name: str) -> dict[str, int]:
    """Constants of an enum with their values."""
    body = re.search(rf"\benum {name} \{{(.*?)\}}", code(path), re.DOTALL)
    assert body is not None, f"{path.name} has no enum {name}"
    found: dict[str, int] = {}
    following = 0
    for item in filter(None, (part.strip() for part in body[1].split(","))):
        constant, _, value = (part.strip() for part in item.partition("="))
        found[constant] = int(value) if value else following
        following = found[constant] + 1
    return found


def struct_of(path: Path, name: str) -> list[tuple[str, int, int]]:
    """Members of a struct of plain numbers with their offsets and sizes, as x86-64 has them."""
    body = re.search(rf"\bstruct {name} \{{(.*?)\}};", code(path), re.DOTALL)
    assert body is not None, f"{path.name} has no struct {name}"
    found: list[tuple[str, int, int]] = []
    end = 0
    for line in filter(None, (part.strip() for part in body[1].split(";"))):
        ctype, members = line.split(None, 1)
        for member in members.split(","):
            match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", member.strip())
            assert match is not None, member
            size = _SIZES[ctype]
            offset = -(-end // size) * size
            length = size * int(match[2] or 1)
            found.append((match[1], offset, length))
            end = offset + length
    return found


def layout_of(dtype: np.dtype[np.void]) -> list[tuple[str, int, int]]:
    """The same of a numpy type."""
    assert dtype.fields is not None
    return [(name, at, item.itemsize) for name, (item, at, *_) in dtype.fields.items()]


def test_categories_of_the_walk_are_pythons() -> None:
    given = enum_of(_WALK, "category")
    assert len(given) >= 10
    assert given == {
        name: states.CATEGORIES.index(Category[name.removeprefix("C_")]) for name in given
    }


def test_classes_of_waits_are_pythons() -> None:
    given = enum_of(_WALK, "wait_class")
    assert given == {f"W_{one.name}": one.value for one in states.WaitClass}


def test_kinds_of_evidence_are_pythons() -> None:
    given = enum_of(_WALK, "evidence")
    known = {
        name.removeprefix("_EVIDENCE_"): value
        for name, value in vars(causes).items()
        if name.startswith("_EVIDENCE_")
    }
    assert given == {"E_NONE": 0} | {f"E_{name}": value for name, value in known.items()}
    assert walk.EVIDENCE_UNREAD not in given.values()
    assert given["E_GPU"] == paths._OF_DEVICE


def test_modes_of_hops_are_pythons() -> None:
    given = enum_of(_WALK, "frame_mode")
    known = {
        name.removeprefix("_MODE_"): value
        for name, value in vars(causes).items()
        if name.startswith("_MODE_")
    }
    assert len(known) >= 3
    assert known == {name: given[f"F_{name}"] for name in known}


@pytest.mark.parametrize(
    ("path", "name", "dtype"),
    [
        (_WALK, "walk_seg", native.SEGMENT),
        (_WALK, "walk_hop", native.HOP),
        (_EVENTS, "record", scanner.RECORD),
    ],
)
def test_rows_lie_in_memory_as_python_reads_them(
    path: Path, name: str, dtype: np.dtype[np.void]
) -> None:
    assert struct_of(path, name) == layout_of(dtype)


def test_columns_of_the_walk_are_handed_over_in_its_order() -> None:
    body = re.search(r"\bstruct walk_model \{(.*?)\};", code(_WALK), re.DOTALL)
    assert body is not None
    members = re.findall(r"\*(\w+)", body[1])
    assert tuple(members) == native._POINTERS


def test_kinds_of_a_traces_arguments_are_pythons() -> None:
    given = enum_of(_TRACE, "arg_kind")
    assert given == {
        f"ARG_{name}": getattr(trace, name) for name in ("STRING", "NUMBER", "POINTER")
    }


def test_types_of_a_traces_events_are_perfettos() -> None:
    messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    theirs = dict(messages.TrackEvent.Type.items())
    names = {"BEGIN": "TYPE_SLICE_BEGIN", "END": "TYPE_SLICE_END", "INSTANT": "TYPE_INSTANT",
             "COUNTER": "TYPE_COUNTER"}  # fmt: skip
    given = enum_of(_TRACE, "event_type")
    assert given == {name: theirs[theirs_name] for name, theirs_name in names.items()}


@pytest.mark.parametrize(("name", "structure"), [("arg", trace._Arg), ("events", trace._Events)])
def test_structs_of_a_trace_are_handed_over_in_its_order(
    name: str, structure: type[ctypes.Structure]
) -> None:
    body = re.search(rf"\bstruct {name} \{{(.*?)\}};", code(_TRACE), re.DOTALL)
    assert body is not None
    members = []
    for line in filter(None, (part.strip() for part in body[1].split(";"))):
        declared = line.removeprefix("const ").removeprefix("struct ").partition(" ")[2]
        members += [("*" in one, one.strip(" *")) for one in declared.split(",")]
    theirs = [(kind is not ctypes.c_int64, field) for field, kind, *_ in structure._fields_]
    assert members == theirs
    assert all(ctypes.sizeof(kind) == 8 for _, kind, *_ in structure._fields_)


def test_tables_of_the_scanner_are_pythons() -> None:
    given = enum_of(_EVENTS, "table")
    assert given["N_TABLES"] == scanner._TABLES
    names = [name for name in given if given[name] < given["N_TABLES"]]
    assert {name: given[name] for name in names} == {n: getattr(events, n) for n in names}
