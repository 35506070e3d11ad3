# SPDX-License-Identifier: Apache-2.0
"""What a shell may offer for a half-written command line.

click offers commands, options and their choices by itself. Added here are the daemon's sessions,
recordings, tables and the processes of engines. A shell asks at every press of a key, so nothing
here imports numpy or waits: where the daemon does not answer at once, nothing is offered.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: click's own name for it, from the program's.
ENV = "_GPUCORRELATE_COMPLETE"
#: As ``correlator.tables`` has them, which needs numpy.
TABLES = (
    "cuda_api_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "copy_sizes",
    "osrt_sum",
)
#: A daemon that is busy for longer is not waited for.
_PATIENCE_S = 0.5
_RECORDING = ".gpcf"
#: Names with others must be quoted, which the shell's own completion of files does.
_PLAIN = re.compile(r"[\w.,:=@%+/~-]+")
#: Many more than anybody would read.
_MOST = 200
_LONGEST_HELP = 60


class _Offered(click.types.StringParamType):
    """Any text, with offers for a beginning of it."""

    def __init__(self, offer: Callable[[click.Context, str], list[CompletionItem]]) -> None:
        self._offer = offer

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offers that begin so; none where they cannot be learnt."""
        del param
        try:
            return self._offer(ctx, incomplete)[:_MOST]
        except (OSError, ValueError, click.ClickException):
            return []


def prepare(group: click.Group) -> None:
    """Give the group's commands their offers, if it was a shell that called."""
    if not os.environ.get(ENV):
        return
    for command in group.commands.values():
        for param in command.params:
            offer = _OFFERS.get(param.name or "")
            if offer is not None:
                param.type = _Offered(offer)


def _sessions(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The daemon's sessions that the caller may see, running ones first."""
    found = []
    for one in _ask(ctx, "sessions"):
        session, command = str(one.get("session", "")), str(one.get("command", ""))
        if session.startswith(incomplete) and _PLAIN.fullmatch(session):
            found.append(CompletionItem(session, help=_one_line(command)))
    return found


def _ask(ctx: click.Context, what: str) -> Iterator[dict[str, object]]:
    from gpucorrelate.daemon import messages
    from gpucorrelate.daemon.config import default_control_path
    from gpucorrelate.probes.wire.errors import GpucorrelateError

    path = ctx.params.get("control") or default_control_path()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_PATIENCE_S)
        peer.connect(str(path))
        reader = messages.MessageReader(messages.MAX_REPLY_BYTES)
        try:
            peer.sendall(messages.pack({"op": what}))
            while data := peer.recv(1 << 16):
                for answer in reader.feed(data):
                    rows = answer.get(what)
                    yield from (row for row in rows or () if isinstance(row, dict))
                    return
        except GpucorrelateError:
            return


def _recordings(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Recordings in the folder that is being written; all files where it has none."""
    del ctx
    folder, _, begin = incomplete.rpartition("/")
    place = Path(os.path.expanduser(f"{folder}/")) if "/" in incomplete else Path()  # noqa: PTH111
    before = incomplete[: len(incomplete) - len(begin)]
    with os.scandir(place) as entries:
        names = sorted(
            entry.name
            for entry in entries
            if entry.name.startswith(begin) and entry.name.endswith(_RECORDING)
        )
    if not names or not all(_PLAIN.fullmatch(before + name) for name in names):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(before + name) for name in names]


def _words(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Names of tables, and recordings."""
    tables = [CompletionItem(name) for name in TABLES if name.startswith(incomplete)]
    return tables or _recordings(ctx, incomplete)


def _engines(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Processes that were started as ``vllm``, or that vLLM renamed."""
    del ctx
    found = []
    for folder in sorted(Path("/proc").glob(f"{incomplete}[0-9]*" if incomplete else "[0-9]*")):
        try:
            words = (folder / "cmdline").read_bytes()[:4096].decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(Path(word).name == "vllm" or word.startswith("VLLM::") for word in words[:3]):
            found.append(CompletionItem(folder.name, help=_one_line(" ".join(words))))
    return found


def _one_line(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:_LONGEST_HELP].strip()


_OFFERS: dict[str, Callable[[click.Context, str], list[CompletionItem]]] = {
    "session": _sessions,
    "file": _recordings,
    "before": _recordings,
    "after": _recordings,
    "words": _words,
    "pid": _engines,
    "pids": _engines,
}
