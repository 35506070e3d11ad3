# SPDX-License-Identifier: Apache-2.0
"""Real daemons in folders of their own, and peers in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucorrelate.daemon.client import Client, open_recording
from gpucorrelate.daemon.columns import rows_of
from gpucorrelate.probes.wire.errors import GpucorrelateError
from gpucorrelate.probes.wire.frame import Batch, Damage, StreamReader
from gpucorrelate.probes.wire.gpu import GpuPlan, to_wire
from gpucorrelate.probes.wire.schema import BY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 20.0

_DAEMON = """
import json, logging, sys
from dataclasses import replace
from pathlib import Path
from gpucorrelate.daemon.config import DaemonConfig, Limits, MetricsConfig
from gpucorrelate.daemon.main import run
from gpucorrelate.probes.wire.errors import GpucorrelateError
logging.basicConfig(level=logging.INFO)
given = json.loads(sys.argv[1])
limits = Limits(**given.pop("limits", {}))
metrics = MetricsConfig(**given.pop("metrics", {}))
given.setdefault("poll_ms", 0)  # the host has tests of its own
for name in {"runtime_dir", "state_dir", "ingest_socket"} & given.keys():
    given[name] = Path(given[name])
try:
    raise SystemExit(run(DaemonConfig(limits=limits, metrics=metrics, **given)))
except GpucorrelateError as exc:
    print(f"{type(exc).__name__}: {exc.message} [{exc.hint}]", file=sys.stderr)
    raise SystemExit(exc.exit_code)
"""


def wait_for(ask: Callable[[], Any], what: str) -> Any:
    """What ``ask`` returns once it is true; fails when that takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


class DaemonProcess:
    """A daemon in a process of its own.

    Args:
        folder: Its directories are in here; a second daemon with the same folder is a restart.
        settings: Of ``DaemonConfig``; kernel probes are off unless asked for.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = {
            "ebpf": False,
            "tick_ms": 5,
            "settle_ms": 0,
            "runtime_dir": str(folder / "r"),
            "state_dir": str(folder / "s"),
            **settings,
        }
        self.client = Client(folder / "r" / "control.sock", timeout_s=_PATIENCE_S)
        self.ingest = str(folder / "r" / "ingest.sock")
        self.log = folder / "log"
        self.prefix: tuple[str, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it, and leave it to the caller what comes of that."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-c", _DAEMON, json.dumps(self.settings)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def start(self) -> Self:
        """Start it and wait until it answers."""
        process = self.launch()

        def answers() -> bool:
            assert process.poll() is None, self.log.read_text()
            try:
                self.client.status()
            except GpucorrelateError:
                return False
            return True

        wait_for(answers, "the daemon answers")
        return self

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal; its exit code."""
        process = self.process
        assert process is not None
        self.client.close()
        if process.poll() is None:
            process.send_signal(number)
        return process.wait(_PATIENCE_S)

    def kill(self) -> None:
        """As when the machine's memory is full: no warning, no goodbye."""
        self.end(signal.SIGKILL)

    def session_dir(self, session: str) -> Path:
        """Where a session's recording is."""
        return self.folder / "s" / "sessions" / session

    def recorded(self, session: str = "") -> Recorded:
        """What the session holds so far, as the client gets it."""
        return Recorded(self.client.open_session(session))


def start_of(session: str, gpu: GpuPlan | None = None) -> dict[str, object]:
    """What an agent hears when its process is attached."""
    return {"op": "start", "session": session, "gpu": to_wire(gpu or GpuPlan())}


class PeerProcess:
    """A process that plays an engine's agent."""

    def __init__(self, ingest: str) -> None:
        self.ingest = ingest
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "unit" / "daemon_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd="/",
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, verb: str, *arguments: Any) -> Any:
        """Have it do something; what it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([verb, *arguments]).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def join(self, role: str = "core") -> Any:
        """Connect and say who it is; the daemon's first word."""
        self.do("connect", self.ingest)
        self.do("greet", role)
        return self.do("hear")

    def kill(self) -> None:
        """End it and its children."""
        if self.process.poll() is None:
            with suppress(BrokenPipeError, ValueError):
                self.do("end")
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class Yard:
    """Makes daemons and peers, and clears them away; a context manager does that at its end."""

    def __init__(self) -> None:
        # Socket paths must be short, and pytest's folders are not.
        self.folder = Path(tempfile.mkdtemp(prefix="gpc"))
        self.folder.chmod(0o755)  # other users are played, too
        self._daemons: list[DaemonProcess] = []
        self._peers: list[PeerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def daemon(self, **settings: Any) -> DaemonProcess:
        made = DaemonProcess(self.folder, **settings)
        self._daemons.append(made)
        return made

    def peer(self, daemon: DaemonProcess) -> PeerProcess:
        made = PeerProcess(daemon.ingest)
        self._peers.append(made)
        return made

    def clear(self) -> None:
        for peer in self._peers:
            peer.kill()
        for daemon in self._daemons:
            daemon.client.close()
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Recorded:
    """A recording, read as a report reads it: in order, with every stream's strings."""

    def __init__(self, items: Iterable[Batch | Damage]) -> None:
        self.damage: list[Damage] = []
        self.batches: list[Batch] = []
        self.readers: dict[int, StreamReader] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._streams: dict[str, list[int]] = {}
        for item in items:
            if isinstance(item, Damage):
                self.damage.append(item)
            else:
                self._take(item)

    def _take(self, batch: Batch) -> None:
        reader = self.readers.setdefault(batch.stream, StreamReader())
        used, _, _ = reader.accept(batch)
        if not used:
            return
        self.batches.append(batch)
        kind = BY_ID.get(batch.kind)
        if kind is None:
            return
        rows = rows_of(kind, batch, reader.strings)
        self._rows.setdefault(kind.name, []).extend(rows)
        self._streams.setdefault(kind.name, []).extend([batch.stream] * len(rows))

    def rows(self, kind: str) -> list[tuple[Any, ...]]:
        """All rows of a kind, in the order they were written."""
        return self._rows.get(kind, [])

    def values(self, kind: str, column: str) -> list[Any]:
        """One column of all rows of a kind."""
        from gpucorrelate.probes.wire.schema import BY_NAME

        at = BY_NAME[kind].index(column)
        return [row[at] for row in self.rows(kind)]

    def streams(self, kind: str) -> list[int]:
        """The stream that each row of a kind is from."""
        return self._streams.get(kind, [])

    def lost(self, hop: str) -> int:
        """Events that the recording says were lost at a hop."""
        found = zip(self.values("loss", "hop"), self.values("loss", "count"), strict=True)
        return sum(count for name, count in found if name == hop)

    @property
    def missing(self) -> int:
        """Batches missing in the agents' streams."""
        return sum(reader.missing for number, reader in self.readers.items() if number > 2)


def recorded_at(path: Path) -> Recorded:
    """What a file or directory holds."""
    return Recorded(open_recording(path))
