# SPDX-License-Identifier: Apache-2.0
"""The native half of the GPU agent, by way of ctypes.

All calls let go of the interpreter's lock. They are made by one thread, the process's sender;
nothing here runs per record.
"""

from __future__ import annotations

import ctypes
import enum
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.probes.wire.frame import StringTable
    from gpucorrelate.probes.wire.schema import Kind

LIBRARY = Path(__file__).with_name("_cupti.so")

#: Kinds of rows, in the shim's order (``cgen.C_KINDS``).
KINDS = ("cuda_api", "gpu_op", "gpu_sync", "clock_pair")

#: Names the shim keeps (``gcu.h``, GCU_NAMES), and the longest of them in bytes.
_NAMES = 16_384
_NAME_BYTES = 1000
_WHY_BYTES = 256
#: Most rows taken of a kind at once: at 250 bytes a record of CUPTI's, what 64 MiB hold.
_MAX_ROWS = 1 << 18

_CHUNK_ROWS = 2048

_MAPPED = re.compile(r"(/\S*/libcupti\.so[^\s/]*)$")
_DRIVER = re.compile(r"/libcuda\.so[^\s/]*$")


class Window(enum.IntFlag):
    """What a window records (``cupti.c``). Kernels outside graphs, copies and fills always."""

    GRAPHS = 1  # each launch of a CUDA graph as a whole
    NODES = 2  # each kernel in a graph
    SYNCS = 4
    CALLS = 8


class Refused(enum.IntEnum):
    """Why the shim does not open or begin (``cupti.c``)."""

    NO_LIBRARY = 1
    UNKNOWN_VERSION = 2
    NO_FUNCTION = 3
    NO_MEMORY = 4
    BUSY = 5
    REFUSED = 6
    LAYOUT = 7


class ShimError(Exception):
    """The shim refuses. ``code`` says what kind of refusal, the text says why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True)
class Settings:
    """Bounds of what the shim keeps.

    Attributes:
        buffer_bytes: Of one of CUPTI's buffers.
        buffers: In the pool; without a free one CUPTI drops records and counts them.
        chunks: Of up to 2,048 rows each that may wait for the sender.
        version: Test builds: the CUPTI version whose records are fed by hand.
    """

    buffer_bytes: int = 1 << 20
    buffers: int = 32
    chunks: int = 128
    version: int = 0


@dataclass(frozen=True)
class Counts:
    """What the shim has seen and lost since it was opened; meanings in ``gcu.h``."""

    records: int
    buffers: int
    refused: int
    cupti_dropped: int
    unread_bytes: int
    lost_rows: int
    lost_names: int
    overhead_ns: int
    busy_ns: int
    clock_steps: int
    rows: tuple[int, ...]
    waiting: tuple[int, ...]


class _Settings(ctypes.Structure):
    _fields_ = (
        ("buffer_bytes", ctypes.c_uint32),
        ("buffers", ctypes.c_uint32),
        ("chunks", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
    )


_SCALARS = (
    "records", "buffers", "refused", "cupti_dropped", "unread_bytes", "lost_rows", "lost_names",
    "overhead_ns", "busy_ns", "clock_steps",
)  # fmt: skip


class _Counts(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in _SCALARS),
        ("rows", ctypes.c_uint64 * len(KINDS)),
        ("waiting", ctypes.c_uint64 * len(KINDS)),
    )


class Shim:
    """The shim of this process.

    Args:
        library: The compiled shim.

    Raises:
        OSError: it is not there, or cannot be loaded.
    """

    def __init__(self, library: Path = LIBRARY) -> None:
        self.library = ctypes.CDLL(str(library))
        self._why = ctypes.create_string_buffer(_WHY_BYTES)
        self._name = ctypes.create_string_buffer(_NAME_BYTES)
        for name in ("gcu_take", "gcu_name", "gcu_distinct", "gcu_version", "gcu_width"):
            getattr(self.library, name).restype = ctypes.c_uint32
        self._numbers = (ctypes.c_uint32 * _NAMES)()
        self._wire = (ctypes.c_uint32 * _NAMES)()

    def open(self, cupti: str | None, settings: Settings) -> None:
        """Make ready for a CUPTI that is mapped in this process (see ``mapped``).

        Raises:
            ShimError: it cannot.
        """
        path = None if cupti is None else cupti.encode()
        raw = _Settings(settings.buffer_bytes, settings.buffers, settings.chunks, settings.version)
        self._check(self.library.gcu_open(ctypes.byref(raw), path, self._why, _WHY_BYTES))

    def check_layout(self, cupti: str) -> None:
        """Compare the lengths of records with the library's own steps.

        Only for versions that answer, or where a driver is there: others crash without one.

        Raises:
            ShimError: they differ, or the library does not answer.
        """
        self._check(self.library.gcu_layout(cupti.encode(), self._why, _WHY_BYTES))

    @property
    def version(self) -> int:
        """CUPTI's version."""
        return int(self.library.gcu_version())

    def begin(self, what: Window) -> None:
        """Begin a window.

        Raises:
            ShimError: CUPTI is somebody else's, or refuses.
        """
        self._check(self.library.gcu_begin(int(what), self._why, _WHY_BYTES))

    def end(self) -> None:
        """End the window; what was under way is read."""
        self.library.gcu_end()

    def flush(self, *, whole: bool) -> None:
        """Read what CUPTI has completed; ``whole``: also buffers that are not full."""
        self.library.gcu_flush(int(whole))

    def close(self) -> bool:
        """End; False while CUPTI holds a buffer, then it may be tried again."""
        return int(self.library.gcu_close()) == 0

    def counts(self) -> Counts:
        """What was seen and lost so far."""
        raw = _Counts()
        self.library.gcu_counted(ctypes.byref(raw))
        scalars = {name: int(getattr(raw, name)) for name in _SCALARS}
        return Counts(**scalars, rows=tuple(raw.rows), waiting=tuple(raw.waiting))

    def take(self, kind: int, waiting: int) -> tuple[int, bytearray]:
        """Rows of a kind, ``waiting`` and what came meanwhile: count and columns."""
        width = int(self.library.gcu_width(kind))
        # Chunks are taken whole, and the last one may have grown since it was looked at.
        most = min(waiting + _CHUNK_ROWS, _MAX_ROWS)
        data = bytearray(most * width)
        raw = (ctypes.c_uint8 * len(data)).from_buffer(data)
        rows = int(self.library.gcu_take(kind, most, raw))
        del raw
        return rows, data

    def rows(self, name: str) -> ShimRows:
        """Rows of a kind that wait, as a source of the transport."""
        return ShimRows(self, name)

    def on_wire(self, column: memoryview, strings: StringTable) -> bytes:
        """A column of the shim's numbers of names as ids of the stream's strings."""
        numbers = bytearray(column)
        count = len(numbers) // 4
        raw = (ctypes.c_uint32 * count).from_buffer(numbers)
        distinct = int(self.library.gcu_distinct(raw, count, self._numbers, _NAMES))
        for number in self._numbers[:distinct]:
            self._wire[number] = strings.id(self._text(number)) if number else 0
        self.library.gcu_replace(raw, count, self._wire)
        del raw
        return bytes(numbers)

    def _text(self, number: int) -> str:
        size = self.library.gcu_name(number, self._name, _NAME_BYTES)
        # A name that was cut may end in half a character.
        return self._name.raw[:size].decode("utf-8", "replace") or "?"

    def _check(self, code: int) -> None:
        if code:
            raise ShimError(code, self._why.value.decode("utf-8", "replace"))


def driver_mapped(maps: Iterable[str]) -> bool:
    """Whether the CUDA driver is in the process, from the lines of ``/proc/self/maps``.

    Without it nothing of CUPTI's may be called: version 13.2 crashes on the first call.
    """
    return any(_DRIVER.search(line.rstrip("\n")) for line in maps)


def mapped(maps: Iterable[str]) -> str | None:
    """The path of the CUPTI that is mapped, from the lines of ``/proc/self/maps``.

    More than one may be: the newest by name, which is the one PyTorch was built for.
    """
    found = {match.group(1) for line in maps if (match := _MAPPED.search(line.rstrip("\n")))}
    return max(found, default=None)


class ShimRows:
    """Rows of one kind that wait in the shim: a source of the transport.

    Args:
        shim: The shim.
        name: One of ``KINDS``.
    """

    def __init__(self, shim: Shim, name: str) -> None:
        self.kind: Kind = BY_NAME[name]
        self._shim = shim
        self._number = KINDS.index(name)

    def __len__(self) -> int:
        """Rows that wait."""
        return self._shim.counts().waiting[self._number]

    def take(self) -> list[tuple[int, bytearray]]:
        """What waits now, as count and columns one after the other."""
        waiting = len(self)
        return [self._shim.take(self._number, waiting)] if waiting else []

    def columns(
        self, rows: list[tuple[int, bytearray]], strings: StringTable
    ) -> tuple[int, tuple[bytes, ...]]:
        """Row count and columns of what ``take`` returned."""
        if not rows:
            return 0, ()
        ((count, data),) = rows
        at, columns = 0, []
        view = memoryview(data)
        for column in self.kind.columns:
            part = view[at : at + count * column.size_bytes]
            at += len(part)
            columns.append(
                self._shim.on_wire(part, strings) if column.ctype == "str" else bytes(part)
            )
        return count, tuple(columns)
