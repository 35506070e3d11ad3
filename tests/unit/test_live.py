# SPDX-License-Identifier: Apache-2.0
"""Following a recording that grows: reports as if read at once, in flight, losses, budgets."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report import digest
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.correlator.report.values import PhaseName
from gpucorrelate.daemon.live import LiveOptions, LiveSession
from gpucorrelate.daemon.recording import open_recording
from gpucorrelate.probes.wire.errors import NotFoundError, RecordingError
from gpucorrelate.probes.wire.schema import Anchor, SessionEvent
from tests.truth.synthetic.chance import drawn
from tests.truth.synthetic.check import simulate
from tests.truth.synthetic.machine import ZERO
from tests.truth.synthetic.options import ALL, Options
from tests.unit.replay import turns
from tests.unit.synth import API, CORE, MS, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.daemon.live import LiveUpdate

_S = 1_000_000_000
_ALL = LiveOptions(cpu_share=None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a.gpcf").write_bytes(b"")
    return tmp_path / "a.gpcf"


def at_once(data: bytes) -> dict[str, RequestReport]:
    """Reports of what ended in a recording, read as a whole."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.gpcf"
        path.write_bytes(data)
        run = Run.of(Capture.from_batches(open_recording(path)))
    done = [r.internal_id for r in run.requests_ if r.complete]
    return {r.internal_id: r for r in run.all_requests() if r.internal_id in done}


def followed(
    parts: Sequence[bytes], path: Path, options: LiveOptions = _ALL
) -> Iterator[LiveUpdate]:
    """A poll after each part is written, and one when nothing more comes."""
    path.write_bytes(b"")
    with LiveSession.follow_file(path, options) as live:
        for part in parts:
            with path.open("ab") as out:
                out.write(part)
            yield live.poll()
        update = live.finish()
        yield update
        assert update.ended


def same(found: Sequence[RequestReport], whole: dict[str, RequestReport]) -> None:
    names = [report.internal_id for report in found]
    assert len(names) == len(set(names))
    assert set(names) == set(whole)
    for report in found:
        wanted = whole[report.internal_id]
        assert not digest.tiling_error(report.segments, report.arrival_ns, report.end_ns)
        assert digest.by_category(report.segments) == digest.by_category(wanted.segments)
        # These are of the whole recording, or of the host at times of its own.
        assert report == replace(
            wanted, ledger=report.ledger, verdict=report.verdict, context=report.context
        )


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_wherever_a_recording_is_cut_the_reports_are_those_of_the_whole(
    seed: int, data: st.DataObject
) -> None:
    recording = simulate(drawn(seed))[1]
    inner = st.integers(0, len(recording))
    cuts = sorted(data.draw(st.lists(inner, max_size=8), label="cuts"))
    edges = [0, *cuts, len(recording)]
    parts = [recording[a:b] for a, b in itertools.pairwise(edges)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grows.gpcf"
        found = [one for update in followed(parts, path) for one in update.finished]
    same(found, at_once(recording))


def test_what_is_dropped_on_the_way_is_missed_by_nobody(place: Path) -> None:
    """Twenty seconds of requests of a few milliseconds: most of it is dropped while it goes on."""
    busy = Options(
        requests=60, spread_us=20_000_000, answer=(1, 8), ranks=2, depth=2, copier=True, rates=ALL
    )
    recording = simulate(busy)[1]
    updates = list(followed([part for _, part in turns(recording, _S // 2)], place))
    same([one for update in updates for one in update.finished], at_once(recording))
    assert len(updates) > 20
    assert updates[-1].effort.dropped_rows > updates[-1].effort.held_rows
    assert max(update.effort.held_bytes for update in updates) < len(recording)
    # Reported while it went on, and not when all was over.
    assert len(updates[-1].finished) < 20
    assert updates[-1].skipped.total == 0
    assert updates[-1].losses == ()


def test_where_reports_are_too_many_a_sample_is_drawn_and_the_rest_is_counted(
    place: Path,
) -> None:
    recording = simulate(Options(requests=60, spread_us=100_000))[1]
    whole = at_once(recording)
    nothing = LiveOptions(cpu_share=0.0)
    updates = list(followed([part for _, part in turns(recording, _S)], place, nothing))
    reported = [one.internal_id for update in updates for one in update.finished]
    told = [one for update in updates for one in update.done]
    assert {one.internal_id for one in told} == set(whole)
    assert {one.internal_id: one.wall_ns for one in told} == {
        name: report.wall_ns for name, report in whole.items()
    }
    last = updates[-1]
    assert len(reported) + last.skipped.sampled_out == len(whole)
    assert last.effort.reports == len(reported)
    assert last.pending == 0


def test_the_slowest_are_walked_where_that_is_asked_for(place: Path) -> None:
    from gpucorrelate.daemon.live_finished import Finished
    from gpucorrelate.daemon.live_requests import Ended, Request
    from gpucorrelate.daemon.live_window import Window

    took = [5, 1, 9, 3, 7]
    ended = [Ended(Request(str(n), arrival_ns=100), 100 + n) for n in took]
    finished = Finished(Window(), LiveOptions(slowest_first=True))
    finished.add(ended)
    finished._leave_out(3)
    assert sorted(one.what.key for one in finished._waiting) == ["7", "9"]
    assert finished.skipped.sampled_out == 3
    # By lot each is left out as often as any other.
    kept = dict.fromkeys(map(str, took), 0)
    for seed in range(400):
        drawn_by_lot = Finished(Window(), LiveOptions(seed=seed))
        drawn_by_lot.add(ended)
        drawn_by_lot._leave_out(3)
        for one in drawn_by_lot._waiting:
            kept[one.what.key] += 1
    assert sum(kept.values()) == 800
    assert max(kept.values()) < 1.5 * min(kept.values())


def test_a_request_longer_than_what_is_held_is_counted_and_not_reported(place: Path) -> None:
    recording = simulate(Options(requests=30, spread_us=200_000, answer=(8, 8)))[1]
    small = LiveOptions(cpu_share=None, max_bytes=4_000, settle_s=0.0)
    updates = list(followed([part for _, part in turns(recording, _S // 20)], place, small))
    last = updates[-1]
    assert max(update.effort.held_bytes for update in updates) <= 4_000
    assert last.skipped.too_long > 0
    reported = sum(len(update.finished) for update in updates)
    assert reported + last.skipped.too_long == len(at_once(recording))


# --- phases and ends -------------------------------------------------------------------------


class Engine(Recording):
    """An engine that does what it is told, written to a file as it happens."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.written = path, 0
        self.process(3, API, "api", since=ZERO)
        self.process(4, CORE, "core", since=ZERO)
        self.live = LiveSession.follow_file(path, replace(_ALL, settle_s=0.5))
        self.at(0)

    def at(self, ms: int) -> Engine:
        """The recording has got so far."""
        for tid in (API, CORE):
            self.wait(tid, ZERO + ms * MS - 10, ZERO + ms * MS - 5)
        return self

    def anchor(self, anchor: Anchor, ms: int, *, core: bool = False, **more: int | str) -> Engine:
        stream, tid = (4, CORE) if core else (3, API)
        self.add("request", stream, anchor=anchor, t_ns=ZERO + ms * MS, tid=tid, **more)
        return self.at(ms)

    def arrive(self, number: int, ms: int) -> Engine:
        self.anchor(Anchor.RECEIVED, ms, http=number, detail=f"/v1 x{number}")
        self.anchor(Anchor.LINKED, ms, http=number, request=f"r{number}", detail=f"cmpl-x{number}")
        self.anchor(Anchor.SENT, ms, request=f"r{number}", value=7)
        return self.anchor(Anchor.ADMITTED, ms, core=True, request=f"r{number}", value=7)

    def step(self, number: int, ms: int, *rows: tuple[str, int]) -> Engine:
        for at, (name, computed) in enumerate(rows):
            self.add("step_rows", 4, rowset=number, row=at, request=name, scheduled=1,
                     computed=computed, prompt=7, must_sample=1)  # fmt: skip
        self.add("step_begin", 4, step=number, tid=CORE, rowset=number, rows=len(rows),
                 tokens=len(rows), start_ns=ZERO + ms * MS, waiting=2)  # fmt: skip
        self.add("step_end", 4, step=number, tid=CORE, end_ns=ZERO + (ms + 2) * MS)
        self.add("step_rows", 4, rowset=number + 1000, row=0, request=rows[0][0], scheduled=1)
        self.add("step_update", 4, step=number, tid=CORE, start_ns=ZERO + (ms + 2) * MS,
                 end_ns=ZERO + (ms + 3) * MS, rowset=number + 1000, tokens=1)  # fmt: skip
        return self.at(ms)

    def poll(self) -> LiveUpdate:
        with self.path.open("ab") as out:
            out.write(b"".join(self.frames[self.written :]))
        self.written = len(self.frames)
        return self.live.poll()


def phases(update: LiveUpdate) -> dict[str, PhaseName]:
    return {flight.request_id: flight.phase for flight in update.in_flight}


def test_a_request_goes_through_its_phases_and_ends_once(place: Path) -> None:
    engine = Engine(place)
    assert engine.poll().in_flight_total == 0
    engine.anchor(Anchor.RECEIVED, 10, http=1, detail="/v1 mine")
    assert phases(engine.poll()) == {"mine": PhaseName.RECEIVE}
    engine.anchor(Anchor.TOKENISE_START, 11, http=1)
    assert phases(engine.poll()) == {"mine": PhaseName.TOKENISE}
    engine.anchor(Anchor.LINKED, 12, http=1, request="r1", detail="cmpl-mine")
    engine.anchor(Anchor.SENT, 13, request="r1", value=7)
    assert phases(engine.poll()) == {"cmpl-mine": PhaseName.ADMIT}
    engine.anchor(Anchor.ADMITTED, 14, core=True, request="r1", value=7)
    assert phases(engine.poll()) == {"cmpl-mine": PhaseName.QUEUE}
    engine.step(1, 20, ("r1", 0))
    assert phases(engine.poll()) == {"cmpl-mine": PhaseName.PREFILL}
    engine.step(2, 30, ("r1", 7))
    flight = engine.poll().in_flight[0]
    assert (flight.phase, flight.tokens_in, flight.tokens_out) == (PhaseName.DECODE, 7, 2)
    assert (flight.internal_id, flight.age_ns) == ("r1", 30 * MS - 10 * MS - 5)
    engine.step(3, 40, ("other", 7))
    assert phases(engine.poll()) == {"cmpl-mine": PhaseName.BETWEEN}
    engine.anchor(Anchor.FINISHED, 50, core=True, request="r1", value=2)
    assert phases(engine.poll()) == {"cmpl-mine": PhaseName.OUTPUT}
    engine.anchor(Anchor.LAST_BYTE, 60, http=1, value=200)
    update = engine.poll()
    assert (update.in_flight_total, update.finished, update.pending) == (0, (), 1)
    engine.at(600)
    update = engine.poll()
    assert [report.request_id for report in update.finished] == ["cmpl-mine"]
    assert update.finished[0].wall_ns == 50 * MS
    assert [(one.internal_id, one.wall_ns) for one in update.done] == [("r1", 50 * MS)]
    # A late word of it makes it no new one.
    engine.anchor(Anchor.HTTP_DISCONNECT, 610, http=1)
    engine.anchor(Anchor.ABORTED, 610, core=True, request="r1").at(2_000)
    update = engine.poll()
    assert (update.finished, update.done, update.in_flight_total) == ((), (), 0)


def test_an_exchange_that_was_refused_is_a_request_too(place: Path) -> None:
    engine = Engine(place)
    engine.anchor(Anchor.RECEIVED, 10, http=5, detail="/v1 mine")
    engine.anchor(Anchor.LAST_BYTE, 12, http=5, value=400).at(700)
    update = engine.poll()
    assert [(r.internal_id, r.status) for r in update.finished] == [
        ("http-3-5", "failed: HTTP 400")
    ]


def test_the_requests_of_one_call_end_together_and_are_each_reported(place: Path) -> None:
    engine = Engine(place)
    engine.anchor(Anchor.RECEIVED, 10, http=1, detail="/v1 two")
    for name in ("r1", "r2"):
        engine.anchor(Anchor.LINKED, 11, http=1, request=name, detail="cmpl-two")
        engine.anchor(Anchor.SENT, 11, request=name)
        engine.anchor(Anchor.ADMITTED, 12, core=True, request=name)
    assert engine.poll().in_flight_total == 2
    engine.anchor(Anchor.LAST_BYTE, 20, http=1, value=200)
    assert engine.poll().pending == 2
    engine.at(900)
    assert {report.internal_id for report in engine.poll().finished} == {"r1", "r2"}


def test_a_process_that_goes_takes_its_requests_along_and_that_is_said(place: Path) -> None:
    engine = Engine(place)
    engine.poll()
    engine.arrive(1, 10).step(1, 20, ("r1", 7))
    assert engine.poll().in_flight_total == 1
    gone = SessionEvent.PROCESS_GONE
    engine.add("session", 1, t_ns=ZERO + 30 * MS, event=gone, tgid=API, session="s")
    update = engine.at(31).poll()
    assert update.notes == (f"process {API} is gone with 1 requests in flight",)
    assert (update.in_flight_total, update.skipped.unexplained) == (0, 1)
    # The engine is started again: other processes, the same ids.
    engine.process(5, 700, "api", since=ZERO + 40 * MS)
    engine.add("request", 5, anchor=Anchor.RECEIVED, t_ns=ZERO + 41 * MS, tid=700, http=1,
               detail="/v1 x1")  # fmt: skip
    update = engine.at(42).poll()
    assert update.notes == ("process 700 is followed",)
    assert phases(update) == {"x1": PhaseName.RECEIVE}


def test_losses_and_missing_legs_are_told(place: Path) -> None:
    engine = Engine(place)
    engine.arrive(1, 10).poll()
    engine.add("loss", 1, t_ns=ZERO + 15 * MS, hop="bpf.ring", what="wait", count=12)
    engine.add("capability", 1, t_ns=ZERO + 16 * MS, source="ebpf.faults", state=2, reason="no")
    engine.frames.append(b"rubbish that is no frame")
    update = engine.at(20).at(21).poll()
    assert [(line.name, line.count) for line in update.losses] == [
        ("lost at bpf.ring", 12),
        ("bytes of the recording unreadable", 24),
    ]
    assert update.missing == ("ebpf.faults: no",)
    # What may have ended unseen is let go of, if nothing speaks of it for long.
    engine.add("loss", 1, t_ns=ZERO + 30 * MS, hop="agent.queue", what="rows", count=1)
    assert engine.at(1_000).poll().in_flight_total == 1
    update = engine.at(11_000).poll()
    assert (update.in_flight_total, update.skipped.unexplained) == (0, 1)


def test_what_steps_speak_of_is_not_given_up_for_a_loss(place: Path) -> None:
    engine = Engine(place)
    engine.arrive(1, 10).step(1, 20, ("r1", 7)).poll()
    engine.add("loss", 1, t_ns=ZERO + 30 * MS, hop="agent.queue", what="rows", count=1)
    for number in range(2, 30):
        engine.step(number, 1_000 * number, ("r1", 7))
        update = engine.poll()
    assert (update.in_flight_total, update.skipped.unexplained) == (1, 0)


def test_the_pace_is_of_the_last_seconds(place: Path) -> None:
    engine = Engine(place)
    engine.arrive(1, 10)
    for number in range(1, 41):
        engine.step(number, 100 * number, ("r1", 7), ("r2", 7))
    rates = engine.at(4_100).poll().rates
    assert rates.rows_per_step == 2
    assert rates.waiting == 2
    assert rates.steps_per_s == pytest.approx(10, rel=0.1)
    assert rates.tokens_per_s == pytest.approx(10, rel=0.1)
    assert engine.at(60_000).poll().rates.steps_per_s == 0


# --- places ----------------------------------------------------------------------------------


def test_a_file_that_is_none_or_no_recording_or_shrinks(tmp_path: Path, place: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        LiveSession.follow_file(tmp_path / "nothing")
    place.write_bytes(b"x" * 5000)
    with pytest.raises(RecordingError, match="not a gpucorrelate recording"):
        LiveSession.follow_file(place).poll()
    engine = Engine(place)
    place.write_bytes(b"")
    engine.arrive(1, 10).poll()
    place.write_bytes(b"")
    assert engine.live.poll().notes == ("a.gpcf became shorter: it is read from its start",)
    assert LiveSession.follow_file(place).poll().t_ns == 0


def test_a_folder_of_segments_is_read_in_order(tmp_path: Path) -> None:
    recording = simulate(drawn(3))[1]
    half = len(recording) // 2
    # Segments end with whole frames.
    at = recording.index(b"GPCF", half)
    folder = tmp_path / "session"
    folder.mkdir()
    (folder / "000001.gpcf").write_bytes(recording[:at])
    live = LiveSession.follow_file(folder, _ALL)
    found = list(live.poll().finished)
    (folder / "000002.gpcf").write_bytes(recording[at:])
    found += live.poll().finished
    found += live.finish().finished
    same(found, at_once(recording))
