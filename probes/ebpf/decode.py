# SPDX-License-Identifier: Apache-2.0
"""Kernel records to rows of the schema: pure, whole arrays at a time."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.ebpf.ring import as_records, as_words
from gpucorrelate.probes.ebpf.syscall_numbers import ARM64, ARM64_TO_X86_64, SAME_FROM, UNKNOWN
from gpucorrelate.probes.ebpf.values import Rows
from gpucorrelate.probes.wire.schema import (
    BY_NAME,
    FaultFlag,
    KernelRecord,
    SpinSource,
    TaskEvent,
    WaitFlag,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpucorrelate.probes.wire.frame import StringTable

_NUMPY = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8",
          "i16": "<i2", "i64": "<i8", "str": "<u4"}  # fmt: skip
_U32 = np.uint64(0xFFFFFFFF)
_SYSCALLS = {"syscall", "waker_syscall"}

#: Key and value of the sums of short waits, as the structs in waits.bpf.h.
SUM_KEY = np.dtype([("tid", "<u4"), ("tgid", "<u4"), ("wait_kind", "<u4")])
SUM_VALUE = np.dtype(
    [(name, "<u8") for name in ("count", "sum_ns", "runq_ns", "max_ns", "start_ns", "end_ns")]
)


def _arm64_table() -> NDArray[np.int16]:
    found = np.arange(1 << 15, dtype="<i2")
    found[:SAME_FROM] += UNKNOWN
    for theirs, ours in ARM64_TO_X86_64:
        found[theirs] = ours
    return found


_TABLES = {ARM64: _arm64_table()}


def as_x86_64(numbers: NDArray[np.generic], machine: str) -> NDArray[np.generic]:
    """Numbers of a machine's system calls as those of x86-64; negative ones stay."""
    if machine not in _TABLES:
        return numbers
    theirs = numbers.astype("<i2")
    return np.where(theirs < 0, theirs, _TABLES[machine][np.maximum(theirs, 0)])


def _rows(name: str, count: int, fields: Mapping[str, NDArray[np.generic]]) -> Rows:
    kind = BY_NAME[name]
    columns = tuple(
        np.ascontiguousarray(fields[column.name], dtype=_NUMPY[column.ctype]).tobytes()
        for column in kind.columns
    )
    return Rows(kind, count, columns)


def _named(records: NDArray[np.void]) -> dict[str, NDArray[np.generic]]:
    fields = {name: records[name] for name in records.dtype.names or ()}
    for name in _SYSCALLS & fields.keys():
        fields[name] = as_x86_64(fields[name], platform.machine())
    return fields


def wait_rows(records: NDArray[np.void]) -> Rows:
    """Rows of kind ``wait``."""
    fields = _named(records)
    fields |= {"ran_tid": records["arg2"] & _U32, "ran_tgid": records["arg2"] >> np.uint64(32)}
    fields |= {"throttled_ns": records["block_ns"]}
    return _rows("wait", len(records), fields)


def fault_rows(records: NDArray[np.void]) -> Rows:
    """Rows of kind ``fault``."""
    fields = _named(records)
    fields |= {"addr": records["arg"], "inode": records["arg2"], "dev": records["op"]}
    return _rows("fault", len(records), fields)


def comms_of(records: NDArray[np.void]) -> list[str]:
    """The thread names that task records carry."""
    raw = np.empty((len(records), 2), dtype="<u8")
    raw[:, 0] = records["arg"]
    raw[:, 1] = records["arg2"]
    return [text.decode("utf-8", "replace") for text in raw.view("S16").ravel().tolist()]


def task_rows(records: NDArray[np.void], strings: StringTable) -> Rows:
    """Rows of kind ``task``."""
    fields = _named(records)
    names = np.array([strings.id(text) for text in comms_of(records)], dtype="<u4")
    fields |= {
        "t_ns": records["start_ns"],
        "event": records["op"],
        "comm": names,
        "parent_tgid": records["waker_tid"],
        "ns_tid": records["block_ns"] & _U32,
        "ns_tgid": records["block_ns"] >> np.uint64(32),
        "parent_tid": records["waker_tgid"],
    }
    return _rows("task", len(records), fields)


def spin_rows(records: NDArray[np.void]) -> Rows:
    """Rows of kind ``spin``."""
    fields = _named(records)
    source = np.full(len(records), SpinSource.YIELD_RUN, dtype="u1")
    fields |= {"count": records["arg2"], "source": source}
    return _rows("spin", len(records), fields)


def sum_rows(keys: bytes, values: bytes) -> Rows:
    """Rows of kind ``wait_sum`` from the entries of a window."""
    key = np.frombuffer(keys, SUM_KEY)
    value = np.frombuffer(values, SUM_VALUE)
    return _rows("wait_sum", len(key), _named(key) | _named(value))


def by_kind(records: NDArray[np.void]) -> dict[KernelRecord, NDArray[np.void]]:
    """The records parted by kind, each part in their order; kinds without records are left out."""
    kinds = np.ascontiguousarray(records["rec_kind"])
    counts = np.bincount(kinds, minlength=max(KernelRecord) + 1)
    found: dict[KernelRecord, NDArray[np.void]] = {}
    for kind in KernelRecord:
        if counts[kind] == len(records) > 0:
            return {kind: records}
        if counts[kind]:
            found[kind] = as_records(as_words(records)[kinds == kind])
    return found


def rows_of(parts: Mapping[KernelRecord, NDArray[np.void]], strings: StringTable) -> list[Rows]:
    """Rows of every part; names go into the string table."""
    found: list[Rows] = []
    if KernelRecord.TASK in parts:
        found.append(task_rows(parts[KernelRecord.TASK], strings))
    makers = (
        (KernelRecord.WAIT, wait_rows),
        (KernelRecord.FAULT, fault_rows),
        (KernelRecord.SPIN, spin_rows),
    )
    found += [make(parts[kind]) for kind, make in makers if kind in parts]
    return found


def close_open(records: NDArray[np.void], now_ns: int) -> NDArray[np.void]:
    """Give what is still open an end: ``now_ns``, but never before its start or its wake."""
    closed = records.copy()
    kinds, flags = closed["rec_kind"], closed["flags"]
    is_open = ((kinds == KernelRecord.WAIT) & ((flags & WaitFlag.OPEN) != 0)) | (
        (kinds == KernelRecord.FAULT) & ((flags & FaultFlag.OPEN) != 0)
    )
    latest = np.maximum(closed["start_ns"], closed["wake_ns"])
    closed["end_ns"] = np.where(is_open, np.maximum(latest, now_ns), closed["end_ns"])
    return closed


@dataclass(frozen=True)
class Birth:
    """A process that a target made."""

    tgid: int
    parent_tgid: int


def births(tasks: NDArray[np.void]) -> list[Birth]:
    """Processes (not threads) among the births that task records tell of, in their order."""
    forked = tasks[(tasks["op"] == TaskEvent.FORK) & (tasks["tid"] == tasks["tgid"])]
    return [
        Birth(int(tgid), int(parent))
        for tgid, parent in zip(forked["tgid"], forked["waker_tid"], strict=True)
    ]
