# SPDX-License-Identifier: Apache-2.0
"""An executor that raises: the engine dies of it, and every request that was with it must say so.

Truth is the moment at which the plugin raised, the requests of the step that it raised in, and the
course up to then: a request that had been handed to the engine and had not all its tokens was with
it. Right is a report that says that the request failed, of which error, and of which
step, where it was in that step or in one before. Injected
time is a request's whole life until then, for all of it was in vain. The boundary is the end of
the step that raised.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpucorrelate.probes.agents.raised import message_hash
from gpucorrelate.verify.score import Score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.values import RequestReport
    from tests.engine.traced import Truth
    from tests.truth.engine.course import Course

_KIND = "RuntimeError"
#: A report has no message of an exception, for that may be a prompt; of this one it is known.
_MESSAGE = f", message {message_hash('gpucorrelate-lab: execute_model raises, as asked')}"


def score(
    name: str, run: Run, reports: Sequence[RequestReport], truth: Sequence[Truth], course: Course
) -> Score:
    """How right the reports of the requests that were with the engine are."""
    (raised,) = [row for row in truth if row.kind == "core.execute.raise"]
    in_step = frozenset(raised.detail.split())
    failed = [row for row in run.steps() if row.status == "error"]
    if len(failed) != 1:
        raise RuntimeError(f"{len(failed)} steps are said to have raised")
    sums: Counter[str] = Counter()
    errors: list[int] = []
    for report in reports:
        passage = course.passages.get(report.internal_id)
        if passage is None or not 0 < passage.handed_ns < raised.start_ns:
            continue
        if report.status.startswith("finished"):
            # It had all its tokens before: whatever was made of it is on its way out or out.
            sums["controls"] += 1
            sums["control_ns"] += report.wall_ns
            continue
        length = raised.start_ns - report.arrival_ns
        been = bool(passage.steps) or report.internal_id in in_step
        blamed = f"failed: step {failed[0].step} " if been else "failed: the engine core failed"
        sums["operations"] += 1
        sums["injections"] += 1
        sums["injected_ns"] += length
        sums["category_ns"] += length * report.status.startswith("failed: ")
        sums["culprit_ns"] += length * (
            report.status.startswith(blamed)
            and _KIND in report.status
            and report.status.endswith(_MESSAGE)
        )
        errors.append(abs(failed[0].start_ns + failed[0].wall_ns - raised.start_ns))
    return Score(name, errors_ns=tuple(sorted(errors)), confusion=(), **sums)
