# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import itertools
import json as std
from dataclasses import replace
from pathlib import Path

import pytest

from gpucorrelate.correlator.report import json
from gpucorrelate.correlator.report.values import Actor, Category, Evidence, PhaseName
from tests.unit import report_samples as samples


def through_json(document):
    out = io.StringIO()
    assert json.write_lines([document], out) == 1
    assert out.getvalue().count("\n") == 1
    return std.loads(out.getvalue())


def test_a_request_holds_what_is_documented():
    document = through_json(json.request_to_dict(samples.request()))
    for key in (
        "request_id", "arrival_ns", "end_ns", "wall_ns", "tokens_in", "tokens_out", "ttft_ns",
        "phases", "segments", "ledger",
    ):  # fmt: skip
        assert key in document
    for segment in document["segments"]:
        assert {"start_ns", "end_ns", "category", "actor", "cause", "evidence"} <= set(segment)


def test_segments_tile_the_request_exactly():
    document = through_json(json.request_to_dict(samples.request()))
    for name, end_ns in (("segments", "end_ns"), ("ttft_segments", "first_token_ns")):
        segments = document[name]
        assert segments[0]["start_ns"] == document["arrival_ns"]
        assert segments[-1]["end_ns"] == document[end_ns]
        for one, following in itertools.pairwise(segments):
            assert one["end_ns"] == following["start_ns"]
    lengths = [one["end_ns"] - one["start_ns"] for one in document["segments"]]
    assert sum(lengths) == document["wall_ns"]
    assert document["ttft_ns"] == document["first_token_ns"] - document["arrival_ns"]


def test_unknown_is_null():
    bare = replace(
        samples.request(), tokens_in=None, cached_tokens=None, first_token_ns=None,
        ttft_segments=(), internal_id="",
    )  # fmt: skip
    document = through_json(json.request_to_dict(bare))
    for key in ("tokens_in", "cached_tokens", "first_token_ns", "ttft_ns", "internal_id"):
        assert document[key] is None
    assert document["segments"][0]["slack_ns"] is None
    assert document["segments"][0]["cause"] is None
    row = through_json(json.request_row_to_dict(samples.request_row(1, ttft_ns=None)))
    assert row["ttft_ns"] is None
    summary = through_json(json.summary_to_dict(samples.summary(ttft_ns=(), itl_ns=())))
    assert summary["ttft_ns"] == {"n": 0, "p50": None, "p90": None, "p99": None, "max": None}


def test_every_actor_named_is_described_once():
    document = through_json(json.request_to_dict(samples.request()))
    described = [(one["label"], one["tid"]) for one in document["actors"]]
    assert len(described) == len(set(described))
    used = {(one["actor"], one["tid"]) for one in document["segments"]}
    used |= {(one["waiter"], one["tid"]) for one in document["waits"]}
    used |= {(c["actor"], c["tid"]) for one in document["waits"] if (c := one["cause"])["actor"]}
    assert used <= set(described)


def test_equal_actors_that_are_different_objects_are_one():
    whole = samples.request()
    again = [replace(one, actor=replace(one.actor)) for one in whole.segments]
    document = json.request_to_dict(replace(whole, segments=tuple(again)))
    assert len(document["actors"]) == len(json.request_to_dict(whole)["actors"])


def test_short_lived_actors_are_not_mixed_up():
    # Labels are looked up by identity, and an identity is used again once its object is gone.
    whole = samples.request()
    segments = (
        replace(one, actor=Actor(i, i, "", "", f"p{i}")) for i, one in enumerate(whole.segments)
    )
    # A generator, so that no segment lives longer than it takes to write it.
    short = replace(whole, segments=segments, waits=(), ttft_segments=())  # type: ignore[arg-type]
    document = json.request_to_dict(short)
    labels = [one["actor"] for one in document["segments"]]
    assert labels == [f"p{i}/{i}" if i else "p0" for i in range(len(labels))]


def test_a_line_of_the_ledger_is_bad_only_where_something_is():
    clean = through_json(json.request_to_dict(samples.request()))["ledger"]
    assert clean["clean"]
    assert not any(line["bad"] for line in clean["lines"])
    lossy = replace(samples.request(), ledger=samples.LOSSY)
    ledger = through_json(json.request_to_dict(lossy))["ledger"]
    assert not ledger["clean"]
    assert [line["count"] for line in ledger["lines"] if line["bad"]] == [1_204, 17]


def test_numbers_beyond_53_bits_are_text():
    document = through_json(json.request_to_dict(samples.request()))
    assert document["checks"][0]["hash"] == "fedcba9876543210"


def test_evidence_comes_with_its_record():
    whole = samples.request()
    record = Evidence("wait", 1, 2, 3, "futex 0x7f00 op 9")
    first = replace(whole.segments[0], evidence=(record,), slack_ns=7)
    document = json.request_to_dict(replace(whole, segments=(first, *whole.segments[1:])))
    segment = document["segments"][0]
    assert segment["evidence"] == [
        {"kind": "wait", "start_ns": 1, "end_ns": 2, "tid": 3, "note": "futex 0x7f00 op 9"}
    ]
    assert segment["slack_ns"] == 7


def test_hostile_ids_stay_one_line_of_json():
    evil = 'a"\n\x1b[2J\u202e\udc80'
    document = through_json(json.request_to_dict(samples.request(evil)))
    assert document["request_id"] == evil


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (json.step_to_dict, samples.step()),
        (json.step_row_to_dict, samples.step_row(3)),
        (json.request_row_to_dict, samples.request_row(3)),
        (json.summary_to_dict, samples.summary()),
    ],
    ids=["step", "step row", "request row", "summary"],
)
def test_other_documents_say_what_they_are(make, value):
    document = through_json(make(value))
    assert document["schema"].startswith("gpucorrelate.")
    assert document["schema"].endswith(".v1")


def test_a_step_tiles_and_a_summary_adds_up():
    step = through_json(json.step_to_dict(samples.step()))
    assert sum(s["end_ns"] - s["start_ns"] for s in step["segments"]) == step["wall_ns"]
    summary = through_json(json.summary_to_dict(samples.summary()))
    assert sum(summary["by_phase"].values()) == sum(summary["by_category"].values())
    assert summary["ttft_ns"]["n"] == 50


def test_lines_are_written_as_they_come():
    out = io.StringIO()

    def documents():
        for i in range(3):
            assert out.getvalue().count("\n") == i
            yield {"i": i}

    assert json.write_lines(documents(), out) == 3


def test_every_key_is_documented():
    page = (Path(__file__).parents[2] / "docs/report.md").read_text(encoding="utf-8")
    request = json.request_to_dict(samples.request())
    documents = [request, *(request[key][0] for key in ("segments", "phases", "waits", "tokens"))]
    documents += [request["checks"][0], request["actors"][0], request["ledger"]]
    documents += [json.step_to_dict(samples.step()), json.summary_to_dict(samples.summary())]
    for document in documents:
        for key in document:
            assert f"`{key}`" in page or f"`{key}[]`" in page, key
    for name in (*Category, *PhaseName):
        assert f"| `{name}` |" in page
