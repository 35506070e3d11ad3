# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate export``: requests as spans for stores of traces, by OTLP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.cli.options import (
    Source,
    redact_option,
    since_option,
    source_options,
    until_option,
)
from gpucorrelate.cli.output import note
from gpucorrelate.cli.source import open_run
from gpucorrelate.correlator.report.units import plural
from gpucorrelate.probes.wire.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.otlp import Maker
    from gpucorrelate.correlator.report.otlp_sample import Rule, Sampler
    from gpucorrelate.correlator.report.otlp_values import Tree
    from gpucorrelate.correlator.wallclock import WallClock

_ENDPOINT = "http://localhost:4318/v1/traces"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@click.command(
    cls=Command,
    short_help="Send requests as OpenTelemetry spans to a store of traces.",
    examples=(
        "gpucorrelate export bad.gpcf",
        "gpucorrelate export --sample 0.05 --slowest 1 --endpoint http://tempo:4318/v1/traces",
        "gpucorrelate export --protocol grpc --endpoint http://localhost:4317 bad.gpcf",
    ),
)
@click.option("--endpoint", metavar="URL", default=_ENDPOINT, show_default=True)
@click.option(
    "--protocol",
    type=click.Choice(("http/protobuf", "grpc")),
    default="http/protobuf",
    show_default=True,
)
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="May be repeated.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    metavar="RATIO",
    help="Share of the requests that is sent; failed ones and those of a recorded trace always.",
)
@click.option(
    "--slowest",
    type=click.FloatRange(0, 100),
    default=0.0,
    metavar="PERCENT",
    help="The slowest so many percent are always sent.",
)
@click.option(
    "--no-join",
    is_flag=True,
    help="Give each request a trace of its own, though its caller sent a traceparent.",
)
@click.option("--service", default="vllm", show_default=True, help="service.name of the spans.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    help="Seconds for one message, retries included.",
)
@since_option
@until_option
@redact_option
@source_options
def export(
    *,
    source: Source,
    endpoint: str,
    protocol: str,
    headers: tuple[str, ...],
    sample: float,
    slowest: float,
    no_join: bool,
    service: str,
    timeout: float,
    since: str,
    until: str,
    redact: bool,
) -> int:
    """Send requests as trees of spans: the request, its phases, the largest parts of its path.

    FILE is a recording; it needs neither root nor the daemon. Without it the daemon's newest
    session is read, or that of --session. A request that came with a traceparent becomes part of
    its caller's trace. Ids are the same each time, so that sending twice changes nothing.

    Exits with 1 when the endpoint did not take everything; what arrived stays.
    """
    from gpucorrelate.cli.otlp_send import ExportError, Sender, Target, exporter_of
    from gpucorrelate.cli.select import window
    from gpucorrelate.correlator.report import otlp_attributes
    from gpucorrelate.correlator.report.otlp_sample import Rule, Sampler

    exporter = exporter_of(Target(endpoint, protocol, _pairs(headers), timeout))
    run = open_run(source, redact=redact)
    if run.is_profile:
        raise NotFoundError("a profile has steps and no requests")
    since_ns, until_ns = window(run, since, until)
    rows = run.requests(since_ns=since_ns, until_ns=until_ns)
    if not rows:
        raise NotFoundError(f"no request fits; the recording has {len(run.requests())}")
    rule = Rule(ratio=sample, slowest=slowest / 100, join=not no_join)
    sampler = Sampler(rule, [row.wall_ns for row in rows])
    maker = _maker(run, rule)
    sender = Sender(exporter, otlp_attributes.of_resource(maker.facts, service))
    wanted = {row.internal_id for row in rows}
    sent = sender.send(_trees(run, wanted, maker, sampler))
    left_out = f", {sampler.left_out:,} left out by sampling" if sampler.left_out else ""
    note(f"{plural(sent.requests, 'request')} sent as {sent.spans:,} spans{left_out}")
    if sent.lost:
        why = f": {sender.reason}" if sender.reason else ""
        raise ExportError(
            f"{endpoint} did not take {plural(sent.lost, 'request')}{why}",
            hint="send them again when it does: ids stay the same",
        )
    return 0


def _pairs(headers: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in headers:
        name, equals, value = text.partition("=")
        if not equals or not name.isascii() or not name.strip() or not value.isprintable():
            raise UsageError("--header: not NAME=VALUE")
        found[name.strip()] = value
    return found


def _maker(run: Run, rule: Rule) -> Maker:
    from gpucorrelate.correlator.report.otlp import Maker
    from gpucorrelate.correlator.report.otlp_ids import Identity
    from gpucorrelate.correlator.report.run_facts import RunFacts

    capture = run.states.capture
    return Maker(
        RunFacts.of(capture), Identity.of(capture), _clock(capture), rule.join, rule.tracestate
    )


def _clock(capture: Capture) -> WallClock:
    from gpucorrelate.correlator import wallclock

    found = wallclock.recorded(capture)
    if found is None:
        try:
            boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            boot_id = ""
        found = wallclock.of_this_boot(capture, boot_id, time.time_ns() - time.monotonic_ns())
    if found is None:
        raise NotFoundError(
            "the recording does not say what time of day it was, and this machine cannot tell",
            hint="record it again: recordings carry the wall clock now",
        )
    return found


def _trees(run: Run, wanted: set[str], maker: Maker, sampler: Sampler) -> Iterator[Tree]:
    for report in run.all_requests():
        if report.internal_id not in wanted:
            continue
        kept = sampler.choose(maker.candidate(report))
        if kept is not None:
            yield maker.tree(report, kept)
