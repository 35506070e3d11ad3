# SPDX-License-Identifier: Apache-2.0
"""From a run and what is wanted of it to documents: on a stream, in a file, in a folder."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpucorrelate.cli import profile
from gpucorrelate.cli.options import JSON, Look
from gpucorrelate.cli.output import file_name, note, text_options, whole_file
from gpucorrelate.cli.select import sort_requests, window
from gpucorrelate.correlator.report import json, text, units
from gpucorrelate.probes.wire.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.values import Ledger, RequestReport


@dataclass(frozen=True)
class Wanted:
    """What to report; nothing chosen means the whole recording."""

    request_id: str | None = None
    step: int | None = None
    slowest: int | None = None
    everything: bool = False
    since: str = ""
    until: str = ""
    process: str = ""


def is_folder(path: str) -> bool:
    """Whether a path the user gave means a folder."""
    return path.endswith(os.sep) or Path(path).is_dir()


def requests_of(run: Run, want: Wanted) -> Iterator[RequestReport]:
    """The reports wanted, made one after another.

    Raises:
        NotFoundError: there is none.
    """
    since_ns, until_ns = window(run, want.since, want.until)

    def inside(report: RequestReport) -> bool:
        return (since_ns is None or report.end_ns >= since_ns) and (
            until_ns is None or report.arrival_ns <= until_ns
        )

    found: Iterator[RequestReport]
    if want.slowest is None:
        found = filter(inside, run.all_requests())
    else:
        everyone = run.slowest(len(run.requests()))
        found = itertools.islice(filter(inside, everyone), want.slowest)
    first = next(found, None)
    if first is None:
        raise NotFoundError(
            f"nothing to report: none of {len(run.requests())} requests fits",
            hint="see what was recorded: gpucorrelate report, gpucorrelate requests",
        )
    return itertools.chain([first], found)


def write(run: Run, want: Wanted, form: str, look: Look, out: IO[str]) -> None:
    """Writes what is wanted to an open text file.

    Raises:
        NotFoundError: there is nothing of it.
    """
    if run.is_profile:
        profile.write(run, want, form, look, out)
        return
    options = text_options(look, out)
    if want.everything:
        json.write_lines(map(json.request_to_dict, requests_of(run, want)), out)
    elif want.slowest is not None:
        _write_slowest(requests_of(run, want), form, look, out)
    elif want.request_id is not None:
        found = run.request(want.request_id)
        if form == JSON:
            json.write_document(json.request_to_dict(found), out)
        else:
            text.render_request(found, out, options)
    elif want.step is not None:
        step = run.step(want.step, want.process)
        if form == JSON:
            json.write_document(json.step_to_dict(step), out)
        else:
            text.render_step(step, out, options)
    else:
        write_summary(run, form, look, out)
    if form == JSON:
        _warn(run.ledger)


def _write_slowest(found: Iterable[RequestReport], form: str, look: Look, out: IO[str]) -> None:
    if form == JSON:
        json.write_lines(map(json.request_to_dict, found), out)
        return
    for i, report in enumerate(found):
        if i:
            out.write("\n\n")
        text.render_request(report, out, text_options(look, out))


def write_summary(run: Run, form: str, look: Look, out: IO[str]) -> None:
    """Writes the whole recording in a few numbers, as text with its slowest first tokens.

    Raises:
        NotFoundError: it is written, and holds no request.
    """
    summary = run.summary()
    if form == JSON:
        json.write_document(json.summary_to_dict(summary), out)
    else:
        options = text_options(look, out)
        text.render_summary(summary, out, options)
        rows = [row for row in run.requests() if row.ttft_ns is not None]
        if rows:
            out.write("\nslowest to the first token\n")
            text.render_requests(
                sort_requests(rows, "ttft", reverse=False)[: look.top], out, options
            )
    if not summary.requests:
        out.flush()
        raise NotFoundError(
            "the recording holds no request",
            hint="none came while it ran, or no agent is in the engine: gpucorrelate status",
        )


def write_file(run: Run, want: Wanted, form: str, look: Look, path: Path) -> None:
    """Writes what is wanted to a file, which appears when it is complete."""
    with whole_file(path) as out:
        write(run, want, form, look, out)


def write_folder(run: Run, want: Wanted, folder: Path) -> None:
    """Writes a file per request, named for its id, into ``requests/``, and ``summary.json``.

    A later request of an id that was there already gets a number behind its name.

    Raises:
        NotFoundError: there is nothing to report; no folder is made.
        UsageError: it is a profile, whose report is one file.
    """
    if run.is_profile:
        raise UsageError("a profile's report is one document", hint="name a file, not a folder")
    found = requests_of(run, want)
    inside = folder / "requests"
    inside.mkdir(parents=True, exist_ok=True)
    seen: dict[str, int] = {}
    written = 0
    for report in found:
        name = file_name(report.request_id)
        again = seen[name] = seen.get(name, 0) + 1
        with whole_file(
            inside / (f"{name}.json" if again == 1 else f"{name}.{again}.json")
        ) as out:
            json.write_document(json.request_to_dict(report), out)
        written += 1
    with whole_file(folder / "summary.json") as out:
        json.write_document(json.summary_to_dict(run.summary()), out)
    _warn(run.ledger)
    note(
        f"{units.plural(written, 'request')} in {inside}/, the whole in {folder / 'summary.json'}"
    )


def _warn(ledger: Ledger) -> None:
    """One line for people whose output goes to a program."""
    bad = [f"{line.name} {line.count:,}" for line in ledger.lines if line.bad]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        note(f"warning: {bad[0]}{more}; see .ledger")
