# SPDX-License-Identifier: Apache-2.0
"""Reports of requests that ended: each once, within a budget of CPU time, else a fair sample."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.values import Category
from gpucorrelate.daemon.live_values import Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.daemon.live_requests import Ended
    from gpucorrelate.daemon.live_values import LiveOptions
    from gpucorrelate.daemon.live_window import Window
    from gpucorrelate.probes.wire.frame import Batch

_S = 1_000_000_000
#: CPU time for the reports of what is left when nothing more comes.
_LAST_NS = 2 * _S
#: Requests that wait to be reported; with more a sample is drawn.
_MOST_WAITING = 2048
#: So long the budget is waited for. All that ended later wait with it and are left out in turn, so
#: the sample stays fair.
_MOST_LATE_NS = 8 * _S
#: The same where no fair sample is wanted: joining less costs less, so more of the slowest are
#: reported, and sooner.
_MOST_LATE_OF_SLOWEST_NS = 3 * _S
#: What a report costs until the first were made, and the join before them.
_FIRST_REPORT_NS, _FIRST_JOIN_NS = 30_000_000, 50_000_000
#: How long to wait for the next record of a thread of which it is not known what it was in when
#: the request ended. A session of the daemon tells what threads are in; a file does not.
_PATIENCE_NS = 8 * _S


class Finished:
    """Requests that ended and are to be reported.

    Attributes:
        skipped: Those that were not.
        cpu_ns: CPU time of reporting.
        reports: Reports made.
    """

    def __init__(self, window: Window, options: LiveOptions) -> None:
        self._window = window
        self._options = options
        self._waiting: list[Ended] = []
        self._random = random.Random(options.seed)
        self._allowed_ns = 0.0
        self._report_ns, self._join_ns = float(_FIRST_REPORT_NS), float(_FIRST_JOIN_NS)
        self.skipped = Skipped()
        self.cpu_ns = self.reports = 0
        if options.cpu_share is not None:
            self._allowed_ns = self._most_saved_ns * options.cpu_share

    @property
    def waiting(self) -> int:
        """How many wait to be reported."""
        return len(self._waiting)

    @property
    def oldest_end_ns(self) -> int:
        """When the first of those that wait ended; 0: none waits."""
        return min((one.end_ns for one in self._waiting), default=0)

    @property
    def oldest_arrival_ns(self) -> int:
        """When the first of those that wait came."""
        return min((one.what.arrival_ns for one in self._waiting), default=0)

    def allow(self, passed_ns: int) -> None:
        """So much time has passed: some of it may be spent."""
        share = self._options.cpu_share
        if share is not None:
            self._allowed_ns = min(self._allowed_ns + share * passed_ns, self._most_saved_ns)

    @property
    def _most_saved_ns(self) -> float:
        """CPU time that may be saved up while nothing ends: enough for one report at least."""
        return max(self._options.burst_s * _S, 1.1 * (self._join_ns + self._report_ns))

    def spent(self, cpu_ns: int) -> None:
        """So much CPU time was spent, whatever on."""
        self._allowed_ns -= cpu_ns

    def add(self, ended: Iterable[Ended]) -> None:
        """Requests ended."""
        self._waiting += ended
        over = len(self._waiting) - _MOST_WAITING
        if over > 0:
            self._leave_out(over)

    def report(self, tail: Sequence[Batch], *, last: bool) -> tuple[RequestReport, ...]:
        """Report those that wait, or as many as the budget allows.

        Args:
            tail: What threads are in now.
            last: Nothing more will come.
        """
        if not self._waiting:
            return ()
        if last and self._options.cpu_share is not None:  # there will be no other time
            self._allowed_ns = max(self._allowed_ns, _LAST_NS)
        most = self._affordable()
        if not most:
            self._leave_out_old()
            return ()
        begun_ns = time.thread_time_ns()
        if len(self._waiting) > most:
            self._leave_out(len(self._waiting) - most)
        chosen, self._waiting = self._waiting, []
        chosen = self._within(chosen)
        found = self._made(chosen, tail, last=last) if chosen else []
        self.reports += len(found)
        self.cpu_ns += time.thread_time_ns() - begun_ns
        return tuple(sorted(found, key=lambda report: report.end_ns))

    def _affordable(self) -> int:
        """How many reports the budget allows now; 0: none."""
        if self._options.cpu_share is None:
            return len(self._waiting)
        return max(0, int((self._allowed_ns - self._join_ns) / self._report_ns))

    def _leave_out_old(self) -> None:
        """The join of a few costs as much as all that happened since the first of them came."""
        late_ns = _MOST_LATE_OF_SLOWEST_NS if self._options.slowest_first else _MOST_LATE_NS
        limit_ns = self._window.now_ns - late_ns
        old = [one for one in self._waiting if one.end_ns < limit_ns]
        self._waiting = [one for one in self._waiting if one.end_ns >= limit_ns]
        left_out = self.skipped.sampled_out + len(old)
        self.skipped = replace(self.skipped, sampled_out=left_out)

    def _leave_out(self, count: int) -> None:
        """By lot, so that what is reported is like what is not; or the quickest."""
        everything = range(len(self._waiting))
        if self._options.slowest_first:
            took = [one.end_ns - one.what.arrival_ns for one in self._waiting]
            out = set(sorted(everything, key=took.__getitem__)[:count])
        else:
            out = set(self._random.sample(everything, count))
        self._waiting = [one for at, one in enumerate(self._waiting) if at not in out]
        self.skipped = replace(self.skipped, sampled_out=self.skipped.sampled_out + count)

    def _within(self, chosen: list[Ended]) -> list[Ended]:
        """Those whose events are all held."""
        begin_ns = self._window.begin_ns
        kept = [one for one in chosen if not begin_ns or one.what.arrival_ns >= begin_ns]
        out = len(chosen) - len(kept)
        self.skipped = replace(self.skipped, too_long=self.skipped.too_long + out)
        return kept

    def _made(
        self, chosen: list[Ended], tail: Sequence[Batch], *, last: bool
    ) -> list[RequestReport]:
        begun_ns = time.thread_time_ns()
        low_ns = min(one.what.arrival_ns for one in chosen)
        run = Run.of(Capture.from_batches(self._window.items(low_ns, tail)))
        joined_ns = time.thread_time_ns()
        by_id = {request.internal_id: request for request in run.requests_}
        known = [(one, by_id.get(one.what.key)) for one in chosen]
        # What never ended is nobody's report; what did and cannot be found was lost.
        ready = [(one, made) for one, made in known if made is not None and made.complete]
        missed = [one for one, made in known if one.end_ns and (made is None or not made.complete)]
        found: list[RequestReport] = []
        reports = run._reports([made for _, made in ready])
        for (one, _), report in zip(ready, reports, strict=True):
            if not last and self._must_wait(run, report):
                self._waiting.append(one)
                continue
            found.append(report)
        self.skipped = replace(self.skipped, unexplained=self.skipped.unexplained + len(missed))
        self._learn(joined_ns - begun_ns, time.thread_time_ns() - joined_ns, len(ready))
        return found

    def _must_wait(self, run: Run, report: RequestReport) -> bool:
        """Whether a thread on the path will yet tell what it did."""
        if self._window.now_ns - report.end_ns > _PATIENCE_NS or run.states.closed:
            return False
        threads = run.states.threads
        for segment in report.segments:
            if segment.category is Category.UNOBSERVED and segment.actor.tid:
                thread = threads.one(segment.actor.tid)
                if (
                    thread >= 0
                    and threads.traced[thread]
                    and (segment.end_ns > int(threads.last_ns[thread]))
                ):
                    return True
        return False

    def one(
        self, internal_id: str, arrival_ns: int, tail: Sequence[Batch]
    ) -> RequestReport | None:
        """The report of a request as far as it has got, whose events must be held; else None."""
        if self._window.begin_ns and arrival_ns < self._window.begin_ns:
            return None
        run = Run.of(Capture.from_batches(self._window.items(arrival_ns, tail)))
        found = [made for made in run.requests_ if made.internal_id == internal_id]
        return next(run._reports(found[:1]), None)

    def _learn(self, join_ns: int, reports_ns: int, count: int) -> None:
        self._join_ns += 0.3 * (join_ns - self._join_ns)
        if count:
            self._report_ns += 0.3 * (reports_ns / count - self._report_ns)
