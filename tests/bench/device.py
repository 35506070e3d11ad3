# SPDX-License-Identifier: Apache-2.0
"""From a profile to the critical paths of its steps: ``python -m tests.bench.device [RUNS]``.

Beside HolisticTraceAnalysis, which ``GPUCORRELATE_HTA_VENV`` names an environment with (its 0.5.0
needs ``pandas<3``): both read the same trace and find the paths of all its steps, in a fresh
process each, in turn. Then how we grow: the same trace again and again, moved on in time, with
new correlation ids, up to a million GPU records. The trace is one of ``GPUCORRELATE_TRACES``.

CPU times are user and system time of the whole process, imports included; the stages are ours.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GPUCORRELATE_TRACES") or ROOT.parent / "shared" / "traces")
TRACE = FOLDER / "hta-ddp-dense-v100.json.gz"
TRACE_RECORDS = 22_290
_SELF = (sys.executable, "-m", "tests.bench.device")
SIZES = (100_000, 300_000, 1_000_000)

_HTA = """
import json, sys
from importlib.metadata import version
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]})
graph, ok = trace.critical_path_analysis(0, "ProfilerStep", (0, int(sys.argv[2]) - 1))
print(json.dumps({"version": version("HolisticTraceAnalysis"), "ok": ok}))
"""
#: Numbers that differ from copy to copy: moments, ids of correlations and flows, steps' numbers.
_VARYING = re.compile(r'"ts": (\d+)|"(?:correlation|id)": (\d+)|"ProfilerStep#(\d+)"')


@dataclass(frozen=True)
class Result:
    """What a process used, and what it told."""

    cpu_s: float
    peak_mib: float
    told: Any


def measured(command: Sequence[str]) -> Result:
    """Run it; its last line of output is JSON.

    Raises:
        CalledProcessError: it failed; what it wrote as errors is shown.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            raise subprocess.CalledProcessError(
                process.returncode, command[:2], stderr=errors.read()[-2000:]
            )
        told = json.loads(out.read().splitlines()[-1])
    return Result(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, told)


def ours(path: Path) -> Result:
    """Our own way, in a fresh process."""
    return measured([*_SELF, "--ours", str(path)])


def paths_of(path: Path) -> dict[str, Any]:
    """Everything from the file to a path for each step; CPU seconds by stage, and how much."""
    began = time.process_time()
    import io

    from gpucorrelate.correlator import states
    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.walk import Walker
    from gpucorrelate.probes.importers.choose import read_trace
    from gpucorrelate.probes.importers.recording import frames_of
    from gpucorrelate.probes.importers.rows import StepMatcher
    from gpucorrelate.probes.wire.frame import read_frames

    stages: dict[str, float] = {}

    def done(stage: str) -> None:
        nonlocal began
        now = time.process_time()
        stages[stage], began = now - began, now

    done("imports")
    matcher = StepMatcher()
    trace = read_trace(path, matcher)
    done("parse")
    records, data = trace.gpu_records, b"".join(frames_of([trace], matcher))
    del trace
    capture = Capture.from_batches(read_frames(io.BytesIO(data)))
    del data
    done("record and read")
    found = states.build(capture)
    steps = found.device_steps
    done("join")
    walker = Walker(found)
    segments = sum(len(walker.walk([leg]).leg(0)) for leg in _legs(found, steps))
    done("walk")
    return {"records": records, "steps": len(steps), "segments": segments, "stages": stages}


def _legs(found: Any, steps: Any) -> Iterator[Any]:
    """Each step's way back from its end, or from that of its last work on a device if later."""
    import numpy as np

    from gpucorrelate.correlator.walk import LegSpec

    ops = found.device.ops
    order = np.argsort(steps.of, kind="stable")
    bounds = np.searchsorted(steps.of[order], np.arange(len(steps) + 1))
    for k in range(len(steps)):
        actor, start_ns, end_ns, last = int(steps.thread[k]), int(steps.start_ns[k]), 0, -1
        own = order[bounds[k] : bounds[k + 1]]
        if len(own):
            last = int(own[ops.end_ns[own].argmax()])
            end_ns = int(ops.end_ns[last])
        if end_ns > steps.end_ns[k]:
            yield LegSpec(int(found.path.actor[last]), start_ns, end_ns, (), last)
        else:
            yield LegSpec(actor, start_ns, int(steps.end_ns[k]), (), -1)


def compare(runs: int, interpreter: Path) -> None:
    """Both ways, in turn."""
    ours(TRACE)  # so that the files are in memory
    us, them = [], []
    for _ in range(runs):
        us.append(ours(TRACE))
        steps = us[-1].told["steps"]
        if interpreter.is_file():
            them.append(measured([str(interpreter), "-c", _HTA, str(TRACE), str(steps)]))
    told = us[0].told
    print(
        f"{TRACE.name}: {told['records']:,} GPU records, {told['steps']} steps; "
        f"{runs} runs, in turn; median (least-most):"
    )
    _print_row("gpucorrelate", us)
    if not them:
        print(f"  not compared with HolisticTraceAnalysis: no {interpreter}")
        return
    _print_row(f"HTA {them[0].told['version']}", them)
    cpu = _median(them, _cpu_s) / _median(us, _cpu_s)
    memory = _median(them, _peak_mib) / _median(us, _peak_mib)
    print(f"  HTA uses {cpu:.1f} times the CPU time and {memory:.1f} times the memory")


def _cpu_s(result: Result) -> float:
    return result.cpu_s


def _peak_mib(result: Result) -> float:
    return result.peak_mib


def _median(results: Sequence[Result], of: Callable[[Result], float]) -> float:
    return statistics.median(map(of, results))


def _print_row(name: str, results: Sequence[Result]) -> None:
    cells = []
    for of, digits, unit in ((_cpu_s, 2, "CPU s"), (_peak_mib, 0, "MiB peak")):
        values = list(map(of, results))
        least, most = min(values), max(values)
        spread = f"({least:.{digits}f}-{most:.{digits}f})"
        cells.append(f"{statistics.median(values):8.{digits}f} {spread:<13} {unit}")
    print(f"  {name:<14}", *cells)


def grow(runs: int) -> None:
    """The same trace many times over."""
    print(f"\n{TRACE.name} many times over; median of {runs}:")
    print(
        f"  {'GPU records':>11} {'JSON MB':>8} {'CPU s':>7} {'us/record':>9} "
        f"{'join+walk s':>11} {'us/record':>9} {'peak MiB':>8}"
    )
    each = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "many.json.gz"
            # In a process of its own: a child's peak is no less than its parent's when it began.
            copies = str(-(-size // TRACE_RECORDS))
            made = measured([*_SELF, "--multiply", str(path), copies])
            results = [ours(path) for _ in range(runs)]
        records = results[0].told["records"]
        cpu_s, joined_s = _median(results, _cpu_s), _median(results, _joined_s)
        each.append((cpu_s / records, joined_s / records))
        print(
            f"  {records:11,} {made.told / 1e6:8,.0f} {cpu_s:7.2f} {1e6 * each[-1][0]:9.2f} "
            f"{joined_s:11.3f} {1e6 * each[-1][1]:9.3f} {_median(results, _peak_mib):8.0f}"
        )
    stages = {
        stage: statistics.median(result.told["stages"][stage] for result in results)
        for stage in results[0].told["stages"]
    }
    print("  of the last:", ", ".join(f"{stage} {cpu_s:.2f} s" for stage, cpu_s in stages.items()))
    all_of_it, joined = (last / first for first, last in zip(each[0], each[-1], strict=True))
    print(
        f"  a record of the last costs {all_of_it:.2f} times one of the first, joined {joined:.2f}"
    )


def _joined_s(result: Result) -> float:
    stages = result.told["stages"]
    return float(stages["join"] + stages["walk"])


def multiply(path: Path, copies: int) -> int:
    """Write the trace with its events so many times; returns the bytes of text."""
    text = gzip.decompress(TRACE.read_bytes()).decode()
    first, last = text.index("[", text.index('"traceEvents"')) + 1, text.rindex("]")
    head, body, tail = text[:first], text[first:last], text[last:]
    numbers = [
        (match.lastindex or 0, int(match[match.lastindex or 0]))
        for match in _VARYING.finditer(body)
    ]
    template = _VARYING.sub(
        lambda m: m[0].replace(m[m.lastindex or 0], "\0"), body.replace("%", "%%")
    ).replace("\0", "%d")
    by_kind = [[number for kind, number in numbers if kind == wanted] for wanted in (1, 2, 3)]
    moves = [max(found) + 1 - min(found) for found in by_kind]
    written = 0
    with gzip.open(path, "wt", compresslevel=1) as out:
        written += out.write(head)
        for copy in range(copies):
            moved = tuple(number + copy * moves[kind - 1] for kind, number in numbers)
            written += out.write(("," if copy else "") + template % moved)
        written += out.write(tail)
    return written


def main() -> None:
    """Compare, then grow."""
    if sys.argv[1:2] == ["--ours"]:
        print(json.dumps(paths_of(Path(sys.argv[2]))))
        return
    if sys.argv[1:2] == ["--multiply"]:
        print(multiply(Path(sys.argv[2]), int(sys.argv[3])))
        return
    if not TRACE.is_file():
        print(f"profiles: not measured, no {TRACE}")
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    venv = os.environ.get("GPUCORRELATE_HTA_VENV") or ROOT / ".venv-hta"
    compare(runs, Path(venv) / "bin" / "python")
    grow(max(1, runs // 3))


if __name__ == "__main__":
    main()
