# SPDX-License-Identifier: Apache-2.0
"""What following a running session tells, as frozen values.

Times are integer nanoseconds on CLOCK_MONOTONIC; ``None`` means unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.correlator.current import Hold, Holder
    from gpucorrelate.correlator.report.values import (
        Category,
        LedgerLine,
        PhaseName,
        RequestReport,
    )

_MIB = 1 << 20


@dataclass(frozen=True)
class LiveOptions:
    """How a session is followed.

    Attributes:
        window_s: Events older than this are dropped. A request that takes longer is counted and
            not reported.
        max_bytes: Events kept in memory at most; what is over is dropped, the oldest first.
        recent_s: What ``composition``, ``culprits`` and ``rates`` speak of: the last so many
            seconds.
        settle_s: A request is reported when so much time has passed since its end, for what its
            processes have to say of it comes in batches.
        cpu_share: Share of one CPU that polling may take on average; reports of finished requests
            wait for it, and where they cannot all be made a fair sample is. None: no limit.
        burst_s: CPU time that reports may take in one go, saved up while there were none. Whoever
            draws a screen meanwhile wants it short; but one report may always be made.
        slowest_first: Where not all reports can be made, those of the slowest are, and no sample.
        in_flight: Tell what requests in flight wait for, and where paths went lately; without it
            ``in_flight``, ``composition`` and ``culprits`` are empty, and a poll costs less.
        from_start: Requests that had ended when following began are reported too, as far back as
            the window reaches.
        seed: Of the choice of the sample.
    """

    window_s: float = 300.0
    max_bytes: int = 128 * _MIB
    recent_s: float = 10.0
    settle_s: float = 1.5
    cpu_share: float | None = 0.2
    burst_s: float = 2.0
    slowest_first: bool = False
    in_flight: bool = True
    from_start: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Flight:
    """A request in flight.

    Attributes:
        request_id: The id that the client knows, as far as it is known yet.
        internal_id: The engine's own; empty until it has one.
        arrival_ns: When it came, or was first seen.
        age_ns: How long ago that is.
        phase: What it is in now.
        tokens_in: Prompt tokens; None until they are known.
        tokens_out: Tokens that the engine has made of it since it has been followed.
        preemptions: Times it was taken off the engine's batch.
        now: Who has it now and what that one is in, since when; None where nothing says.
        recent: Where the last second of the requests with the same thread went, the largest first,
            as parts of one second; empty where nothing says.
        shares: The same by category, of all of that second.
    """

    request_id: str
    internal_id: str
    arrival_ns: int
    age_ns: int
    phase: PhaseName
    tokens_in: int | None = None
    tokens_out: int = 0
    preemptions: int = 0
    now: Hold | None = None
    recent: tuple[Holder, ...] = ()
    shares: tuple[tuple[Category, int], ...] = ()


@dataclass(frozen=True)
class Done:
    """A request that ended, whether or not a report was made of it.

    Attributes:
        request_id: The id that the client knows.
        internal_id: The engine's own, or one of its HTTP exchange where it became no request.
        arrival_ns: When it came, or was first seen.
        end_ns: When it ended.
        tokens_in: Prompt tokens; None where they are not known.
        tokens_out: Tokens that the engine made of it since it has been followed.
    """

    request_id: str
    internal_id: str
    arrival_ns: int
    end_ns: int
    tokens_in: int | None = None
    tokens_out: int = 0

    @property
    def wall_ns(self) -> int:
        """Arrival to end."""
        return self.end_ns - self.arrival_ns


@dataclass(frozen=True)
class Rates:
    """The engine's pace over the last ``over_ns``; None where nothing says.

    Attributes:
        over_ns: Time that is spoken of; less than asked for in the beginning.
        steps_per_s: Engine steps begun.
        tokens_per_s: Output tokens made.
        rows_per_step: Requests in a step, on average.
        finished_per_s: Requests that ended.
        waiting: Requests that waited in the scheduler at the last step.
    """

    over_ns: int = 0
    steps_per_s: float | None = None
    tokens_per_s: float | None = None
    rows_per_step: float | None = None
    finished_per_s: float | None = None
    waiting: int | None = None


@dataclass(frozen=True)
class Skipped:
    """Requests that ended and are in no ``finished``, since following began.

    Attributes:
        sampled_out: Left out, by lot or because others were slower: walking them all would have
            cost too much.
        too_long: Longer than the window of events that is kept, or in progress when following
            began with events that are gone.
        unexplained: Their events make no report: their end was lost, or their process went away.
    """

    sampled_out: int = 0
    too_long: int = 0
    unexplained: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.sampled_out + self.too_long + self.unexplained


@dataclass(frozen=True)
class Effort:
    """What following has cost, since it began.

    Attributes:
        cpu_ns: CPU time of the thread that polls.
        report_cpu_ns: Of that, to report finished requests.
        reports: How many those were.
        last_poll_ns: CPU time of the poll before this one.
        held_bytes: Events held in memory.
        held_rows: How many.
        dropped_rows: Events dropped because they were old.
    """

    cpu_ns: int = 0
    report_cpu_ns: int = 0
    reports: int = 0
    last_poll_ns: int = 0
    held_bytes: int = 0
    held_rows: int = 0
    dropped_rows: int = 0


@dataclass(frozen=True)
class LiveUpdate:
    """What is new since the last poll, and how things stand.

    Attributes:
        session: The session's id; of a file its name.
        t_ns: The moment it speaks of.
        model: What clients call the engine's model; empty while it is not known, ``several`` where
            engines differ.
        state: ``attached``, ``detached``, ``daemon away``, ``file``.
        ended: Nothing more will come.
        finished: Reports of requests that ended, each exactly once, in order of their end; what
            ``report`` says of them, but that ledger, verdict and the host's numbers are of what
            was recorded and held by then.
        done: All requests that ended since the last poll and have settled, walked or not.
        in_flight: Requests in flight, oldest first.
        in_flight_total: How many there are; ``in_flight`` may be a part of them.
        rates: The engine's pace.
        composition: Time of all requests' paths by category over the last ``recent_s``, the
            largest first; a second of two requests in flight counts as two.
        culprits: Who held those paths how long and with what, the one with the most first.
        losses: Lines of the ledger that count something lost or wrong, of the events held.
        missing: Legs that are not observed, each with the reason.
        notes: What happened to the session since the last poll, a line each: the daemon away or
            back, a process gone or new, events lost, reports skipped.
        skipped: Requests that ended and were not reported.
        behind_ns: How old the oldest request is that has ended and is not reported yet, beyond the
            time in which events settle; 0: none is late.
        pending: How many have ended and are not reported yet.
        effort: What it costs.
    """

    session: str
    t_ns: int
    model: str = ""
    state: str = "attached"
    ended: bool = False
    finished: tuple[RequestReport, ...] = ()
    done: tuple[Done, ...] = ()
    in_flight: tuple[Flight, ...] = ()
    in_flight_total: int = 0
    rates: Rates = field(default_factory=Rates)
    composition: tuple[tuple[Category, int], ...] = ()
    culprits: tuple[Holder, ...] = ()
    losses: tuple[LedgerLine, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: Skipped = field(default_factory=Skipped)
    behind_ns: int = 0
    pending: int = 0
    effort: Effort = field(default_factory=Effort)
