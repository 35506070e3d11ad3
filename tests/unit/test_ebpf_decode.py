# SPDX-License-Identifier: Apache-2.0
"""Kernel records become rows: every column from the right field, whole arrays at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpucorrelate.probes.ebpf import decode
from gpucorrelate.probes.ebpf.ring import RECORD
from gpucorrelate.probes.wire.frame import StreamWriter, StringTable, decode_payload
from gpucorrelate.probes.wire.schema import (
    FaultFlag,
    KernelRecord,
    SpinSource,
    TaskEvent,
    WaitFlag,
    WaitKind,
)

if TYPE_CHECKING:
    from gpucorrelate.probes.ebpf.values import Rows

CODES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i16": "<i2", "i64": "<i8",
         "str": "<u4"}  # fmt: skip


def record(kind: KernelRecord, **fields: int) -> np.ndarray:
    made = np.zeros(1, RECORD)
    made["rec_kind"] = kind
    for name, value in fields.items():
        made[name] = value
    return made


def rows_of(records: np.ndarray, strings: StringTable) -> list[Rows]:
    return decode.rows_of(decode.by_kind(records), strings)


def column(rows: Rows, name: str) -> list[Any]:
    index = rows.kind.index(name)
    return list(np.frombuffer(rows.columns[index], CODES[rows.kind.columns[index].ctype]).tolist())


def named(text: bytes) -> dict[str, int]:
    padded = text.ljust(16, b"\0")
    return {
        "arg": int.from_bytes(padded[:8], "little"),
        "arg2": int.from_bytes(padded[8:], "little"),
    }


def test_a_wait_keeps_every_field() -> None:
    made = record(
        KernelRecord.WAIT, tid=7, tgid=5, start_ns=100, wake_ns=150, end_ns=200, cpu=3,
        wait_kind=WaitKind.FUTEX, flags=WaitFlag.WAKE_EARLY, syscall=202, waker_syscall=-2,
        op=137, arg=1 << 63, waker_tid=8, waker_tgid=6, arg2=11 << 32 | 12, block_ns=13,
    )  # fmt: skip
    (rows,) = rows_of(made, StringTable())
    assert (rows.kind.name, rows.count) == ("wait", 1)
    expected = {
        "tid": 7, "tgid": 5, "start_ns": 100, "wake_ns": 150, "end_ns": 200, "cpu": 3,
        "wait_kind": 1, "flags": 128, "syscall": 202, "waker_syscall": -2, "op": 137,
        "arg": 1 << 63, "waker_tid": 8, "waker_tgid": 6, "ran_tid": 12, "ran_tgid": 11,
        "throttled_ns": 13,
    }  # fmt: skip
    assert {name: column(rows, name)[0] for name in expected} == expected
    assert {item.name for item in rows.kind.columns} == set(expected)


def test_a_fault_has_its_address_and_file() -> None:
    made = record(
        KernelRecord.FAULT, tid=7, tgid=5, start_ns=1, end_ns=9, wake_ns=8, block_ns=6,
        arg=0x7F00_0000_1000, arg2=1234, op=254 << 20 | 3, flags=FaultFlag.MAJOR | FaultFlag.FILE,
        waker_tid=3, waker_tgid=2,
    )  # fmt: skip
    (rows,) = rows_of(made, StringTable())
    expected = {
        "addr": 0x7F00_0000_1000, "inode": 1234, "dev": 254 << 20 | 3, "flags": 9,
        "block_ns": 6, "start_ns": 1, "end_ns": 9, "wake_ns": 8, "waker_tid": 3,
    }  # fmt: skip
    assert {name: column(rows, name)[0] for name in expected} == expected


@pytest.mark.parametrize(
    ("comm", "text"),
    [
        (b"python", "python"),
        (b"exactly15bytes!", "exactly15bytes!"),
        (b"", ""),
        (b"caf\xc3\xa9", "café"),
        (b"half\xc3", "half\ufffd"),
    ],
)
def test_a_task_has_its_name_and_both_namespaces(comm: bytes, text: str) -> None:
    made = record(
        KernelRecord.TASK, tid=7, tgid=5, start_ns=77, op=TaskEvent.FORK, waker_tid=4,
        waker_tgid=9, block_ns=2 << 32 | 3, **named(comm),
    )  # fmt: skip
    strings = StringTable()
    (rows,) = rows_of(made, strings)
    texts = dict(strings.take_fresh()) | {0: ""}
    assert texts[column(rows, "comm")[0]] == text
    expected = {
        "t_ns": 77,
        "event": 1,
        "parent_tgid": 4,
        "ns_tid": 3,
        "ns_tgid": 2,
        "parent_tid": 9,
    }
    assert {name: column(rows, name)[0] for name in expected} == expected


def test_a_spin_says_who_says_so() -> None:
    made = record(KernelRecord.SPIN, tid=7, tgid=5, start_ns=1, end_ns=9, arg2=41)
    (rows,) = rows_of(made, StringTable())
    assert column(rows, "count") == [41]
    assert column(rows, "source") == [SpinSource.YIELD_RUN]


def test_mixed_records_keep_their_order_within_a_kind() -> None:
    parts = [
        record(KernelRecord.WAIT if i % 2 else KernelRecord.FAULT, tid=i) for i in range(1, 101)
    ]
    found = {rows.kind.name: rows for rows in rows_of(np.concatenate(parts), StringTable())}
    assert column(found["wait"], "tid") == list(range(1, 101, 2))
    assert column(found["fault"], "tid") == list(range(2, 101, 2))
    assert rows_of(np.empty(0, RECORD), StringTable()) == []


def test_rows_pass_the_wire() -> None:
    made = np.concatenate([record(KernelRecord.TASK, tid=i, **named(b"same")) for i in range(3)])
    writer = StreamWriter(2)
    (rows,) = rows_of(made, writer.strings)
    frames = list(writer.frames(rows.kind, rows.count, rows.columns))
    batch = decode_payload(frames[0][16:], 2)
    assert batch.strings == ((1, "same"),)
    assert batch.columns == rows.columns


def test_what_is_open_ends_at_the_report_but_not_before_it_began() -> None:
    made = np.concatenate(
        [
            record(KernelRecord.WAIT, start_ns=10, flags=WaitFlag.OPEN),
            record(KernelRecord.WAIT, start_ns=10, wake_ns=60, flags=WaitFlag.OPEN),
            record(KernelRecord.FAULT, start_ns=70, flags=FaultFlag.OPEN),
            record(KernelRecord.SPIN, start_ns=10, end_ns=20),
        ]
    )
    closed = decode.close_open(made, 50)
    assert closed["end_ns"].tolist() == [50, 60, 70, 20]
    assert made["end_ns"].tolist() == [0, 0, 0, 20]


def test_sums_carry_their_window() -> None:
    keys = np.array([(7, 5, WaitKind.FUTEX), (8, 5, WaitKind.EPOLL)], decode.SUM_KEY)
    values = np.array([(3, 300, 30, 200, 1000, 9000), (1, 5, 0, 5, 2000, 2005)], decode.SUM_VALUE)
    rows = decode.sum_rows(keys.tobytes(), values.tobytes())
    assert rows.kind.name == "wait_sum"
    assert column(rows, "tid") == [7, 8]
    assert column(rows, "count") == [3, 1]
    assert column(rows, "sum_ns") == [300, 5]
    assert column(rows, "runq_ns") == [30, 0]
    assert column(rows, "max_ns") == [200, 5]
    assert column(rows, "start_ns") == [1000, 2000]
    assert column(rows, "end_ns") == [9000, 2005]


def test_births_are_processes_not_threads() -> None:
    made = np.concatenate(
        [
            record(KernelRecord.TASK, tid=7, tgid=5, op=TaskEvent.FORK, waker_tid=5),
            record(KernelRecord.TASK, tid=8, tgid=8, op=TaskEvent.FORK, waker_tid=5),
            record(KernelRecord.TASK, tid=9, tgid=9, op=TaskEvent.SEEN, waker_tid=5),
        ]
    )
    assert decode.births(made) == [decode.Birth(8, 5)]
