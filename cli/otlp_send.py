# SPDX-License-Identifier: Apache-2.0
"""Sending spans by OTLP with OpenTelemetry's own exporters, and counting what did not arrive."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import GpucorrelateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from gpucorrelate.correlator.report.otlp_values import Attributes, Tree

HTTP, GRPC = "http/protobuf", "grpc"
PROTOCOLS = (HTTP, GRPC)
#: Spans in one message: a few hundred kilobytes.
_SPANS = 512
#: Messages in a row that fail, after the exporter's own tries, before the rest is given up.
_MOST_FAILED = 3


@dataclass(frozen=True)
class Sent:
    """What became of the requests.

    Attributes:
        requests: Their spans were taken by the endpoint.
        spans: Those.
        lost: Requests with spans that were not.
    """

    requests: int = 0
    spans: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Target:
    """Where spans are sent.

    Attributes:
        endpoint: URL; of HTTP with the path, ``http://host:4318/v1/traces``.
        protocol: One of ``PROTOCOLS``.
        headers: Added to every message.
        timeout_s: For one message, retries included.
    """

    endpoint: str
    protocol: str
    headers: Mapping[str, str]
    timeout_s: float


def exporter_of(target: Target) -> SpanExporter:
    """OpenTelemetry's exporter for a target.

    Raises:
        UsageError: it is not installed, or the endpoint is no URL.
    """
    if not target.endpoint.startswith(("http://", "https://")):
        raise UsageError(
            f"--endpoint {target.endpoint}: not a URL",
            hint="http://localhost:4318/v1/traces, or with --protocol grpc http://localhost:4317",
        )
    try:
        if target.protocol == GRPC:
            from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

            return by_grpc.OTLPSpanExporter(
                endpoint=target.endpoint,
                insecure=target.endpoint.startswith("http://"),
                headers=tuple((name.lower(), text) for name, text in target.headers.items()),
                timeout=target.timeout_s,
            )
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http
    except ImportError as exc:
        raise UsageError(
            f"export needs {exc.name}, which is not installed",
            hint="pip install 'gpucorrelate[otlp]'",
        ) from exc
    return by_http.OTLPSpanExporter(
        endpoint=target.endpoint,
        headers=dict(target.headers),
        timeout=target.timeout_s,
        compression=Compression.Gzip,
    )


class _Reasons(logging.Handler):
    """Keeps what the exporter last said went wrong; it would write it to the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = " ".join(record.getMessage().split())[:200]


class Sender:
    """Sends trees in messages of a bounded number of spans.

    Args:
        exporter: OpenTelemetry's.
        resource: Attributes of all spans' resource.

    Attributes:
        reason: What the exporter last said went wrong.
    """

    def __init__(self, exporter: SpanExporter, resource: Attributes) -> None:
        from gpucorrelate.correlator.report.otlp_sdk import resource_of

        self._exporter = exporter
        self._resource = resource_of(resource)
        self._reasons = _Reasons()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self._reasons)
        logger.propagate = False

    @property
    def reason(self) -> str:
        """What the exporter last said went wrong; empty if nothing."""
        return self._reasons.last

    def send(self, trees: Iterable[Tree]) -> Sent:
        """Send all, as far as the endpoint takes them; never raises for what it does."""
        from gpucorrelate.correlator.report.otlp_sdk import readable

        sent, spans, lost, failed = 0, 0, 0, 0
        batch: list[ReadableSpan] = []
        held = 0
        for tree in trees:
            if failed >= _MOST_FAILED:
                lost += 1
                continue
            batch += readable(tree, self._resource)
            held += 1
            if len(batch) < _SPANS:
                continue
            ok = self._message(batch)
            sent, spans = sent + held * ok, spans + len(batch) * ok
            lost, failed = lost + held * (not ok), 0 if ok else failed + 1
            batch, held = [], 0
        if batch:
            ok = self._message(batch)
            sent, spans, lost = sent + held * ok, spans + len(batch) * ok, lost + held * (not ok)
        self._exporter.shutdown()
        return Sent(sent, spans, lost)

    def _message(self, batch: Sequence[ReadableSpan]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as exc:  # noqa: BLE001 - whatever the other end makes it raise
            self._reasons.last = f"{type(exc).__name__}: {exc}"[:200]
            return False


class ExportError(GpucorrelateError):
    """Spans could not be delivered."""
