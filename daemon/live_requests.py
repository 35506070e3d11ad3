# SPDX-License-Identifier: Apache-2.0
"""Requests that are known while a session is followed: in flight, ended, given up."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import PhaseName
from gpucorrelate.daemon.live_values import Done

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_FLIGHTS = 16_384
#: Requests that ended and were taken are known for a while: something late may speak of them.
_MOST_DONE = 8192
#: Requests that ended of which it is known when which thread had them.
_MOST_PAST = 16_384
#: A request that a loss may have ended unseen is given up when nothing speaks of it for so long.
_DOUBT_NS = 10_000_000_000


@dataclass(eq=False)
class Exchange:
    """An HTTP exchange and the requests that it became."""

    stream: int
    number: int
    arrival_ns: int = 0
    received: bool = False
    end_ns: int = 0
    phase: PhaseName = PhaseName.RECEIVE
    tid: int = 0
    sent_id: str = ""
    tokens_in: int | None = None
    seen_ns: int = 0
    doubt_ns: int = 0
    requests: list[Request] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The internal id that reports give it while it is no request of the engine."""
        return f"http-{self.stream}-{self.number}"

    @property
    def request_id(self) -> str:
        """The id that the client knows."""
        return self.sent_id or self.key

    @property
    def engine_id(self) -> str:
        """The engine has none."""
        return ""


@dataclass(eq=False)
class Request:
    """A request as the engine knows it."""

    internal_id: str
    arrival_ns: int = 0
    exchange: Exchange | None = None
    external_id: str = ""
    phase: PhaseName = PhaseName.ADMIT
    stream: int = 0  # of the engine core; 0 until it was admitted
    tid: int = 0  # thread that last spoke of it, by its own process's number
    tid_stream: int = 0
    over_ns: int = 0  # the engine was done with it
    tokens_in: int | None = None
    tokens_out: int = 0
    preemptions: int = 0
    admitted_ns: int = 0
    end_ns: int = 0
    seen_ns: int = 0
    doubt_ns: int = 0

    @property
    def key(self) -> str:
        """The internal id that reports give it."""
        return self.internal_id

    @property
    def request_id(self) -> str:
        """The id that the client knows, as far as it was told."""
        return self.external_id or self.internal_id

    @property
    def engine_id(self) -> str:
        """The engine's own id."""
        return self.internal_id

    @property
    def prompt_tokens(self) -> int | None:
        """As far as they are known."""
        if self.tokens_in is None and self.exchange is not None:
            return self.exchange.tokens_in
        return self.tokens_in

    @property
    def is_over(self) -> bool:
        """Whether its client, or where it has none the engine, is done with it."""
        exchange = self.exchange
        if exchange is not None and exchange.received:
            return bool(exchange.end_ns)
        return bool(self.over_ns)


#: A request, or an exchange that has become none.
Flying = Request | Exchange


@dataclass(frozen=True)
class Ended:
    """A request that has ended, or an exchange that may still turn out to be one."""

    what: Flying
    end_ns: int

    def told(self) -> Done:
        """It, as callers see it."""
        what = self.what
        known = what.request_id, what.key, what.arrival_ns, self.end_ns
        if isinstance(what, Exchange):
            return Done(*known, what.tokens_in)
        return Done(*known, what.prompt_tokens, what.tokens_out)


class Known:
    """All requests and exchanges that are in flight, or have ended and were not taken yet.

    Attributes:
        exchanges: By stream and number.
        requests: By internal id.
        past: Those that ended lately, in order.
        lost: Requests given up: their processes ended, or their end was lost.
    """

    def __init__(self) -> None:
        self.exchanges: dict[tuple[int, int], Exchange] = {}
        self.requests: dict[str, Request] = {}
        self.past: deque[Flying] = deque(maxlen=_MOST_PAST)
        self.lost = 0
        self._ended: list[Ended] = []
        self._done: OrderedDict[str | tuple[int, int], None] = OrderedDict()
        self._doubt_ns = 0

    def exchange(self, stream: int, number: int, t_ns: int) -> Exchange | None:
        """An exchange, new or known; None of one that ended and was taken."""
        key = stream, number
        if key in self._done:
            return None
        found = self.exchanges.get(key)
        if found is None:
            found = self.exchanges[key] = Exchange(stream, number, t_ns)
        return found

    def request(self, name: str, t_ns: int) -> Request:
        """A request, new or known."""
        found = self.requests.get(name)
        if found is None:
            found = self.requests[name] = Request(name, t_ns)
        return found

    def was_taken(self, name: str) -> bool:
        """Whether a request ended, or was given up, and is only remembered."""
        return name in self._done

    def end_exchange(self, exchange: Exchange, t_ns: int) -> None:
        """An exchange was answered, or its client went away."""
        exchange.end_ns = t_ns
        for request in exchange.requests:
            request.end_ns = t_ns
        self.past += exchange.requests or [exchange]
        self._ended.append(Ended(exchange, t_ns))

    def end_request(self, request: Request, t_ns: int) -> None:
        """The engine is done with a request."""
        request.over_ns = max(request.over_ns, t_ns)
        self._ended.append(Ended(request, t_ns))
        if request.exchange is None:
            self.past.append(request)

    # What is in flight.

    def flying(self) -> Iterator[Flying]:
        """Requests, and exchanges that are none yet, in order of arrival."""
        found: list[Flying] = [
            one for one in self.exchanges.values() if not one.requests and not one.end_ns
        ]
        found += [one for one in self.requests.values() if not one.is_over]
        found.sort(key=lambda one: one.arrival_ns)
        yield from found

    def oldest_ns(self, default_ns: int) -> int:
        """When the oldest came that is in flight or ended and not yet taken."""
        times = [one.arrival_ns for one in self.exchanges.values()]
        times += [one.arrival_ns for one in self.requests.values()]
        times += [ended.what.arrival_ns for ended in self._ended]
        return min((t for t in times if t), default=default_ns)

    # What has ended.

    def ended(self, before_ns: int) -> list[Ended]:
        """Requests that ended before a moment, each given once, in order of their end."""
        ready = [one for one in self._ended if one.end_ns < before_ns]
        self._ended = [one for one in self._ended if one.end_ns >= before_ns]
        found: list[Ended] = []
        for ended in sorted(ready, key=lambda one: one.end_ns):
            what = ended.what
            if isinstance(what, Exchange):
                found += self._take_exchange(what, ended)
            elif self.requests.get(what.internal_id) is what and (
                what.exchange is None or not what.exchange.received
            ):  # else its exchange tells of its end
                self._forget(what)
                found.append(ended)
        return found

    def _take_exchange(self, what: Exchange, ended: Ended) -> list[Ended]:
        self.exchanges.pop((what.stream, what.number), None)
        self._remember((what.stream, what.number))
        requests = [one for one in what.requests if one.exchange is what]
        for request in requests:
            self._forget(request)
        return [Ended(one, ended.end_ns) for one in requests] or [ended]

    def remaining(self) -> list[Ended]:
        """Whatever has not ended when nothing more comes."""
        left = [Ended(one, 0) for one in self.flying()]
        self.exchanges.clear()
        self.requests.clear()
        return left

    @property
    def pending(self) -> int:
        """How many have ended and were not taken yet."""
        count = 0
        for one in self._ended:
            what = one.what
            if isinstance(what, Exchange):
                count += max(1, len(what.requests))
            elif what.exchange is None or not what.exchange.received:
                count += 1
        return count

    # What is lost.

    def doubt(self, t_ns: int) -> None:
        """Something was lost: what was in flight then may have ended unseen."""
        self._doubt_ns = max(self._doubt_ns, t_ns)

    def give_up(self, now_ns: int) -> None:
        """Let go of what a loss has probably ended, and of too many."""
        everything: list[Flying] = [*self.exchanges.values(), *self.requests.values()]
        doubtful = [one for one in everything if self._is_doubtful(one, now_ns)]
        over = max(0, len(self.requests) - _MOST_FLIGHTS)
        over_http = max(0, len(self.exchanges) - _MOST_FLIGHTS)
        doubtful += list(self.requests.values())[:over]
        doubtful += list(self.exchanges.values())[:over_http]
        self.lose(doubtful)

    def _is_doubtful(self, one: Flying, now_ns: int) -> bool:
        seen_ns = one.seen_ns
        if isinstance(one, Exchange) and one.requests:  # who speaks of these speaks of it
            seen_ns = max(seen_ns, max(request.seen_ns for request in one.requests))
        if seen_ns >= self._doubt_ns:
            one.doubt_ns = 0
        elif one.doubt_ns <= seen_ns:  # the first loss since then
            one.doubt_ns = self._doubt_ns
        return bool(one.doubt_ns) and now_ns - one.doubt_ns > _DOUBT_NS

    def lose(self, lost: Iterable[Flying]) -> int:
        """Give up requests and exchanges; returns how many requests that were, each counted once.

        An exchange takes its requests along; one that had become none counts as one.
        """
        before = self.lost
        for one in lost:
            if isinstance(one, Request):
                self.lost += self._forget(one)
            elif self.exchanges.pop((one.stream, one.number), None) is not None:
                counts = [self._forget(request) for request in one.requests]
                self.lost += sum(counts) if counts else 1
        return self.lost - before

    def _forget(self, request: Request) -> bool:
        """Whether it was known."""
        if self.requests.get(request.internal_id) is not request:
            return False
        del self.requests[request.internal_id]
        self._remember(request.internal_id)
        return True

    def _remember(self, key: str | tuple[int, int]) -> None:
        self._done[key] = None
        while len(self._done) > _MOST_DONE:
            self._done.popitem(last=False)
