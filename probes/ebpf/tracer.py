# SPDX-License-Identifier: Apache-2.0
"""Waits, wakers, faults and births of the targets' threads, from the running kernel."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpucorrelate.probes.ebpf import decode, selftest, support, trap
from gpucorrelate.probes.ebpf.kernel import Kernel
from gpucorrelate.probes.ebpf.layout import IterMode
from gpucorrelate.probes.ebpf.ring import RECORD, as_records, as_words
from gpucorrelate.probes.ebpf.values import Capability, Loss, Rows, TracerConfig, TracerStats
from gpucorrelate.probes.wire.errors import KernelSupportError, NoSuchProcessError
from gpucorrelate.probes.wire.schema import CapabilityState, KernelRecord, TaskEvent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucorrelate.probes.wire.frame import StringTable

__all__ = ["Capability", "Loss", "Rows", "Tracer", "TracerConfig", "TracerStats"]

#: Most records taken from one ring in one drain; what is left waits for the next.
DRAIN_LIMIT = 1 << 16
#: A window of short-wait sums is closed this often.
SUM_WINDOW_NS = 100_000_000


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _parent_of(tgid: int) -> int:
    """A process's parent from procfs; 0 when it is gone."""
    try:
        text = Path(f"/proc/{tgid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


#: Records among which one whose end had to be worked out is not worth a warning.
_FEW = 1_000


class Tracer:
    """The kernel probes: started once, then told which processes to watch.

    Every method may be called from any thread. Process ids given and returned are those of the
    initial pid namespace, except that in a child namespace ``add_target`` and ``remove_target``
    take the caller's own ids.

    Attributes:
        fault_trap_ns: What a page fault costs on this host besides what its record covers.
    """

    fault_trap_ns = 0

    def __init__(self, kernel: Kernel, found: support.Support, config: TracerConfig) -> None:
        self._kernel = kernel
        self._support = found
        self._config = config
        self._lock = threading.Lock()
        self._host_ids = not any(item.what == "ebpf.pidns" for item in found.missing)
        self._waiting: list[NDArray[np.void]] = []
        self._known: set[int] = set()
        self._parents: dict[int, int] = {}
        self._summed_ns = _now_ns()
        self._taken = 0

    @classmethod
    def start(cls, config: TracerConfig | None = None) -> Tracer:
        """Load and attach the programs, and check that they tell the truth.

        Raises:
            KernelSupportError: this host cannot run them; message and hint say why.
            SelfTestError: they run, but do not see a wait that this process makes.
        """
        config = config or TracerConfig()
        facts = support.facts(backend=config.backend)
        found = support.decide(facts, faults=config.faults, backend=config.backend)
        for item in found.missing:
            if item.fatal:
                raise KernelSupportError(f"waits cannot be traced: {item.why}", hint=item.mend)
        kernel = Kernel(found, config)
        try:
            kernel.attach()
            tracer = cls(kernel, found, config)
            selftest.run(tracer, config.min_wait_ns)
            tracer.fault_trap_ns = trap.measure(tracer) if "fault_user" in kernel.attached else 0
            tracer.losses()  # what the self-test lost is nobody's loss
            if config.yields:
                tracer.set_yields(on=True)
        except BaseException:
            kernel.close()
            raise
        return tracer

    @property
    def backend(self) -> str:
        """What loaded the programs: ``libbpf`` or ``bcc``."""
        return self._support.backend.value

    def add_target(self, tgid: int) -> None:
        """Watch a process and all it forks. Waits its threads are in begin now, flagged.

        Raises:
            NoSuchProcessError: there is no such process.
        """
        with self._lock:
            if tgid <= 0 or not Path(f"/proc/{tgid}").exists():
                raise NoSuchProcessError(f"no process {tgid}")
            if self._host_ids and self._kernel.is_target(tgid):
                return
            self._kernel.next_epoch()
            seen = self._walk(IterMode.ATTACH, tgid)
            if not len(seen):
                raise NoSuchProcessError(f"no process {tgid}")
            self._known.add(int(seen["tgid"][0]))
            self._waiting.append(seen)

    def remove_target(self, tgid: int) -> None:
        """Stop watching a process; what its threads are waiting in is forgotten.

        Harmless for a process that is not watched. Its children stay targets.
        """
        with self._lock:
            self._walk(IterMode.FORGET, tgid)
            self._known &= self._kernel.targets()

    def targets(self) -> frozenset[int]:
        """The processes watched now; those that exited are gone from it."""
        with self._lock:
            return self._kernel.targets()

    def set_yields(self, on: bool) -> None:  # noqa: FBT001 - the switch is its whole meaning
        """Trace runs of ``sched_yield``, or stop; costs every syscall of the machine a little.

        Raises:
            KernelSupportError: the kernel has no tracepoint for it.
        """
        with self._lock:
            if on and not self._support.spins:
                raise KernelSupportError("yield runs cannot be traced: no sys_enter tracepoint")
            self._kernel.set_spins(on=on)

    def fileno(self) -> int:
        """Readable when a drain is due before its time: a ring fills, or a target forked."""
        return self._kernel.fileno()

    def calm(self) -> None:
        """A drain follows: wait for the next time that one is due."""
        with self._lock:
            self._kernel.calm()

    @property
    def dropping(self) -> bool:
        """Whether events were lost, for want of room, since ``losses`` was called."""
        with self._lock:
            return self._kernel.dropping

    def drain(self, strings: StringTable) -> list[Rows]:
        """Everything that happened since the last drain, bounded per CPU."""
        with self._lock:
            records = self._take()
            if not len(records):
                return self._sums()
            parts = decode.by_kind(records)
            if (tasks := parts.get(KernelRecord.TASK)) is not None:
                self._learn(tasks)
            return decode.rows_of(parts, strings) + self._sums()

    def open_waits(self, now_ns: int, strings: StringTable) -> list[Rows]:
        """What the targets' threads are in at this moment, flagged as open; nothing changes.

        Sums of short waits up to now come with it, so that a report is complete.

        Args:
            now_ns: End that the rows get.
            strings: String table of the stream the rows are for.
        """
        with self._lock:
            records = decode.close_open(self._walk(IterMode.REPORT, 0), now_ns)
            parts = decode.by_kind(records)
            return decode.rows_of(parts, strings) + self._sums(close=True)

    def losses(self) -> list[Loss]:
        """What was lost since the last call."""
        with self._lock:
            return self._kernel.losses(_now_ns())

    def capabilities(self) -> tuple[Capability, ...]:
        """Which sources of evidence work here, and what is lost without the others."""
        lost = support.reasons((*self._support.missing, *self._kernel.refused))
        count = self._kernel.recovered
        if count * _FEW > self._taken:
            lost["ebpf.sched"] = (
                f"this kernel did not report {count} returns to a CPU (seen on virtual machines, "
                "where a CPU idles): their time is the scheduler's, their waker may be unknown"
            )
        sources = ["ebpf.sched", "ebpf.context", "ebpf.pidns"]
        found = [self._capability(name, lost, CapabilityState.DEGRADED) for name in sources]
        if self._config.faults:
            off = "fault_user" not in self._kernel.attached
            state = CapabilityState.OFF if off else CapabilityState.DEGRADED
            found.append(self._capability("ebpf.faults", lost, state))
        else:
            found.append(Capability("ebpf.faults", CapabilityState.OFF, "switched off"))
        if not self._kernel.spins_on:
            reason = lost.get("ebpf.spins", "off until asked for: the engine's agent sees spins")
            found.append(Capability("ebpf.spins", CapabilityState.OFF, reason))
        else:
            found.append(Capability("ebpf.spins", CapabilityState.ON, ""))
        return tuple(found)

    @staticmethod
    def _capability(name: str, lost: dict[str, str], worse: CapabilityState) -> Capability:
        reason = lost.get(name, "")
        return Capability(name, worse if reason else CapabilityState.ON, reason)

    def new_targets(self, *, told: bool = False) -> tuple[tuple[int, int], ...]:
        """Processes followed through fork since the last call, as ``(tgid, parent tgid)``.

        Args:
            told: Only those that drained records tell of. That costs nothing, but records may
                have been dropped.
        """
        with self._lock:
            alive = frozenset() if told else self._kernel.targets()
            born = sorted((set(self._parents) | alive) - self._known)
            found = tuple((tgid, self._parents.get(tgid) or _parent_of(tgid)) for tgid in born)
            if not told:
                self._known = set(alive)
            self._known.update(tgid for tgid in born if self._kernel.is_target(tgid))
            self._parents.clear()
            return found

    def stats(self) -> TracerStats:
        """Counters since the start."""
        with self._lock:
            return self._kernel.stats(self._taken)

    def stop(self) -> None:
        """Detach and unload everything. The tracer cannot be used after."""
        with self._lock:
            self._kernel.close()

    def _walk(self, mode: IterMode, tgid: int) -> NDArray[np.void]:
        return np.frombuffer(self._kernel.walk(mode, tgid), RECORD)

    def _take(self) -> NDArray[np.void]:
        parts, self._waiting = self._waiting, []
        for records in self._kernel.take(DRAIN_LIMIT):
            self._taken += len(records)
            parts.append(records)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return np.empty(0, RECORD)
        return as_records(np.concatenate([as_words(part) for part in parts]))

    def _learn(self, tasks: NDArray[np.void]) -> None:
        for birth in decode.births(tasks):
            self._parents[birth.tgid] = birth.parent_tgid
        ended = tasks["tgid"][tasks["op"] == TaskEvent.EXIT]
        gone = self._known.intersection(np.unique(ended).tolist())
        self._known -= {tgid for tgid in gone if not self._kernel.is_target(tgid)}

    def _sums(self, *, close: bool = False) -> list[Rows]:
        if not self._config.min_wait_ns:
            return []
        rows: list[Rows] = []
        now = _now_ns()
        if close or now - self._summed_ns >= SUM_WINDOW_NS:
            self._summed_ns = now
            for keys, values in self._kernel.close_sums(wait=close):
                if keys:
                    rows.append(decode.sum_rows(keys, values))
        return rows
