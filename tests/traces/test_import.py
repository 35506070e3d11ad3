# SPDX-License-Identifier: Apache-2.0
"""Every recorded trace imports, and nothing in it is lost; counted apart from the importers."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from gpucorrelate.probes.importers import events
from gpucorrelate.probes.importers.choose import read_trace
from gpucorrelate.probes.importers.recording import frames_of
from gpucorrelate.probes.importers.rows import StepMatcher

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GPUCORRELATE_TRACES") or ROOT.parent / "shared" / "traces")
GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
API = {"cuda_runtime", "cuda_driver", "runtime"}

pytestmark = pytest.mark.traces


def _files(pattern: str) -> list[Path]:
    return sorted(FOLDER.rglob(pattern)) or [FOLDER / "none"]


@pytest.mark.parametrize("path", _files("*.json.gz"), ids=lambda path: path.name)
def test_kineto_traces_import_whole(path: Path) -> None:
    with gzip.open(path, "rt", encoding="utf-8") as text:
        events = json.load(text)["traceEvents"]
    there = Counter(str(e.get("cat", "")).lower() for e in events if e.get("ph") == "X")
    trace = read_trace(path, StepMatcher())
    (process,) = trace.processes
    assert trace.problems.lines() == []
    assert trace.gpu_records == sum(there[category] for category in GPU) > 0
    assert len(process.api) == sum(there[category] for category in API)
    assert len(process.syncs) == there["cuda_sync"]


@pytest.mark.parametrize("path", _files("*.sqlite"), ids=lambda path: path.name)
def test_nsys_exports_import_whole_and_keep_processes_apart(path: Path) -> None:
    query = " UNION ALL ".join(
        f"SELECT globalPid, correlationId FROM CUPTI_ACTIVITY_KIND_{kind}"
        for kind in ("KERNEL", "MEMCPY", "MEMSET")
    )
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    rows = database.execute(query).fetchall()
    (calls,) = database.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()
    database.close()
    trace = read_trace(path, StepMatcher())
    assert trace.problems.lines() == []
    assert sum(len(process.api) for process in trace.processes) == calls
    assert len(trace.processes) == 2
    for process in trace.processes:
        own = sorted(c for owner, c in rows if owner >> 24 & 0xFFFFFF == process.pid)
        assert sorted(process.ops.columns[process.ops.kind.index("correlation")]) == own


@pytest.mark.parametrize("path", _files("*.json.gz"), ids=lambda path: path.name)
@pytest.mark.parametrize("pattern", ["", "."], ids=["usual steps", "all ranges"])
def test_the_compiled_scanner_changes_nothing(
    path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = StepMatcher(pattern)
    assert events.scanner() is not None
    frames = b"".join(frames_of([read_trace(path, matcher)], matcher))
    monkeypatch.setattr(events, "scanner", lambda: None)
    assert b"".join(frames_of([read_trace(path, matcher)], matcher)) == frames
