# SPDX-License-Identifier: Apache-2.0
"""The looks themselves: an engine's server, GPUs, devices, and where memory lies."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon import look_engine
from gpucorrelate.daemon.look_devices import Devices
from gpucorrelate.daemon.look_engine import Engine
from gpucorrelate.daemon.look_gpu import Gpus
from gpucorrelate.daemon.look_nodes import APART, Nodes, ids
from gpucorrelate.probes.host import gpu_metrics, numa, placement
from gpucorrelate.probes.host.device_events import Drained
from gpucorrelate.probes.host.devices import Change as Happened
from gpucorrelate.probes.host.devices import Device, DeviceEvent, Link
from gpucorrelate.probes.host.gpu import NOT_SUPPORTED, Gpu, Opened, Pace
from gpucorrelate.probes.host.reading import Missing, Reading, Sample
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

S = 1_000_000_000


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
    assert look_engine.port_of(argv) == port


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
            assert look_engine.endpoint([liar.pid]) is None
    assert look_engine.endpoint([os.getpid()]) is None, "no engine"


def test_an_engines_metrics_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Engine()
    with python("vllm", SERVER) as engine:
        assert engine.stdout is not None
        port = int(engine.stdout.readline())
        assert look_engine.endpoint([engine.pid]) is None, "it listens on another port"
        monkeypatch.setattr(look_engine, "_ENGINE_PORT", port)
        found = look.look([engine.pid], time.monotonic_ns())
        assert [(one.metric.name, one.value) for one in found.sample.readings] == [
            ("engine.requests.running", 3)
        ]
        assert found.standing.works
        assert not found.failing
    gone = look.look([engine.pid], time.monotonic_ns())
    assert not gone.sample.readings
    assert "refused" in gone.failing, "it did answer, so that it does not is a fault"


def test_a_server_that_comes_up_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Engine()
    with python("vllm", f"input()\n{SERVER}") as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        for now_ns in (1, 2):
            found = look.look([engine.pid], now_ns)
            assert not found.standing.works
            assert [one.what for one in found.standing.missing] == ["engine.metrics"]
        engine.stdin.write("\n")
        engine.stdin.flush()
        monkeypatch.setattr(look_engine, "_ENGINE_PORT", int(engine.stdout.readline()))
        assert not look.look([engine.pid], 3).standing.works, "it is not looked for all the time"
        found = look.look([engine.pid], 11 * S)
        assert found.standing.works
        assert found.standing.missing == ()


def test_where_there_is_no_gpu_the_reason_is_told() -> None:
    look = Gpus()
    found = look.look([], time.monotonic_ns())
    look.close()
    assert found.standing.works or all(one.reason for one in found.standing.missing)
    assert found.standing.works or found.standing.missing


class Card:
    """A source of GPUs' numbers, played by the protocol that sources have."""

    name = "played"
    gpus = (Gpu(0, "GPU-1", "0000:01:00.0", "NVIDIA GB10"),)

    def __init__(self) -> None:
        self.silent = self.closed = False
        self.asked: list[Pace] = []

    def sample(self, pace: Pace) -> Sample:
        self.asked.append(pace)
        if self.silent:
            return Sample((), (Missing("nvml", "gpu:GPU-1", "the GPU fell off the bus"),))
        readings = [Reading(gpu_metrics.POLL_WALL, "gpu:GPU-1", 5, len(self.asked))]
        missing = [Missing(gpu_metrics.MEMORY_USED.name, "gpu:GPU-1", NOT_SUPPORTED)]
        if pace is Pace.SLOW:
            missing.append(Missing("gpu.seldom", "gpu:GPU-1", NOT_SUPPORTED))
        return Sample(tuple(readings), tuple(missing))

    def close(self) -> None:
        self.closed = True


def names(sample: Sample) -> set[str]:
    return {one.metric.name for one in sample.readings}


def test_what_a_gpu_tells_is_recorded_with_the_memory_that_it_shares() -> None:
    look = Gpus(lambda: Opened(Card()))
    for now_ns in (1, 2):
        found = look.look([], now_ns)
        assert gpu_metrics.POLL_WALL.name in names(found.sample)
        assert gpu_metrics.UNIFIED_TOTAL.name in names(found.sample)
        assert found.standing.works
        # Not every look asks for everything, and what it did not ask for is missing still.
        assert {one.what for one in found.standing.missing} == {
            gpu_metrics.MEMORY_USED.name, "gpu.seldom"
        }  # fmt: skip


def test_gpus_and_drivers_that_come_later_are_found_and_lost_ones_looked_for() -> None:
    card, there = Card(), False
    opened: list[int] = []

    def open_source() -> Opened:
        opened.append(now_ns)
        return Opened(card) if there else Opened(None, (Missing("nvml", "host", "no driver"),))

    look = Gpus(open_source)
    for now_ns in range(0, 200 * S, S // 5):
        found = look.look([], now_ns)
        assert not found.standing.works
        assert found.standing.missing == (Missing("nvml", "host", "no driver"),)
        assert now_ns + found.rest_ns == opened[-1] + 60 * S, "no look is needed till then"
    assert opened == [0, 60 * S, 120 * S, 180 * S]
    there = True
    look.again()
    now_ns = 200 * S
    assert look.look([], now_ns).standing.works, "a driver was bound: at once"
    card.silent = True
    now_ns += 5 * S
    found = look.look([], now_ns)
    assert not found.standing.works
    assert card.closed
    card.silent = False
    now_ns += S
    assert not look.look([], now_ns).standing.works
    now_ns += 2 * S
    assert look.look([], now_ns).standing.works


def a_device(driver: str | None = "nvidia") -> Device:
    link = Link(16000, 16, 16000, 16)
    return Device("0000:01:00.0", 0x10DE, 0x2330, 0x302, None, (0,), link, driver)


def an_event(change: Happened, t_ns: int, *, synthetic: bool = False) -> DeviceEvent:
    driver = "nvidia" if change in (Happened.BOUND, Happened.UNBOUND) else None
    return DeviceEvent(change, "0000:01:00.0", 0x10DE, 0x2330, driver, synthetic, 1, t_ns)


class Bus:
    """A bus that is played, and the kernel's events of it."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.devices: tuple[Device, ...] = (a_device(),)
        self.events: tuple[DeviceEvent, ...] = ()
        self.told = 0
        self.look = Devices(
            self._tell,
            (lambda: Missing("device.events", "host", "refused")) if deaf else lambda: self,
            lambda: self.devices,
            lambda addresses: Sample(),  # links have tests of their own
        )

    def _tell(self) -> None:
        self.told += 1

    def drain(self) -> Drained:
        events, self.events = self.events, ()
        return Drained(events, len(events))

    def close(self) -> None:
        self.events = ()

    def rows(self, now_ns: int) -> list[tuple[int, int, str, str, str]]:
        found = self.look.look([], now_ns).changes
        assert {one.subject for one in found} <= {"pci:0000:01:00.0"}
        return [(one.t_ns, one.since_ns, one.what, one.before, one.after) for one in found]


def test_drivers_and_gpus_that_come_and_go_are_told() -> None:
    bus = Bus()
    name = "NVIDIA 10de:2330"
    first = bus.look.look([], 10)
    assert first.changes == ()
    assert [(one.what, one.after) for one in first.present] == [
        ("device", name), ("driver", "nvidia")
    ]  # fmt: skip
    assert bus.rows(20) == []
    bus.events, bus.devices = (an_event(Happened.UNBOUND, 25),), (a_device(None),)
    assert bus.rows(30) == [(30, 20, "driver", "nvidia", "")]
    bus.events = (an_event(Happened.REMOVED, 35),)
    bus.devices = ()
    assert bus.rows(40) == [(40, 30, "device", name, "")]
    bus.events = (an_event(Happened.ADDED, 45), an_event(Happened.BOUND, 46))
    bus.devices = (a_device(),)
    assert bus.rows(50) == [(50, 40, "device", "", name), (50, 40, "driver", "", "nvidia")]
    assert bus.told == 3


def test_what_was_undone_between_two_looks_is_told_by_the_kernels_events() -> None:
    bus = Bus()
    bus.rows(10)
    bus.events = (an_event(Happened.UNBOUND, 12), an_event(Happened.BOUND, 13))
    assert bus.rows(20) == [
        (12, 10, "driver", "nvidia", ""), (13, 10, "driver", "nvidia", "nvidia")
    ]  # fmt: skip
    bus.events = (an_event(Happened.CHANGED, 22), an_event(Happened.ADDED, 23, synthetic=True))
    assert bus.rows(30) == [], "nothing need have happened"
    assert bus.told == 1


def test_without_the_kernels_events_the_bus_is_compared_now_and_then() -> None:
    bus = Bus(deaf=True)
    first = bus.look.look([], S)
    assert first.standing.works
    assert first.standing.missing == (Missing("device.events", "host", "refused"),)
    bus.devices = ()
    assert bus.rows(2 * S) == []
    assert bus.rows(7 * S) == [
        (7 * S, S, "driver", "nvidia", ""), (7 * S, S, "device", "NVIDIA 10de:2330", "")
    ]  # fmt: skip


def test_the_machines_own_devices_are_looked_at() -> None:
    look = Devices(lambda: None)
    found = look.look([], time.monotonic_ns())
    look.close()
    assert found.standing.works
    assert {one.what for one in found.standing.missing} <= {
        "device.events", "pcie.link.speed", "pcie.link.width"
    }  # fmt: skip


def test_what_a_process_is_bound_to_and_that_it_changed() -> None:
    look = Nodes()
    with python("python", "input()") as child:
        allowed = sorted(os.sched_getaffinity(child.pid))
        (told,) = look.look([child.pid], 100).changes
        assert (told.subject, told.before) == (f"pid:{child.pid}", "")
        assert told.after.startswith("CPUs ")
        assert look.look([child.pid], 200).changes == ()
        if len(allowed) < 2:
            pytest.skip("one CPU: nothing to bind to")
        os.sched_setaffinity(child.pid, {allowed[0]})
        (changed,) = look.look([child.pid], 300).changes
        assert (changed.since_ns, changed.t_ns, changed.before) == (200, 300, told.after)
        assert changed.after.startswith(f"CPUs {allowed[0]},")


def test_a_disagreement_speaks_since_memory_was_looked_at_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine of two nodes, of which this one plays to be: its memory is all on one."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU: nothing to bind to")
    here, there = sorted(os.sched_getaffinity(0))[:2]
    nodes = (numa.Node(0, (here,)), numa.Node(1, (there,)))
    monkeypatch.setattr(numa, "read_topology", lambda: numa.Topology(nodes))
    look = Nodes()

    def apart(now_ns: int) -> list[tuple[int, int, bool, bool]]:
        found = look.look([child.pid], now_ns).changes
        return [
            (one.t_ns, one.since_ns, bool(one.before), bool(one.after))
            for one in found
            if one.what == APART
        ]

    with python("python", "import time\nwhile True: time.sleep(0.001)") as child:
        os.sched_setaffinity(child.pid, {there})
        wait_for(lambda: placement.read_last_cpu(child.pid) == there, "it runs there")
        assert apart(S) == [(S, 0, False, True)]
        os.sched_setaffinity(child.pid, {here})
        wait_for(lambda: placement.read_last_cpu(child.pid) == here, "it runs here")
        for now_s in range(3, 31, 2):
            assert apart(now_s * S) == [], "page tables are read seldom"
        assert apart(31 * S) == [(31 * S, S, True, False)]
        look.look([], 62 * S)
        assert look._apart == {}, "who is gone is forgotten"


def test_numbers_are_written_as_ranges() -> None:
    assert ids((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert ids(()) == "none"
