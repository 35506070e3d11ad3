# SPDX-License-Identifier: Apache-2.0
"""Text unpacked ahead of who reads it: the same bytes, the same errors, and no thread left."""

from __future__ import annotations

import gzip
import io
import random
import threading

import pytest

from gpucorrelate.probes.importers.ahead import Ahead

TEXT = random.Random(1).randbytes(3_000_000) + b"x" * 3_000_000


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "gunzip"]


def read(ahead: Ahead, size: int) -> bytes:
    found = b""
    while piece := ahead.read1(size):
        assert len(piece) <= size
        found += piece
    assert ahead.read1(size) == b""
    return found


@pytest.mark.parametrize("size", [7919, 1 << 20])
def test_the_text_comes_whole(size: int) -> None:
    ahead = Ahead(io.BytesIO(gzip.compress(TEXT, 1)))
    assert read(ahead, size) == TEXT
    ahead.close()
    assert not threads()


def test_who_stops_reading_leaves_no_thread_behind() -> None:
    ahead = Ahead(io.BytesIO(gzip.compress(TEXT, 1)))
    assert ahead.read1(10) == TEXT[:10]
    ahead.close()
    assert not threads()


@pytest.mark.parametrize("spoil", ["cut off", "damaged"])
def test_what_is_wrong_comes_behind_all_that_is_good(spoil: str) -> None:
    packed = gzip.compress(TEXT, 1)
    # The last eight bytes are the checksum and the length.
    packed = packed[:-100] if spoil == "cut off" else packed[:-8] + b"\0" * 8
    ahead = Ahead(io.BytesIO(packed))
    found = b""
    wrong = EOFError if spoil == "cut off" else gzip.BadGzipFile
    with pytest.raises(wrong):
        while piece := ahead.read1(1 << 16):
            found += piece
    assert TEXT.startswith(found)
    assert len(found) > len(TEXT) - 1_000_000
    with pytest.raises(wrong):
        ahead.read1(1)
    ahead.close()
    assert not threads()


def test_what_is_no_gzip_file_says_so() -> None:
    ahead = Ahead(io.BytesIO(b"\x1f\x8bnothing of the kind"))
    with pytest.raises((gzip.BadGzipFile, EOFError)):
        ahead.read1(1)
    ahead.close()
