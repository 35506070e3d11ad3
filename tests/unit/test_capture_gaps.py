# SPDX-License-Identifier: Apache-2.0
"""Where batches are missing from a recording, and what is believed there."""

from __future__ import annotations

import numpy as np
import pytest

from gpucorrelate.correlator.capture import _DRAIN_NS, Capture
from gpucorrelate.correlator.gaps import windows
from gpucorrelate.probes.wire.frame import Decoder, StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME

MS = 1_000_000
START = 10_000 * MS
KERNEL, AGENT = 2, 4


def _row(kind: str, **given: int) -> tuple[int | str, ...]:
    return tuple(given.get(c.name, "" if c.ctype == "str" else 0) for c in BY_NAME[kind].columns)


def _frames(stream: int, batches: list[tuple[str, list[dict[str, int]]]]) -> list[bytes]:
    writer = StreamWriter(stream)
    found: list[bytes] = []
    for name, rows in batches:
        kind = BY_NAME[name]
        columns = columns_of(kind, [_row(name, **row) for row in rows], writer.strings)
        found += writer.frames(kind, len(rows), columns)
    return found


def _waits(*ends_ms: int) -> tuple[str, list[dict[str, int]]]:
    rows = [
        {"tid": 7, "tgid": 7, "start_ns": START + (end - 1) * MS, "end_ns": START + end * MS}
        for end in ends_ms
    ]
    return "wait", rows


def _capture(stream: int, batches: list[tuple[str, list[dict[str, int]]]], lost: set[int]):
    decoder = Decoder()
    kept = [f for at, f in enumerate(_frames(stream, batches)) if at not in lost]
    items = [item for frame in kept for item in decoder.feed(frame)]
    return Capture.from_batches(i[0] if isinstance(i, tuple) else i for i in items)


#: Each drain brings waits, then a batch whose rows are older, or that has no times at all.
_BATCHES = [
    _waits(5, 20),
    ("thread", [{"tid": 7}]),
    _waits(25, 40),
    ("fault", [{"tid": 7, "start_ns": START + 21 * MS, "end_ns": START + 22 * MS}]),
    _waits(45, 600),
    ("thread", [{"tid": 8}]),
    _waits(601, 620),
]


@pytest.mark.parametrize(
    ("lost", "since_ms", "until_ms"),
    [
        ({2}, 20, 22),  # the next batch speaks of earlier moments than the lost one
        ({2, 3}, 20, 600),
        ({4}, 40, 620),  # the next batch speaks of no moment
    ],
)
def test_a_gap_reaches_over_all_that_the_missing_batches_may_speak_of(lost, since_ms, until_ms):
    found = _capture(KERNEL, _BATCHES, lost).intake.gaps
    since = START + since_ms * MS - _DRAIN_NS
    assert found == ((KERNEL, since, START + until_ms * MS + _DRAIN_NS),)
    for at in lost:
        for row in _BATCHES[at][1]:
            assert since <= row["end_ns"] <= found[0][2]


def test_what_is_cut_off_at_the_end_leaves_no_gap():
    """Nothing comes after it: no number is missing."""
    assert _capture(KERNEL, _BATCHES, {6}).intake.gaps == ()


def test_a_gap_with_no_moment_after_it_reaches_to_the_end():
    capture = _capture(KERNEL, _BATCHES[:6], {4})
    since = START + 40 * MS - _DRAIN_NS
    assert capture.intake.gaps == ((KERNEL, since, 0),)
    bounds = (START, START + 9_000 * MS)
    found = windows(capture, np.array([7]), bounds)
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([since], [bounds[1]])


def test_a_gap_in_an_agents_stream_says_nothing_of_waits():
    capture = _capture(AGENT, _BATCHES, {2})
    assert [gap[0] for gap in capture.intake.gaps] == [AGENT]
    found = windows(capture, np.array([7]), (START, START + 700 * MS))
    assert found.start_ns.tolist() == []
