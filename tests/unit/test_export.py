# SPDX-License-Identifier: Apache-2.0
"""Requests as spans: the same numbers as the report, sent to a real OTLP receiver."""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from gpucorrelate.cli.app import invoke
from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.otlp_sample import Reason, Rule, Sampler
from gpucorrelate.correlator.wallclock import WALL_CLOCK
from gpucorrelate.daemon.client import open_recording
from gpucorrelate.probes.wire.errors import GpucorrelateError, NotFoundError, UsageError
from tests.unit.synth import MS, Recording
from tests.unit.test_cli_reports import save
from tests.unit.test_requests import recording as engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The wall clock is ahead of CLOCK_MONOTONIC by so much.
AHEAD_NS = 1_700_000_000_000_000_000
TRACE, PARENT = (0x0AF7651916CD43DD << 64) | 0x8448EB211C80319C, 0xB7AD6B7169203331


class Receiver(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP, with the official messages, or refuses them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[str] = []
        self.answers: list[int] = []  # statuses to give, the last one for good

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        answers = self.server.answers
        status = (answers.pop(0) if len(answers) > 1 else answers[0]) if answers else 200
        if status == 200:
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            message = ExportTraceServiceRequest.FromString(data)
            for one in message.resource_spans:
                self.server.resources.append(texts(one.resource.attributes))
                for scope in one.scope_spans:
                    self.server.spans += scope.spans
            self.server.headers.append(self.headers.get("X-Tenant", ""))
        self.send_response(status)
        body = ExportTraceServiceResponse().SerializeToString()
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def texts(attributes: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in attributes}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def recording() -> Recording:
    made = engine(40)
    made.add("clock_pair", 1, t_ns=1 * MS, width_ns=100, clock=WALL_CLOCK, other=AHEAD_NS + 1 * MS)
    return made


@pytest.fixture
def file(recording: Recording, tmp_path: Path) -> Path:
    made: Path = save(recording, tmp_path / "run.gpcf")
    return made


def exchanges(capture: Capture) -> tuple[list[int], list[int]]:
    rows = capture.table("request")
    return rows["stream"].tolist(), rows["http"].tolist()


def run_of(file: Path) -> Run:
    return Run.of(Capture.from_batches(open_recording(file)))


def export(receiver: Receiver, file: Path, *more: str) -> int:
    return invoke(["export", "--endpoint", receiver.url, *more, str(file)])


def test_every_request_is_a_tree_of_the_reports_times(receiver: Receiver, file: Path) -> None:
    assert export(receiver, file, "--header", "X-Tenant=a=b") == 0
    reports = list(run_of(file).all_requests())
    roots = {s.start_time_unix_nano: s for s in receiver.spans if not s.parent_span_id}
    assert len(roots) == len(reports) > 0
    children = defaultdict(list)
    for span in receiver.spans:
        children[span.trace_id, span.parent_span_id].append(span)
    for report in reports:
        root = roots[report.arrival_ns + AHEAD_NS]
        assert root.end_time_unix_nano == report.end_ns + AHEAD_NS
        phases = sorted(
            children[root.trace_id, root.span_id], key=lambda one: one.start_time_unix_nano
        )
        at = root.start_time_unix_nano
        for phase in phases:
            assert phase.start_time_unix_nano == at, "phases tile the request"
            at = phase.end_time_unix_nano
            for segment in children[root.trace_id, phase.span_id]:
                assert segment.start_time_unix_nano >= phase.start_time_unix_nano
                assert segment.end_time_unix_nano <= phase.end_time_unix_nano
        assert at == root.end_time_unix_nano
    assert {one["service.name"] for one in receiver.resources} == {"vllm"}
    assert set(receiver.headers) == {"a=b"}


def test_sending_twice_says_the_same(receiver: Receiver, file: Path) -> None:
    assert export(receiver, file) == 0
    first = [one.SerializeToString() for one in receiver.spans]
    receiver.spans.clear()
    assert export(receiver, file) == 0
    assert [one.SerializeToString() for one in receiver.spans] == first


def test_a_callers_trace_is_joined_unless_that_is_not_wanted(
    receiver: Receiver, recording: Recording, tmp_path: Path
) -> None:
    (exchange,) = {
        (stream, http)
        for stream, http in zip(*exchanges(engine(40).capture(60 * MS)), strict=True)
        if http
    }
    recording.add(
        "trace_context", exchange[0], http=exchange[1], trace_high=TRACE >> 64,
        trace_low=TRACE & (1 << 64) - 1, parent=PARENT, flags=1,
    )  # fmt: skip
    path = save(recording, tmp_path / "joined.gpcf")
    assert export(receiver, path) == 0
    joined = [s for s in receiver.spans if s.trace_id == TRACE.to_bytes(16, "big")]
    assert PARENT.to_bytes(8, "big") in {span.parent_span_id for span in joined}
    receiver.spans.clear()
    assert export(receiver, path, "--no-join") == 0
    assert not [s for s in receiver.spans if s.trace_id == TRACE.to_bytes(16, "big")]


@pytest.mark.parametrize("status", [400, 403, 404])
def test_what_is_refused_is_told_and_fails(receiver: Receiver, file: Path, status: int) -> None:
    receiver.answers = [status]
    with pytest.raises(GpucorrelateError) as failed:
        export(receiver, file)
    assert failed.value.exit_code == 1
    assert "did not take 1 request:" in failed.value.message
    assert not receiver.spans


@pytest.mark.parametrize("status", [429, 503])
def test_an_endpoint_that_is_busy_is_tried_again(
    receiver: Receiver, file: Path, status: int
) -> None:
    receiver.answers = [status, 200]
    assert export(receiver, file) == 0
    assert receiver.spans


def test_an_endpoint_that_is_not_there_is_told(file: Path, receiver: Receiver) -> None:
    receiver.answers = [503]
    with pytest.raises(GpucorrelateError, match="did not take"):
        export(receiver, file, "--timeout", "0.3")


def test_what_cannot_be_is_refused_before_anything_is_read(receiver: Receiver, file: Path) -> None:
    for wrong in (("--header", "nothing"), ("--endpoint", "localhost:4317"), ("--sample", "2")):
        with pytest.raises(UsageError):
            invoke(["export", *wrong, str(file)])
    assert not receiver.spans


def test_a_recording_without_time_of_day_is_refused(tmp_path: Path, receiver: Receiver) -> None:
    path = save(engine(40), tmp_path / "old.gpcf")
    with pytest.raises(NotFoundError, match="time of day"):
        export(receiver, path)


def test_sampling_leaves_out_and_counts(receiver: Receiver, file: Path) -> None:
    assert export(receiver, file, "--sample", "0", "--slowest", "100") == 0
    everything = len(receiver.spans)
    receiver.spans.clear()
    assert export(receiver, file, "--sample", "0") == 0
    assert len(receiver.spans) < everything


def test_a_ratio_keeps_about_that_share_and_weighs_it() -> None:
    from gpucorrelate.correlator.report.otlp_ids import Identity
    from gpucorrelate.correlator.report.otlp_sample import Candidate

    identity = Identity(b"key")
    sampler = Sampler(Rule(ratio=0.1))
    kept = [
        found
        for n in range(20_000)
        if (found := sampler.choose(Candidate(identity.trace(f"r{n}"), n, False, False)))
    ]
    assert {one.reason for one in kept} == {Reason.RATIO}
    assert sum(one.weight for one in kept) == pytest.approx(20_000, rel=0.1)
    assert sampler.kept + sampler.left_out == 20_000
