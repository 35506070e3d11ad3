# SPDX-License-Identifier: Apache-2.0
"""The screen of ``gpucorrelate top`` as text, its words, and its modes without a terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.cli import top_view
from gpucorrelate.cli.app import invoke
from gpucorrelate.cli.top_state import Memory
from gpucorrelate.cli.top_view import SORTS, View, moved, screen
from gpucorrelate.cli.top_words import waits_for
from gpucorrelate.correlator.current import Hold, Holder
from gpucorrelate.correlator.report.values import Actor, Category, LedgerLine, PhaseName
from gpucorrelate.daemon.live_values import Done, Flight, LiveUpdate, Rates, Skipped
from gpucorrelate.probes.wire.errors import UsageError
from tests.truth.synthetic.check import simulate
from tests.truth.synthetic.options import Options
from tests.unit.test_live import at_once

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
WORKER = Actor(300, 300, "worker.main", "", "Worker0", traced=True)
CORE = Actor(200, 200, "core.main", "", "EngineCore", traced=True)
HOG = Actor(900, 900, "", "", "backup", traced=False)


def flight(number: int, **more: object) -> Flight:
    made = Flight(
        f"cmpl-{number:05d}-0", f"cmpl-{number:05d}-0-ab", number, 10 * S - number,
        PhaseName.DECODE, tokens_out=number,
        recent=(Holder(WORKER, Category.CPU, "execute", S // 2),
                Holder(WORKER, Category.PREEMPTED, "", S // 5, by=HOG)),
        shares=((Category.CPU, S * 6 // 10), (Category.PREEMPTED, S * 4 // 10)),
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


UPDATE = LiveUpdate(
    "20261201T000000-1", 60 * S,
    in_flight=tuple(flight(number) for number in range(1, 31)), in_flight_total=30,
    rates=Rates(10 * S, 317.2, 1416.0, 4.5, 12.0, 3),
    composition=((Category.CPU, 6 * S), (Category.PREEMPTED, 3 * S), (Category.GIL, S)),
    culprits=tuple(
        Holder(replace(WORKER, tid=300 + n), Category.CPU, "execute", S - n) for n in range(9)
    ),
    done=tuple(Done(f"done-{n}", f"done-{n}-x", S, n * S) for n in range(2, 40)),
    missing=tuple(f"ebpf.thing{n}: off" for n in range(20)),
    skipped=Skipped(5, 0, 1),
)  # fmt: skip


def shown(update: LiveUpdate = UPDATE, **chosen: object) -> list[str]:
    view = Memory().take(update).into(View(**chosen))  # type: ignore[arg-type]
    return screen(update, view).plain.split("\n")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 16), (130, 45), (200, 60)])
def test_the_screen_is_as_large_as_the_terminal(width: int, height: int) -> None:
    for update in (UPDATE, LiveUpdate("s", 1)):
        lines = shown(update, width=width, height=height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert "q quit" in lines[-1]


def test_80_by_24_has_all_that_is_asked_for() -> None:
    lines = shown()
    text = "\n".join(lines)
    assert "in flight 30, 3 queued  done 12.0/s  steps 317/s" in text
    assert "cpu 60.0%   preempted 30.0%   gil 10.0%" in text
    assert " 90.0% Worker0/300  " in text  # what reads alike is one
    assert len([line for line in lines if "decode" in line]) == 8
    assert "cmpl-00001-0" in text
    assert "50%" not in text.partition("IN FLIGHT")[0]
    assert "60% execute in Worker0/300, 40%" in text
    assert "done-39" in text
    assert "nothing lost   not observed: ebpf.thing0, ebpf.thing1" in lines[-3]
    assert lines[-3].endswith("more")
    lost = replace(UPDATE, losses=(LedgerLine("lost at bpf.ring", 12, "wait", check=True),))
    assert "LOST: lost at bpf.ring 12" in "\n".join(shown(lost))


def test_a_terminal_that_is_too_small_is_told_so() -> None:
    assert shown(width=50, height=10) == ["this needs 60 columns and 16 lines"]


def test_without_colour_nothing_has_one() -> None:
    def colours(*, color: bool) -> set[str]:
        text = screen(UPDATE, Memory().take(UPDATE).into(View(color=color)))
        return {word for span in text.spans for word in str(span.style).split()}

    plain = colours(color=False)
    assert plain <= {"bold", "dim", "reverse", "underline"}
    assert colours(color=True) - plain


def test_every_order_is_what_it_says_and_the_filter_filters() -> None:
    by = {
        "age": lambda f: f.arrival_ns, "phase": lambda f: f.phase,
        "tokens": lambda f: -f.tokens_out, "id": lambda f: f.request_id,
    }  # fmt: skip
    update = replace(UPDATE, in_flight=UPDATE.in_flight[::-1])
    for sort in SORTS:
        found = top_view.flights_of(update, View(sort=sort))
        assert found == sorted(found, key=by[sort])
    found = top_view.flights_of(update, View(pattern="00003"))
    assert [one.request_id for one in found] == ["cmpl-00003-0"]
    assert "id has '00003'" in "\n".join(shown(pattern="00003"))


def test_the_selection_moves_stays_inside_and_is_on_the_screen() -> None:
    view = View()
    for _ in range(3):
        view = moved(UPDATE, view, 1)
    assert view.selected == "cmpl-00004-0-ab"
    view = moved(UPDATE, view, 1000)
    assert view.selected == "cmpl-00030-0-ab"
    marked = [line for line in shown(selected=view.selected) if line.startswith("> cmpl")]
    assert len(marked) == 1
    assert "cmpl-00030-0" in marked[0]
    assert moved(UPDATE, view, -1000).selected == "cmpl-00001-0-ab"
    # One that has ended meanwhile: the first is selected.
    assert moved(UPDATE, View(selected="gone"), 0).selected == "cmpl-00001-0-ab"


def test_what_a_request_waits_for_in_words() -> None:
    assert (
        waits_for(flight(1))
        == "60% execute in Worker0/300, 40% no CPU: backup/900 (not traced) had it"
    )
    # Of several culprits none is named that did less than half.
    many = flight(1, shares=((Category.RUN_QUEUE, S // 2), (Category.PREEMPTED, S // 2)))
    assert waits_for(many) == "100% no CPU"
    stuck = Hold(CORE, Category.UNEXPLAINED, "futex 0x1 op 9", 2 * S, WORKER, assumed=True)
    assert (
        waits_for(flight(1, now=stuck))
        == "EngineCore/200 blocked 2.0 s in futex; Worker0/300 ended the last one"
    )
    assert waits_for(flight(1, recent=(), shares=())) == "not known yet"


def test_what_is_old_or_paused_is_told() -> None:
    assert "PAUSED" in shown(paused=True)[0]
    assert "12 s old" in shown(stale_s=12)[0]
    assert "DAEMON AWAY" in shown(replace(UPDATE, state="daemon away"))[0]
    assert "ENDED" in shown(replace(UPDATE, ended=True))[0]


def test_ids_that_clients_chose_do_not_draw() -> None:
    evil = flight(1, request_id="\x1b[2Jx\nY" + "z" * 300)
    lines = shown(replace(UPDATE, in_flight=(evil,)))
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= 80


# --- without a terminal -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("top") / "run.gpcf"
    path.write_bytes(simulate(Options(requests=12, spread_us=200_000))[1])
    return path


def test_once_prints_a_screen_without_keys(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["top", "--once", str(file)]) == 0
    out = capsys.readouterr().out
    assert "ENDED" in out
    assert "12 ended" in out
    assert "q quit" not in out
    assert "\x1b" not in out


def test_json_says_what_the_reports_say(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["top", "--json", "--once", str(file)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["schema"] == "gpucorrelate.top.v1"
    whole = at_once(file.read_bytes())
    assert found["ended_total"] == len(whole) == 12
    assert {one["internal_id"]: one["wall_ns"] for one in found["slowest"]} == {
        name: report.wall_ns for name, report in whole.items()
    }
    assert [one["wall_ns"] for one in found["slowest"]] == sorted(
        (report.wall_ns for report in whole.values()), reverse=True
    )


def test_without_a_terminal_it_says_what_to_use(file: Path) -> None:
    with pytest.raises(UsageError, match="needs a terminal") as failed:
        invoke(["top", str(file)])
    assert "--once, or --json" in (failed.value.hint or "")
