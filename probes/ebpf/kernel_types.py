# SPDX-License-Identifier: Apache-2.0
"""The kernel types that the programs touch, laid out as the running kernel has them.

``types.bpf.h`` declares the fields that are read. libbpf moves accesses by relocations; BCC knows
none, and against headers of another kernel it reads wrong memory and says nothing. So for it the
same declarations are written out with every field at its offset in the running kernel's BTF, and
the compiler asserts each. Pure but for the file it reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import KernelSupportError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.probes.ebpf.btf import Btf, Field

_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\} GPC_CORE;", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\t(.*?\W)(\w+)(?:\[(\d+)\])?;$", re.MULTILINE)
#: Fields that a program asks for before it reads them.
_ASKED = re.compile(r"\bGPC_HAS\((\w+), (\w+)\)")
_EMBEDDED = re.compile(r"struct (\w+) $")
_SIZES = {"__u8": 1, "char": 1, "__u16": 2, "__u32": 4, "int": 4, "unsigned int": 4,
          "__u64": 8, "unsigned long": 8, "atomic_t": 4}  # fmt: skip
_POINTER_BYTES = 8


@dataclass(frozen=True)
class Declared:
    """One field as the programs declare it.

    Attributes:
        name: Its name.
        ctype: What stands before the name.
        count: Elements of an array; 0: it is none.
    """

    name: str
    ctype: str
    count: int

    @property
    def text(self) -> str:
        """The declaration.

        Volatile, as a load must be of one field: the compiler joins loads of neighbours, which the
        kernel's verifier refuses.
        """
        if self.count:
            return f"{self.ctype}{self.name}[{self.count}];"
        return f"{self.ctype}volatile {self.name};"


def declared(text: str) -> dict[str, tuple[Declared, ...]]:
    """The structs of ``types.bpf.h`` and their fields, in the order in which they stand."""
    return {
        name: tuple(
            Declared(field, ctype, int(count or 0)) for ctype, field, count in _FIELD.findall(body)
        )
        for name, body in _STRUCT.findall(text)
    }


def asked_for(sources: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Fields that a kernel may lack, because the programs ask first."""
    return frozenset(pair for text in sources for pair in _ASKED.findall(text))


def layout(btf: Btf, text: str, optional: frozenset[tuple[str, str]]) -> str:
    """The declarations of ``types.bpf.h`` with the running kernel's layout, as C.

    Args:
        btf: The kernel's types; must know the structs by name.
        text: ``types.bpf.h``.
        optional: Fields that may be missing, as (struct, field).

    Raises:
        KernelSupportError: the kernel lacks a field, or has it in a form that we do not read.
    """
    parts = [_struct(btf, name, fields, optional) for name, fields in declared(text).items()]
    missing = [
        f"#define GPC_HAS_{name}_{field} {int(field in btf.fields(name))}"
        for name, field in sorted(optional)
    ]
    return "\n".join([*missing, "", *parts])


def _struct(
    btf: Btf, name: str, fields: tuple[Declared, ...], optional: frozenset[tuple[str, str]]
) -> str:
    known = btf.fields(name)
    absent = [field for field in fields if field.name not in known]
    if needed := [field.name for field in absent if (name, field.name) not in optional]:
        raise KernelSupportError(
            f"the kernel's struct {name} has no {', '.join(needed)}",
            hint="it is older or newer than the programs know: report its release",
        )
    present = [field for field in fields if field.name in known]
    for field in present:
        _check(btf, name, field, known[field.name])
    present.sort(key=lambda field: known[field.name].offset_bytes)
    body, end = _body(btf, name, present)
    size = btf.size_of(name) or 0
    if end < size:
        body.append(f"char gpc_rest[{size - end}];")
    if absent:
        # Declared only so that what is never run compiles: the struct must not grow.
        body = ["union {", "struct {", *body, "};", *(field.text for field in absent), "};"]
    checks = [
        f"_Static_assert(__builtin_offsetof(struct {name}, {field.name}) == "
        f'{known[field.name].offset_bytes}, "{name}.{field.name}");'
        for field in present
    ]
    if present and end <= size:
        checks.append(f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");')
    return "\n".join([f"struct {name} {{", *body, "};", *checks, ""])


def _body(btf: Btf, name: str, present: list[Declared]) -> tuple[list[str], int]:
    """The fields with what lies between them, and where the last ends."""
    known, lines, end = btf.fields(name), [], 0
    for number, field in enumerate(present):
        offset = known[field.name].offset_bytes
        if offset < end:
            raise _unread(name, field.name, "shares its bytes with another")
        if offset > end:
            lines.append(f"char gpc_gap{number}[{offset - end}];")
        lines.append(field.text)
        end = offset + _declared_bytes(btf, field)
    return lines, end


def _check(btf: Btf, name: str, field: Declared, there: Field) -> None:
    if there.bits:
        raise _unread(name, field.name, "is a bit field")
    wanted = _declared_bytes(btf, field)
    # An array without length, or with one of 1, is read as far as another field says.
    if field.count != 1 and there.size_bytes != wanted:
        raise _unread(name, field.name, f"has {there.size_bytes} bytes instead of {wanted}")


def _declared_bytes(btf: Btf, field: Declared) -> int:
    ctype = field.ctype.strip()
    if ctype.endswith("*"):
        size = _POINTER_BYTES
    elif embedded := _EMBEDDED.match(field.ctype):
        size = btf.size_of(embedded[1]) or 0
    else:
        size = _SIZES[ctype]
    return size * max(field.count, 1)


def _unread(struct: str, field: str, why: str) -> KernelSupportError:
    return KernelSupportError(
        f"the kernel's {struct}.{field} {why}",
        hint="it is not laid out as the programs read it: report its release",
    )
