# SPDX-License-Identifier: Apache-2.0
"""The running kernel's own description of its types (BTF): where fields lie, what ids are.

The format is Documentation/bpf/btf.rst of Linux; everything is checked against the blob's bounds.
"""

from __future__ import annotations

import enum
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import KernelSupportError

if TYPE_CHECKING:
    from collections.abc import Iterable

VMLINUX = Path("/sys/kernel/btf/vmlinux")

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_MEMBER = struct.Struct("<III")
_ARRAY = struct.Struct("<III")
_POINTER_BYTES = 8
#: Chains of typedefs and qualifiers, and nested unions, are far shorter in any kernel.
_MAX_DEPTH = 32
#: Members of one struct with those nested in it; ``task_struct`` has some 300.
_MAX_MEMBERS = 1 << 16


class BtfKind(enum.IntEnum):
    """Kinds of types (``BTF_KIND_*`` of include/uapi/linux/btf.h)."""

    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15
    FLOAT = 16
    DECL_TAG = 17
    TYPE_TAG = 18
    ENUM64 = 19


#: Bytes that follow a type of each kind: so many, and so many more for each of its parts.
_AFTER = {
    BtfKind.INT: (4, 0), BtfKind.ARRAY: (12, 0), BtfKind.STRUCT: (0, 12), BtfKind.UNION: (0, 12),
    BtfKind.ENUM: (0, 8), BtfKind.FUNC_PROTO: (0, 8), BtfKind.VAR: (4, 0),
    BtfKind.DATASEC: (0, 12), BtfKind.DECL_TAG: (4, 0), BtfKind.ENUM64: (0, 12),
}  # fmt: skip
_FIXED = tuple(_AFTER.get(BtfKind(kind), (0, 0))[0] if kind else 0 for kind in range(20))
_EACH = tuple(_AFTER.get(BtfKind(kind), (0, 0))[1] if kind else 0 for kind in range(20))
_SEE_THROUGH = frozenset(
    {BtfKind.TYPEDEF, BtfKind.VOLATILE, BtfKind.CONST, BtfKind.RESTRICT, BtfKind.TYPE_TAG}
)
_SIZED = frozenset(
    {BtfKind.INT, BtfKind.STRUCT, BtfKind.UNION, BtfKind.ENUM, BtfKind.FLOAT, BtfKind.ENUM64}
)


@dataclass(frozen=True)
class Field:
    """Where a field lies in its struct.

    Attributes:
        offset_bytes: From the struct's beginning.
        size_bytes: Its own; 0 for an array without length.
        bits: Whether it is a bit field, whose bits no plain access finds.
    """

    offset_bytes: int
    size_bytes: int
    bits: bool


class Btf:
    """One blob, and the ids of the types asked for.

    Args:
        data: The blob.
        names: Names that will be looked up; others are not indexed.

    Raises:
        KernelSupportError: it is no BTF, or of a kind unknown here.
    """

    def __init__(self, data: bytes, names: Iterable[str]) -> None:
        self._data = data
        self._members_left = 0
        try:
            self._read(frozenset(names))
        except (struct.error, IndexError, ValueError) as exc:
            raise _damaged("it ends too early") from exc

    @classmethod
    def of_kernel(cls, names: Iterable[str]) -> Btf:
        """The running kernel's.

        Raises:
            KernelSupportError: the kernel describes no types, or not readably.
        """
        try:
            data = VMLINUX.read_bytes()
        except OSError as exc:
            raise KernelSupportError(
                f"the kernel has no BTF ({VMLINUX}): {exc.strerror}",
                hint="use a kernel built with CONFIG_DEBUG_INFO_BTF=y; Debian's and Ubuntu's are",
            ) from exc
        return cls(data, names)

    def _read(self, names: frozenset[str]) -> None:
        header = _HEADER.unpack_from(self._data)
        magic, _, _, header_bytes, types_at, types_bytes, strings_at, strings_bytes = header
        if magic != _MAGIC:
            raise _damaged("its first bytes are not BTF's")
        begin = header_bytes + strings_at
        self._strings = self._data[begin : begin + strings_bytes]
        wanted = {
            at + 1: name
            for name in names
            if (at := self._strings.find(b"\0" + name.encode() + b"\0")) >= 0
        }
        self._ids: dict[tuple[int, str], int] = {}
        self._at = array("I", [0])
        self._index(header_bytes + types_at, types_bytes, wanted)

    def _index(self, begin: int, size: int, wanted: dict[int, str]) -> None:
        at, end, read, data = begin, begin + size, _TYPE.unpack_from, self._data
        places, fixed, each = self._at, _FIXED, _EACH
        while at < end:
            name_at, info, _ = read(data, at)
            kind = info >> 24 & 31
            if not 0 < kind < len(fixed):
                raise _damaged(f"a type of unknown kind {kind}")
            if name_at in wanted:
                self._ids.setdefault((kind, wanted[name_at]), len(places))
            places.append(at)
            at += 12 + fixed[kind] + each[kind] * (info & 0xFFFF)

    def id_of(self, kind: BtfKind, name: str) -> int | None:
        """The id of a type; ``None``: the kernel has none of that name."""
        return self._ids.get((kind, name))

    def size_of(self, struct_name: str) -> int | None:
        """Bytes of a struct; ``None``: the kernel has none of that name."""
        found = self.id_of(BtfKind.STRUCT, struct_name)
        return None if found is None else int(_TYPE.unpack_from(self._data, self._at[found])[2])

    def fields(self, struct_name: str) -> dict[str, Field]:
        """The fields of a struct, those of unnamed structs and unions in it too; empty: none.

        Raises:
            KernelSupportError: the blob is damaged.
        """
        found: dict[str, Field] = {}
        self._members_left = _MAX_MEMBERS
        top = self.id_of(BtfKind.STRUCT, struct_name)
        try:
            if top is not None:
                self._members(top, 0, found, 0)
        except (struct.error, IndexError, ValueError) as exc:
            raise _damaged(f"struct {struct_name} points outside of it") from exc
        return found

    def _members(self, type_id: int, base: int, found: dict[str, Field], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _damaged("types nested without end")
        place = self._at[type_id]
        _, info, _ = _TYPE.unpack_from(self._data, place)
        self._members_left -= info & 0xFFFF
        if self._members_left < 0:
            raise _damaged("types nested without end")
        for index in range(info & 0xFFFF):
            name_at, inner, where = _MEMBER.unpack_from(self._data, place + 12 + 12 * index)
            # With the flag, the upper byte is a bit field's width.
            bits, width = (where & 0xFFFFFF, where >> 24) if info >> 31 else (where, 0)
            if not name_at:
                self._unnamed(inner, base + bits // 8, found, depth)
                continue
            name = self._string(name_at)
            field = Field(base + bits // 8, self._size(inner), bool(width or bits % 8))
            found.setdefault(name, field)

    def _unnamed(self, type_id: int, base: int, found: dict[str, Field], depth: int) -> None:
        _, info, _ = _TYPE.unpack_from(self._data, self._at[type_id])
        if info >> 24 & 31 in {BtfKind.STRUCT, BtfKind.UNION}:
            self._members(type_id, base, found, depth + 1)

    def _size(self, type_id: int) -> int:
        count = 1
        for _ in range(_MAX_DEPTH):
            if not type_id:
                return 0
            place = self._at[type_id]
            _, info, size_or_type = _TYPE.unpack_from(self._data, place)
            kind = info >> 24 & 31
            if kind in _SIZED:
                return count * int(size_or_type)
            if kind == BtfKind.PTR:
                return count * _POINTER_BYTES
            if kind == BtfKind.ARRAY:
                type_id, _, length = _ARRAY.unpack_from(self._data, place + 12)
                count *= length
            elif kind in _SEE_THROUGH:
                type_id = size_or_type
            else:
                return 0
        raise _damaged("a type that names itself")

    def _string(self, at: int) -> str:
        return self._strings[at : self._strings.index(b"\0", at)].decode("utf-8", "replace")


def _damaged(why: str) -> KernelSupportError:
    return KernelSupportError(f"the kernel's BTF cannot be read: {why}", hint="report the kernel")
