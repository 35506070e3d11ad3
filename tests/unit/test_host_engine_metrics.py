# SPDX-License-Identifier: Apache-2.0
"""An engine's own metrics: texts that real engines gave, and servers that misbehave.

The texts of vLLM 0.32.0 and 0.28.0 are scrapes of real servers on CPU, without the metrics that
nobody reads here: idle, with 24 requests and too little KV cache, afterwards, and one with
speculative decoding. The lines of other versions are written by their sources.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from gpucorrelate.probes.host import engine_metrics as engine
from gpucorrelate.probes.host.engine_metrics import EngineMetrics, parse_metrics
from gpucorrelate.probes.host.engine_scrape import EngineEndpoint, Scrape, parse_response
from gpucorrelate.probes.host.reading import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = Path(__file__).parent / "data" / "engine_metrics"
TEXTS = sorted(DATA.glob("*.txt"))


def saved(name: str) -> EngineMetrics:
    return parse_metrics((DATA / f"vllm-{name}.txt").read_text())


def values(metrics: EngineMetrics, number: str = "0") -> dict[str, int]:
    return {
        item.metric.name.removeprefix("engine."): item.value
        for item in metrics.values
        if item.engine == number
    }


def test_a_busy_engine() -> None:
    found = saved("0.32.0-busy")
    assert not found.problems
    told = values(found)
    assert told["requests.running"] + told["requests.waiting"] == 24
    assert told["requests.waiting_for.capacity"] == told["requests.waiting"] == 12
    assert told["requests.waiting_for.deferred"] == 0
    assert told["kv_cache.usage"] == 1_000_000
    assert told["preemptions"] == 13
    assert told["generation_tokens"] == 832


def test_what_happened_between_two_looks() -> None:
    idle, after, busy = (values(saved(f"0.32.0-{name}")) for name in ("idle", "after", "busy"))
    grown = {name: after[name] - idle[name] for name in after.keys() & idle.keys()}
    assert (grown["preemptions"], grown["generation_tokens"]) == (13, 1440)
    assert (grown["prompt_tokens"], grown["prefix_cache.queries"]) == (4344, 4344)
    assert grown["prefix_cache.hits"] == 3680
    assert not [name for name in after if name.startswith("spec_decode")]
    names = ("requests.running", "requests.waiting", "kv_cache.usage")
    assert [idle[name] for name in names] == [0, 0, 0]
    assert [busy[name] for name in names] == [12, 12, 1_000_000]


def test_guesses_that_were_accepted() -> None:
    found = saved("0.32.0-speculative")
    told = values(found)
    positions = [told[f"spec_decode.accepted_tokens.at.{position}"] for position in range(3)]
    assert sum(positions) == told["spec_decode.accepted_tokens"] == 1020
    assert told["spec_decode.draft_tokens"] == 1020


def test_an_older_engine_is_read_alike() -> None:
    told = values(saved("0.28.0-after"))
    assert told.keys() == values(saved("0.32.0-after")).keys()
    assert told["prompt_tokens.by_source.local_compute"] > 0


#: By the sources of these versions.
V0_11 = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.9
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.125
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 70.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 25.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.234567e+06
"""
V0_18_TWO_ENGINES = """\
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:prompt_tokens_recomputed_total{engine="0",model_name="m"} 9.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 10.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 20.0
"""


def test_a_newer_name_counts_before_an_older_in_any_order() -> None:
    told = values(parse_metrics(V0_11))
    assert told == {
        "requests.running": 3,
        "requests.waiting": 0,
        "kv_cache.usage": 125_000,
        "prefix_cache.queries": 100,
        "prefix_cache.hits": 25,
        "preemptions": 1,
        "generation_tokens": 1_234_567,
    }
    older = "".join(line for line in V0_11.splitlines(keepends=True) if ":kv_cache" not in line)
    assert values(parse_metrics(older))["kv_cache.usage"] == 900_000


def test_several_engines_behind_one_server() -> None:
    found = parse_metrics(V0_18_TWO_ENGINES)
    assert values(found, "0") == {"kv_cache.usage": 500_000, "prompt_tokens": 10}
    assert values(found, "1") == {"kv_cache.usage": 250_000, "prompt_tokens": 20}
    readings = engine.engine_readings("api", found, 7)
    assert {reading.subject for reading in readings} == {"engine:api/0", "engine:api/1"}
    assert {reading.t_ns for reading in readings} == {7}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_the_official_parser_reads_the_same(path: Path) -> None:
    """Every series that is known here, by name and labels, has the value it gets there."""
    text = path.read_text()
    families = text_string_to_metric_families(text)
    expected: dict[str, int] = {}
    for sample in (sample for family in families for sample in family.samples):
        for series in engine.SERIES:
            if sample.name == series.names[0]:
                part = f".{sample.labels[series.split]}" if series.split else ""
                expected[series.metric.name + part] = round(sample.value * series.scale)
    found = parse_metrics(text)
    assert {item.metric.name: item.value for item in found.values} == expected
    assert len(expected) >= 20


def test_what_meets_the_eye_is_explained() -> None:
    for series in engine.SERIES:
        assert series.metric.meaning.endswith(".")
        assert series.metric.name.startswith("engine.")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("vllm:num_requests_running 3", 3),
        ("vllm:num_requests_running{} 3", 3),
        ('vllm:num_requests_running{engine="0",} 3.0 1700000000000', 3),
        ('vllm:num_requests_running{engine="0", model_name="a}b\\"c,d"}  3', 3),
        ('vllm:num_requests_running{model_name="x y",engine="0"} 3e0', 3),
        ("vllm:num_requests_running 3\r", 3),
    ],
)
def test_lines_as_the_format_allows_them(line: str, value: int) -> None:
    found = parse_metrics(line)
    assert values(found) == {"requests.running": value}
    assert not found.problems


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running",
        "vllm:num_requests_running ",
        "vllm:num_requests_running x",
        "vllm:num_requests_running NaN",
        "vllm:num_requests_running +Inf",
        "vllm:num_requests_running 1_0",
        "vllm:num_requests_running 1 2 3",
        "vllm:num_requests_running 1e300",
        'vllm:num_requests_running{engine="0" 3',
        "vllm:num_requests_running{engine=0} 3",
        'vllm:num_requests_running{engine="0"} 3'.replace("0", "0" * 5000),
        'vllm:request_success_total{finished_reason="a b"} 3',
        "vllm:request_success_total 3",
    ],
)
def test_lines_that_say_nothing_are_told(line: str) -> None:
    found = parse_metrics(line + "\nvllm:num_requests_waiting 7\n")
    assert values(found) == {"requests.waiting": 7}
    assert len(found.problems) == 1


def test_of_many_problems_few_are_told() -> None:
    assert len(parse_metrics("vllm:num_requests_running\n" * 100).problems) == 3


NAMES = ["vllm:num_requests_running", "process_start_time_seconds"]
MARKS = ["{", "}", '"', "\\", "engine=", ",", " ", "\n", "#", "1", ".", "e", "NaN", "\x00", "\x85"]
PIECES = st.sampled_from([*NAMES, *MARKS, "é"])


@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map("".join)))
def test_any_text_is_no_crash(text: str) -> None:
    found = parse_metrics(text)
    assert len(found.problems) <= 3


@given(st.binary(max_size=300))
def test_any_bytes_are_no_crash(data: bytes) -> None:
    parse_metrics(data.decode("utf-8", "replace"))
    assert isinstance(parse_response(data), (bytes, str))
    parse_response(b"HTTP/1.1 200 OK\r\n" + data)


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket, bytes], None]) -> Iterator[int]:
    """A server of one's own making; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    answer(connection, connection.recv(65536))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def reply(body: str, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n{body}".encode()


def why(found: Scrape | Missing) -> str:
    assert isinstance(found, Missing)
    return found.reason


@pytest.fixture
def registry() -> CollectorRegistry:
    """What vLLM does with prometheus_client, in small."""
    made = CollectorRegistry()
    labels = {"engine": "0", "model_name": "m"}
    names = list(labels)
    Gauge("vllm:num_requests_running", "x", names, registry=made).labels(**labels).set(4)
    Counter("vllm:generation_tokens", "x", names, registry=made).labels(**labels).inc(99)
    Histogram("vllm:iteration_tokens_total", "x", names, registry=made).labels(**labels).observe(3)
    return made


def test_a_server_of_the_library_that_vllm_uses(registry: CollectorRegistry) -> None:
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        endpoint = EngineEndpoint("127.0.0.1", server.server_port)
        before_ns = time.monotonic_ns()
        found = endpoint.scrape()
        assert isinstance(found, Scrape)
        assert before_ns <= found.sent_ns < found.done_ns <= time.monotonic_ns()
        assert values(found.metrics) == {"requests.running": 4, "generation_tokens": 99}
        sample = endpoint.sample("api")
        assert {reading.subject for reading in sample.readings} == {"engine:api/0"}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert "refused" in why(endpoint.scrape())


def test_a_server_that_knows_no_names_is_asked_for_all() -> None:
    paths: list[str] = []

    def answer(connection: socket.socket, request: bytes) -> None:
        path = request.split()[1].decode()
        paths.append(path.partition("?")[0])
        connection.sendall(reply("vllm:num_requests_running 1\n" if "?" not in path else ""))

    with serving(answer) as port:
        endpoint = EngineEndpoint("127.0.0.1", port)
        for _ in range(2):
            assert isinstance(endpoint.scrape(), Scrape)
    assert paths == ["/metrics/", "/metrics", "/metrics"]


def test_a_server_that_knows_names_is_asked_for_no_more() -> None:
    paths: list[str] = []

    def answer(connection: socket.socket, request: bytes) -> None:
        paths.append(request.split()[1].decode())
        connection.sendall(reply("vllm:num_requests_running 1\n"))

    with serving(answer) as port:
        endpoint = EngineEndpoint("127.0.0.1", port)
        for _ in range(2):
            assert isinstance(endpoint.scrape(), Scrape)
    assert len(paths) == 2
    for path in paths:
        assert path.startswith("/metrics/?name%5B%5D=vllm%3A")
        assert path.count("name%5B%5D=") == len(engine.NAMES)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (reply("", "404 Not Found"), "404 Not Found"),
        (reply("", "307 Temporary Redirect", "Location: http://10.0.0.1/\r\n"), "307"),
        (reply("go_gc_duration_seconds 1\n"), "no metric of vLLM"),
        (b"", "not an answer in HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "not an answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nvllm:", "not an answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "not an answer in HTTP"),
    ],
)
def test_what_is_no_answer_is_told(body: bytes, reason: str) -> None:
    with serving(lambda connection, _: connection.sendall(body)) as port:
        assert reason in why(EngineEndpoint("127.0.0.1", port).scrape())


def test_an_answer_in_pieces_is_put_together() -> None:
    def answer(connection: socket.socket, _: bytes) -> None:
        head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        parts = ["vllm:num_requests_runn", "ing 5\nvllm:num_requests_waiting 6\n"]
        chunks = "".join(f"{len(part):x}\r\n{part}\r\n" for part in parts)
        for byte in (head + chunks + "0\r\n\r\n").encode():
            connection.sendall(bytes([byte]))

    with serving(answer) as port:
        found = EngineEndpoint("127.0.0.1", port, timeout_s=30).scrape()
    assert isinstance(found, Scrape)
    assert values(found.metrics) == {"requests.running": 5, "requests.waiting": 6}


def test_a_server_that_drips_is_given_up_in_time() -> None:
    """Every byte comes in time, and the answer never does."""
    over = threading.Event()

    def answer(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not over.is_set():
            connection.sendall(b"#")
            time.sleep(0.02)

    with serving(answer) as port:
        endpoint = EngineEndpoint("127.0.0.1", port, timeout_s=0.3)
        try:
            assert why(endpoint.scrape()) == "no answer within 0.3 s"
        finally:
            over.set()


def test_a_server_that_never_stops_is_cut() -> None:
    def answer(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"#" * 65536)

    with serving(answer) as port:
        endpoint = EngineEndpoint("127.0.0.1", port, timeout_s=30, limit_bytes=100_000)
        assert "longer than 100000 bytes" in why(endpoint.scrape())


def test_names_of_hosts_are_not_looked_up() -> None:
    with pytest.raises(ValueError, match="example"):
        EngineEndpoint("example.org", 80)
