# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: complete, without dead links, and as the code says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpucorrelate.cli import exits
from gpucorrelate.cli.app import cli
from gpucorrelate.probes.wire import errors
from scripts import docs_commands, docs_messages

ROOT = Path(__file__).parents[2]
NAMES = docs_commands.names()
#: What the site takes in besides docs/.
OUTSIDE = ("README.md", "SECURITY.md", "CHANGELOG.md", "DEVELOPERS.md", "mkdocs.yml")

pytest.importorskip("material", reason="the extra 'docs' is not installed")


def build(root, site):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copy(tmp_path):
    """A copy of all that the site is made of, to be spoiled."""
    for name in (*OUTSIDE, "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("docs", "deploy", "systemd"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/docs_hooks.py", tmp_path / "scripts")
    return tmp_path


def test_every_page_is_in_the_site_and_found_by_its_search(site):
    made = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 30
    assert {path.with_suffix(".html").as_posix() for path in pages} <= made
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    found = {doc["location"].partition("#")[0] for doc in index["docs"]}
    assert {path.with_suffix(".html").as_posix() for path in pages} <= found


def test_the_site_fetches_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="?(?:https?:)?//[^">\s]*', text)
        fetched += re.findall(r'<link[^>]*rel="?(?:stylesheet|preconnect)[^>]*//[^>]*>', text)
        assert not fetched, page


@pytest.mark.parametrize(
    ("page", "text", "said"),
    [
        ("stray.md", "# Stray\n", "not included in the"),
        ("cli.md", "[x](nowhere.md)\n", "nowhere.md"),
        ("cli.md", "[x](report.md#no-such-heading)\n", "no-such-heading"),
    ],
)
def test_a_fault_in_it_fails_the_build(copy, page, text, said):
    with (copy / "docs" / page).open("a", encoding="utf-8") as file:
        file.write(text)
    done = build(copy, copy / "site")
    assert done.returncode != 0
    assert said in done.stderr


def test_links_to_files_of_the_repository_lead_to_them(site):
    page = (site / "quickstart-kubernetes.html").read_text("utf-8")
    (link,) = set(re.findall(r'href="?(files/deploy/kubernetes/daemonset\.yaml)', page))
    assert (site / link).read_bytes() == (ROOT / "deploy/kubernetes/daemonset.yaml").read_bytes()


def test_there_is_a_page_for_every_command_and_no_other():
    assert {path.stem for path in docs_commands.FOLDER.glob("*.md")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_commands_page_says_what_the_code_says(name):
    text = docs_commands.page_of(name).read_text("utf-8")
    assert docs_commands.renewed(name, text) == text, "run: python -m scripts.docs_commands"


def test_a_changed_option_is_a_difference(monkeypatch):
    text = docs_commands.page_of("report").read_text("utf-8")
    (option,) = (p for p in cli.commands["report"].params if p.name == "strict")
    assert isinstance(option, click.Option)
    monkeypatch.setattr(option, "help", "Something else.")
    assert docs_commands.renewed("report", text) != text


@pytest.mark.parametrize("name", NAMES)
def test_a_commands_page_has_what_it_is_for_an_example_and_its_cost(name):
    text = docs_commands.page_of(name).read_text("utf-8")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "Example"
    assert "Usage" in titles
    assert titles[-1] == "Overhead"
    intro = text.partition("\n")[2].partition("\n## ")[0]
    example = text.partition("## Example")[2].partition("## Usage")[0]
    cost = text.partition("## Overhead")[2]
    assert len(intro) > 80
    assert f"$ gpucorrelate {name}" in example or f"$ sudo gpucorrelate {name}" in example
    assert len(cost.strip()) > 60


@pytest.mark.parametrize("name", NAMES)
def test_exit_codes_that_a_commands_help_names_are_declared(name):
    text = " ".join((cli.commands[name].help or "").split())
    named = {int(code) for code in re.findall(r"(?:Exits? with|and with|with) (\d)\b", text)}
    assert name in exits.OF, "cli/exits.py: say which exit codes it has"
    assert named <= {one.code for one in exits.of(name)}
    known = {v for k, v in vars(errors).items() if k.startswith("EXIT_")}
    assert {one.code for one in exits.OF[name]} <= known


def test_every_message_of_exit_code_3_and_above_is_in_troubleshooting():
    text = docs_messages.PAGE.read_text("utf-8")
    messages = docs_messages.messages()
    assert {one.code for one in messages} == {3, 4, 5, 6, 7}
    assert docs_messages.renewed(text) == text, "run: python -m scripts.docs_messages"
    without = [one.text for one in messages if not one.remedy]
    assert not without, "scripts/docs_messages.py: no hint and no remedy"


def test_a_message_that_is_raised_is_listed_with_its_code():
    found = {(one.code, one.text) for one in docs_messages.messages()}
    assert (5, "no daemon answers on …") in found
    assert (7, "…: not a gpucorrelate recording") in found
    assert (6, "process … (…) is a kernel thread") in found
