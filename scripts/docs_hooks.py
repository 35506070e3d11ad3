# SPDX-License-Identifier: Apache-2.0
"""What mkdocs asks while it builds the site: pages from outside ``docs/``, and links to them.

Files are read where they are, on a disk as in the site: a link ``../SECURITY.md`` in
``docs/operating.md`` works in both.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: Pages of the top folder -> their name in the site. mkdocs takes a README.md for an index.
OUTSIDE = {
    "README.md": "about.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "DEVELOPERS.md": "DEVELOPERS.md",
}
#: Files that are no pages: shown under this folder, as they are.
FILES = "files"
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the top folder, and the files that pages link to."""
    for name, there in OUTSIDE.items():
        files.append(File.generated(config, there, content=(ROOT / name).read_text("utf-8")))
    wanted = set()
    for file in files.documentation_pages():
        text = file.content_string
        if text is not None:
            wanted |= {target for _, target in _outer_files(text, _place(file.src_uri))}
    for path in sorted(wanted):
        files.append(File.generated(config, f"{FILES}/{path}", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that lead out of ``docs/`` to where the site has what they lead to."""
    del config, files
    return turned(markdown, page.file.src_uri)


def turned(markdown: str, src_uri: str) -> str:
    """The text of a page with its links as the site needs them; code is left as it is.

    Args:
        markdown: As it is in the repository.
        src_uri: The page's path in the site's source.
    """
    parts = _FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda m: _turn(m, src_uri), part)
        for part in parts
    )


def _turn(match: re.Match[str], src_uri: str) -> str:
    inside = _in_site(match[2], _place(src_uri))
    if inside is None:
        return match[0]
    up = "../" * src_uri.count("/")
    return f"{match[1]}{up}{inside}{match[3]}"


def _place(src_uri: str) -> str:
    """Where in the repository a page of the site lies."""
    back = {there: name for name, there in OUTSIDE.items()}
    return back.get(src_uri) or f"docs/{src_uri}"


def _in_site(target: str, place: str) -> str | None:
    """Where in the site that is, for what must be turned."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    path = normpath(f"{Path(place).parent.as_posix()}/{target}")
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/"):
        return None if place.startswith("docs/") else path.removeprefix("docs/")
    return f"{FILES}/{path}" if (ROOT / path).is_file() else None


def _outer_files(markdown: str, place: str) -> set[tuple[str, str]]:
    found = set()
    for part in _FENCE.split(markdown):
        if part.startswith("```"):
            continue
        for match in _LINK.finditer(part):
            inside = _in_site(match[2], place)
            if inside and inside.startswith(f"{FILES}/"):
                found.add((inside, inside.removeprefix(f"{FILES}/")))
    return found
