# SPDX-License-Identifier: Apache-2.0
"""Recordings for pages: a simulated engine's with the host's numbers beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.schema import Nature
from tests.truth.synthetic.engine import Engine
from tests.truth.synthetic.options import ALL, Options
from tests.truth.synthetic.records import Recorder
from tests.unit.synth import MS, Recording

if TYPE_CHECKING:
    from pathlib import Path

PRESSURE, CLOCK = "cpu.pressure.some.total", "gpu.clocks.sm"
#: A stream that the engine does not use.
_HOST = 9_000


class Hostile(Recorder):
    """Names that no page should fall for: of requests and of spans."""

    ID = "</script><img src=x onerror=alert(1)>\"'&\u202e"

    def put(self, stream: int, kind: str, *row: object) -> None:
        """The same row, its requests named otherwise."""
        named = [
            self.ID + one if isinstance(one, str) and one.startswith("cmpl-") else one
            for one in row
        ]
        super().put(stream, kind, *named)


def engine(path: Path, recorder: type[Recorder] = Recorder, requests: int = 30) -> Path:
    """A recording of a simulated engine that all sorts of things get in the way of."""
    options = Options(
        seed=7, requests=requests, answer=(2, 12), spread_us=40_000, rates=ALL, truth=False
    )
    with path.open("wb") as out:
        Engine(options, recorder(out)).play()
        out.write(b"".join(_host().frames))
    return path


def _host() -> Recording:
    """The host's numbers: a total that grows, and a level, over the first 200 ms."""
    made = Recording()
    made.add("metric", _HOST, name=PRESSURE, unit="ns", nature=Nature.TOTAL, meaning="pressure")
    made.add("metric", _HOST, name=CLOCK, unit="MHz", nature=Nature.LEVEL, meaning="clock")
    for k in range(41):
        t_ns = k * 50 * MS
        made.add("counter", _HOST, t_ns=t_ns, since_ns=t_ns - 50 * MS, metric=PRESSURE,
                 subject="host", value=k * k * MS)  # fmt: skip
        made.add("counter", _HOST, t_ns=t_ns, since_ns=t_ns - 50 * MS, metric=CLOCK,
                 subject="gpu:0", value=1000 + 10 * k)  # fmt: skip
    return made
