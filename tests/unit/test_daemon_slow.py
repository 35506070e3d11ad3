# SPDX-License-Identifier: Apache-2.0
"""Looks that may block: made elsewhere, told once, and harmless to each other."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.daemon import slow
from gpucorrelate.daemon.slow import Round, SlowLooks, Wanted
from gpucorrelate.probes.host.reading import Metric, Reading, Sample
from gpucorrelate.probes.wire.schema import Nature
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

METRIC = Metric("m", "", Nature.LEVEL, "what m is")


def looking(monkeypatch: pytest.MonkeyPatch, **looks: Callable[[], Sample]) -> None:
    """Have these looks only, as fast as it goes."""

    def task(name: str, look: Callable[[], Sample]) -> Any:
        return slow._Task(name, 1, lambda _pids, _now_ns: (look(), ()))

    monkeypatch.setattr(slow, "_tasks", lambda: [task(*one) for one in looks.items()])


@contextlib.contextmanager
def running(wanted: dict[str, Wanted]) -> Iterator[SlowLooks]:
    made = SlowLooks()
    try:
        made.want(wanted)
        yield made
    finally:
        made.close()


def brought(looks: SlowLooks, name: str, count: int) -> list[Any]:
    """What a look brought, until it is so much."""
    found: list[Any] = []

    def enough() -> bool:
        found.extend(what for _, one, what in looks.take() if one == name)
        return len(found) >= count

    wait_for(enough, f"{name} looks {count} times")
    return found


def test_only_what_changed_is_told_until_all_is_wanted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = (Reading(METRIC, "host", 5, 1), Reading(METRIC, "node:0", 6, 1))
    looking(monkeypatch, same=lambda: Sample(readings))
    with running({"s": Wanted(1, (1,))}) as looks:
        first, *others = brought(looks, "same", 3)
        assert first.sample.readings == readings
        assert first.since_ns == 0
        assert all(one.sample.readings == () and one.since_ns > 0 for one in others)
        looks.want({"s": Wanted(2, (1,))})
        wait_for(lambda: any(one.sample.readings == readings for one in brought(looks, "same", 1)),
                 "a new file gets all of it")  # fmt: skip


def test_a_look_that_fails_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Sample:
        raise RuntimeError("the driver is gone")

    looking(monkeypatch, broken=broken, fine=Sample)
    with running({"s": Wanted(1, ())}) as looks:
        assert isinstance(brought(looks, "fine", 2)[-1], Round)
        assert str(brought(looks, "broken", 1)[0]) == "the driver is gone"


def test_a_look_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang() -> Sample:
        release.wait(60)
        return Sample()

    looking(monkeypatch, hang=hang)
    made = SlowLooks()
    for _ in range(100):
        made.want({"s": Wanted(1, ())})
        assert made.take() == []
    made.close()
    assert made._thread is not None
    assert made._thread.is_alive(), "it is waited for a while, and then left to itself"
    release.set()


def test_nothing_is_looked_at_without_a_session() -> None:
    with running({}) as looks:
        assert looks._thread is None


def test_a_session_that_ended_is_looked_at_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looking(monkeypatch, one=Sample)
    with running({"s": Wanted(1, ())}) as looks:
        brought(looks, "one", 2)
        looks.want({})
        wait_for(lambda: not looks._tasks, "it is forgotten")


@pytest.mark.parametrize(
    ("argv", "port"),
    [
        (("vllm", "serve", "m"), 8000),
        (("vllm", "serve", "m", "--port", "9001"), 9001),
        (("vllm", "serve", "m", "--port=9002"), 9002),
        (("vllm", "serve", "m", "--port"), 0),
        (("vllm", "serve", "m", "--port", "x"), 0),
        (("vllm", "serve", "m", "--port", "123456789"), 0),
    ],
)
def test_the_port_that_a_command_line_names(argv: tuple[str, ...], port: int) -> None:
    assert slow._port(argv) == port


SERVER = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"vllm:num_requests_running{engine=\\"0\\"} 3.0\\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def python(name: str, code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that goes by another name."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [name, "-c", code, *arguments],
        executable=sys.executable, stdin=pipe, stdout=pipe, text=True,
    ) as made:  # fmt: skip
        try:
            yield made
        finally:
            made.kill()


def test_an_engines_metrics_come_from_a_port_that_it_listens_on_itself() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as others:
        # Whoever claims another's port is not believed.
        port = str(others.server_port)
        with python("vllm", "input()", "--port", port) as liar:
            assert slow._endpoint([liar.pid]) is None
    assert slow._endpoint([os.getpid()]) is None, "no engine"


def test_an_engines_metrics_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    look = slow._Engine()
    with python("vllm", SERVER) as engine:
        assert engine.stdout is not None
        port = int(engine.stdout.readline())
        assert slow._endpoint([engine.pid]) is None, "it listens on another port"
        monkeypatch.setattr(slow, "_ENGINE_PORT", port)
        found, _ = look.look([engine.pid], time.monotonic_ns())
        assert [(one.metric.name, one.value) for one in found.readings] == [
            ("engine.requests.running", 3)
        ]
    gone, _ = look.look([engine.pid], time.monotonic_ns())
    assert not gone.readings
    assert [one.what for one in gone.missing] == ["engine.metrics"]


def test_where_there_is_no_gpu_the_reason_is_told() -> None:
    look = slow._Gpus()
    found, _ = look.look([], time.monotonic_ns())
    look.close()
    assert found.readings or all(one.reason for one in found.missing)


def test_what_a_process_is_bound_to_and_that_it_changed() -> None:
    look = slow._Nodes()
    with python("python", "input()") as child:
        allowed = sorted(os.sched_getaffinity(child.pid))
        _, first = look.look([child.pid], 100)
        (told,) = first
        assert (told.subject, told.before) == (f"pid:{child.pid}", "")
        assert told.after.startswith("CPUs ")
        _, again = look.look([child.pid], 200)
        assert again == ()
        if len(allowed) < 2:
            pytest.skip("one CPU: nothing to bind to")
        os.sched_setaffinity(child.pid, {allowed[0]})
        _, after = look.look([child.pid], 300)
        (changed,) = after
        assert (changed.since_ns, changed.t_ns, changed.before) == (200, 300, told.after)
        assert changed.after.startswith(f"CPUs {allowed[0]},")


def test_numbers_are_written_as_ranges() -> None:
    assert slow._ids((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert slow._ids(()) == "none"
