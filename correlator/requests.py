# SPDX-License-Identifier: Apache-2.0
"""Requests: anchors, steps and tokens of each, joined over frontend, engine and HTTP.

A request is cut at its anchors. Between two of them one thread is known to hold the far end,
so each stretch (a *leg*) is walked on its own: a message to a thread that is already running
leaves no wake behind, and only the anchor knows it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator import handovers
from gpucorrelate.correlator.report.values import PhaseName, TraceContext
from gpucorrelate.probes.wire.schema import Anchor, StepStatus, TokenPlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.handovers import Handover, Turn
    from gpucorrelate.correlator.steps import Rowsets, Steps

    I64 = NDArray[np.int64]


#: A chunk that took longer to write may have had to wait for its client.
LONG_CHUNK_NS = 1_000_000


@dataclass(frozen=True)
class Mark:
    """One anchor."""

    t_ns: int
    tid: int
    value: int
    detail: str


@dataclass(frozen=True)
class Token:
    """One output token on its way: made in a step, processed, written."""

    step: int  # index into Steps; -1 unknown
    made_ns: int
    processed_ns: int
    written_ns: int  # 0 unknown


@dataclass(frozen=True)
class Leg:
    """A stretch that is walked backward from a known thread."""

    name: str
    start_ns: int
    end_ns: int
    tid: int
    held_back: bool = False  # its client did not read: what the thread did was for others


@dataclass(frozen=True)
class Cut:
    """Start of a phase."""

    t_ns: int
    phase: PhaseName
    anchor: str
    step: int = -1  # index into Steps


@dataclass(frozen=True)
class Request:
    """One request of the engine, with all that the recording says about it."""

    internal_id: str
    external_id: str
    aliases: tuple[str, ...]
    arrival_ns: int
    end_ns: int
    arrival_what: str
    arrival_lost: bool  # it came through a frontend that tells of arrivals, not of this one
    end_what: str
    complete: bool
    status: str
    marks: tuple[tuple[Anchor, Mark], ...]
    steps: tuple[int, ...]  # indices into Steps, in order
    step_tokens: tuple[int, ...]  # tokens scheduled for it in each
    tokens: tuple[Token, ...]
    tokens_in: int | None
    tokens_out: int | None
    must_sample: int
    legs: tuple[Leg, ...]  # oldest first; tile arrival..end
    ttft_legs: tuple[Leg, ...]
    cuts: tuple[Cut, ...]  # the first at arrival
    first_token_ns: int | None
    http: bool
    checks: tuple[tuple[TokenPlace, int, int, str], ...]
    path: str = ""
    http_status: int | None = None
    trace: TraceContext | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids it goes by: the API's, the engine's own, the one that the client sent."""
        return tuple(dict.fromkeys((self.external_id, self.internal_id, *self.aliases)))

    def mark(self, anchor: Anchor) -> Mark | None:
        """The first mark of an anchor."""
        return next((mark for a, mark in self.marks if a is anchor), None)


@dataclass(frozen=True)
class Fatal:
    """A step that raised and after which the engine core did no other.

    Attributes:
        step: Index into Steps.
        number: The step's number.
        end_ns: When it had raised.
        error: What.
    """

    step: int
    number: int
    end_ns: int
    error: str

    def said_of(self, steps: Sequence[int]) -> str:
        """Status of a request that was not over by then, and had been in these steps."""
        which = f"step {self.number} raised" if self.step in steps else "the engine core failed"
        return f"failed: {which}: {self.error}"


@dataclass(frozen=True)
class _Sources:
    """Everything per request id, collected once."""

    marks: dict[int, list[tuple[Anchor, Mark]]]
    http: dict[tuple[int, int], list[tuple[Anchor, Mark]]]
    link: dict[int, tuple[int, int]]
    steps: dict[int, list[tuple[int, int, int]]]
    made: dict[int, list[tuple[int, int]]]
    seen: dict[int, list[tuple[int, int, int, int]]]
    checks: dict[int, list[tuple[TokenPlace, int, int, str]]]
    client: dict[str, tuple[TokenPlace, int, int, str]]
    sharing: Counter[tuple[int, int]]  # requests of each HTTP exchange
    tokenised: dict[tuple[int, int], Handover]  # exchange -> its prompts were tokens
    sent: dict[int, Handover]  # step -> its outputs were ready to be sent to the frontend
    unread: dict[tuple[int, int], list[Turn]]  # exchange -> when its client did not read
    fatal: Fatal | None  # the engine core ended with that
    traces: dict[tuple[int, int], TraceContext]  # by stream and exchange, or by 0 and request


_ANCHORS = {int(a): a for a in Anchor}


def build(capture: Capture, steps: Steps, sets: Rowsets) -> tuple[Request, ...]:
    """All requests, in order of arrival."""
    sources = _collect(capture, steps, sets)
    ids = set(sources.marks) | set(sources.steps)
    ids.discard(0)
    sources.link.update(_links_by_name(capture, sources, ids))
    sources.sharing.update(sources.link.values())
    sources.tokenised.update(handovers.tokenised(capture, _with_renderer(sources)))
    end_ns = _end_of(capture)
    made = [_request(capture, steps, sources, rid, end_ns) for rid in ids]
    # Exchanges that never became a request of the engine (refused, malformed) are requests too.
    alone = set(sources.http) - set(sources.link.values())
    made += [_request(capture, steps, sources, 0, end_ns, exchange) for exchange in alone]
    found = sorted((r for r in made if r is not None), key=lambda r: r.arrival_ns)
    times = Counter(r.external_id for r in found)
    # Several prompts or choices of one call share the id that the client knows.
    return tuple(
        replace(r, external_id=r.internal_id, aliases=(*r.aliases, r.external_id))
        if times[r.external_id] > 1
        else r
        for r in found
    )


def _fatal(capture: Capture, steps: Steps) -> Fatal | None:
    """The first of the steps that all raised and were the last, if there are any."""
    found = None
    if len(steps) and steps.stream[0] == steps.stream[-1]:
        for i in np.argsort(steps.sched_ns, kind="stable")[::-1].tolist():
            if int(steps.status[i]) != StepStatus.ERROR or not steps.end_ns(i):
                break
            error = capture.strings[int(steps.error[i])]
            found = Fatal(i, int(steps.number[i]), steps.end_ns(i), error)
    return found


def _long_chunks(
    http: dict[tuple[int, int], list[tuple[Anchor, Mark]]],
) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """Chunks that took long to write: start, end and thread, by exchange."""
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for exchange, marks in http.items():
        start = 0
        for anchor, mark in marks:
            if anchor is Anchor.CHUNK_START:
                start = mark.t_ns
            elif anchor is Anchor.CHUNK_END and start and mark.t_ns - start >= LONG_CHUNK_NS:
                found[exchange].append((start, mark.t_ns, mark.tid))
    return found


def _with_renderer(sources: _Sources) -> dict[tuple[int, int], handovers.Turn]:
    """When the prompts of each exchange were being made tokens, and how many they are."""
    turns: dict[tuple[int, int], handovers.Turn] = {}
    for exchange, marks in sources.http.items():
        first: dict[Anchor, int] = {}
        for anchor, mark in marks:
            first.setdefault(anchor, mark.t_ns)
        start, end = first.get(Anchor.TOKENISE_START), first.get(Anchor.TOKENISED)
        if start is not None and end is not None:
            turns[exchange] = handovers.Turn(start, end, max(1, sources.sharing[exchange]))
    return turns


def _links_by_name(
    capture: Capture, sources: _Sources, ids: set[int]
) -> dict[int, tuple[int, int]]:
    """Exchanges whose link row was lost, found again by the id that the client sent."""
    linked = set(sources.link.values())
    order = sorted(ids - set(sources.link))
    loose = [f"-{capture.strings[rid]}-" for rid in order]
    found: dict[int, tuple[int, int]] = {}
    for exchange, marks in sources.http.items():
        received = next((m for a, m in marks if a is Anchor.RECEIVED), None)
        sent = received.detail.partition(" ")[2] if received else ""
        if exchange in linked or not sent:
            continue
        same = [rid for rid, name in zip(order, loose, strict=True) if f"-{sent}-" in name]
        if len(same) == 1:
            found[same[0]] = exchange
    return found


def _end_of(capture: Capture) -> int:
    times = [
        int(capture.table(kind)[column].max())
        for kind, column in (("request", "t_ns"), ("span", "end_ns"), ("wait", "end_ns"),
                             ("step_update", "end_ns"), ("outputs", "end_ns"))
        if len(capture.table(kind))
    ]  # fmt: skip
    return max(times, default=0)


def _collect(capture: Capture, steps: Steps, sets: Rowsets) -> _Sources:
    strings = capture.strings
    marks: dict[int, list[tuple[Anchor, Mark]]] = defaultdict(list)
    http: dict[tuple[int, int], list[tuple[Anchor, Mark]]] = defaultdict(list)
    link: dict[int, tuple[int, int]] = {}
    rows = capture.table("request")
    order = np.argsort(rows["t_ns"], kind="stable")
    columns = ("stream", "request", "http", "anchor", "t_ns", "tid", "value", "detail")
    for stream, rid, exchange, code, t, tid, value, detail in zip(
        *(rows[c][order].tolist() for c in columns), strict=True
    ):
        anchor = _ANCHORS.get(code)
        if anchor is None:
            continue
        mark = (anchor, Mark(t, tid, value, strings[detail]))
        if anchor is Anchor.LINKED:
            link[rid] = (stream, exchange)
        if rid:
            marks[rid].append(mark)
        elif exchange:
            http[stream, exchange].append(mark)
    return _Sources(
        marks,
        http,
        link,
        _steps_by_request(steps, sets),
        _made_by_request(steps, sets),
        _outputs_by_request(capture, sets),
        *_checks(capture),
        Counter(),
        {},
        handovers.sent(capture, steps),
        handovers.unread(capture, _long_chunks(http)),
        _fatal(capture, steps),
        _traces(capture),
    )


def _traces(capture: Capture) -> dict[tuple[int, int], TraceContext]:
    """The traces of callers, by stream and exchange; by 0 and request where there is none."""
    rows = capture.table("trace_context")
    columns = ("stream", "request", "http", "trace_high", "trace_low", "parent", "flags")
    return {
        (0, rid) if rid else (stream, http): TraceContext(high << 64 | low, parent, flags)
        for stream, rid, http, high, low, parent, flags in zip(
            *(rows[column].tolist() for column in columns), strict=True
        )
        if (high or low) and parent
    }


def _steps_by_request(steps: Steps, sets: Rowsets) -> dict[int, list[tuple[int, int, int]]]:
    """Request -> (step index, tokens scheduled, must sample) in step order."""
    out: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    request = sets.request[steps.row_index].tolist()
    count = sets.scheduled[steps.row_index].tolist()
    sample = sets.must_sample[steps.row_index].tolist()
    for owner, rid, scheduled, must in zip(
        steps.row_owner.tolist(), request, count, sample, strict=True
    ):
        out[rid].append((owner, scheduled, must))
    return out


def _made_by_request(steps: Steps, sets: Rowsets) -> dict[int, list[tuple[int, int]]]:
    """Request -> (step index, tokens produced) for steps that produced any, in order."""
    out: dict[int, list[tuple[int, int]]] = defaultdict(list)
    request = sets.request[steps.out_index].tolist()
    count = sets.scheduled[steps.out_index].tolist()
    for owner, rid, tokens in sorted(zip(steps.out_owner.tolist(), request, count, strict=True)):
        if tokens:
            out[rid].append((owner, tokens))
    return out


def _outputs_by_request(
    capture: Capture, sets: Rowsets
) -> dict[int, list[tuple[int, int, int, int]]]:
    """Request -> (stamp, start, end, tokens) of each frontend batch it was in, in order."""
    table = capture.table("outputs")
    order = np.argsort(table["start_ns"], kind="stable")
    table = table.select(order)
    owner, index = sets.expand(sets.find(table["stream"], table["rowset"]))
    out: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    stamp, start, end = (table[c].tolist() for c in ("stamp_ns", "start_ns", "end_ns"))
    for i, rid, tokens in zip(
        owner.tolist(), sets.request[index].tolist(), sets.scheduled[index].tolist(), strict=True
    ):
        out[rid].append((stamp[i], start[i], end[i], tokens))
    return out


def _checks(
    capture: Capture,
) -> tuple[
    dict[int, list[tuple[TokenPlace, int, int, str]]], dict[str, tuple[TokenPlace, int, int, str]]
]:
    rows = capture.table("tokens")
    by_id: dict[int, list[tuple[TokenPlace, int, int, str]]] = defaultdict(list)
    by_name: dict[str, tuple[TokenPlace, int, int, str]] = {}
    places = set(TokenPlace)
    for rid, place, count, digest, reason in zip(
        *(rows[c].tolist() for c in ("request", "place", "count", "hash", "reason")), strict=True
    ):
        if place not in places:
            continue
        check = (TokenPlace(place), count, digest, capture.strings[reason])
        if place == TokenPlace.CLIENT:
            by_name[capture.strings[rid]] = check
        else:
            by_id[rid].append(check)
    return by_id, by_name


def _request(
    capture: Capture,
    steps: Steps,
    sources: _Sources,
    rid: int,
    capture_end_ns: int,
    exchange: tuple[int, int] | None = None,
) -> Request | None:
    exchange = exchange or sources.link.get(rid)
    internal = capture.strings[rid] if rid else "http-{}-{}".format(*(exchange or (0, 0)))
    web = sources.http.get(exchange, []) if exchange else []
    marks = sorted([*sources.marks.get(rid, []), *web], key=lambda pair: pair[1].t_ns)
    first: dict[Anchor, Mark] = {}
    for anchor, mark in marks:
        first.setdefault(anchor, mark)
    if not marks:
        return None
    in_steps = [(i, n, m) for i, n, m in sorted(sources.steps.get(rid, [])) if steps.end_ns(i) > 0]
    # Chunks of an exchange that carries several requests say nothing of one of them.
    alone = sources.sharing.get(exchange or (0, 0), 0) < 2
    tokens = _tokens(steps, sources, rid, web if alone else [])
    arrival, arrival_what = _arrival(first, marks)
    end, end_what, complete = _end(first, marks, tokens, capture_end_ns)
    checks = [*sources.checks.get(rid, [])]
    fatal = sources.fatal if _with_engine(first, checks) else None
    if fatal is not None and not complete and fatal.end_ns > arrival:
        end, end_what, complete = fatal.end_ns, "the engine core failed", True
    if end <= arrival:
        return None
    # A step that raised made no tokens, and yet the request was in it.
    last = max((token.step for token in tokens), default=-1) if fatal is None else -1
    engine = _engine_part(steps, in_steps, last, arrival, end)
    hands = _hands(sources, engine, tokens, exchange)
    legs, cuts = _partition(steps, first, engine, hands, arrival, end, end_what)
    external, aliases = _names(internal, first, marks)
    checks += [sources.client[name] for name in (external, *aliases) if name in sources.client][:1]
    counts = {place: count for place, count, _, _ in checks}
    produced = sum(n for _, n in sources.made.get(rid, []))
    first_token = _first_token(tokens, end, http=bool(web))
    return Request(
        internal_id=internal,
        external_id=external,
        aliases=aliases,
        arrival_ns=arrival,
        end_ns=end,
        arrival_what=arrival_what,
        arrival_lost=bool(sources.http) and Anchor.RECEIVED not in first,
        end_what=end_what,
        complete=complete,
        status=fatal.said_of([i for i, _, _ in in_steps])
        if fatal is not None
        else _status(first, checks, complete=complete),
        marks=tuple(marks),
        steps=tuple(i for i, _, _ in in_steps),
        step_tokens=tuple(n for _, n, _ in in_steps),
        tokens=tokens,
        tokens_in=_value(first, Anchor.ADMITTED, Anchor.SENT, Anchor.TOKENISED),
        tokens_out=counts.get(
            TokenPlace.ENGINE,
            produced or counts.get(TokenPlace.FRONTEND) or _value(first, Anchor.FINISHED),
        ),
        must_sample=_must_sample(in_steps, tokens),
        legs=legs,
        ttft_legs=_ttft_legs(legs, engine, tokens, hands, first_token),
        cuts=cuts,
        first_token_ns=first_token,
        http=bool(web),
        checks=tuple(checks),
        path=first[Anchor.RECEIVED].detail.partition(" ")[0] if Anchor.RECEIVED in first else "",
        http_status=first[Anchor.LAST_BYTE].value or None if Anchor.LAST_BYTE in first else None,
        trace=sources.traces.get(exchange or (0, rid)),
    )


def _first_token(tokens: tuple[Token, ...], end: int, *, http: bool) -> int | None:
    """When the first token went out; ``None`` if none did, or if all went out as one."""
    if not tokens:
        return None
    if not http:
        return tokens[0].processed_ns
    first = tokens[0].written_ns
    at_once = len(tokens) > 1 and first == tokens[-1].written_ns
    return first if 0 < first <= end and not at_once else None


def _must_sample(in_steps: list[tuple[int, int, int]], tokens: tuple[Token, ...]) -> int:
    """Rows that had to sample, up to the step of the last token.

    With asynchronous scheduling one more row may be computed after a stop token; its sample
    is discarded by design.
    """
    last = max((token.step for token in tokens), default=-1)
    return sum(must for i, _, must in in_steps if last < 0 or i <= last)


def _value(first: dict[Anchor, Mark], *anchors: Anchor) -> int | None:
    return next((first[a].value for a in anchors if a in first and first[a].value), None)


def _arrival(first: dict[Anchor, Mark], marks: list[tuple[Anchor, Mark]]) -> tuple[int, str]:
    if Anchor.RECEIVED in first:
        return first[Anchor.RECEIVED].t_ns, "received: the ASGI app was called, before parsing"
    anchor, mark = marks[0]
    return mark.t_ns, f"{anchor.name.lower()}: nothing earlier was seen of it"


def _end(
    first: dict[Anchor, Mark],
    marks: list[tuple[Anchor, Mark]],
    tokens: tuple[Token, ...],
    capture_end_ns: int,
) -> tuple[int, str, bool]:
    """End of the request, what it means, and whether the request is over."""
    for anchor, words in (
        (Anchor.LAST_BYTE, "last byte: handed to the transport, not yet at the client"),
        (Anchor.HTTP_DISCONNECT, "the client went away"),
    ):
        if anchor in first:
            return first[anchor].t_ns, words, True
    over = [first[a].t_ns for a in (Anchor.FINISHED, Anchor.ABORTED, Anchor.FAILED) if a in first]
    if Anchor.RECEIVED in first:
        return max(capture_end_ns, marks[-1][1].t_ns), "still open when the recording ended", False
    if over:
        last = max([*over, *(token.processed_ns for token in tokens)])
        return last, "the last output was processed in the frontend", True
    return max(capture_end_ns, marks[-1][1].t_ns), "still open when the recording ended", False


def _with_engine(
    first: dict[Anchor, Mark], checks: list[tuple[TokenPlace, int, int, str]]
) -> bool:
    """Whether the engine core was given a request and never said that it was over."""
    over = (Anchor.FINISHED, Anchor.ABORTED, Anchor.FAILED, Anchor.HTTP_DISCONNECT)
    ended = any(anchor in first for anchor in over) or any(why for _, _, _, why in checks)
    return Anchor.SENT in first and not ended


def _status(
    first: dict[Anchor, Mark], checks: list[tuple[TokenPlace, int, int, str]], *, complete: bool
) -> str:
    if Anchor.FAILED in first:
        return f"failed: {first[Anchor.FAILED].detail}".rstrip(": ")
    if Anchor.HTTP_DISCONNECT in first and Anchor.LAST_BYTE not in first:
        return "aborted: the client went away"
    if Anchor.ABORTED in first:
        return f"aborted: {first[Anchor.ABORTED].detail}".rstrip(": ")
    if not complete:
        return "in flight"
    last = first.get(Anchor.LAST_BYTE)
    if last is not None and last.value >= 400:
        return f"failed: HTTP {last.value}"
    reason = next((why for _, _, _, why in checks if why), "")
    reason = reason or (first[Anchor.FINISHED].detail if Anchor.FINISHED in first else "")
    return f"finished: {reason}".rstrip(": ")


def _names(
    internal: str, first: dict[Anchor, Mark], marks: list[tuple[Anchor, Mark]]
) -> tuple[str, tuple[str, ...]]:
    """The id the client knows, and every other name the request goes by."""
    names = [
        mark.detail
        for anchor, mark in marks
        if anchor in (Anchor.LINKED, Anchor.REGISTERED) and mark.detail
    ]
    external = names[-1] if names else internal
    received = first.get(Anchor.RECEIVED)
    # The detail is the path, and the id in the request's header if there was one.
    sent = received.detail.partition(" ")[2] if received else ""
    extra = [sent] if sent else []
    external = external if names or not sent else sent
    return external, tuple(dict.fromkeys([*names, *extra, internal]))


def _tokens(
    steps: Steps, sources: _Sources, rid: int, web: list[tuple[Anchor, Mark]]
) -> tuple[Token, ...]:
    """Each output token's step, processing and writing, in order."""
    made: dict[int, list[int]] = defaultdict(list)
    order: list[int] = []
    for i, _ in sources.made.get(rid, []):
        made[int(steps.stamp_ns[i])].append(i)
        order.append(i)
    starts = [mark.t_ns for anchor, mark in web if anchor is Anchor.CHUNK_START]
    ends = [mark.t_ns for anchor, mark in web if anchor is Anchor.CHUNK_END]
    starts, ends = starts[: len(ends)], ends[: len(starts)]
    tokens: list[Token] = []
    at = 0
    for n, (stamp, _, end, count) in enumerate(sources.seen.get(rid, [])):
        found = made.get(stamp)
        step = found.pop(0) if found else order[n] if n < len(order) else -1
        made_ns = int(steps.update_ns[step]) if step >= 0 else 0
        while at < len(starts) and starts[at] < end:
            at += 1
        written = ends[at] if at < len(ends) else 0
        tokens += [Token(step, min(made_ns, end) if made_ns else end, end, written)] * count
    return tuple(tokens)


@dataclass(frozen=True)
class _Engine:
    """The engine's part of a request: from its first schedule to its last output made."""

    start_ns: int
    made_ns: int
    tid: int
    steps: tuple[tuple[int, int], ...]  # (index, tokens)


def _engine_part(
    steps: Steps,
    in_steps: list[tuple[int, int, int]],
    last: int,
    arrival: int,
    end: int,
) -> _Engine | None:
    if not in_steps:
        return None
    used = [(i, n) for i, n, _ in in_steps if last < 0 or i <= last]
    used = [(i, n) for i, n in used if steps.end_ns(i) <= end]
    if not used:
        return None
    start = max(arrival, int(steps.sched_ns[used[0][0]]))
    final = used[-1][0]
    return _Engine(start, min(end, steps.end_ns(final)), int(steps.tid[final]), tuple(used))


@dataclass(frozen=True)
class _Hands:
    """Who else had a request in hand, and until when; ``None`` where that is not known.

    Attributes:
        tokenised: The tokeniser's thread.
        first: The sender of outputs, with its first.
        last: The same, with its last.
        unread: When the client did not read, so that its response could not be written on.
    """

    tokenised: Handover | None
    first: Handover | None
    last: Handover | None
    unread: tuple[Turn, ...] = ()

    def output(self, start: int, end: int, sent: Handover | None, tid: int) -> Iterator[Leg]:
        """Legs of an output's way out, from its making until it was written by a thread."""
        at = start
        if sent is not None and start < sent.t_ns <= end:
            yield Leg("output", start, sent.t_ns, sent.tid)
            at = sent.t_ns
        for turn in self.unread:
            since, until = max(at, turn.start_ns), min(end, turn.end_ns)
            if since >= until:
                continue
            if since > at:
                yield Leg("output", at, since, tid)
            yield Leg("output", since, until, tid, held_back=True)
            at = until
        if end > at:
            yield Leg("output", at, end, tid)


def _hands(
    sources: _Sources,
    engine: _Engine | None,
    tokens: tuple[Token, ...],
    exchange: tuple[int, int] | None,
) -> _Hands:
    return _Hands(
        sources.tokenised.get(exchange) if exchange else None,
        sources.sent.get(tokens[0].step) if tokens else None,
        sources.sent.get(engine.steps[-1][0]) if engine else None,
        tuple(sources.unread.get(exchange, ())) if exchange else (),
    )


_FRONT = (
    (Anchor.TOKENISE_START, PhaseName.TOKENISE, "tokenise start"),
    (Anchor.TOKENISED, PhaseName.SEND, "tokenised"),
    (Anchor.SENT, PhaseName.ADMIT, "sent"),
    (Anchor.ADMITTED, PhaseName.QUEUE, "admitted"),
)


def _partition(
    steps: Steps,
    first: dict[Anchor, Mark],
    engine: _Engine | None,
    hands: _Hands,
    arrival: int,
    end: int,
    end_what: str,
) -> tuple[tuple[Leg, ...], tuple[Cut, ...]]:
    """Legs to walk and phases to name; both tile arrival to end."""
    cuts = [Cut(arrival, PhaseName.RECEIVE, "received")]
    limit = engine.start_ns if engine else end
    for anchor, phase, name in _FRONT:
        if anchor is Anchor.TOKENISED and engine is None and Anchor.SENT not in first:
            # It was refused: what follows is the answer to the client.
            phase = PhaseName.OUTPUT
        if anchor in first and cuts[-1].t_ns <= first[anchor].t_ns <= limit:
            cuts.append(Cut(first[anchor].t_ns, phase, name))
    legs: list[Leg] = []
    at = arrival

    def leg(name: str, until: int, tid: int) -> None:
        nonlocal at
        if until > at:
            legs.append(Leg(name, at, until, tid))
            at = until

    if hands.tokenised is not None and hands.tokenised.t_ns <= limit:
        leg("receive", first[Anchor.TOKENISE_START].t_ns, first[Anchor.TOKENISE_START].tid)
        leg("tokenise", hands.tokenised.t_ns, hands.tokenised.tid)
    if Anchor.SENT in first and first[Anchor.SENT].t_ns <= limit:
        leg("frontend", first[Anchor.SENT].t_ns, first[Anchor.SENT].tid)
    if engine is not None:
        if Anchor.ADMITTED in first and first[Anchor.ADMITTED].t_ns <= limit:
            leg("admit", first[Anchor.ADMITTED].t_ns, first[Anchor.ADMITTED].tid)
        leg("queue", engine.start_ns, engine.tid)
        leg("engine", engine.made_ns, engine.tid)
        cuts += _step_cuts(steps, engine)
        cuts.append(Cut(engine.made_ns, PhaseName.OUTPUT, "last output made"))
    legs += hands.output(at, end, hands.last, _last_tid(first))
    return tuple(legs), tuple(cut for cut in cuts if cut.t_ns < end)


def _last_tid(first: dict[Anchor, Mark]) -> int:
    """The thread that handed out the last byte, or the frontend's as far as known."""
    for anchor in (Anchor.LAST_BYTE, Anchor.HTTP_DISCONNECT, Anchor.RECEIVED, Anchor.SENT,
                   Anchor.REGISTERED, Anchor.FINISHED, Anchor.ADMITTED):  # fmt: skip
        if anchor in first:
            return first[anchor].tid
    return 0


_STEP_PHASE = {
    "prefill": PhaseName.PREFILL,
    "mixed": PhaseName.MIXED,
    "decode": PhaseName.DECODE,
}


def _step_cuts(steps: Steps, engine: _Engine) -> list[Cut]:
    """One phase per step the request was in, and what lies between them."""
    cuts: list[Cut] = []
    at = engine.start_ns
    for i, _ in engine.steps:
        start, end = max(at, int(steps.sched_ns[i])), min(steps.end_ns(i), engine.made_ns)
        if end <= at:
            continue
        if start > at:
            cuts.append(Cut(at, PhaseName.BETWEEN, "step's update ended", i))
        name = f"step {int(steps.number[i])} scheduled" if start > at or not cuts else "step"
        cuts.append(Cut(start, _STEP_PHASE.get(steps.kind(i), PhaseName.UNKNOWN), name, i))
        at = end
    return cuts


def _ttft_legs(
    legs: tuple[Leg, ...],
    engine: _Engine | None,
    tokens: tuple[Token, ...],
    hands: _Hands,
    target: int | None,
) -> tuple[Leg, ...]:
    """Legs that tile arrival to the first token's writing."""
    if not tokens or engine is None or target is None:
        return ()
    first = tokens[0]
    made = min(max(first.made_ns, engine.start_ns), target)
    front = [leg for leg in legs if leg.end_ns <= engine.start_ns]
    output = legs[-1].tid
    out = [*front]
    if made > engine.start_ns:
        out.append(Leg("engine", engine.start_ns, made, engine.tid))
    out += hands.output(made, target, hands.first, output)
    return tuple(out)
