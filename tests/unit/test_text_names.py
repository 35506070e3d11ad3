# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator.report import names

ANY = st.text(st.characters(exclude_categories=()), max_size=60)  # surrogates too


@given(ANY)
def test_what_is_safe_holds_nothing_a_terminal_acts_on(text):
    shown = names.safe(text)
    assert shown.isprintable()
    assert names.safe(shown) == shown


def test_escape_sequences_and_turned_text_are_written_out():
    assert names.safe("a\x1b[2Jb") == "a\\x1b[2Jb"
    assert names.safe("\u202egnp\u2066") == "\\u202egnp\\u2066"
    assert names.safe("\udc80\U000e0001") == "\\udc80\\U000e0001"
    assert names.safe("two\nlines\t\x9b") == "two\\x0alines\\x09\\x9b"
    assert names.safe("e\u0301" + "\u0300" * 3) == "e\\u0301" + "\\u0300" * 3
    assert names.safe("日本 é") == "日本 é"


@given(ANY, st.integers(0, 40))
def test_a_cut_text_fits(text, width):
    assert names.width_of(names.clip(text, width)) <= width
    assert names.width_of(names.clip_middle(text, width)) <= width


@given(ANY, st.integers(1, 40))
def test_a_padded_text_is_as_wide_as_asked(text, width):
    assert names.width_of(names.pad(text, width)) == width
    assert names.width_of(names.rjust(text, width)) == width


@given(st.lists(ANY, max_size=8), st.integers(4, 60))
def test_wrapped_lines_fit_and_lose_nothing(items, width):
    lines = names.wrap_items(items, width)
    assert all(names.width_of(line) <= width for line in lines)
    if all(names.width_of(names.safe(item)) < width for item in items):
        # Items hold blanks and commas of their own, so compare without them.
        squeezed = "".join("".join(lines).split()).replace(",", "")
        assert squeezed == "".join("".join(map(names.safe, items)).split()).replace(",", "")


def found(wanted: str, ids: list[str]) -> list[str]:
    """Those of several ids, each of another request, that are meant."""
    return [ids[at] for at in names.match_ids(wanted, [[one] for one in ids])]


def test_ids_cut_in_a_list_can_be_pasted_back():
    ids = [f"chatcmpl-00000000{i:04d}77b21e4b6f9d0a5c3e2f1b4d" for i in range(50)]
    shown = names.short_ids(ids, 20)
    assert all(names.width_of(one) <= 20 for one in shown)
    assert len(set(shown)) == len(ids)
    for one, cut in zip(ids, shown, strict=True):
        assert found(cut, ids) == [one]


@given(st.lists(ANY, min_size=1, max_size=10, unique=True), st.integers(6, 30))
def test_what_a_list_shows_finds_its_request(ids, width):
    for one, cut in zip(ids, names.short_ids(ids, width), strict=True):
        if names.CUT in cut and cut not in ids:
            assert one in found(cut, ids)


def test_an_id_is_found_by_itself_its_beginning_or_a_pattern():
    ids = ["a", "ab", "ab[1]", "b*"]
    assert found("a", ids) == ["a"]
    assert found("ab[1]", ids) == ["ab[1]"]
    assert found("b", ids) == ["b*"]
    assert found("a*", ids) == ["a", "ab", "ab[1]"]
    assert found("x", ids) == []
    assert found("", ids) == []


def test_of_several_readings_of_an_id_the_closest_counts():
    ids = [
        ["cmpl-job-1-0", "cmpl-job-1-0-ab", "job-1"],
        ["cmpl-job-11-0", "cmpl-job-11-0-cd", "job-11"],
        ["chatcmpl-job", "chatcmpl-job-ef"],
    ]
    for wanted, places in (
        ("job-1", [0]),  # as it is
        ("cmpl-job-11-0-cd", [1]),
        ("ab", [0]),  # between dashes
        ("job", [0, 1, 2]),
        ("cmpl-job-1", [0]),
        ("chatcmpl-j", [2]),  # the beginning
        ("job-", [0, 1]),
        ("*-0", [0, 1]),
        ("job-2", []),
    ):
        assert names.match_ids(wanted, ids) == places, wanted


def test_of_many_names_it_is_said_how_many_are_not_named() -> None:
    assert names.named([]) == ""
    assert names.named(list("abcd")) == "a, b, c, d"
    assert names.named(list("abcdefgh")) == "a, b, c, d and 4 more"
    assert names.named(list("abc"), 2) == "a, b and 1 more"
