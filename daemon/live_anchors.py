# SPDX-License-Identifier: Apache-2.0
"""What anchors say of requests while a session is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.values import PhaseName
from gpucorrelate.daemon.columns import column
from gpucorrelate.daemon.numeric import np
from gpucorrelate.probes.wire.schema import BY_NAME, Anchor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucorrelate.daemon.live_requests import Exchange, Known, Request
    from gpucorrelate.probes.wire.frame import Batch

REQUEST = BY_NAME["request"]
_CHUNKS = (int(Anchor.CHUNK_START), int(Anchor.CHUNK_END))
_ANCHORS = {int(anchor): anchor for anchor in Anchor}
_OVER = frozenset({Anchor.FINISHED, Anchor.ABORTED, Anchor.FAILED})
_ANSWERED = frozenset({Anchor.LAST_BYTE, Anchor.HTTP_DISCONNECT})
_FRONT = {
    Anchor.RECEIVED: PhaseName.RECEIVE,
    Anchor.TOKENISE_START: PhaseName.TOKENISE,
    Anchor.TOKENISED: PhaseName.SEND,
    Anchor.SENT: PhaseName.ADMIT,
    Anchor.REGISTERED: PhaseName.ADMIT,
    Anchor.ADMITTED: PhaseName.QUEUE,
}
#: The order in which phases are lived through, as far as anchors tell.
RANK = {phase: rank for rank, phase in enumerate(PhaseName)}
#: What a request begins with; anything else of one that was taken is late.
_BEGINS = frozenset({Anchor.SENT, Anchor.REGISTERED, Anchor.LINKED, Anchor.ADMITTED})


def take(known: Known, batch: Batch, strings: Mapping[int, str]) -> None:
    """Learn from a batch of anchors. The chunks of answers say nothing that is needed here."""
    code = column(REQUEST, batch.columns, "anchor", batch.count)
    rows = np.flatnonzero(~np.isin(code, _CHUNKS))
    names = ("request", "http", "anchor", "t_ns", "tid", "value", "detail")
    columns = (column(REQUEST, batch.columns, name, batch.count)[rows] for name in names)
    for rid, http, number, t, tid, value, detail in zip(
        *(one.tolist() for one in columns), strict=True
    ):
        anchor = _ANCHORS.get(number)
        if anchor is None:
            continue
        exchange = known.exchange(batch.stream, http, t) if http else None
        if http and exchange is None:
            continue
        text = strings.get(detail, "")
        if exchange is not None and anchor is not Anchor.LINKED:
            _of_exchange(known, exchange, anchor, t, tid, value, text)
        name = strings.get(rid, "")
        if not name or (known.was_taken(name) and anchor not in _BEGINS):
            continue
        request = known.request(name, t)
        if anchor is Anchor.LINKED and exchange is not None:
            _link(request, exchange)
        _of_request(known, request, anchor, batch.stream, t, tid, value, text)


def _link(request: Request, exchange: Exchange) -> None:
    if request.exchange is None:
        request.exchange = exchange
        exchange.requests.append(request)
        request.arrival_ns = min(request.arrival_ns, exchange.arrival_ns)


def _of_exchange(
    known: Known, exchange: Exchange, anchor: Anchor, t: int, tid: int, value: int, detail: str
) -> None:
    exchange.tid, exchange.seen_ns = tid, t
    exchange.arrival_ns = min(exchange.arrival_ns, t)
    if anchor is Anchor.RECEIVED:
        exchange.received = True
        exchange.sent_id = detail.partition(" ")[2]
    if anchor is Anchor.TOKENISED and value:
        exchange.tokens_in = value
    phase = _FRONT.get(anchor)
    if phase is not None and RANK[phase] > RANK[exchange.phase]:
        exchange.phase = phase
    if anchor in _ANSWERED and not exchange.end_ns:
        known.end_exchange(exchange, t)


def _of_request(
    known: Known, request: Request, anchor: Anchor, stream: int, t: int, tid: int, value: int,
    detail: str,
) -> None:  # fmt: skip
    request.arrival_ns = min(request.arrival_ns, t)
    request.tid, request.tid_stream, request.seen_ns = tid, stream, max(request.seen_ns, t)
    if anchor in (Anchor.LINKED, Anchor.REGISTERED) and detail:
        request.external_id = detail
    phase = _FRONT.get(anchor)
    if phase is not None and RANK[phase] > RANK[request.phase]:
        request.phase = phase
    if anchor in (Anchor.SENT, Anchor.ADMITTED, Anchor.TOKENISED) and value:
        request.tokens_in = value
    if anchor is Anchor.ADMITTED:
        request.admitted_ns, request.stream = t, stream
    elif anchor is Anchor.PREEMPTED:
        request.preemptions += 1
    elif anchor in _OVER:
        known.end_request(request, t)
