# SPDX-License-Identifier: Apache-2.0
"""What hooks touch in every step, in C where that was built, else in Python.

A hook runs right after the model has swept the caches, where a Python frame costs some ten
microseconds and the same work in C costs one. So the structs here and the fast paths of
``native/paths.c`` exist twice. The Python ones are the reference: complete, used where there
is no compiler, and what the fast paths fall back to for everything that is not in every step.

``GPUCORRELATE_NATIVE=0`` leaves the C ones out, to tell whether they are at fault.
"""

from __future__ import annotations

import functools
import importlib
import os
import struct
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucorrelate.probes.agents.buffers import Drops

#: Changes with what this module and its C twin expect of each other.
_INTERFACE = 1


def _load() -> Any:  # noqa: ANN401 - a module without Python source
    """The C twin; None when it is not there, not wanted or from another version."""
    if os.environ.get("GPUCORRELATE_NATIVE") == "0":
        return None
    try:
        found = importlib.import_module("gpucorrelate.probes.agents._hot")
    except ImportError:
        return None
    return found if getattr(found, "INTERFACE", None) == _INTERFACE else None


_native = _load()


class Switch:
    """Base of what hooks check: ``on`` says whether they report."""

    __slots__ = ("on",)
    on: bool


class Counter:
    """Base of ``Drops``: what was lost, and what voids everything stated so far."""

    __slots__ = ("count", "version")
    count: int
    version: int


class ListMemo:
    """Base of ``ListRowsets``: what was last stated of a list of request ids."""

    __slots__ = ("counts", "ids", "number", "version")
    ids: list[str] | None
    counts: list[int] | None
    number: int
    version: int


class RunnerMemo:
    """What is remembered of a model runner.

    Attributes:
        rowsets: Rowsets of its batches.
        ids_name: Attribute of its ``input_batch`` that is the list of request ids; None: it is
            to be looked for at each call.
        step: The step it executes or executed last.
        rank: The worker's rank.
        rowset: Rowset of that step.
    """

    __slots__ = ("ids_name", "rank", "rowset", "rowsets", "step")
    rowsets: Any
    ids_name: str | None
    step: int
    rank: int
    rowset: int


class StepMemo:
    """Base of ``StepRowsets``: what was last stated of steps, and of their outputs."""

    __slots__ = (
        "expected",
        "ids",
        "in_flight",
        "number",
        "output_counts",
        "output_ids",
        "output_number",
        "output_version",
        "scheduled",
        "stated_at",
        "tokens",
        "version",
    )
    scheduled: dict[str, int] | None
    ids: list[str]
    in_flight: dict[int, list[str] | None]
    output_ids: list[str] | None
    output_counts: list[int]
    expected: int
    tokens: int
    number: int
    stated_at: int
    version: int
    output_number: int
    output_version: int


class StepsMemo:
    """Base of ``Steps``: the steps of one engine core."""

    __slots__ = ("number", "open", "rowsets", "scheduler", "turned")
    open: dict[int, None]
    rowsets: Any
    scheduler: Any
    number: int
    turned: int


class Store:
    """Rows of integers, kept packed, eight bytes a value, up to a limit.

    Args:
        width: Values in a row.
        limit: Rows it holds before it refuses.
        drops: Told of each refused row.
    """

    def __init__(self, width: int, limit: int, drops: Drops) -> None:
        self._flat = bytearray()
        layout = struct.Struct(f"<{width}q")
        self._row_bytes = layout.size
        self.put = _putter(self._flat, layout, drops, limit)

    def __len__(self) -> int:
        """Rows it holds."""
        return len(self._flat) // self._row_bytes

    def take(self) -> bytes:
        """The rows so far, packed, leaving none."""
        flat = self._flat
        data = bytes(flat)
        del flat[: len(data)]
        return data


def _putter(
    flat: bytearray, layout: struct.Struct, drops: Drops, limit: int
) -> Callable[[tuple[Any, ...]], bool]:
    # A closure: names looked up in cells instead of attributes.
    pack, extend, limit_bytes = layout.pack, flat.extend, limit * layout.size

    def put(row: tuple[Any, ...]) -> bool:
        if len(flat) < limit_bytes:
            try:
                extend(pack(*row))
            except struct.error:
                drops.add(1)
                return False
            return True
        drops.add(1)
        return False

    return put


def transposed(rows: bytes, sizes: bytes) -> list[bytes]:
    """Columns of a store's rows: of each value its low bytes, as many as ``sizes`` says.

    Raises:
        ValueError: not whole rows, or a size that is none of 1, 2, 4 and 8.
    """
    width = len(sizes)
    if not width or len(rows) % (8 * width) or not set(sizes) <= set(_BY_SIZE):
        raise ValueError("not whole rows of columns of 1, 2, 4 or 8 bytes")
    if not rows:
        return [b""] * width
    view = memoryview(rows)
    # Little-endian, so a value's low bytes are its first, whatever the host's order.
    return [
        view.cast(_BY_SIZE[size])[at * (8 // size) :: width * (8 // size)].tobytes()
        for at, size in enumerate(sizes)
    ]


def identity(fd: int) -> tuple[int, int]:
    """Device and inode of an open file.

    Raises:
        OSError: the descriptor is not open.
    """
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino


_BY_SIZE: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}

if _native is not None and not TYPE_CHECKING:
    transposed, identity = _native.transposed, _native.identity
    Switch, Counter, Store = _native.Switch, _native.Counter, _native.Store
    ListMemo, RunnerMemo = _native.ListMemo, _native.RunnerMemo
    StepMemo, StepsMemo = _native.StepMemo, _native.StepsMemo

#: Whether the C ones are used.
NATIVE = _native is not None


def accelerated(
    kind: str,
    pure: Callable[..., Any],
    original: Callable[..., Any],
    part: Switch,
    drops: Counter,
    *,
    mark: int = 0,
    follow: bool = False,
    rows: object = None,
    others: object = None,
    memo: object = None,
    slow: Callable[..., Any] | None = None,
    slower: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A hook's fast path around the hook; the hook itself where there is none.

    Args:
        kind: Which fast path; ``native/paths.c`` has them, and what each makes of the rest.
        pure: The hook in Python: the reference, and the way for whole calls that are unusual.
        original: What the hook is put around.
        part: Whether it reports.
        drops: The process's count of refused rows.
        mark: A number for its rows: a span's name, a phase.
        follow: Whether the call's result says when a step ends.
        rows: Buffer that it puts rows into.
        others: Another one.
        memo: What it compares with.
        slow: What follows a call that was not as usual. Must not raise.
        slower: The same, rarer. Must not raise.
    """
    if _native is None:
        return pure
    stores = (getattr(rows, "store", None), getattr(others, "store", None))
    hook: Callable[..., Any] = _native.Hook(
        kind, pure, original, part, drops, mark, follow, *stores, memo, slow, slower
    )
    return functools.update_wrapper(hook, pure)
