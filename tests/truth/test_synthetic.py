# SPDX-License-Identifier: Apache-2.0
"""Simulated engines, of which every nanosecond is known, as the product reports them."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpucorrelate.correlator import clock
from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.values import Category, RequestReport
from gpucorrelate.probes.wire.frame import HEADER, MAGIC, read_frames
from tests.truth.synthetic import __main__ as command
from tests.truth.synthetic.chance import drawn
from tests.truth.synthetic.check import Score, check, check_request, correlate, simulate
from tests.truth.synthetic.loss import Lose, Sieve
from tests.truth.synthetic.machine import MS, ZERO
from tests.truth.synthetic.options import ALL, ClockOptions, DeviceOptions, Options
from tests.truth.synthetic.presets import PRESETS
from tests.truth.synthetic.truth import Truth

if TYPE_CHECKING:
    from pathlib import Path

    from gpucorrelate.correlator.report.build import Run

#: Everything at once, and much of it: what losses are tried on.
HARD = Options(
    requests=8, answer=(1, 12), ranks=2, depth=2, copier=True, flush_ns=MS, rates=ALL.scaled(8),
    device=DeviceOptions(graph=12, kernels=3, blocks=True),
)  # fmt: skip
CAPTURES, PER_TEST = 300, 25


# --- without loss ---------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, CAPTURES, PER_TEST))
def test_small_engines_are_explained_to_the_nanosecond(first: int) -> None:
    total = Score()
    for seed in range(first, first + PER_TEST):
        score = check(drawn(seed))
        assert not score.mismatches, (seed, score.mismatches[:3])
        total.compared_ns += score.compared_ns
        total.hops += score.hops
        total.by_category += score.by_category
    assert total.hops > 20 * PER_TEST
    assert len(total.by_category) >= 8
    assert max(total.by_category.values()) < 0.9 * total.compared_ns


def test_every_category_that_a_recording_can_show_is_among_them() -> None:
    total: Counter[str] = Counter()
    for seed in range(6):
        total += check(replace(HARD, seed=seed)).by_category
        total += check(replace(HARD, seed=seed, device=DeviceOptions(), depth=1)).by_category
    every = set(Category) - {
        # Nobody writes these of an engine without loss.
        Category.UNOBSERVED, Category.UNEXPLAINED, Category.GPU_EARLIER, Category.HOST,
        # These are never left unexplained: their sender or holder is known.
        Category.MESSAGE, Category.LOCK,
        Category.NETWORK, Category.IRQ, Category.THROTTLED,
    }  # fmt: skip
    assert every <= set(total)


def test_a_longer_recording_is_explained_as_well() -> None:
    options = replace(HARD, requests=150, spread_us=250_000, batch=16, rates=ALL)
    score = check(options)
    assert not score.mismatches
    assert score.stretches > 50_000


def test_what_differs_is_noticed() -> None:
    # A probe that loses one kind in a hundred and says nothing.
    for kind in ("wait", "queue_msg", "gpu_op"):
        wrong = 0
        for seed in range(4):
            options = replace(HARD, seed=seed)
            engine, recording = simulate(options, Sieve(Lose(kind, 0.05, stated=False)))
            score, truth = Score(), Truth()
            for report in correlate(recording).all_requests():
                check_request(score, report, engine, truth, lossy=True)
            wrong += score.wrong_ns
        assert wrong > 0, kind


def test_the_same_seed_makes_the_same_recording() -> None:
    options = replace(HARD, seed=5)
    assert simulate(options)[1] == simulate(options)[1]
    assert simulate(replace(options, truth=False))[1] == simulate(options)[1]
    assert simulate(replace(options, seed=6))[1] != simulate(options)[1]


# --- figures that were published -------------------------------------------------------------


def played(name: str, *, exact: bool = True, **changes: Any) -> tuple[Run, list[RequestReport]]:
    """What the product says of a preset; it has to be exact as well."""
    engine, recording = simulate(replace(PRESETS[name][1], **changes))
    run = correlate(recording)
    assert run.ledger.clean
    reports = list(run.all_requests())
    score, truth = Score(), Truth()
    for report in reports if exact else ():
        check_request(score, report, engine, truth)
    assert not score.mismatches
    return run, reports


def by_category(segments) -> Counter[str]:
    sums: Counter[str] = Counter()
    for segment in segments:
        sums[segment.category] += segment.length_ns
    return sums


def test_of_155_ms_to_the_first_token_143_are_the_devices() -> None:
    _, (report,) = played("overlap")
    sums = by_category(report.ttft_segments)
    assert report.ttft_ns == pytest.approx(155.2 * MS, abs=0.1 * MS)
    assert sums[Category.GPU] == pytest.approx(143.3 * MS, abs=0.1 * MS)
    assert sum(sums.values()) - sums[Category.GPU] == pytest.approx(11.9 * MS, abs=0.2 * MS)


def test_half_of_an_asynchronous_steps_241_ms_are_the_step_before() -> None:
    run, (report,) = played("overlap")
    assert len(report.steps) == 12
    for number in report.steps[2:-1]:
        step = run.step(number)
        assert step.wall_ns == pytest.approx(241.2 * MS, abs=0.4 * MS)
        gpu = [s for s in step.segments if s.category is Category.GPU]
        before = sum(s.length_ns for s in gpu if s.step == number - 1)
        own = sum(s.length_ns for s in gpu if s.step == number)
        assert before == pytest.approx(120 * MS, rel=0.02)
        assert own == pytest.approx(120 * MS, rel=0.02)
    kernels = run.capture.table("gpu_op")
    assert len(kernels) == pytest.approx(6_340, abs=20)


def test_a_small_prompt_on_a_big_device_takes_7_ms_and_then_4_8_a_token() -> None:
    _, (report,) = played("trace")
    assert report.ttft_ns == pytest.approx(7 * MS, rel=0.05)
    assert np.mean(report.itl_ns) == pytest.approx(4.8 * MS, rel=0.02)
    assert report.wall_ns == pytest.approx(482 * MS, rel=0.02)


def test_a_wait_of_100_ms_is_20_of_the_wakers_disk_and_80_of_its_cpu() -> None:
    _, (report,) = played("waker")
    (wait,) = [w for w in report.waits if w.length_ns > 99 * MS]
    within = [
        s for s in report.segments if s.start_ns >= wait.start_ns and s.end_ns <= wait.end_ns
    ]
    sums = by_category(within)
    assert wait.length_ns == pytest.approx(100 * MS, rel=0.001)
    assert sums[Category.DISK] == pytest.approx(20 * MS, rel=0.001)
    assert sums[Category.CPU] == pytest.approx(80 * MS, rel=0.001)
    assert {s.actor.name for s in within if s.length_ns > MS} == {"tokeniser_0"}


def test_a_call_that_returns_30_ms_after_8_ms_of_kernels_is_told_apart() -> None:
    run, (report,) = played("over-wait")
    for number in report.steps:
        sums = by_category(run.step(number).segments)
        assert sums[Category.GPU] == pytest.approx(8 * MS, rel=0.01)
        assert sums[Category.SYNC_RETURN] == pytest.approx(30 * MS, rel=0.01)


def test_a_lock_held_for_33_seconds_is_its_holders() -> None:
    _, (report,) = played("contended")
    part = report.verdict.parts[0]
    assert part.length_ns == pytest.approx(33_500 * MS, rel=0.001)
    assert part.what == "waiting for a lock, held by EngineCore/2000 executor"
    stall = report.verdict.stall
    assert stall is not None
    assert (stall.waiter.tid, stall.kind) == (2_000, "futex")


def test_long_prompts_raise_the_tail_and_a_cap_lowers_it() -> None:
    tails, slices, mixed = [], [], []
    for name, changes in (("long-prompts", {"long": 0}), ("long-prompts", {}), ("capped", {})):
        run, reports = played(name, exact=False, **changes)
        chats = sorted(r.ttft_ns or 0 for r in reports if (r.tokens_in or 0) <= 80)
        tails.append(chats[-1])
        slices.append(max(p.tokens or 0 for r in reports for p in r.phases if p.name == "mixed"))
        mixed.append(sum(step.kind == "mixed" for step in run.steps()))
    assert tails[1] > 1.5 * tails[0]
    assert tails[0] < tails[2] < tails[1]
    assert slices[1:] == [1_032, 256]
    # The cap makes more of them, and the tail is better still: their count tells little.
    assert mixed[2] > mixed[1]


# --- clocks ---------------------------------------------------------------------------------

CLOCKS = [
    ClockOptions(),
    ClockOptions(10**18, 0),
    ClockOptions(-500_000_000, 40_000),
    ClockOptions(123_456_789, -99_000, width_us=20, pairs=4),
]


@pytest.mark.parametrize("of", CLOCKS, ids=str)
def test_a_devices_clock_moves_boundaries_by_no_more_than_its_map_says(of: ClockOptions) -> None:
    device = DeviceOptions(graph=12, kernels=3)
    for seed in range(3):
        options = Options(seed=seed, device=device, depth=2, copier=True, clock=of)
        engine, recording = simulate(options)
        (read,) = [one.clock for one in engine.devices]
        assert read is not None
        score, truth = Score(within_ns=read.uncertainty_ns), Truth()
        for report in correlate(recording).all_requests():
            check_request(score, report, engine, truth)
        assert not score.mismatches
        assert score.by_category[Category.GPU] > 0.2 * score.compared_ns
        assert 0 < read.off_ns <= read.uncertainty_ns < 30_000


@pytest.mark.parametrize("of", CLOCKS, ids=str)
def test_a_devices_clock_is_found_again_in_the_recording(of: ClockOptions) -> None:
    options = Options(seed=1, device=DeviceOptions(graph=12), ranks=2, clock=of)
    engine, recording = simulate(options)
    capture = Capture.from_batches(read_frames(io.BytesIO(recording)))
    maps = clock.from_capture(capture)
    assert len(maps) == 2
    for device in engine.devices:
        assert device.clock is not None
        found = maps[device.process.stream, device.clock.name]
        moments = np.arange(ZERO, engine.end, 97_531)
        readings = np.array([device.clock.reading(int(t)) for t in moments])
        mapped = found.to_monotonic(readings)
        assert mapped.valid.all()
        assert (np.abs(mapped.ns - moments) <= mapped.uncertainty_ns).all()


# --- losses ---------------------------------------------------------------------------------


def lost(run: Run) -> dict[tuple[str, str], int]:
    """What the ledger says was lost, by hop and what."""
    lines = [line for line in run.ledger.lines if line.name.startswith("lost at ")]
    return {(line.name.removeprefix("lost at "), line.note): line.count for line in lines}


def missing(run: Run) -> int:
    (line,) = [x for x in run.ledger.lines if x.name == "batches missing from the recording"]
    return line.count


@dataclass
class Judged:
    """What became of verdicts, and of time."""

    verdicts: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    score: Score = field(default_factory=Score)

    def play(self, options: Options, *losses: Lose) -> None:
        """Play one engine with and without losses; the ledger has to tell them exactly."""
        whole = {r.request_id: r for r in correlate(simulate(options)[1]).all_requests()}
        sieve = Sieve(*losses, seed=options.seed)
        engine, recording = simulate(options, sieve)
        run = correlate(recording)
        assert missing(run) == engine.records.lost_frames
        assert lost(run) == dict(sieve.lost)
        self.lost += sum(sieve.lost.values()) + engine.records.lost_frames
        truth = Truth()
        for report in run.all_requests():
            true = whole.get(report.request_id)
            if true is None:
                self.verdicts["of an unknown name"] += 1
                continue
            self.verdicts[outcome(report, true)] += 1
            if (report.arrival_ns, report.end_ns) == (true.arrival_ns, true.end_ns):
                check_request(self.score, report, engine, truth, lossy=True)


def outcome(report: RequestReport, true: RequestReport) -> str:
    """Whether a verdict was right to be given, or to be withheld."""
    verdict = report.verdict
    if verdict.doubts:
        return "withheld"
    if verdict.parts[0].what == true.verdict.parts[0].what:
        return "right"
    return "wrong"


KINDS = (
    "wait",
    "fault",
    "queue_msg",
    "cuda_api",
    "gpu_op",
    "gpu_sync",
    "step_begin",
    "step_end",
    "step_update",
    "step_rows",
    "outputs",
    "request",
    "tokens",
    "worker_step",
    "span",
    "*",
)


@pytest.mark.parametrize("batches", [False, True], ids=["rows", "batches"])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_in_the_ledger_and_verdicts_are_right_or_withheld(
    kind: str, batches: bool
) -> None:
    judged = Judged()
    for seed in range(5):
        lose = Lose(kind, 0.2 if batches else 0.5, ZERO + 2 * MS, ZERO + 12 * MS, batches=batches)
        judged.play(replace(HARD, seed=seed), lose)
    verdicts = judged.verdicts
    assert judged.lost > 0
    assert not verdicts["wrong"]
    # So has time that is explained wrongly, and not said to be unknown; where anchors are lost,
    # legs are longer, and their paths others.
    assert judged.score.wrong_ns <= 0.08 * judged.score.compared_ns


def frames(recording: bytes) -> list[tuple[int, int]]:
    """Where each frame begins and ends."""
    found, at = [], 0
    while at < len(recording):
        magic, _, length, _ = HEADER.unpack_from(recording, at)
        assert magic == MAGIC
        found.append((at, at + HEADER.size + length))
        at = found[-1][1]
    return found


def unreadable(run: Run) -> int:
    (line,) = [x for x in run.ledger.lines if x.name == "bytes of the recording unreadable"]
    return line.count


def verdicts(run: Run, whole: Run) -> Counter[str]:
    true = {r.request_id: r for r in whole.all_requests()}
    return Counter(
        outcome(r, true[r.request_id]) for r in run.all_requests() if r.request_id in true
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_hole_in_a_recording_is_in_the_ledger(seed: int) -> None:
    recording = simulate(replace(HARD, seed=seed))[1]
    found = frames(recording)
    start, end = found[len(found) // 2][0], found[len(found) // 2 + 2][1]
    run = correlate(recording[:start] + b"?" * (end - start) + recording[end:])
    assert unreadable(run) == end - start
    assert missing(run) == 3
    assert not verdicts(run, correlate(recording))["wrong"]


@pytest.mark.parametrize("seed", range(4))
def test_a_recording_that_was_cut_off_says_so(seed: int) -> None:
    recording = simulate(replace(HARD, seed=seed))[1]
    start, end = frames(recording)[-60]
    cut = (start + end) // 2
    run = correlate(recording[:cut])
    assert unreadable(run) == cut - start
    assert any("stops in the middle" in words for words in run.ledger.missing)
    assert not verdicts(run, correlate(recording))["wrong"]


# --- the command ------------------------------------------------------------------------------


def test_the_command_writes_a_recording_and_its_truth(tmp_path: Path) -> None:
    recording, told = tmp_path / "a.gpcf", tmp_path / "a.json"
    arguments = ["--seed", "3", "--requests", "5", "--ranks", "2", "--depth", "2", "--graph", "9"]
    assert command.main([*arguments, "-o", str(recording), "--truth", str(told)]) == 0
    run = correlate(recording.read_bytes())
    truth = json.loads(told.read_text())
    assert len(truth["requests"]) == len(run.requests()) == 5
    for one in truth["requests"]:
        report = run.request(one["id"])
        segments = one["segments"]
        assert (segments[0]["start_ns"], segments[-1]["end_ns"]) == (
            report.arrival_ns, report.end_ns,
        )  # fmt: skip
        assert all(a["end_ns"] == b["start_ns"] for a, b in itertools.pairwise(segments))
        assert Counter(s.category.value for s in report.segments).keys() == {
            s["category"] for s in segments
        }


def test_the_command_loses_what_it_is_told_to(tmp_path: Path) -> None:
    recording = tmp_path / "a.gpcf"
    assert command.main(["--preset", "disturbed", "--lose", "wait:0.2", "-o", str(recording)]) == 0
    assert lost(correlate(recording.read_bytes()))["bpf.ring", "wait"] > 10
