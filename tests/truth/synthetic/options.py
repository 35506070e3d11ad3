# SPDX-License-Identifier: Apache-2.0
"""What kind of engine is simulated, and how it is disturbed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rates:
    """Disturbances per second of work of any thread, by kind; 0 never."""

    preempted: float = 0
    late: float = 0  # a thread that was woken waits for a CPU: share of wakes, in percent
    fault: float = 0
    minor: float = 0  # storms of minor faults
    sleep: float = 0
    disk: float = 0
    external: float = 0  # waits for a process that is not traced
    lock: float = 0
    gil: float = 0
    yielding: float = 0

    def scaled(self, by: float) -> Rates:
        """All of them times a number."""
        return Rates(**{name: value * by for name, value in vars(self).items()})


ALL = Rates(preempted=60, late=8, fault=30, minor=40, sleep=20, disk=20, external=15, lock=60,
            gil=40, yielding=20)  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """How long things take: means, in microseconds."""

    parse: float = 120
    tokenise: float = 400
    vocabulary: float = 0  # read from a disk before each prompt
    send: float = 60
    receive: float = 30  # a socket's thread, per message
    admit: float = 25
    schedule: float = 80
    update: float = 60
    output: float = 50  # per batch of outputs
    chunk: float = 20
    prepare: float = 150
    execute: float = 400  # per step, without a device
    per_token: float = 1.5
    sample: float = 90
    reply: float = 20


@dataclass(frozen=True)
class DeviceOptions:
    """Devices; lengths in microseconds."""

    kernels: int = 0  # launches per step, each of its own call
    graph: int = 0  # nodes of one graph launch per step
    kernel: float = 20
    per_token: float = 0.2
    launch: float = 4
    queue: int = 1_024  # launches that wait; a call that finds so many waits for room
    spread: float = 0.5  # how much lengths of operations vary
    over: float = 6  # from the end of what a call waited for to its return
    copy_stream: bool = True  # results are copied on a stream that waits for an event
    blocks: bool = False  # calls that wait give up the CPU

    def __bool__(self) -> bool:
        return bool(self.kernels or self.graph)


@dataclass(frozen=True)
class ClockOptions:
    """The clock of each device, against CLOCK_MONOTONIC."""

    offset_ns: int = 0
    drift_ppb: int = 0
    width_us: float = 1  # a pair of readings takes up to so long
    pairs: int = 16
    every_us: float = 20_000


@dataclass(frozen=True)
class Options:
    """One capture."""

    seed: int = 0
    requests: int = 4
    spread_us: float = 4_000  # requests arrive within this time
    prompt: tuple[int, int] = (4, 60)
    answer: tuple[int, int] = (1, 6)
    ranks: int = 1
    depth: int = 1  # steps in flight
    copier: bool = False  # a thread of each worker waits for results and replies
    long: int = 0  # so many more requests, with long prompts
    long_prompt: tuple[int, int] = (0, 0)
    budget: int = 64  # tokens per step
    cap: int = 0  # of a prompt's tokens in a step in which others decode; 0 none
    hold_us: float = 0  # for so long a thread of the core has a lock that scheduling needs
    batch: int = 8  # requests per step
    spread: float = 0.4  # how much lengths vary
    costs: Costs = field(default_factory=Costs)
    device: DeviceOptions = field(default_factory=DeviceOptions)
    clock: ClockOptions | None = None  # None: devices tell CLOCK_MONOTONIC
    rates: Rates = field(default_factory=Rates)
    flush_ns: int = 20_000_000
    truth: bool = True  # remember what is needed to explain
