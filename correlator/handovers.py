# SPDX-License-Identifier: Apache-2.0
"""Where requests and outputs went from one thread to another, without a word of who.

Two threads do their work in order and name it only as spans: the one that makes prompts tokens,
and the one that sends outputs to the frontend. Whose turn a span was follows from the order, and
from the moments between which it must lie. With these a request's path is cut: while its prompt
lay with the tokeniser's thread, or its outputs with the sender's, whatever the event loop did
meanwhile was for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gpucorrelate.probes.wire.schema import WaitKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpucorrelate.correlator.capture import Capture, Table
    from gpucorrelate.correlator.steps import Steps

_Key = TypeVar("_Key")

#: Role of the thread that sends outputs, as the engine core's agent names it.
_SENDER = "core.output"


@dataclass(frozen=True)
class Handover:
    """A thread was done with something: it is others' from then on."""

    t_ns: int
    tid: int


@dataclass(frozen=True)
class Turn:
    """Moments between which a thread's work on something must lie; ``count`` spans of it."""

    start_ns: int
    end_ns: int
    count: int = 1


def tokenised(
    capture: Capture, turns: Mapping[tuple[int, int], Turn]
) -> dict[tuple[int, int], Handover]:
    """When the prompts of each exchange were tokens, and which thread made them so.

    Args:
        capture: The recording.
        turns: By exchange (the stream and its number there): from when to when it was with the
            renderer, and its number of prompts.
    """
    spans = _spans(capture, "tokenise")
    found: dict[tuple[int, int], Handover] = {}
    streams = spans["stream"]
    for stream in {key[0] for key in turns}:
        own = sorted((key for key in turns if key[0] == stream), key=lambda k: turns[k].start_ns)
        rows = spans.select(streams == stream)
        found |= _in_turn(rows, [(key, turns[key]) for key in own])
    return found


def sent(capture: Capture, steps: Steps) -> dict[int, Handover]:
    """When the outputs of each step were ready to be sent to the frontend, by the step's index."""
    taken: dict[int, int] = {}
    outputs = capture.table("outputs")
    for stamp, start in zip(outputs["stamp_ns"].tolist(), outputs["start_ns"].tolist(),
                            strict=True):  # fmt: skip
        taken[stamp] = min(start, taken.get(stamp, start))
    spans = _spans(capture, "serialise")
    senders = _named(capture, _SENDER)
    spans = spans.select(np.isin(spans["tid"], senders))
    found: dict[int, Handover] = {}
    for stream in np.unique(steps.stream).tolist():
        mine = np.flatnonzero((steps.stream == stream) & (steps.update_ns > 0))
        mine = mine[np.argsort(steps.update_ns[mine], kind="stable")]
        turns = [
            (i, Turn(int(steps.update_ns[i]), taken[stamp]))
            for i, stamp in zip(mine.tolist(), steps.stamp_ns[mine].tolist(), strict=True)
            if stamp in taken
        ]
        found |= _in_turn(spans.select(spans["stream"] == stream), turns)
    return found


#: What an event loop's thread waits for events in.
_LOOP_WAITS = (WaitKind.EPOLL, WaitKind.POLL, WaitKind.SELECT, WaitKind.IO_URING)


def unread(
    capture: Capture, chunks: Mapping[tuple[int, int], Sequence[tuple[int, int, int]]]
) -> dict[tuple[int, int], list[Turn]]:
    """When responses could not be written on because their clients did not read.

    A server writes a chunk without letting go of its event loop, unless what the client has yet to
    read is too much. If the loop's thread came to wait for events while a chunk was being written,
    the writing waited for the client, until the last event before the chunk was out.

    Args:
        capture: The recording.
        chunks: By exchange: start, end and thread of the chunks to look at.
    """
    threads = {tid for rows in chunks.values() for _, _, tid in rows}
    waits = capture.table("wait")
    waits = waits.select(
        np.isin(waits["tid"], list(threads)) & np.isin(waits["wait_kind"], _LOOP_WAITS)
    )
    by_thread = {}
    for tid in threads:
        own = waits.select(waits["tid"] == tid)
        by_thread[tid] = (np.sort(own["start_ns"]), np.sort(own["end_ns"]))
    found: dict[tuple[int, int], list[Turn]] = {}
    for exchange, rows in chunks.items():
        for start, end, tid in rows:
            starts, ends = by_thread[tid]
            at = int(ends.searchsorted(end, side="right")) - 1
            if at >= 0 and starts[at] >= start:
                found.setdefault(exchange, []).append(Turn(start, int(ends[at])))
    return found


def _in_turn(spans: Table, turns: Sequence[tuple[_Key, Turn]]) -> dict[_Key, Handover]:
    """The spans that were each one's turn, given in order.

    Each takes the first that are left and lie between its moments. Where there are none it stays
    without: nothing is said of it, and the next is not led astray.
    """
    rows = sorted(zip(*(spans[c].tolist() for c in ("start_ns", "end_ns", "tid")), strict=True))
    found: dict[_Key, Handover] = {}
    at = 0
    for key, turn in turns:
        while at < len(rows) and rows[at][0] < turn.start_ns:
            at += 1
        until = at
        while until < min(at + turn.count, len(rows)) and rows[until][1] <= turn.end_ns:
            until += 1
        if until > at:
            _, end, tid = max(rows[at:until], key=lambda row: row[1])
            found[key] = Handover(end, tid)
            at = until
    return found


def _spans(capture: Capture, name: str) -> Table:
    spans = capture.table("span")
    if name not in capture.strings:
        return spans.select(np.zeros(len(spans), bool))
    return spans.select(spans["name"] == capture.strings.index(name))


def _named(capture: Capture, role: str) -> list[int]:
    """Threads of a role."""
    rows = capture.table("thread")
    return [
        tid
        for tid, at in zip(rows["tid"].tolist(), rows["role"].tolist(), strict=True)
        if capture.strings[at] == role
    ]
