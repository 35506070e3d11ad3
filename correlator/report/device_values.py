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
class GapOp:
    """An operation at an idle gap."""

    name: str  # a kernel's short name, or what is copied or filled
    kind: str  # "kernel", "copy", "fill"
    stream: str
    start_ns: int
    end_ns: int
    direction: str | None  # of a copy: "HTOD"; None unknown, or no copy
    size_bytes: int | None  # of a copy or fill; None unknown
    launch: str | None  # the call that launched it; None not on record
    launched_ns: int | None  # when that call began
    thread: str | None  # who called
    waited_ns: int | None  # of communication: at least so long for other processes; None unknown


@dataclass(frozen=True)
class GapHost:
    """What the thread did during an idle gap whose launch ended it."""

    thread: str
    in_calls_ns: int  # in calls of the API
    between_calls_ns: int  # in code that a profile does not tell apart, Python or not
    waiting_ns: int  # of the time in calls: until what they waited for was done
    communication_ns: int  # of the time in calls: launching communication, or waiting for it
    calls: tuple[tuple[str, int], ...]  # the time in calls by name, the longest first


@dataclass(frozen=True)
class GapReturn:
    """A wait for a device that ended in an idle gap: its caller could go on then."""

    call: str
    returned_ns: int
    operation: str  # what it waited for
    ended_ns: int  # when that ended


@dataclass(frozen=True)
class IdleGap:
    """A stretch in which none of a step's operations ran though later ones were to come."""

    start_ns: int
    end_ns: int
    before: GapOp  # the operation that ended last before it
    after: GapOp  # the one that ended it
    pending: int  # operations of the step that were launched when it began, and had not begun
    host: GapHost | None  # None: who launched what ended it is not on record
    copies: tuple[tuple[str, GapOp], ...]  # "before" it, "meanwhile" by other steps, or "after"
    communication: tuple[tuple[str, GapOp], ...]  # likewise
    meanwhile: tuple[KernelShare, ...]  # what ran of other steps by class, cut to the gap
    completion: GapReturn | None  # the last wait that ended in it before the launch; None: none
    receive: GapOp | None  # the communication that had to end before the next work; None: none
    doing: tuple[tuple[str, int], ...]  # who held the path meanwhile with what, the longest first

    @property
    def length_ns(self) -> int:
        """Length of the gap."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class PathCommunication:
    """Communication kernels on a step's path, which run while they wait for others as well."""

    length_ns: int  # of the path, own work only
    waited_ns: int | None  # at least so much of it for other processes; None unknown


@dataclass(frozen=True)
class PathCopies:
    """Copies and fills on a step's path, beside its kernels there; own work only."""

    copies_ns: int
    fills_ns: int
    kernels_ns: int

    @property
    def length_ns(self) -> int:
        """Copies and fills together."""
        return self.copies_ns + self.fills_ns


@dataclass(frozen=True)
class RankSkew:
    """One process in the collectives that it has in common with others."""

    process: str
    length_ns: int  # total of its kernels
    waited_ns: int  # of it at least: for those that began later
    last: int  # how many it began last, by more than the moments may be off
    held_up_ns: int  # how long at least the first of the others waited in those


@dataclass(frozen=True)
class StepSkew:
    """Collectives of the steps of one number, across processes."""

    step: int
    collectives: int  # compared
    off_ns: int  # ends of the same collective are at most so far apart
    ranks: tuple[RankSkew, ...]  # by process


@dataclass(frozen=True)
class Skew:
    """Who came late to what all processes do together."""

    collectives: int  # compared
    left_out: tuple[tuple[str, int], ...]  # communication kernels that were not, by reason
    ranks: tuple[RankSkew, ...]  # over all steps, who held up the others longest first
    steps: tuple[StepSkew, ...]


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
    by_category: tuple[tuple[Category, int], ...]  # of its path, the longest first
    device: StepDevice
    communication: PathCommunication
    copies: PathCopies
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
    skew: Skew | None  # None: of one process there is none
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
