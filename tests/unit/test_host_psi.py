# SPDX-License-Identifier: Apache-2.0
"""Pressure: files as kernels write them, files of garbage, triggers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.host import psi
from gpucorrelate.probes.host.psi_triggers import PressureTriggers
from gpucorrelate.probes.host.reading import Round
from gpucorrelate.probes.wire.schema import Nature

if TYPE_CHECKING:
    from pathlib import Path

#: Linux 4.20 to 5.12: no ``full`` for the CPU.
OLD_CPU = "some avg10=1.50 avg60=0.42 avg300=0.11 total=123456\n"
#: Since 5.13, on the machine: a ``full`` that is always zero.
NEW_CPU = OLD_CPU + "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
MEMORY = (
    "some avg10=99.99 avg60=12.00 avg300=3.05 total=9000000\n"
    "full avg10=0.01 avg60=0.00 avg300=0.00 total=8000001\n"
)
#: Since 6.1, where interrupts are counted: ``full`` only.
IRQ = "full avg10=0.00 avg60=0.10 avg300=0.20 total=77\n"


def values(text: str, resource: str, *, machine: bool = False) -> dict[str, int]:
    parsed = psi.parse_pressure(text, resource, machine=machine)
    assert parsed.problems == ()
    return {item.metric.name: item.value for item in parsed.values}


def test_totals_become_nanoseconds_and_averages_millionths() -> None:
    assert values(OLD_CPU, "cpu") == {
        "cpu.pressure.some.avg10": 15_000,
        "cpu.pressure.some.avg60": 4_200,
        "cpu.pressure.some.avg300": 1_100,
        "cpu.pressure.some.total": 123_456_000,
    }
    found = values(MEMORY, "memory")
    assert found["memory.pressure.some.avg10"] == 999_900
    assert found["memory.pressure.full.avg10"] == 100
    assert found["memory.pressure.full.total"] == 8_000_001_000
    assert values(IRQ, "irq")["irq.pressure.full.total"] == 77_000


def test_zeros_that_mean_nothing_are_left_out() -> None:
    """The machine's ``full`` of the CPU; in a cgroup the same line means something."""
    assert values(NEW_CPU, "cpu", machine=True) == values(OLD_CPU, "cpu")
    assert values(NEW_CPU, "cpu")["cpu.pressure.full.total"] == 0


def test_metrics_say_how_they_behave_and_what_they_are() -> None:
    for resource, lines in psi.METRICS.items():
        for line, metrics in lines.items():
            for key, metric in metrics.items():
                assert metric.name == f"{resource}.pressure.{line}.{key}"
                assert metric.nature == (Nature.TOTAL if key == "total" else Nature.AVERAGE)
                assert metric.unit == ("ns" if key == "total" else "ppm")
                assert len(metric.meaning) > 40


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("\n", "no line of a pressure file"),
        ("garbage\n", "no line of a pressure file"),
        ("some avg10=1.50 avg60=0.42 avg300=0.11 total=12", "cut off"),
        ("some avg10=nan total=5\n", "no number"),
        ("some avg10=1.00 total=99999999999999999999\n", "no number"),
        ("some avg10=1.00 total=-\n", "no number"),
    ],
)
def test_what_is_no_pressure_file_is_said_to_be_none(text: str, problem: str) -> None:
    assert problem in " ".join(psi.parse_pressure(text, "memory").problems)


def test_half_a_total_is_no_total() -> None:
    cut = MEMORY[:-3]
    parsed = psi.parse_pressure(cut, "memory")
    assert {item.metric.name for item in parsed.values} == {
        name for name in values(MEMORY, "memory") if ".some." in name
    }
    assert parsed.problems


@given(st.binary(max_size=300), st.sampled_from(psi.RESOURCES))
def test_no_bytes_make_it_raise(data: bytes, resource: str) -> None:
    parsed = psi.parse_pressure(data.decode("utf-8", "replace"), resource)
    assert parsed.values or parsed.problems


@given(st.integers(0, len(MEMORY)), st.binary(max_size=8))
def test_no_damage_to_a_real_file_makes_it_raise(at: int, noise: bytes) -> None:
    text = MEMORY[:at] + noise.decode("utf-8", "replace") + MEMORY[at + len(noise) :]
    for item in psi.parse_pressure(text, "memory").values:
        assert isinstance(item.value, int)


@given(st.integers(0, 2**53), st.integers(0, 10_000))
def test_what_a_kernel_writes_is_read_back(total: int, hundredths: int) -> None:
    text = f"some avg10={hundredths // 100}.{hundredths % 100:02} avg60=0.00 total={total}\n"
    found = values(text, "io")
    assert found["io.pressure.some.total"] == total * 1000
    assert found["io.pressure.some.avg10"] == hundredths * 100


def tree(root: Path, **files: str) -> Path:
    (root / "proc/pressure").mkdir(parents=True)
    for name, text in files.items():
        (root / "proc/pressure" / name).write_text(text)
    return root


def test_a_poller_tells_what_changed(tmp_path: Path) -> None:
    poller = psi.PsiPoller(tree(tmp_path, cpu=NEW_CPU, memory=MEMORY, io=MEMORY))
    first = poller.poll()
    assert len(first.readings) == 4 + 8 + 8
    assert {r.subject for r in first.readings} == {"host"}
    assert first.missing == ()
    assert poller.poll().readings == ()
    (tmp_path / "proc/pressure/io").write_text(MEMORY.replace("total=8000001", "total=8000002"))
    (changed,) = poller.poll().readings
    assert (changed.metric.name, changed.value) == ("io.pressure.full.total", 8_000_002_000)
    assert len(poller.poll(everything=True).readings) == len(first.readings)
    poller.close()


def test_what_is_missing_is_told_once_with_its_reason(tmp_path: Path) -> None:
    poller = psi.PsiPoller(tree(tmp_path, cpu=NEW_CPU, memory="?\n"))
    first = poller.poll()
    assert {m.what: m.reason for m in first.missing} == {
        "/proc/pressure/memory": "no line of a pressure file: '?'",
        "/proc/pressure/io": "no such file",
    }
    assert poller.poll().missing == ()
    assert len(poller.poll(everything=True).missing) == 2
    (tmp_path / "proc/pressure/io").write_text(MEMORY)
    assert len(poller.poll().readings) == 8
    poller.close()


def test_a_kernel_without_pressure_says_why(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (missing,) = psi.PsiPoller(tmp_path).poll().missing
    assert "CONFIG_PSI" in missing.reason


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    tree(tmp_path / "a", memory=MEMORY)
    (tmp_path / "secret").write_text(OLD_CPU)
    (tmp_path / "a/proc/pressure/cpu").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "a/proc/pressure/io")
    found = {m.what: m.reason for m in psi.PsiPoller(tmp_path / "a").poll().missing}
    assert found["/proc/pressure/cpu"] == "a link, which is not followed"
    assert found["/proc/pressure/io"] == "not a plain file"


def test_triggers_are_asked_of_the_kernel_and_of_no_other_file(tmp_path: Path) -> None:
    root = tree(tmp_path, cpu=NEW_CPU, memory=MEMORY)
    (root / "proc/pressure/io").symlink_to(root / "proc/pressure/cpu")
    triggers = PressureTriggers(root)
    assert triggers.poll((1,)) == Round()
    standing = triggers.standing()
    assert not standing.works
    assert {one.what: one.reason for one in standing.missing} == {
        "trigger on cpu": "the kernel takes no window of it",
        "trigger on memory": "the kernel takes no window of it",
        "trigger on io": "a link, which is not followed",
    }
    triggers.close()
    assert (root / "proc/pressure/cpu").read_text() == NEW_CPU, "nothing was written to it"


def test_without_pressure_there_are_no_triggers_until_it_is_there(tmp_path: Path) -> None:
    triggers = PressureTriggers(tmp_path)
    triggers.poll(())
    (missing,) = triggers.standing().missing
    assert (missing.what, missing.subject, missing.reason) == ("triggers", "host", "no such file")


def test_only_so_many_cgroups_are_watched(tmp_path: Path) -> None:
    """Those above a process count, too; the root does not: its pressure is the machine's."""
    root = tree(tmp_path)
    (root / "proc/7").mkdir()
    (root / "proc/self").symlink_to("7")
    (root / "proc/7/mountinfo").write_text(
        "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    path = root / "sys/fs/cgroup"
    for name in range(20):
        path /= str(name)
        path.mkdir(parents=True)
        (path / "cgroup.type").write_text("domain\n")
    (root / "proc/7/cgroup").write_text(f"0::/{path.relative_to(root / 'sys/fs/cgroup')}\n")
    triggers = PressureTriggers(root)
    triggers.poll((7,))
    missing = triggers.standing().missing
    named = {one.subject for one in missing if one.what == "trigger on cpu"}
    assert len(named) == 1 + 16
    assert "host" in named and "cgroup:/" not in named
    assert [one.reason for one in missing if one.what == "triggers of cgroups"] == [
        "4 more than the 16 whose pressure the kernel is asked to watch"
    ]
    triggers.poll(())
    assert {one.subject for one in triggers.standing().missing} == {"host"}
