# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucorrelate.correlator.report import digest, text, verdict
from gpucorrelate.correlator.report.names import width_of
from gpucorrelate.correlator.report.values import (
    Actor,
    Category,
    Cause,
    Ledger,
    LedgerLine,
    PhaseName,
    RequestReport,
    TokenCheck,
    Wait,
)
from tests.golden.compare import same_as_golden
from tests.unit import report_samples as samples

WIDE, NARROW = text.TextOptions(width=100), text.TextOptions(width=80)


def rendered(render, value, options=WIDE, **more) -> str:
    out = io.StringIO()
    render(value, out, options, **more)
    return out.getvalue()


def empty_request() -> RequestReport:
    """What is left of a request of which only an abort was seen."""
    return RequestReport(
        request_id="r", internal_id="", arrival_ns=5, end_ns=5, status="aborted", tokens_in=None,
        tokens_out=None, cached_tokens=None, preemptions=None, first_token_ns=None, phases=(),
        segments=(), ttft_segments=(), waits=(), tokens=(), checks=(), boundaries=(),
        ledger=Ledger(), verdict=verdict.of((), ()),
    )  # fmt: skip


def lossy_request() -> RequestReport:
    """Lost events, differing tokens, no first token, a client that went away."""
    whole = samples.request()
    doubts = ("batches missing from the recording",)
    checks = (TokenCheck("engine", 32, 1), TokenCheck("frontend", 31, 2))
    return replace(
        whole, first_token_ns=None, ttft_segments=(), checks=checks, ledger=samples.LOSSY,
        status="aborted: the client went away", tokens_in=None, cached_tokens=None,
        preemptions=3, verdict=verdict.of(whole.segments, whole.waits, doubts),
    )  # fmt: skip


REQUESTS = {
    "request-100.txt": (samples.request(), WIDE),
    "request-80.txt": (samples.request(), NARROW),
    "request-60.txt": (samples.request(), text.TextOptions(width=60)),
    "request-ascii.txt": (samples.request(), text.TextOptions(width=80, unicode=False)),
    "request-lossy.txt": (lossy_request(), NARROW),
    "request-one-token.txt": (samples.request(tokens=1), NARROW),
    "request-empty.txt": (empty_request(), NARROW),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_look_as_they_did(name):
    value, options = REQUESTS[name]
    shown = rendered(text.render_request, value, options)
    assert max(map(width_of, shown.splitlines())) <= options.width
    same_as_golden(name, shown)


@pytest.mark.parametrize("options", [WIDE, NARROW], ids=["100", "80"])
def test_steps_lists_and_summaries_look_as_they_did(options):
    rows = [samples.request_row(i) for i in range(4)]
    rows.append(samples.request_row(9, status="aborted", ttft_ns=None, request_id="x" * 200))
    steps = [samples.step_row(i) for i in range(3)]
    steps.append(samples.step_row(1000, status="error", worker_ns=None))
    shown = "\n".join(
        [
            rendered(text.render_step, samples.step(), options),
            rendered(text.render_requests, rows, options, of=20, phase=PhaseName.QUEUE),
            rendered(text.render_steps, steps, options, of=20),
            rendered(text.render_summary, samples.summary(), options),
            rendered(text.render_summary, samples.summary(ledger=samples.LOSSY), options),
        ]
    )
    assert max(map(width_of, shown.splitlines())) <= options.width
    same_as_golden(f"others-{options.width}.txt", shown)


def test_a_busy_request_fits_a_screen():
    assert rendered(text.render_request, samples.request()).count("\n") <= 45


def many_causes() -> RequestReport:
    """The sample with waits of as many long-named threads as a busy engine has."""
    whole = samples.request()
    first = whole.first_token_ns
    assert first is not None
    waits = []
    for i in range(12):
        actor = Actor(5000 + i, 4711, "", f"ThreadPoolExecutor-{i}_long_name", "EngineCore")
        start = (whole.arrival_ns if i % 2 else first) + i
        waits.append(
            Wait(start, start + 9 * samples.MS - i, actor, "queue read",
                 Cause("message from", actor, "while serialise"), PhaseName.QUEUE)
        )  # fmt: skip
    phases = list(PhaseName)[:9]
    ttft = [replace(one, phase=phases[i % 9]) for i, one in enumerate(whole.ttft_segments)]
    return replace(whole, waits=tuple(waits), ttft_segments=tuple(ttft))


def test_many_long_causes_fit_a_screen_and_say_what_was_left_out():
    shown = rendered(text.render_request, many_causes())
    assert shown.count("\n") <= 45
    for part in (
        "to the first token", "after the first token", "longest gap", "slowest out", "unknown",
        "not covered", "boundaries", "ledger", "token ids", "more causes, no wait longer than",
    ):  # fmt: skip
        assert part in shown
    shown = rendered(text.render_request, many_causes(), text.TextOptions(width=100, top=9))
    assert shown.count("ThreadPoolExecutor-11_long_name") == 2  # asked for more than a screen


LONG_NOTE = "ebpf.sched: " + " ".join(f"word{i}" for i in range(60))


@pytest.mark.parametrize("options", [WIDE, NARROW], ids=["100", "80"])
def test_what_was_not_covered_is_shown_in_full_and_wrapped(options):
    ledger = replace(samples.CLEAN, missing=(LONG_NOTE, "GPU: none"))
    for render, value in (
        (text.render_summary, samples.summary(ledger=ledger)),
        (text.render_step, replace(samples.step(), ledger=ledger)),
    ):
        shown = rendered(render, value, options)
        assert f"{LONG_NOTE}; GPU: none" in " ".join(shown.split())
        assert max(map(width_of, shown.splitlines())) <= options.width
    shown = rendered(text.render_request, replace(samples.request(), ledger=ledger), options)
    assert "not covered ebpf.sched, GPU (why: gpucorrelate report)" in shown


def test_a_recording_of_a_month_is_called_out():
    day = 86_400 * 10**9
    sane, absurd = (samples.summary(end_ns=samples.ARRIVAL + days * day) for days in (31, 400))
    assert "cannot all be right" not in rendered(text.render_summary, sane)
    said = "these times cannot all be right: 400 days between the first and the last"
    assert said in rendered(text.render_summary, absurd).splitlines()[:4]


@pytest.mark.parametrize(
    ("verb", "actor", "says"),
    [
        ("message from", samples.WORKER, "message from Worker_TP0/4720"),
        ("probably held by", samples.CORE, "probably held by EngineCore/4711"),
        ("was on a CPU, so probably held the interpreter lock for which waits", samples.API,
         "was on a CPU, so probably held the interpreter lock for which waits APIServer/4700"),
        ("polling a queue; the write was not recorded", None,
         "polling a queue; the write was not recorded (APIServer/4700 send)"),
        ("records of waits were lost then", None, "records of waits were lost then"),
        ("ran instead:", samples.HOG, "stress-ng-cpu/9123 (not traced) ran (APIServer/4700 send)"),
        ("ran instead:", None, "ran instead: (APIServer/4700 send)"),
    ],
)  # fmt: skip
def test_causes_read_as_sentences(verb, actor, says):
    whole = samples.request()
    wait = replace(whole.waits[0], waiter=samples.API, cause=Cause(verb, actor),
                   phase=PhaseName.SEND)  # fmt: skip
    shown = rendered(text.render_request, replace(whole, waits=(wait,)))
    assert says in " ".join(shown.split())


def test_waits_for_the_interpreter_lock_are_called_as_their_category():
    wait = replace(samples.request().waits[1], kind="interpreter lock")
    shown = rendered(text.render_request, replace(samples.request(), waits=(wait,)))
    assert "waits  gil 7.40 ms: held by" in shown


@pytest.mark.parametrize("block", ["to the first token", "after the first token"])
def test_the_shares_of_a_block_add_to_a_hundred(block):
    shown = rendered(text.render_request, samples.request())
    lines = shown.split(f"\n{block}")[1].split("\n  waits")[0].splitlines()[1:]
    left = [re.search(r"([\d.]+)%", line[:50]) for line in lines]
    right = [re.search(r"([\d.]+)%", line[50:].replace("<0.1", "0.0")) for line in lines]
    for column in (left, right):
        assert sum(round(float(m[1]) * 10) for m in column if m) == 1000


def test_a_stall_is_named_among_many_ordinary_waits():
    shown = rendered(text.render_request, samples.request(tokens=400))
    assert "preempted 28.0 ms: stress-ng-cpu/9123 (not traced) ran (" in shown
    assert "399 in " in shown


def test_the_lock_holder_is_named_with_what_it_did():
    line = "futex 7.40 ms: held by EngineCore/4711 process_output_sockets while `schedule`"
    assert line in rendered(text.render_request, samples.request())


def test_segments_that_do_not_add_up_are_called_out():
    whole = samples.request()
    holed = replace(whole, segments=whole.segments[:3] + whole.segments[4:])
    assert "DO NOT ADD UP" in rendered(text.render_request, holed)
    assert "DO NOT ADD UP" in rendered(
        text.render_request, replace(whole, end_ns=whole.end_ns + 1)
    )
    assert "DO NOT ADD UP" not in rendered(text.render_request, whole)


def test_a_loss_stands_out_and_a_clean_ledger_says_so():
    assert "nothing lost" in rendered(text.render_request, samples.request())
    shown = rendered(text.render_request, lossy_request())
    assert "LOST/WRONG  waits lost in the kernel's rings 1,204" in shown
    assert "nothing lost" not in shown


def test_different_tokens_stand_out():
    shown = rendered(text.render_request, lossy_request())
    assert "TOKEN IDS   DIFFER: engine 32 (0000000000000001), frontend 31" in shown


def test_unknown_is_not_zero():
    shown = rendered(text.render_request, empty_request())
    assert "TTFT ?" in shown
    assert "tokens ? in (? cached), ? out" in shown
    assert "preemptions ?" in shown


def test_color_only_where_asked_for():
    plain = rendered(text.render_request, samples.request())
    assert "\x1b" not in plain
    colored = rendered(text.render_request, samples.request(), text.TextOptions(color=True))
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_ascii_output_is_ascii():
    rendered(text.render_request, samples.request(), text.TextOptions(unicode=False)).encode(
        "ascii"
    )


EVIL = "\x1b]0;owned\x07\x1b[2J\n\r\u202e\x9b31m" + "x" * 200


def hostile(evil: str) -> RequestReport:
    """The sample with a hostile string in every place that has room for one."""
    whole = samples.request(evil)
    actor = Actor(1, 2, evil, evil, evil, traced=False)
    segments = tuple(
        replace(one, actor=actor, span=evil, cause=Cause(evil, actor, evil))
        for one in whole.segments
    )
    waits = tuple(
        replace(one, waiter=actor, kind=evil, cause=Cause(evil, actor, evil))
        for one in whole.waits
    )
    phases = tuple(replace(one, start_anchor=evil, end_anchor=evil) for one in whole.phases)
    ledger = Ledger((LedgerLine(evil, 3, evil, check=True), LedgerLine(evil, 4)), (evil,))
    return replace(
        whole, internal_id=evil * 2, status=evil, segments=segments, waits=waits, phases=phases,
        ledger=ledger, boundaries=(evil,), checks=(TokenCheck(evil, 1, 1),),
    )  # fmt: skip


def no_controls(shown: str) -> bool:
    return all(line.isprintable() for line in shown.split("\n"))


@pytest.mark.parametrize("options", [WIDE, NARROW, text.TextOptions(width=60)])
def test_hostile_strings_do_nothing_to_the_terminal(options):
    rows = [samples.request_row(1, request_id=EVIL, status=EVIL)]
    steps = [samples.step_row(1, kind=EVIL, longest=EVIL)]
    summary = samples.summary(meta=(("model", EVIL),), actors=((EVIL, 9),))
    step = replace(samples.step(), kind=EVIL, request_ids=(EVIL,))
    for render, value in (
        (text.render_request, hostile(EVIL)),
        (text.render_requests, rows),
        (text.render_steps, steps),
        (text.render_summary, summary),
        (text.render_step, step),
    ):
        shown = rendered(render, value, options)
        assert no_controls(shown)
        assert max(map(width_of, shown.splitlines())) <= options.width


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=80), st.integers(0, 200))
def test_any_string_at_any_width_renders(evil, width):
    options = text.TextOptions(width=width)
    shown = rendered(text.render_request, hostile(evil), options)
    assert no_controls(shown)
    assert max(map(width_of, shown.splitlines())) <= max(width, 60)


def test_parts_of_a_request_are_cut_exactly():
    whole = samples.request()
    first = whole.first_token_ns
    assert first is not None
    before = digest.clip_segments(whole.segments, whole.arrival_ns, first)
    after = digest.clip_segments(whole.segments, first, whole.end_ns)
    assert digest.length(before) + digest.length(after) == whole.wall_ns
    assert digest.tiling_error(after, first, whole.end_ns) == ""
    assert sum(ns for _, ns in digest.by_phase(after)) == whole.end_ns - first
    assert sum(ns for _, ns in digest.by_category(after)) == whole.end_ns - first
    assert sum(one.length_ns for one in digest.holders(whole.segments)) == whole.wall_ns


def test_unknown_time_carries_its_reason():
    parts = digest.unknown_parts(samples.request().segments)
    assert [(part.category, part.reason) for part in parts] == [
        (Category.UNEXPLAINED, "no wait recorded"),
        (Category.UNOBSERVED, "no probe on the thread until 1234.9"),
    ]


def test_boundaries_name_a_run_of_steps_by_its_ends():
    names = [one.name for one in digest.boundaries(samples.request().phases)]
    assert names == [
        "received", "tokenising", "tokenised", "sent", "admitted", "first scheduled",
        "step 72 update end", "last output", "last byte",
    ]  # fmt: skip


@pytest.mark.parametrize(("decoding_us", "said"), [(0, False), (4_000, False), (20_000, True)])
def test_decoding_before_the_first_token_is_explained_where_it_counts(decoding_us, said) -> None:
    whole = samples.request()
    path = list(whole.ttft_segments)
    last = path[-1]
    if decoding_us:
        long = replace(last, start_ns=last.start_ns - decoding_us * 1_000)
        path = digest.clip_segments(path, path[0].start_ns, long.start_ns)
        path.append(replace(long, phase=PhaseName.DECODE))
    text_ = rendered(text.render_request, replace(whole, ttft_segments=tuple(path)))
    assert ("decode here: next steps that ran while the first token" in text_) == said
    assert "DO NOT ADD UP" not in text_
