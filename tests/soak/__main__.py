# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.soak [--minutes M] [--streams N] [--folder F]``: a daemon, for a long time.

A daemon and a real engine under steady load; sessions are attached and detached all the time.
One line a minute, then a table: what may not grow, whether every session's account is exact, and
what the daemon cost. The exit code is 1 where something grew or an account is not exact, 2 where
it cannot run here. Needs root and the engine's environment.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.ebpf.footprint import measuring
from tests.engine.client import Load, load, mixed_requests
from tests.engine.daemon import DaemonProcess, ingest_env, running_daemon
from tests.engine.server import ASYNC, missing_engine, running_server
from tests.soak import samples
from tests.soak.soak import Soak

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG = f"""\
# So small that the oldest recordings are deleted within a minute or two: that must be flat too.
segment_bytes = "4 MiB"
session_max_bytes = {samples.DISK_BYTES}
total_max_bytes = {samples.DISK_BYTES}
"""
_MINUTES, _STREAMS = 20.0, 4
#: More requests than any run of a day can serve.
_MOST_REQUESTS = 200_000


def say(line: str) -> None:
    """One line on standard output, at once."""
    print(line, flush=True)  # noqa: T201


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=_MINUTES)
    parser.add_argument("--streams", type=int, default=_STREAMS, help="requests in flight")
    parser.add_argument("--folder", type=Path, help="keep recordings and logs here")
    given = parser.parse_args()
    reason = missing_engine() or ("" if os.geteuid() == 0 else "not root: run it with sudo")
    if reason:
        print(f"soak: {reason}", file=sys.stderr)  # noqa: T201
        return 2
    with contextlib.ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        soak = stack.enter_context(_running(folder, given.streams))
        soak.run(given.minutes * 60)
        return _report(soak, soak.daemon)


@contextlib.contextmanager
def _running(folder: Path, streams: int) -> Iterator[Soak]:
    config = folder / "config.toml"
    config.write_text(_CONFIG)
    with (
        running_daemon(folder, "--config", str(config)) as daemon,
        running_server(ASYNC, folder, env=ingest_env(folder)) as server,
        measuring(),
    ):
        load(server.url, mixed_requests(20, tag="warm"), concurrency=streams)
        steady = Load(server.url, "soak", streams=streams, limit=_MOST_REQUESTS)
        steady.start()
        try:
            yield Soak(daemon, server, steady, say)
        finally:
            steady.finish()


def _report(soak: Soak, daemon: DaemonProcess) -> int:
    """Print the tables; the exit code."""
    grew = _trends(soak)
    exact = _ledger(soak)
    say("\nWhat the daemon cost")
    effort = daemon.client.status().effort
    parts = sorted(((one.name, one.cpu_ns) for one in effort.parts), key=lambda part: -part[1])
    shares = [(name, ns / max(effort.cpu_ns, 1)) for name, ns in parts if ns * 100 > effort.cpu_ns]
    if soak.attached:
        for line in soak.cost.lines([*soak.attached, *soak.idle], shares):
            say(f"  {line}")
    for line in soak.wrong:
        say(f"WRONG: {line}")
    good = not grew and exact and not soak.wrong
    say(f"\nsoak: {'all flat, every account exact' if good else 'FAILED'}")
    return 0 if good else 1


def _trends(soak: Soak) -> bool:
    """Print what may not grow; whether anything did, or it cannot be told."""
    grew = False
    head = f"{'first':>9} {'level':>9} {'growth':>9} {'allowed':>9} {'most':>9}"
    for title, taken in (("while it records", soak.attached), ("between", soak.idle)):
        say(f"\nWhat may not grow, {title:17}{head}")
        if len(taken) < 2 * samples.LEAST_POINTS:
            say(f"  only {len(taken)} sessions: too few to tell; let it run longer")
            grew = True
            continue
        for rule in samples.RULES:
            one = samples.trend(rule, taken)
            numbers = (one.first, one.level, one.growth, one.allowed, one.most)
            told = " ".join(f"{value / rule.unit:>9.1f}" for value in numbers)
            say(f"  {rule.label:34} {told}  {'flat' if one.flat else 'GREW'}")
            grew = grew or not one.flat
    return grew


def _ledger(soak: Soak) -> bool:
    """Print the sum of all accounts; whether every one is exact."""
    made = soak.accounts
    lost: Counter[str] = Counter()
    for one in made:
        for (hop, what), count in one.lost.items():
            lost[f"{hop} {what}"] += count
    failed = [result for result in soak.load.results if not result.ok]
    wrong = sum(bool(one.wrong) for one in made)
    say(f"\nAccounts of {len(made)} sessions                sent      recorded       missing")
    requests, gone = sum(one.requests for one in made), sum(one.missing_requests for one in made)
    steps, holes = sum(one.steps for one in made), sum(one.missing_steps for one in made)
    say(f"  {'requests':28} {requests:>13,} {requests - gone:>13,} {gone:>13,}")
    say(f"  {'steps':28} {steps + holes:>13,} {steps:>13,} {holes:>13,}")
    say(f"  {'output tokens':28} {sum(one.tokens for one in made):>13,}")
    say(f"  {'waits':28} {'':13} {sum(one.waits for one in made):>13,}")
    say(f"  {'told as lost':28} {sum(lost.values()):>13,}  {dict(lost) or ''}")
    say(f"  {'requests that failed':28} {len(failed):>13,}")
    say(f"  {'accounts that are not exact':28} {wrong:>13,}")
    return bool(made) and not wrong and not failed


if __name__ == "__main__":
    raise SystemExit(main())
