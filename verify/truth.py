# SPDX-License-Identifier: Apache-2.0
"""What was really done, as those who did it measured it: the side that explanations must match.

It knows nothing of how a delay was made or observed: scenarios of the operating system and of an
engine are judged by the same values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.report.values import Category

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpucorrelate.correlator.report.values import Segment


@dataclass(frozen=True)
class Accounts:
    """What the kernel itself counted of an operation's thread, around the operation.

    Attributes:
        cpu_ns: On a CPU.
        queued_ns: Ready and without a CPU.
        faults: Page faults, of either sort.
        throttled_ns: For how long its cgroup was out of quota, its own or that of one above, all
            CPUs together: no thread of it was throttled for longer.
        notice_ns: What CPUs took to notice that they were needed, as a rule, all together: whether
            that is running or not is seen differently from different places in the kernel.
    """

    cpu_ns: int
    queued_ns: int
    faults: int
    notice_ns: int = 0
    throttled_ns: int = 0


@dataclass(frozen=True)
class Operation:
    """A stretch of one thread's time that is to be explained.

    Attributes:
        number: Its number in its scenario.
        control: Whether nothing was injected.
        tid: The thread it ends on.
        start_ns: Start.
        end_ns: End.
        accounts: The kernel's accounts; None where nobody read them.
    """

    number: int
    control: bool
    tid: int
    start_ns: int
    end_ns: int
    accounts: Accounts | None = None


@dataclass(frozen=True)
class Injection:
    """A delay that was made in an operation.

    In a control it is a wait that belongs to the operation itself, which is not judged.

    Attributes:
        operation: The operation's number.
        start_ns: Start, as closely as the injector could tell.
        end_ns: End.
        categories: What may be said of it.
        culprits: Threads of which any is the one to blame; empty where it is a kind.
        kind: ``timer``, ``disk``, ``memory``, ``cgroup``, ``network``, ``file`` with its name, or
            ``nobody`` where nobody can be known; empty where it is a thread.
        cpu_ns: How long the operation's own thread was on a CPU within, by the kernel's accounts.
        queued_ns: How long, by the same, those who waited or acted were ready without a CPU: other
            processes of the machine came in between, which is no part of what was made.
    """

    operation: int
    start_ns: int
    end_ns: int
    categories: frozenset[Category]
    culprits: frozenset[int] = frozenset()
    kind: str = ""
    cpu_ns: int = 0
    queued_ns: int = 0

    @property
    def length_ns(self) -> int:
        """From its start to its end."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Played:
    """A scenario that was played, and what was said of each of its operations.

    Attributes:
        name: The scenario's name.
        operations: Operations, in order.
        injections: What was done to them.
        explained: For each operation the segments of its path, oldest first.
        impossible: Why it could not be played here; empty when it was.
    """

    name: str
    operations: tuple[Operation, ...] = ()
    injections: tuple[Injection, ...] = ()
    explained: tuple[tuple[Segment, ...], ...] = ()
    impossible: str = ""


@dataclass(frozen=True)
class Log:
    """A scenario's own log.

    Attributes:
        operations: Operations, in order of their numbers.
        injections: What was done to them.
        facts: Facts about its process, as an agent in it would tell them, by name.
    """

    operations: tuple[Operation, ...]
    injections: tuple[Injection, ...]
    facts: tuple[tuple[str, str], ...]

    def renamed(self, ids: Mapping[int, int]) -> Log:
        """The log with other thread ids, where there are others."""
        return replace(
            self,
            operations=tuple(replace(op, tid=ids.get(op.tid, op.tid)) for op in self.operations),
            injections=tuple(
                replace(one, culprits=frozenset(ids.get(tid, tid) for tid in one.culprits))
                for one in self.injections
            ),
        )


def read_log(lines: Iterable[str]) -> Log:
    """The log that a scenario printed.

    Raises:
        ValueError, KeyError, TypeError: a line is none of a log.
    """
    operations: list[Operation] = []
    injections: list[Injection] = []
    facts: list[tuple[str, str]] = []
    for line in lines:
        ((what, row),) = json.loads(line).items()
        if what == "operation":
            operations.append(_operation(row))
        elif what == "injection":
            injections.append(_injection(row))
        else:
            facts += [(str(key), str(value)) for key, value in row.items()]
    operations.sort(key=lambda op: op.number)
    return Log(tuple(operations), tuple(injections), tuple(facts))


def _operation(row: dict[str, Any]) -> Operation:
    return Operation(
        row["number"],
        row["control"],
        row["tid"],
        row["start_ns"],
        row["end_ns"],
        Accounts(
            row["cpu_ns"], row["queued_ns"], row["faults"], row["notice_ns"], row["throttled_ns"]
        ),
    )


def _injection(row: dict[str, Any]) -> Injection:
    return Injection(
        row["operation"],
        row["start_ns"],
        row["end_ns"],
        frozenset(map(Category, row["categories"])),
        frozenset(row["culprits"]),
        row["kind"],
        row["cpu_ns"],
        row["queued_ns"],
    )
