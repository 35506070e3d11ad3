# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate import``: a profile by another tool as a recording."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.output import note
from gpucorrelate.probes.wire.errors import (
    EXIT_OK,
    GpucorrelateError,
    NotFoundError,
    TraceError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpucorrelate.probes.importers.rows import ImportedTrace, StepMatcher

_FILE = click.Path(path_type=Path)
_LONGEST_PATTERN = 1000
_WARNINGS = 4
_NAMED = 3
_TOO_LARGE = (
    "GPU records and API calls are held, the rest is not: profile fewer steps, import fewer files "
    "at once, or import where there is more memory"
)


@click.command(
    "import",
    cls=Command,
    short_help="Read GPU profiles by PyTorch or Nsight Systems into a recording.",
    examples=(
        "gpucorrelate import trace.json.gz -o run.gpcf",
        "gpucorrelate import rank*.json.gz -o run.gpcf",
        "gpucorrelate import profile.sqlite -o run.gpcf --step-regex '^forward'",
    ),
)
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="FILE...")
@click.option("-o", "--output", type=_FILE, required=True, metavar="RUN", help="The recording.")
@click.option(
    "--step-regex",
    default="",
    metavar="REGEX",
    help="Ranges whose name it finds are the steps. [default: execute_*, else ProfilerStep]",
)
@click.option("--force", is_flag=True, help="Write over a RUN that exists.")
def import_(*, files: tuple[Path, ...], output: Path, step_regex: str, force: bool) -> int:
    """Read GPU profiles by other tools into one recording that `report` and `tables` take.

    A FILE is a PyTorch profile (Kineto JSON, plain or .gz, CUDA or HIP) or an Nsight Systems
    export (nsys export -t sqlite); several are ranks of one run. Steps come from annotations
    (execute_*, ProfilerStep#N) or NVTX ranges; without any the whole trace is one step.

    What cannot be read is named with its place, and the rest is kept. A profile holds no OS
    waits: what its threads did between calls is reported as host time.

    Exits with 3 when no FILE holds device activity, and with 7 when one cannot be read; the
    others are imported all the same. Exits with 1 when what is kept of them does not fit into
    the memory that is free.
    """
    from gpucorrelate.cli.memory import bounded
    from gpucorrelate.cli.saving import check_output

    _check_names(files, output)
    check_output(output, force=force)
    with bounded(_names(files), _TOO_LARGE):
        return _import(files, output, step_regex)


def _import(files: Sequence[Path], output: Path, step_regex: str) -> int:
    """The exit code; the recording is written and what it holds is said."""
    from gpucorrelate.cli.saving import whole_recording
    from gpucorrelate.correlator.report import units
    from gpucorrelate.probes.importers.recording import frames_of

    matcher = _matcher(step_regex)
    traces, failed = _read_all(files, matcher)
    _warn(traces)
    if not any(trace.gpu_records for trace in traces):
        raise NotFoundError(
            f"{_names(files)}: this trace holds no device activity",
            hint="profile with ProfilerActivity.CUDA, or nsys profile --trace=cuda",
        )
    with whole_recording(output, "the profiles are untouched: name another place") as out:
        for frame in frames_of(traces, matcher):
            out.write(frame)
        size = out.tell()
    records = sum(trace.gpu_records for trace in traces)
    processes = [process for trace in traces for process in trace.processes]
    steps = sum(len(matcher.steps(process.ranges)) for process in processes)
    named = units.plural(steps, "step") if steps else "no steps named (--step-regex)"
    note(
        f"{units.plural(records, 'GPU record')} of "
        f"{units.plural(len(processes), 'process', 'processes')}, {named}, "
        f"{units.size(size)} in {output}; report it with: gpucorrelate report {output}"
    )
    return failed


def _names(files: Sequence[Path]) -> str:
    names = ", ".join(path.name for path in files[:_NAMED])
    return names if len(files) <= _NAMED else f"{names} and {len(files) - _NAMED} more"


def _check_names(files: Sequence[Path], output: Path) -> None:
    """Refuse to write over what is read, or to read a file twice."""
    places = [path.resolve() for path in files]
    if output.resolve() in places:
        raise UsageError(f"{output}: is a profile to be read", hint="name another RUN")
    for path, place in zip(files, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"{path}: is given twice")


def _matcher(pattern: str) -> StepMatcher:
    from gpucorrelate.probes.importers.rows import StepMatcher

    if len(pattern) > _LONGEST_PATTERN:
        raise UsageError(f"--step-regex has {_LONGEST_PATTERN} letters at most")
    try:
        return StepMatcher(pattern)
    except re.error as exc:
        raise UsageError(f"--step-regex: {exc}: {pattern!r}") from exc


def _read_all(files: Sequence[Path], matcher: StepMatcher) -> tuple[list[ImportedTrace], int]:
    """What can be read, and the exit code of what cannot; raises where that is all."""
    traces: list[ImportedTrace] = []
    failed = EXIT_OK
    for path in files:
        try:
            traces.append(_read(path, matcher))
        except (GpucorrelateError, OSError) as exc:
            if len(files) == 1:
                raise
            failed = TraceError.exit_code
            note(f"not imported: {exc}")
    if not traces:
        raise TraceError("no FILE can be read")
    return traces, failed


def _read(path: Path, matcher: StepMatcher) -> ImportedTrace:
    from gpucorrelate.probes.importers.choose import read_trace

    if not path.exists():
        raise NotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise UsageError(f"{path}: is no file")
    with _progress(path) as told:
        return read_trace(path, matcher, told)


@contextlib.contextmanager
def _progress(path: Path) -> Iterator[Callable[[int], None]]:
    """A line on a terminal that says how much was read; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    from gpucorrelate.correlator.report.names import safe

    with Console(stderr=True).status(f"reading {safe(path.name)}", spinner="line") as status:
        yield lambda n: status.update(f"reading {safe(path.name)}: {n:,}")


def _warn(traces: list[ImportedTrace]) -> None:
    for trace in traces:
        lines = trace.problems.lines()
        for what, count in lines[:_WARNINGS]:
            note(f"warning: {trace.source}: {count:,} {what}")
        if len(lines) > _WARNINGS:
            note(f"warning: {trace.source}: {len(lines) - _WARNINGS} more kinds of problem")
        if not trace.gpu_records and len(traces) > 1:
            note(f"warning: {trace.source}: this trace holds no device activity")
