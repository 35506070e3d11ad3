# SPDX-License-Identifier: Apache-2.0
"""Names that came from outside, made fit for a terminal: harmless, and cut where they are long.

Request ids are chosen by clients and thread names by anybody, so both may hold escape
sequences, line breaks or letters that turn the line around.
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

CUT = "…"

# Marks: any number of them piles up on one cell.
_MARKS = frozenset({"Mn", "Me", "Mc"})


def _escape(letter: str) -> str:
    # Not printable are controls, formats (among them those that turn the text around), surrogates,
    # private and unassigned letters, and every separator but the blank.
    if letter.isprintable() and unicodedata.category(letter) not in _MARKS:
        return letter
    point = ord(letter)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def safe(text: str) -> str:
    """The text with everything a terminal would act on written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escape, text))


def width_of(text: str) -> int:
    """Cells of a terminal the text takes."""
    return len(text) if text.isascii() else cell_len(text)


def pad(text: str, width: int) -> str:
    """The text, cut or filled with blanks on the right to ``width`` cells."""
    return set_cell_size(clip(text, width), width)


def rjust(text: str, width: int) -> str:
    """The text, cut or filled with blanks on the left to ``width`` cells."""
    text = clip(text, width)
    return " " * (width - width_of(text)) + text


def clip(text: str, width: int) -> str:
    """At most ``width`` cells: the beginning, with a mark where the end is cut off."""
    text = safe(text)
    if width_of(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + CUT if width > 0 else ""


def clip_middle(text: str, width: int, tail: int | None = None) -> str:
    """At most ``width`` cells: both ends, with a mark where the middle is cut out.

    Args:
        text: The text.
        width: Cells it may take.
        tail: Letters of its end to keep; a half of what fits when not given.
    """
    text = safe(text)
    if width_of(text) <= width:
        return text
    if width < 3 or not text.isascii():
        return clip(text, width)
    tail = (width - 1) // 2 if tail is None else min(tail, width - 1)
    return text[: width - 1 - tail] + CUT + text[len(text) - tail :]


def wrap_items(items: Iterable[str], width: int, between: str = ", ") -> list[str]:
    """Lines of at most ``width`` cells, broken between items and never inside one."""
    room = width - len(between.rstrip())
    lines: list[str] = []
    for item in items:
        text = clip(item, room)
        if lines and width_of(lines[-1]) + len(between) + width_of(text) <= room:
            lines[-1] += between + text
        else:
            if lines:
                lines[-1] += between.rstrip()
            lines.append(text)
    return lines


def wrap_words(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` cells, broken at blanks; longer words are cut."""
    return wrap_items(safe(text).split(), width, between=" ")


def short_ids(ids: Sequence[str], width: int) -> list[str]:
    """Ids that fit ``width`` cells and still tell the ids apart, where that is possible.

    All are cut at the same place: near the end, unless another place tells more of them apart.
    A cut id is accepted by :func:`match_ids`, so that what a list shows can be pasted back.
    """
    fit = [safe(one) for one in ids]
    room = max(width - 1, 0)
    forms = [
        [clip_middle(one, width, tail) for one in fit]
        for tail in (0, room // 4, room // 2, room * 3 // 4, room)
    ]
    first, last = min(fit, default=""), max(fit, default="")
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    forms.append([clip(CUT + one[alike:], width) for one in fit])
    return max(forms, key=lambda form: len(set(form)))


def match_ids(wanted: str, ids: Sequence[Sequence[str]]) -> list[int]:
    """Which of several a user can mean, each of which goes by one or more ids.

    The closest reading that fits any of them counts: an id as it is; a part of one that dashes
    cut off, for the engine puts ``cmpl-`` in front of the id that the client sent and numbers
    behind it; the beginning of an id, or of such a part. With a mark or a wildcard in it the text
    is a pattern.

    Args:
        wanted: An id or a part of one, a shell pattern (``*``, ``?``, ``[...]``), or an id as a
            list shows it, cut with ``…``.
        ids: The ids of each.

    Returns:
        Places in ``ids``.
    """
    for fits in _readings(wanted):
        found = [at for at, names in enumerate(ids) if any(map(fits, names))]
        if found:
            return found
    return []


def _readings(wanted: str) -> Iterator[Callable[[str], object]]:
    """What a text can mean, the closest reading first: whether an id is meant by it."""
    if not wanted:
        return
    yield lambda name: name == wanted
    if CUT in wanted:
        cut = re.compile(".*".join(map(re.escape, wanted.split(CUT))), re.DOTALL)
        yield lambda name: cut.fullmatch(safe(name))
        return
    if any(letter in wanted for letter in "*?["):
        yield re.compile(fnmatch.translate(wanted)).match
        return
    yield lambda name: f"-{wanted}-" in f"-{name}-"
    yield lambda name: name.startswith(wanted)
    yield lambda name: f"-{wanted}" in name


def named(names: Sequence[str], most: int = 4) -> str:
    """Names one after another, and how many more there are than are named."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
