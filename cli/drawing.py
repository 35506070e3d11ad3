# SPDX-License-Identifier: Apache-2.0
"""Reports for other people's viewers: a Perfetto trace, flame graphs of critical-path time."""

from __future__ import annotations

import contextlib
import gzip
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from gpucorrelate.cli.output import note, whole_file
from gpucorrelate.cli.profile import must_be_of_a_profile
from gpucorrelate.cli.saving import whole_recording
from gpucorrelate.cli.select import window
from gpucorrelate.correlator.report import flame, units
from gpucorrelate.correlator.report.paths import PathFinder
from gpucorrelate.correlator.report.perfetto import render
from gpucorrelate.correlator.report.perfetto.writer import protos
from gpucorrelate.probes.wire.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpucorrelate.cli.produce import Wanted
    from gpucorrelate.correlator.report.build import Run

PERFETTO, FOLDED, SPEEDSCOPE = "perfetto", "folded", "speedscope"
FORMS = (PERFETTO, FOLDED, SPEEDSCOPE)

_VIEWER = "https://ui.perfetto.dev"


@dataclass(frozen=True)
class _Chosen:
    """Places of what is wanted: requests of an engine, or steps of either kind."""

    what: str
    requests: tuple[int, ...] = ()
    step: int | None = None
    profile_steps: tuple[int, ...] = ()
    everything: bool = False


def check(form: str, want: Wanted, output: str | None) -> None:
    """Refuses what cannot be, before anything is read.

    Raises:
        UsageError: these options do not go together, or a terminal would get bytes.
        GpucorrelateError: what the format needs is not installed.
    """
    if want.everything:
        raise UsageError(
            f"--all is a JSON document for each request, not {form}",
            hint="without it the whole recording is drawn",
        )
    if form != PERFETTO:
        return
    if output in (None, "-") and sys.stdout.isatty():
        raise UsageError(
            "a Perfetto trace is binary and standard output is a terminal",
            hint="name a file: -o run.pftrace",
        )
    protos()


def write(run: Run, want: Wanted, form: str, output: str | None) -> None:
    """Writes what is wanted to a file, or to standard output.

    Raises:
        NotFoundError: there is nothing of it.
        StoreError: the file cannot be written.
    """
    chosen = _chosen(run, want)
    if form == PERFETTO:
        _write_trace(run, chosen, _stretches(run, want, chosen), output)
        return
    graph = _flame(run, chosen)
    draw = flame.write_folded if form == FOLDED else flame.write_speedscope
    if output is None or output == "-":
        draw(graph, sys.stdout)
        return
    with whole_file(Path(output)) as out:
        draw(graph, out)


def _shown(run: Run) -> Callable[[str], str]:
    """What stands in place of a text: itself, unless ids of requests are to be kept back."""
    from gpucorrelate.correlator.report.build import Run as PlainRun

    if type(run) is PlainRun:
        return str
    from gpucorrelate.correlator.report.redact import Redactor, key_of

    capture = run.capture
    ids = {one for request in run.requests_ for one in request.ids}
    for kind in ("request", "step_rows", "tokens"):
        ids.update(capture.strings[at] for at in set(capture.table(kind)["request"].tolist()))
    return Redactor(key_of(capture), ids).value


# -- what is wanted


def _chosen(run: Run, want: Wanted) -> _Chosen:
    if run.is_profile:
        return _of_profile(run, want)
    if want.request_id is not None:
        request = run.find(want.request_id)
        return _Chosen(f"request {request.external_id}", (run.requests_.index(request),))
    if want.step is not None:
        return _Chosen(f"step {want.step}", step=run.find_step(want.step, want.process))
    since_ns, until_ns = window(run, want.since, want.until)
    found = [
        at
        for at, request in enumerate(run.requests_)
        if (since_ns is None or request.end_ns >= since_ns)
        and (until_ns is None or request.arrival_ns <= until_ns)
    ]
    if want.slowest is None:
        return _Chosen(units.plural(len(found), "request"), tuple(found), everything=True)
    done = [at for at in found if run.requests_[at].complete]
    done.sort(key=lambda at: run.requests_[at].arrival_ns - run.requests_[at].end_ns)
    if not done:
        raise NotFoundError(
            f"nothing to report: none of {len(run.requests_)} requests fits",
            hint="see what was recorded: gpucorrelate report, gpucorrelate requests",
        )
    some = tuple(done[: want.slowest])
    return _Chosen(_slowest(len(some), "request"), some)


def _slowest(count: int, what: str) -> str:
    return f"the slowest {what}" if count == 1 else f"the {count} slowest {what}s"


def _of_profile(run: Run, want: Wanted) -> _Chosen:
    devices = run.devices
    must_be_of_a_profile(run, want)
    if want.step is not None:
        at = devices.find(want.step, want.process)
        return _Chosen(f"step {want.step}", profile_steps=(at,))
    if want.slowest is not None:
        some = tuple(devices.slowest(want.slowest))
        return _Chosen(_slowest(len(some), "step"), profile_steps=some)
    every = tuple(range(len(devices.steps)))
    return _Chosen(units.plural(len(every), "step"), profile_steps=every, everything=True)


# -- a trace


def _stretches(run: Run, want: Wanted, chosen: _Chosen) -> tuple[tuple[int, int], ...]:
    """The time to draw; empty: all of it."""
    if chosen.everything:
        since_ns, until_ns = (None, None)
        if want.since or want.until:
            since_ns, until_ns = window(run, want.since, want.until)
        if since_ns is None and until_ns is None:
            return ()
        start, end = run.states.start_ns, run.states.end_ns
        return ((start if since_ns is None else since_ns, end if until_ns is None else until_ns),)
    if chosen.step is not None:
        steps = run.steps_
        bounds = [(int(steps.sched_ns[chosen.step]), steps.end_ns(chosen.step))]
    elif chosen.profile_steps:
        rows = [run.devices.parts(at)[0] for at in chosen.profile_steps]
        bounds = [(row.start_ns, row.end_ns) for row in rows]
    else:
        requests = [run.requests_[at] for at in chosen.requests]
        bounds = [(request.arrival_ns, request.end_ns) for request in requests]
    return render.around(bounds)


def _write_trace(
    run: Run, chosen: _Chosen, stretches: tuple[tuple[int, int], ...], output: str | None
) -> None:
    whole = chosen.everything
    choice = render.Choice(
        stretches,
        None if whole else chosen.requests,
        None if whole else chosen.profile_steps,
    )
    if output is None or output == "-":
        render.write(run, choice, sys.stdout.buffer, _shown(run))
        return
    path = Path(output)
    with _place(path) as out:
        counts = render.write(run, choice, out, _shown(run))
    told = units.plural(sum(counts.values()), "slice or mark", "slices and marks")
    size = units.size(path.stat().st_size)
    of = f"around {_shown(run)(chosen.what)}"
    if whole:
        of = "of the time asked for" if stretches else "of the whole recording"
    note(f"{told} {of}, {size} in {path}; open it in {_VIEWER}")


@contextlib.contextmanager
def _place(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears when it is complete; compressed where its name ends in .gz."""
    with contextlib.ExitStack() as stack:
        out: IO[bytes]
        if path.exists() and not path.is_file():  # a device or a pipe is written in place
            out = stack.enter_context(path.open("wb"))
        else:
            out = stack.enter_context(whole_recording(path))
        if path.suffix == ".gz":
            packed = gzip.GzipFile("", "wb", compresslevel=1, fileobj=out, mtime=0)
            out = cast("IO[bytes]", stack.enter_context(packed))
        yield out


# -- a flame graph


def _flame(run: Run, chosen: _Chosen) -> flame.Flame:
    finder = PathFinder(run)
    one_by_one, shown = not chosen.everything, _shown(run)
    if chosen.step is not None:
        found = finder.steps([chosen.step])
        return flame.of(chosen.what, found, [chosen.what], one_by_one=True)
    if chosen.profile_steps:
        numbers = run.devices.steps.number[list(chosen.profile_steps)].tolist()
        names = [f"step {number}" for number in numbers]
        found = finder.profile(chosen.profile_steps)
        return flame.of(chosen.what, found, names, one_by_one=one_by_one, shown=shown)
    if not chosen.requests:
        raise NotFoundError(
            "the recording holds no request",
            hint="none came while it ran, or no agent is in the engine: gpucorrelate status",
        )
    requests = [run.requests_[at] for at in chosen.requests]
    names = [request.external_id for request in requests]
    return flame.of(
        chosen.what, finder.requests(requests), names, one_by_one=one_by_one, shown=shown
    )
