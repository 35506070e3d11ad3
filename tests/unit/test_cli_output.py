# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.cli.options import Look
from gpucorrelate.cli.output import file_name, text_options, whole_file
from gpucorrelate.probes.wire.errors import StoreError

ANY = st.text(st.characters(exclude_categories=()), max_size=300)


@given(ANY)
def test_a_file_name_stays_in_its_folder_whatever_the_id(request_id):
    name = file_name(request_id)
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert name
    assert len(name.encode()) < 200


@given(ANY, ANY)
def test_different_ids_get_different_files(one, other):
    assert (file_name(one) == file_name(other)) == (one == other)


def test_an_ordinary_id_names_its_file():
    assert file_name("chatcmpl-8f3a1c77b21e") == "chatcmpl-8f3a1c77b21e"
    assert file_name("../../etc/passwd").startswith("%2F..%2Fetc%2Fpasswd-")


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "report.json"
    with whole_file(path) as out:
        out.write("one")
        assert not path.exists()
    assert path.read_text() == "one"
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as out:
        out.write("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["", "missing/report.json", "/dev/full"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    path = tmp_path / place
    with pytest.raises(StoreError, match=str(path)), whole_file(path) as out:
        out.write("x")


class Terminal(io.StringIO):
    """A terminal of the given encoding."""

    encoding = "utf-8"

    def isatty(self):
        return True


def test_color_and_width_follow_the_terminal_unless_told(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    auto = Look(None, "auto", 3)
    assert text_options(auto, Terminal()).color
    assert text_options(auto, Terminal()).width == 90
    assert not text_options(auto, io.StringIO()).color
    assert text_options(auto, io.StringIO()).width == 100
    assert text_options(Look(70, "always", 3), io.StringIO()).color
    assert text_options(Look(70, "always", 3), io.StringIO()).width == 70
    assert not text_options(Look(None, "never", 3), Terminal()).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not text_options(auto, Terminal()).color


def test_blocks_only_where_the_encoding_has_them():
    terminal = Terminal()
    assert text_options(Look(None, "auto", 3), terminal).unicode
    terminal.encoding = "latin-1"
    assert not text_options(Look(None, "auto", 3), terminal).unicode
