# SPDX-License-Identifier: Apache-2.0
"""Scenarios played under the kernel probes, and explained as a request's path is.

Everything between a kernel record and a segment is what recordings and reports use: the tracer,
the wire's frames, the capture, the states, the walk, the words.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator import states as states_
from gpucorrelate.correlator import steps as steps_
from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.causes import Describer
from gpucorrelate.correlator.walk import LegSpec, Walker
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from gpucorrelate.probes.wire.errors import (
    GpucorrelateError,
    KernelSupportError,
    NoSuchProcessError,
)
from gpucorrelate.probes.wire.frame import Decoder, StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, SessionEvent
from gpucorrelate.verify.scenarios.quota import remove_left_behind
from gpucorrelate.verify.truth import Played, read_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpucorrelate.correlator.report.values import Segment
    from gpucorrelate.verify.scenarios import Scenario
    from gpucorrelate.verify.truth import Operation

_DAEMON, _KERNEL, _AGENT = 1, 2, 3
_DRAIN_S = 0.05
#: A scenario that says nothing for so long hangs.
_PATIENCE_S = 60.0
_GOODBYE_S = 10.0
_READY, _DONE, _IMPOSSIBLE = "ready", "done", "impossible: "


class PlayError(GpucorrelateError):
    """A scenario failed by itself: nothing can be said of what it was to show."""


def now() -> int:
    """CLOCK_MONOTONIC in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@contextlib.contextmanager
def tracer(backend: str = "auto") -> Iterator[Tracer]:
    """The kernel probes with everything on that a scenario needs.

    Args:
        backend: What loads them, see ``TracerConfig``.

    Raises:
        ProbeError: they do not work here.
    """
    try:
        here = os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - a number, no path
    except OSError:
        here = False
    if not here:
        raise KernelSupportError(
            "/proc shows another pid namespace than this process's own, or is not there",
            hint="mount its own: unshare --pid --fork --mount-proc",
        )
    made = Tracer.start(TracerConfig(yields=True, backend=backend))
    try:
        yield made
    finally:
        made.stop()


@dataclass
class Recording:
    """A recording as the daemon writes it, in memory: its own, the kernel's, an agent's stream."""

    frames: list[bytes] = field(default_factory=list)
    writers: dict[int, StreamWriter] = field(
        default_factory=lambda: {n: StreamWriter(n) for n in (_DAEMON, _KERNEL, _AGENT)}
    )

    def rows(self, kind: str, rows: Sequence[tuple[Any, ...]], stream: int = _DAEMON) -> None:
        """Rows of Python values."""
        writer = self.writers[stream]
        columns = columns_of(BY_NAME[kind], rows, writer.strings)
        self.frames += writer.frames(BY_NAME[kind], len(rows), columns)

    def event(self, event: SessionEvent, pid: int) -> None:
        """A turn in the session's life."""
        self.rows("session", [(now(), int(event), pid, "verify", "")])

    def drain(self, tracer: Tracer, *, close: bool = False) -> None:
        """Take what the kernel has; at the end also what is still open."""
        writer = self.writers[_KERNEL]
        found = list(tracer.drain(writer.strings))
        if close:
            found += tracer.open_waits(now(), writer.strings)
        for part in found:
            self.frames += writer.frames(part.kind, part.count, part.columns)
        for pid, _ in tracer.new_targets():
            self.event(SessionEvent.PROCESS_ADDED, pid)
        lost = [(one.t_ns, one.hop, one.what, one.count, one.since_ns) for one in tracer.losses()]
        if lost:
            self._lost(lost)

    def _lost(self, lost: list[tuple[int, str, str, int, int]]) -> None:
        names = [column.name for column in BY_NAME["loss"].columns]
        rows = [
            dict(zip(("t_ns", "hop", "what", "count", "since_ns"), row, strict=True))
            for row in lost
        ]
        self.rows("loss", [tuple(row[name] for name in names) for row in rows])

    def capture(self) -> Capture:
        """The recording, read back."""
        decoder = Decoder()
        items = [item for frame in self.frames for item in decoder.feed(frame)]
        return Capture.from_batches(item[0] if isinstance(item, tuple) else item for item in items)


def host_ids(capture: Capture) -> dict[int, int]:
    """Thread ids of this pid namespace to those of the initial one.

    Scenarios know the ids of the namespace that all of this runs in; the kernel probes see those
    of the initial one. A stranger's may be of another namespace: those of traced processes win.
    """
    task, traced = capture.table("task"), set(capture.table("session")["tgid"].tolist())
    columns = (task[name].tolist() for name in ("ns_tid", "tid", "tgid"))
    rows = sorted(zip(*columns, strict=True), key=lambda row: row[2] in traced)
    return {inside: tid for inside, tid, _ in rows if inside}


def explain(capture: Capture, operations: Sequence[Operation]) -> tuple[tuple[Segment, ...], ...]:
    """The path of each operation, as reports have it."""
    states = states_.build(capture)
    describer = Describer(states, steps_.build(capture, steps_.rowsets(capture)))
    legs = [LegSpec(states.threads.one(op.tid), op.start_ns, op.end_ns) for op in operations]
    paths = Walker(states).walk(legs)
    return tuple(tuple(describer.segments(paths.leg(k), ())) for k in range(len(legs)))


class _Player:
    """One scenario's process."""

    def __init__(self, scenario: Scenario, seed: int, rounds: int) -> None:
        self._name = scenario.name
        command = [sys.executable, "-m", "gpucorrelate.verify.scenarios", scenario.name]
        command += [str(seed), str(rounds)]
        # In a process group of its own: what a terminal's Ctrl-C ends is this process, which ends
        # the scenario, and not a peer that was about to let the scenario go on.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self._pending = b""

    def lines(self, idle: Any = None) -> Iterator[str]:  # noqa: ANN401 - a callable or nothing
        """Lines as they come; ``idle`` is called now and then while none does.

        Raises:
            PlayError: it died or hangs.
        """
        out = self.process.stdout
        assert out is not None
        end = time.monotonic() + _PATIENCE_S
        while True:
            head, newline, rest = self._pending.partition(b"\n")
            if newline:
                self._pending = rest
                end = time.monotonic() + _PATIENCE_S
                yield head.decode("utf-8", "replace")
                continue
            if select.select([out], [], [], _DRAIN_S)[0]:
                data = os.read(out.fileno(), 1 << 16)
                if not data:
                    raise PlayError(f"{self._name}: {self._died()}")
                self._pending += data
            elif time.monotonic() > end:
                raise PlayError(f"{self._name}: no word from it in {_PATIENCE_S:.0f} s")
            if idle is not None:
                idle()

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Break it off, whatever it is doing; it may be stopped."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Let it go, whatever state it is in."""
        if self.process.poll() is None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GOODBYE_S)
        for stop in (self.process.terminate, self.process.kill):
            if self.process.poll() is None:
                stop()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_GOODBYE_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _died(self) -> str:
        self.process.wait()
        assert self.process.stderr is not None
        last = self.process.stderr.read().decode("utf-8", "replace").strip().splitlines()
        return last[-1] if last else f"it ended with {self.process.returncode}"


def play(tracer: Tracer, scenario: Scenario, *, seed: int, rounds: int) -> Played:
    """Play a scenario and explain every operation of it.

    Raises:
        PlayError: the scenario's process died or hangs.
        ProbeError: the kernel probes broke.
    """
    player = _Player(scenario, seed, min(rounds, scenario.rounds or rounds))
    try:
        return _played(tracer, scenario.name, player)
    except BaseException:
        player.stop()
        raise
    finally:
        player.end()
        remove_left_behind()


def _played(tracer: Tracer, name: str, player: _Player) -> Played:
    first = next(player.lines())
    if first.startswith(_IMPOSSIBLE):
        return Played(name, impossible=first.removeprefix(_IMPOSSIBLE))
    recording, pid = Recording(), player.process.pid
    tracer.drain(StreamWriter().strings)  # what is left of others
    before = tracer.targets()
    try:
        tracer.add_target(pid)
    except NoSuchProcessError as exc:
        raise PlayError(f"{name}: it ended before it began") from exc
    (host_pid,) = tracer.targets() - before
    recording.rows(
        "stream", [(_KERNEL, 0, 0, "ebpf", "kernel"), (_AGENT, host_pid, 0, "verify", "")]
    )
    told = [(now(), "fault_trap_ns", str(tracer.fault_trap_ns))]
    recording.rows("meta", told)
    recording.event(SessionEvent.ATTACHED, host_pid)
    player.go()
    lines: list[str] = []
    for line in player.lines(lambda: recording.drain(tracer)):
        if line == _DONE:
            break
        lines.append(line)
    recording.drain(tracer, close=True)
    recording.event(SessionEvent.DETACHED, host_pid)
    tracer.remove_target(pid)  # its peers have ended
    log = read_log(lines)
    recording.rows("meta", [(now(), key, value) for key, value in log.facts if value], _AGENT)
    capture = recording.capture()
    if host_pid != pid:
        log = log.renamed(host_ids(capture))
    explained = explain(capture, log.operations)
    return Played(name, log.operations, log.injections, explained)
