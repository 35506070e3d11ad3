# SPDX-License-Identifier: Apache-2.0
"""Lines of the text report for a page, so that both say the same in the same words."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report.page import LABEL_WIDTH, Page, TextOptions

if TYPE_CHECKING:
    from collections.abc import Collection

Draw = Callable[[Page], None]

#: No line of a report is longer, so none is broken.
_WIDTH = 100_000
_ROWS = 6


def lines(draw: Draw) -> list[list[str]]:
    """What a part of the text report says behind labels: label and words of each."""
    return chosen(lambda out, options: draw(Page(out, options)), None)


def chosen(
    render: Callable[[IO[str], TextOptions], None], labels: Collection[str] | None
) -> list[list[str]]:
    """Of a whole text report what it says behind these labels; ``None``: behind any."""
    out = io.StringIO()
    render(out, TextOptions(width=_WIDTH, top=_ROWS))
    found: list[list[str]] = []
    taken = False
    for line in out.getvalue().splitlines():
        label, words = line[:LABEL_WIDTH], line[LABEL_WIDTH:].strip()
        # A label ends with a blank at least; a heading runs on.
        labelled = label.strip() and not label.startswith(" ") and label.endswith(" ")
        if labelled:
            taken = bool(words) and (labels is None or label.strip() in labels)
            if taken:
                found.append([label.strip(), words])
        elif not label.strip() and words and taken:
            found[-1][1] += f"; {words}"
        elif label.strip():
            taken = False
    return found
