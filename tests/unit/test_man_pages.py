# SPDX-License-Identifier: Apache-2.0
"""Man pages: well formed, complete, and with the code's own words."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from gpucorrelate.daemon import configkeys
from scripts import docs_commands, man_pages, man_roff

PAGES = man_pages.pages()
COMMANDS = docs_commands.names()


def shown(tmp_path, name):
    """A page as a reader sees it, with what man complains of."""
    path = tmp_path / name.rpartition("/")[2]
    path.write_text(PAGES[name], encoding="utf-8")
    done = subprocess.run(
        ["man", "--warnings=w", "-E", "UTF-8", "-l", str(path)],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MANPAGER": "cat"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return re.sub(r".\x08", "", done.stdout), done.stderr


def test_there_is_a_page_for_all():
    wanted = {f"man1/gpucorrelate-{name}.1" for name in COMMANDS}
    wanted |= {"man1/gpucorrelate.1", "man5/gpucorrelate.toml.5", "man8/gpucorrelate.service.8"}
    assert set(PAGES) == wanted


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
@pytest.mark.parametrize("name", PAGES)
def test_mandoc_has_nothing_to_say(name):
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning"],
        input=PAGES[name], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout + done.stderr == ""


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
@pytest.mark.parametrize("name", PAGES)
def test_man_shows_it_without_a_warning(tmp_path, name):
    text, complaints = shown(tmp_path, name)
    assert complaints == ""
    assert "NAME" in text
    assert "SEE ALSO" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_page_has_its_options_its_codes_and_its_cost(name):
    page = PAGES[f"man1/gpucorrelate-{name}.1"]
    it = docs_commands.described(name)
    for option in it.options:
        assert man_roff.bold(option.written) in page
    for one in it.exits:
        assert f".TP\n\\fB{one.code}\\fR\n" in page
    assert ".SH OVERHEAD" in page


def test_every_setting_is_described():
    page = PAGES["man5/gpucorrelate.toml.5"]
    for key in configkeys.all_keys():
        assert man_roff.bold(key.name.rpartition(".")[2]) in page


def test_the_main_page_knows_every_exit_code():
    codes = {one.code for name in COMMANDS for one in docs_commands.described(name).exits}
    for code in codes:
        assert f".TP\n\\fB{code}\\fR\n" in PAGES["man1/gpucorrelate.1"]


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_what_looks_like_roff_is_shown_as_it_is(tmp_path, monkeypatch):
    lines = [".SH no heading", "'br", r"a\nb \fB", "--all ~ ^ ` '", "x - y"]
    made = [*man_roff.header("x", 1, "2020-01-01", "1"), ".SH NAME", "x \\- y"]
    page = "\n".join([*made, *man_roff.heading("Text"), *man_roff.code(lines)]) + "\n"
    monkeypatch.setitem(PAGES, "man1/x.1", page)
    text, complaints = shown(tmp_path, "man1/x.1")
    assert complaints == ""
    for line in lines:
        assert line in text


def test_markdown_becomes_what_it_means():
    text = (
        "Words `code` [link](x.md).\n\n- one\n  more\n- two\n\n| a | b |\n|---|---|\n| c | d |\n"
    )
    made = man_roff.markdown(text)
    assert made == [
        "Words \\fBcode\\fR link.",
        ".IP \\(bu 2", "one more", ".IP \\(bu 2", "two",
        ".TP", "c", "d",
    ]  # fmt: skip
