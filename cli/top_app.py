# SPDX-License-Identifier: Apache-2.0
"""The terminal program behind ``gpucorrelate top``: keys, and a thread that polls."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Input, Static

from gpucorrelate.cli import top_view
from gpucorrelate.cli.top_state import Memory, write_report
from gpucorrelate.probes.wire.errors import GpucorrelateError

if TYPE_CHECKING:
    from pathlib import Path

    from textual.events import Resize

    from gpucorrelate.cli.top_view import View
    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.daemon.live import LiveSession, LiveUpdate

#: After a look that took long others have the CPU for so long at least.
_LEAST_PAUSE_S = 0.2
_GRACE_S = 0.5
#: So long beyond two looks' time nothing new may come before that is told.
_STALE_S = 3.0

_HELP = """\
gpucorrelate top: what requests wait for now, and who makes them wait

first lines  the engine's pace over the last 10 s; then where the time of all
             requests' paths went (a second of two requests counts as two)
WHO MAKES    who held those paths and with what; where somebody waited for a
THEM WAIT    CPU, whoever had it
IN FLIGHT    "waits for": shares of its last second; or, if nothing moved for
             250 ms, who is in what since when. "X ended the last one": X did
             so before; that it will again is not known
SLOWEST      requests that ended in the last 10 minutes, and where their time
FINISHED     went if they were walked; under load a fair sample is

  up down, j k    select                  tab     the other list
  s               sort: age, phase, tokens, id
  /               only ids with a text in them; empty: all
  w               write the selected request's report to a file
  space           pause the screen; nothing is missed meanwhile
  q               quit                    any key leaves this help"""


class TopApp(App[None]):
    """The screen.

    Args:
        live: The session, polled by a thread of this program alone.
        interval_s: Time between polls.
        color: Whether colours may be used.
        folder: Where reports are written.
        place: What names the recording on a command line: ``--session S``, or a file.
    """

    CSS = """
    Screen { layout: vertical; background: ansi_default; color: ansi_default; }
    #screen { width: 100%; height: 1fr; background: ansi_default; color: ansi_default; }
    #filter { dock: bottom; height: 1; border: none; padding: 0; display: none;
              background: ansi_default; color: ansi_default; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("q", "quit", "quit", show=False),
        Binding("ctrl+c", "quit", "quit", priority=True, show=False),
        Binding("space", "pause", "pause", show=False),
        Binding("s", "sort", "sort", show=False),
        Binding("slash", "filter", "filter", show=False),
        Binding("tab", "other", "other list", priority=True, show=False),
        Binding("w", "write", "write", show=False),
        Binding("question_mark,h", "help", "help", show=False),
        Binding("escape", "leave", "leave", show=False, priority=True),
        *(
            Binding(key, f"move({by})", "move", show=False)
            for key, by in (
                ("up", -1), ("k", -1), ("down", 1), ("j", 1), ("pageup", -10), ("pagedown", 10),
                ("home", -100_000), ("end", 100_000),
            )
        ),
    ]  # fmt: skip

    def __init__(
        self, live: LiveSession, *, interval_s: float, color: bool, folder: Path, place: str
    ) -> None:
        super().__init__(ansi_color=True)
        self.view = top_view.View(color=color)
        self.error: GpucorrelateError | None = None
        self._live = live
        self._interval_s = interval_s
        self._folder = folder
        self._place = place
        self._memory = Memory()
        self._update: LiveUpdate | None = None
        self._stop = threading.Event()
        self._wanted: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._helping = self._ended = False
        self._took_s = time.monotonic()
        self._explain_at_s = 0.0
        self._thread = threading.Thread(target=self._poll, name="poll", daemon=True)

    def compose(self) -> ComposeResult:
        """The text, and the line in which a filter is typed."""
        yield Static("reading the recording ...", id="screen", markup=False)
        yield Input(placeholder="only ids with this in them", id="filter", disabled=True)

    def on_mount(self) -> None:
        """Begin to poll."""
        self._thread.start()
        self.set_interval(1.0, self._tell_age)

    def stop(self) -> None:
        """End the thread that polls, and wait for it."""
        self._stop.set()
        self._wanted.put(("", 0))
        # A poll on a busy machine takes a while, and changes nothing: nobody should wait for it.
        self._thread.join(_GRACE_S)

    # The thread that polls.

    def _poll(self) -> None:
        try:
            while not self._stop.is_set():
                update = self._live.poll(explain=False)
                self.call_from_thread(self.took, update)
                if update.ended:
                    self._serve(None)
                    return
                self._serve(max(_LEAST_PAUSE_S, self._interval_s - self._explain()))
        except GpucorrelateError as exc:
            if not self._stop.is_set():
                self.error = exc
                self.call_from_thread(self.exit)
        except RuntimeError:  # the program ended meanwhile
            if not self._stop.is_set():
                raise

    def _explain(self) -> float:
        """Report what ended, unless it was done just now; returns the seconds that it took.

        Where CPUs are scarce it takes many times its CPU time, in which the screen stands still.
        """
        begun_s = time.monotonic()
        if begun_s < self._explain_at_s:
            return 0.0
        if reports := self._live.explain():
            self.call_from_thread(self.explained, reports)
        took_s = time.monotonic() - begun_s
        self._explain_at_s = begun_s + 3 * took_s
        return took_s

    def _serve(self, wait_s: float | None) -> None:
        """Wait, and write the reports that are asked for meanwhile."""
        until = None if wait_s is None else time.monotonic() + wait_s
        while not self._stop.is_set():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            try:
                wanted, arrival_ns = self._wanted.get(timeout=left)
            except queue.Empty:
                return
            if wanted:
                self.call_from_thread(self.say, self._write(wanted, arrival_ns))

    def _write(self, wanted: str, arrival_ns: int) -> str:
        report = self._memory.report(wanted) or self._live.report(wanted, arrival_ns)
        if report is None:
            return f"its events are held no more: gpucorrelate report {self._place} --request ID"
        try:
            return f"written: {write_report(report, self._folder)}"
        except GpucorrelateError as exc:
            return f"not written: {exc.message}"

    # Showing.

    def took(self, update: LiveUpdate) -> None:
        """There is an update."""
        self._memory = self._memory.take(update)
        self._took_s = time.monotonic()
        self._ended = update.ended
        if self.view.paused:
            return
        self._update = update
        self.view = replace(self._memory.into(self.view), stale_s=0)
        self.draw()

    def _tell_age(self) -> None:
        """Say so when nothing new has come for long: numbers that stand still look like news."""
        age_s = time.monotonic() - self._took_s
        if not self.view.paused and not self._ended and age_s > _STALE_S + 2 * self._interval_s:
            self.view = replace(self.view, stale_s=int(age_s))
            self.draw()

    def explained(self, reports: tuple[RequestReport, ...]) -> None:
        """There are reports of requests that ended."""
        self._memory = self._memory.explained(reports)
        if not self.view.paused:
            self.view = self._memory.into(self.view)
            self.draw()

    def say(self, message: str) -> None:
        """Something for the user to read, until the next key."""
        self.view = replace(self.view, message=message)
        self.draw()

    def draw(self) -> None:
        """Draw the screen."""
        place = self.query_one("#screen", Static)
        if self._helping:
            place.update(Text(_HELP))
        elif self._update is not None:
            size = self.size
            self.view = replace(self.view, width=size.width, height=size.height)
            place.update(top_view.screen(self._update, self.view))

    def on_resize(self, event: Resize) -> None:
        """The terminal has another size."""
        del event
        self.draw()

    def _change(self, view: View) -> None:
        self.view = replace(view, message="")
        self.draw()

    # Keys.

    def on_key(self) -> None:
        """Any key leaves the help."""
        if self._helping:
            self._helping = False
            self.draw()

    def action_pause(self) -> None:
        """Let the screen stand still, or go on."""
        self._change(self._memory.into(replace(self.view, paused=not self.view.paused)))

    def action_sort(self) -> None:
        """The next order."""
        at = top_view.SORTS.index(self.view.sort)
        self._change(replace(self.view, sort=top_view.SORTS[(at + 1) % len(top_view.SORTS)]))

    def action_other(self) -> None:
        """The other list."""
        self._change(replace(self.view, finished=not self.view.finished, selected=""))

    def action_move(self, by: int) -> None:
        """Another row."""
        if self._update is not None:
            self._change(top_view.moved(self._update, self.view, by))

    def action_help(self) -> None:
        """Help, until any key."""
        self._helping = True
        self.draw()

    def action_filter(self) -> None:
        """Ask for a text."""
        line = self.query_one("#filter", Input)
        line.value = self.view.pattern
        line.disabled, line.display = False, True
        line.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A text was given."""
        self._done_typing()
        self._change(replace(self.view, pattern=event.value.strip(), selected=""))

    def action_leave(self) -> None:
        """Neither a filter nor help."""
        self._helping = False
        self._done_typing()
        self.draw()

    def _done_typing(self) -> None:
        line = self.query_one("#filter", Input)
        line.disabled, line.display = True, False
        self.set_focus(None)

    def action_write(self) -> None:
        """Write the report of the selected request."""
        if self._update is None:
            return
        keys = top_view.keys_of(self._update, self.view)
        if not keys:
            self.say("no request is selected")
            return
        wanted = self.view.selected if self.view.selected in keys else keys[0]
        arrivals = {f.internal_id or f.request_id: f.arrival_ns for f in self._update.in_flight}
        arrivals |= {one.done.internal_id: one.done.arrival_ns for one in self.view.slowest}
        self.say("writing the report ...")
        self._wanted.put((wanted, arrivals.get(wanted, 0)))
