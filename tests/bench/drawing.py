# SPDX-License-Identifier: Apache-2.0
"""From a recording to drawings of it: ``python -m tests.bench.drawing [EVENTS]``.

A simulated engine's recording, of a million events unless told otherwise, and one of a tenth: CPU
seconds and bytes, against reading and joining the recording, which every report must do; and what
a slice costs, against making it with Perfetto's own classes in the same run.
"""

from __future__ import annotations

import io
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report import flame
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.paths import PathFinder
from gpucorrelate.correlator.report.perfetto import render
from gpucorrelate.correlator.report.perfetto.writer import protos
from gpucorrelate.probes.wire.frame import read_frames
from tests.truth.synthetic.engine import Engine
from tests.truth.synthetic.options import ALL, DeviceOptions, Options
from tests.truth.synthetic.records import Recorder

EVENTS = 1_000_000
#: Events that a request leaves, about; enough to choose how many requests to simulate.
_EVENTS_EACH = 235
_APART_US = 1_500
_OPTIONS = Options(
    answer=(1, 24), ranks=1, depth=2, copier=True, batch=16, rates=ALL, truth=False,
    device=DeviceOptions(graph=12, kernels=3),
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What one recording took."""

    events: int
    slices: int
    read_s: float
    trace_s: float
    flame_s: float
    trace_bytes: int


def measure(events: int, folder: Path) -> Cost:
    """Simulate, read, draw."""
    requests = max(1, events // _EVENTS_EACH)
    options = replace(_OPTIONS, requests=requests, spread_us=requests * _APART_US)
    path = folder / "run.gpcf"
    with path.open("wb") as recorded:
        engine = Engine(options, Recorder(recorded))
        engine.play()
    begin = time.process_time()
    with path.open("rb") as source:
        run = Run.of(Capture.from_batches(read_frames(source)))
    read = time.process_time()
    with (folder / "run.pftrace").open("wb") as out:
        counts = render.write(run, render.Choice(), out)
    drawn = time.process_time()
    names = [request.external_id for request in run.requests_]
    graph = flame.of("all", PathFinder(run).requests(run.requests_), names)
    flame.write_folded(graph, io.StringIO())
    size = (folder / "run.pftrace").stat().st_size
    return Cost(
        engine.records.events, sum(counts.values()), read - begin, drawn - read,
        time.process_time() - drawn, size,
    )  # fmt: skip


def classes_us() -> float:
    """A slice of two packets with two details, made with Perfetto's own classes; CPU us."""
    pb, count = protos(), 50_000
    begin = time.process_time()
    whole = pb.Trace()
    for i in range(count):
        for kind in (pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END):
            packet = whole.packet.add()
            packet.timestamp, packet.trusted_packet_sequence_id = 10**12 + i, 1
            packet.sequence_flags = 2
            event = packet.track_event
            event.type, event.track_uuid = kind, 7
            if kind == pb.TrackEvent.TYPE_SLICE_BEGIN:
                event.name_iid = i % 100 + 1
                event.category_iids.append(2)
                for name, value in ((3, i % 50 + 1), (4, i)):
                    detail = event.debug_annotations.add()
                    detail.name_iid, detail.uint_value = name, value
    whole.SerializeToString()
    return 1e6 * (time.process_time() - begin) / count


def main() -> None:
    """Measure a tenth, then the whole."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS
    costs = []
    for wanted in (events // 10, events):
        with tempfile.TemporaryDirectory() as folder:
            one = measure(wanted, Path(folder))
        costs.append(one)
        print(
            f"{one.events:,} events: read and joined in {one.read_s:.2f} CPU s\n"
            f"  a trace of {one.slices:,} slices and marks in {one.trace_s:.2f} CPU s, "
            f"{one.trace_bytes / 1e6:.0f} MB ({one.trace_bytes / one.slices:.0f} bytes each)\n"
            f"  a flame graph in {one.flame_s:.2f} CPU s"
        )
    large = costs[-1]
    each = [one.trace_s / one.slices for one in costs]
    print(
        f"  of reading's time the trace takes {large.trace_s / large.read_s:.1f} times, the flame "
        f"graph {large.flame_s / large.read_s:.1f} times\n"
        f"  a slice of the large one costs {each[1] / each[0]:.2f} times one of a tenth: "
        f"{1e6 * each[1]:.2f} us, all told\n"
        f"  making it with Perfetto's own classes alone would take "
        f"{classes_us() / (1e6 * each[1]):.1f} times that\n"
        f"  peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"
    )


if __name__ == "__main__":
    main()
