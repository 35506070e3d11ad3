# SPDX-License-Identifier: Apache-2.0
"""The consumer's side of a ring, on memory laid out as the kernel lays it out."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpucorrelate.probes.ebpf.kernel import MAX_RINGS_BYTES, parse_cpus, ring_size
from gpucorrelate.probes.ebpf.ring import SLOT, Ring

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = mmap.PAGESIZE
BUSY, DISCARDED = 1 << 31, 1 << 30


class Producer:
    """Writes as the kernel does: data at both places where it is mapped."""

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + 2 * size)
        self._memory = mmap.mmap(self.fd, 2 * PAGE + 2 * size)
        self._size = size
        self.position = 0

    def write(self, tid: int, flags: int = 0) -> int:
        slot = np.zeros(1, SLOT)
        slot["ring_length"] = (SLOT.itemsize - 8) | flags
        slot["tid"] = tid
        at = self.position
        self._put(at, slot.tobytes())
        self.position += SLOT.itemsize
        self._memory[PAGE : PAGE + 8] = self.position.to_bytes(8, "little")
        return at

    def finish(self, at: int) -> None:
        self._put(at, (SLOT.itemsize - 8).to_bytes(4, "little"))

    def _put(self, at: int, data: bytes) -> None:
        for i, byte in enumerate(data):
            place = 2 * PAGE + (at + i) % self._size
            self._memory[place] = self._memory[place + self._size] = byte

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


@pytest.fixture
def pair() -> Iterator[tuple[Producer, Ring]]:
    producer = Producer(PAGE)
    ring = Ring(producer.fd, PAGE)
    yield producer, ring
    ring.close()
    producer.close()


def tids(ring: Ring, limit: int = 1000) -> list[int]:
    found: list[int] = ring.take(limit)["tid"].tolist()
    return found


def test_records_come_in_order_and_once(pair: tuple[Producer, Ring]) -> None:
    producer, ring = pair
    assert tids(ring) == []
    for tid in range(1, 6):
        producer.write(tid)
    assert ring.pending_bytes == 5 * SLOT.itemsize
    assert tids(ring) == [1, 2, 3, 4, 5]
    assert tids(ring) == []
    assert ring.pending_bytes == 0
    assert ring.written == 5


def test_a_drain_is_bounded(pair: tuple[Producer, Ring]) -> None:
    producer, ring = pair
    for tid in range(10):
        producer.write(tid)
    assert tids(ring, 4) == [0, 1, 2, 3]
    assert tids(ring, 4) == [4, 5, 6, 7]
    assert tids(ring, 4) == [8, 9]


def test_records_across_the_end_of_the_ring_are_whole(pair: tuple[Producer, Ring]) -> None:
    producer, ring = pair
    # 4096 is no multiple of a record: a few rounds put one across the end.
    for round_ in range(20):
        sent = list(range(round_ * 40, round_ * 40 + 40))
        for tid in sent:
            producer.write(tid)
        assert tids(ring) == sent


def test_an_unfinished_record_holds_back_what_follows(pair: tuple[Producer, Ring]) -> None:
    producer, ring = pair
    producer.write(1)
    busy = producer.write(2, BUSY)
    producer.write(3)
    assert tids(ring) == [1]
    assert tids(ring) == []
    producer.finish(busy)
    assert tids(ring) == [2, 3]


def test_a_discarded_record_is_skipped(pair: tuple[Producer, Ring]) -> None:
    producer, ring = pair
    producer.write(1)
    producer.write(2, DISCARDED)
    producer.write(3)
    assert tids(ring) == [1, 3]


def test_what_was_taken_outlives_the_ring(pair: tuple[Producer, Ring]) -> None:
    producer, ring = pair
    producer.write(1)
    taken = ring.take(10)
    for tid in range(2, 40):
        producer.write(tid)
    assert taken["tid"].tolist() == [1]


def test_a_list_of_cpus() -> None:
    assert parse_cpus("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_cpus("0\n") == (0,)


def test_ring_sizes_are_powers_of_two_within_bounds() -> None:
    assert ring_size(8 << 20, 2) == 8 << 20
    assert ring_size((8 << 20) + 5, 2) == 8 << 20
    assert ring_size(1, 2) == PAGE
    assert ring_size(8 << 20, 1024) * 1024 <= MAX_RINGS_BYTES
