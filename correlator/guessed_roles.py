# SPDX-License-Identifier: Apache-2.0
"""What threads seem to be there for, as the daemon guessed where their process does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.roles import ROLE, GuessedRole

if TYPE_CHECKING:
    from gpucorrelate.correlator.capture import Capture

_TID = "tid:"


def stated_roles(capture: Capture) -> dict[int, str]:
    """Thread -> the last role that its own process said it has."""
    rows = capture.table("thread")
    return {
        tid: capture.strings[role]
        for tid, role in zip(rows["tid"].tolist(), rows["role"].tolist(), strict=True)
        if capture.strings[role]
    }


def guessed_roles(capture: Capture) -> dict[int, GuessedRole]:
    """Thread -> the last role that was guessed for it, where its process never said one.

    Threads that have ended keep theirs. Where the process says which part it plays, the guess
    is about the thread's part in that alone.
    """
    said = stated_roles(capture)
    parts = {info.tgid: info.role for info in capture.streams if info.role not in ("", "?")}
    parts |= {tid: role.partition(".")[0] for tid, role in said.items()}
    process = _processes(capture)
    return {
        tid: _within(guess, parts.get(process.get(tid, 0), ""))
        for tid, guess in _latest(capture).items()
        if tid not in said
    }


def _processes(capture: Capture) -> dict[int, int]:
    rows = capture.table("task")
    return dict(zip(rows["tid"].tolist(), rows["tgid"].tolist(), strict=True))


def _latest(capture: Capture) -> dict[int, GuessedRole]:
    rows, strings = capture.table("change"), capture.strings
    wanted = {number for number, text in enumerate(strings) if text == ROLE}
    found: dict[int, tuple[int, GuessedRole]] = {}
    columns = (rows[name].tolist() for name in ("t_ns", "what", "subject", "after"))
    for t_ns, what, subject, after in zip(*columns, strict=True):
        if what not in wanted:
            continue
        guess, tid = GuessedRole.parse(strings[after]), strings[subject].removeprefix(_TID)
        if guess is None or not tid.isascii() or not tid.isdecimal():
            continue
        number = int(tid)
        if number not in found or found[number][0] <= t_ns:
            found[number] = (t_ns, guess)
    return {tid: guess for tid, (_, guess) in found.items()}


def _within(guess: GuessedRole, process: str) -> GuessedRole:
    if not process:
        return guess
    return GuessedRole(f"{process}.{guess.role.rpartition('.')[2]}", guess.basis)
