# SPDX-License-Identifier: Apache-2.0
"""The control socket: what callers ask, and whether they may."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucorrelate.daemon import messages
from gpucorrelate.daemon.loop import READ, WRITE
from gpucorrelate.daemon.sockets import Listener, Peer, listen, peer_of
from gpucorrelate.daemon.values import DaemonStatus, to_map
from gpucorrelate.probes.wire.errors import (
    EXIT_FAILED,
    GpucorrelateError,
    NotFoundError,
    UsageError,
)
from gpucorrelate.probes.wire.gpu import GpuPlan, from_wire

if TYPE_CHECKING:
    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.loop import Loop
    from gpucorrelate.daemon.sessions import Sessions

log = logging.getLogger(__name__)

_READ_BYTES = 64 << 10
_PID_MAX = 1 << 22
_NAME_CHARS = 64
_MAX_UNSENT = 16
_PATIENCE_NS = 5_000_000_000
_MAX_S = 10 * 365 * 86400


@dataclass(frozen=True)
class Reply:
    """An answer: a map, and file descriptors that go with it and are closed afterwards."""

    body: dict[str, Any]
    fds: tuple[int, ...] = ()


#: Asked every turn until it gives the answer.
Later = Callable[[], Reply | None]


@dataclass(eq=False)
class Caller:
    """One connection.

    Attributes:
        sock: The socket.
        peer: Who the kernel says it is.
        later: What it waits for.
        deadline_ns: When it has waited for long enough.
        active_ns: When it last asked something, or took some of an answer.
        held: Session that ends with this connection.
    """

    sock: socket.socket
    peer: Peer
    reader: messages.MessageReader = field(default_factory=messages.MessageReader)
    unsent: deque[tuple[bytes, tuple[int, ...]]] = field(default_factory=deque)
    later: Later | None = None
    deadline_ns: int = 0
    active_ns: int = field(default_factory=time.monotonic_ns)
    held: str = ""


class Control:
    """All callers.

    Args:
        config: The daemon's settings.
        loop: The event loop.
        sessions: The sessions.
        status: Gives the daemon's status as a user may see it.

    Attributes:
        refused: Callers turned away: limits, no descriptors left.
        cut_off: Callers disconnected because they broke the rules, or said nothing for long.
    """

    def __init__(
        self,
        config: DaemonConfig,
        loop: Loop,
        sessions: Sessions,
        status: Callable[[int], DaemonStatus],
    ) -> None:
        self._config = config
        self._loop = loop
        self._sessions = sessions
        self._status = status
        self.refused = self.cut_off = 0
        self._callers: dict[int, Caller] = {}
        self._listener: Listener | None = None
        self._settled_ns = time.monotonic_ns() + config.settle_ms * 1_000_000
        self._ops: dict[str, Callable[[Caller, dict[str, Any]], Reply | Later]] = {
            "status": self._op_status,
            "attach": self._op_attach,
            "detach": self._op_detach,
            "sessions": self._op_sessions,
            "progress": self._op_progress,
            "open": self._op_open,
        }

    def open(self) -> None:
        """Listen.

        Raises:
            DaemonError: the socket cannot be made.
        """
        make = partial(listen, mode=0o660, group=self._config.group)
        self._listener = Listener(self._config.control_path, make, self._loop, self._accept)

    def close(self) -> None:
        """Close everything."""
        for caller in list(self._callers.values()):
            self._close(caller)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    @property
    def callers(self) -> int:
        """Callers that are connected."""
        return len(self._callers)

    def reconfigure(self, config: DaemonConfig) -> None:
        """From now on keep other limits; the socket stays as it is."""
        self._config = config

    def tick(self) -> None:
        """Give the answers that had to wait."""
        if self._listener is not None:
            self._listener.tick()
            self.refused += self._listener.turned_away
            self._listener.turned_away = 0
        now = time.monotonic_ns()
        for caller in [c for c in self._callers.values() if c.later is not None]:
            later = caller.later
            reply = self._guard(later) if later is not None else None
            if reply is None and now > caller.deadline_ns:
                reply = Reply(_refusal("the daemon took too long", "", EXIT_FAILED))
            if reply is not None:
                caller.later = None
                self._answer(caller, reply)
        idle_ns = int(self._config.limits.control_idle_s * 1e9)
        for caller in list(self._callers.values()):
            waits = caller.later is not None or (caller.held and not caller.unsent)
            if not waits and now - caller.active_ns > idle_ns:
                self._cut_off(caller)

    def _room_for(self, uid: int) -> bool:
        limits = self._config.limits
        if uid in (0, os.geteuid()):
            return len(self._callers) < limits.control_clients
        mine = sum(1 for caller in self._callers.values() if caller.peer.uid == uid)
        shared = limits.control_clients - limits.control_clients // 8
        return len(self._callers) < shared and mine < limits.control_clients_per_uid

    def _accept(self, sock: socket.socket) -> None:
        try:
            peer = peer_of(sock, pidfd=False)
        except OSError:
            self.refused += 1
            sock.close()
            return
        if not self._room_for(peer.uid):
            self.refused += 1
            sock.close()
            return
        caller = Caller(sock, peer)
        self._callers[sock.fileno()] = caller
        self._loop.add(sock, lambda events: self._ready(caller, events))

    def _ready(self, caller: Caller, events: int) -> None:
        try:
            if events & WRITE:
                self._send(caller)
            if events & READ and caller.sock.fileno() >= 0:
                self._read(caller)
        except Exception:
            # As with agents: one caller must not end everybody's recordings.
            log.exception("caller, user %d", caller.peer.uid)
            self._cut_off(caller)

    def _read(self, caller: Caller) -> None:
        try:
            data = caller.sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._close(caller)
            return
        try:
            for message in caller.reader.feed(data):
                if caller.later is not None or len(caller.unsent) > _MAX_UNSENT:
                    # One question at a time: a caller that does not wait is no caller of ours.
                    self._cut_off(caller)
                    return
                self._handle(caller, message)
                if caller.sock.fileno() < 0:
                    return
        except messages.MessageError as exc:
            self._answer(caller, Reply(_refusal(exc.message, exc.hint, exc.exit_code)))
            self._cut_off(caller)

    def _handle(self, caller: Caller, message: dict[str, Any]) -> None:
        caller.active_ns = time.monotonic_ns()
        result = self._guard(lambda: self._dispatch(caller, message))
        if isinstance(result, Reply):
            self._answer(caller, result)
        elif result is not None:
            caller.later = result
            caller.deadline_ns = time.monotonic_ns() + _PATIENCE_NS

    def _dispatch(self, caller: Caller, message: dict[str, Any]) -> Reply | Later:
        op = message.get("op")
        handler = self._ops.get(op) if isinstance(op, str) else None
        if handler is None:
            raise UsageError(f"the daemon knows no operation {op!r:.40}")
        return handler(caller, message)

    def _guard(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - what ask gives, or a refusal
        try:
            return ask()
        except GpucorrelateError as exc:
            return Reply(_refusal(exc.message, exc.hint, exc.exit_code))
        except OSError as exc:
            # Full descriptor tables, vanished processes: the caller's trouble, not everybody's.
            log.exception("a command failed")
            return Reply(
                _refusal(f"the daemon failed: {exc}", "see the daemon's log", EXIT_FAILED)
            )

    # The operations.

    def _op_status(self, caller: Caller, _message: dict[str, Any]) -> Reply:
        return Reply({"ok": True, "status": to_map(self._status(caller.peer.uid))})

    def _op_sessions(self, caller: Caller, _message: dict[str, Any]) -> Reply:
        infos = [to_map(info) for info in self._sessions.infos(caller.peer.uid)]
        return Reply({"ok": True, "sessions": infos})

    def _op_attach(self, caller: Caller, message: dict[str, Any]) -> Reply | Later:
        uid, pid, for_s = caller.peer.uid, _pid(message), _seconds(message)
        hold, gpu = message.get("hold") is True, _gpu(message)
        if hold and caller.held and self._sessions.active(caller.held) is not None:
            raise UsageError("this connection holds a session already")
        first = self._sessions.attach(pid, uid, for_s, gpu)
        # A session that was there before is somebody else's to end.
        if hold and not first.already:
            caller.held = first.session.session

        def answer() -> Reply | None:
            answer = self._sessions.attach(pid, uid)
            agents = any(process.agent for process in answer.session.processes)
            if not agents and time.monotonic_ns() < self._settled_ns:
                return None
            return Reply({"ok": True, "answer": to_map(replace(answer, already=first.already))})

        return answer

    def _op_detach(self, caller: Caller, message: dict[str, Any]) -> Reply | Later:
        uid = caller.peer.uid
        if message.get("pid") is not None:
            name = self._sessions.of_pid(_pid(message), uid)
        else:
            name = self._sessions.resolve(_name(message), uid)
        if self._sessions.active(name) is None:
            raise NotFoundError(f"session {name} has ended already")
        self._sessions.detach(name, "detached")

        def answer() -> Reply | None:
            if self._sessions.active(name) is not None:
                return None
            return Reply({"ok": True, "session": to_map(self._sessions.info(name))})

        return answer

    def _op_progress(self, caller: Caller, message: dict[str, Any]) -> Reply:
        name = self._sessions.resolve(_name(message), caller.peer.uid)
        return Reply({"ok": True, "progress": to_map(self._sessions.progress(name))})

    def _op_open(self, caller: Caller, message: dict[str, Any]) -> Reply:
        if any(fds for _, fds in caller.unsent):
            # Each answer holds up to hundreds of descriptors open until it is taken.
            raise UsageError("an answer with files waits to be taken already")
        name = self._sessions.resolve(_name(message), caller.peer.uid)
        opened = self._sessions.open(name)
        sizes = [size for _, size in opened]
        fds = tuple(fd for fd, _ in opened)
        return Reply({"ok": True, "session": name, "sizes": sizes}, fds)

    # Sending.

    def _answer(self, caller: Caller, reply: Reply) -> None:
        try:
            data = messages.pack(reply.body)
        except messages.MessageError as exc:
            data = messages.pack(_refusal(exc.message, exc.hint, exc.exit_code))
        caller.unsent.append((data, reply.fds))
        self._send(caller)

    def _send(self, caller: Caller) -> None:
        while caller.unsent:
            data, fds = caller.unsent[0]
            try:
                sent = socket.send_fds(caller.sock, [data], fds) if fds else caller.sock.send(data)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._close(caller)
                return
            _close_all(fds)
            caller.active_ns = time.monotonic_ns()
            if sent == len(data):
                caller.unsent.popleft()
            else:
                caller.unsent[0] = (data[sent:], ())
        self._loop.change(caller.sock, READ | (WRITE if caller.unsent else 0))

    def _cut_off(self, caller: Caller) -> None:
        if caller.sock.fileno() >= 0:
            self.cut_off += 1
        self._close(caller)

    def _close(self, caller: Caller) -> None:
        fd = caller.sock.fileno()
        if fd < 0:
            return
        self._loop.remove(caller.sock)
        del self._callers[fd]
        for _, fds in caller.unsent:
            _close_all(fds)
        caller.unsent.clear()
        caller.later = None
        caller.sock.close()
        if caller.held:
            self._sessions.detach(caller.held, "whoever attached is gone")


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)


def _refusal(error: str, hint: str, exit_code: int) -> dict[str, Any]:
    return {"ok": False, "error": error, "hint": hint, "exit": exit_code}


def _pid(message: dict[str, Any]) -> int:
    pid = message.get("pid")
    if type(pid) is not int or not 0 < pid <= _PID_MAX:
        raise UsageError(f"not a process id: {pid!r:.40}")
    return pid


def _seconds(message: dict[str, Any]) -> float | None:
    value = message.get("for_s")
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 < value <= _MAX_S:
        raise UsageError(f"not a duration in seconds: {value!r:.40}")
    return float(value)


def _gpu(message: dict[str, Any]) -> GpuPlan | None:
    told = message.get("gpu")
    if told is None:
        return None
    try:
        return from_wire(told)
    except ValueError as exc:
        raise UsageError(f"not a plan for the GPU: {exc!s:.200}") from exc


def _name(message: dict[str, Any]) -> str:
    name = message.get("session")
    if name is None:
        return ""
    if not isinstance(name, str) or len(name) > _NAME_CHARS:
        raise UsageError(f"not a session id: {name!r:.40}")
    return name
