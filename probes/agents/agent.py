# SPDX-License-Identifier: Apache-2.0
"""The agent of one process: the flag its hooks check, its row buffers, its transport.

A hook reads ``agent.on`` and does nothing more while it is false. Everything a hook does
beyond that is inside ``try``: a fault of the agent is counted, told once as a capability row,
and never reaches the host program; a part that keeps failing is switched off.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents import process
from gpucorrelate.probes.agents.buffers import (
    Buffer,
    Drops,
    FlatRows,
    Row,
    Rows,
    RowsetRows,
    Texts,
)
from gpucorrelate.probes.agents.cupti.recorder import Recorder
from gpucorrelate.probes.agents.hot import NATIVE, Switch
from gpucorrelate.probes.agents.raised import told_of
from gpucorrelate.probes.agents.spans import SpanRows
from gpucorrelate.probes.agents.transport import (
    DEFAULT_SOCKET,
    SOCKET_VARIABLE,
    Pace,
    Source,
    Transport,
)
from gpucorrelate.probes.wire.gpu import NO_GPU, GpuPlan
from gpucorrelate.probes.wire.roles import role_of_process
from gpucorrelate.probes.wire.schema import BY_NAME, CapabilityState, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpucorrelate.probes.wire.frame import StringTable

LOG = logging.getLogger("gpucorrelate")

#: Sent in this order; what is referred to precedes what refers to it.
KINDS = (
    "capability",
    "meta",
    "thread",
    "request",
    "request.flat",
    "trace_context",
    "step_rows",
    "step_begin",
    "worker_step",
    "queue_msg",
    "step_end",
    "step_update",
    "outputs",
    "tokens",
    "span",
)

#: Kinds whose rows are integers alone, and the rows of ``request`` that are: those without an
#: id or a detail, which name their exchange only.
_FLAT = frozenset(
    {
        "request.flat",
        "step_begin",
        "step_end",
        "step_update",
        "worker_step",
        "outputs",
        "queue_msg",
        "span",
    }
)

#: A part that raised this often is switched off for good in this process.
MAX_FAULTS = 5


class Part(Switch):
    """One source of evidence within an agent: what its hooks check, and its standing.

    Attributes:
        on: Whether its hooks report. The one thing a dormant hook reads.
        name: The source, as in ``capability`` rows.
    """

    __slots__ = ("_agent", "_broken", "_faults", "name", "reason", "state")

    def __init__(self, agent: Agent, name: str) -> None:
        self.on = False
        self.name = name
        self.state: CapabilityState | None = None
        self.reason = ""
        self._agent = agent
        self._faults = 0
        self._broken = False

    def switch(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Follow the agent, unless broken."""
        self.on = on and not self._broken

    def works(self) -> None:
        """Its hooks are in place and something they observe exists in this process."""
        if self.state is None:
            self.tell(CapabilityState.ON, "")

    def lack(self, reason: str) -> None:
        """It works only in part; say what is lost."""
        self.tell(CapabilityState.DEGRADED, reason)

    def refuse(self, reason: str) -> None:
        """It is off for good in this process; say why and what is lost."""
        self._broken = True
        self.on = False
        self.tell(CapabilityState.OFF, reason)

    def fault(self, error: BaseException) -> None:
        """A hook raised. Counted and told; after ``MAX_FAULTS`` the part is switched off."""
        self._faults += 1
        what = told_of(error)
        if self._faults >= MAX_FAULTS:
            self.refuse(f"switched off after {self._faults} faults in its hooks, last {what}")
        else:
            self.lack(f"{self._faults} fault(s) in its hooks, last {what}")

    def tell(self, state: CapabilityState, reason: str) -> None:
        """Note the standing; state it at once when the agent is started."""
        if (self.state, self.reason) == (state, reason):
            return
        if self.state is CapabilityState.OFF:
            return
        self.state, self.reason = state, reason
        if state is not CapabilityState.ON:
            LOG.warning("gpucorrelate: %s is %s: %s", self.name, state.name.lower(), reason)
        if self._agent.on:
            self.state_row()

    def state_row(self) -> None:
        """Put its ``capability`` row, if it has anything to say."""
        if self.state is not None:
            row: Row = (time.monotonic_ns(), self.name, int(self.state), self.reason)
            self._agent.rows("capability").put(row)


class Agent:
    """One process's agent; a forked child gets a fresh one (see ``reborn``).

    Attributes:
        on: Whether hooks report. Read by every hook, written by the transport's thread.
        drops: Rows refused so far.
        rowsets: Statements of rowsets.
        texts: Names that flat rows refer to.
        at_stop: Called when the agent goes dormant: hooks let go of what they keep.
    """

    def __init__(self, producer: str, path: str | None = None, pace: Pace | None = None) -> None:
        self.on = False
        self.session = ""
        self.at_stop: list[Callable[[], None]] = []
        self.started_ns = 0
        self._producer = producer
        self._path = path or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
        self._pace = pace
        self._roles: set[str] = set()
        self._rank: int | None = None
        self._meta: dict[str, str] = {}
        self._parts: dict[str, Part] = {}
        self._threads: dict[int, tuple[str, str]] = {}
        self.drops = Drops()
        self.texts = Texts()
        self.rowsets = RowsetRows(self.drops)
        self._rows = self._make_rows()
        self.gpu = Recorder(self._rows["capability"], self.drops)
        self._begin()

    def _make_rows(self) -> dict[str, Buffer[Any]]:
        rows: dict[str, Buffer[Any]] = {}
        for name in KINDS:
            kind = BY_NAME.get(name.partition(".")[0])
            if kind is None or name in ("step_rows", "span"):
                continue
            if name in _FLAT:
                rows[name] = FlatRows(kind, self.drops, self.texts)
            else:
                rows[name] = Rows(kind, self.drops)
        rows["span"] = spans = SpanRows(self.drops, self.texts)
        spans.inherit(rows["step_begin"], "schedule", "sched_start_ns")
        spans.inherit(rows["step_update"], "update", "start_ns")
        spans.inherit(rows["outputs"], "output", "start_ns", step="")
        phases = {int(WorkerPhase.EXECUTE): "execute", int(WorkerPhase.SAMPLE): "sample"}
        spans.inherit_phases(rows["worker_step"], phases)
        self._watch_steps(rows["worker_step"])
        return rows

    def _watch_steps(self, rows: Buffer[Any]) -> None:
        """Have the GPU agent see the steps that are sent: it judges its cost by them."""
        spans = rows.heir

        def seen(count: int, columns: tuple[bytes, ...], strings: StringTable) -> None:
            if spans is not None:
                spans(count, columns, strings)
            self.gpu.steps(columns)

        rows.heir = seen

    def _begin(self) -> None:
        self._rowset_lock = threading.Lock()
        self._rowset = 0
        sources: list[Source] = [
            self.rowsets if name == "step_rows" else self._rows[name] for name in KINDS
        ]
        sources += self.gpu.sources
        self.transport = Transport(self._path, sources, self, self.drops, self._pace)

    def reborn(self) -> None:
        """In a forked child: leave the parent's connection alone and begin anew, dormant.

        Buffers keep their identity, because hooks hold on to them.
        """
        self._switch(on=False)
        self.transport.abandon()
        self.drops.reset()
        self.texts.renew_lock()
        self.rowsets.take()
        for rows in self._rows.values():
            rows.take()
        self._roles.clear()
        self._threads.clear()
        self.gpu.reborn()
        self._begin()
        self.transport.run()

    def rows(self, kind: str) -> Buffer[Any]:
        """The buffer of a kind, for a hook to append to."""
        return self._rows[kind]

    def next_rowset(self) -> int:
        """A rowset number not used before in this process, from 1."""
        with self._rowset_lock:
            self._rowset += 1
            return self._rowset

    # Facts: told at the next start, and at once when started.

    def role(self, role: str) -> None:
        """Note what this process is to the engine: api, core or worker."""
        if role not in self._roles:
            self._roles.add(role)
            self._threads.clear()

    def rank(self, rank: int) -> None:
        """Note the worker's rank."""
        if rank != self._rank:
            self._rank = rank
            self._threads.clear()

    def fact(self, key: str, value: object) -> None:
        """Note a ``meta`` fact; None is not a fact."""
        if value is None:
            return
        text = str(value)
        if self._meta.get(key) != text:
            self._meta[key] = text
            if self.on:
                self._rows["meta"].put((time.monotonic_ns(), key, text))

    def part(self, name: str) -> Part:
        """The part of that name, made when first asked for."""
        found = self._parts.get(name)
        if found is None:
            found = self._parts[name] = Part(self, name)
            found.switch(self.on)
        return found

    # Owner of the transport: called from its thread.

    def describe(self) -> tuple[str, str]:
        """Producer and role of this process's stream."""
        return self._producer, self.role_name()

    def role_name(self) -> str:
        """Role of the process; ``inproc`` when engine and frontend share one."""
        roles = self._roles
        if "core" in roles and len(roles) > 1:
            return "inproc"
        if roles:
            return next(iter(sorted(roles)))
        return role_of_process(process.process_name())

    def started(self, session: str, gpu: GpuPlan = NO_GPU) -> None:
        """The daemon wants events: first say what is known, then let the hooks report."""
        self.session = session
        self.drops.renew()
        for part in tuple(self._parts.values()):
            part.state_row()
        self._state_facts()
        self._threads.clear()
        self.refresh()
        self.started_ns = time.monotonic_ns()
        self.gpu.started(gpu)
        self._switch(on=True)

    def stopped(self) -> None:
        """Go dormant, and let go of what hooks have kept."""
        self._switch(on=False)
        self.gpu.stopped()
        for forget in self.at_stop:
            forget()

    def _switch(self, *, on: bool) -> None:
        self.on = on
        for part in tuple(self._parts.values()):
            part.switch(on)

    def tick(self) -> None:
        """Have the GPU agent do what is due."""
        self.gpu.tick()

    def refresh(self) -> None:
        """State the threads that are new or changed since the last time."""
        known, put = self._threads, self._rows["thread"].put
        seen: dict[int, tuple[str, str]] = {}
        for tid, name in process.threads():
            value = seen[tid] = (name, self._thread_role(tid, name))
            if known.get(tid) != value:
                put((tid, *value))
        self._threads = seen

    def _state_facts(self) -> None:
        now, put = time.monotonic_ns(), self._rows["meta"].put
        facts = self._meta | {"python.version": process.python_version()}
        facts["agent.hooks"] = "C" if NATIVE else "Python"
        region = process.gil_region()
        if region is not None:
            facts["gil"] = str(region)
        for key, value in facts.items():
            put((now, key, value))

    def _thread_role(self, tid: int, name: str) -> str:
        role = self.role_name()
        if not role:
            return ""
        if role == "worker":
            role = f"worker{self._worker_rank()}"
        if tid == os.getpid() or name == "MainThread":
            return f"{role}.main"
        for mark, suffix in _THREAD_MARKS.items():
            if mark in name:
                return f"{role}.{suffix}"
        return f"{role}.{name}"

    def _worker_rank(self) -> int:
        if self._rank is not None:
            return self._rank
        digits = "".join(c for c in process.process_name() if c.isdigit())
        return int(digits) if digits else 0


#: Parts of threading names and the role they stand for.
_THREAD_MARKS: Mapping[str, str] = {
    "process_input_sockets": "input",
    "process_output_sockets": "output",
    "process_outputs_socket": "output",
    "AsyncOutput": "output",
    "gpucorrelate": "agent",
}
