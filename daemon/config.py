# SPDX-License-Identifier: Apache-2.0
"""How the daemon runs: where its files are, and the limits it keeps."""

from __future__ import annotations

import grp
import os
from dataclasses import dataclass, field
from pathlib import Path

from gpucorrelate.daemon import metrics_address
from gpucorrelate.probes.ebpf.values import BACKENDS as BACKENDS
from gpucorrelate.probes.wire.errors import UsageError

MIB = 1 << 20
GIB = 1 << 30

RUNTIME_DIR = Path("/run/gpucorrelate")
STATE_DIR = Path("/var/lib/gpucorrelate")
CONTROL_ENV = "GPUCORRELATE_CONTROL"
INGEST_ENV = "GPUCORRELATE_INGEST"
GROUP = "gpucorrelate"
#: What the log can tell, the most talkative first.
LOG_LEVELS = ("debug", "info", "warning", "error")

#: Sums of sizes must fit 64 bits.
MAX_TOTAL_BYTES = 1 << 60
#: One message may carry this many file descriptors (SCM_MAX_FD is 253), so a session must
#: not have more segments.
MAX_SEGMENTS = 240


@dataclass(frozen=True)
class Limits:
    """What no peer and no session can exceed.

    Attributes:
        clients: Connected agents in all.
        clients_per_uid: Of one user other than root.
        control_clients: Connected callers of the control socket; the last eighth is for root.
        control_clients_per_uid: Of one user other than root.
        control_idle_s: After so long without a whole question a caller is disconnected.
        read_bytes_per_tick: Most that one agent is read in one turn of the loop; the rest
            waits in its socket, so that a flood costs the flooder, not the others.
        idle_read_bytes_per_tick: The same for a process that nobody asked to send.
        damaged: Damaged stretches after which an agent is disconnected.
        string_bytes: Most that one stream may have restated in every segment: its strings and
            lasting rows. Less where segments are small, see ``DaemonConfig.stream_bytes``.
        idle_string_bytes: The same for a process in no session; what it sends beyond that stays
            in its socket until it is in one.
        idle_bytes_per_uid: What processes in no session may keep here, of one user other than
            root; beyond it they are read no further, far beyond it disconnected.
        idle_bytes: The same for all processes in no session.
        sessions: Sessions at one time.
        sessions_per_uid: Of one user other than root.
        finished_sessions: Recordings of sessions that are over; beyond, the longest ended of the
            user who has most of them are deleted. The daemon knows each by some 30 KiB.
        processes: Processes in one session.
        threads: Threads of one process that are named.
    """

    clients: int = 1024
    clients_per_uid: int = 256
    control_clients: int = 64
    control_clients_per_uid: int = 16
    control_idle_s: float = 10.0
    read_bytes_per_tick: int = 4 * MIB
    idle_read_bytes_per_tick: int = 64 << 10
    damaged: int = 64
    string_bytes: int = 8 * MIB
    idle_string_bytes: int = 256 << 10
    idle_bytes_per_uid: int = 16 * MIB
    idle_bytes: int = 64 * MIB
    sessions: int = 32
    sessions_per_uid: int = 8
    finished_sessions: int = 500
    processes: int = 4096
    threads: int = 16384


@dataclass(frozen=True)
class MetricsConfig:
    """Whether and where the daemon's own numbers are served to Prometheus.

    Attributes:
        listen: Address and port, at which any user of this machine can read ``/metrics``; the
            package prometheus_client must be installed. Empty: they are served nowhere.
        remote: Allow an address that other machines can reach. Nothing is encrypted, and nobody is
            asked for a password; the service's sandbox must allow it too.
        requests: Serve histograms of the requests of all sessions too: how long they took, their
            phases and what held them up, by model. A process of its own explains them, for 10% of
            a CPU at most and some 200 MB of memory; busy engines' requests by sample.
        exemplars: Have those histograms name a request in each bucket, by the id that its client
            gave it, for scrapers that ask for OpenMetrics.
    """

    listen: str = ""
    remote: bool = False
    requests: bool = False
    exemplars: bool = True


@dataclass(frozen=True)
class DaemonConfig:
    """The daemon's settings.

    Attributes:
        runtime_dir: Sockets and the lock file.
        state_dir: Recordings.
        control_socket: Where commands come in; default in ``runtime_dir``.
        ingest_socket: Where agents connect; default in ``runtime_dir``.
        group: Group that may use the control socket, if the system has it.
        segment_bytes: Size at which a recording goes on in a new file.
        session_max_bytes: Size of one session's recording; the oldest segments go first.
        total_max_bytes: Size of all recordings.
        max_age_s: Age at which segments are deleted.
        tick_ms: Shortest time from one turn to the next; in each the kernel's rings are drained
            and files written. While sessions record it is 2.5 times that, and 10 times while no
            request is in flight and next to nothing is recorded (but no more than ``poll_ms``).
            A ring that fills, a new process and a session that ends are not made to wait.
        settle_ms: How long after its start the daemon does not yet believe that a process has no
            agent: one that is there connects within about a second.
        require_ebpf: Refuse to run without the kernel probes.
        ebpf: Use the kernel probes at all.
        backend: What loads them: ``libbpf``, ``bcc`` (the system's package python3-bpfcc), or
            ``auto``: libbpf where it works, else BCC where it is installed.
        faults: Trace page faults.
        ring_bytes: Kernel ring per CPU.
        min_wait_ns: Shorter waits are summed in the kernel, by thread and kind; 0: none are.
        yields: Trace runs of ``sched_yield``; costs every system call of a target a little, and
            tells nothing new of engines whose agent says when it polls.
        poll_ms: How often the host's numbers are read (cgroups, pressure, threads, memory); 0:
            they are not. Four times as often while a request takes longer than requests do, and
            for 2 s after the kernel said that tasks stand still.
        poll_share_ppm: Most of one CPU that reading them may take, in millionths; where that is
            too little, they are read less often.
        engine_metrics: Ask engines for their own metrics, over HTTP.
        engine_every_ms: How often. Each time costs the engine's API server 0.6 to 5 ms in the
            thread that streams tokens, which is 0.1% at most of every 5 s; what the metrics
            tell (preemptions, queues, use of the KV cache) the agent tells of each step.
        nice: Scheduling priority. The daemon needs a few percent of a CPU, but at the right time:
            behind busy engine threads it would come too late for the kernel's rings.
        drop_privileges: Give up all but the needed capabilities once everything is loaded.
        resume: Take up the sessions that were running when the daemon last went down.
        log_level: What the log tells: this and what is worse; ``debug``, ``info``, ``warning``
            or ``error``.
        limits: See ``Limits``.
        metrics: See ``MetricsConfig``.
    """

    runtime_dir: Path = RUNTIME_DIR
    state_dir: Path = STATE_DIR
    control_socket: Path | None = None
    ingest_socket: Path | None = None
    group: str = GROUP
    segment_bytes: int = 64 * MIB
    session_max_bytes: int = 4 * GIB
    total_max_bytes: int = 16 * GIB
    max_age_s: int = 14 * 86400
    tick_ms: int = 20
    settle_ms: int = 2500
    require_ebpf: bool = False
    ebpf: bool = True
    backend: str = "auto"
    faults: bool = True
    ring_bytes: int = 8 * MIB
    min_wait_ns: int = 0
    yields: bool = False
    poll_ms: int = 200
    poll_share_ppm: int = 10_000
    engine_metrics: bool = True
    engine_every_ms: int = 5000
    nice: int = -10
    drop_privileges: bool = True
    resume: bool = True
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            UsageError: a size or time is out of range.
        """
        if self.segment_bytes < 4096:
            raise UsageError("segment size must be at least 4096 bytes")
        if self.session_max_bytes < 2 * self.segment_bytes:
            raise UsageError("a session must be allowed two segments at least")
        if self.total_max_bytes < self.session_max_bytes:
            raise UsageError("the limit on all recordings is below that on one session")
        if not 1 <= self.tick_ms <= 1000:
            raise UsageError("tick must be from 1 to 1000 ms")
        self._check_polling()
        metrics_address.check(self.metrics.listen, remote=self.metrics.remote)
        if self.total_max_bytes > MAX_TOTAL_BYTES:
            raise UsageError(f"the limit on all recordings is above {MAX_TOTAL_BYTES} bytes")
        if not 0 < self.ring_bytes <= GIB:
            raise UsageError("the kernel ring must be from 1 byte to 1 GiB per CPU")
        if self.require_ebpf and not self.ebpf:
            raise UsageError("kernel probes cannot be both demanded and switched off")
        if self.backend not in BACKENDS:
            raise UsageError(f"backend {self.backend!r} is none of {', '.join(BACKENDS)}")
        if self.log_level not in LOG_LEVELS:
            raise UsageError(f"log level {self.log_level!r} is none of {', '.join(LOG_LEVELS)}")
        if self.group != GROUP and not _is_group(self.group):
            raise UsageError(f"there is no group {self.group!r} on this system")

    def _check_polling(self) -> None:
        if self.poll_ms and not 10 <= self.poll_ms <= 60_000:
            raise UsageError("the host must be polled every 10 to 60000 ms, or not at all: 0")
        if not 100 <= self.engine_every_ms <= 600_000:
            raise UsageError("engines must be asked every 100 to 600000 ms")
        if not 100 <= self.poll_share_ppm <= 1_000_000:
            raise UsageError("the share for polling must be from 100 to 1000000 ppm of a CPU")

    @property
    def stream_bytes(self) -> int:
        """Most that one agent's stream may have restated at the head of every segment."""
        return min(self.limits.string_bytes, max(self.segment_bytes // 8, 4 * MIB))

    @property
    def head_bytes(self) -> int:
        """The same for all agents of a session."""
        return min(4 * self.limits.string_bytes, max(self.segment_bytes // 2, 8 * MIB))

    @property
    def control_path(self) -> Path:
        """Path of the control socket."""
        return self.control_socket or self.runtime_dir / "control.sock"

    @property
    def ingest_path(self) -> Path:
        """Path of the agents' socket."""
        return self.ingest_socket or self.runtime_dir / "ingest.sock"


def _is_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except (KeyError, ValueError):
        return False
    return True


def default_control_path() -> Path:
    """Where the control socket is, unless the caller says otherwise."""
    return Path(os.environ.get(CONTROL_ENV) or RUNTIME_DIR / "control.sock")
