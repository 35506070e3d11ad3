# SPDX-License-Identifier: Apache-2.0
"""What the documentation says of names and numbers that are decided elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucorrelate.daemon import control, saved
from gpucorrelate.daemon.config import GIB, MAX_SEGMENTS, MIB, DaemonConfig
from gpucorrelate.verify.scenarios import CATALOGUE
from scripts import metrics_page

ROOT = Path(__file__).parents[2]
CLI = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
UNIT = (ROOT / "systemd/gpucorrelate.service").read_text(encoding="utf-8")
DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
CONFIG = DaemonConfig()
LIMITS = CONFIG.limits


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("a session's recording", f"{CONFIG.session_max_bytes // GIB} GiB"),
        ("a session's recording", f"{MAX_SEGMENTS} segments of {CONFIG.segment_bytes // MIB} MiB"),
        ("all recordings", f"{CONFIG.total_max_bytes // GIB} GiB"),
        ("a segment's age", f"{CONFIG.max_age_s // 86_400} days"),
        ("sessions at one time", f"{LIMITS.sessions}; {LIMITS.sessions_per_uid} of a user"),
        ("sessions that are over", f"{LIMITS.finished_sessions}"),
        ("processes in one session", f"{LIMITS.processes:,}"),
        ("threads of a process that are named", f"{LIMITS.threads:,}"),
        ("kernel's ring, for each CPU", f"{CONFIG.ring_bytes // MIB} MiB"),
        ("connected agents", f"{LIMITS.clients:,}; {LIMITS.clients_per_uid} of a user"),
        (
            "read of one agent in one turn",
            f"{LIMITS.read_bytes_per_tick // MIB} MiB; "
            f"{LIMITS.idle_read_bytes_per_tick >> 10} KiB of",
        ),
        ("damaged stretches from one agent", f"{LIMITS.damaged}"),
        ("strings and lasting rows of one agent", f"{CONFIG.stream_bytes // MIB} MiB"),
        (
            "the same of a process in no session",
            f"{LIMITS.idle_string_bytes >> 10} KiB; {LIMITS.idle_bytes_per_uid // MIB} MiB of a "
            f"user's, {LIMITS.idle_bytes // MIB} MiB of all",
        ),
        (
            "callers of the control socket",
            f"{LIMITS.control_clients}, the last {LIMITS.control_clients // 8} of them root's; "
            f"{LIMITS.control_clients_per_uid} of a user",
        ),
        ("a caller's silence, or half a question", f"{LIMITS.control_idle_s:.0f} s"),
        ("an answer that has to wait", f"{control._PATIENCE_NS // 10**9} s"),
    ],
)
def test_the_daemons_limits_are_those_it_keeps(what: str, limit: str) -> None:
    (row,) = (line for line in CLI.splitlines() if line.startswith(f"| {what} |"))
    assert row.split("|")[2].strip().startswith(limit) or f", {limit}" in row


def test_the_daemons_files_are_those_it_writes() -> None:
    for name in (saved.FILE, saved.ENDED_FILE, "000001.gpcf", "control.sock", "ingest.sock"):
        assert f"{name}`" in CLI
    for place in (CONFIG.runtime_dir, CONFIG.state_dir):
        assert f"`{place}/" in CLI


def test_the_units_limits_are_those_that_are_documented() -> None:
    assert "MemoryMax=1G\n" in UNIT
    assert "TasksMax=64\n" in UNIT
    assert "| memory and tasks, under systemd | 1 GiB, 64 (" in CLI


def test_every_scenario_of_verify_is_described() -> None:
    page = (ROOT / "docs/verify.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert {scenario.name for scenario in CATALOGUE} <= described


def test_every_number_of_the_host_is_documented_as_the_code_has_it() -> None:
    listed = [row.metric for group in metrics_page.groups() for row in group.rows]
    assert len(listed) == len(set(listed))
    assert set(listed) == metrics_page.declared()
    assert metrics_page.PAGE.read_text(encoding="utf-8") == metrics_page.page()
    assert "[docs/metrics.md](docs/metrics.md)" in README


@pytest.mark.parametrize("page", ["README.md", "DEVELOPERS.md", "SECURITY.md", *DOCS])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", text):
        assert ((ROOT / page).parent / target).exists(), target
