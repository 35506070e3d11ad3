# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.cli.options import Look
from gpucorrelate.cli.output import check_place, file_name, text_options, whole_file
from gpucorrelate.cli.saving import check_output, save_session
from gpucorrelate.probes.wire.errors import StoreError, UsageError

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


@pytest.mark.parametrize("place", ["", "missing/report.json"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    path = tmp_path / place
    with pytest.raises(StoreError, match=str(path)), whole_file(path) as out:
        out.write("x")


def full_device(tmp_path):
    """A device of our own on which nothing can be written, never one of the machine's."""
    try:
        os.mknod(tmp_path / "full", 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        (tmp_path / "full").open("w").close()
    except PermissionError:
        pytest.skip("needs CAP_MKNOD and a file system with devices")
    return tmp_path / "full"


def test_a_device_is_written_in_place(tmp_path):
    path = full_device(tmp_path)
    with pytest.raises(StoreError, match="No space left"), whole_file(path) as out:
        out.write("x")
    assert stat.S_ISCHR(path.lstat().st_mode)


class Session:
    """A daemon with one session's recording."""

    def copy_session(self, session, out):
        return out.write(session.encode())


@pytest.fixture
def special(tmp_path):
    """Things in a folder that are no files: a pipe and, for root, a device."""
    os.mkfifo(tmp_path / "pipe")
    places = [tmp_path / "pipe"]
    if os.getuid() == 0:
        try:
            os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            places.append(tmp_path / "null")
        except PermissionError:
            pass  # a container without CAP_MKNOD
    for place in tuple(places):
        link = place.with_suffix(".link")
        link.symlink_to(place)
        places.append(link)
    return places


def test_a_recording_never_takes_the_place_of_a_device_or_pipe(special, tmp_path):
    before = {place: place.lstat() for place in tmp_path.iterdir()}
    for place in special:
        with pytest.raises(UsageError, match="is no file"):
            check_output(place, force=True)
        with pytest.raises(StoreError, match="is no file"):
            save_session(Session(), "recording", place)
    assert {place: place.lstat().st_ino for place in tmp_path.iterdir()} == {
        place: was.st_ino for place, was in before.items()
    }
    assert all(stat.S_IFMT(place.lstat().st_mode) == stat.S_IFMT(before[place].st_mode)
               for place in before)  # fmt: skip


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there/r.gpcf", tmp_path / "link"
    link.symlink_to(target)
    for text in ("first", "second"):
        check_output(link, force=True)
        assert save_session(Session(), text, link) == len(text)
        assert link.is_symlink()
        assert target.read_text() == text
    with whole_file(link) as out:
        out.write("third")
    assert (link.is_symlink(), target.read_text()) == (True, "third")
    assert list((tmp_path / "there").iterdir()) == [target]
    target.unlink()
    with pytest.raises(UsageError, match="exists"):  # a link to nowhere is something too
        check_output(link, force=False)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("", UsageError),
        ("missing/r.gpcf", UsageError),
        ("file/r.gpcf", UsageError),
        ("loop", UsageError),
        ("x" * 256, UsageError),
        ("\u2588" * 90, UsageError),
        ("y/" * 3000, UsageError),
        ("/proc/gpucorrelate-no-such-file", StoreError),
    ],
    ids=lambda one: str(one)[:12],
)
def test_a_place_that_cannot_be_written_is_found_out_before(tmp_path, place, error):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error):
        check_output(tmp_path / place, force=True)
    with pytest.raises(error):
        check_place(tmp_path / place)
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_of_255_bytes_can_be_written(tmp_path):
    path = tmp_path / ("\u2588" * 85)
    check_output(path, force=False)
    save_session(Session(), "recording", path)
    assert path.read_text() == "recording"


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
