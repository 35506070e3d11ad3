# SPDX-License-Identifier: Apache-2.0
"""One file of HTML: styles, script and data in it, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib import resources
from typing import IO, TYPE_CHECKING

from gpucorrelate.correlator.report.html import meanings
from gpucorrelate.correlator.report.html.pack import Document, block, to_json
from gpucorrelate.correlator.report.names import safe
from gpucorrelate.correlator.report.values import Category, PhaseName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.html.pack import Json, Lexicon
    from gpucorrelate.correlator.report.values import Ledger

#: Parts of the script in the order in which they need each other.
_SCRIPTS = (
    "format.js", "data.js", "dom.js", "colour.js", "chart.js", "rows.js", "host.js", "grid.js",
    "parts.js", "path.js", "spread.js", "overtime.js", "run.js", "profile.js", "main.js",
)  # fmt: skip
_FOLDER = "assets"


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / _FOLDER / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """The page's script."""
    parts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def _hashed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def policy() -> str:
    """What the page may do: run its own script, use its own styles, and nothing else."""
    styles = _hashed(_asset("page.css"))
    return (
        f"default-src 'none'; script-src {_hashed(script())}; style-src {styles}; "
        "base-uri 'none'; form-action 'none'"
    )


def ledger_to_head(ledger: Ledger, unseen: Sequence[str] = ()) -> Json:
    """What the page rests on: all counts, and what was not looked at, ``unseen`` with it."""
    return {
        "clean": ledger.clean,
        "lines": [
            [safe(one.name), one.count, safe(one.note), one.bad, one.check] for one in ledger.lines
        ],
        "missing": [safe(one) for one in (*ledger.missing, *unseen)],
    }


def write(out: IO[str], head: Json, lexicon: Lexicon, blocks: Sequence[str]) -> None:
    """Writes a page.

    Args:
        out: An open text file.
        head: What is shown first: ``kind``, ``title``, ``claims``, ``facts`` and more.
        lexicon: All words that documents point to.
        blocks: Documents, packed.
    """
    head = {
        **head,
        "categories": [[str(one), meanings.CATEGORIES[one]] for one in Category],
        "phases": [[str(one), meanings.PHASES[one]] for one in PhaseName],
    }
    title = html.escape(str(head["title"]))
    # Data stands behind the script: what is first on the screen waits for none of it.
    out.write(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        f"{_still(head)}"
        f'<script type="application/json" id="head">{to_json(head)}</script>\n'
        f'<script type="text/plain" id="words">{block([Document(lexicon.table(), {})])}</script>\n'
        f"<script>{script()}</script>\n"
    )
    for at, packed in enumerate(blocks):
        out.write(f'<script type="text/plain" id="b{at}">{packed}</script>\n')
    out.write("</body>\n</html>\n")


def _still(head: Json) -> str:
    """What can be read before the script runs, or without it."""
    claims = "".join(html.escape(one["text"]) for one in head["claims"])
    facts = "".join(
        f"<div><dt>{html.escape(one['label'])}</dt><dd>{html.escape(one['text'])}</dd></div>"
        for one in head["facts"]
    )
    return (
        f'<main id="main"><header><h1>{html.escape(str(head["title"]))}</h1>'
        f'<p class="verdict">{claims}</p><dl class="facts">{facts}</dl></header>'
        "<noscript><p>The pictures and lists of this page need JavaScript; it loads nothing."
        "</p></noscript></main>\n"
    )
