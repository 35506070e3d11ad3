# SPDX-License-Identifier: Apache-2.0
"""For BCC: kernel types laid out by BTF, instructions with maps put in; no kernel needed."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.ebpf import bcc, bcc_object, kernel_types, layout, support, syscall_kinds
from gpucorrelate.probes.ebpf.btf import Btf, BtfKind, Field
from gpucorrelate.probes.ebpf.decode import SUM_KEY, SUM_VALUE
from gpucorrelate.probes.ebpf.layout import MapSlot
from gpucorrelate.probes.ebpf.ring import RECORD
from gpucorrelate.probes.wire.errors import KernelSupportError
from gpucorrelate.probes.wire.schema import WaitKind

EBPF = Path(bcc.__file__).resolve().parent


class Made:
    """A BTF blob in the making; methods return the id of what they add."""

    def __init__(self) -> None:
        self._types: list[bytes] = []
        self._strings = b"\0"

    def name(self, text: str) -> int:
        if not text:
            return 0
        at = len(self._strings)
        self._strings += text.encode() + b"\0"
        return at

    def add(self, kind: int, name: str, size_or_type: int, parts: int = 0, rest: bytes = b"",
            flag: int = 0) -> int:  # fmt: skip
        info = flag << 31 | kind << 24 | parts
        self._types.append(struct.pack("<3I", self.name(name), info, size_or_type) + rest)
        return len(self._types)

    def integer(self, size: int) -> int:
        return self.add(BtfKind.INT, f"int{size}", size, rest=struct.pack("<I", size * 8))

    def struct(self, name: str, size: int, members: list[tuple[str, int, int]], *,
               kind: int = BtfKind.STRUCT, widths: tuple[int, ...] = ()) -> int:  # fmt: skip
        """``members``: name, type and offset in bits; with ``widths`` of bit fields."""
        rest = b""
        for index, (field, type_id, bits) in enumerate(members):
            where = widths[index] << 24 | bits if widths else bits
            rest += struct.pack("<3I", self.name(field), type_id, where)
        return self.add(kind, name, size, len(members), rest, flag=int(bool(widths)))

    def blob(self) -> bytes:
        types = b"".join(self._types)
        head = struct.pack(
            "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self._strings)
        )
        return head + types + self._strings


def a_kernel() -> bytes:
    """A struct with everything that the reader must see through."""
    made = Made()
    four, eight = made.integer(4), made.integer(8)
    inner = made.struct("inner", 16, [("deep", eight, 64)])
    pointer = made.add(BtfKind.PTR, "", inner)
    named = made.add(BtfKind.TYPEDEF, "named_t", made.add(BtfKind.CONST, "", four))
    made.add(BtfKind.ENUM, "skipped", 4, 2, struct.pack("<4I", 0, 0, 0, 1))
    array = made.add(BtfKind.ARRAY, "", 0, rest=struct.pack("<3I", eight, four, 3))
    union = made.struct("", 16, [("left", four, 0), ("right", inner, 0)], kind=BtfKind.UNION)
    made.add(BtfKind.TYPEDEF, "btf_trace_thing", pointer)
    made.struct("thing", 96, [("first", named, 32), ("", union, 128), ("to", pointer, 256),
                              ("many", array, 320)])  # fmt: skip
    made.struct("packed_bits", 8, [("one", four, 0), ("two", four, 3)], widths=(3, 5))
    return made.blob()


NAMES = ("thing", "inner", "packed_bits", "btf_trace_thing", "nothing")


def test_fields_are_found_through_typedefs_arrays_and_unnamed_unions() -> None:
    btf = Btf(a_kernel(), NAMES)
    assert btf.fields("thing") == {
        "first": Field(4, 4, bits=False),
        "left": Field(16, 4, bits=False),
        "right": Field(16, 16, bits=False),
        "to": Field(32, 8, bits=False),
        "many": Field(40, 24, bits=False),
    }
    assert (btf.size_of("thing"), btf.size_of("nothing")) == (96, None)
    assert btf.fields("nothing") == {}
    assert btf.fields("packed_bits")["two"].bits
    # Of that name there is a typedef and nothing else.
    assert btf.id_of(BtfKind.TYPEDEF, "btf_trace_thing") is not None
    assert btf.id_of(BtfKind.FUNC, "btf_trace_thing") is None


@given(st.data())
def test_a_damaged_blob_is_refused_or_read_never_more(data: st.DataObject) -> None:
    blob = bytearray(a_kernel())
    if data.draw(st.booleans()):
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
    else:
        at = data.draw(st.integers(0, len(blob) - 4))
        struct.pack_into("<I", blob, at, data.draw(st.integers(0, 2**32 - 1)))
    try:
        btf = Btf(bytes(blob), NAMES)
        for name in NAMES:
            btf.fields(name)
    except KernelSupportError as exc:
        assert "BTF cannot be read" in exc.message


TEXT = """struct inner {
\t__u64 deep;
} GPC_CORE;

struct thing {
\tstruct inner *to;
\tint first;
\tstruct inner right;
\t__u64 many[3];
\tint maybe;
} GPC_CORE;
"""
MAYBE = frozenset({("thing", "maybe")})


def test_every_field_is_put_where_this_kernel_has_it() -> None:
    made = kernel_types.layout(Btf(a_kernel(), NAMES), TEXT, MAYBE)
    assert "#define GPC_HAS_thing_maybe 0" in made
    for name, offset in (("to", 32), ("first", 4), ("right", 16), ("many", 40)):
        assert f'__builtin_offsetof(struct thing, {name}) == {offset}, "thing.{name}"' in made
    assert 'sizeof(struct thing) == 96, "thing"' in made
    # In the order in which they lie, with what is between them, and not a byte more.
    body = made[
        made.index("struct thing {") : made.index("_Static_assert(__builtin_offsetof(struct th")
    ]
    assert re.findall(r"(\w+)(?:\[(\d+)\])?;", body) == [
        ("gpc_gap0", "4"), ("first", ""), ("gpc_gap1", "8"), ("right", ""), ("to", ""),
        ("many", "3"), ("gpc_rest", "32"), ("maybe", ""),
    ]  # fmt: skip
    # A joined load of two neighbours is refused by the verifier.
    assert "int volatile first;" in body and "struct inner *volatile to;" in body


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("struct thing {\n\tint gone;\n} GPC_CORE;\n", "has no gone"),
        ("struct nothing {\n\tint first;\n} GPC_CORE;\n", "has no first"),
        ("struct thing {\n\t__u64 first;\n} GPC_CORE;\n", "4 bytes instead of 8"),
        ("struct thing {\n\tint left;\n\tstruct inner right;\n} GPC_CORE;\n", "shares its bytes"),
        ("struct packed_bits {\n\tint two;\n} GPC_CORE;\n", "bit field"),
    ],
)
def test_what_would_be_read_wrongly_is_not_compiled(text: str, why: str) -> None:
    with pytest.raises(KernelSupportError, match=why) as caught:
        kernel_types.layout(Btf(a_kernel(), NAMES), text, frozenset())
    assert caught.value.hint


def test_every_declared_field_is_read() -> None:
    """A line that the reader passes over would be missing in what BCC compiles."""
    text = (EBPF / "types.bpf.h").read_text()
    known = kernel_types.declared(text)
    assert len(known) == text.count("} GPC_CORE;") == len(re.findall("^struct ", text, re.M))
    fields = sum(len(fields) for fields in known.values())
    assert fields == len(re.findall(r"^\t.*;$", text, re.M)) >= 40
    assert {field.name for field in known["task_struct"]} >= {"pid", "tgid", "comm", "__state"}


def test_programs_are_attached_where_their_sections_say() -> None:
    text = "".join(path.read_text() for path in EBPF.glob("*.bpf.h"))
    sections = re.findall(r'SEC\("tp_btf/(\w+)"\)\nint BPF_PROG\((\w+)', text)
    assert {program: point for point, program in sections} == support.tracepoints()
    others = re.findall(r'SEC\("(iter/task|perf_event)"\)\nint (\w+)\(', text)
    assert {program for _, program in others} == {support.WALK_PROGRAM, *support.FAULT_EVENTS}


def test_sizes_are_those_of_what_is_decoded() -> None:
    assert RECORD.itemsize == layout.REC_BYTES
    assert (SUM_KEY.itemsize, SUM_VALUE.itemsize) == (layout.SUM_KEY_BYTES, layout.SUM_BYTES)
    table = syscall_kinds.table()
    assert len(table) == syscall_kinds.KINDS
    assert (table[202], table[0], table[1], table[39]) == (
        WaitKind.FUTEX, WaitKind.READ, WaitKind.WRITE, WaitKind.OTHER)  # fmt: skip


def _load(source: int, value: int) -> bytes:
    return struct.pack("<BBhiBBhi", 0x18, source << 4 | 1, 0, value, 0, 0, 0, 0)


def test_maps_are_put_where_the_compiler_left_marks() -> None:
    fds = {slot: 100 + slot for slot in MapSlot}
    mark = layout.MAP_MARK
    # A plain number that looks like a mark stays, also as the second half of another load.
    code = _load(1, mark + MapSlot.RINGS) + _load(0, mark) + _load(2, mark + MapSlot.CPUS)
    expected = _load(1, 107) + _load(0, mark) + _load(2, 104)
    assert bcc_object.relocated(code, fds) == expected


@pytest.mark.parametrize("value", [0, -1, layout.MAP_MARK - 1, layout.MAP_MARK + len(MapSlot)])
def test_an_unknown_map_is_refused(value: int) -> None:
    with pytest.raises(KernelSupportError, match="unknown map"):
        bcc_object.relocated(_load(1, value), {})


def test_the_types_of_storage_are_btf_of_that_size() -> None:
    btf = Btf(bcc_object.storage_types(168), ["gpc_state", "int"])
    assert btf.id_of(BtfKind.INT, "int") == 1
    assert btf.id_of(BtfKind.STRUCT, "gpc_state") == 4
    assert btf.size_of("gpc_state") == 168
    assert btf.fields("gpc_state") == {"bytes": Field(0, 168, bits=False)}
