# SPDX-License-Identifier: Apache-2.0
"""The screen of ``gpucorrelate top`` as text, from an update and what the user chose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.text import Text

from gpucorrelate.cli.top_words import culprits, waits_for
from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.names import clip, clip_middle, pad, safe
from gpucorrelate.correlator.report.values import Category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.daemon.live_values import Done, Flight, LiveUpdate

SORTS = ("age", "phase", "tokens", "id")
#: Smaller than that nothing useful fits.
LEAST_WIDTH, LEAST_HEIGHT = 60, 16

_COLORS = {
    Category.CPU: "green",
    Category.GIL: "magenta",
    Category.LOCK: "magenta",
    Category.RUN_QUEUE: "red",
    Category.PREEMPTED: "red",
    Category.THROTTLED: "bright_red",
    Category.PAGE_FAULT: "blue",
    Category.DISK: "blue",
    Category.GPU: "cyan",
    Category.GPU_EARLIER: "cyan",
    Category.UNEXPLAINED: "yellow",
    Category.UNOBSERVED: "yellow",
}
_OTHER_COLOR = "white"
_ID_NARROW, _ID_WIDE = 18, 36
_WHO_NARROW, _WHO_WIDE = 26, 40
_AGE, _PHASE, _OUT = 8, 8, 6


@dataclass(frozen=True)
class Slow:
    """A finished request that is remembered.

    Attributes:
        done: It.
        why: Where most of its time went, of one that was walked; else empty.
    """

    done: Done
    why: str = ""


@dataclass(frozen=True)
class View:
    """What the user chose, and what is remembered between updates.

    Attributes:
        width: Columns of the screen.
        height: Its lines.
        color: Whether it may have colours.
        sort: One of ``SORTS``.
        pattern: Only requests whose id has this in it.
        finished: The list of finished requests is the one that is moved in.
        selected: Id of the selected request; empty: the first.
        paused: The screen stands still; what comes is still taken.
        message: Something to say in the last line but one.
        slowest: Finished requests, slowest first.
        note: The last thing that happened to the session.
        ended: Requests that ended since following began.
        stale_s: Seconds since anything new came, where that is longer than it should be; else 0.
        once: It is printed, not looked at: no keys, and nothing is selected.
    """

    width: int = 80
    height: int = 24
    color: bool = True
    sort: str = "age"
    pattern: str = ""
    finished: bool = False
    selected: str = ""
    paused: bool = False
    message: str = ""
    slowest: tuple[Slow, ...] = ()
    note: str = ""
    ended: int = 0
    stale_s: int = 0
    once: bool = False

    def matches(self, *names: str) -> bool:
        """Whether a request of these ids is shown."""
        return not self.pattern or any(self.pattern in name for name in names)


def flights_of(update: LiveUpdate, view: View) -> list[Flight]:
    """The requests in flight that are shown, in the order that was chosen."""
    found = [f for f in update.in_flight if view.matches(f.request_id, f.internal_id)]
    if view.sort == "phase":
        return sorted(found, key=lambda f: (f.phase, f.arrival_ns))
    if view.sort == "tokens":
        return sorted(found, key=lambda f: (-f.tokens_out, f.arrival_ns))
    if view.sort == "id":
        return sorted(found, key=lambda f: f.request_id)
    return sorted(found, key=lambda f: f.arrival_ns)


def finished_of(view: View) -> list[Slow]:
    """The finished requests that are shown, slowest first."""
    return [s for s in view.slowest if view.matches(s.done.request_id, s.done.internal_id)]


def keys_of(update: LiveUpdate, view: View) -> list[str]:
    """Internal ids (of an exchange its own) in the list that is moved in, in its order."""
    if view.finished:
        return [slow.done.internal_id for slow in finished_of(view)]
    return [flight.internal_id or flight.request_id for flight in flights_of(update, view)]


def moved(update: LiveUpdate, view: View, by: int) -> View:
    """The selection moved; it stays in the list."""
    keys = keys_of(update, view)
    if not keys:
        return replace(view, selected="")
    at = keys.index(view.selected) if view.selected in keys else 0
    return replace(view, selected=keys[min(max(at + by, 0), len(keys) - 1)])


def screen(update: LiveUpdate, view: View) -> Text:
    """The whole screen."""
    if view.width < LEAST_WIDTH or view.height < LEAST_HEIGHT:
        return Text(f"this needs {LEAST_WIDTH} columns and {LEAST_HEIGHT} lines")
    left = view.height - 10 + view.once
    who = culprits(update.culprits)
    holders = max(2, min(len(who), left // 4 + 1))
    finished = max(1, min(max(len(view.slowest), 1), left // 4))
    rows = left - holders - finished
    draw = _Screen(update, view)
    draw.head()
    draw.path()
    draw.culprits(who[:holders], holders)
    draw.flights(rows)
    draw.done(finished)
    draw.foot()
    return Text("\n").join(draw.lines[: view.height])


class _Screen:
    """Lines of a screen as they are drawn."""

    def __init__(self, update: LiveUpdate, view: View) -> None:
        self.update, self.view = update, view
        self.lines: list[Text] = []

    def line(self, *parts: str | tuple[str, str], fill: bool = False) -> None:
        """A line of parts, each with a style or without; cut to the screen."""
        text = Text(no_wrap=True, end="")
        for part in parts:
            words, style = part if isinstance(part, tuple) else (part, "")
            text.append(safe(words), style if self.view.color or not _is_color(style) else "")
        text.truncate(self.view.width, overflow="ellipsis", pad=fill)
        self.lines.append(text)

    def title(self, words: str, right: str = "") -> None:
        """A heading over the whole width."""
        room = self.view.width - len(right) - 1
        self.line((f"{clip(words, room):<{room}} {right}", "bold underline"), fill=True)

    def head(self) -> None:
        """Whose numbers these are, how fresh, and the engine's pace."""
        update, view = self.update, self.view
        state = "PAUSED" if view.paused else "ENDED" if update.ended else update.state.upper()
        behind = (
            f"  reports {units.duration(update.behind_ns, 2)} late" if update.behind_ns else ""
        )
        if view.stale_s:
            behind = f"  {view.stale_s:,} s old: no CPU for it"
        name = f"gpucorrelate top  {update.session}"
        self.line((f"{name}{behind}  ", "bold"), (f" {state} ", "bold reverse"))
        rates = update.rates
        waiting = "" if rates.waiting is None else f", {rates.waiting:,} queued"
        self.line(
            f"in flight {update.in_flight_total:,}{waiting}  "
            f"done {_rate(rates.finished_per_s)}/s  steps {_rate(rates.steps_per_s)}/s  "
            f"rows/step {_rate(rates.rows_per_step)}  tokens {_rate(rates.tokens_per_s)}/s"
        )

    def path(self) -> None:
        """Where the time of requests went lately, as a bar and in figures."""
        parts = self.update.composition
        total = sum(ns for _, ns in parts)
        if not total:
            self.line("no request was in flight in the last seconds")
            self.line("")
            return
        shares = units.apportion([ns for _, ns in parts], self.view.width)
        bar = Text(no_wrap=True, end="")
        for (category, _), cells in zip(parts, shares, strict=True):
            name = f"{category}"
            inside = f" {name}" if len(name) + 2 <= cells else ""
            color = _COLORS.get(category, _OTHER_COLOR)
            style = f"black on {color}" if self.view.color else "reverse"
            if cells > 1:
                bar.append(f"{inside:<{cells - 1}}", style)
                bar.append("|")
            elif cells:
                bar.append("|")
        self.lines.append(bar)
        said = [f"{category} {units.share(ns, total)}" for category, ns in parts]
        self.line(_fitting(said, "   ", self.view.width))

    def culprits(self, shown: Sequence[tuple[str, str, int]], count: int) -> None:
        """Who makes requests wait, on so many lines."""
        total = sum(ns for _, ns in self.update.composition)
        self.title("WHO MAKES THEM WAIT", "share of all requests' time, last 10 s")
        width = _WHO_WIDE if self.view.width >= 120 else _WHO_NARROW
        for who, how, length_ns in shown:
            share = units.share(length_ns, total)
            self.line((f"{share:>6} ", "bold"), f"{pad(clip(who, width), width)}  ", how)
        for _ in range(count - len(shown)):
            self.line("")

    def flights(self, count: int) -> None:
        """Requests in flight."""
        update, view = self.update, self.view
        found = flights_of(update, view)
        chosen = f"by {view.sort}" + (f", id has {view.pattern!r}" if view.pattern else "")
        marker = "" if view.finished else "> "
        self.title(f"{marker}IN FLIGHT {len(found)} of {update.in_flight_total}", chosen)
        wide = _ID_WIDE if view.width >= 120 else _ID_NARROW
        self.line(
            (f"  {'request':<{wide}} {'age':>{_AGE}} {'phase':<{_PHASE}} {'out':>{_OUT}}  "
             "waits for", "dim")
        )  # fmt: skip
        keys = [flight.internal_id or flight.request_id for flight in found]
        top = _first(keys, view.selected if not view.finished else "", count - 1)
        room = count - 1
        for at in range(top, min(top + room, len(found))):
            flight = found[at]
            mine = not view.finished and (
                keys[at] == view.selected or (not view.selected and not at)
            )
            self._row(
                f"{pad(clip_middle(flight.request_id, wide), wide)} "
                f"{units.duration(flight.age_ns, 3):>{_AGE}} {flight.phase:<{_PHASE}} "
                f"{flight.tokens_out:>{_OUT},}  {waits_for(flight)}",
                selected=mine,
            )
        for _ in range(room - max(0, min(room, len(found) - top))):
            self.line("")

    def done(self, count: int) -> None:
        """The slowest of those that ended."""
        view = self.view
        found = finished_of(view)
        marker = "> " if view.finished else ""
        skipped = self.update.skipped
        right = f"{view.ended:,} ended, {self.update.effort.reports:,} walked"
        if skipped.total:
            right += f", {skipped.sampled_out:,} quicker ones not"
            right += f", {skipped.too_long:,} too long" if skipped.too_long else ""
            right += f", {skipped.unexplained:,} lost" if skipped.unexplained else ""
        self.title(f"{marker}SLOWEST FINISHED", right)
        wide = _ID_WIDE if view.width >= 120 else _ID_NARROW
        keys = [slow.done.internal_id for slow in found]
        top = _first(keys, view.selected if view.finished else "", count)
        for at in range(top, min(top + count, len(found))):
            one = found[at].done
            mine = view.finished and keys[at] == (view.selected or keys[0])
            ago = _ago(self.update.t_ns - one.end_ns)
            self._row(
                f"{pad(clip_middle(one.request_id, wide), wide)} "
                f"{units.duration(one.wall_ns, 3):>{_AGE}} {ago:<{_PHASE}} "
                f"{one.tokens_out:>{_OUT},}  {found[at].why or 'not walked'}",
                selected=mine,
            )
        for _ in range(count - max(0, min(count, len(found) - top))):
            self.line("")

    def foot(self) -> None:
        """What was lost, what is missing, what happened, and the keys."""
        update, view = self.update, self.view
        lost = "; ".join(f"{line.name} {line.count:,}" for line in update.losses)
        said = f"LOST: {lost}" if lost else "nothing lost"
        if update.missing:
            names = [missing.partition(":")[0] for missing in update.missing]
            said += "   not observed: "
            said += _fitting(names, ", ", max(view.width - len(said), 24))
        self.line((said, "bold" if lost else ""))
        said = view.message or (f"note: {view.note}" if view.note else "")
        self.line((said, "bold") if view.message else said)
        if view.once:
            return
        keys = "q quit  space pause  s sort  / filter  tab list  w write report  ? help"
        self.line((f"{keys:<{view.width}}", "reverse"))

    def _row(self, words: str, *, selected: bool) -> None:
        selected = selected and not self.view.once
        mark = "> " if selected else "  "
        self.line((f"{mark}{words}", "reverse" if selected else ""), fill=selected)


def _fitting(words: Sequence[str], between: str, room: int) -> str:
    """As many of them as there is room for, and how many more there are."""
    text = ""
    for at, one in enumerate(words):
        left = len(words) - at
        more = f"  +{left - 1} more" if left > 1 else ""
        if text and len(text) + len(between) + len(one) + len(more) > room:
            return f"{text}  +{left} more"
        text += (between if text else "") + one
    return text


def _is_color(style: str) -> bool:
    return any(
        word not in ("bold", "reverse", "underline", "dim", "") for word in style.split(" ")
    )


def _first(keys: Sequence[str], selected: str, room: int) -> int:
    """The first row that is shown, so that the selected one is."""
    if selected not in keys or room <= 0:
        return 0
    return max(0, keys.index(selected) - room + 1)


def _ago(passed_ns: int) -> str:
    """``-12 s``: ended so long ago."""
    return f"-{max(0, passed_ns) // 1_000_000_000} s"


def _rate(value: float | None) -> str:
    if value is None:
        return units.UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
