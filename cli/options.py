# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

# Whether it is there and may be read is found out, and said, by whoever opens it.
_PATH = click.Path(path_type=Path, readable=False)

TEXT, JSON = "text", "json"

#: Rows of each list within a report.
TOP = 3

#: The largest process id that Linux gives (PID_MAX_LIMIT of include/linux/threads.h).
MAX_PID = 1 << 22
#: The largest number a recording can hold.
MAX_NUMBER = (1 << 63) - 1
_SESSION_LETTERS = 255
_ID_LETTERS = 4096


class Name(click.types.StringParamType):
    """A text of limited length, so that nobody downstream must take one of any length."""

    def __init__(self, letters: int) -> None:
        self.letters = letters

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text as it is."""
        text = str(super().convert(value, param, ctx))
        if len(text) > self.letters:
            self.fail(f"longer than {self.letters:,} letters", param, ctx)
        return text


PID = click.IntRange(1, MAX_PID)
COUNT = click.IntRange(0, MAX_NUMBER)
SESSION = Name(_SESSION_LETTERS)
REQUEST_ID = Name(_ID_LETTERS)


@dataclass(frozen=True)
class Source:
    """Where the events of a report come from.

    Attributes:
        file: A recording; None means the daemon.
        session: A session of the daemon; empty means its newest.
        control: The daemon's control socket; None means the usual place.
    """

    file: Path | None
    session: str
    control: Path | None


@dataclass(frozen=True)
class Look:
    """How text is to look: what the terminal says unless the user says otherwise."""

    width: int | None
    color: str
    top: int


control_option = click.option(
    "--control",
    metavar="SOCKET",
    type=_PATH,
    help="The daemon's control socket. [default: $GPUCORRELATE_CONTROL, else "
    "/run/gpucorrelate/control.sock]",
)

format_option = click.option(
    "--format",
    "form",
    type=click.Choice([TEXT, JSON]),
    default=TEXT,
    show_default=True,
    help="json: integer nanoseconds, null for what is unknown; lists are one document a line.",
)

strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Exit with 8 when the recording lost something or does not match.",
)

redact_option = click.option(
    "--redact",
    is_flag=True,
    help="Short hashes in place of requests' ids, the same in all reports of a recording.",
)

since_option = click.option(
    "--since",
    metavar="TIME",
    default="",
    help="From then on: 30s, 5m, 2h before the recording's end; 1234.567 seconds or "
    "1234567000000 ns of CLOCK_MONOTONIC.",
)

until_option = click.option(
    "--until", metavar="TIME", default="", help="Up to then; written like --since."
)


session_option = click.option(
    "--session",
    type=SESSION,
    default="",
    metavar="ID",
    help="A session of the daemon. [default: newest]",
)


def source_options(command: F) -> F:
    """Adds the FILE argument, ``--session`` and ``--control``; passes them as ``source``."""

    @click.argument("file", required=False, type=_PATH)
    @session_option
    @control_option
    @wraps(command)
    def wrapped(
        *args: Any,  # noqa: ANN401 - passed on as they are
        file: Path | None,
        session: str,
        control: Path | None,
        **more: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if file is not None and session:
            raise click.UsageError("give a FILE or --session, not both")
        return command(*args, source=Source(file, session, control), **more)

    return wrapped  # type: ignore[return-value]


def look_options(command: F) -> F:
    """Adds ``--width`` and ``--color``; passes them as ``look``."""

    @click.option(
        "--width", type=click.IntRange(60, 1000), help="Columns of text. [default: the terminal's]"
    )
    @click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="[default: auto, on a terminal unless NO_COLOR is set]",
    )
    @wraps(command)
    def wrapped(
        *args: Any,  # noqa: ANN401 - passed on as they are
        width: int | None,
        color: str,
        top: int = TOP,
        **more: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        return command(*args, look=Look(width, color, top), **more)

    return wrapped  # type: ignore[return-value]


def top_option(command: F) -> F:
    """Adds ``--top`` to a command that has ``look_options``, which pass it on."""
    return click.option(
        "--top",
        type=click.IntRange(1, 1000),
        default=TOP,
        show_default=True,
        help="Rows of each list within a report.",
    )(command)
