# SPDX-License-Identifier: Apache-2.0
"""How often explanations are right: truth and segments in, shares and errors out. Pure.

docs/verify.md says what each figure means and why a wrong answer cannot score well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.report.values import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpucorrelate.correlator.report.values import Segment
    from gpucorrelate.verify.truth import Injection, Operation, Played

#: What is not known; never right, unless the truth is that it cannot be known.
UNKNOWN = frozenset({Category.UNEXPLAINED, Category.UNOBSERVED})
_RUNNING = frozenset({Category.CPU, Category.HOST, Category.PAGE_FAULT})
_QUEUED = frozenset({Category.RUN_QUEUE, Category.PREEMPTED, Category.THROTTLED})

#: What the share of right answers must reach, and errors must stay below.
CATEGORY_TARGET, CULPRIT_TARGET, LEAST_TARGET = 0.95, 0.90, 0.80
FALSE_TARGET = 0.01
BOUNDARY_TARGET_NS = 200_000


@dataclass(frozen=True)
class Score:
    """How well a scenario, or all of them, were explained.

    Attributes:
        name: The scenario; ``total`` for all.
        operations: Operations with injections.
        controls: Operations without.
        injections: Delays.
        injected_ns: Their lengths, without what was set aside.
        category_ns: Of it, said to be of a right category.
        culprit_ns: Of it, blamed on the right one.
        unknown_ns: Of it, not explained or not observed, where more could be known.
        control_ns: Lengths of the controls.
        false_ns: Of it, blamed on what was not there.
        limited_ns: Of it, said to be without CPU quota, and so it was by the kernel's count.
        outside_ns: In operations with injections, the time outside of these.
        spill_ns: Of it, blamed on the injection's culprit all the same.
        errors_ns: How far each start and end of an injection was missed, ascending.
        confusion: Expected categories, found category, and for how long.
    """

    name: str
    operations: int = 0
    controls: int = 0
    injections: int = 0
    injected_ns: int = 0
    category_ns: int = 0
    culprit_ns: int = 0
    unknown_ns: int = 0
    control_ns: int = 0
    false_ns: int = 0
    limited_ns: int = 0
    outside_ns: int = 0
    spill_ns: int = 0
    errors_ns: tuple[int, ...] = ()
    confusion: tuple[tuple[str, Category, int], ...] = ()

    @property
    def category_share(self) -> float | None:
        """Share of the injected time in a right category."""
        return _share(self.category_ns, self.injected_ns)

    @property
    def culprit_share(self) -> float | None:
        """Share of the injected time blamed on the right one."""
        return _share(self.culprit_ns, self.injected_ns)

    @property
    def unknown_share(self) -> float | None:
        """Share of the injected time that is called unknown and need not be."""
        return _share(self.unknown_ns, self.injected_ns)

    @property
    def false_share(self) -> float | None:
        """Share of the controls' time blamed on what was not there."""
        return _share(self.false_ns, self.control_ns)

    @property
    def spill_share(self) -> float | None:
        """Share of the time around injections blamed on their culprit."""
        return _share(self.spill_ns, self.outside_ns)

    def boundary_ns(self, share: float) -> int | None:
        """The error that so large a share of the boundaries does not exceed."""
        if not self.errors_ns:
            return None
        at = max(0, -(-len(self.errors_ns) * round(share * 1000) // 1000) - 1)
        return self.errors_ns[at]

    @property
    def attributable(self) -> bool:
        """Whether the cause can be attributed: enough is right, and little else is blamed."""
        shares = (self.category_share or 0.0, self.culprit_share or 0.0)
        return min(shares) >= LEAST_TARGET and (self.false_share or 0.0) < FALSE_TARGET

    @property
    def shares_reached(self) -> bool:
        """Whether, as a total, the shares are what they should be."""
        return (
            (self.category_share or 0.0) >= CATEGORY_TARGET
            and (self.culprit_share or 0.0) >= CULPRIT_TARGET
            and (self.false_share or 0.0) < FALSE_TARGET
        )

    @property
    def within_targets(self) -> bool:
        """The same, and the boundaries too: on a machine that is not busy."""
        boundary = self.boundary_ns(0.95)
        return self.shares_reached and boundary is not None and boundary < BOUNDARY_TARGET_NS


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def of(played: Played) -> Score:
    """The score of one scenario.

    Raises:
        ValueError: not every operation has its segments.
    """
    if len(played.explained) != len(played.operations):
        raise ValueError(f"{played.name}: segments of some operations are missing")
    injected: dict[int, list[Injection]] = defaultdict(list)
    for injection in played.injections:
        injected[injection.operation].append(injection)
    controls = {op.number for op in played.operations if op.control}
    real = [one for one in played.injections if one.operation not in controls]
    judged = _Sums()
    for op, segments in zip(played.operations, played.explained, strict=True):
        if op.control:
            judged.control(op, segments, injected[op.number], real)
        else:
            judged.operation(op, segments, injected[op.number])
    return judged.score(played.name)


def total(scores: Iterable[Score], name: str = "total") -> Score:
    """All scenarios as one: times add up, errors are pooled."""
    all_of = list(scores)
    confusion: Counter[tuple[str, Category]] = Counter()
    for score in all_of:
        for expected, found, length_ns in score.confusion:
            confusion[expected, found] += length_ns
    sums = {name: sum(getattr(score, name) for score in all_of) for name in _SUMMED}
    errors = tuple(sorted(error for score in all_of for error in score.errors_ns))
    return _score(name, sums, errors, _rows(confusion))


_SUMMED = (
    "operations", "controls", "injections", "injected_ns", "category_ns", "culprit_ns",
    "unknown_ns", "control_ns", "false_ns", "limited_ns", "outside_ns", "spill_ns",
)  # fmt: skip
Confusion = tuple[tuple[str, Category, int], ...]


def _score(
    name: str, sums: Mapping[str, int], errors_ns: tuple[int, ...], confusion: Confusion
) -> Score:
    numbers: dict[str, Any] = {what: sums.get(what, 0) for what in _SUMMED}
    return Score(name, errors_ns=errors_ns, confusion=confusion, **numbers)


def _rows(confusion: Mapping[tuple[str, Category], int]) -> Confusion:
    return tuple((*key, length_ns) for key, length_ns in sorted(confusion.items()))


class _Sums:
    """Adds up the judgements of one scenario's operations."""

    def __init__(self) -> None:
        self._ns: Counter[str] = Counter()
        self._errors: list[int] = []
        self._confusion: Counter[tuple[str, Category]] = Counter()

    def score(self, name: str) -> Score:
        errors, confusion = tuple(sorted(self._errors)), _rows(self._confusion)
        return _score(name, self._ns, errors, confusion)

    def operation(
        self, op: Operation, segments: Sequence[Segment], injections: Sequence[Injection]
    ) -> None:
        """An operation with injections."""
        self._ns["operations"] += 1
        for injection in injections:
            self._ns["injections"] += 1
            self._injection(op.tid, injection, segments)
            self._errors += boundary_errors(op.tid, injection, segments, injections)
        inside = [(one.start_ns, one.end_ns) for one in injections]
        for segment, start, end in _without(segments, inside, (op.start_ns, op.end_ns)):
            self._ns["outside_ns"] += end - start
            if any(blames(segment, one) for one in injections if not one.kind):
                self._ns["spill_ns"] += end - start

    def _injection(self, tid: int, injection: Injection, segments: Sequence[Segment]) -> None:
        expected = "|".join(sorted(injection.categories))
        found: Counter[str] = Counter()
        for segment in segments:
            part = _overlap(segment, injection.start_ns, injection.end_ns)
            if not part:
                continue
            self._confusion[expected, segment.category] += part
            right = segment.category in injection.categories
            unknown = segment.category in UNKNOWN and not right
            found["category_ns"] += part * right
            found["unknown_ns"] += part * unknown
            # The right one blamed for something unknown is no answer.
            found["culprit_ns"] += part * (blames(segment, injection) and not unknown)
        judged = judged_ns(tid, injection, segments)
        self._ns["injected_ns"] += judged
        for name, part in found.items():
            self._ns[name] += min(part, judged)

    def control(
        self,
        op: Operation,
        segments: Sequence[Segment],
        known: Sequence[Injection],
        real: Sequence[Injection],
    ) -> None:
        """An operation in which nothing was injected."""
        self._ns["controls"] += 1
        self._ns["control_ns"] += op.end_ns - op.start_ns
        spans = [(one.start_ns, one.end_ns) for one in known]
        pieces = list(_without(segments, spans, (op.start_ns, op.end_ns)))
        self._ns["false_ns"] += false_ns(op, pieces, real)
        if op.accounts is not None:
            said = sum(end - start for segment, start, end in pieces if _is_throttled(segment))
            self._ns["limited_ns"] += min(said, op.accounts.throttled_ns)


Piece = tuple["Segment", int, int]


def false_ns(op: Operation, pieces: Sequence[Piece], real: Sequence[Injection]) -> int:
    """How much of a control is blamed on what cannot have been there.

    Time blamed on who or what is at fault in the injected operations; on a CPU quota, for longer
    than the kernel counted for the cgroup; page faults where there were none; and time off the CPU
    beyond what the kernel's own accounts of the thread leave. Where two of these hold of the same
    time it counts once.

    Args:
        op: The control.
        pieces: What was said of it, with the time each piece covers.
        real: Injections of the scenario's other operations.
    """

    def found(check: Callable[[Segment], bool]) -> int:
        return sum(end - start for segment, start, end in pieces if check(segment))

    def is_blamed(segment: Segment) -> bool:
        return any(blames(segment, one) for one in real if one.culprits)

    accounts = op.accounts
    blamed = found(is_blamed)
    throttled = found(lambda s: _is_throttled(s) and not is_blamed(s))
    if accounts is None:
        return blamed + throttled
    blamed += max(0, throttled - accounts.throttled_ns)

    def is_off(segment: Segment) -> bool:
        known = segment.category not in UNKNOWN
        return known and (segment.actor.tid != op.tid or segment.category not in _RUNNING)

    away = max(0, op.end_ns - op.start_ns - accounts.cpu_ns) + accounts.notice_ns
    excess = found(is_off) - away
    blocked = found(lambda s: is_off(s) and s.category not in _QUEUED)
    excess = max(excess, blocked - max(0, away - accounts.queued_ns))
    faulted = 0
    if not accounts.faults:
        faulted = found(lambda s: s.category is Category.PAGE_FAULT and s.actor.tid == op.tid)
    return max(blamed, excess, 0) + faulted


def _is_throttled(segment: Segment) -> bool:
    return segment.category is Category.THROTTLED


def judged_ns(tid: int, injection: Injection, segments: Sequence[Segment]) -> int:
    """Length of an injection without what is set aside.

    That is what the answer says and the kernel's accounts confirm, and no more: that the
    operation's own thread ran, and that who waited or acted was ready without a CPU.
    """
    ran = queued = 0
    for segment in segments:
        if segment.category in injection.categories:
            continue
        part = _overlap(segment, injection.start_ns, injection.end_ns)
        ran += part * (segment.actor.tid == tid and segment.category in _RUNNING)
        queued += part * (segment.category in _QUEUED)
    aside = min(ran, injection.cpu_ns) + min(queued, injection.queued_ns)
    return max(0, injection.length_ns - aside)


def _overlap(segment: Segment, start_ns: int, end_ns: int) -> int:
    return max(0, min(segment.end_ns, end_ns) - max(segment.start_ns, start_ns))


def _without(
    segments: Sequence[Segment], spans: Sequence[tuple[int, int]], within: tuple[int, int]
) -> Iterable[Piece]:
    """Pieces of the segments that lie in an interval and in none of the spans."""
    for segment in segments:
        start, last = max(segment.start_ns, within[0]), min(segment.end_ns, within[1])
        for low, high in sorted(spans):
            if start < min(low, last):
                yield segment, start, min(low, last)
            start = max(start, high)
        if start < last:
            yield segment, start, last


def blames(segment: Segment, injection: Injection) -> bool:
    """Whether a stretch blames whoever or whatever is to blame for an injection."""
    cause = segment.cause
    if injection.culprits:
        by = cause.actor.tid if cause is not None and cause.actor is not None else 0
        return segment.actor.tid in injection.culprits or by in injection.culprits
    what, _, name = injection.kind.partition(" ")
    verb, detail = ("", "") if cause is None else (cause.verb, cause.detail)
    return {
        "timer": segment.category is Category.SLEEP and verb == "timer",
        "disk": segment.category is Category.DISK,
        "file": bool(name) and detail == name,
        "memory": segment.category is Category.PAGE_FAULT and detail == "anonymous memory",
        "network": segment.category is Category.NETWORK,
        "cgroup": segment.category is Category.THROTTLED,
        "nobody": segment.category in UNKNOWN and (cause is None or cause.actor is None),
    }.get(what, False)


def boundary_errors(
    tid: int,
    injection: Injection,
    segments: Sequence[Segment],
    all_of: Sequence[Injection] = (),
) -> tuple[int, int]:
    """How far an injection's start and end were missed.

    What was found of it reaches from the first to the last segment within it that is of a right
    category and blames the right one, and on to both sides as far as such segments touch each
    other. Where nothing was found, both ends are missed by all that is judged of it. Waiting for a
    CPU that the kernel's accounts confirm lies between what was made and what was found, and is no
    error; nor is what lies in another injection of which it is right as well.

    Args:
        tid: The operation's thread.
        injection: Which.
        segments: What was said of the operation.
        all_of: All injections of the operation.
    """
    right = [_is_right(segment, injection) for segment in segments]
    within = [
        k
        for k, segment in enumerate(segments)
        if right[k] and _overlap(segment, injection.start_ns, injection.end_ns)
    ]
    if not within:
        return (judged_ns(tid, injection, segments),) * 2
    first, last = within[0], within[-1]
    while first and right[first - 1] and segments[first - 1].end_ns == segments[first].start_ns:
        first -= 1
    while (
        last + 1 < len(segments)
        and right[last + 1]
        and segments[last].end_ns == segments[last + 1].start_ns
    ):
        last += 1
    start, end = segments[first].start_ns, segments[last].end_ns
    early = _queued(segments, injection.start_ns, start, injection.queued_ns)
    late = _queued(segments, end, injection.end_ns, injection.queued_ns - early)
    others = [other for other in all_of if other is not injection]
    early += _shared(segments[first : last + 1], others, (start, injection.start_ns))
    late += _shared(segments[first : last + 1], others, (injection.end_ns, end))
    return abs(start - injection.start_ns) - early, abs(end - injection.end_ns) - late


def _is_right(segment: Segment, injection: Injection) -> bool:
    return segment.category in injection.categories and blames(segment, injection)


def _shared(
    segments: Sequence[Segment], others: Sequence[Injection], within: tuple[int, int]
) -> int:
    """How much of a stretch lies in other injections of which the segments there are right."""
    return sum(
        _overlap(segment, max(other.start_ns, within[0]), min(other.end_ns, within[1]))
        for other in others
        for segment in segments
        if _is_right(segment, other)
    )


def _queued(segments: Sequence[Segment], start_ns: int, end_ns: int, most_ns: int) -> int:
    """How much of a stretch is said to be waiting for a CPU, as far as the kernel confirms it."""
    found = sum(_overlap(s, start_ns, end_ns) for s in segments if s.category in _QUEUED)
    return max(0, min(found, most_ns))
