# SPDX-License-Identifier: Apache-2.0
"""Records as CUPTI lays them out, made by hand from the offsets its headers give.

Written from the headers, not from the shim's table, so that the two check each other.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

#: sizeof of each record by cuptiGetVersion: kernel, copy, fill, synchronisation, overhead, graph.
SIZES = {
    20: (208, 88, 88, 40, 40, 48),
    24: (208, 88, 88, 40, 56, 56),
    28: (208, 96, 88, 56, 56, 56),
    130001: (216, 96, 88, 56, 56, 56),
    130101: (224, 96, 88, 56, 56, 56),
    130301: (232, 96, 88, 56, 56, 56),
    130500: (248, 112, 104, 56, 56, 56),
}


@dataclass
class Buffer:
    """A buffer that is filled as CUPTI would.

    Attributes:
        version: Whose records.
        data: What is in it so far.
    """

    version: int = 130500
    data: bytearray = field(default_factory=bytearray)

    def _add(self, kind: int, size: int, *fields: tuple[int, str, int]) -> Buffer:
        record = bytearray(size)
        struct.pack_into("<I", record, 0, kind)
        for offset, code, value in fields:
            struct.pack_into(f"<{code}", record, offset, value)
        self.data += record
        return self

    def kernel(
        self,
        name: int,
        start: int,
        end: int,
        *,
        correlation: int = 1,
        device: int = 0,
        context: int = 1,
        stream: int = 7,
        graph: int = 0,
        node: int = 0,
    ) -> Buffer:
        """A kernel; ``name`` is an address."""
        return self._add(
            10, SIZES[self.version][0], (16, "Q", start), (24, "Q", end), (40, "I", device),
            (44, "I", context), (48, "I", stream), (92, "I", correlation), (104, "Q", name),
            (144, "Q", node), (156, "I", graph),
        )  # fmt: skip

    def copy(self, kind: int, size: int, start: int, end: int, correlation: int = 2) -> Buffer:
        """A copy of ``size`` bytes on stream 7."""
        return self._add(
            1, SIZES[self.version][1], (4, "B", kind), (8, "Q", size), (16, "Q", start),
            (24, "Q", end), (32, "I", 0), (36, "I", 1), (40, "I", 7), (44, "I", correlation),
        )  # fmt: skip

    def fill(self, size: int, start: int, end: int, correlation: int = 3) -> Buffer:
        """A fill of ``size`` bytes on stream 7."""
        return self._add(
            2, SIZES[self.version][2], (8, "Q", size), (16, "Q", start), (24, "Q", end),
            (32, "I", 0), (36, "I", 1), (40, "I", 7), (44, "I", correlation),
        )  # fmt: skip

    def call(self, domain: int, callback: int, start: int, end: int, **ids: int) -> Buffer:
        """A call: domain 5 is the runtime's, 4 the driver's."""
        return self._add(
            domain, 40, (4, "I", callback), (8, "Q", start), (16, "Q", end),
            (24, "I", 4242), (28, "I", ids.get("tid", 77)), (32, "I", ids.get("correlation", 1)),
        )  # fmt: skip

    def sync(self, kind: int, start: int, end: int, **ids: int) -> Buffer:
        """A synchronisation."""
        none = 0xFFFFFFFF
        return self._add(
            38, SIZES[self.version][3], (4, "I", kind), (8, "Q", start), (16, "Q", end),
            (24, "I", ids.get("correlation", 1)), (28, "I", ids.get("context", 1)),
            (32, "I", ids.get("stream", none)), (36, "I", ids.get("event", none)),
        )  # fmt: skip

    def overhead(self, start: int, end: int) -> Buffer:
        """Time that CUPTI itself took."""
        return self._add(17, SIZES[self.version][4], (24, "Q", start), (32, "Q", end))

    def graph(self, start: int, end: int, correlation: int = 4, graph: int = 9) -> Buffer:
        """A launch of a graph as a whole."""
        return self._add(
            51, SIZES[self.version][5], (4, "I", correlation), (8, "Q", start), (16, "Q", end),
            (24, "I", 0), (28, "I", graph), (32, "I", 1), (36, "I", 7),
        )  # fmt: skip

    def external(self) -> Buffer:
        """A note of an outer correlation id."""
        return self._add(39, 24, (8, "Q", 5), (16, "I", 1))
