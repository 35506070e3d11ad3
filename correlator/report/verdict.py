# SPDX-License-Identifier: Apache-2.0
"""The verdict on a request in one sentence, or why there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import digest, units
from gpucorrelate.correlator.report.values import Category, Cause, Share, Verdict, Wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.values import Actor, Segment

#: From this share on, in per cent, the second largest part is said too.
_LEAST_SECOND = 10

_NO_CPU = frozenset({Category.RUN_QUEUE, Category.PREEMPTED, Category.THROTTLED})
_WAITING_FOR = {
    Category.LOCK: "a lock",
    Category.MESSAGE: "a message",
    Category.DISK: "the disk",
    Category.NETWORK: "the network",
    Category.IRQ: "an interrupt",
    Category.EXTERNAL: "a process that is not traced",
}
#: Segments in which the path's holder did not get on. Not the interpreter lock and other locks
#: that somebody traced held: of these the whole wait counts, whatever its holder did.
_STALLED = _NO_CPU | _WAITING_FOR.keys() | {Category.SLEEP, Category.PAGE_FAULT}
_HELD = ("held by", "probably held by")
_FOR_A_CPU = "waiting for a CPU"


# Category, identity of the actor, span, verb of the cause, identity of its actor.
_Kind = tuple[Category, int, str, str, int]


def of(
    segments: Sequence[Segment],
    waits: Sequence[Wait],
    doubts: Sequence[str] = (),
    *,
    so_far: bool = False,
) -> Verdict:
    """The verdict on a request.

    There is none where nothing was recorded, where something is wrong that could overturn any, or
    where what is known would not stay the largest part if all that is unknown went to the second.

    Args:
        segments: The partition of its wall time.
        waits: Waits on its path.
        doubts: What is wrong with the recording of it and does not show as unknown time.
        so_far: Whether the request went on after the recording's end.
    """
    whole = "the time so far" if so_far else "the wall time"
    whole_ns = digest.length(segments)
    parts, unknown_ns = _parts(segments)
    if not whole_ns:
        return _none("no verdict:", ("nothing was recorded of it",), unknown_ns)
    if doubts:
        return _none("no verdict, for what is missing could overturn it:", doubts, unknown_ns)
    ranked = [*(part.length_ns for part in parts), 0, 0]
    if unknown_ns and ranked[1] + unknown_ns >= ranked[0]:
        share = units.share(unknown_ns, whole_ns)
        return _none("no verdict:", (f"{share} of {whole} is unknown",), unknown_ns)
    said = parts[:1]
    if ranked[1] * 100 >= whole_ns * _LEAST_SECOND:
        said = parts[:2]
    stall = _longest_stall(segments, waits)
    text = _shares(said, unknown_ns, whole_ns, whole)
    return Verdict(f"{text}; {_stall(stall, waits, text)}", tuple(said), stall, unknown_ns)


def _none(why: str, doubts: Sequence[str], unknown_ns: int) -> Verdict:
    return Verdict(f"{why} {', '.join(doubts)}", unknown_ns=unknown_ns, doubts=tuple(doubts))


def _parts(segments: Sequence[Segment]) -> tuple[list[Share], int]:
    """What is known of the time, by what it went into, the largest first; and the rest."""
    # Thousands of segments have a few hundred kinds, and words and actors are slow to compare.
    # Whom a segment names lives as long as the segment, so its identity will do.
    kinds: dict[_Kind, Segment] = {}
    lengths: Counter[_Kind] = Counter()
    for segment in segments:
        cause = segment.cause
        verb, ran = (cause.verb, id(cause.actor)) if cause is not None else ("", 0)
        kind = (segment.category, id(segment.actor), segment.span, verb, ran)
        kinds.setdefault(kind, segment)
        lengths[kind] += segment.end_ns - segment.start_ns
    sums: Counter[str] = Counter()
    had_cpu: Counter[Actor] = Counter()
    unknown_ns = 0
    for kind, segment in kinds.items():
        if segment.category in digest.UNKNOWN_CATEGORIES:
            unknown_ns += lengths[kind]
            continue
        what = _what(segment)
        sums[what] += lengths[kind]
        if what == _FOR_A_CPU and segment.cause is not None and segment.cause.actor is not None:
            had_cpu[segment.cause.actor] += lengths[kind]
    parts = [Share(what, length_ns) for what, length_ns in sums.most_common()]
    for who, length_ns in had_cpu.most_common(1):
        parts = [
            replace(part, ran=who, ran_ns=length_ns) if part.what == _FOR_A_CPU else part
            for part in parts
        ]
    return parts, unknown_ns


def _what(segment: Segment) -> str:
    """What a known stretch of the path went into."""
    category, label = segment.category, segment.actor.shown
    cause = segment.cause or Cause("")
    if category is Category.THROTTLED:
        return f"{cause.verb or 'out of CPU quota'} {cause.detail}".rstrip()
    if category in _NO_CPU:
        return _FOR_A_CPU
    if category is Category.GIL:
        sure = "probably " if "probably" in cause.verb else ""
        return f"waiting for the interpreter lock, {sure}held by {label}"
    if category is Category.CPU:
        if cause.verb.startswith("holds the lock"):
            return f"waiting for a lock, held by {label}"
        return f"{segment.span or 'unnamed work'} in {label}"
    if category in _WAITING_FOR:
        return f"waiting for {_WAITING_FOR[category]} in {label}"
    if category is Category.SPIN_HANDOFF:
        return "noticing by polling what was already there"
    return f"{'page faults' if category is Category.PAGE_FAULT else category.value} in {label}"


def _longest_stall(segments: Sequence[Segment], waits: Sequence[Wait]) -> Wait | None:
    """The longest wait for a lock, or stretch in which the path's holder did not get on."""
    found = max(
        (wait for wait in waits if wait.cause.verb in _HELD),
        key=lambda wait: wait.length_ns,
        default=None,
    )
    longest_ns = found.length_ns if found is not None else 0
    first: Segment | None = None
    end_ns = 0
    for segment in segments:
        if segment.category not in _STALLED:
            continue
        if first is None or segment.start_ns != end_ns or not _alike(first, segment):
            first = segment
        # Where a phase begins the path is cut, but nothing happened.
        end_ns = segment.end_ns
        if end_ns - first.start_ns > longest_ns:
            longest_ns = end_ns - first.start_ns
            cause = first.cause or Cause("")
            kind = first.category.value
            found = Wait(first.start_ns, end_ns, first.actor, kind, cause, first.phase)
    return found


def _alike(a: Segment, b: Segment) -> bool:
    return (a.category, a.actor, a.cause) == (b.category, b.actor, b.cause)


def _shares(parts: Sequence[Share], unknown_ns: int, whole_ns: int, whole: str) -> str:
    """``62% of the wall time was execute in ..., 20% waiting for a CPU``."""
    lengths = [part.length_ns for part in parts]
    rest_ns = whole_ns - sum(lengths) - unknown_ns
    *per_cent, unknown, _ = units.apportion([*lengths, unknown_ns, rest_ns], 100)
    said: list[str] = []
    for n, part in zip(per_cent, parts, strict=True):
        ran_per_cent = part.ran_ns * 100 // whole_ns
        while_ = f"while {part.ran.shown} ran" if part.ran is not None else ""
        if while_ and part.ran_ns * 100 < part.length_ns * 99:
            while_ = f"({ran_per_cent or '<1'}% {while_})"
        was = f" of {whole} was" if not said else ""
        said.append(f"{n}%{was} {part.what} {while_}".rstrip())
    return ", ".join([*said, f"{unknown}% is unknown"] if unknown else said)


def _stall(stall: Wait | None, waits: Sequence[Wait], said: str) -> str:
    """``the longest stall, 7.40 ms, was ...``, behind what is said already."""
    if stall is None:
        return "nothing held it up"
    length = units.duration(stall.length_ns)
    who, cause = stall.waiter.shown, stall.cause
    culprit = cause.actor.shown if cause.actor is not None else ""
    if cause.actor is not None and culprit in said:
        culprit = cause.actor.label
    if cause.verb in _HELD:
        lock = stall.kind == "interpreter lock"
        doing = f"waiting for the {stall.kind}" if lock else f"in {stall.kind}"
        what = f"{doing}, {cause.verb} {culprit} {cause.detail}".rstrip()
    elif stall.kind == Category.THROTTLED:
        what = f"{cause.verb} {cause.detail}".rstrip()
    elif stall.kind in _NO_CPU:
        doing = _FOR_A_CPU if stall.kind == Category.RUN_QUEUE else stall.kind
        what = f"{doing} while {culprit} ran" if culprit else doing
    else:
        what = _doing(stall) + _kept(stall, waits)
    return f"the longest stall, {length}, was {who} {what}"


def _doing(stall: Wait) -> str:
    """What a thread did that did not get on."""
    cause = stall.cause
    if stall.kind == Category.SLEEP:
        return f"asleep ({cause.detail or cause.verb})" if cause.detail != "sleep" else "asleep"
    said = cause.text
    if stall.kind == Category.PAGE_FAULT:
        return f"in a page fault ({said})"
    return f"waiting for {_WAITING_FOR[Category(stall.kind)]} ({said})"


def _kept(stall: Wait, waits: Sequence[Wait]) -> str:
    """Who waited for the one that did not get on: the tightest wait around the stall."""
    around = [
        wait
        for wait in waits
        if wait.cause.actor == stall.waiter
        and wait.waiter != stall.waiter
        and wait.start_ns <= stall.start_ns
        and stall.end_ns <= wait.end_ns
    ]
    tight = min(around, key=lambda wait: wait.length_ns, default=None)
    return f" while {tight.waiter.shown} waited for it ({tight.kind})" if tight else ""
