# SPDX-License-Identifier: Apache-2.0
"""``gpucorrelate daemon``: kernel probes and recordings, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from gpucorrelate.cli.command import Command
from gpucorrelate.daemon.config import BACKENDS, LOG_LEVELS
from gpucorrelate.probes.wire.errors import EXIT_OK

_PATH = click.Path(path_type=Path)
# Up to what 64 bits of bytes hold, and to 1 GiB for each CPU.
_MIB = click.IntRange(1, 1 << 40)
_RING_KIB = click.IntRange(64, 1 << 20)


@click.command(
    cls=Command,
    short_help="Run the daemon in the foreground: kernel probes and recordings.",
    examples=(
        "sudo gpucorrelate daemon",
        "gpucorrelate daemon --check-config",
        "gpucorrelate daemon --no-ebpf --runtime-dir /tmp/gc --state-dir /tmp/gc/state",
    ),
)
@click.option(
    "--config",
    type=_PATH,
    metavar="FILE",
    help="Settings; options come before them. [default: /etc/gpucorrelate/config.toml, if there]",
)
@click.option("--check-config", is_flag=True, help="Only say whether the settings are right.")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    help="Log this and what is worse. [default: info]",
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
@click.option(
    "--poll-ms",
    type=click.IntRange(0, 60_000),
    help="Read the host's numbers so often, and four times as often while a request is slow; "
    "0: not at all. [default: 200]",
)
@click.option(
    "--no-engine-metrics",
    is_flag=True,
    help="Do not ask engines for their /metrics: each 5 s, 0.6-5 ms of their API server's time.",
)
@click.option("--yields", is_flag=True, help="Trace runs of sched_yield: spins no agent tells of.")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    help="What loads the kernel probes. [default: auto, libbpf where it works, else BCC]",
)
@click.option("--no-faults", is_flag=True, help="Do not trace page faults.")
@click.option("--no-ebpf", is_flag=True, help="No kernel probes: requests and steps only.")
@click.option("--require-ebpf", is_flag=True, help="Refuse to run without the kernel probes.")
@click.option("--keep-privileges", is_flag=True, help="Keep root's privileges once set up.")
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve the daemon's own numbers to Prometheus, as /metrics. [default: not at all]",
)
@click.option("--metrics-remote", is_flag=True, help="Allow one that other machines can reach.")
@click.option(
    "--metrics-requests",
    is_flag=True,
    help="Have requests' phases and what held them up in it: 10% of a CPU more at most.",
)
@click.option("--no-resume", is_flag=True, help="Do not take up sessions that were running.")
def daemon(**given: object) -> int:
    """Run the daemon in the foreground: kernel probes and recordings.

    Needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, for the kernel probes. It listens on
    a control socket for the other commands and on an ingest socket for the engines' agents, and
    writes what attached engines do to recordings of limited size. It never stops an engine:
    killed or stopped, the engine serves on, and what was lost is counted.

    SIGTERM and Ctrl-C detach and end it; started again, it takes up the running sessions.
    Without a terminal SIGHUP reads the settings again; the log and the status say which of them
    need a restart. Settings that are wrong are refused, with their line, and exit code 2.
    """
    from gpucorrelate.cli.settings import daemon_settings

    settings = daemon_settings(given)
    config = settings.read()
    if given.get("check_config"):
        print(f"{settings.what}: settings are right")
        return EXIT_OK
    from gpucorrelate.daemon import main

    return main.run(config, settings.read)
