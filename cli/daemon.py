# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate daemon``: kernel probes and recordings, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from gpucorrelate.cli.command import Command

_PATH = click.Path(path_type=Path)
# Up to what 64 bits of bytes hold, and to 1 GiB for each CPU.
_MIB = click.IntRange(1, 1 << 40)
_RING_KIB = click.IntRange(64, 1 << 20)


@click.command(
    cls=Command,
    short_help="Run the daemon in the foreground: kernel probes and recordings.",
    examples=(
        "sudo gpucorrelate daemon",
        "gpucorrelate daemon --no-ebpf --runtime-dir /tmp/gc --state-dir /tmp/gc/state",
    ),
)
@click.option("--runtime-dir", type=_PATH, help="Sockets. [default: /run/gpucorrelate]")
@click.option("--state-dir", type=_PATH, help="Recordings. [default: /var/lib/gpucorrelate]")
@click.option(
    "--control", type=_PATH, metavar="SOCKET", help="[default: RUNTIME_DIR/control.sock]"
)
@click.option("--ingest", type=_PATH, metavar="SOCKET", help="[default: RUNTIME_DIR/ingest.sock]")
@click.option("--group", help="Group that may use the control socket. [default: gpucorrelate]")
@click.option(
    "--session-max-mib", type=_MIB, help="Size of a session's recording. [default: 4096]"
)
@click.option("--total-max-mib", type=_MIB, help="Size of all recordings. [default: 16384]")
@click.option("--ring-kib", type=_RING_KIB, help="Kernel ring per CPU. [default: 8192]")
@click.option(
    "--sum-below-us",
    type=click.IntRange(0, 1_000_000),
    help="Sum shorter waits in the kernel instead of recording each. [default: 0, all recorded]",
)
@click.option("--yields", is_flag=True, help="Trace runs of sched_yield: spins no agent tells of.")
@click.option("--no-faults", is_flag=True, help="Do not trace page faults.")
@click.option("--no-ebpf", is_flag=True, help="No kernel probes: requests and steps only.")
@click.option("--require-ebpf", is_flag=True, help="Refuse to run without the kernel probes.")
@click.option("--keep-privileges", is_flag=True, help="Keep root's privileges once set up.")
@click.option("--no-resume", is_flag=True, help="Do not take up sessions that were running.")
def daemon(**given: object) -> int:
    """Run the daemon in the foreground: kernel probes and recordings.

    Needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, for the kernel probes. It listens on
    a control socket for the other commands and on an ingest socket for the engines' agents, and
    writes what attached engines do to recordings of limited size. It never stops an engine:
    killed or stopped, the engine serves on, and what was lost is counted.

    SIGTERM and Ctrl-C detach and end it; started again, it takes up the running sessions.
    """
    from gpucorrelate.cli.settings import daemon_config
    from gpucorrelate.daemon import main

    return main.run(daemon_config(given))
