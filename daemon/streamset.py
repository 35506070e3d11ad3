# SPDX-License-Identifier: Apache-2.0
"""All streams of one recording, and how far each had come when the daemon went down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpucorrelate.daemon.saved import SavedStream
from gpucorrelate.daemon.streams import (
    DAEMON_STREAM,
    FIRST_AGENT_STREAM,
    KERNEL_STREAM,
    AgentStream,
    LivingTable,
    OwnStream,
    RelayedTable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.probes.wire.frame import Batch

MAX_AGENTS = 1024


class StreamSet:
    """The daemon's stream, the kernel probes' and those of the agents.

    Attributes:
        own: The daemon's.
        kernel: The kernel probes'.
        kernel_strings: String table of the kernel probes' stream.
        agents: The agents', by number.
    """

    def __init__(self) -> None:
        self.own = OwnStream(DAEMON_STREAM, LivingTable())
        self.kernel_strings = RelayedTable()
        self.kernel = OwnStream(KERNEL_STREAM, self.kernel_strings)
        self.agents: dict[int, AgentStream] = {}

    def find(self, pid: int, ticks: int, agent_ns: int) -> AgentStream | None:
        """The stream of an agent that was there before."""
        for stream in self.agents.values():
            if (stream.pid, stream.ticks, stream.agent_ns) == (pid, ticks, agent_ns):
                return stream
        return None

    def add(
        self, pid: int, ticks: int, agent_ns: int, producer: str, role: str
    ) -> AgentStream | None:
        """A stream for a new agent; None when there are too many."""
        if len(self.agents) >= MAX_AGENTS:
            return None
        number = max(self.agents, default=FIRST_AGENT_STREAM - 1) + 1
        stream = AgentStream(number, pid, ticks, agent_ns, producer, role)
        self.agents[number] = stream
        return stream

    def head_bytes(self) -> int:
        """What a new segment must restate of the agents' streams."""
        return sum(stream.head_bytes for stream in self.agents.values())

    def head(self) -> Iterator[bytes]:
        """What a new segment must restate."""
        yield from self.own.head()
        yield from self.kernel.head()
        for stream in self.agents.values():
            yield from stream.head()

    def saved(self) -> tuple[SavedStream, ...]:
        """How far each has come."""
        agents = (
            SavedStream(
                s.number,
                s.pid,
                s.ticks,
                s.agent_ns,
                s.producer,
                s.role,
                s.reader.last_seq,
                s.reader.drops,
            )
            for s in self.agents.values()
        )
        return (
            SavedStream(DAEMON_STREAM, 0, 0, last_seq=self.own.last_seq),
            SavedStream(KERNEL_STREAM, 0, 0, last_seq=self.kernel.last_seq),
            *agents,
        )

    def saved_with_new(self, before: tuple[SavedStream, ...]) -> tuple[SavedStream, ...]:
        """What was saved at the last segment's head, and streams that have come since."""
        known = {item.number: item for item in before}
        return tuple(
            replace(known[item.number], role=item.role)
            if item.number in known
            else replace(item, last_seq=0, drops=0)
            for item in self.saved()
        )

    def restore(self, saved: tuple[SavedStream, ...]) -> None:
        """Go back to what was saved; ``take_back`` then brings it up to date."""
        for item in saved:
            if item.number == DAEMON_STREAM:
                self.own.continue_from(item.last_seq)
            elif item.number == KERNEL_STREAM:
                self.kernel.continue_from(item.last_seq)
            else:
                stream = AgentStream(
                    item.number, item.pid, item.ticks, item.agent_ns, item.producer, item.role
                )
                stream.reader.last_seq, stream.reader.drops = item.last_seq, item.drops
                self.agents[item.number] = stream

    def take_back(self, batch: Batch) -> None:
        """Learn from a recorded batch what was learnt when it was recorded."""
        if batch.stream in (DAEMON_STREAM, KERNEL_STREAM):
            own = self.own if batch.stream == DAEMON_STREAM else self.kernel
            own.take_back(batch)
            return
        stream = self.agents.get(batch.stream)
        if stream is not None and stream.reader.accept(batch)[0]:
            stream.recall.take(batch, stream.reader.strings)

    def settle(self, last_ns: int) -> None:
        """After the last ``take_back``; ``last_ns``: when the recording was last written."""
        for stream in self.agents.values():
            stream.measure()
            stream.last_ns = last_ns
