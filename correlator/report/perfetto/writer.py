# SPDX-License-Identifier: Apache-2.0
"""A Perfetto trace, written as it is made: tracks, interned names, and events on the tracks.

The format is https://perfetto.dev/docs/reference/trace-packet-proto. What a trace has few of is
made with Perfetto's own classes; what it has millions of by ``native.trace``, which says why.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gpucorrelate.correlator.native import trace
from gpucorrelate.correlator.search import nested_order
from gpucorrelate.probes.wire.errors import GpucorrelateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    I64 = NDArray[np.int64]

_PROTOS = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
# Of one sequence of packets: nobody else writes into this trace.
_SEQUENCE = 1
_CLEARED, _NEEDED = 1, 2
_MOST_PID = (1 << 31) - 1
_LONGEST = 4096


def protos() -> Any:  # noqa: ANN401 - generated without types
    """Perfetto's own classes of messages.

    Raises:
        GpucorrelateError: they are not installed.
    """
    try:
        return importlib.import_module(_PROTOS)
    except ModuleNotFoundError as exc:
        raise GpucorrelateError(
            f"the perfetto format needs the package {exc.name}, which is not installed",
            hint="pip install 'gpucorrelate[perfetto]'",
        ) from exc


class Interned:
    """Texts by number, from 1; those that the trace does not have yet are kept aside."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._texts: list[str] = []
        self.fresh: list[tuple[int, str]] = []

    def __call__(self, text: str) -> int:
        """The number of a text."""
        number = self._known.get(text)
        if number is None:
            number = self._known[text] = len(self._known) + 1
            self._texts.append(text)
            self.fresh.append((number, text))
        return number

    def __getitem__(self, number: int) -> str:
        return self._texts[number - 1]

    def all(self, texts: Iterable[str]) -> I64:
        """The numbers of texts."""
        return np.fromiter(map(self, texts), np.int64)


@dataclass(frozen=True)
class Flows:
    """Arrows that leave events, numbered on from ``first``, and those that come in; 0 none."""

    first: I64 | None = None
    count: I64 | None = None
    into: I64 | None = None


@dataclass(frozen=True)
class Slices:
    """Intervals, or moments, and what is said of each.

    Attributes:
        start_ns: Starts.
        end_ns: Ends.
        name: Numbers of interned names.
        category: Number of an interned category, for all or for each.
        args: Details.
        flows: Arrows between them.
    """

    start_ns: I64
    end_ns: I64
    name: I64
    category: I64 | int
    args: tuple[trace.Argument, ...] = ()
    flows: Flows = Flows()

    def __len__(self) -> int:
        return len(self.start_ns)

    def select(self, at: NDArray[np.generic]) -> Slices:
        """Those an index or mask picks, in its order."""

        def pick(values: I64 | None) -> I64 | None:
            return None if values is None else values[at]

        return Slices(
            self.start_ns[at],
            self.end_ns[at],
            self.name[at],
            self.category if isinstance(self.category, int) else self.category[at],
            tuple(trace.Argument(one.name, one.kind, one.values[at]) for one in self.args),
            Flows(pick(self.flows.first), pick(self.flows.count), pick(self.flows.into)),
        )


class TraceWriter:
    """Writes one trace to an open binary file.

    Args:
        out: Where to.
        begin_ns: The recording's first moment.
        shown: What is written in place of a text, be it a name or a detail.

    Raises:
        GpucorrelateError: Perfetto's classes are not installed.
    """

    def __init__(self, out: IO[bytes], begin_ns: int, shown: Callable[[str], str] = str) -> None:
        self._out = out
        self._shown = shown
        self._pb = protos()
        self._uuids = 0
        self._flows = 0
        self._processes: dict[int, int] = {}
        self.names, self.categories = Interned(), Interned()
        self.arg_names, self.texts = Interned(), Interned()
        self.counts: dict[str, int] = {}
        self._begin(max(0, begin_ns))

    def _begin(self, begin_ns: int) -> None:
        """The clock of everything here; CLOCK_MONOTONIC is the only one that is recorded."""
        clock = self._pb.BUILTIN_CLOCK_MONOTONIC
        packet = self._packet(_CLEARED)
        packet.trace_packet_defaults.timestamp_clock_id = clock
        packet.first_packet_on_sequence = True
        self._write(packet)
        # No time of its own: whoever reads it does not know yet how to take one.
        packet = self._packet(0)
        packet.clock_snapshot.primary_trace_clock = clock
        reading = packet.clock_snapshot.clocks.add()
        reading.clock_id, reading.timestamp = clock, begin_ns
        self._write(packet)

    def _clean(self, text: str) -> str:
        """A text that any reader takes: valid UTF-8 of limited length."""
        return self._shown(text)[:_LONGEST].encode("utf-8", "backslashreplace").decode("utf-8")

    def _packet(self, flags: int = _NEEDED) -> Any:  # noqa: ANN401
        packet = self._pb.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        if flags:
            packet.sequence_flags = flags
        return packet

    def _write(self, packet: Any) -> None:  # noqa: ANN401
        whole = self._pb.Trace()
        whole.packet.append(packet)
        self._out.write(whole.SerializeToString())

    # -- tracks

    def _track(self, parent: int, **fields: object) -> Any:  # noqa: ANN401
        self._uuids += 1
        packet = self._packet()
        track = packet.track_descriptor
        track.uuid = self._uuids
        if parent:
            track.parent_uuid = parent
        for name, value in fields.items():
            setattr(track, name, value)
        return packet

    def track(self, name: str, parent: int = 0, rank: int = 0) -> int:
        """A new track, which may hold others.

        Args:
            name: Its name; tracks of one name and parent are shown as one of several rows.
            parent: Its parent's uuid; 0 none.
            rank: Its place beside others, the least first.
        """
        explicit = self._pb.TrackDescriptor.EXPLICIT
        packet = self._track(
            parent, name=self._clean(name), sibling_order_rank=rank, child_ordering=explicit
        )
        self._write(packet)
        return self._uuids

    def process(self, pid: int, name: str, rank: int = 0) -> int:
        """The track of a process; one that can be no process is a track like any other."""
        if not 0 < pid <= _MOST_PID:
            return self.track(f"{name} {pid}" if pid else name, 0, rank)
        if pid not in self._processes:
            packet = self._track(0, sibling_order_rank=rank)
            packet.track_descriptor.child_ordering = self._pb.TrackDescriptor.EXPLICIT
            packet.track_descriptor.process.pid = pid
            packet.track_descriptor.process.process_name = self._clean(name)
            self._write(packet)
            self._processes[pid] = self._uuids
        return self._processes[pid]

    def thread(self, pid: int, tid: int, name: str, parent: int, rank: int = 0) -> int:
        """The track of a thread of a process."""
        if not (0 < pid <= _MOST_PID and 0 < tid <= _MOST_PID):
            return self.track(f"{name} {tid}", parent, rank)
        packet = self._track(0, sibling_order_rank=rank)
        packet.track_descriptor.child_ordering = self._pb.TrackDescriptor.EXPLICIT
        thread = packet.track_descriptor.thread
        thread.pid, thread.tid, thread.thread_name = pid, tid, self._clean(name)
        self._write(packet)
        return self._uuids

    def flows(self, count: int) -> int:
        """Numbers for so many arrows; the first of them."""
        first = self._flows + 1
        self._flows += count
        return first

    # -- details

    def text(self, name: str, values: I64) -> trace.Argument:
        """A detail that is one of ``texts``; 0 none."""
        return trace.Argument(self.arg_names(name), trace.STRING, values)

    def number(self, name: str, values: NDArray[np.generic]) -> trace.Argument:
        """A detail that is a number; below 0 none."""
        return trace.Argument(self.arg_names(name), trace.NUMBER, values.astype(np.int64))

    def pointer(self, name: str, values: NDArray[np.generic]) -> trace.Argument:
        """A detail that is an address; 0 none."""
        return trace.Argument(self.arg_names(name), trace.POINTER, values.astype(np.int64))

    # -- events

    def slices(self, track: int, what: Slices, *, nested: bool, spare: tuple[str, int]) -> None:
        """Draws intervals on one track, and on more like it where they overlap.

        Args:
            track: Where.
            what: The intervals.
            nested: Whether one within another may be drawn inside it.
            spare: Name and parent of more tracks.
        """
        self.each_slices(np.zeros(len(what), np.int64), [track], what, [spare], nested=nested)

    def each_slices(
        self,
        group: I64,
        tracks: Sequence[int],
        what: Slices,
        spares: Sequence[tuple[str, int]],
        *,
        nested: bool,
    ) -> None:
        """The same of many tracks at once: of each interval the track's place among them."""
        if not len(what):
            return
        start = np.maximum(what.start_ns, 0)
        end = np.maximum(what.end_ns, start)
        sort = nested_order(group, start, end)
        what, group, start, end = what.select(sort), group[sort], start[sort], end[sort]
        row, order = trace.rows(group, start, end, nested=nested)
        uuids = self._rows(group, row, tracks, spares)
        self._count(what)
        self._events(order, start, end, uuids, what)

    def moments(self, tracks: I64, what: Slices) -> None:
        """Draws moments, the starts, each on its track."""
        if len(what):
            self._count(what)
            start = np.maximum(what.start_ns, 0)
            self._events(None, start, start, tracks, what)

    def readings(
        self, name: str, parent: int, unit: str, t_ns: I64, values: NDArray[np.generic]
    ) -> None:
        """A counter with its readings."""
        packet = self._track(parent, name=self._clean(name))
        counter = packet.track_descriptor.counter
        known = {"bytes": counter.UNIT_SIZE_BYTES, "ns": counter.UNIT_TIME_NS}
        if unit in known:
            counter.unit = known[unit]
        else:
            counter.unit_name = unit
        self._write(packet)
        for piece in trace.readings(np.maximum(t_ns, 0), values, self._uuids):
            self._out.write(piece)

    def _rows(
        self, group: I64, row: I64, tracks: Sequence[int], spares: Sequence[tuple[str, int]]
    ) -> I64:
        """The uuid of each interval's row; rows beyond a track's first are tracks beside it."""
        width = int(row.max()) + 1
        table = np.zeros((len(tracks), width), np.int64)
        table[:, 0] = tracks
        for key in np.unique(group * width + row).tolist():
            at, below = divmod(key, width)
            if below:
                name, parent = spares[at]
                table[at, below] = self.track(name, parent, below)
        return np.asarray(table[group, row], np.int64)

    def _count(self, what: Slices) -> None:
        if isinstance(what.category, int):
            found = {what.category: len(what)}
        else:
            numbers, counts = np.unique(what.category, return_counts=True)
            found = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        for number, count in found.items():
            name = self.categories[number]
            self.counts[name] = self.counts.get(name, 0) + count

    def _events(self, order: I64 | None, start: I64, end: I64, tracks: I64, what: Slices) -> None:
        self._intern()
        category = what.category
        if isinstance(category, int):
            category = np.full(len(what), category, np.int64)
        events = trace.Events(
            order, start, end, tracks, what.name, category, what.args,
            what.flows.first, what.flows.count, what.flows.into,
        )  # fmt: skip
        for piece in trace.packets(events):
            self._out.write(piece)

    def _intern(self) -> None:
        """Writes the names that are new."""
        packet = self._packet()
        data = packet.interned_data
        named = (
            (self.names, data.event_names),
            (self.categories, data.event_categories),
            (self.arg_names, data.debug_annotation_names),
        )
        for known, entries in named:
            for number, text in known.fresh:
                entry = entries.add()
                entry.iid, entry.name = number, self._clean(text)
            known.fresh.clear()
        for number, text in self.texts.fresh:
            entry = data.debug_annotation_string_values.add()
            entry.iid, entry.str = number, self._clean(text).encode()
        self.texts.fresh.clear()
        if packet.HasField("interned_data"):
            self._write(packet)
