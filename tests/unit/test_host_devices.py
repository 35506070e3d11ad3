# SPDX-License-Identifier: Apache-2.0
"""GPUs on the PCI bus: a saved machine, made-up buses, a mocked NVIDIA device, events as text."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.host import devices
from gpucorrelate.probes.host.device_events import DeviceMonitor
from gpucorrelate.probes.host.devices import (
    LINK_SPEED,
    LINK_WIDTH,
    Change,
    Device,
    Link,
    Wanted,
)
from gpucorrelate.probes.host.reading import Missing
from tests.unit.daemon_kit import ROOT

#: Written by scripts/capture_two_nodes.py; its displays are of QEMU's maker.
TWO = Path(__file__).parent / "data" / "two_nodes" / "sys"
QEMU = Wanted(vendors=frozenset({0x1234}))
NEAR, FAR = "0000:01:00.0", "0000:81:00.0"
LINK = Link(16000, 16, 32000, 16)


def bus(root: Path, address: str, **files: str) -> Path:
    """A made-up device on a made-up bus; ``driver`` is a link."""
    real = root / "devices" / "pci0000:00" / address
    real.mkdir(parents=True)
    driver = files.pop("driver", "")
    if driver:
        (real / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    for name, text in files.items():
        (real / name).write_text(text + "\n")
    folder = root / "bus" / "pci" / "devices"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / address).symlink_to(f"../../../devices/pci0000:00/{address}")
    return real


def h200(root: Path, address: str = "0000:19:00.0", **more: str) -> Path:
    files = {
        "class": "0x030200",
        "vendor": "0x10de",
        "device": "0x2335",
        "numa_node": "1",
        "local_cpulist": "48-95,144-191",
        "current_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
        "driver": "nvidia",
    }
    return bus(root, address, **(files | more))


def test_displays_of_the_saved_machine() -> None:
    near, far = devices.read_gpus(TWO, QEMU)
    assert (near.address, far.address) == (NEAR, FAR)
    assert (near.numa_node, near.local_cpus) == (None, (0, 1))
    assert (far.numa_node, far.local_cpus) == (1, (1,))
    assert far.link == Link(2500, 1, 2500, 1)
    assert far.link.generation == 1
    assert (far.pci_class, far.vendor, far.model, far.driver) == (0x0380, 0x1234, 0x1111, None)
    assert not devices.read_gpus(TWO)  # none of a maker whose GPUs serve models


def test_a_gpu_and_all_that_is_known_of_it(tmp_path: Path) -> None:
    h200(tmp_path)
    cpus = (*range(48, 96), *range(144, 192))
    (found,) = devices.read_gpus(tmp_path)
    assert found == Device("0000:19:00.0", 0x10DE, 0x2335, 0x0302, 1, cpus, LINK, "nvidia")
    assert found.link.generation == 4


@pytest.mark.parametrize(
    ("pci_class", "vendor", "is_gpu"),
    [
        ("0x030000", "0x10de", True),  # a GeForce
        ("0x030200", "0x10de", True),
        ("0x038000", "0x1002", True),
        ("0x120000", "0x1002", True),  # an MI300
        ("0x030000", "0x1a03", False),  # a server's own VGA
        ("0x040300", "0x10de", False),  # a GPU's sound device
        ("0x068000", "0x10de", False),  # an NVSwitch
        ("garbage", "0x10de", False),
        ("0x030200", "", False),
    ],
)
def test_gpus_are_told_by_class_and_maker(
    tmp_path: Path, pci_class: str, vendor: str, is_gpu: bool
) -> None:
    h200(tmp_path, **{"class": pci_class, "vendor": vendor})
    assert bool(devices.read_gpus(tmp_path)) == is_gpu


def test_what_a_device_does_not_say_is_unknown(tmp_path: Path) -> None:
    real = h200(tmp_path, numa_node="-1", current_link_speed="Unknown", current_link_width="63")
    for name in ("local_cpulist", "max_link_speed", "max_link_width", "driver"):
        (real / name).unlink()
    (found,) = devices.read_gpus(tmp_path)
    assert found.link == Link(None, None, None, None)
    assert found.link.generation is None
    assert (found.numa_node, found.local_cpus, found.driver) == (None, (), None)
    sample = devices.read_links([found.address], tmp_path)
    assert not sample.readings
    assert {missing.what for missing in sample.missing} == {LINK_SPEED.name, LINK_WIDTH.name}


def test_links_as_they_run_now(tmp_path: Path) -> None:
    real = h200(tmp_path)
    (real / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    sample = devices.read_links(["0000:19:00.0", "0000:ff:00.0"], tmp_path)
    assert {(each.metric, each.value) for each in sample.readings} == {
        (LINK_SPEED, 2500),
        (LINK_WIDTH, 16),
    }
    assert {reading.subject for reading in sample.readings} == {"pci:0000:19:00.0"}
    assert {missing.subject for missing in sample.missing} == {"pci:0000:ff:00.0"}


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("2.5 GT/s PCIe\n", 2500),
        ("8.0 GT/s PCIe", 8000),
        ("8 GT/s", 8000),  # before Linux 5.7
        ("64.0 GT/s PCIe", 64000),
        ("Unknown", None),
        ("Unknown speed", None),
        ("", None),
        ("٨ GT/s", None),
    ],
)
def test_link_speeds(text: str, speed: int | None) -> None:
    assert devices.parse_link_speed(text) == speed


@given(st.text(max_size=60))
def test_any_text_is_no_crash(text: str) -> None:
    assert devices.parse_link_width(text) in (None, 1, 2, 4, 8, 12, 16, 32)
    devices.parse_link_speed(text)
    devices.parse_hex(text)


@given(st.binary(max_size=40))
def test_any_bytes_in_any_file_are_no_crash(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        real = h200(root)
        for name in ("numa_node", "local_cpulist", "current_link_speed", "current_link_width"):
            (real / name).write_bytes(data)
        (found,) = devices.read_gpus(root)
        assert found.driver == "nvidia"
        (real / "class").write_bytes(data)
        devices.read_gpus(root)


def test_a_machine_without_a_bus_has_no_gpus(tmp_path: Path) -> None:
    assert devices.read_gpus(tmp_path) == ()


def test_a_device_that_goes_while_it_is_read_is_gone(tmp_path: Path) -> None:
    shutil.rmtree(h200(tmp_path))  # the bus still lists it
    assert devices.read_gpus(tmp_path) == ()
    assert devices.read_link("0000:19:00.0", tmp_path) == Link(None, None, None, None)


BIND = {
    "ACTION": "bind",
    "DEVPATH": "/devices/pci0000:00/0000:00:05.0/0000:19:00.0",
    "SUBSYSTEM": "pci",
    "DRIVER": "nvidia",
    "PCI_CLASS": "30200",
    "PCI_ID": "10DE:2335",
    "PCI_SUBSYS_ID": "10DE:18BE",
    "PCI_SLOT_NAME": "0000:19:00.0",
    "MODALIAS": "pci:v000010DEd00002335sv000010DEsd000018BEbc03sc02i00",
    "SEQNUM": "4711",
}


def test_a_driver_that_is_bound() -> None:
    event = devices.parse_event(BIND, 99)
    assert event is not None
    assert (event.change, event.address, event.driver) == (Change.BOUND, "0000:19:00.0", "nvidia")
    assert (event.vendor, event.model) == (0x10DE, 0x2335)
    assert (event.synthetic, event.sequence, event.t_ns) == (False, 4711, 99)


@pytest.mark.parametrize("change", list(Change))
def test_every_change_has_an_event(change: Change) -> None:
    event = devices.parse_event(BIND | {"ACTION": change.value}, 1)
    assert event is not None
    assert event.change is change


@pytest.mark.parametrize(
    "other",
    [
        {"ACTION": "offline"},
        {"PCI_CLASS": "20000"},
        {"PCI_ID": "1A03:2000"},
        {"PCI_ID": "10DE"},
        {"PCI_SLOT_NAME": "../../etc"},
        {"PCI_CLASS": ""},
    ],
)
def test_other_events_are_not_of_gpus(other: dict[str, str]) -> None:
    assert devices.parse_event(BIND | other, 1) is None


def test_an_event_that_somebody_asked_for_says_so() -> None:
    event = devices.parse_event(BIND | {"ACTION": "change", "SYNTH_UUID": "0"}, 1)
    assert event is not None
    assert event.synthetic


@given(st.dictionaries(st.sampled_from([*BIND, "SYNTH_UUID"]), st.text(max_size=20)))
def test_any_event_is_no_crash(properties: dict[str, str]) -> None:
    devices.parse_event(properties, 1)
    devices.parse_event(BIND | properties, 1)


def device(address: str, driver: str | None = "nvidia", model: int = 0x2335) -> Device:
    return Device(address, 0x10DE, model, 0x0302, None, (), LINK, driver)


def test_two_looks_compared() -> None:
    before = [device("a"), device("b"), device("c", None), device("d"), device("e")]
    after = [device("a"), device("b", None), device("c"), device("e", model=7), device("f")]
    told = [(event.change, event.address) for event in devices.changes(before, after, 5)]
    assert told == [
        (Change.UNBOUND, "b"),
        (Change.BOUND, "c"),
        (Change.REMOVED, "e"),
        (Change.ADDED, "e"),
        (Change.BOUND, "e"),
        (Change.ADDED, "f"),
        (Change.BOUND, "f"),
        (Change.REMOVED, "d"),
    ]
    assert not devices.changes(before, before, 5)


MOCK = """\
P: /devices/pci0000:00/0000:19:00.0
E: SUBSYSTEM=pci
E: PCI_CLASS=30200
E: PCI_ID=10DE:2335
E: PCI_SLOT_NAME=0000:19:00.0
A: class=0x030200\\n
A: vendor=0x10de\\n
A: device=0x2335\\n
A: numa_node=1\\n
A: local_cpulist=4-7\\n
A: current_link_speed=32.0 GT/s PCIe\\n
A: current_link_width=16\\n
A: max_link_speed=32.0 GT/s PCIe\\n
A: max_link_width=16\\n
L: driver=../../../bus/pci/drivers/nvidia
"""


@pytest.mark.skipif(shutil.which("umockdev-run") is None, reason="umockdev is not installed")
def test_a_mocked_device_is_found_where_real_ones_are(tmp_path: Path) -> None:
    """Nothing but the C library is fooled here: the root is the real ``/sys``."""
    description = tmp_path / "h200.umockdev"
    description.write_text(MOCK)
    code = (
        "from gpucorrelate.probes.host import devices; (one,) = devices.read_gpus();"
        "print([one.address, one.vendor, one.numa_node, one.local_cpus, one.link.generation,"
        " one.driver])"
    )
    done = subprocess.run(
        ["umockdev-run", "--device", str(description), "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == [
        "0000:19:00.0",
        0x10DE,
        1,
        (4, 5, 6, 7),
        5,
        "nvidia",
    ]


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ("pyudev", "pyudev is not installed"),
        ("libudev", "pyudev cannot be used: No library named udev"),
    ],
)
def test_without_pyudev_or_its_library_the_leg_is_named(
    monkeypatch: pytest.MonkeyPatch, lacking: str, reason: str
) -> None:
    if lacking == "pyudev":
        monkeypatch.setitem(sys.modules, "pyudev", None)
    else:
        pytest.importorskip("pyudev")
        monkeypatch.setattr("pyudev._ctypeslib.utils.find_library", lambda _name: None)
    assert DeviceMonitor.open() == Missing("device.events", "host", reason)
