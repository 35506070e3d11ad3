# SPDX-License-Identifier: Apache-2.0
"""A Perfetto trace read back with Perfetto's own classes, as its trace processor would take it.

Packets are sorted by time, equal ones in the order of the file; slices of a track must nest; an
arrow must leave before it arrives. Whatever the trace processor would count as an error fails.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

MONOTONIC = 3
CLEARED, NEEDED = 1, 2


@dataclass(frozen=True)
class Track:
    uuid: int
    parent: int
    name: str
    pid: int = 0
    tid: int = 0
    counter: bool = False
    unit: str = ""


@dataclass
class Slice:
    track: Track
    name: str
    category: str
    start: int
    end: int = -1
    depth: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    leaves: tuple[int, ...] = ()
    enters: int = 0
    inside: Slice | None = None

    @property
    def length(self) -> int:
        return self.end - self.start


class Trace:
    """All of a trace: tracks, slices in order of their begin, readings of counters, arrows."""

    def __init__(self, data: bytes) -> None:
        self.tracks: dict[int, Track] = {}
        self.slices: list[Slice] = []
        self.readings: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self.arrows: list[tuple[Slice, Slice]] = []
        self.clocks: list[tuple[int, int]] = []
        self._known: dict[str, dict[int, str]] = defaultdict(dict)
        self._clock = 0
        self._open: dict[int, list[Slice]] = defaultdict(list)
        self._left: dict[int, Slice] = {}
        message = protos.Trace()
        message.ParseFromString(data)
        events = list(self._packets(message))
        for _, event in sorted(events, key=lambda one: one[0]):
            event()
        unended = [stack[-1] for stack in self._open.values() if stack]
        assert not unended, f"never ended: {unended[:3]}"
        assert not self._left, f"arrows that arrive nowhere: {list(self._left.items())[:3]}"

    def _packets(self, message: Any) -> Iterator[tuple[int, Any]]:
        for packet in message.packet:
            assert packet.trusted_packet_sequence_id == 1
            if packet.sequence_flags & CLEARED:
                self._clock = packet.trace_packet_defaults.timestamp_clock_id
            if packet.HasField("clock_snapshot"):
                # One with a time could not be placed before it is known.
                assert not packet.HasField("timestamp")
                assert not self.tracks
                assert packet.clock_snapshot.primary_trace_clock == MONOTONIC
                self.clocks += [(c.clock_id, c.timestamp) for c in packet.clock_snapshot.clocks]
            if packet.HasField("interned_data"):
                self._intern(packet.interned_data)
            if packet.HasField("track_descriptor"):
                self._track(packet.track_descriptor)
            if packet.HasField("track_event"):
                assert packet.sequence_flags & NEEDED
                assert self._clock == MONOTONIC
                yield packet.timestamp, self._event(packet.timestamp, packet.track_event)

    def _intern(self, data: Any) -> None:
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            for entry in getattr(data, kind):
                assert entry.iid not in self._known[kind]
                self._known[kind][entry.iid] = entry.name
        for entry in data.debug_annotation_string_values:
            self._known["strings"][entry.iid] = entry.str.decode()

    def _track(self, one: Any) -> None:
        assert one.uuid
        assert one.uuid not in self.tracks
        assert not one.parent_uuid or one.parent_uuid in self.tracks
        name, pid, tid = one.name, one.process.pid or one.thread.pid, one.thread.tid
        if one.HasField("process"):
            name = one.process.process_name
        if one.HasField("thread"):
            name = one.thread.thread_name
        self.tracks[one.uuid] = Track(
            one.uuid, one.parent_uuid, name, pid, tid, one.HasField("counter"),
            one.counter.unit_name or {1: "ns", 3: "bytes"}.get(one.counter.unit, ""),
        )  # fmt: skip

    def _event(self, t: int, event: Any) -> Any:
        track = self.tracks[event.track_uuid]
        kind = event.type
        if kind == event.TYPE_COUNTER:
            assert track.counter
            which = "counter_value" if event.HasField("counter_value") else "double_counter_value"
            return lambda: self.readings[track.uuid].append((t, getattr(event, which)))
        if kind == event.TYPE_SLICE_END:
            return lambda: self._end(track, t)
        assert kind in (event.TYPE_SLICE_BEGIN, event.TYPE_INSTANT)
        (category,) = event.category_iids
        made = Slice(
            track, self._known["event_names"][event.name_iid],
            self._known["event_categories"][category], t,
            args=dict(map(self._arg, event.debug_annotations)),
            leaves=tuple(event.flow_ids),
            enters=(*event.terminating_flow_ids, 0)[0],
        )  # fmt: skip
        assert len(event.terminating_flow_ids) < 2
        return lambda: self._begin(made, moment=kind == event.TYPE_INSTANT)

    def _arg(self, one: Any) -> tuple[str, Any]:
        name = self._known["debug_annotation_names"][one.name_iid]
        which = one.WhichOneof("value")
        value = getattr(one, which)
        return name, self._known["strings"][value] if which == "string_value_iid" else value

    def _begin(self, made: Slice, *, moment: bool) -> None:
        stack = self._open[made.track.uuid]
        made.depth, made.inside = len(stack), stack[-1] if stack else None
        self.slices.append(made)
        if moment:
            made.end = made.start
        else:
            stack.append(made)
        for flow in made.leaves:
            assert flow not in self._left
            self._left[flow] = made
        if made.enters:
            assert made.enters in self._left, f"arrives before it left: {made}"
            self.arrows.append((self._left.pop(made.enters), made))

    def _end(self, track: Track, t: int) -> None:
        stack = self._open[track.uuid]
        assert stack, f"ends what did not begin, on {track}"
        made = stack.pop()
        made.end = t
        if made.inside is not None:
            assert made.inside.start <= made.start
            assert made.inside.end < 0

    # -- questions

    def of(self, category: str) -> list[Slice]:
        return [one for one in self.slices if one.category == category]

    @property
    def counts(self) -> Counter[str]:
        return Counter(one.category for one in self.slices)

    def place(self, track: Track) -> str:
        """Names from the top: ``EngineCore 4711 / core.main 4711 / state``."""
        names = []
        at: Track | None = track
        while at is not None:
            shown = f" {at.tid or at.pid}" if at.pid else ""
            names.append(f"{at.name}{shown}")
            parent = at.parent
            if at.tid:
                parent = next(
                    (t.uuid for t in self.tracks.values() if t.pid == at.pid and not t.tid), 0
                )
            at = self.tracks.get(parent)
        return " / ".join(reversed(names))
