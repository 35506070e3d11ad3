# SPDX-License-Identifier: Apache-2.0
"""``docs/operating.md`` and ``SECURITY.md`` against the code and the tests they speak of."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gpucorrelate.daemon import configfile, journal
from gpucorrelate.daemon.reload import RELOADABLE

ROOT = Path(__file__).parents[2]
OPERATING = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
UNIT = (ROOT / "systemd/gpucorrelate.service").read_text(encoding="utf-8")
_TEST = re.compile(r"`((?:unit|system|engine|kernel)/\w+\.py)(?:::(\w+))?`")
#: What systemd writes, not the daemon.
_SYSTEMD = {"Watchdog timeout"}


def _texts() -> str:
    """All texts of the daemon, the probes and the command line, what is put in left out."""
    found = []
    for folder in ("daemon", "probes/ebpf", "cli"):
        for path in (ROOT / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%[sd]|{\w+}", "", node.value))
                elif isinstance(node, ast.JoinedStr):
                    parts = (v.value for v in node.values if isinstance(v, ast.Constant))
                    found.append("".join(str(part) for part in parts))
    return "\n".join(found)


def test_the_logs_lines_are_those_of_the_code() -> None:
    texts = _texts()
    quoted = [line[2:] for line in OPERATING.splitlines() if line.startswith("> ")]
    assert len(quoted) > 15
    for line in quoted:
        if line in _SYSTEMD:
            continue
        for part in line.split("…"):
            part = part.strip()
            assert part in texts or not part, f"nobody says {part!r}"


def test_every_section_of_a_failure_says_what_to_do() -> None:
    sections = OPERATING.partition("## When something is wrong")[2].split("\n### ")[1:]
    assert len(sections) > 20
    for section in sections:
        title, _, text = section.partition("\n")
        said = [line for line in text.splitlines() if line and not line.startswith(">")]
        assert len(" ".join(said)) > 60, title


def test_what_a_reload_takes_is_listed() -> None:
    paragraph = OPERATING.partition("A reload takes over")[2].partition("All others")[0]
    named = set(re.findall(r"`([a-z_]+)`", paragraph)) - {"limits", "metrics"}
    assert named == {name.rpartition(".")[2] for name in RELOADABLE}


def test_numbers_and_places_are_those_of_the_code() -> None:
    assert f"`{configfile.DEFAULT_PATH}`" in OPERATING
    assert f"{journal.BURST} lines within {journal.WINDOW_S:.0f} seconds" in OPERATING
    assert "WatchdogSec=30s\n" in UNIT
    assert "did not come round for 30 seconds" in OPERATING
    assert "StartLimitIntervalSec=10min\nStartLimitBurst=10\n" in UNIT
    codes = re.search(r"RestartPreventExitStatus=(.*)", UNIT)
    assert codes is not None
    table = OPERATING.partition("| exit code of the daemon |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:4]] for row in table.splitlines()[2:]]
    stays = {code for code, _, again in rows if again == "no"}
    assert stays == {"0", *codes[1].split()}


@pytest.mark.parametrize(("file", "name"), sorted(set(_TEST.findall(SECURITY))))
def test_a_promise_has_the_test_that_is_named(file: str, name: str) -> None:
    path = ROOT / "tests" / file
    assert path.exists()
    names = {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert not name or name in names


def test_every_promise_has_a_test() -> None:
    promises = SECURITY.partition("## What is promised")[2].partition("## What the exposure")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row != "| promise | test |"]
    assert len(rows) > 25
    for row in rows:
        assert _TEST.search(row), row
