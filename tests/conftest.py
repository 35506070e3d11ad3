# SPDX-License-Identifier: Apache-2.0
"""What tests need, asked once; unmet needs skip aloud, or fail where they are required.

A marker (``kernel``, ``bcc``, ``engine``, ``system``, ``qemu``, ``traces``, ``browser``) says what
a test needs.
``GPUCORRELATE_REQUIRE=kernel,engine`` turns every skip of a test that carries one of these
markers into a failure, whether the need was found missing here or the test skipped itself. A
test with several needs may still be skipped for one that is not named.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import HealthCheck, settings

from gpucorrelate.daemon import writer
from gpucorrelate.probes.ebpf import bcc
from tests.browser.chromium import missing_browser
from tests.engine.server import missing_engine
from tests.qemu.guest import why_not as missing_qemu
from tests.unit.daemon_kit import Yard

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# No test asserts an absolute time: an example that takes long says that the machine is busy.
settings.register_profile(
    "gpucorrelate", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gpucorrelate")

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36
_CAP_PERFMON = 38
_CAP_BPF = 39


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _missing_kernel() -> str:
    wanted = 1 << _CAP_BPF | 1 << _CAP_PERFMON
    if os.geteuid() != 0 and _capabilities() & wanted != wanted:
        return "not root, and no CAP_BPF with CAP_PERFMON: run as root"
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "this kernel has no BTF (/sys/kernel/btf/vmlinux)"
    if not list((ROOT / "probes" / "ebpf").glob("*.bpf.o")):
        return "the BPF objects are not built: run 'make native'"
    return ""


def _missing_system() -> str:
    if os.geteuid() != 0:
        return "not root: namespaces cannot be made"
    if shutil.which("systemctl") is None:
        return "systemd is not installed"
    return ""


def _missing_traces() -> str:
    folder = Path(os.environ.get("GPUCORRELATE_TRACES") or ROOT.parent / "shared" / "traces")
    return "" if folder.is_dir() else f"no recorded traces in {folder} (GPUCORRELATE_TRACES)"


def _missing_bcc() -> str:
    return "" if bcc.find() is not None else f"BCC is not installed ({bcc.INSTALL})"


_NEEDS: dict[str, Callable[[], str]] = {
    "kernel": functools.cache(_missing_kernel),
    "bcc": functools.cache(_missing_bcc),
    "engine": functools.cache(missing_engine),
    "system": functools.cache(_missing_system),
    "qemu": functools.cache(missing_qemu),
    "traces": functools.cache(_missing_traces),
    "browser": functools.cache(missing_browser),
}


def required() -> frozenset[str]:
    """The needs that ``GPUCORRELATE_REQUIRE`` makes obligatory.

    Raises:
        pytest.UsageError: it names one that does not exist.
    """
    names = {name.strip() for name in os.environ.get("GPUCORRELATE_REQUIRE", "").split(",")}
    names.discard("")
    if unknown := names - set(_NEEDS):
        known = ", ".join(_NEEDS)
        raise pytest.UsageError(
            f"GPUCORRELATE_REQUIRE: no such need: {', '.join(sorted(unknown))} (there are {known})"
        )
    return frozenset(names)


def _needs_of(item: pytest.Item) -> list[str]:
    return [name for name in _NEEDS if item.get_closest_marker(name) is not None]


def pytest_configure(config: pytest.Config) -> None:
    required()  # a typing error in the variable must stop the run, not weaken it
    config.stash[_UNMET] = Counter()
    config.stash[_LEFT] = []
    # Orphans become children of this process, so that the end of the run can see them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _left_running() -> list[psutil.Process]:
    """Processes that tests started and did not end; Python's own helpers are not counted."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
        and "resource_tracker" not in " ".join(process.cmdline())
    ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process left behind keeps the run's output open, and whoever reads it waits forever."""
    left = _left_running()
    for process in left:
        line = " ".join(process.cmdline())[:100]
        session.config.stash[_LEFT].append(f"{process.pid} {process.username()} {line}")
        process.kill()
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_UNMET: pytest.StashKey[Counter[str]] = pytest.StashKey()
_LEFT: pytest.StashKey[list[str]] = pytest.StashKey()
#: On a test that was skipped for a need: whether nobody demands that need.
_MAY_SKIP: pytest.StashKey[bool] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    demanded = required()
    # What is demanded first: its absence fails a test that lacks something else as well.
    for name in sorted(_needs_of(item), key=lambda name: name not in demanded):
        if reason := _NEEDS[name]():
            item.stash[_MAY_SKIP] = name not in demanded
            item.config.stash[_UNMET][f"{name}: {reason}"] += 1
            pytest.skip(f"needs {name}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    obligatory = required().intersection(_needs_of(item))
    may_skip = item.stash.get(_MAY_SKIP, False) or hasattr(report, "wasxfail")
    if report.skipped and obligatory and not may_skip:
        report.outcome = "failed"
        names = ", ".join(sorted(obligatory))
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"GPUCORRELATE_REQUIRE has {names}, and this was skipped: {why}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    unmet = terminalreporter.config.stash[_UNMET]
    if unmet:
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        for reason, count in unmet.items():
            terminalreporter.write_line(f"{count} tests need {reason}")
    left = terminalreporter.config.stash[_LEFT]
    if left:
        terminalreporter.section("LEFT RUNNING by tests, now killed", red=True, bold=True)
        for line in left:
            terminalreporter.write_line(line)


def pytest_report_header() -> list[str]:
    needs = [f"{name} {'no' if check() else 'yes'}" for name, check in _NEEDS.items()]
    return [f"needs: {', '.join(needs)}; required: {', '.join(sorted(required())) or 'none'}"]


@pytest.fixture(autouse=True)
def _patient_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a write takes long; tests that call a session themselves wait for it."""
    monkeypatch.setattr(writer, "PATIENCE_S", 30.0)


@pytest.fixture
def yard() -> Iterator[Yard]:
    """Makes real daemons and peers of theirs, all gone when the test ends."""
    with Yard() as made:
        yield made


if sys.version_info < (3, 11):
    raise pytest.UsageError("the tests need Python 3.11 or newer")
