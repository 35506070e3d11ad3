# SPDX-License-Identifier: Apache-2.0
"""Following a running session, or a recording that grows: what is new, at every poll.

``LiveSession`` reads what was recorded since the last poll, keeps a window of it in memory, and
tells which requests ended, which are in flight and what they wait for. It runs with the caller's
rights and in the caller's process, as all correlation does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucorrelate.daemon.live_feed import AWAY, DETACHED, FileFeed, SessionFeed
from gpucorrelate.daemon.live_finished import Finished
from gpucorrelate.daemon.live_flights import Flights
from gpucorrelate.daemon.live_losses import Losses
from gpucorrelate.daemon.live_model import Model
from gpucorrelate.daemon.live_now import LOOK_BACK_NS, Now
from gpucorrelate.daemon.live_pace import Pace
from gpucorrelate.daemon.live_values import (
    Done,
    Effort,
    Flight,
    LiveOptions,
    LiveUpdate,
    Rates,
    Skipped,
)
from gpucorrelate.daemon.live_window import Window
from gpucorrelate.probes.wire.frame import MAX_STRINGS_PER_STREAM

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.daemon.client import Client
    from gpucorrelate.daemon.live_feed import Feed, Item, Look
    from gpucorrelate.probes.wire.frame import Batch

__all__ = [
    "Done",
    "Effort",
    "Flight",
    "LiveOptions",
    "LiveSession",
    "LiveUpdate",
    "Rates",
    "Skipped",
]

_S = 1_000_000_000
#: Kept beyond the oldest request: what it is joined to began before it.
_MARGIN_NS = 6 * _S
#: Longest list of notes in one update: whoever did not poll for long has missed more than words.
_MOST_NOTES = 50


class LiveSession:
    """A session that is being followed; made by ``follow`` or ``follow_file``.

    Args:
        feed: Where its events come from.
        options: How it is followed.
    """

    def __init__(self, feed: Feed, options: LiveOptions | None = None) -> None:
        self._feed = feed
        self._options = options or LiveOptions()
        self._window = Window()
        self._flights = Flights()
        self._losses = Losses()
        self._model = Model()
        self._pace = Pace(self._options)
        self._now = Now(self._window, self._options)
        self._finished = Finished(self._window, self._options)
        self._strings: dict[int, dict[int, str]] = defaultdict(dict)
        self._effort = Effort()
        self._polled_ns = self._begun_ns = 0
        self._done: tuple[Done, ...] = ()
        self._tail: list[Batch] = []
        self._ended = False

    @classmethod
    def follow(
        cls, client: Client, session: str = "", options: LiveOptions | None = None
    ) -> LiveSession:
        """Follow a session of the daemon; the latest by default.

        The client is the caller's to close; it must not be used by another thread while this
        polls.

        Raises:
            DaemonError: the daemon cannot be asked.
            ControlError: there is no such session, or it is another user's.
        """
        return cls(SessionFeed(client, session), options)

    @classmethod
    def follow_file(cls, path: Path, options: LiveOptions | None = None) -> LiveSession:
        """Follow a recording that may grow: a file, or a session's folder.

        It is read from its beginning, so requests that ended in it are reported.

        Raises:
            NotFoundError: there is no such file.
        """
        options = replace(options or LiveOptions(), from_start=True)
        return cls(FileFeed(path), options)

    @property
    def name(self) -> str:
        """The session's id; of a file its name."""
        return self._feed.name

    def poll(self, *, explain: bool = True) -> LiveUpdate:
        """Read what is new; call it about once a second, from one thread.

        Args:
            explain: Make the reports of what ended, too; else ``explain`` makes them. Of a session
                that is over they are made anyway.

        A daemon that is away, or a session that ended, is said in the update and raises nothing.

        Raises:
            ControlError: the daemon refuses the caller from now on.
            RecordingError: the file is no recording, or cannot be read any more.
        """
        cpu_ns, wall_ns = time.thread_time_ns(), time.monotonic_ns()
        if self._polled_ns:
            self._finished.allow(wall_ns - self._polled_ns)
        self._polled_ns = wall_ns
        look = self._feed.look()
        notes = list(look.notes)
        for item in look.items:
            self._take(item, notes)
        if look.now_ns and not look.more:
            self._window.advance(look.now_ns)
        if not self._begun_ns:
            notes = list(look.notes)  # what was recorded before is no news
            self._begin()
        finished = self._report(look, explain=explain)
        update = self._update(look, finished, notes)
        self._trim()
        return replace(update, effort=self._count(time.thread_time_ns() - cpu_ns))

    def explain(self) -> tuple[RequestReport, ...]:
        """Reports of what ended up to the last poll, as far as the budget allows them now.

        For those who show what is in flight first, and why others were slow after that.
        """
        begun_ns = time.thread_time_ns()
        found = self._finished.report(self._tail, last=False)
        self._count(time.thread_time_ns() - begun_ns)
        return found

    def report(self, internal_id: str, arrival_ns: int) -> RequestReport | None:
        """The report of one request, in flight or ended, as far as it has got.

        Args:
            internal_id: As ``Flight`` or ``Done`` has it.
            arrival_ns: The same.

        Returns:
            None where its events are no longer held, or say nothing of it.
        """
        return self._finished.one(internal_id, arrival_ns, self._tail)

    def finish(self) -> LiveUpdate:
        """Nothing more will come: report what is known, however fresh its events are."""
        self._ended = True
        return self.poll()

    def close(self) -> None:
        """Let go of the files. Not of the client."""
        self._feed.close()

    def __enter__(self) -> LiveSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Inside.

    def _take(self, item: Item, notes: list[str]) -> None:
        batch = self._window.take(item)
        if batch is None:
            self._losses.take(item, {})
            return
        strings = self._strings[batch.stream]
        strings.update(batch.strings)
        while len(strings) > 2 * MAX_STRINGS_PER_STREAM:
            del strings[next(iter(strings))]
        self._losses.take(batch, strings)
        self._model.take(batch, strings)
        notes += self._flights.take(batch, strings)
        self._pace.take(batch, self._window.now_ns)

    def _begin(self) -> None:
        """What ended before following began is nobody's news, unless it was asked for."""
        self._begun_ns = self._window.now_ns
        if not self._options.from_start:
            self._flights.ended(self._begun_ns)

    def _report(self, look: Look, *, explain: bool) -> tuple[RequestReport, ...]:
        over = self._ended or look.state == DETACHED
        if look.more:
            over = False
        now_ns = self._window.now_ns
        settle_ns = int(self._options.settle_s * _S)
        self._tail = look.tail or self._tail
        ended = self._flights.ended(now_ns + 1 if over else now_ns - settle_ns)
        if over:
            ended += self._flights.remaining()
        self._pace.finished(ended)
        self._done = tuple(one.told() for one in ended if one.end_ns)
        self._finished.add(ended)
        if not explain and not over:
            return ()
        return self._finished.report(look.tail, last=over)

    def _update(
        self, look: Look, finished: tuple[RequestReport, ...], notes: list[str]
    ) -> LiveUpdate:
        now_ns = self._window.now_ns
        over = (self._ended or look.state == DETACHED) and not look.more
        self._flights.give_up(now_ns)
        flying = list(self._flights.flying())
        told: tuple[Flight, ...] = ()
        if self._options.in_flight and look.state != AWAY and not look.more and now_ns:
            told = self._now.look(self._flights, flying, look.tail)
        late_ns = max(0, now_ns - (self._finished.oldest_end_ns or now_ns))
        late_ns = max(0, late_ns - int(self._options.settle_s * _S))
        skipped = replace(
            self._finished.skipped,
            unexplained=self._finished.skipped.unexplained + self._flights.lost,
        )
        return LiveUpdate(
            session=self.name,
            t_ns=now_ns,
            model=self._model.name,
            state=look.state,
            ended=over and not self._finished.waiting,
            finished=finished,
            done=self._done,
            in_flight=told,
            in_flight_total=len(flying),
            rates=self._pace.rates(now_ns),
            composition=self._now.composition,
            culprits=self._now.culprits,
            losses=self._losses.lines(),
            missing=self._losses.missing(),
            notes=tuple(dict.fromkeys(notes))[:_MOST_NOTES],
            skipped=skipped,
            behind_ns=late_ns,
            pending=self._flights.pending + self._finished.waiting,
        )

    def _trim(self) -> None:
        now_ns = self._window.now_ns
        oldest_ns = self._flights.oldest_ns(now_ns)
        if self._finished.waiting:
            oldest_ns = min(oldest_ns, self._finished.oldest_arrival_ns)
        before_ns = max(
            min(oldest_ns, now_ns - LOOK_BACK_NS) - _MARGIN_NS,
            now_ns - int(self._options.window_s * _S),
        )
        self._window.trim(before_ns, self._options.max_bytes)

    def _count(self, cpu_ns: int) -> Effort:
        window, before = self._window, self._effort
        self._effort = Effort(
            cpu_ns=before.cpu_ns + cpu_ns,
            report_cpu_ns=self._finished.cpu_ns,
            reports=self._finished.reports,
            last_poll_ns=cpu_ns,
            held_bytes=window.held_bytes,
            held_rows=window.held_rows,
            dropped_rows=window.dropped_rows,
        )
        self._finished.spent(cpu_ns)
        return self._effort
