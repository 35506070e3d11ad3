# SPDX-License-Identifier: Apache-2.0
"""Time and memory from a recording to reports: ``python -m tests.bench.report [REQUESTS]``.

Prints seconds, CPU microseconds a request and peak memory for each stage, and the ratio
between a recording and one of a tenth its size: linear work gives 10.
"""

from __future__ import annotations

import io
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

import gpucorrelate
from gpucorrelate.api.runs import of_recording
from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.json import request_to_dict, write_lines
from gpucorrelate.probes.wire.frame import read_frames
from tests.bench.report.synthetic import frames

_QUERY = "SELECT actor, category, sum(length_ns) AS ns FROM segments GROUP BY ALL"


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(source: BinaryIO, requests: int) -> float:
    """Run every stage over a recording; returns CPU seconds in all."""
    begin = time.process_time()
    last = begin

    def stage(name: str) -> None:
        nonlocal last
        now = time.process_time()
        each = 1e6 * (now - last) / requests
        print(f"  {name:<34} {now - last:8.2f} s  {each:8.1f} us/request  {_peak_mib():7.0f} MiB")
        last = now

    capture = Capture.from_batches(read_frames(source))
    stage("read the recording")
    run = Run.of(capture)
    stage("join threads, steps, requests")
    run.requests()
    run.steps()
    stage("list requests and steps")
    run.summary()
    stage("summary (every path walked)")
    count = sum(1 for _ in run.all_requests())
    stage("report value of each request")
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        write_lines((request_to_dict(r) for r in run.all_requests()), out)
        size = out.tell()
    stage(f"the same as JSON ({size / 1e6:.0f} MB)")
    with tempfile.TemporaryDirectory() as space:
        saved = of_recording(run).save(Path(space) / "results")
        size, rows = (sum(getattr(one, name) for one in saved) for name in ("size_bytes", "rows"))
        stage(f"{rows:,} rows as Parquet ({size / 1e6:.1f} MB)")
        with gpucorrelate.open(Path(space) / "results") as results:
            answer = results.sql(_QUERY).to_pylist()
        stage("SQL over all segments of that")
    assert sum(row["ns"] for row in answer) == sum(row.wall_ns for row in run.requests())
    assert count == requests
    return time.process_time() - begin


def main() -> None:
    """Measure a tenth, then the whole."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    took = []
    for count in (requests // 10, requests):
        data = b"".join(frames(count))
        print(f"{count} requests of 50 tokens, {len(data) / 1e6:.0f} MB recorded:")
        took.append(measure(io.BytesIO(data), count))
    print(f"ten times the requests took {took[1] / took[0]:.1f} times the CPU")


if __name__ == "__main__":
    main()
