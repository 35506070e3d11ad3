# SPDX-License-Identifier: Apache-2.0
"""What tracing costs a real server: ``python -m tests.bench.engine [--rounds N]``.

Two servers, one with the agent switched off, one with the agent. Rounds are interleaved, with
three configurations a round in turning order: ``off``, ``dormant`` (agent loaded, nobody
attached) and ``attached`` (kernel probes and agent, recorded by a daemon). Printed are ratios
to ``off`` of the same round, median and spread: tokens a second, and the 99th percentile of
the gaps between a request's chunks as the client sees them. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engine.client import load, mixed_requests
from tests.engine.daemon import DaemonProcess, ingest_env, running_daemon
from tests.engine.server import SYNC, EngineServer, missing_engine, running_server

_CONFIGURATIONS = ("off", "dormant", "attached")
_REQUESTS = 100
_CONCURRENCY = 50


@dataclass(frozen=True)
class Outcome:
    """One run of the load."""

    tokens_per_s: float
    p99_itl_ns: float


def _run(server: EngineServer, tag: str) -> Outcome:
    results = load(server.url, mixed_requests(_REQUESTS, tag=tag), concurrency=_CONCURRENCY)
    failed = [result for result in results if not result.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0].error}")
    begin = min(result.start_ns for result in results)
    end = max(result.end_ns for result in results)
    tokens = sum(result.completion_tokens or 0 for result in results)
    gaps = [gap for result in results for gap in result.itl_ns]
    return Outcome(tokens * 1e9 / (end - begin), statistics.quantiles(gaps, n=100)[-1])


def _measure(
    configuration: str, plain: EngineServer, ours: EngineServer, daemon: DaemonProcess, tag: str
) -> Outcome:
    if configuration == "off":
        return _run(plain, tag)
    if configuration == "dormant":
        return _run(ours, tag)
    session = daemon.attach(ours.pid, agents=2 + SYNC.workers)
    outcome = _run(ours, tag)
    lost = daemon.client.progress(session.session).lost
    daemon.client.detach(session=session.session)
    if lost:
        print(f"{tag}: {lost} events lost")
    return outcome


def _line(configuration: str, name: str, ratios: list[float]) -> str:
    return (
        f"{configuration:10} {name:14} {statistics.median(ratios):6.3f}   "
        f"[{min(ratios):.3f} .. {max(ratios):.3f}]"
    )


def main() -> int:
    """Run the rounds and print the ratios; the exit code."""
    parser = argparse.ArgumentParser(description="What tracing costs a real server.")
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    if os.geteuid() != 0 or missing_engine():
        print(f"engine bench left out: {missing_engine() or 'not root'}", file=sys.stderr)
        return 0
    outcomes: dict[str, list[Outcome]] = {name: [] for name in _CONFIGURATIONS}
    with TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "off").mkdir()
        daemon = stack.enter_context(running_daemon(folder))
        off = {"GPUCORRELATE_DISABLE": "1"}
        plain = stack.enter_context(running_server(SYNC, folder / "off", env=off))
        ours = stack.enter_context(running_server(SYNC, folder, env=ingest_env(folder)))
        for server in (plain, ours):
            load(server.url, mixed_requests(50, tag="warm"), concurrency=25)
        for n in range(rounds):
            turn = n % len(_CONFIGURATIONS)
            for configuration in _CONFIGURATIONS[turn:] + _CONFIGURATIONS[:turn]:
                outcome = _measure(configuration, plain, ours, daemon, f"{configuration}{n:03d}")
                outcomes[configuration].append(outcome)
                print(
                    f"round {n + 1} {configuration:10} {outcome.tokens_per_s:7.0f} tokens/s   "
                    f"p99 gap {outcome.p99_itl_ns / 1e6:6.1f} ms",
                    flush=True,
                )
    base = outcomes["off"]
    print(f"\nratio to off, median of {rounds} interleaved rounds [lowest .. highest]")
    for configuration in _CONFIGURATIONS[1:]:
        pairs = list(zip(outcomes[configuration], base, strict=True))
        print(
            _line(configuration, "tokens/s", [a.tokens_per_s / b.tokens_per_s for a, b in pairs])
        )
        print(_line(configuration, "p99 gap", [a.p99_itl_ns / b.p99_itl_ns for a, b in pairs]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
