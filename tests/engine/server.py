# SPDX-License-Identifier: Apache-2.0
"""A real ``vllm serve`` on CPU with a tiny random model, for tests, benches and the demo.

``python -m tests.engine.server [--profile sync]`` runs one until Ctrl-C, to try things by
hand.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.engine.processes import ManagedProcess, free_port, members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
MODEL_NAME = "tiny"

#: Up in 25 s on a quiet machine, 96 s were seen on a loaded one.
READY_TIMEOUT_S = 180.0

_BASE_ARGS = (
    "--load-format", "dummy",
    "--dtype", "float32",
    "--enforce-eager",
    "--max-model-len", "512",
    "--max-num-seqs", "64",
    "--host", "127.0.0.1",
    "--served-model-name", MODEL_NAME,
    "--no-enable-log-requests",
)  # fmt: skip
_BASE_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Profile:
    """A way to run the engine whose code paths differ from the others'."""

    name: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    asynchronous: bool = False
    preempts: bool = False
    workers: int = 1


_ASYNC_ENV = (("GPUCORRELATE_LAB_ASYNC", "1"),)

SYNC = Profile("sync", args=("--no-async-scheduling",))
ASYNC = Profile("async", args=("--async-scheduling",), env=_ASYNC_ENV, asynchronous=True)
#: So few KV blocks that running requests are thrown out, and prompts cut into chunks.
PREEMPT = Profile(
    "preempt",
    args=(
        "--async-scheduling",
        "--block-size", "32",
        "--num-gpu-blocks-override", "40",
        "--enable-chunked-prefill",
        "--max-num-batched-tokens", "128",
    ),
    env=_ASYNC_ENV,
    asynchronous=True,
    preempts=True,
)  # fmt: skip
TP2 = Profile(
    "tp2",
    args=("--tensor-parallel-size", "2"),
    env=(("VLLM_CPU_OMP_THREADS_BIND", "0|1"),),
    workers=2,
)
PROFILES = {profile.name: profile for profile in (SYNC, ASYNC, PREEMPT, TP2)}


def engine_venv() -> Path:
    """The engine's virtual environment: ``GPUCORRELATE_ENGINE_VENV`` or ``.venv-engine``."""
    return Path(os.environ.get("GPUCORRELATE_ENGINE_VENV") or ROOT / ".venv-engine")


def missing_engine() -> str:
    """Why no engine can be started here; empty when one can."""
    venv = engine_venv()
    if not (venv / "bin" / "vllm").exists():
        return f"no engine in {venv}: run 'make engine-venv'"
    return ""


def engine_version() -> str:
    """Version of the engine in its environment, read from its metadata."""
    for path in sorted((engine_venv() / "lib").glob("python3*/site-packages/vllm_cpu-*")):
        return path.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    return "unknown"


def tiny_model() -> Path:
    """The model's folder, made on first use and kept in ``.cache``."""
    folder = ROOT / ".cache" / "tiny-model"
    if not (folder / "generation_config.json").exists():
        python = engine_venv() / "bin" / "python"
        script = Path(__file__).with_name("model.py")
        subprocess.run([str(python), str(script), str(folder)], check=True)
    return folder


class EngineServer(ManagedProcess):
    """A server process, its port and its readiness.

    Args:
        profile: How to run it.
        folder: For its log, and for whatever the test plugin writes.
        env: More environment, over the profile's.
        args: More arguments, after the profile's.
    """

    def __init__(
        self,
        profile: Profile,
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        args: tuple[str, ...] = (),
    ) -> None:
        self.profile = profile
        self.port = free_port()
        binary = engine_venv() / "bin"
        super().__init__(
            [
                str(binary / "vllm"),
                "serve",
                str(tiny_model()),
                "--port",
                str(self.port),
                *_BASE_ARGS,
                *profile.args,
                *args,
            ],
            log=folder / f"server-{profile.name}.log",
            # The engine's own tools (a compiler cache, ninja) come first on its path.
            env={
                **_BASE_ENV,
                "PATH": f"{binary}:{os.environ.get('PATH', '')}",
                **dict(profile.env),
                **(env or {}),
            },
            cwd=folder,
        )

    @property
    def url(self) -> str:
        """Base of its HTTP API."""
        return f"http://127.0.0.1:{self.port}"

    def healthy(self) -> bool:
        """Whether ``/health`` says yes within 2 s."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return once it serves.

        Raises:
            RuntimeError: it ended, or is not up in time; the end of its log is in the message.
        """
        deadline = time.monotonic() + timeout_s
        while not self.healthy():
            if not self.running():
                raise RuntimeError(f"server ended, code {self.exit_code}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"server not up in {timeout_s:g} s:\n{self.log_tail()}")
            time.sleep(0.25)

    def processes(self) -> list[int]:
        """Process ids of the whole server: API server, engine core, workers."""
        return members(self.pid)


@contextmanager
def running_server(
    profile: Profile,
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    args: tuple[str, ...] = (),
) -> Iterator[EngineServer]:
    """A server that is ready, and gone afterwards."""
    server = EngineServer(profile, folder, env=env, args=args)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def main() -> None:
    """Run a server until Ctrl-C."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="sync")
    parser.add_argument("args", nargs="*", help="more arguments for vllm serve, after --")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        profile = PROFILES[options.profile]
        try:
            with running_server(profile, Path(folder), args=tuple(options.args)) as server:
                sys.stdout.write(f"{profile.name}: {server.url} pid {server.pid}\n")
                sys.stdout.flush()
                server.wait(1 << 31)
        except KeyboardInterrupt:
            sys.stdout.write("stopped\n")


if __name__ == "__main__":
    main()
