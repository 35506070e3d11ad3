# SPDX-License-Identifier: Apache-2.0
"""One session's account: what the client saw must be what was recorded, or told as lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator.report.build import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.requests import Request
    from gpucorrelate.daemon.values import Progress, SessionInfo
    from tests.engine.client import Result

#: Hops at which steps and requests can be lost; at others it is records of the kernel or of the
#: host.
_AGENTS = ("agent.", "ingest.", "store.", "daemon.")


@dataclass(frozen=True)
class Account:
    """What became of one session.

    Attributes:
        session: Its id.
        requests: Requests that the client sent and saw end while it was recorded.
        tokens: Output tokens of these, as the client counted them.
        steps: Steps recorded.
        waits: Waits recorded.
        missing_requests: Requests of which there is no whole record.
        missing_steps: Step numbers of which there is none.
        lost: Losses told in the recording, by hop and what.
        wrong: What does not hold, one line each; empty where the account is exact.
    """

    session: str
    requests: int = 0
    tokens: int = 0
    steps: int = 0
    waits: int = 0
    missing_requests: int = 0
    missing_steps: int = 0
    lost: dict[tuple[str, str], int] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()


#: What a ledger says of requests that were in flight before the session and after it: of these
#: nothing but steps can be known.
_UNNAMED = "requests in steps that no anchor names"


def of_session(
    capture: Capture,
    whole: Sequence[Result],
    info: SessionInfo,
    progress: Progress,
    *,
    across: int = 0,
) -> Account:
    """The account of a session that has ended.

    Args:
        capture: Its recording, with the client's own tokens behind it.
        whole: Requests that were sent and ended while it was recorded, as the client saw them.
        info: What the daemon says of the session.
        progress: What the daemon had counted right before its end, while rows passed through.
        across: Requests that were in flight all the time.
    """
    run = Run.of(capture)
    lost = losses(capture)
    wrong = [*_requests(run.requests_, whole), *_totals(capture, lost, info, progress)]
    missing_requests = sum(line.startswith("no record") for line in wrong)
    begun = [int(number) for number in run.steps_.number]
    missing_steps = sum(_gaps(run.steps_.stream, run.steps_.number))
    told = sum(count for (hop, _), count in lost.items() if hop.startswith(_AGENTS))
    if missing_steps > told:
        wrong.append(f"{missing_steps} steps are missing, {told} events are told as lost")
    wrong += [
        f"{line.count} {line.name}"
        for line in run.ledger.lines
        if line.bad and not lost and not (line.name == _UNNAMED and line.count <= across)
    ]
    return Account(
        session=info.session,
        requests=len(whole),
        tokens=sum(len(result.token_ids) for result in whole),
        steps=len(begun),
        waits=len(capture.table("wait")),
        missing_requests=missing_requests,
        missing_steps=missing_steps,
        lost=lost,
        wrong=tuple(wrong),
    )


def losses(capture: Capture) -> dict[tuple[str, str], int]:
    """Losses that a recording tells of, by hop and what."""
    rows, strings = capture.table("loss"), capture.strings
    found: Counter[tuple[str, str]] = Counter()
    for hop, what, count in zip(
        *(rows[name].tolist() for name in ("hop", "what", "count")), strict=True
    ):
        found[strings[hop], strings[what]] += count
    return dict(found)


def _requests(recorded: Sequence[Request], whole: Sequence[Result]) -> list[str]:
    by_id: dict[str, list[Request]] = {}
    for request in recorded:
        by_id.setdefault(request.external_id, []).append(request)
    wrong = []
    for result in whole:
        found = by_id.get(result.request.external_id, [])
        name = result.request.request_id
        if not found:
            wrong.append(f"no record of request {name}")
        elif len(found) > 1:
            wrong.append(f"request {name} is recorded {len(found)} times")
        elif complaint := _complaint(found[0], result):
            wrong.append(f"request {name}: {complaint}")
    return wrong


def _complaint(request: Request, result: Result) -> str:
    """What is wrong with the record of one request; empty where nothing is."""
    if not request.complete or not request.status.startswith("finished"):
        return f"recorded as {request.status!r}, the client saw it end"
    if not result.start_ns < request.arrival_ns <= request.end_ns:
        return "recorded before the client sent it"
    places = {place.name: (count, digest) for place, count, digest, _ in request.checks}
    seen = (len(result.token_ids), result.token_hash)
    if set(places) != {"ENGINE", "FRONTEND", "CLIENT"} or set(places.values()) != {seen}:
        return f"the client saw tokens {seen}, recorded are {places}"
    if request.must_sample != len(result.token_ids):
        return f"{request.must_sample} rows of steps made its {len(result.token_ids)} tokens"
    return ""


def _totals(
    capture: Capture,
    lost: dict[tuple[str, str], int],
    info: SessionInfo,
    progress: Progress,
) -> list[str]:
    """Sums that the daemon kept on the way, against what can be read from its files."""
    begun = len(capture.table("step_begin"))
    told = sum(lost.values())
    wrong = []
    if progress.steps > begun + told:
        wrong.append(f"{progress.steps} steps had passed through the daemon, {begun} are recorded")
    if info.lost != told:
        wrong.append(f"the daemon counts {info.lost} lost, its recording tells of {told}")
    if capture.intake.damage:
        wrong.append(f"{len(capture.intake.damage)} damaged stretches")
    if capture.intake.missing and not lost:
        wrong.append(f"{capture.intake.missing} batches are missing and no loss is told")
    return wrong


def _gaps(streams: np.ndarray, numbers: np.ndarray) -> list[int]:
    """Step numbers missing between the first and the last of each engine core."""
    return [
        int(mine.max()) - int(mine.min()) + 1 - len(np.unique(mine))
        for stream in np.unique(streams)
        if len(mine := numbers[streams == stream])
    ]
