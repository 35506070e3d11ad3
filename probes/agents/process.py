# SPDX-License-Identifier: Apache-2.0
"""What a process knows about itself: its threads by native id, and where its GIL lies."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from dataclasses import dataclass

#: Of <link.h>: ask dladdr1 for the ELF symbol table entry as well.
_RTLD_DL_SYMENT = 1


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("fname", ctypes.c_char_p),
        ("fbase", ctypes.c_void_p),
        ("sname", ctypes.c_char_p),
        ("saddr", ctypes.c_void_p),
    )


class _ElfSym64(ctypes.Structure):
    # Elf64_Sym of <elf.h>.
    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_ubyte),
        ("other", ctypes.c_ubyte),
        ("shndx", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Region:
    """A range of this process's memory.

    Attributes:
        address: First byte.
        size_bytes: Length; 0 when it is not known.
    """

    address: int
    size_bytes: int

    def __str__(self) -> str:
        return f"0x{self.address:x}:{self.size_bytes}"


def gil_region() -> Region | None:
    """Where the interpreter keeps its GIL: the global ``_PyRuntime``; None where unknown.

    A futex wait on an address inside it is a wait for the GIL. The size comes from the ELF
    symbol table through ``dladdr1`` (glibc), so that no offset of a Python build is assumed.
    """
    try:
        address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        dladdr1 = ctypes.CDLL(None).dladdr1
    except (AttributeError, ValueError, OSError):
        return None
    info, symbol = _DlInfo(), ctypes.POINTER(_ElfSym64)()
    found = dladdr1(
        ctypes.c_void_p(address),
        ctypes.byref(info),
        ctypes.byref(symbol),
        ctypes.c_int(_RTLD_DL_SYMENT),
    )
    known = bool(found) and bool(symbol) and info.saddr == address
    return Region(address, int(symbol.contents.size) if known else 0)


def python_version() -> str:
    """Version of the interpreter, with its implementation where that is not CPython."""
    number = ".".join(str(part) for part in sys.version_info[:3])
    name = sys.implementation.name
    return number if name == "cpython" else f"{name} {number}"


def threads() -> list[tuple[int, str]]:
    """Native id and name of every Python thread of this process, the main thread first."""
    main = os.getpid()
    rows = [
        (thread.native_id, thread.name)
        for thread in threading.enumerate()
        if thread.native_id is not None
    ]
    rows.sort(key=lambda row: (row[0] != main, row[0]))
    return rows


def process_name() -> str:
    """Name ``multiprocessing`` gave this process; empty when it was not asked to start it."""
    module = sys.modules.get("multiprocessing.process")
    if module is None:
        return ""
    return str(module.current_process().name)
