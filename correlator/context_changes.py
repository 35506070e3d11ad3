# SPDX-License-Identifier: Apache-2.0
"""What of the host is no number: cgroups, NUMA placement, what threads were seen blocked in."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.correlator import context_rules as rules
from gpucorrelate.correlator.guessed_roles import guessed_roles
from gpucorrelate.correlator.report.context_values import ContextChange, ContextState
from gpucorrelate.correlator.search import grouped, last_at_most
from gpucorrelate.probes.wire.roles import ROLE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from gpucorrelate.correlator.capture import Capture, Table
    from gpucorrelate.probes.wire.roles import GuessedRole

    I64 = NDArray[np.int64]

_COLUMNS = ("subject", "what", "before", "after")


class Changes:
    """Changes of a recording, to be asked for any window of it.

    Args:
        capture: The recording.
        label: What people call a subject.
        ran_on: CPUs that threads were seen on.
    """

    def __init__(
        self, capture: Capture, label: Callable[[str], str], ran_on: frozenset[int]
    ) -> None:
        self._capture = capture
        self._strings = capture.strings
        self._label = label
        rows = capture.table("change")
        self._rows: Table = rows.select(np.argsort(rows["t_ns"], kind="stable"))
        self._ran_on = ran_on

    def within(
        self, start_ns: int, end_ns: int, concerns: Callable[[str], bool]
    ) -> tuple[ContextChange, ...]:
        """What became another within a window, and looks at threads that stood blocked in it."""
        t, since = self._rows["t_ns"], self._rows["since_ns"]
        low = int(np.searchsorted(t, start_ns))
        # Behind the window only what began to be so before its end.
        high = int(np.searchsorted(t, end_ns + self._longest_ns, side="right"))
        some = np.arange(low, max(low, high))
        look = self._is_look[some]
        some = some[np.where(look, t[some] <= end_ns, (since[some] <= end_ns) & (since[some] > 0))]
        found = []
        for i in some.tolist():
            subject, what, before, after = self._texts(i)
            if what == ROLE:
                continue  # a thread that is renamed does the same as before
            found.append(
                ContextChange(
                    int(t[i]), int(since[i]), subject, what, before, after,
                    self._label(subject), concerns(subject),
                )
            )  # fmt: skip
        return tuple(found)

    def states(self, end_ns: int, concerns: Callable[[str], bool]) -> tuple[ContextState, ...]:
        """How everything was at a moment, as far as it had been looked at by then."""
        found = []
        for i in self._latest(end_ns).tolist():
            subject, what, _, value = self._texts(i)
            if what == ROLE:
                value = self._role(subject) if concerns(subject) else ""
            if value:
                found.append(
                    ContextState(
                        int(self._rows["t_ns"][i]), subject, what, value,
                        rules.noted_state(what, value, self._machine),
                        self._label(subject), concerns(subject),
                    )
                )  # fmt: skip
        return tuple(found)

    def cgroups(self, pids: Collection[int], end_ns: int) -> frozenset[str]:
        """Cgroups that processes were in at a moment, in any hierarchy, and all above."""
        found: set[str] = set()
        for i in self._latest(end_ns).tolist():
            subject, what, _, path = self._texts(i)
            pid = subject.removeprefix("pid:")
            if what.startswith("cgroup") and pid.isdecimal() and int(pid) in pids:
                parts = [part for part in path.split("/") if part]
                found.update("/" + "/".join(parts[:n]) for n in range(len(parts) + 1))
        return frozenset(found)

    def quota_cgroups(self, pid: int, start_ns: int, end_ns: int) -> set[str]:
        """Cgroups with CPU quotas that a process may have been in during a window."""
        found: dict[str, str] = {}
        others: set[str] = set()
        for t_ns, since_ns, what, before, after in self._moves.get(f"pid:{pid}", ()):
            if t_ns <= start_ns:
                found[what] = after
            elif since_ns <= end_ns:
                others |= {before, after}
        return {path for path in (*found.values(), *others) if path}

    def _role(self, subject: str) -> str:
        """What a thread seems to be there for; empty where its process says it."""
        tid = subject.removeprefix("tid:")
        guess = self._roles.get(int(tid)) if tid.isdecimal() else None
        return guess.text if guess is not None else ""

    @cached_property
    def _roles(self) -> dict[int, GuessedRole]:
        return guessed_roles(self._capture)

    def _texts(self, i: int) -> tuple[str, str, str, str]:
        subject, what, before, after = (self._strings[int(self._rows[c][i])] for c in _COLUMNS)
        return subject, what, before, after

    @cached_property
    def _is_look(self) -> NDArray[np.bool_]:
        """Rows that say how it was at a moment, and not what became another."""
        wanted = [i for i, text in enumerate(self._strings) if text == rules.BLOCKED]
        found: NDArray[np.bool_] = np.isin(self._rows["what"], wanted)
        return found

    @cached_property
    def _longest_ns(self) -> int:
        """The longest time within which something is known to have changed."""
        since = self._rows["since_ns"]
        known = since > 0
        return int((self._rows["t_ns"] - since)[known].max(initial=0))

    @cached_property
    def _kept(self) -> tuple[I64, I64, I64, I64]:
        """Rows of states by subject and kind, their moments, and where each kind begins."""
        rows = np.flatnonzero(~self._is_look)
        number, first = grouped(self._rows["subject"][rows], self._rows["what"][rows])
        order = np.argsort(number, kind="stable")
        off = np.searchsorted(number[order], np.arange(len(first) + 1)).astype(np.int64)
        rows = rows[order]
        return rows, self._rows["t_ns"][rows], off[:-1], off[1:]

    def _latest(self, end_ns: int) -> I64:
        """Of every subject and kind the last row up to a moment."""
        rows, t, low, high = self._kept
        at = last_at_most(t, low, high, np.full(len(low), end_ns, np.int64))
        return rows[at[at >= low]]

    @cached_property
    def _machine(self) -> frozenset[int]:
        """CPUs that anybody was seen on or was allowed."""
        named = {
            self._strings[after]
            for what, after in zip(
                self._rows["what"].tolist(), self._rows["after"].tolist(), strict=True
            )
            if self._strings[what] == rules.BOUND
        }
        return self._ran_on | rules.widest(named)

    @cached_property
    def _moves(self) -> dict[str, list[tuple[int, int, str, str, str]]]:
        found: dict[str, list[tuple[int, int, str, str, str]]] = {}
        columns = ("t_ns", "since_ns", *_COLUMNS)
        for t_ns, since_ns, *texts in zip(*(self._rows[c].tolist() for c in columns), strict=True):
            subject, what, before, after = (self._strings[text] for text in texts)
            keys = what.removeprefix("cgroup of ").split(",")
            if what == "cgroup" or (what.startswith("cgroup of ") and "cpu" in keys):
                found.setdefault(subject, []).append((t_ns, since_ns, what, before, after))
        return found
