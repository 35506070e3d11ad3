# SPDX-License-Identifier: Apache-2.0
"""``--redact``: no id of a request in any document, and one hash for each in all of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator.report.redact import RedactedRun, Redactor, key_of
from gpucorrelate.correlator.report.values import Category
from tests.unit import report_samples as samples
from tests.unit import test_requests as one_request
from tests.unit.synth import Recording
from tests.unit.test_cli_reports import save

_HASH = re.compile(r"id-[0-9a-f]{12}")
#: What stands in place of ``x-1`` in that recording: an id that means somebody.
_SECRET = "alice-smith-7"
_ANOTHER = "bob/1"


class _Named(Recording):
    """The same rows with another id."""

    name = _SECRET

    def add(self, kind_name: str, by: int = 2, /, **values: int | str) -> Recording:
        named = {
            column: value.replace("x-1", self.name) if isinstance(value, str) else value
            for column, value in values.items()
        }
        return super().add(kind_name, by, **named)


class _Other(_Named):
    name = _ANOTHER


@pytest.fixture(params=[_Named, _Other])
def secret(request, monkeypatch, tmp_path):
    """A recording whose ids mean somebody; the id, and the file."""
    monkeypatch.setattr(one_request, "Recording", request.param)
    return request.param.name, save(one_request.recording(12), tmp_path / "r.gpcf")


_DOCUMENTS = [
    ["report"],
    ["report", "--format", "json"],
    ["report", "--slowest", "1"],
    ["report", "--slowest", "1", "--format", "json"],
    ["report", "--all"],
    ["report", "--step", "1"],
    ["report", "--step", "1", "--format", "json"],
    ["requests"],
    ["requests", "--format", "json"],
]


@pytest.mark.parametrize("words", _DOCUMENTS, ids=" ".join)
def test_no_document_has_an_id(run, secret, words):
    name, file = secret
    code, plain, _ = run(*words, file)
    assert code == 0
    code, out, err = run(*words, "--redact", file)
    assert code == 0
    assert name not in out + err
    if name in plain:
        assert _HASH.search(out)
    if words[-1] == "json" or "--all" in words:  # text fits what is in it, so it differs in more
        blank = re.compile(rf"{re.escape(name)}(-0(-ab)?)?|{_HASH.pattern}")
        assert blank.sub("", out) == blank.sub("", plain)


@pytest.mark.parametrize("form", ["perfetto", "folded", "speedscope"])
def test_no_drawing_has_an_id(run, secret, tmp_path, form):
    if form == "perfetto":
        pytest.importorskip("perfetto")
    name, file = secret
    plain, out = tmp_path / "plain", tmp_path / "out"
    assert run("report", "--format", form, "-o", plain, file)[0] == 0
    assert run("report", "--format", form, "--redact", "-o", out, file)[0] == 0
    assert out.stat().st_size
    assert name.encode() not in out.read_bytes()
    if name.encode() in plain.read_bytes():
        assert re.search(_HASH.pattern.encode(), out.read_bytes())


def test_files_are_not_named_for_ids_either(run, secret, tmp_path):
    name, file = secret
    folder = tmp_path / "out"
    assert run("report", "--all", "--redact", "-o", f"{folder}/", file)[0] == 0
    (written,) = (folder / "requests").iterdir()
    assert _HASH.fullmatch(written.stem)
    for path in (written, folder / "summary.json"):
        assert name not in path.read_text()


def test_an_id_has_one_hash_in_all_reports_of_a_recording(run, secret):
    name, file = secret
    row = json.loads(run("requests", "--redact", "--format", "json", file)[1])
    found = [row["request_id"], row["internal_id"], *row["aliases"]]
    assert len(set(found)) == len(found) == 3
    assert all(_HASH.fullmatch(one) for one in found)
    # By the real id, a part of it, or a hash.
    for wanted in (f"{name}-0", f"{name}-*", *found):
        told = run("report", "--redact", "--format", "json", "--request", wanted, file)[1]
        assert json.loads(told)["request_id"] == row["request_id"]
        told = run("requests", "--redact", "--format", "json", "--id", wanted, file)[1]
        assert json.loads(told) == row
    (step,) = json.loads(run("report", "--step", 1, "--redact", "--format", "json", file)[1])[
        "request_ids"
    ]
    assert step in found


def test_another_recording_has_other_hashes():
    captures = [one_request.recording(n).capture() for n in (3, 4)]
    assert key_of(captures[0]) != key_of(captures[1])
    assert key_of(captures[0]) == key_of(one_request.recording(3).capture())
    rows = [RedactedRun.of(capture).requests()[0] for capture in captures]
    assert rows[0].request_id != rows[1].request_id


def test_ids_in_running_text_go_too_and_words_stay():
    redactor = Redactor(b"key", ["cmpl-12ab", "odd id/7", "1", "decode"])
    shown = redactor.id("cmpl-12ab")
    report = replace(
        samples.request(),
        request_id="cmpl-12ab",
        aliases=("1", "odd id/7"),
        status="failed: request cmpl-12ab of 'odd id/7' ended with code 1",
    )
    done = redactor.value(report)
    assert (done.request_id, done.aliases) == (shown, (redactor.id("1"), redactor.id("odd id/7")))
    assert (
        done.status == f"failed: request {shown} of '{redactor.id('odd id/7')}' ended with code 1"
    )
    assert done.segments == report.segments, "phases are no ids, whatever ids there are"
    assert all(isinstance(one.category, Category) for one in done.segments)


@given(st.lists(st.text(min_size=1, max_size=30), max_size=20), st.text(max_size=60))
def test_hashes_are_of_one_shape_and_never_two_for_one(ids, text):
    redactor = Redactor(b"key", ids)
    for one in ids:
        assert _HASH.fullmatch(redactor.id(one))
        assert redactor.value(one) == redactor.id(one)
        if len(one) >= 6 and one not in "id-":
            assert one not in redactor.value(f"{text} {one} {text}").replace(redactor.id(one), "")
    assert len({redactor.id(one) for one in ids}) == len(set(ids))
