# SPDX-License-Identifier: Apache-2.0
"""Writes a recording again as time passes, for whoever follows a file that grows.

``python -m tests.unit.replay FROM TO [SPEED]``: a second of the recording takes 1 / SPEED seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.daemon.moments import latest_ns
from gpucorrelate.probes.wire.frame import Damage, Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURN_NS = 100_000_000


def turns(data: bytes, turn_ns: int = _TURN_NS) -> Iterator[tuple[int, bytes]]:
    """The recording in parts of some time each: when each ends by its own clock, its bytes."""
    begun = end = 0
    part = bytearray()
    for item in Decoder().feed(data):
        if isinstance(item, Damage):
            continue
        batch, frame = item
        # What is restated, and what began before, is of no time of the recording's own.
        moment = latest_ns(batch) if batch.seq else 0
        end = max(end, moment)
        begun = begun or moment
        part += frame
        if end - begun >= turn_ns:
            yield end, bytes(part)
            part.clear()
            begun = end
    if part:
        yield end, bytes(part)


def replay(source: Path, target: Path, speed: float = 1.0) -> None:
    """Append a recording to a file in its own time, or faster."""
    first_ns = 0
    begun = time.monotonic()
    with target.open("ab") as out:
        for end_ns, part in turns(source.read_bytes()):
            first_ns = first_ns or end_ns
            left = (end_ns - first_ns) / 1e9 / speed - (time.monotonic() - begun)
            time.sleep(max(0.0, left))
            out.write(part)
            out.flush()


if __name__ == "__main__":
    replay(Path(sys.argv[1]), Path(sys.argv[2]), *map(float, sys.argv[3:]))
