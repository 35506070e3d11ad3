# SPDX-License-Identifier: Apache-2.0
"""The daemon's status as metrics, in the formats that Prometheus reads.

No name of a process, session, user or file is in them: each label is one of a few words that the
code knows, but for the kernel programs', which are the project's own, and the models'. Ids of
requests are in exemplars alone, where these are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder

from gpucorrelate.daemon import metrics_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

    from gpucorrelate.daemon.request_sums import RequestSums
    from gpucorrelate.daemon.values import DaemonStatus

PREFIX = "gpucorrelate"
_NS = 1e9
_STATES = ("on", "degraded", "off")
_SESSION_STATES = ("attached", "closing", "detached")


@dataclass(frozen=True)
class ServedCounts:
    """What the server of the metrics says of itself and of the loop beside it.

    Attributes:
        turn_age_s: Seconds since the daemon's loop came round: a loop that stands still cannot
            say so itself.
        scrapes: Answers with metrics.
        refused: Connections turned away or given up: limits, silence, no such page.
    """

    turn_age_s: float = 0.0
    scrapes: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Requests:
    """What is said of requests.

    Attributes:
        sums: What was counted; None: nothing is, or not yet.
        starts: How often the process that counts was started.
        exemplars: Whether ids of requests may be told.
    """

    sums: RequestSums | None
    starts: int
    exemplars: bool


def encode(
    status: DaemonStatus, served: ServedCounts, accept: str, requests: Requests | None = None
) -> tuple[bytes, str]:
    """The metrics' text and its content type.

    Args:
        status: The daemon's status as root sees it.
        served: What the server itself counts.
        requests: What was counted of requests; None: that was not asked for.
        accept: The request's ``Accept`` header; what it asks for decides the format.
    """
    encoder, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status, served, requests))
    return encoder(registry), content_type


class _Collector:
    def __init__(
        self, status: DaemonStatus, served: ServedCounts, requests: Requests | None
    ) -> None:
        self._status = status
        self._served = served
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield _info(status)
        yield from _loop(status, self._served)
        yield from _ways(status)
        yield from _recordings(status)
        yield from _held(status)
        yield from _programs(status)
        if self._requests is not None:
            yield from _of_requests(self._requests)


def _of_requests(requests: Requests) -> Iterator[Metric]:
    sums = requests.sums
    counting = "1 while requests are counted; 0: the process that does it is not there."
    yield from _gauge("requests_counting", counting, float(sums is not None))
    yield _counter("requests_starts", "Starts of that process.", requests.starts)
    if sums is not None:
        yield from metrics_requests.families(sums, exemplars=requests.exemplars)


def _info(status: DaemonStatus) -> Metric:
    told = InfoMetricFamily(f"{PREFIX}_build", "Version, and what loaded the kernel probes.")
    told.add_metric([], {"version": status.version, "backend": status.kernel.backend or "none"})
    return told


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    """A number; none where it is not known."""
    if value is not None:
        yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    told = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for word, value in values:
        told.add_metric([word], value)
    return told


def _gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    told = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for word, value in values:
        told.add_metric([word], value)
    return told


def _loop(status: DaemonStatus, served: ServedCounts) -> Iterator[Metric]:
    yield from _gauge("uptime_seconds", "Time since the daemon started.", status.uptime_s)
    age = "Time since the daemon's loop came round; seconds of it mean that it is held up."
    yield from _gauge("turn_age_seconds", age, served.turn_age_s)
    yield _counter("turns", "Turns of the daemon's loop.", status.effort.turns)
    yield _counter("pauses", "Turns that took half a second or more.", status.pauses)
    behind = "Things that do not keep up now; gpucorrelate status names them."
    yield from _gauge("behind", behind, len(status.behind))
    yield from _gauge("warnings", "Warnings of gpucorrelate status.", len(status.warnings))
    yield _counters(
        "cpu_seconds",
        "CPU time of the daemon, by part of its work.",
        "part",
        [(part.name, part.cpu_ns / _NS) for part in status.effort.parts],
    )
    yield _counter("scrapes", "Answers with these metrics.", served.scrapes)
    refused = "Connections for metrics turned away or given up."
    yield _counter("scrapes_refused", refused, served.refused)


def _ways(status: DaemonStatus) -> Iterator[Metric]:
    """Along the way of the data: kernel, agents, callers, host."""
    kernel, ingest, polling = status.kernel, status.ingest, status.polling
    lost = "Known losses by hop: rows; bpf: events, ingest.stream: batches, retention: segments."
    yield _counters("lost", lost, "hop", [(one.hop, one.lost) for one in status.hops])
    yield _counter("kernel_rows", "Rows taken from the kernel's rings.", kernel.drained)
    yield from _gauge("targets", "Processes traced.", kernel.targets)
    yield from _gauge("agents", "Connected agents.", ingest.clients)
    yield _counter("agent_frames", "Valid frames of agents.", ingest.frames)
    yield _counter("agent_rows", "Rows in them.", ingest.rows)
    yield _counter("agent_read_bytes", "Bytes read from agents.", ingest.read_bytes)
    yield _counter("agent_unasked_frames", "Frames of processes in no session.", ingest.unasked)
    yield _counter("agents_refused", "Agents turned away.", ingest.refused)
    yield _counter("agents_cut_off", "Agents disconnected for what they sent.", ingest.cut_off)
    yield _counter("callers_refused", "Callers turned away.", status.callers_refused)
    yield _counter("callers_cut_off", "Callers disconnected.", status.callers_cut_off)
    yield _counter("host_looks", "Looks at the host's numbers.", polling.looks)
    yield _counter("host_looks_failed", "Of those, failed.", polling.failed)
    yield _counter("host_looks_skipped", "Looks that were not made.", polling.skipped)
    told = GaugeMetricFamily(
        f"{PREFIX}_source_state",
        "1 for the state that a source is in.",
        labels=["source", "state"],
    )
    for one in status.capabilities:
        for state in _STATES:
            told.add_metric([one.source, state], float(one.state == state))
    yield told


def _recordings(status: DaemonStatus) -> Iterator[Metric]:
    store = status.store
    states = [one.state for one in status.sessions]
    yield _gauges(
        "sessions",
        "Sessions by state; those that ended until they are deleted.",
        "state",
        [(state, states.count(state)) for state in _SESSION_STATES],
    )
    yield from _gauge("stored_bytes", "Size of all recordings.", store.stored_bytes)
    yield from _gauge("segments", "Files of all recordings.", store.segments)
    yield _counter("written_bytes", "Bytes written to recordings.", store.written_bytes)
    yield _counter("written_frames", "Frames written to recordings.", store.frames)
    deleted = "Sessions deleted to keep the limits."
    yield _counter("deleted_sessions", deleted, store.deleted_sessions)
    yield from _gauge("write_failing", "1 while writing fails.", float(bool(store.failing)))


def _held(status: DaemonStatus) -> Iterator[Metric]:
    held = status.overhead
    yield from _gauge("resident_memory_bytes", "Memory of the daemon in RAM.", held.rss_bytes)
    peak = "The most that it was."
    yield from _gauge("resident_memory_peak_bytes", peak, held.peak_rss_bytes)
    yield from _gauge("threads", "Threads of the daemon.", held.threads)
    yield from _gauge("open_files", "Open files of the daemon.", held.descriptors)
    yield from _gauge("bpf_programs", "Kernel programs loaded.", held.bpf_programs)
    yield from _gauge("bpf_maps", "Maps of the kernel programs.", held.bpf_maps)
    memory = "Kernel memory of programs, maps and rings."
    yield from _gauge("bpf_memory_bytes", memory, held.bpf_bytes)
    yield _gauges(
        "limit_used_ratio",
        "How full limits are, 1 being all of it.",
        "limit",
        [(fill.name.replace(" ", "_"), fill.used / fill.most) for fill in status.limits],
    )


def _programs(status: DaemonStatus) -> Iterator[Metric]:
    held = status.overhead
    measured = "1 while kernel.bpf_stats_enabled has the kernel measure programs."
    yield from _gauge("bpf_measured", measured, float(held.measured))
    missed = "Times a kernel program was not run as it was running on that CPU."
    yield _counters(
        "bpf_missed_runs", missed, "program", [(one.name, one.missed) for one in held.programs]
    )
    ran = [one for one in held.programs if one.runs]
    if ran:
        text = "Times a kernel program ran while that was counted."
        yield _counters("bpf_runs", text, "program", [(one.name, one.runs) for one in ran])
        text = "Time spent in a kernel program while that was measured."
        seconds = [(one.name, one.run_ns / _NS) for one in ran]
        yield _counters("bpf_run_seconds", text, "program", seconds)
