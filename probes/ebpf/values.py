# SPDX-License-Identifier: Apache-2.0
"""What the kernel probes hand to their user."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.probes.wire.schema import CapabilityState, Kind


class Backend(enum.StrEnum):
    """By way of what the programs get into the kernel."""

    LIBBPF = "libbpf"
    BCC = "bcc"


#: What may be asked for; ``auto``: libbpf where it works, else BCC where that is installed.
BACKENDS = ("auto", *(backend.value for backend in Backend))
#: The longest that ``TracerConfig.min_wait_ns`` may be: the self-test makes a longer wait.
LONGEST_MIN_WAIT_NS = 1_000_000_000


@dataclass(frozen=True)
class Rows:
    """Rows of one kind, one packed little-endian array per column of the schema.

    Attributes:
        kind: Kind of the rows.
        count: Rows.
        columns: What ``StreamWriter.frames`` takes.
    """

    kind: Kind
    count: int
    columns: tuple[bytes, ...]


@dataclass(frozen=True)
class Loss:
    """Events lost since the last time losses were asked for.

    Attributes:
        hop: Where: ``bpf.ring`` (full), ``bpf.storage`` (no memory for a thread's state),
            ``bpf.recursion`` (a program was already running on that CPU).
        what: Kind of event.
        count: Events, an increment.
        since_ns: Not before this; 0: unknown.
        t_ns: When it was noticed.
    """

    hop: str
    what: str
    count: int
    since_ns: int
    t_ns: int


@dataclass(frozen=True)
class Capability:
    """Whether a source of evidence works, and what is lost where it does not."""

    source: str
    state: CapabilityState
    reason: str


@dataclass(frozen=True)
class TracerConfig:
    """Settings of the kernel probes.

    Attributes:
        ring_bytes: Ring per CPU; rounded down to a power of two of pages.
        min_wait_ns: Shorter waits are summed in the kernel per thread and kind; 0: none are;
            at most ``LONGEST_MIN_WAIT_NS``.
        faults: Whether page faults are traced; costs every fault of the machine a little.
        yields: Whether runs of ``sched_yield`` are traced; costs every syscall a little.
        backend: ``libbpf``, ``bcc``, or ``auto``: libbpf where it works, else BCC if it is there.
    """

    ring_bytes: int = 8 << 20
    min_wait_ns: int = 0
    faults: bool = True
    yields: bool = False
    backend: str = "auto"


@dataclass(frozen=True)
class TracerStats:
    """Counters of a running tracer, since it started.

    Attributes:
        taken: Records taken from the rings.
        written: Records the kernel put into the rings.
        dropped: Records lost because a ring was full.
        failed_storage: Times the kernel had no memory for a thread's state.
        failed_reads: Arguments or names that could not be read; the event itself is there.
        recovered: Waits whose end the kernel did not report; taken from the scheduler's account.
        sums_full: Short waits streamed because the table of sums was full.
        missed_runs: Times a program was skipped because it was already running on that CPU.
        ring_bytes: Size of each ring.
        ring_fill_bytes: Most bytes any ring ever held when it was drained.
        cpus: Rings.
        programs: Attached programs.
    """

    taken: int
    written: int
    dropped: int
    failed_storage: int
    failed_reads: int
    recovered: int
    sums_full: int
    missed_runs: int
    ring_bytes: int
    ring_fill_bytes: int
    cpus: int
    programs: tuple[str, ...]
