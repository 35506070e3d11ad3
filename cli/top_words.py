# SPDX-License-Identifier: Apache-2.0
"""In words: who makes requests wait, and what one in flight waits for now."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.values import Category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.current import Hold, Holder
    from gpucorrelate.correlator.report.values import Actor, Share, Verdict
    from gpucorrelate.daemon.live_values import Flight

#: From this length on what somebody is in now says more than the last second's shares.
STUCK_NS = 250_000_000
#: What shares of a request's last stretch are shares of.
_STRETCH_NS = 1_000_000_000
#: A second part of the last stretch is told from this share on.
_LEAST_PERCENT = 15

_NO_CPU = frozenset({Category.RUN_QUEUE, Category.PREEMPTED})
_PHRASES = {
    Category.PAGE_FAULT: "page faults",
    Category.THROTTLED: "out of CPU quota",
    Category.SLEEP: "asleep",
    Category.DISK: "waits for a disk",
    Category.NETWORK: "waits for the network",
    Category.IRQ: "waits for an interrupt",
    Category.EXTERNAL: "waits for a process that is not followed",
    Category.LOCK: "waits for a lock",
    Category.MESSAGE: "waits for a message",
    Category.SPIN_HANDOFF: "notices by polling what was there",
    Category.UNOBSERVED: "not observed",
    Category.UNEXPLAINED: "unexplained",
    Category.GPU: "work on the GPU",
    Category.GPU_EARLIER: "an earlier step's work on the GPU",
    Category.LAUNCH_GAP: "launched, not begun on the GPU",
    Category.QUEUE_GAP: "GPU free, not begun",
    Category.SYNC_RETURN: "GPU done, the call had not returned",
}


def culprit(holder: Holder) -> tuple[str, str]:
    """Who made requests wait, and how.

    Where somebody waited for a CPU it is whoever had it, as far as that is known.
    """
    label, what = holder.actor.label, holder.what
    if holder.category in _NO_CPU:
        if holder.by is not None:
            return holder.by.shown, f"had the CPU that {label} waited for"
        return label, "waited for a CPU; who had it is not known"
    if holder.category is Category.CPU:
        return label, what or "on a CPU, in nothing named"
    if holder.category is Category.GIL:
        sure = "probably held" if "probably" in holder.cause else "held"
        return label, f"{sure} the interpreter lock"
    if holder.category is Category.THROTTLED:
        return label, holder.cause or _PHRASES[holder.category]
    phrase = _PHRASES.get(holder.category, str(holder.category))
    if holder.category in (Category.UNEXPLAINED, Category.UNOBSERVED):
        return label, f"{phrase}: {holder.cause}" if holder.cause else phrase
    return label, f"{phrase} in {what}" if what else phrase


def culprits(holders: Sequence[Holder]) -> list[tuple[str, str, int]]:
    """Who made requests wait, how, and for how long; what reads alike is one, the most first."""
    sums: Counter[tuple[str, str]] = Counter()
    for holder in holders:
        sums[culprit(holder)] += holder.length_ns
    return [(who, how, length_ns) for (who, how), length_ns in sums.most_common()]


def why(verdict: Verdict, wall_ns: int) -> str:
    """A verdict on a request that ended, in few words."""
    if not verdict.parts:
        return verdict.text
    shares = (f"{_percent(p.length_ns, wall_ns)} {p.what}{_ran(p)}" for p in verdict.parts)
    return ", ".join(shares)


def _ran(part: Share) -> str:
    """Who had the CPU, where it was one and the same for half of the time."""
    if part.ran is None or 2 * part.ran_ns < part.length_ns:
        return ""
    return f" ({part.ran.label} ran)"


def _percent(part_ns: int, whole_ns: int) -> str:
    return f"{100 * part_ns // max(1, whole_ns)}%"


def waits_for(flight: Flight) -> str:
    """What a request in flight waits for, in one line: the moment if it lasts, or the last second.

    Whoever is only thought to end a wait is told as that.
    """
    now = flight.now
    if now is not None and now.for_ns >= STUCK_NS and flight.age_ns >= STUCK_NS:
        return held(now)
    parts: list[str] = []
    for category, length_ns in _kinds(flight)[:2]:
        if parts and 100 * length_ns < _LEAST_PERCENT * _STRETCH_NS:
            break
        parts.append(f"{_percent(length_ns, _STRETCH_NS)} {_mostly(flight, category, length_ns)}")
    if parts:
        return ", ".join(parts)
    return held(now) if now is not None else "not known yet"


def _kinds(flight: Flight) -> list[tuple[Category, int]]:
    """Where the last second went, by category, the most first; all lack of a CPU is one."""
    sums: Counter[Category] = Counter()
    for category, length_ns in flight.shares:
        sums[Category.RUN_QUEUE if category in _NO_CPU else category] += length_ns
    return sums.most_common()


def _mostly(flight: Flight, category: Category, length_ns: int) -> str:
    """A category's time in words: who and what, if that was the same for half of it."""
    same = _NO_CPU if category in _NO_CPU else {category}
    largest = next((one for one in flight.recent if one.category in same), None)
    if largest is not None and 2 * largest.length_ns >= length_ns:
        return _short(largest)
    if category in _NO_CPU:
        return "no CPU"
    return "running" if category is Category.CPU else _PHRASES.get(category, str(category))


def held(now: Hold) -> str:
    """What somebody is in at this moment, and since when."""
    label, since = now.actor.label, units.duration(now.for_ns, 2)
    if now.category is Category.CPU:
        said = f"{label} on a CPU for {since}"
    elif now.what:
        said = f"{label} blocked {since} in {now.what.partition(' ')[0]}"
        said += f"; {_last(now.by)}" if now.by is not None else "; by whom is not known"
    elif now.category is Category.THROTTLED:
        said = f"{label} out of CPU quota for {since}"
    else:
        ran = f" ({now.by.label} had it)" if now.by is not None else ""
        said = f"{label} ready for {since}, no CPU{ran}"
    return said


def _last(by: Actor) -> str:
    return f"{by.label} ended the last one"


def _short(holder: Holder) -> str:
    who, what = culprit(holder)
    if holder.category in _NO_CPU:
        return f"no CPU: {who} had it" if holder.by is not None else f"no CPU: {who}"
    if holder.category is Category.CPU:
        return f"{holder.what or 'on a CPU'} in {who}"
    return f"{what} in {who}"
