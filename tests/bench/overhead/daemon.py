# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself uses of a CPU while it records.

``python -m tests.bench.overhead.daemon [--rounds N] [--seconds S] [--output FILE]``. Every
sample is a daemon of its own with one attached load: one that only sleeps, and two that wait
at a fixed rate. Rounds are interleaved, each with reading of the host's numbers switched on
and off; ratios are taken within a round, and medians over the rounds are printed with their
spread. The second table holds what reading the host's numbers costs, and how far apart the
reads came to be, by the number of threads and processes. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.daemon.client import open_recording
from gpucorrelate.daemon.columns import rows_of
from gpucorrelate.probes.wire.frame import Batch, StreamReader
from gpucorrelate.probes.wire.schema import BY_NAME
from tests.unit.daemon_kit import Yard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpucorrelate.daemon.client import Client
    from tests.unit.daemon_kit import DaemonProcess

_SOURCE = Path(__file__).with_name("load.c")
_RATES = (0, 5_000, 50_000)
_POLL_MS = 200
#: Attaching, first looks and the first window of everything are over by then.
_SETTLE_S = 2.0
_COUNTER, _LOSS = BY_NAME["counter"], BY_NAME["loss"]


@dataclass(frozen=True)
class Sample:
    """One daemon with one load.

    Attributes:
        cpu: CPU seconds of the daemon per second, all threads.
        cpu_ms_per_1000_waits: CPU time by the waits recorded meanwhile; 0 where there are none.
        waits_per_s: Waits recorded.
        lost: Events lost, by the hop that lost them.
        parts: CPU seconds per second by the part of the daemon's work, as it counts them.
        turns_per_s: How often the daemon's loop came round.
        intervals_ms: Median time between two reads that brought something, by the first word
            of the numbers' names.
        paces_ms: How often each source of host numbers is to be read, at the end.
    """

    cpu: float
    cpu_ms_per_1000_waits: float
    waits_per_s: float
    lost: dict[str, int]
    parts: dict[str, float] = field(default_factory=dict)
    turns_per_s: float = 0.0
    intervals_ms: dict[str, float] = field(default_factory=dict)
    paces_ms: dict[str, int] = field(default_factory=dict)


def build(folder: Path) -> Path:
    """Compile the load."""
    program = folder / "load"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
    subprocess.run(["cc", *flags, "-o", str(program), str(_SOURCE)], check=True)
    return program


@contextlib.contextmanager
def _daemon(poll_ms: int) -> Iterator[DaemonProcess]:
    yard = Yard()
    try:
        # As it is installed, but for what would make a short run different from a long one.
        yield yard.daemon(ebpf=True, require_ebpf=True, tick_ms=20, poll_ms=poll_ms).start()
    finally:
        yard.clear()


@contextlib.contextmanager
def _load(program: Path, rate: int, threads: int, processes: int) -> Iterator[int]:
    command = [str(program), str(rate), str(threads), str(processes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as load:
        assert load.stdin is not None and load.stdout is not None
        for _ in range(processes):
            if load.stdout.readline() != b"ready\n":
                raise RuntimeError("the load did not start")
        yield load.pid
        load.stdin.close()
        load.terminate()


def _cpu_ns(pid: int) -> int:
    """CPU time of all threads (``sum_exec_runtime`` of /proc/PID/task/TID/schedstat)."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files)


def _own_account(client: Client) -> tuple[dict[str, int], int]:
    """CPU time by part of the work and turns of the loop, as the daemon counts them itself."""
    effort = client.status().effort
    return {part.name: part.cpu_ns for part in effort.parts}, effort.turns


def _recorded(
    daemon: DaemonProcess, session: str, since_ns: int
) -> tuple[dict[str, int], dict[str, float]]:
    """Losses by hop, and the median time between looks by the first word of their metrics."""
    gaps: dict[str, dict[int, int]] = defaultdict(dict)
    lost: Counter[str] = Counter()
    reader = StreamReader()
    for item in open_recording(daemon.session_dir(session)):
        if not isinstance(item, Batch) or item.stream != 1 or not reader.accept(item)[0]:
            continue
        if item.kind == _LOSS.id:
            for _, _, hop, _, count in rows_of(_LOSS, item, reader.strings):
                lost[hop] += count
        if item.kind == _COUNTER.id:
            for t_ns, before_ns, metric, *_ in rows_of(_COUNTER, item, reader.strings):
                # The values of one look differ by what reading them took: one for each look.
                if before_ns > since_ns:
                    group = metric.partition(".")[0] if "." in metric else "meminfo"
                    gaps[group].setdefault(before_ns, t_ns - before_ns)
    intervals = {
        source: statistics.median(lengths.values()) / 1e6 for source, lengths in gaps.items()
    }
    return dict(lost), intervals


def measure(
    program: Path,
    seconds: float,
    *,
    rate: int,
    poll_ms: int,
    threads: int = 0,
    processes: int = 1,
) -> Sample:
    """Run a daemon and a load, and look at the daemon's CPU time between two moments."""
    with (
        _daemon(poll_ms) as daemon,
        _load(program, rate, threads, processes) as pid,
    ):
        assert daemon.process is not None
        served_by = daemon.process.pid
        session = daemon.client.attach(pid).session.session
        time.sleep(_SETTLE_S)
        waits = daemon.client.progress(session).waits
        parts, turns = _own_account(daemon.client)
        used, begun_ns = _cpu_ns(served_by), time.monotonic_ns()
        time.sleep(seconds)
        used, wall_s = _cpu_ns(served_by) - used, (time.monotonic_ns() - begun_ns) / 1e9
        sources = daemon.client.status().sources
        parts_then, turns_then = _own_account(daemon.client)
        progress = daemon.client.progress(session)
        daemon.client.detach(session)
        more = progress.waits - waits
        lost, intervals_ms = _recorded(daemon, session, begun_ns)
        return Sample(
            cpu=used / 1e9 / wall_s,
            cpu_ms_per_1000_waits=used / 1e6 / more * 1000 if rate else 0.0,
            waits_per_s=more / wall_s,
            lost=lost,
            parts={one: (parts_then[one] - parts[one]) / 1e9 / wall_s for one in parts_then},
            turns_per_s=(turns_then - turns) / wall_s,
            intervals_ms=intervals_ms,
            paces_ms={one.source: one.every_ms for one in sources},
        )


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def _percent(values: Sequence[float]) -> str:
    middle, low, high = _spread([100 * value for value in values])
    return f"{middle:6.2f}% ({low:.2f}-{high:.2f})"


def _lost(samples: Iterable[Sample]) -> str:
    total = sum((Counter(sample.lost) for sample in samples), Counter())
    return ", ".join(f"{count} at {hop}" for hop, count in total.items()) or "nothing"


def _medians(found: Iterable[Mapping[str, float]]) -> str:
    values: dict[str, list[float]] = defaultdict(list)
    for one in found:
        for name, value in one.items():
            values[name].append(value)
    return ", ".join(f"{n} {statistics.median(v):.0f}" for n, v in sorted(values.items()))


def by_rate(program: Path, rounds: int, seconds: float) -> dict[str, list[Sample]]:
    """The daemon's CPU by rate of waits, host numbers read and not; prints the table."""
    runs = [(rate, poll_ms) for rate in _RATES for poll_ms in (_POLL_MS, 0)]
    samples: dict[tuple[int, int], list[Sample]] = {run: [] for run in runs}
    for number in range(rounds):
        for rate, poll_ms in runs if number % 2 == 0 else runs[::-1]:
            sample = measure(program, seconds, rate=rate, poll_ms=poll_ms)
            samples[rate, poll_ms].append(sample)
    print(f"\nthe daemon's CPU, one session, {rounds} rounds of {seconds:g} s: median (spread)")
    for rate in _RATES:
        on, off = samples[rate, _POLL_MS], samples[rate, 0]
        ratio = statistics.median(a.cpu / b.cpu for a, b in zip(on, off, strict=True))
        print(f"  {statistics.median(s.waits_per_s for s in on):6.0f} waits/s: "
              f"{_percent([s.cpu for s in on])}; without host numbers "
              f"{_percent([s.cpu for s in off])}, ratio {ratio:.2f}; "
              f"{statistics.median(s.cpu_ms_per_1000_waits for s in on):.2f} ms per 1,000 waits; "
              f"{statistics.median(s.turns_per_s for s in on):.0f} turns/s; "
              f"lost: {_lost((*on, *off))}")  # fmt: skip
        for part in on[0].parts:
            print(f"      {part:<12} {_percent([s.parts[part] for s in on])}")
    return {f"{rate}/s poll {poll_ms}": found for (rate, poll_ms), found in samples.items()}


def by_size(program: Path, rounds: int, seconds: float) -> dict[str, list[Sample]]:
    """What reading the host's numbers costs and how rare it becomes; prints the table."""
    runs = [(processes, threads) for processes in (1, 8) for threads in (1, 10, 100)]
    samples: dict[tuple[int, int], list[Sample]] = {run: [] for run in runs}
    for number in range(rounds):
        for processes, threads in runs if number % 2 == 0 else runs[::-1]:
            sample = measure(
                program, seconds, rate=0, poll_ms=_POLL_MS, threads=threads, processes=processes
            )
            samples[processes, threads].append(sample)
    print(f"\nreading the host's numbers every {_POLL_MS} ms or, beyond 1% of a CPU, more rarely:")
    print("  CPU, and ms between two reads")
    for (processes, threads), found in samples.items():
        parts = [sum(s.parts[p] for p in ("host", "other threads")) for s in found]
        print(f"  {processes} processes of {threads + 1:3} threads: in the loop "
              f"{_percent([s.parts['host'] for s in found])}, with other threads "
              f"{_percent(parts)} of all {_percent([s.cpu for s in found])}")  # fmt: skip
        print(f"      read every: {_medians([s.paces_ms for s in found])}")
        print(f"      brought something every: {_medians([s.intervals_ms for s in found])}")
    return {f"{p} processes, {t} threads": found for (p, t), found in samples.items()}


def main(argv: list[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    parser = argparse.ArgumentParser(prog="overhead.daemon", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--output", type=Path, help="all samples, as JSON")
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.stderr.write("overhead.daemon: needs root\n")
        return 4
    with tempfile.TemporaryDirectory(prefix="gpcbench") as folder:
        program = build(Path(folder))
        samples = {
            "rates": by_rate(program, options.rounds, options.seconds),
            "sizes": by_size(program, options.rounds, options.seconds),
        }
    if options.output is not None:
        told = {
            table: {name: [asdict(one) for one in found] for name, found in rows.items()}
            for table, rows in samples.items()
        }
        options.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
