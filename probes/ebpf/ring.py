# SPDX-License-Identifier: Apache-2.0
"""BPF ring buffers to numpy: mapped memory, whole batches, no Python per event.

A ring (``Documentation/bpf/ringbuf.rst`` of Linux) is a consumer page, a producer page and the
data, which is mapped twice in a row so that no record is ever split. Each record has an 8-byte
header: length with two flag bits, and a page offset. All our records are equally long, so a
stretch of the ring is an array as it lies there.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.wire.schema import KERNEL_RECORD

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMPY = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i16": "<i2", "i64": "<i8"}

#: One kernel record, as ``struct gpc_rec`` lies in memory.
RECORD = np.dtype([(column.name, _NUMPY[column.ctype]) for column in KERNEL_RECORD])
#: A record with the ring's header before it.
SLOT = np.dtype([("ring_length", "<u4"), ("ring_page", "<u4"), *RECORD.descr])

_RECORD_WORDS = RECORD.itemsize // 8
_SLOT_WORDS = SLOT.itemsize // 8
#: Header bits of include/uapi/linux/bpf.h: being written; to be ignored.
_BUSY = np.uint32(1 << 31)
_DISCARDED = np.uint32(1 << 30)
_MARKED = int(_BUSY | _DISCARDED)
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)


def as_records(words: NDArray[np.uint64]) -> NDArray[np.void]:
    """Rows of packed 64-bit words as records, without a copy."""
    return words.view(RECORD).reshape(len(words))


def as_words(records: NDArray[np.void]) -> NDArray[np.uint64]:
    """Records as rows of 64-bit words, without a copy."""
    return records.view(np.uint64).reshape(len(records), _RECORD_WORDS)


class Ring:
    """The consumer's side of one ring.

    Args:
        fd: File descriptor of the ring; may be closed after.
        size_bytes: Size it was made with.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        page = mmap.PAGESIZE
        self.size_bytes = size_bytes
        self._consumer_map = mmap.mmap(
            fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0
        )
        # Populated at once: a page's first touch while draining would cost a fault each.
        self._producer_map = mmap.mmap(
            fd,
            page + 2 * size_bytes,
            mmap.MAP_SHARED | _MAP_POPULATE,
            mmap.PROT_READ,
            offset=page,
        )
        # Not numpy: one number at a time is cheaper without it, and is asked of every ring.
        self._consumed = memoryview(self._consumer_map)[:8].cast("Q")
        self._produced = memoryview(self._producer_map)[:8].cast("Q")
        self._data = np.frombuffer(self._producer_map, np.uint8, 2 * size_bytes, offset=page)
        self._mask = size_bytes - 1

    @property
    def pending_bytes(self) -> int:
        """Bytes written and not yet taken."""
        return self._produced[0] - self._consumed[0]

    @property
    def written(self) -> int:
        """Records that ever went into the ring."""
        return self._produced[0] // SLOT.itemsize

    def take(self, limit: int) -> NDArray[np.void]:
        """Up to ``limit`` finished records, oldest first, copied out of the ring."""
        start = self._consumed[0]
        count = min((self._produced[0] - start) // SLOT.itemsize, limit)
        at = start & self._mask
        slots = self._data[at : at + count * SLOT.itemsize].view(SLOT)
        # As words: numpy copies records of many fields one field at a time.
        words = slots.view(np.uint64).reshape(count, _SLOT_WORDS)
        # The length is the lower half of the first word.
        if int(np.bitwise_or.reduce(words[:, 0])) & _MARKED:
            length = slots["ring_length"]
            busy = np.flatnonzero(length & _BUSY)
            if busy.size:
                # Everything before the first unfinished record; the rest the next time.
                count = int(busy[0])
            keep = (length[:count] & _DISCARDED) == 0
            taken = words[:count, 1:][keep]
        else:
            taken = words[:, 1:].copy()
        self._consumed[0] = start + count * SLOT.itemsize
        return as_records(taken)

    def close(self) -> None:
        """Unmap the ring."""
        # What looks into the mappings holds them open: it goes first.
        self._consumed.release()
        self._produced.release()
        del self._data
        self._consumer_map.close()
        self._producer_map.close()
