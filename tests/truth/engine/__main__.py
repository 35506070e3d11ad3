# SPDX-License-Identifier: Apache-2.0
"""Delays put into a real engine, and how often its requests' reports are right about them."""

from __future__ import annotations

import argparse
import functools
import itertools
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.cli.view_verify import render_verify
from gpucorrelate.correlator.report.json import write_document
from gpucorrelate.correlator.report.page import TextOptions
from gpucorrelate.verify import run as runs
from gpucorrelate.verify import score as scores
from gpucorrelate.verify.document import document
from tests.engine.server import missing_engine
from tests.truth.engine.play import Traced, running_engine
from tests.truth.engine.scenarios import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.truth.engine.scenarios import Scenario

#: A disk, where cold pages are cold; /tmp may be memory.
_FOLDER = Path("/var/tmp")


def play(scenarios: Sequence[Scenario], keep: Path | None) -> Iterator[runs.Result]:
    """Play scenarios, those that want the same engine in one."""
    for profile, group in itertools.groupby(scenarios, key=lambda one: one.profile):
        with tempfile.TemporaryDirectory(prefix="gpucorrelate-truth-", dir=_FOLDER) as name:
            folder = Path(name) / "engine"
            with running_engine(profile, folder) as engine:
                for scenario in group:
                    yield _result(scenario, functools.partial(engine.play, scenario))
            if keep is not None:
                _keep(folder, keep)


def _result(scenario: Scenario, play: Callable[[], Traced]) -> runs.Result:
    """What came of a scenario; one that broke off does not take the others with it."""
    try:
        score = play().score()
    except (RuntimeError, ValueError, OSError) as exc:
        return runs.Result(scenario.name, scenario.cause, failed=str(exc))
    return runs.Result(scenario.name, scenario.cause, score)


def _keep(folder: Path, keep: Path) -> None:
    """What is needed to judge again what was played."""
    to = Path(tempfile.mkdtemp(dir=keep))
    for path in folder.iterdir():
        if path.suffix in {".gpcf", ".json", ".jsonl"}:
            shutil.copy(path, to)


def judged(folders: Sequence[Path], names: Sequence[str]) -> Iterator[runs.Result]:
    """Judge again what was kept."""
    for folder in folders:
        for path in sorted(folder.glob("*.gpcf")):
            if not names or path.stem in names:
                kept = functools.partial(Traced.of, folder, path.stem)
                yield _result(BY_NAME[path.stem], kept)


def main() -> int:
    """Play, or judge again, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", action="append", choices=BY_NAME, help="only this one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep recordings and truth there")
    parser.add_argument(
        "--judge", type=Path, action="append", metavar="DIR", help="judge again what was kept"
    )
    parser.add_argument(
        "--with-host", action="store_true", help="what `gpucorrelate verify --all` plays as well"
    )
    options = parser.parse_args()
    results: list[runs.Result] = []
    if options.with_host:
        results += runs.run(runs.chosen(everything=True), rounds=runs.ROUNDS).results
    names = options.scenario or list(BY_NAME)
    if options.judge:
        found = judged(options.judge, options.scenario or ())
    elif problem := missing_engine():
        sys.stderr.write(f"{problem}\n")
        return 1
    else:
        found = play([BY_NAME[name] for name in BY_NAME if name in names], options.keep)
    for result in found:
        sys.stderr.write(f"{result.name}\n")
        results.append(result)
    total = scores.total(result.score for result in results if result.score is not None)
    report = runs.Report(tuple(results), total)
    render_verify(report, sys.stdout, TextOptions(width=110))
    if options.json is not None:
        with options.json.open("w", encoding="utf-8") as out:
            write_document(document(report), out)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
