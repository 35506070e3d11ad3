# SPDX-License-Identifier: Apache-2.0
"""One Chromium for all tests, and pages made by the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gpucorrelate.cli import main
from tests.browser import recordings
from tests.browser.chromium import running_chromium

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Reports:
    """Reports of one recording, as pages and as JSON."""

    recording: Path
    folder: Path

    def page(self, *options: str) -> Path:
        """A page; made once."""
        target = self.folder / f"{'_'.join(options).replace('/', '_') or 'run'}.html"
        if not target.exists():
            command = ["report", *options, "--format", "html", "-o", str(target)]
            assert main.run([*command, str(self.recording)]) == 0
        return target

    def json(self, *options: str) -> Any:
        """The same as a document, or for several as a list."""
        target = self.folder / "report.json"
        command = ["report", *options, "--format", "json", "-o", str(target)]
        assert main.run([*command, str(self.recording)]) == 0
        text = target.read_text()
        lines = [line for line in text.splitlines() if line.startswith("{")]
        if len(lines) > 1 or lines[:1] != ["{"]:
            return [json.loads(line) for line in lines]
        return json.loads(text)


@pytest.fixture(scope="session")
def reports(tmp_path_factory) -> Reports:
    folder = tmp_path_factory.mktemp("pages")
    return Reports(recordings.engine(folder / "engine.gpcf"), folder)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> Reports:
    folder = tmp_path_factory.mktemp("hostile")
    made = recordings.engine(folder / "hostile.gpcf", recordings.Hostile, requests=8)
    return Reports(made, folder)


@pytest.fixture(scope="package")
def browser():
    with running_chromium() as one:
        yield one
