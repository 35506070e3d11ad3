# SPDX-License-Identifier: Apache-2.0
"""The command ``gpucorrelate`` and its sub-commands."""

from __future__ import annotations

import click

import gpucorrelate
from gpucorrelate.cli import completion
from gpucorrelate.cli.attach import attach
from gpucorrelate.cli.check import check
from gpucorrelate.cli.compare import compare
from gpucorrelate.cli.daemon import daemon
from gpucorrelate.cli.detach import detach
from gpucorrelate.cli.export import export
from gpucorrelate.cli.importing import import_
from gpucorrelate.cli.record import record
from gpucorrelate.cli.report import report
from gpucorrelate.cli.requests import requests
from gpucorrelate.cli.save import save
from gpucorrelate.cli.sql import sql
from gpucorrelate.cli.status import status
from gpucorrelate.cli.steps import steps
from gpucorrelate.cli.tables import tables
from gpucorrelate.cli.top import top
from gpucorrelate.cli.verify import verify
from gpucorrelate.cli.watch import watch
from gpucorrelate.probes.wire.errors import UsageError

PROGRAM = "gpucorrelate"


class PipeClosedError(Exception):
    """Whoever read the output has enough of it.

    Not an ``OSError``, as ``BrokenPipeError`` is: click would end the program on one.
    """


class Commands(click.Group):
    """Lists the sub-commands in the order in which they are first used."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the sub-command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as exc:
            raise PipeClosedError from exc

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they were added."""
        del ctx
        return list(self.commands)


_FIRST_STEPS = """\b
Once, as root, on the machine that serves:
  gpucorrelate check                    what this host can and cannot observe
  gpucorrelate verify --quick           how often it is right here, on delays made for it
  gpucorrelate daemon                   kernel probes and recordings, in the foreground
\b
Then, as the engine's user or root:
  gpucorrelate attach --pid 4700        follow an engine until Ctrl-C, then a summary
  gpucorrelate requests --sort ttft     the worst first
  gpucorrelate report --slowest 1       where its time went and who made it wait
\b
A recording needs neither root nor a daemon to be read:
  gpucorrelate record -o bad.gpcf --pid 4700 --duration 60s
  gpucorrelate report --slowest 1 bad.gpcf
\b
Nor does a GPU profile by PyTorch or Nsight Systems:
  gpucorrelate import trace.json.gz -o run.gpcf
  gpucorrelate report run.gpcf
\b
Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 not permitted, 5 no daemon,
6 not supported here, 7 bad data, 8 incomplete (with --strict), 130 interrupted."""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_FIRST_STEPS,
)
@click.version_option(gpucorrelate.__version__, prog_name=PROGRAM)
def cli() -> None:
    """Where every microsecond of an LLM request went, and who made it wait."""


for command in (
    check, verify, daemon, attach, detach, status, top, watch, requests, steps, report, tables,
    compare, record, import_, save, sql, export,
):  # fmt: skip
    cli.add_command(command)


def invoke(args: list[str]) -> int:
    """Run a command line.

    Returns:
        The exit code.

    Raises:
        GpucorrelateError: anything the user should read.
    """
    completion.prepare(cli)
    try:
        code = cli.main(args=args, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message())
        return UsageError.exit_code
    except click.UsageError as exc:
        path = exc.ctx.command_path if exc.ctx is not None else PROGRAM
        raise UsageError(exc.format_message(), hint=f"see {path} --help") from exc
    except click.ClickException as exc:
        raise UsageError(exc.format_message()) from exc
    except click.Abort as exc:
        raise KeyboardInterrupt from exc
    return code if isinstance(code, int) else 0
