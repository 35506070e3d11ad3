# SPDX-License-Identifier: Apache-2.0
"""From report values to pages: a recording, some requests, a step, a profile."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.causes import Describer
from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.html import documents, page, profile, series
from gpucorrelate.correlator.report.html import run as whole_run
from gpucorrelate.correlator.report.html.pack import Document, Lexicon
from gpucorrelate.correlator.report.names import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.device_values import DeviceStepReport
    from gpucorrelate.correlator.report.html.pack import Columns, Json
    from gpucorrelate.correlator.report.values import RequestReport, StepReport

#: On both sides of a request as much is looked at of the host's readings, in per cent.
_AROUND_PERCENT = 5


class _Making:
    """A page as it comes together."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lexicon = Lexicon()
        self.blocks = whole_run.Blocks()

    def write(
        self, out: IO[str], head: Json, window: tuple[int, int], unseen: Sequence[str] = ()
    ) -> None:
        """Adds what every page has, and writes it."""
        self.blocks.flush()
        who = self.lexicon.holders()
        concerns = series.concerned({one.tid for one in who}, {one.pid for one in who})
        describe = Describer(self.run.states, self.run.steps_)
        found = series.of(self.run.capture, describe.subject, window, concerns)
        columns: Columns = {}
        for at, one in enumerate(found):
            columns[f"start{at}"] = one.start_ns - window[0]
            columns[f"end{at}"] = one.end_ns - window[0]
            columns[f"value{at}"] = one.value
        rows = [
            {"metric": one.metric, "what": one.what, "who": safe(one.who), "unit": one.unit,
             "merged": one.merged}
            for one in found
        ]  # fmt: skip
        place = self.blocks.add(Document({"what": "series"}, columns))
        self.blocks.flush()
        head = {
            **head,
            "origin": units.instant(window[0]),
            "length_ns": window[1] - window[0],
            "series": rows,
            "series_block": place[0],
            "ledger": page.ledger_to_head(self.run.ledger, unseen),
        }
        page.write(out, head, self.lexicon, self.blocks.done)


def write_run(run: Run, out: IO[str], *, most_segments: int = whole_run.SEGMENTS) -> None:
    """Writes a page of a whole recording.

    Args:
        run: The recording.
        out: An open text file.
        most_segments: About so many segments of requests are in it, of the slowest ones.
    """
    making = _Making(run)
    head, window = whole_run.of_run(
        run, making.lexicon, making.blocks, most_segments=most_segments
    )
    shown = {
        "kind": "run",
        "title": "Recording",
        "claims": head.pop("headline"),
        "facts": head.pop("facts"),
        "run": head,
    }
    making.write(out, shown, window, head.pop("unseen"))


def write_requests(run: Run, reports: Iterable[RequestReport], out: IO[str]) -> None:
    """Writes a page of some requests, the first of which is open."""
    found = list(reports)
    window = _around([(one.arrival_ns, one.end_ns) for one in found])
    making = _Making(run)
    device = run.states.device
    made = [documents.of_request(one, making.lexicon, window[0], device=device) for one in found]
    title = f"request {safe(found[0].request_id)}"
    if len(found) > 1:
        title = f"{len(found)} requests"
    _write_documents(making, made, title, out, window)


def write_step(run: Run, report: StepReport, out: IO[str]) -> None:
    """Writes a page of one step of an engine."""
    window = _around([(report.start_ns, report.end_ns)])
    making = _Making(run)
    made = documents.of_step(report, making.lexicon, window[0], run.states.device)
    _write_documents(making, [made], f"step {report.step}", out, window)


def write_profile(run: Run, out: IO[str]) -> None:
    """Writes a page of a whole profile."""
    making = _Making(run)
    head, window = profile.of_run(run, making.lexicon, making.blocks)
    shown = {
        "kind": "profile",
        "title": "GPU profile",
        "claims": head.pop("headline"),
        "facts": head.pop("facts"),
        "profile": head,
    }
    making.write(out, shown, window)


def write_profile_steps(run: Run, reports: Sequence[DeviceStepReport], out: IO[str]) -> None:
    """Writes a page of some steps of a profile, the first of which is open."""
    window = _around([(one.start_ns, one.end_ns) for one in reports])
    making = _Making(run)
    made = [profile.of_step(one, making.lexicon, window[0], run.states.device) for one in reports]
    title = f"step {reports[0].step}" if len(reports) == 1 else f"{len(reports)} steps"
    _write_documents(making, made, title, out, window)


def _write_documents(
    making: _Making,
    made: Sequence[Document],
    title: str,
    out: IO[str],
    window: tuple[int, int],
) -> None:
    places = [making.blocks.add(one) for one in made]
    first = made[0].head
    head = {
        "kind": "documents",
        "title": title,
        "claims": [{"text": one["text"]} for one in first["verdict"]],
        "facts": first["facts"],
        "documents": [
            {"block": block, "place": at, "id": one.head["id"], "wall_ns": one.head["wall_ns"],
             "status": one.head["status"], "by_category": one.head["sums"]["by_category"]}
            for (block, at), one in zip(places, made, strict=True)
        ],
    }  # fmt: skip
    making.write(out, head, window)


def _around(stretches: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """All of them, with a margin."""
    start, end = min(one for one, _ in stretches), max(one for _, one in stretches)
    margin = (end - start) * _AROUND_PERCENT // 100
    return start - margin, max(end + margin, start + 1)
