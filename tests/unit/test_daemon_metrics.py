# SPDX-License-Identifier: Apache-2.0
"""The daemon's own numbers for Prometheus: right, and no way to harm the daemon."""

from __future__ import annotations

import http.client
import re
import socket
import time
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucorrelate.daemon import metrics_address, metrics_http
from gpucorrelate.daemon.metrics_server import MOST_CONNECTIONS
from gpucorrelate.probes.wire.errors import UsageError
from tests.unit.daemon_kit import Yard, wait_for


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def get(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[str, float]:
    """Every sample by its name and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(one.labels.items()))
            found[f"{one.name}{{{labels}}}" if labels else one.name] = one.value
    return found


def served(yard: Yard, port: int, **settings: object):
    return yard.daemon(metrics={"listen": f"127.0.0.1:{port}"}, **settings).start()


def test_what_is_served_is_what_status_says(yard: Yard, port: int) -> None:
    daemon = served(yard, port)
    peer = yard.peer(daemon)
    peer.join()
    session = daemon.client.attach(peer.pid).session.session
    wait_for(lambda: daemon.client.status().ingest.started, "its agent is told")
    found = wait_for(lambda: (s := samples(get(port)[1]))["gpucorrelate_agents"] and s, "seen")
    status = daemon.client.status()
    assert found["gpucorrelate_sessions{state=attached}"] == len(status.sessions) == 1
    assert found["gpucorrelate_agents"] == status.ingest.clients == 1
    assert found["gpucorrelate_lost_total{hop=agent.queue}"] == 0
    assert found["gpucorrelate_resident_memory_bytes"] > 0
    hops = re.findall(r"gpucorrelate_lost_total{hop=(.+?)}", " ".join(found))
    assert sorted(hops) == sorted(hop.hop for hop in status.hops)
    text = get(port)[1]
    for secret in (session, str(yard.folder), status.state_dir):
        assert secret not in text


def test_openmetrics_is_given_to_who_asks_for_it(yard: Yard, port: int) -> None:
    served(yard, port)
    status, text = get(port, Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert text.endswith("# EOF\n")
    assert not get(port)[1].endswith("# EOF\n")


def test_other_pages_and_methods_are_refused(yard: Yard, port: int) -> None:
    served(yard, port)
    assert get(port, "/")[0] == 404
    assert get(port, "/metrics/../etc/passwd")[0] == 404
    assert get(port, method="POST")[0] == 405
    status, body = get(port, method="HEAD")
    assert (status, body) == (200, "")
    assert get(port)[0] == 200


def test_by_default_nothing_listens(yard: Yard) -> None:
    daemon = yard.daemon().start()
    assert daemon.client.status().behind is not None
    assert "metrics" not in daemon.log.read_text()


def test_a_port_that_is_taken_is_told_and_taken_once_it_is_free(yard: Yard, port: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen(1)
        daemon = served(yard, port)
        (warning,) = daemon.client.status().warnings
        assert "cannot serve metrics" in warning
        assert f"sport = :{port}" in warning
    wait_for(lambda: not daemon.client.status().warnings, "it is tried again")
    assert get(port)[0] == 200


def test_who_says_nothing_or_reads_nothing_keeps_nobody_out(yard: Yard, port: int) -> None:
    daemon = served(yard, port)
    with ExitStack() as stack:
        for at in range(3 * MOST_CONNECTIONS):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            # Silent, half a request, and one that is longer than any.
            one.sendall((b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 2000)[at % 3])
        assert get(port)[0] == 200
        before = daemon.client.status()
        time.sleep(0.5)
        after = daemon.client.status()
        assert after.effort.turns > before.effort.turns, "the loop goes on"
    assert samples(get(port)[1])["gpucorrelate_scrapes_refused_total"] > 0


def test_a_flood_costs_the_loop_little(yard: Yard, port: int) -> None:
    """However many ask, the loop makes a status for them about once a second."""
    served(yard, port)
    begun = time.monotonic()
    answers = [samples(get(port)[1])["gpucorrelate_uptime_seconds"] for _ in range(60)]
    took_s = time.monotonic() - begun
    assert len(set(answers)) <= took_s + 2
    assert answers == sorted(answers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9469", "must be like"), ("127.0.0.1:70000", "must be like"),
        ("example.org:9469", "must be like"), ("0.0.0.0:9469", "other machines"),
        ("[::]:9469", "other machines"), ("10.0.0.1:9469", "other machines"),
    ],
)  # fmt: skip
def test_addresses_that_are_none_or_too_open_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        metrics_address.check(text, remote=False)
    assert message in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize("text", ["", "127.0.0.1:9469", "127.8.0.1:1", "[::1]:9469"])
def test_addresses_of_this_machine_are_taken(text: str) -> None:
    metrics_address.check(text, remote=False)


def test_others_are_taken_where_that_is_said() -> None:
    metrics_address.check("0.0.0.0:9469", remote=True)


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_a_request_is_whole_or_not_yet(cut: int) -> None:
    whole = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: b\r\n\r\n"
    assert metrics_http.parse(whole[:cut]) is None
    found = metrics_http.parse(whole)
    assert found is not None
    assert (found.status, found.accept) == (200, "b")
