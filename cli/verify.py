# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate verify``: how often the attribution is right on this host."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from gpucorrelate.cli.backend import backend_option
from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import COUNT, JSON, Look, format_option, look_options
from gpucorrelate.probes.wire.errors import EXIT_INCOMPLETE, EXIT_OK, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.verify.run import Report


@click.command(
    cls=Command,
    short_help="Makes delays of known cause and says which are attributed rightly here.",
    examples=(
        "sudo gpucorrelate verify --quick",
        "sudo gpucorrelate verify --all --format json -o truth.json",
        "sudo gpucorrelate verify --scenario gil-hog --scenario epoll",
    ),
)
@click.option("--quick", is_flag=True, help="Fewer delays of each kind: well under a minute.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also scenarios that stop their own processes or limit them by a cgroup.",
)
@click.option(
    "--scenario",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this one; may be given several times.",
)
@click.option("--seed", type=COUNT, default=1, show_default=True, help="Of lengths and moments.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, readable=False),
    help="Write the JSON there, besides what is printed.",
)
@backend_option
@format_option
@look_options
def verify(
    *,
    quick: bool,
    everything: bool,
    names: tuple[str, ...],
    seed: int,
    output: Path | None,
    backend: str,
    form: str,
    look: Look,
) -> int:
    """Makes delays of known cause and says which are attributed rightly here.

    Child processes of this command hold locks, send late, fault, sleep, hog a CPU and the like,
    and write down what they did. The kernel probes observe them, and what the correlation says is
    compared with that. It touches no process but its own, and needs no daemon.

    Needs root, as the daemon does. Exits with 0 when every cause can be attributed and with 8 when
    one cannot; with 6 when the kernel probes cannot run here.
    """
    from gpucorrelate.cli.output import check_place, whole_file
    from gpucorrelate.correlator.report.json import write_document
    from gpucorrelate.verify import run as runs
    from gpucorrelate.verify.document import document
    from gpucorrelate.verify.scenarios import CATALOGUE

    if output is not None:
        check_place(output)
    try:
        scenarios = runs.chosen(names, everything=everything)
    except KeyError as exc:
        known = ", ".join(scenario.name for scenario in CATALOGUE)
        raise click.UsageError(f"no scenario {exc.args[0]!r}; there are {known}") from exc
    rounds = runs.QUICK_ROUNDS if quick else runs.ROUNDS
    with _progress(len(scenarios)) as progress:
        report = runs.run(scenarios, rounds=rounds, seed=seed, backend=backend, progress=progress)
    broken = None
    if output is not None:
        try:
            with whole_file(output) as out:
                write_document(document(report), out)
        except StoreError as exc:
            broken = exc  # what has been found out is shown all the same
    if form == JSON:
        write_document(document(report), sys.stdout)
    else:
        _text(report, look, sys.stdout)
    if broken is not None:
        raise broken
    return EXIT_OK if report.passed else EXIT_INCOMPLETE


def _text(report: Report, look: Look, out: IO[str]) -> None:
    from gpucorrelate.cli.output import text_options
    from gpucorrelate.cli.view_verify import render_verify

    render_verify(report, out, text_options(look, out))


class _Progress:
    """One line on standard error that says what is being played, where somebody sees it."""

    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0
        self._shown = sys.stderr.isatty()

    def __call__(self, name: str) -> None:
        self._done += 1
        self._line(f"{self._done}/{self._count} {name}")

    def clear(self) -> None:
        self._line("")

    def _line(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


@contextlib.contextmanager
def _progress(count: int) -> Iterator[_Progress]:
    made = _Progress(count)
    try:
        yield made
    finally:
        made.clear()
