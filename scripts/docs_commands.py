# SPDX-License-Identifier: Apache-2.0
"""Write what the code decides of the commands' pages: usage, options, exit codes.

``python -m scripts.docs_commands`` writes it between the markers of ``docs/commands/*.md``;
``--check`` writes nothing and fails where a page is not what the code says. A command without a
page gets one, whose other parts are for somebody to write.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpucorrelate.cli import exits
from gpucorrelate.cli.app import PROGRAM, cli
from gpucorrelate.cli.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[1] / "docs" / "commands"
BEGIN = "<!-- usage: begin (made by scripts/docs_commands.py) -->"
END = "<!-- usage: end -->"
_WIDTH = 99
_RANGE = re.compile(r"(\d+)<=x<=(\d+)")
#: No bound that anybody meets.
_ENDLESS = re.compile(r"\d<=x<=\d{16,}")


@dataclass(frozen=True)
class Option:
    """An option or argument as it is written, and what it does."""

    written: str
    text: str


@dataclass(frozen=True)
class Described:
    """A command as its declaration says.

    Attributes:
        name: Without the program's.
        short: In one line.
        usage: How it is called.
        paragraphs: What its help says, a line for each paragraph.
        arguments: What has no dash.
        options: What has.
        examples: Command lines.
        exits: Codes it ends with.
    """

    name: str
    short: str
    usage: str
    paragraphs: tuple[str, ...]
    arguments: tuple[str, ...]
    options: tuple[Option, ...]
    examples: tuple[str, ...]
    exits: tuple[exits.Exit, ...]


def names() -> tuple[str, ...]:
    """The commands, in the order in which they are first used."""
    return tuple(cli.commands)


def described(name: str) -> Described:
    """What the code says of a command.

    Raises:
        KeyError: there is none of that name.
    """
    command = cli.commands[name]
    ctx = click.Context(command, info_name=f"{PROGRAM} {name}")
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    help_text = command.help or ""
    return Described(
        name,
        command.get_short_help_str(200),
        usage,
        tuple(" ".join(part.split()) for part in help_text.split("\n\n") if part.strip()),
        tuple(
            param.make_metavar(ctx)
            for param in command.params
            if isinstance(param, click.Argument)
        ),
        tuple(_options(command, ctx)),
        command.examples if isinstance(command, Command) else (),
        exits.of(name),
    )


def _options(command: click.Command, ctx: click.Context) -> Iterator[Option]:
    for param in command.params:
        record = param.get_help_record(ctx)
        if isinstance(param, click.Option) and record is not None:
            yield Option(record[0].replace("INTEGER RANGE", "N"), _readable(record[1]))


def _readable(text: str) -> str:
    """Click's text of an option, its range in words."""
    text = _ENDLESS.sub("", " ".join(text.split()))
    text = _RANGE.sub(r"\1 to \2", text)
    return text.replace("; ]", "]").replace("[]", "").strip()


def block(name: str) -> str:
    """The generated part of a command's page, markers included."""
    it = described(name)
    lines = [BEGIN, "", "```text", it.usage, "```", ""]
    for paragraph in it.paragraphs:
        lines += [*textwrap.wrap(_text(paragraph), _WIDTH, break_on_hyphens=False), ""]
    if it.options:
        lines += ["| option | does |", "|---|---|"]
        lines += [f"| `{_cell(one.written)}` | {_text(one.text)} |" for one in it.options]
        lines += ["| `-h, --help` | Show the help and exit. |", ""]
    lines += ["| exit code | when |", "|---:|---|"]
    lines += [f"| {one.code} | {_text(one.when)} |" for one in it.exits]
    if it.examples:
        lines += ["", "```console", *(f"$ {line}" for line in it.examples), "```"]
    return "\n".join([*lines, "", END])


def _text(text: str) -> str:
    """Plain text as Markdown, in a cell of a table too: nothing in it is an instruction."""
    quoted = False
    parts = []
    for letter in text:
        quoted ^= letter == "`"
        parts.append(f"\\{letter}" if letter in "*_<>[]|" and not quoted else letter)
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page_of(name: str) -> Path:
    """Where a command's page is."""
    return FOLDER / f"{name}.md"


def renewed(name: str, text: str) -> str:
    """A page's text with the generated part as it should be.

    Raises:
        ValueError: the markers are not there, once each and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"{page_of(name)}: the markers of the generated part are not there")
    return f"{before}{block(name)}{after}"


def _new(name: str) -> str:
    return f"# {PROGRAM} {name}\n\n## Usage\n\n{BEGIN}\n{END}\n\n## Overhead\n"


def main() -> int:
    """Write the pages, or say which are not as they should be; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 on a difference")
    check = parser.parse_args().check
    wrong = []
    for name in names():
        path = page_of(name)
        old = path.read_text("utf-8") if path.exists() else ""
        new = renewed(name, old or _new(name))
        if new != old:
            wrong.append(path.name)
            if not check:
                path.write_text(new, encoding="utf-8")
    if check and wrong:
        print(f"docs/commands: not what the code says: {', '.join(wrong)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
