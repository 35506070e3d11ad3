# SPDX-License-Identifier: Apache-2.0
"""What is said of devices, as frozen values. Times and lengths as in ``values``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.values import Category, Ledger, Segment, Verdict


@dataclass(frozen=True)
class KernelShare:
    """Operations of one name or class."""

    name: str
    count: int
    length_ns: int  # total; operations that overlap count each


@dataclass(frozen=True)
class SyncShare:
    """Waits for devices of one kind."""

    kind: str  # device, stream, event, polling, "blocking copy", "blocking fill"
    count: int
    length_ns: int  # total
    busy_ns: int  # of it, a device of the process was busy
    over_wait_ns: int  # of it, what was waited for had ended already


@dataclass(frozen=True)
class StepDevice:
    """What devices did in one step."""

    gpu_sum_ns: int  # total of its operations, overlap counted each time
    gpu_busy_ns: int  # overlap counted once
    gpu_span_ns: int  # its first operation's start to its last one's end
    kernels: int
    copies: int
    fills: int
    parts: tuple[tuple[str, int], ...]  # what the device did in the step's wall time; sums to it
    launches: int  # calls that launch kernels, graphs, copies or fills
    graph_launches: int
    graph_ops: int  # operations launched by graphs
    calls: int  # of the API, all
    launch_ns: int  # in calls that launch, summed over threads
    syncs: tuple[SyncShare, ...]
    classes: tuple[KernelShare, ...]  # kernels by class, the longest first; "unknown" is one
    top: tuple[KernelShare, ...]  # operations by name, the longest first
    clamped: int  # that seem to begin before their launch
    by_stream: int  # without a launch record, assigned by their stream's order
    by_time: int  # without a launch record, assigned by when they ran

    @property
    def ops(self) -> int:
        """Its operations."""
        return self.kernels + self.copies + self.fills


@dataclass(frozen=True)
class IdleGap:
    """A stretch in which none of a step's operations ran though later ones were to come."""

    start_ns: int
    end_ns: int
    stream: str  # of the operation that ended it
    before: str  # the operation that ended last before it
    after: str  # the one that ended it
    launch: str  # the call that launched that; "" not on record
    launched_ns: int | None  # when that call began
    doing: tuple[tuple[str, int], ...]  # who held the path meanwhile with what, the longest first

    @property
    def length_ns(self) -> int:
        """Length of the gap."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class DeviceLedger:
    """Every record of a device: assigned to a step, or counted by why not."""

    gpu_records: int
    assigned: int
    by_launch: int
    by_stream: int
    by_time: int
    unassigned: tuple[tuple[str, int], ...]  # by reason
    clamped: int  # seem to begin before their launch
    invalid: int  # no start, or an end before it; left out of everything
    without_call: int  # no launch on record
    calls: int
    calls_invalid: int
    launches: int
    launches_without_record: int
    repeated_ids: int  # operations whose id several calls have
    inferred: int  # dependencies taken from when operations ended

    @property
    def complete(self) -> bool:
        """Whether every record is accounted for."""
        return self.assigned + sum(n for _, n in self.unassigned) + self.invalid == (
            self.gpu_records
        )


@dataclass(frozen=True)
class DeviceStepReport:
    """One step of a profile: an exact partition, what devices did, and what it rests on."""

    step: int
    name: str  # what the trace calls it
    process: str  # whose it is: "rank 3", "pid 6583"
    start_ns: int
    end_ns: int
    implied: bool  # the trace has no steps: it is all of it
    segments: tuple[Segment, ...]  # tile start_ns..end_ns
    device: StepDevice
    gaps: tuple[IdleGap, ...]  # the longest idle ones
    verdict: Verdict
    device_ledger: DeviceLedger
    ledger: Ledger

    @property
    def wall_ns(self) -> int:
        """Its start to its last call or operation."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class DeviceStepRow:
    """One line of a list of steps of a profile."""

    step: int
    name: str
    process: str
    start_ns: int
    end_ns: int
    implied: bool
    ops: int
    launches: int
    graph_launches: int
    gpu_sum_ns: int
    gpu_busy_ns: int
    by_category: tuple[tuple[Category, int], ...]  # of its path, the longest first

    @property
    def wall_ns(self) -> int:
        """Its start to its last call or operation."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class DeviceShare:
    """One device of one process, over the whole recording."""

    process: str
    device: int
    ops: int
    gpu_sum_ns: int
    gpu_busy_ns: int
    gpu_span_ns: int


@dataclass(frozen=True)
class DeviceRunReport:
    """A whole profile."""

    start_ns: int
    end_ns: int
    sources: tuple[str, ...]
    devices: tuple[DeviceShare, ...]
    steps: tuple[DeviceStepRow, ...]
    classes: tuple[KernelShare, ...]
    top: tuple[KernelShare, ...]
    device_ledger: DeviceLedger
    ledger: Ledger
    by_category: tuple[tuple[Category, int], ...] = field(default=())  # summed over steps' paths

    @property
    def wall_ns(self) -> int:
        """First moment on record to the last."""
        return self.end_ns - self.start_ns

    @property
    def gpu_sum_ns(self) -> int:
        """Total of all operations."""
        return sum(one.gpu_sum_ns for one in self.devices)

    @property
    def gpu_busy_ns(self) -> int:
        """Time in which a device was busy, summed over devices."""
        return sum(one.gpu_busy_ns for one in self.devices)

    @property
    def gpu_span_ns(self) -> int:
        """From the first operation to the last one's end, of the device where that is longest."""
        return max((one.gpu_span_ns for one in self.devices), default=0)
