# SPDX-License-Identifier: Apache-2.0
"""Sections that the text of a request, a step and a whole run have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import digest, units
from gpucorrelate.correlator.report.names import pad, rjust, width_of, wrap_items, wrap_words
from gpucorrelate.correlator.report.page import BAD, DIM, GOOD, HEAD, LABEL_WIDTH, STYLES
from gpucorrelate.correlator.report.values import Category, PhaseName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.page import Page, Part
    from gpucorrelate.correlator.report.values import Ledger, Segment, Wait

_LABEL_WIDTH = 34
_WAITS = "  waits  "


def status_style(status: str) -> str:
    """The style that suits how a request or step ended."""
    if status.startswith(("finished", "ok", "done")):
        return GOOD
    return "yellow" if status.startswith("in flight") else BAD


def steps_text(steps: Sequence[int]) -> str:
    """``steps 41..73 (33)``."""
    if not steps:
        return "no step seen"
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"steps {steps[0]}..{steps[-1]} ({len(steps):,})"


def check_sum(page: Page, segments: Sequence[Segment], start_ns: int, end_ns: int) -> None:
    """Says loudly when the segments are not the exact partition they must be."""
    error = digest.tiling_error(segments, start_ns, end_ns)
    if error:
        page.line((f"THE SEGMENTS DO NOT ADD UP: {error}; please report this", BAD))


def path(
    page: Page, found: Sequence[Wait], segments: Sequence[Segment], top_waits: int | None = None
) -> None:
    """The longest waits, who held the path, and what of both was left out, if it counts."""
    top = top_waits or page.options.top
    rest = [_waits(page, found, digest.length(segments), top), _holders(page, segments)]
    if any(rest):
        page.line((" " * len(_WAITS) + "; ".join(filter(None, rest)), DIM))


def _waits(page: Page, found: Sequence[Wait], whole_ns: int, top: int) -> str:
    """The longest waits, each with who caused it; returns what is left out."""
    groups = digest.wait_groups(found)
    if not groups:
        page.line((_WAITS, HEAD), "none on the path")
        return ""
    shown, rest = groups[:top], groups[top:]
    widths = (
        min(max(width_of(_kind(group.longest)) for group in shown), 14),
        max(len(units.duration(group.longest.length_ns)) for group in shown),
    )
    label = _WAITS
    for group in shown:
        _wait(page, label, group, widths)
        label = " " * len(label)
    if rest and rest[0].longest.length_ns * 100 >= whole_ns:
        longest = units.duration(rest[0].longest.length_ns)
        return f"{units.plural(len(rest), 'more cause')}, no wait longer than {longest}"
    return ""


def _kind(wait: Wait) -> str:
    return Category.GIL.value if wait.kind == "interpreter lock" else wait.kind


def _wait(page: Page, label: str, group: digest.WaitGroup, widths: tuple[int, int]) -> None:
    wait = group.longest
    length = units.duration(wait.length_ns)
    lead = f"{pad(_kind(wait), widths[0])} {rjust(length, widths[1])}: "
    where = [f"({wait.waiter.label} {wait.phase.value}"]
    if group.count > 1:
        where[0] += ","
        where.append(f"{group.count:,} in {units.duration(group.length_ns)}")
    where[-1] += ")"
    # "Instead" goes without saying of a wait for a CPU, and makes most of these lines two.
    cause = wait.cause.text.removesuffix(" instead")
    room = page.width - len(label) - width_of(lead)
    for text in wrap_items([*cause.split(), *where], room, between=" "):
        page.line((label, HEAD), lead, text)
        label, lead = " " * len(label), " " * width_of(lead)


def _holders(page: Page, segments: Sequence[Segment]) -> str:
    """Who held the path how long, with what, and the longest stretch of each.

    Those beyond the first few are left out; returns them together from 1% on.
    """
    whole_ns = digest.length(segments)
    found = digest.holders(segments)
    shown, rest = found[: page.options.top], found[page.options.top :]
    width = min(max((width_of(holder.label) for holder in shown), default=0), _LABEL_WIDTH)
    scale = units.Scale.of(whole_ns)
    numbers = scale.numbers([holder.length_ns for holder in found])
    number_width = max(map(len, numbers), default=0)
    label = "  actors "
    for holder, number in zip(shown, numbers, strict=False):
        share = units.share(holder.length_ns, whole_ns)
        lead = (
            f"{pad(holder.label, width)} {rjust(number, number_width)} {scale.unit} {share:>6}  "
        )
        style = STYLES.get(holder.parts[0].category, "")
        room = page.width - len(label) - width_of(lead)
        page.line((label, HEAD), (lead, style), _parts(holder, room))
        label = " " * len(label)
    summed = sum(holder.length_ns for holder in rest)
    if summed * 100 >= whole_ns:
        others = units.plural(len(rest), "more actor")
        share = units.share(summed, whole_ns)
        return f"{others}, {units.duration(summed)}, {share}"
    return ""


def _parts(holder: digest.Holder, room: int) -> str:
    """What the actor did most, as far as it fits, and its longest stretch."""
    longest = holder.longest
    what = f" {_what(longest.category, longest.span)}" if len(holder.parts) > 1 else ""
    step = f" (step {longest.step})" if longest.step is not None else ""
    length = f"; longest {units.duration(longest.length_ns)}"
    for tail in (length + what + step, length + step, ""):
        text = _fitting(holder, room - width_of(tail))
        if text:
            return text + tail
    return _what(holder.parts[0].category, holder.parts[0].span)


def _fitting(holder: digest.Holder, room: int) -> str:
    """The actor's parts, the largest first, as many as fit, at most three; maybe none."""
    text = ""
    for part in holder.parts[:3]:
        piece = _what(part.category, part.span)
        if len(holder.parts) > 1:
            piece += f" {units.duration(part.length_ns)}"
        joined = f"{text}, {piece}" if text else piece
        if width_of(joined) > room:
            break
        text = joined
    return text


def _what(category: Category, span: str) -> str:
    return f"{category.value} {span}" if span else category.value


def mostly(segments: Sequence[Segment], room: int) -> str:
    """The largest holder of a stretch, and what it did most if that fits the room."""
    holder = next(iter(digest.holders(segments)), None)
    if holder is None:
        return "nobody known"
    who = f"{holder.label} {units.duration(holder.length_ns)}"
    what = _what(holder.parts[0].category, holder.parts[0].span)
    more = f" ({'mostly ' if len(holder.parts) > 1 else ''}{what})"
    return who + more if width_of(who + more) <= room else who


def unknown(
    page: Page, segments: Sequence[Segment], ledger: Ledger, lines: int | None = None
) -> None:
    """What is unknown, how much of the whole it is, and why; what is not covered follows."""
    whole_ns = digest.length(segments)
    parts = digest.unknown_parts(segments)
    summed = sum(part.length_ns for part in parts)
    if not segments:
        page.labelled("unknown", ["everything: nothing was recorded of it"])
    elif not parts:
        page.labelled("unknown", ["none: every nanosecond has a holder and a cause"])
    else:
        shown = 3 if summed * 100 >= whole_ns else 1
        said = [
            f"{part.category.value} {units.duration(part.length_ns)}{_in_phase(part.phase)}"
            f" on {part.label} ({part.reason or 'no reason recorded'})"
            for part in parts[:shown]
        ]
        if len(parts) > shown:
            rest = sum(part.length_ns for part in parts[shown:])
            said.append(f"{units.plural(len(parts) - shown, 'more stretch', 'more stretches')} "
                        f"{units.duration(rest)}")  # fmt: skip
        whole = units.share(summed, whole_ns)
        page.worded("unknown", f"{whole} of wall, {units.duration(summed)}: {', '.join(said)}")
    not_covered(page, ledger, lines)


def _in_phase(phase: PhaseName) -> str:
    """A profile's steps have no phases."""
    return "" if phase is PhaseName.UNKNOWN else f" in {phase.value}"


def not_covered(
    page: Page, ledger: Ledger, lines: int | None = None, more: Sequence[str] = ()
) -> None:
    """What no probe looked at and why; only its names where that takes more lines than given."""
    missing = (*ledger.missing, *more)
    if not missing:
        return
    whole = wrap_words("; ".join(missing), page.width - LABEL_WIDTH)
    if lines is None or len(whole) <= lines:
        page.noted("not covered", missing)
    else:
        names = [note.partition(":")[0] for note in missing]
        page.labelled("not covered", [*names[:-1], f"{names[-1]} (why: gpucorrelate report)"])


def ledger(page: Page, counts: Ledger, lines: int = 2) -> None:
    """What the report rests on, in a line or two; what was lost or does not match stands out."""
    bad = [line for line in counts.lines if line.bad]
    for line in bad[:4]:
        note = f" ({line.note})" if line.note else ""
        page.worded("LOST/WRONG", f"{line.name} {line.count:,}{note}", style=BAD)
    if len(bad) > 4:
        page.labelled("LOST/WRONG", [f"and {len(bad) - 4} more kinds of loss"], style=BAD)
    if not counts.lines:
        page.labelled("ledger", ["empty: nothing says what this rests on"], style=BAD)
        return
    items = [
        f"{line.name} {line.count:,}" for line in counts.lines if line.count and not line.check
    ]
    if not bad:
        checks = units.plural(sum(line.check for line in counts.lines), "check")
        items.insert(0, f"nothing lost, nothing mismatched ({checks})")
    lead: Part = (pad("ledger", LABEL_WIDTH), HEAD)
    for text in wrap_items(items, page.width - LABEL_WIDTH)[:lines]:
        page.line(lead, text.rstrip(","))
        lead = " " * LABEL_WIDTH
