# SPDX-License-Identifier: Apache-2.0
"""Write what must agree with the schema: C headers and the event list.

The BPF programs have a record of their own, the GPU agent writes columns of kinds as they are.
``python -m gpucorrelate.probes.wire.cgen`` writes all files; ``--check`` writes nothing and
fails when one of them is not what the schema says.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import sys
from pathlib import Path

from gpucorrelate.probes.wire import schema

PROBES = Path(__file__).resolve().parents[1]
HEADER_PATH = PROBES / "ebpf" / "events.gen.h"
COLUMNS_PATH = PROBES / "agents" / "cupti" / "native" / "columns.gen.h"
DOCS_PATH = PROBES.parent / "docs" / "events.md"

#: Schema type -> C type of a record's field. Records carry no strings.
C_TYPES = {"u8": "__u8", "u16": "__u16", "u32": "__u32", "u64": "__u64",
           "i16": "__s16", "i64": "__s64"}  # fmt: skip

#: The enums that BPF programs use, with the prefix of their constants in C.
C_ENUMS: tuple[tuple[type[enum.IntEnum] | type[enum.IntFlag], str], ...] = (
    (schema.KernelRecord, "GPC_REC"),
    (schema.WaitKind, "GPC_WAIT"),
    (schema.FdKind, "GPC_FD"),
    (schema.WaitFlag, "GPC_WF"),
    (schema.FaultFlag, "GPC_FF"),
    (schema.TaskEvent, "GPC_TASK"),
)

#: The kinds whose columns the GPU agent writes, and the enums it writes into them.
C_KINDS = ("cuda_api", "gpu_op", "gpu_sync", "clock_pair")
C_KIND_ENUMS: tuple[tuple[type[enum.IntEnum], str], ...] = (
    (schema.ApiKind, "GCU_API"),
    (schema.GpuOpKind, "GCU_OP"),
    (schema.CopyKind, "GCU_COPY"),
)
#: Schema type -> C type of a column's value.
COLUMN_C_TYPES = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
                  "i16": "int16_t", "i64": "int64_t", "str": "uint32_t"}  # fmt: skip

_SPDX_C = "/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */"


def record_size() -> int:
    """Bytes of one kernel record; its fields are declared widest first, so none is padded."""
    return sum(column.size_bytes for column in schema.KERNEL_RECORD)


def c_enum(members: type[enum.IntEnum] | type[enum.IntFlag], prefix: str) -> str:
    """A Python enum as a nameless C enum whose constants carry ``prefix``."""
    lines = [f"\t{prefix}_{m.name} = {m.value}," for m in members.__members__.values()]
    return "\n".join(["enum {", *lines, "};"])


def c_header() -> str:
    """The text of ``events.gen.h``."""
    parts = [
        _SPDX_C,
        "/* Made from probes/wire/schema.py by probes/wire/cgen.py: edit that and run it. */",
        "#ifndef GPC_EVENTS_GEN_H",
        "#define GPC_EVENTS_GEN_H",
        "",
    ]
    for members, prefix in C_ENUMS:
        parts += [c_enum(members, prefix), ""]
    parts.append("struct gpc_rec {")
    for column in schema.KERNEL_RECORD:
        parts.append(f"\t{C_TYPES[column.ctype]} {column.name}; /* {column.meaning} */")
    size = record_size()
    parts += [
        "};",
        "",
        f'_Static_assert(sizeof(struct gpc_rec) == {size}, "record of {size} bytes");',
        "",
        "#endif",
        "",
    ]
    return "\n".join(parts)


def columns_header() -> str:
    """The text of ``columns.gen.h``: each kind's columns, in order, as a list to be expanded."""
    parts = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        "/* Made from probes/wire/schema.py by probes/wire/cgen.py: edit that and run it. */",
        "#ifndef GCU_COLUMNS_GEN_H",
        "#define GCU_COLUMNS_GEN_H",
        "",
    ]
    for members, prefix in C_KIND_ENUMS:
        parts += [c_enum(members, prefix), ""]
    kinds = [schema.BY_NAME[name] for name in C_KINDS]
    parts += ["/* X(TYPE, NAME) for every column. */"]
    for kind in kinds:
        columns = [f"X({COLUMN_C_TYPES[c.ctype]}, {c.name})" for c in kind.columns]
        parts += [" \\\n\t".join([f"#define GCU_{kind.name.upper()}(X)", *columns]), ""]
    parts += ["/* X(NAME, COLUMNS) for every kind; a kind's number here is its place. */"]
    rows = [f"X({kind.name}, GCU_{kind.name.upper()})" for kind in kinds]
    parts += [" \\\n\t".join(["#define GCU_KINDS(X)", *rows]), "", "#endif", ""]
    return "\n".join(parts)


def _enums() -> list[type[enum.IntEnum] | type[enum.IntFlag]]:
    found = [
        value
        for value in vars(schema).values()
        if inspect.isclass(value)
        and issubclass(value, (enum.IntEnum, enum.IntFlag))
        and value.__module__ == schema.__name__
    ]
    return sorted(found, key=lambda value: value.__name__)


def _comments(members: type[enum.IntEnum] | type[enum.IntFlag]) -> dict[str, str]:
    """The comments behind an enum's members in the source: they are its documentation."""
    found: dict[str, str] = {}
    for line in inspect.getsource(members).splitlines():
        head, _, comment = line.partition("#")
        name, _, value = head.partition("=")
        if value.strip().isdigit() and comment:
            found[name.strip()] = comment.strip()
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def event_docs() -> str:
    """The text of ``docs/events.md``."""
    out = [
        "<!-- Made from probes/wire/schema.py by probes/wire/cgen.py: edit that and run it. -->",
        "# Events",
        "",
        f"Schema version {schema.SCHEMA_VERSION}. Every event that exists, as it travels and as"
        " it is stored: one table per kind, one array per column. Times are nanoseconds of"
        " CLOCK_MONOTONIC, unless the recording's meta `clock` names another. `str` is a number"
        " that the stream's string table resolves; 0 is no text.",
        "",
        "Kinds and columns are only ever appended; an id is never used again and a column never"
        " changes its type or its meaning. A column that an older writer did not know reads as"
        " zero.",
        "",
    ]
    for kind in schema.KINDS:
        out += [f"## `{kind.name}` ({kind.id})", "", kind.meaning, ""]
        out += ["| column | type | meaning |", "|---|---|---|"]
        out += [f"| `{c.name}` | {c.ctype} | {_cell(c.meaning)} |" for c in kind.columns]
        out.append("")
    reserved = ", ".join(f"`{n}` ({i})" for i, n in sorted(schema.RESERVED_IDS.items()))
    out += [f"Ids kept for kinds that are not written yet: {reserved}.", "", "# Values", ""]
    for members in _enums():
        out += [f"## {members.__name__}", "", (members.__doc__ or "").split("\n", 1)[0], ""]
        comments = _comments(members)
        out += ["| value | name | meaning |", "|---|---|---|"]
        out += [
            f"| {m.value} | {m.name} | {_cell(comments.get(m.name or '', ''))} |"
            for m in members.__members__.values()
        ]
        out.append("")
    return "\n".join(out).rstrip("\n") + "\n"


def files() -> tuple[tuple[Path, str], ...]:
    """Every generated file with the text it should have."""
    return (
        (HEADER_PATH, c_header()),
        (COLUMNS_PATH, columns_header()),
        (DOCS_PATH, event_docs()),
    )


def stale(expected: tuple[tuple[Path, str], ...]) -> list[Path]:
    """Those of the files whose content is not the expected text."""
    return [
        path
        for path, text in expected
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main(argv: list[str] | None = None) -> int:
    """Write the generated files, or check them; returns the exit code."""
    parser = argparse.ArgumentParser(prog="cgen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if one is stale")
    options = parser.parse_args(argv)
    expected = files()
    old = stale(expected)
    if options.check:
        for path in old:
            sys.stderr.write(f"cgen: {path} is not what the schema says: run cgen\n")
        return 1 if old else 0
    for path, text in expected:
        if path in old:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
