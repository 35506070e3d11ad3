# SPDX-License-Identifier: Apache-2.0
"""What watching waits costs, beside other tools in the same run.

``python -m tests.bench.overhead [--full] [--rounds N] [--seconds S]``. Rounds are interleaved,
every configuration once a round, backwards in every second one; a ratio is taken within its
round, and the median over the rounds is printed with its spread. Absolute times are this
machine's; ratios carry over better.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.overhead.tools import ALL_WAITS, TOOLS, Cost, Tool, cpu_s, ours, rss_mib

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOURCE = Path(__file__).with_name("stress.c")
_WORKLOADS = ("futex", "epoll")


@dataclass(frozen=True)
class Sample:
    """One run of the stress program.

    Attributes:
        per_turn_ns: Its own CPU time a turn.
        with_tool_ns: The same with the tool's CPU time.
        turns: Turns.
        wall_s: How long it ran.
        cost: What the tool used.
    """

    per_turn_ns: float
    with_tool_ns: float
    turns: int
    wall_s: float
    cost: Cost


def build(folder: Path) -> Path:
    """Compile the stress program."""
    program = folder / "stress"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
    subprocess.run(["cc", *flags, "-o", str(program), str(_SOURCE)], check=True)
    return program


def _children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measure(program: Path, workload: str, seconds: float, tool: Tool, pairs: int = 1) -> Sample:
    """Run the stress program under a tool."""
    command = [*tool.wrap, str(program), workload, str(seconds), str(pairs)]
    stress = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert stress.stdin is not None and stress.stdout is not None
    with stress:
        if stress.stdout.readline() != "ready\n":
            raise RuntimeError(f"{command[0]}: the stress program did not start under it")
        watch = tool.watch(stress.pid) if tool.watch else contextlib.nullcontext(Cost())
        with watch as cost:
            before = cpu_s(stress.pid) if tool.wrap else 0.0
            stress.stdin.write("\n")
            stress.stdin.flush()
            told = json.loads(stress.stdout.readline())
        if tool.wrap:
            with contextlib.suppress(OSError, IndexError):
                cost.cpu_s = cpu_s(stress.pid) - before
                cost.rss_mib = rss_mib(stress.pid)
    turns = told["turns"]
    own = told["cpu_s"] * 1e9 / turns
    return Sample(own, own + cost.cpu_s * 1e9 / turns, turns, told["wall_s"], cost)


def usable(tools: Sequence[Tool], program: Path) -> list[Tool]:
    """The tools that are installed and run here; the others are named, with the reason."""
    found: list[Tool] = []
    for tool in tools:
        if missing := tool.missing():
            print(f"left out: {tool.name}: {', '.join(missing)} not installed")
            continue
        try:
            measure(program, "futex", 0.05, tool)
        except (RuntimeError, OSError, ValueError) as exc:
            print(f"left out: {tool.name}: {exc}")
            continue
        found.append(tool)
    return found


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return statistics.median(values), ordered[last // 4], ordered[-(last // 4) - 1]


def compare(program: Path, tools: list[Tool], rounds: int, seconds: float) -> None:
    """Interleaved rounds of every workload and tool, and the table of ratios."""
    for workload in _WORKLOADS:
        samples: dict[str, list[Sample]] = {tool.name: [] for tool in tools}
        for number in range(rounds):
            for tool in tools if number % 2 == 0 else tools[::-1]:
                samples[tool.name].append(measure(program, workload, seconds, tool))
        base = samples["off"]
        each = statistics.median(sample.per_turn_ns for sample in base)
        print(f"\n{workload} ping-pong: {each:.0f} ns of CPU a turn with nothing attached")
        print(f"  {'':<30} {'CPU ratio':>9} {'quartiles':>13} {'+ tool':>7} {'ns/turn':>8}"
              f" {'RSS MiB':>8} {'lost':>6}")  # fmt: skip
        for tool in tools:
            own = [
                s.per_turn_ns / b.per_turn_ns
                for s, b in zip(samples[tool.name], base, strict=True)
            ]
            both = [
                s.with_tool_ns / b.per_turn_ns
                for s, b in zip(samples[tool.name], base, strict=True)
            ]
            middle, low, high = _quartiles(own)
            costs = [sample.cost for sample in samples[tool.name]]
            print(f"  {tool.name:<30} {middle:9.3f} {low:6.3f}-{high:.3f} "
                  f"{statistics.median(both):7.3f} {(middle - 1) * each:+8.0f} "
                  f"{statistics.median(c.rss_mib for c in costs):8.1f} "
                  f"{sum(c.lost for c in costs):6d}", flush=True)  # fmt: skip


def throughput(program: Path, seconds: float, pairs: int) -> None:
    """Events a second that are drained without loss, and what each costs the tracer."""
    before = rss_mib(os.getpid())
    tool = Tool("throughput", lambda pid: ours(pid, ALL_WAITS))
    sample = measure(program, "futex", seconds, tool, pairs)
    cost = sample.cost
    print(
        f"\ndrained {cost.events} events in {sample.wall_s:.2f} s: "
        f"{cost.events / sample.wall_s / 1e3:.0f} k/s, {cost.lost} lost; "
        f"{cost.cpu_s * 1e9 / max(1, cost.events):.0f} ns of CPU each, "
        f"{100 * cost.cpu_s / sample.wall_s:.1f}% of a CPU; "
        f"RSS {before:.0f} -> {cost.rss_mib:.0f} MiB"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    parser = argparse.ArgumentParser(prog="overhead", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more and longer rounds")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.stderr.write("overhead: needs root\n")
        return 4
    rounds = options.rounds or (21 if options.full else 3)
    seconds = options.seconds or (0.7 if options.full else 0.2)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpucorrelate-bench-") as folder:
        program = build(Path(folder))
        compare(program, usable(TOOLS, program), rounds, seconds)
        throughput(program, 5.0 if options.full else 1.5, os.cpu_count() or 1)
    print(f"\n{rounds} rounds of {seconds} s, {time.monotonic() - begun:.0f} s in all, "
          f"kernel {os.uname().release}, {os.cpu_count()} CPUs")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
