# SPDX-License-Identifier: Apache-2.0
"""Pages as files: what stands in them, without a browser."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from gpucorrelate.cli import main
from gpucorrelate.correlator.report.html import page, streams
from gpucorrelate.correlator.report.html.pack import Columns, Document, block, to_json
from gpucorrelate.correlator.report.html.spread import Bands
from tests.browser import recordings

HOSTILE = recordings.Hostile.ID


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    return recordings.engine(tmp_path_factory.mktemp("html") / "engine.gpcf", requests=6)


def _page(recording: Path, target: Path, *options: str) -> str:
    command = ["report", *options, "--format", "html", "-o", str(target), str(recording)]
    assert main.run(command) == 0
    return target.read_text()


def _unpacked(text: str) -> list[str]:
    """Headers of all blocks of a page."""
    found = []
    for packed in re.findall(r'<script type="text/plain" id="\w+">([^<]*)</script>', text):
        raw = zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS)
        length = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + length].decode())
    return found


@pytest.mark.parametrize("options", [(), ("--slowest", "2"), ("--step", "3")])
def test_redact_leaves_no_id_anywhere_in_the_page(recording, tmp_path, options):
    plain = _page(recording, tmp_path / "plain.html", *options)
    redacted = _page(recording, tmp_path / "redacted.html", "--redact", *options)
    assert "cmpl-" in "".join([plain, *_unpacked(plain)])
    said = "".join([redacted, *_unpacked(redacted)])
    assert "cmpl-" not in said
    # It is the same page otherwise: all its blocks, all its requests.
    assert len(_unpacked(redacted)) == len(_unpacked(plain))


def _verdict(text: str) -> str:
    found = re.search(r'<p class="verdict">(.*?)</p>', text)
    assert found is not None
    return found[1]


def test_a_recording_that_is_not_all_there_is_not_spoken_of_as_if_it_were(recording, tmp_path):
    assert "may be wrong" not in _verdict(_page(recording, tmp_path / "whole.html"))
    data = bytearray(recording.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    damaged = tmp_path / "damaged.gpcf"
    damaged.write_bytes(data)
    said = _verdict(_page(damaged, tmp_path / "damaged.html"))
    assert said.startswith("The recording lost something or does not match, so what follows may")


def test_the_policy_allows_exactly_the_script_and_the_styles_that_are_there(recording, tmp_path):
    text = _page(recording, tmp_path / "page.html")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    for kind, found in (
        ("script-src", r"<script>(.*?)</script>"),
        ("style-src", r"<style>(.*?)</style>"),
    ):
        (inline,) = re.findall(found, text, flags=re.DOTALL)
        assert f"{kind} {page._hashed(inline)}" in policy[1]


def test_the_same_recording_makes_the_same_page(recording, tmp_path):
    one = _page(recording, tmp_path / "one.html")
    assert one == _page(recording, tmp_path / "two.html")


def test_no_text_ends_the_element_that_holds_it():
    text = to_json({"id": HOSTILE})
    assert "<" not in text
    assert json.loads(text) == {"id": HOSTILE}


def test_every_part_of_the_script_is_in_the_package_and_used():
    folder = Path(page.__file__).parent / "assets"
    there = {one.name for one in folder.iterdir() if one.suffix == ".js"}
    assert there == set(page._SCRIPTS)
    # An element's end inside it would end the script.
    assert "</script" not in page.script()


def test_columns_come_back_as_they_went_in():
    columns: Columns = {
        "small": [0, 255], "large": [0, 1 << 40], "signed": [-1, 7], "real": np.array([0.5, -2.0]),
        "none": np.array([], np.int64),
    }  # fmt: skip
    raw = zlib.decompress(base64.b64decode(block([Document({"what": "x"}, columns)])), -15)
    length = int.from_bytes(raw[:4], "little")
    (head,) = json.loads(raw[4 : 4 + length])
    base = -(-(4 + length) // 8) * 8
    types = {"u1": "<u1", "u2": "<u2", "u4": "<u4", "f8": "<f8"}
    for name, values in columns.items():
        kind, at, many = head["columns"][name]
        found = np.frombuffer(raw, types[kind], many, base + at)
        assert found.tolist() == list(values)
    with pytest.raises(ValueError, match="too large"):
        block([Document({}, {"huge": [-1, (1 << 53) + 1]})])


def test_busy_time_of_a_stream_is_that_of_every_nanosecond():
    chance = random.Random(3)
    for _ in range(50):
        start = np.array([chance.randrange(-20, 120) for _ in range(12)], np.int64)
        end = start + np.array([chance.randrange(0, 30) for _ in range(12)], np.int64)
        edges = np.array(sorted({0, 100, *(chance.randrange(1, 100) for _ in range(5))}), np.int64)
        runs = np.zeros(200, bool)
        for a, b in zip(start, end, strict=True):
            runs[a + 50 : b + 50] = True
        wanted = [int(runs[a + 50 : b + 50].sum()) for a, b in itertools.pairwise(edges.tolist())]
        assert streams._busy_ns(start, end, edges).tolist() == wanted


def test_a_histogram_has_room_for_values_that_no_logarithm_has():
    values = sorted([0] * 40 + [1_000_000 + k * 10_000 for k in range(60)])
    made = Bands(values).to_dict()["histogram"]
    counts, edges = made["counts"], made["edges_ns"]
    assert sum(counts) == len(values)
    assert counts[0] == 40
    assert edges[0] == 0
    # The others have most of the bars.
    assert sum(1 for count in counts[1:] if count) > 3
