# SPDX-License-Identifier: Apache-2.0
"""The page of faults and limits names tests, hops, counters and fuzz targets that exist."""

from __future__ import annotations

import re
from pathlib import Path

from gpucorrelate.daemon.health import IngestCounters, KernelCounters, StoreCounters
from gpucorrelate.daemon.values import DaemonStatus
from gpucorrelate.probes.ebpf.values import TracerStats
from tests.fuzz import native
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", PAGE)
    assert len(named) > 50
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_every_fault_and_limit_has_a_test_or_says_why_not() -> None:
    judged = [row for row in ROWS if len(row) == 4 and row[0].strip() not in ("fault", "of")]
    assert len(judged) > 30
    for row in judged:
        assert "::test_" in row[3] or "none: " in row[3], row[0]


def test_every_counter_and_hop_that_is_named_exists() -> None:
    counters = {
        name
        for cls in (IngestCounters, KernelCounters, StoreCounters, DaemonStatus, TracerStats)
        for name in cls.__dataclass_fields__
    }
    folders = ("daemon", "probes")
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    )
    for row in ROWS:
        if len(row) != 4:
            continue
        for name in re.findall(r"`([a-z_.]+)`", row[2]):
            if "." in name and name != "kernel.lost":
                assert f'"{name}"' in sources, name
            elif name not in ("loss", "session", "ebpf", "reason"):
                assert name.removeprefix("kernel.") in counters, name


def test_every_fuzz_target_is_named() -> None:
    text = PAGE.partition("## Fuzzing")[2]
    assert {*TARGETS, native.NAME} <= set(re.findall(r"`([a-z]+)`", text))
