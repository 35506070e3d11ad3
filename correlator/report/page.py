# SPDX-License-Identifier: Apache-2.0
"""Lines on a terminal or in a file: the little that all text renderings share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.names import pad, rjust, safe, width_of, wrap_items
from gpucorrelate.correlator.report.values import Category, PhaseName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NARROWEST = 60
# Below this width two blocks of bars no longer fit beside each other.
_SIDE_BY_SIDE = 76
_INDENT = "  "
LABEL_WIDTH = 12
_NAME_WIDTH = len(Category.SPIN_HANDOFF)
_EIGHTHS = " ▏▎▍▌▋▊▉"
# What a terminal without Unicode shows in place of the few letters beyond ASCII used here.
_PLAIN = str.maketrans({"█": "#", "…": "~", "·": "-", **dict.fromkeys(_EIGHTHS[1:], " ")})

STYLES: dict[str, str] = {
    Category.CPU: "green",
    Category.GIL: "red",
    Category.LOCK: "red",
    Category.MESSAGE: "cyan",
    Category.SPIN_HANDOFF: "cyan",
    Category.RUN_QUEUE: "yellow",
    Category.PREEMPTED: "yellow",
    Category.THROTTLED: "yellow",
    Category.SLEEP: "blue",
    Category.PAGE_FAULT: "magenta",
    Category.DISK: "magenta",
    Category.NETWORK: "blue",
    Category.IRQ: "blue",
    Category.EXTERNAL: "blue",
    Category.UNOBSERVED: "bright_black",
    Category.UNEXPLAINED: "bright_black",
    PhaseName.QUEUE: "yellow",
    PhaseName.PREFILL: "green",
    PhaseName.MIXED: "green",
    PhaseName.DECODE: "green",
    PhaseName.BETWEEN: "yellow",
    PhaseName.UNKNOWN: "bright_black",
}
HEAD, DIM, BAD, GOOD = "bold", "bright_black", "bold red", "green"

#: One stretch of a line, with or without a style.
Part = str | tuple[str, str]


@dataclass(frozen=True)
class TextOptions:
    """How text is rendered.

    Attributes:
        width: Columns of the terminal; no line is longer, and less than 60 counts as 60.
        color: Whether styles are written as escape sequences.
        unicode: Whether bars may use block characters; else ``#``.
        top: Rows shown of each list within a report.
    """

    width: int = 100
    color: bool = False
    unicode: bool = True
    top: int = 3


class _Console(Console):
    """A console that leaves a closed pipe to the caller; rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Let the error through that rich, which calls this while it handles it, would eat."""
        raise


class Page:
    """Writes lines that never exceed the width and hold nothing a terminal would act on.

    Args:
        out: An open text file.
        options: Width and style.
        tight: Whether blank lines are left out.
    """

    def __init__(self, out: IO[str], options: TextOptions, *, tight: bool = False) -> None:
        self.tight = tight
        self.options = options
        self.width = max(options.width, NARROWEST)
        self._console = _Console(
            file=out,
            width=self.width,
            color_system="standard" if options.color else None,
            force_terminal=options.color,
            no_color=not options.color,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
            legacy_windows=False,
        )

    def line(self, *parts: Part) -> None:
        """One line; what does not fit is cut off with a mark. Without parts it is blank."""
        if self.tight and not parts:
            return
        text = Text()
        for part in parts:
            content, style = (part, "") if isinstance(part, str) else part
            content = safe(content)
            text.append(content if self.options.unicode else content.translate(_PLAIN), style)
        text.rstrip()
        if text.cell_len > self.width:
            text.truncate(self.width, overflow="crop" if not self.options.unicode else "ellipsis")
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False)

    def heading(self, title: str, note: str = "") -> None:
        """A blank line, a title and what it is about, below it where it does not fit beside."""
        self.line()
        self.titled(title, note)

    def titled(self, title: str, note: str = "") -> None:
        """The same without the blank line."""
        if not note or width_of(title) + len(_INDENT) + width_of(note) <= self.width:
            self.line((title, HEAD), f"{_INDENT}{note}")
            return
        self.line((title, HEAD))
        self.wrapped([_INDENT], note)

    def labelled(
        self, label: str, items: Iterable[str], style: str = "", between: str = ", "
    ) -> None:
        """A label and items that are wrapped under each other, never cut in two."""
        lead = pad(label, LABEL_WIDTH)
        for text in wrap_items(items, self.width - len(lead), between):
            self.line((lead, style or HEAD), (text, style))
            lead = " " * len(lead)

    def worded(self, label: str, text: str, style: str = "") -> None:
        """A label and a sentence that is wrapped between its words."""
        self.labelled(label, text.split(), style, between=" ")

    def noted(self, label: str, notes: Iterable[str]) -> None:
        """A label and notes in full, one behind the other and wrapped between their words."""
        self.worded(label, "; ".join(notes))

    def wrapped(self, lead: Sequence[Part], text: str) -> None:
        """A sentence behind a lead, wrapped between its words and indented as far as the lead."""
        width = sum(width_of(part if isinstance(part, str) else part[0]) for part in lead)
        for line in wrap_items(safe(text).split(), self.width - width, between=" ") or [""]:
            self.line(*lead, line)
            lead = [" " * width]


def bar(part: int, whole: int, width: int) -> str:
    """A bar of ``width`` cells at most, an eighth of a cell fine."""
    if whole <= 0 or width <= 0 or part <= 0:
        return ""
    eighths = (2 * part * width * 8 + whole) // (2 * whole)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _folded(pairs: Sequence[tuple[str, int]], rows: int) -> list[tuple[str, int]]:
    """At most ``rows`` pairs; the smallest that do not fit become one, in the others' order."""
    if len(pairs) <= rows:
        return list(pairs)
    kept = set(sorted(range(len(pairs)), key=lambda i: -pairs[i][1])[: rows - 1])
    rest = [pair for i, pair in enumerate(pairs) if i not in kept]
    return [
        *(pair for i, pair in enumerate(pairs) if i in kept),
        (f"{len(rest)} others", units.total(rest)),
    ]


def _column(pairs: Sequence[tuple[str, int]], scale: units.Scale, width: int) -> list[list[Part]]:
    """Rows of name, length, share and bar, each ``width`` cells; the shares add to 100.0%."""
    lengths = [length_ns for _, length_ns in pairs]
    numbers = scale.numbers(lengths)
    number_width = max((len(number) for number in numbers), default=0)
    name_width = max((width_of(name) for name, _ in pairs), default=0)
    name_width = max(name_width, _NAME_WIDTH)
    fixed = name_width + 1 + number_width + 1 + len(scale.unit) + 1 + 6 + 1
    rows: list[list[Part]] = []
    for (name, length_ns), number, share in zip(
        pairs, numbers, units.shares(lengths), strict=True
    ):
        drawn = bar(length_ns, sum(lengths), width - fixed)
        text = f"{pad(name, name_width)} {rjust(number, number_width)} {scale.unit} {share:>6} "
        rows.append([text, (pad(drawn, max(width - fixed, 0)), STYLES.get(name, ""))])
    return rows


def bars(page: Page, *columns: Sequence[tuple[str, int]], rows: int = 8) -> None:
    """Blocks of bars beside each other, or below each other where the page is narrow.

    Args:
        page: Where to write.
        columns: For each block its names and lengths in nanoseconds.
        rows: Rows a block has at most; the smallest of a longer one are put together.
    """
    blocks = [_folded(column, rows) for column in columns]
    scale = units.Scale.of(max((units.total(block) for block in blocks), default=0))
    beside = page.width >= _SIDE_BY_SIDE
    gap = 3
    width = page.width - len(_INDENT)
    if beside:
        width = (width - gap * (len(blocks) - 1)) // max(len(blocks), 1)
    drawn = [_column(block, scale, width) for block in blocks]
    if not beside:
        for rows_of_block in drawn:
            for row in rows_of_block:
                page.line(_INDENT, *row)
        return
    for i in range(max((len(block) for block in drawn), default=0)):
        line: list[Part] = [_INDENT]
        for block in drawn:
            line += block[i] if i < len(block) else [" " * width]
            line.append(" " * gap)
        page.line(*line)
