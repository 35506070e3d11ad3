# SPDX-License-Identifier: Apache-2.0
"""Runs fuzz targets one after another: ``python -m tests.fuzz [--seconds S] [NAME...]``.

Each target runs in processes of its own under atheris (libFuzzer with Python coverage), one after
another, then all that it learnt without atheris, to see that memory does not grow; the compiled
scanner of profiles under libFuzzer alone, with sanitizers. What it
learns stays in ``.cache/fuzz/NAME`` for the next run; an input that breaks a promise lands in
``.cache/fuzz/found`` and ends that target's run. Moved to ``tests/fuzz/found/NAME`` it is a unit
test ever after. The exit code is 1 where anything was found.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import native
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".cache" / "fuzz"
_SECONDS = 60
_ONE_INPUT_S = 30
_MEMORY_MIB = 2048
#: atheris 3.0 leaks the outcome of every comparison of arrays that it looks into: a thousand such
#: inputs take 20 MiB. So none of its processes lives long.
_PROCESS_S = 150
_NUMBERS = {
    "executions": re.compile(r"stat::number_of_executed_units:\s*(\d+)"),
    "coverage": re.compile(r"cov: (\d+)"),
    "features": re.compile(r"ft: (\d+)"),
    "inputs": re.compile(r"corp: (\d+)"),
}


@dataclass(frozen=True)
class Outcome:
    """What came of one target."""

    name: str
    numbers: dict[str, int]
    found: tuple[Path, ...]
    error: str

    @property
    def line(self) -> str:
        """One row of the table."""
        told = "  ".join(f"{what} {self.numbers.get(what, 0):>9,}" for what in _NUMBERS)
        return f"{self.name:10} {told}  found {len(self.found)}{self.error}"


def run(name: str, seconds: int) -> Outcome:
    """Fuzz one target for so long."""
    corpus, found = WORK / name, WORK / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(found.glob(f"{name}-*"))
    command = [sys.executable, "-m", "tests.fuzz.one", name, str(corpus)]
    if name == native.NAME:
        program = WORK / "scan_hostile"
        if reason := native.build(ROOT, program):
            return Outcome(name, {}, (), f"  not run: {reason}")
        native.seed(corpus)
        command = [str(program), str(corpus), "-max_len=4096"]
    options = {
        "timeout": _ONE_INPUT_S,
        "rss_limit_mb": _MEMORY_MIB,
        "print_final_stats": 1,
        "artifact_prefix": f"{found}/{name}-",
    }
    command += [f"-{key}={value}" for key, value in options.items()]
    log = WORK / f"{name}.log"
    log.unlink(missing_ok=True)
    code = 0
    for begun in range(0, seconds, _PROCESS_S):
        left = min(_PROCESS_S, seconds - begun)
        if code := _logged([*command, f"-max_total_time={left}"], log):
            break
    if not code and name != native.NAME:
        code = _logged([sys.executable, "-m", "tests.fuzz.growth", name, str(corpus)], log)
    new = tuple(sorted(set(found.glob(f"{name}-*")) - before))
    error = f"  exit code {code}, see {log}" if code and not new else ""
    return Outcome(name, _numbers(log), new, error)


def _logged(command: list[str], log: Path) -> int:
    """Run a command, its words to the log; its exit code."""
    with log.open("ab") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False)
    return done.returncode


def _numbers(log: Path) -> dict[str, int]:
    """What libFuzzer said last, and the executions of all its processes."""
    text = log.read_text("utf-8", "replace")
    found = {what: [int(each) for each in one.findall(text)] for what, one in _NUMBERS.items()}
    return {
        what: sum(seen) if what == "executions" else seen[-1]
        for what, seen in found.items()
        if seen
    }


def main() -> int:
    """The command; returns its exit code."""
    names = (*TARGETS, native.NAME)
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=_SECONDS, help="for each target")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; all by default")
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    outcomes = []
    for name in given.names or names:
        outcomes.append(run(name, given.seconds))
        print(outcomes[-1].line, flush=True)  # noqa: T201
        for path in outcomes[-1].found:
            print(f"  {path}", flush=True)  # noqa: T201
    return 1 if any(one.found or one.error for one in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
