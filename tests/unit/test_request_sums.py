# SPDX-License-Identifier: Apache-2.0
"""Requests counted for Prometheus: equal to their reports, bounded, and read by its own tools."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpucorrelate.daemon import metrics_requests
from gpucorrelate.daemon.live import Done, LiveOptions, LiveUpdate
from gpucorrelate.daemon.request_meter import RequestMeter
from gpucorrelate.daemon.request_sums import (
    BOUNDS_S,
    MOST_MODELS,
    OTHER,
    UNKNOWN,
    Counting,
    RequestSums,
)
from gpucorrelate.daemon.values import from_map, to_map
from tests.truth.synthetic.check import simulate
from tests.truth.synthetic.options import ALL, Options
from tests.unit.daemon_kit import wait_for
from tests.unit.replay import turns
from tests.unit.test_live import at_once, followed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from prometheus_client.core import Metric

    from gpucorrelate.correlator.report.values import RequestReport

_S = 1_000_000_000
OPEN = "application/openmetrics-text; version=1.0.0"


def counted(counting: Counting) -> RequestSums:
    return counting.sums(cpu_ns=_S, sessions=1, not_followed=0)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[RequestSums, list[RequestReport]]:
    """A simulated engine's requests, counted as they went on, and their reports."""
    recording = simulate(Options(requests=40, spread_us=4_000_000, rates=ALL))[1]
    path = tmp_path_factory.mktemp("counted") / "a.gpcf"
    counting = Counting()
    options = LiveOptions(cpu_share=None, in_flight=False)
    for update in followed([part for _, part in turns(recording, _S)], path, options):
        assert update.in_flight == ()
        counting.take(replace(update, model="tiny"))
    return counted(counting), list(at_once(recording).values())


def text(sums: RequestSums, *, exemplars: bool = True, accept: str = OPEN) -> str:
    class Collector:
        def collect(self) -> Iterator[Metric]:
            yield from metrics_requests.families(sums, exemplars=exemplars)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return choose_encoder(accept)[0](registry).decode()


def samples(told: str) -> dict[tuple[str, str, str], float]:
    """By name, phase or category, and bucket."""
    return {
        (one.name, one.labels.get("phase", one.labels.get("category", "")),
         one.labels.get("le", "")): one.value
        for family in text_string_to_metric_families(told)
        for one in family.samples
    }  # fmt: skip


def test_what_is_counted_is_what_the_reports_say(
    known: tuple[RequestSums, list[RequestReport]],
) -> None:
    sums, reports = known
    found = samples(text(sums))
    name = "gpucorrelate_request_{}_seconds_{}".format
    assert found[name("duration", "count"), "", ""] == len(reports) == 40
    assert found[name("duration", "sum"), "", ""] == pytest.approx(
        sum(report.wall_ns for report in reports) / _S
    )
    firsts = [report.ttft_ns for report in reports if report.ttft_ns is not None]
    assert found[name("ttft", "count"), "", ""] == len(firsts)
    for bound in BOUNDS_S:
        below = sum(first <= bound * _S for first in firsts)
        assert found[name("ttft", "bucket"), "", str(bound)] == below
    by_category: dict[str, int] = {}
    by_phase: dict[str, int] = {}
    for report in reports:
        for segment in report.segments:
            length_ns = segment.end_ns - segment.start_ns
            by_category[segment.category] = by_category.get(segment.category, 0) + length_ns
        for phase in report.phases:
            by_phase[phase.name] = by_phase.get(phase.name, 0) + phase.end_ns - phase.start_ns
    assert len(by_category) > 5
    for word, wanted in (("path", by_category), ("phase", by_phase)):
        told = {key[1]: v for key, v in found.items() if key[0] == name(word, "sum")}
        assert told == pytest.approx({key: ns / _S for key, ns in wanted.items()})
    # The path is all of the time: the categories' sums are the requests' durations.
    assert sum(by_category.values()) == sum(report.wall_ns for report in reports)


def test_an_exemplar_names_a_request_of_its_bucket(
    known: tuple[RequestSums, list[RequestReport]],
) -> None:
    sums, reports = known
    took = {report.request_id: report.wall_ns / _S for report in reports}
    seen = 0
    for family in text_string_to_metric_families(text(sums)):
        for one in family.samples:
            if (
                one.exemplar is not None
                and one.name == "gpucorrelate_request_duration_seconds_bucket"
            ):
                assert took[one.exemplar.labels["request_id"]] == pytest.approx(one.exemplar.value)
                assert one.exemplar.value <= float(one.labels["le"])
                seen += 1
    assert seen
    assert not any(name in text(sums, exemplars=False) for name in took)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_prometheus_own_linter_finds_nothing(
    known: tuple[RequestSums, list[RequestReport]],
) -> None:
    told = text(known[0], accept="text/plain")
    found = subprocess.run(
        ["promtool", "check", "metrics"], input=told, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def done(number: int, wall_ns: int = _S, request_id: str = "") -> Done:
    return Done(request_id or f"r{number}", f"r{number}", 1000, 1000 + wall_ns)


def test_labels_are_few_whatever_engines_call_their_models() -> None:
    counting = Counting()
    for number in range(3 * MOST_MODELS):
        one = done(number, request_id="id\n\0" + "x" * 500)
        name = f"model {number}\n" + "y" * number * 10 if number else ""
        counting.take(LiveUpdate(f"s{number % 4}", 1, name, done=(one,)))
    found = counted(counting)
    assert len(found.models) == MOST_MODELS + 1
    assert {UNKNOWN, OTHER} < {one.model for one in found.models}
    assert found.is_valid
    told = text(found)
    assert max(map(len, told.splitlines())) < 500
    assert "\0" not in told
    assert sum(one.histograms[0].counts[-1] for one in found.models) == 0
    assert sum(sum(one.histograms[0].counts) for one in found.models) == 3 * MOST_MODELS
    assert from_map(RequestSums, json.loads(json.dumps(to_map(found)))) == found


def test_times_that_cannot_be_are_counted_within_bounds() -> None:
    counting = Counting()
    counting.take(LiveUpdate("s", 1, "m", done=(done(1, -(1 << 63)), done(2, 1 << 63))))
    found = counted(counting)
    assert found.is_valid
    assert found.models[0].histograms[0].counts[0] == 1
    assert found.models[0].histograms[0].counts[-1] == 1


def test_skipped_requests_of_a_session_that_is_gone_stay_counted() -> None:
    from gpucorrelate.daemon.live_values import Skipped

    counting = Counting()
    for session in ("a", "b"):
        counting.take(LiveUpdate(session, 1, "m", skipped=Skipped(1, 2, 3), in_flight_total=5))
    counting.take(LiveUpdate("b", 2, "m", skipped=Skipped(2, 2, 3), in_flight_total=5))
    counting.forget("a")
    found = counted(counting)
    assert (found.sampled_out, found.too_long, found.lost) == (3, 4, 6)
    assert found.models[0].in_flight == 5


# --- the process that counts, and what it may do ----------------------------------------------

_VALID = json.dumps(to_map(RequestSums(sampled_out=7)))


def speaking(code: str) -> RequestMeter:
    meter = RequestMeter([sys.executable, "-c", f"import sys, time\n{code}"])
    meter.start()
    return meter


def test_what_it_says_is_taken_and_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    meter = speaking(
        f"print({_VALID!r}, flush=True)\nsys.stdin.read()\nopen({str(mark)!r}, 'w').close()"
    )
    wait_for(lambda: meter.latest, "it is heard")
    assert meter.latest == RequestSums(sampled_out=7)
    meter.close()
    assert mark.exists()
    assert meter.latest is None


@pytest.mark.parametrize(
    "code",
    [
        "sys.exit(3)",
        "print('nonsense', flush=True); time.sleep(60)",
        "print('[' * 100000, flush=True); time.sleep(60)",
        "print('{\"models\": 3}', flush=True); time.sleep(60)",
        "print('{\"models\": [{\"model\": \"' + 'x' * 999 + '\"}]}', flush=True); time.sleep(60)",
        "sys.stdout.write('x' * (5 << 20)); sys.stdout.flush(); time.sleep(60)",
    ],
    ids=["ends", "nonsense", "deep", "wrong type", "out of bounds", "endless"],
)
def test_one_that_says_what_cannot_be_is_replaced_after_a_pause(code: str) -> None:
    meter = speaking(code)
    wait_for(lambda: meter.starts >= 2, "it is started again")
    assert meter.latest is None
    begun_s = time.monotonic()
    starts = meter.starts
    time.sleep(1)
    # Pauses grow: it is no busy loop.
    assert meter.starts - starts <= 1 + (time.monotonic() - begun_s) / 2
    meter.close()


def test_a_program_that_cannot_be_started_harms_nobody() -> None:
    meter = RequestMeter(["/nonexistent/program"])
    meter.start()
    wait_for(lambda: meter.starts >= 1, "it is tried")
    meter.close()
    assert meter.latest is None
