# SPDX-License-Identifier: Apache-2.0
"""The agents' socket: who is connected, what each may send, and what it costs the others.

A peer is known by what the kernel says of it, never by what it sends. Whatever it sends, it
can only hurt itself: it is read a bounded amount a turn, its memory here is bounded, and a
peer that breaks the rules is disconnected.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucorrelate.daemon import messages
from gpucorrelate.daemon.budget import ENTRY_BYTES, Budget, text_bytes
from gpucorrelate.daemon.columns import rows_of
from gpucorrelate.daemon.loop import READ, WRITE
from gpucorrelate.daemon.sockets import Listener, Peer, listen, peer_of, vanished
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.frame import Batch, Damage, Decoder
from gpucorrelate.probes.wire.gpu import to_wire
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.health import Tally
    from gpucorrelate.daemon.loop import Loop
    from gpucorrelate.daemon.session import Session
    from gpucorrelate.daemon.streams import AgentStream
    from gpucorrelate.probes.host.procfs import Process

log = logging.getLogger(__name__)

_STREAM = BY_NAME["stream"]
_READ_BYTES = 256 << 10
_READS_AT_END = 64
_MAX_UNSENT_BYTES = 64 << 10
_NAME_CHARS = 64
_LOOK_NS = 500_000_000


@dataclass(eq=False)
class Agent:
    """One connection.

    Attributes:
        sock: The socket.
        peer: Who the kernel says it is.
        process: The process, as it was when it connected.
        session: Session it was told to send for.
        stream: Its stream in that session.
        paused: It is not read for the rest of this turn.
        stalled: It is not read until it is in a session, or others keep less.
        kept: Bytes that it keeps here while it is in none.
    """

    sock: socket.socket
    peer: Peer
    process: Process
    decoder: Decoder = field(default_factory=Decoder)
    session: Session | None = None
    stream: AgentStream | None = None
    producer: str = ""
    role: str = ""
    agent_ns: int = 0
    strings: dict[int, str] = field(default_factory=dict)
    string_bytes: int = 0
    last_seq: int = 0
    drops: int = 0
    damaged: int = 0
    budget: int = 0
    paused: bool = False
    stalled: bool = False
    kept: int = 0
    last_rows_ns: int = 0
    unsent: bytearray = field(default_factory=bytearray)

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid


class Ingest:
    """All agents.

    Args:
        config: The daemon's settings.
        loop: The event loop.
        tally: Where things are counted.
        find: Gives the running session of a process, taking it in if its parent belongs to one.
    """

    def __init__(
        self,
        config: DaemonConfig,
        loop: Loop,
        tally: Tally,
        find: Callable[[Process], Session | None],
    ) -> None:
        self._config = config
        self._limits = config.limits
        self._loop = loop
        self._tally = tally
        self._find = find
        self._agents: dict[int, Agent] = {}
        self._by_pid: dict[int, Agent] = {}
        self._budget = Budget(config.limits)
        self._look_ns = 0
        self._listener: Listener | None = None

    def open(self) -> None:
        """Listen.

        Raises:
            DaemonError: the socket cannot be made.
        """
        path = self._config.ingest_path
        self._listener = Listener(path, partial(listen, mode=0o666), self._loop, self._accept)

    def close(self) -> None:
        """Close everything."""
        for agent in list(self._agents.values()):
            self._close(agent)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def reconfigure(self, config: DaemonConfig) -> None:
        """From now on keep other limits; those on what agents keep here stay as they are."""
        self._config = config
        self._limits = config.limits

    def has_agent(self, pid: int) -> bool:
        """Whether an agent in that process is connected."""
        return pid in self._by_pid

    def start(self, session: Session, pid: int) -> None:
        """Tell the process's agent, if one is connected, to send for the session."""
        agent = self._by_pid.get(pid)
        if agent is not None:
            self._start(agent, session)

    def stop(self, session: Session) -> None:
        """Tell the session's agents to send no more; what is under way still counts."""
        for agent in self._of(session):
            self._say(agent, {"op": "stop"})

    def release(self, session: Session) -> None:
        """Take nothing more for the session."""
        for agent in self._of(session):
            if agent.stream is not None:
                reader = agent.stream.reader
                agent.strings = dict(reader.strings)
                # The next session begins where this one ends: what lies before is not lost.
                agent.last_seq, agent.drops = reader.last_seq, reader.drops
                agent.string_bytes = _size(agent.strings)
            agent.session = agent.stream = None
            self._tally.count_ingest(started=-1)
            self._account(agent)

    def finish(self, pid: int) -> None:
        """A process is gone: take what its agent had sent, and close."""
        agent = self._by_pid.get(pid)
        if agent is None:
            return
        # A bound, because a child may hold the other end and go on writing.
        for _ in range(_READS_AT_END):
            agent.budget = _READ_BYTES
            if not self._read(agent):
                break
        self._close(agent)

    def quiet_since_ns(self, session: Session) -> int:
        """When the session's agents last sent something."""
        return max((agent.last_rows_ns for agent in self._of(session)), default=0)

    def tick(self) -> None:
        """A new turn: everybody may be read again."""
        if self._listener is not None:
            self._listener.tick()
            if self._listener.turned_away:
                self._tally.count_ingest(refused=self._listener.turned_away)
                self._listener.turned_away = 0
        for agent in self._agents.values():
            started = agent.session is not None
            limits = self._limits
            agent.budget = (
                limits.read_bytes_per_tick if started else limits.idle_read_bytes_per_tick
            )
            if agent.paused:
                agent.paused = False
                self._watch(agent)
        now = time.monotonic_ns()
        if now - self._look_ns > _LOOK_NS:
            self._look_ns = now
            self._look_at_stalled()

    def _look_at_stalled(self) -> None:
        """Who is not read is not seen to hang up; and there may be room for them by now."""
        stalled = [agent for agent in self._agents.values() if agent.stalled]
        gone = vanished([agent.sock for agent in stalled])
        for agent in stalled:
            if agent.sock in gone:
                self._close(agent)
            elif not self._budget.exhausted(agent.peer.uid, agent.string_bytes):
                agent.stalled = False
                self._watch(agent)

    def _account(self, agent: Agent) -> None:
        """Bring the budget up to date with what the agent keeps."""
        idle = agent.session is None and agent.sock.fileno() >= 0
        kept = agent.string_bytes + agent.decoder.pending_bytes if idle else 0
        self._budget.change(agent.peer.uid, kept - agent.kept)
        agent.kept = kept

    def _of(self, session: Session) -> list[Agent]:
        return [agent for agent in self._agents.values() if agent.session is session]

    def _accept(self, sock: socket.socket) -> None:
        try:
            peer = peer_of(sock)
        except OSError:
            self._tally.count_ingest(refused=1)
            sock.close()
            return
        try:
            admitted = self._admit(sock, peer)
        except Exception:
            # As in _ready: whoever it is must not take the others' recordings with it.
            log.exception("connection of process %d", peer.pid)
            agent = self._agents.get(sock.fileno())
            if agent is not None:
                self._cut_off(agent)
                return
            admitted = False
        if not admitted:
            self._tally.count_ingest(refused=1)
            peer.close()
            sock.close()

    def _admit(self, sock: socket.socket, peer: Peer) -> bool:
        limits = self._limits
        if len(self._agents) >= limits.clients or peer.pid <= 0:
            return False
        if peer.uid != 0 and self._clients_of(peer.uid) >= limits.clients_per_uid:
            return False
        process = procfs.read_process(peer.pid)
        # A pid that was used again since the peer connected is somebody else's by now.
        if process is None or not process.stat.alive or not peer.still_there():
            return False
        older = self._by_pid.get(peer.pid)
        if older is not None:
            self._close(older)
        agent = Agent(sock, peer, process, budget=limits.idle_read_bytes_per_tick)
        self._agents[sock.fileno()] = agent
        self._by_pid[peer.pid] = agent
        self._tally.count_ingest(accepted=1, clients=1)
        self._watch(agent)
        session = self._find(process)
        if session is None:
            self._say(agent, {"op": "stop"})
        else:
            self._start(agent, session)
        return True

    def _clients_of(self, uid: int) -> int:
        return sum(1 for agent in self._agents.values() if agent.peer.uid == uid)

    def _watch(self, agent: Agent) -> None:
        events = (0 if agent.paused or agent.stalled else READ) | (WRITE if agent.unsent else 0)
        self._loop.remove(agent.sock)
        if events:
            self._loop.add(agent.sock, lambda ready: self._ready(agent, ready), events)

    def _ready(self, agent: Agent, events: int) -> None:
        try:
            if events & WRITE:
                self._send(agent)
            if events & READ and agent.sock.fileno() >= 0:
                self._read(agent)
        except Exception:
            # A peer that finds a fault in this code must not take the others' recordings with
            # it: it is cut off, which is counted, and the log has the trace.
            log.exception("agent of process %d", agent.pid)
            self._cut_off(agent)

    def _read(self, agent: Agent) -> bool:
        """Read once; False when there is nothing, or nothing more."""
        try:
            data = agent.sock.recv(min(_READ_BYTES, max(1, agent.budget)))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._close(agent)
            return False
        agent.budget -= len(data)
        self._tally.count_ingest(read_bytes=len(data))
        now = time.monotonic_ns()
        for item in agent.decoder.feed(data):
            if isinstance(item, Damage):
                self._damage(agent, item)
            else:
                self._take(agent, item[0], item[1], now)
            if agent.sock.fileno() < 0:
                return False
        if agent.session is None:
            self._account(agent)
            agent.stalled = self._budget.exhausted(agent.peer.uid, agent.string_bytes)
        agent.paused = agent.budget <= 0
        if agent.paused or agent.stalled:
            self._watch(agent)
        return True

    def _damage(self, agent: Agent, damage: Damage) -> None:
        self._tally.count_ingest(damaged=1, damaged_bytes=damage.size_bytes)
        agent.damaged += 1
        if agent.session is not None:
            who = f"{agent.role or agent.producer}/{agent.pid}"
            what = f"damaged bytes of {who}: {damage.reason}"
            agent.session.notes.loss("ingest.damage", what, damage.size_bytes)
        if agent.damaged > self._limits.damaged:
            self._cut_off(agent)

    def _take(self, agent: Agent, batch: Batch, frame: bytes, now: int) -> None:
        self._tally.count_ingest(frames=1, rows=batch.count, unknown=0 if batch.known else 1)
        if batch.kind == _STREAM.id and batch.count:
            self._introduce(agent, batch)
        stream, session = agent.stream, agent.session
        if stream is None or session is None:
            self._learn(agent, batch)
            return
        if batch.count and batch.kind != _STREAM.id:
            agent.last_rows_ns = now
        session.take_agent(stream, batch, frame, now)
        if stream.head_bytes > stream.checked_bytes:
            stream.checked_bytes = stream.head_bytes
            config = self._config
            if (
                stream.own_bytes > config.stream_bytes
                or session.streams.head_bytes() > config.head_bytes
            ):
                self._refuse(agent, session, stream)

    def _refuse(self, agent: Agent, session: Session, stream: AgentStream) -> None:
        """A stream that would make every segment too big is recorded no further."""
        stream.refuse()
        session.notes.loss("ingest.limits", f"string table of {stream.label} is too big", 1)
        session.counts.resync()
        self._cut_off(agent)

    def _learn(self, agent: Agent, batch: Batch) -> None:
        """Keep what a stream needs from a process that is not being recorded."""
        for index, text in batch.strings:
            known = agent.strings.get(index)
            agent.string_bytes += text_bytes(text)
            agent.string_bytes += ENTRY_BYTES if known is None else -text_bytes(known)
            agent.strings[index] = text
        agent.last_seq = max(agent.last_seq, batch.seq)
        agent.drops = max(agent.drops, batch.drops)
        if batch.kind != _STREAM.id:
            self._tally.count_ingest(unasked=1)
        self._account(agent)
        if self._budget.overdrawn(agent.peer.uid, agent.string_bytes):
            self._cut_off(agent)

    def _introduce(self, agent: Agent, batch: Batch) -> None:
        """The agent says who it is; only its role is believed."""
        known = agent.stream.reader.strings if agent.stream else agent.strings
        row = rows_of(_STREAM, batch, {**known, **dict(batch.strings)})[-1]
        _, _, agent.agent_ns, producer, role = row
        agent.producer, agent.role = producer[:_NAME_CHARS], role[:_NAME_CHARS]
        if agent.session is not None:
            self._join(agent, agent.session)

    def _start(self, agent: Agent, session: Session) -> None:
        if agent.session is session:
            return
        agent.session = session
        agent.stalled = False
        self._account(agent)
        self._tally.count_ingest(started=1)
        # Without an introduction there is no stream yet: it comes first on every connection.
        if agent.producer or agent.role:
            self._join(agent, session)
        self._say(agent, {"op": "start", "session": session.id, "gpu": to_wire(session.gpu)})

    def _join(self, agent: Agent, session: Session) -> None:
        stream = session.stream_of(
            agent.pid, agent.process.stat.start_ticks, agent.agent_ns, agent.producer, agent.role
        )
        if stream is None:
            session.notes.loss("ingest.limits", "too many agents in one session", 1)
            self._cut_off(agent)
            return
        if stream.refused:
            self._refuse(agent, session, stream)
            return
        session.agents.add(agent.pid)
        if stream is not agent.stream:
            agent.stream = stream
            session.append_frames(stream.begin(agent.strings, agent.last_seq, agent.drops))
            agent.strings = {}
            agent.string_bytes = 0

    def _say(self, agent: Agent, message: dict[str, Any]) -> None:
        if agent.sock.fileno() < 0:
            return  # it was cut off a moment ago
        agent.unsent += messages.pack(message)
        if len(agent.unsent) > _MAX_UNSENT_BYTES:
            self._cut_off(agent)
            return
        self._send(agent)

    def _send(self, agent: Agent) -> None:
        try:
            sent = agent.sock.send(agent.unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            # The peer is gone; what it sent before is still to be read.
            agent.unsent.clear()
            sent = 0
        del agent.unsent[:sent]
        self._watch(agent)

    def _cut_off(self, agent: Agent) -> None:
        self._tally.count_ingest(cut_off=1)
        self._close(agent)

    def _close(self, agent: Agent) -> None:
        fd = agent.sock.fileno()
        if fd < 0:
            return
        session = agent.session
        if agent.decoder.pending_bytes and session is not None:
            # The agent sends a frame that was cut off again; its number tells if it does not.
            self._tally.count_ingest(damaged=1, damaged_bytes=agent.decoder.pending_bytes)
        self._loop.remove(agent.sock)
        del self._agents[fd]
        if self._by_pid.get(agent.pid) is agent:
            del self._by_pid[agent.pid]
            if session is not None:
                session.agents.discard(agent.pid)
        if session is not None:
            self._tally.count_ingest(started=-1)
        self._tally.count_ingest(clients=-1)
        agent.session = agent.stream = None
        agent.peer.close()
        agent.sock.close()
        agent.stalled = False
        self._account(agent)


def _size(strings: dict[int, str]) -> int:
    return sum(map(text_bytes, strings.values())) + ENTRY_BYTES * len(strings)
