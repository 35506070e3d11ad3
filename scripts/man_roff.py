# SPDX-License-Identifier: Apache-2.0
"""Text as roff, for man pages: the few macros of man(7) that they need."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODE = re.compile(r"`([^`]*)`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BOLD = re.compile(r"\*\*([^*]*)\*\*")


def escaped(text: str) -> str:
    """Plain text that troff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    text = text.replace("^", "\\(ha").replace("`", "\\(ga").replace("~", "\\(ti")
    return f"\\&{text}" if text.startswith(".") else text


def bold(text: str) -> str:
    """Text in bold."""
    return f"\\fB{escaped(text)}\\fR"


def sentence(text: str) -> str:
    """A line of Markdown without blocks: code and strong words in bold, links as their words."""
    text = _LINK.sub(r"\1", text)
    parts = re.split(r"(`[^`]*`|\*\*[^*]*\*\*)", text)
    made = []
    for part in parts:
        found = _CODE.fullmatch(part) or _BOLD.fullmatch(part)
        made.append(bold(found[1]) if found else escaped(re.sub(r"\\([*_<>\[\]|])", r"\1", part)))
    line = "".join(made)
    return f"\\&{line}" if line.startswith((".", "'")) else line


def header(name: str, section: int, date: str, version: str) -> list[str]:
    """The first lines of a page."""
    return [
        '.\\" SPDX-License-Identifier: Apache-2.0',
        f'.TH "{escaped(name.upper())}" "{section}" "{date}" "gpucorrelate {version}"',
    ]


def heading(title: str) -> list[str]:
    """A section."""
    return [f".SH {title.upper()}"]


def paragraph(text: str) -> list[str]:
    """A paragraph of words and Markdown's inline marks; each sentence on a line of its own."""
    words = " ".join(text.split())
    return [".PP", *(sentence(one) for one in re.split(r"(?<=[.:]) (?=[A-Z`])", words) if one)]


def item(term: str, text: str) -> list[str]:
    """A term in bold, and what it is."""
    return [".TP", bold(term), sentence(text) or "\\&"]


def code(lines: list[str]) -> list[str]:
    """Lines as they are."""
    return [".PP", ".RS 4", ".nf", *(escaped(line) or "\\&" for line in lines), ".fi", ".RE"]


def markdown(text: str) -> list[str]:
    """A section of a page in Markdown: paragraphs, lists, code, tables of two columns or more."""
    made: list[str] = []
    for kind, lines in _blocks(text):
        if kind == "code":
            made += code(lines)
        elif kind == "table":
            made += _table(lines)
        elif kind == "list":
            for line in lines:
                made += [".IP \\(bu 2", sentence(line)]
        else:
            made += paragraph(" ".join(lines))
    # Directly below a heading a paragraph needs no macro, and mandoc says so.
    return made[1:] if made[:1] == [".PP"] else made


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    kind = ""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if kind == "code":
            if line.startswith("```"):
                yield kind, lines
                kind, lines = "", []
            else:
                lines.append(line)
            continue
        new = _kind(line, kind)
        if new != kind and lines:
            yield kind, lines
            lines = []
        kind = new
        if kind == "list" and not line.startswith("- "):
            lines[-1] += f" {line.strip()}"
        elif kind not in ("", "code"):
            lines.append(line.removeprefix("- ") if kind == "list" else line)


def _kind(line: str, before: str) -> str:
    if line.startswith("```"):
        return "code"
    if line.startswith("|"):
        return "table"
    if line.startswith("- ") or (before == "list" and line.startswith("  ")):
        return "list"
    return "text" if line.strip() else ""


def _table(rows: list[str]) -> list[str]:
    made: list[str] = []
    for row in rows[2:]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        made += [".TP", sentence(cells[0]) or "\\&", sentence("; ".join(filter(None, cells[1:])))]
    return made
