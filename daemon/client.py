# SPDX-License-Identifier: Apache-2.0
"""The daemon as the command line sees it, and recordings without a daemon."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import TYPE_CHECKING, Any, BinaryIO

from gpucorrelate.daemon import messages
from gpucorrelate.daemon.config import default_control_path
from gpucorrelate.daemon.recording import Item, joined, open_recording, read_part
from gpucorrelate.daemon.values import (
    AttachAnswer,
    DaemonStatus,
    Progress,
    SessionInfo,
    from_map,
)
from gpucorrelate.probes.wire.errors import (
    EXIT_FAILED,
    ControlError,
    DaemonUnreachableError,
    NotPermittedError,
)
from gpucorrelate.probes.wire.gpu import GpuPlan, to_wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

__all__ = ["Client", "Item", "open_recording"]

_TIMEOUT_S = 30.0
_MAX_FDS = 250
_COPY_BYTES = 1 << 20


class Client:
    """A connection to the daemon; made with the first question, kept until ``close``.

    Args:
        path: The control socket; ``GPUCORRELATE_CONTROL`` or the standard place by default.
        timeout_s: Longest wait for an answer.

    Every method raises:
        DaemonUnreachableError: no daemon answers.
        NotPermittedError: the caller may not use the socket.
        ControlError: the daemon refuses; the message and the exit code are its own.
    """

    def __init__(self, path: Path | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.path = path or default_control_path()
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def status(self) -> DaemonStatus:
        """The daemon, its counters and the sessions that the caller may see."""
        return from_map(DaemonStatus, self._ask({"op": "status"}).get("status"))

    def sessions(self) -> tuple[SessionInfo, ...]:
        """Sessions that the caller may see, running ones first."""
        found = self._ask({"op": "sessions"}).get("sessions")
        return tuple(from_map(SessionInfo, item) for item in found or ())

    def attach(
        self,
        pid: int,
        *,
        for_s: float | None = None,
        hold: bool = False,
        gpu: GpuPlan | None = None,
    ) -> AttachAnswer:
        """Begin to record the engine that a process belongs to.

        No option changes a session that was running already.

        Args:
            pid: A process of it.
            for_s: Seconds after which the daemon ends the session, whatever becomes of the
                caller.
            hold: The session ends when this connection is closed.
            gpu: What is recorded of the GPU; by default windows.
        """
        plan = to_wire(gpu) if gpu is not None else None
        question = {"op": "attach", "pid": pid, "for_s": for_s, "hold": hold, "gpu": plan}
        return from_map(AttachAnswer, self._ask(question).get("answer"))

    def detach(self, session: str = "", *, pid: int | None = None) -> SessionInfo:
        """End a session, given by id, by a process of it, or the latest."""
        question = {"op": "detach", "session": session, "pid": pid}
        return from_map(SessionInfo, self._ask(question).get("session"))

    def progress(self, session: str = "") -> Progress:
        """Live numbers of a session; the latest by default."""
        answer = self._ask({"op": "progress", "session": session})
        return from_map(Progress, answer.get("progress"))

    def open_session(self, session: str = "") -> Iterator[Item]:
        """The batches of a session up to now; the latest by default.

        Waits that have not ended are among them, flagged as open.
        """
        return joined(self._parts(session))

    def copy_session(self, session: str, out: BinaryIO) -> int:
        """Write the recording of a session up to now to a file; returns its bytes."""
        total = 0
        for fd, size in self._open(session):
            with open(fd, "rb", buffering=0) as source:  # noqa: PTH123 - a descriptor
                left = size
                while left > 0 and (chunk := source.read(min(left, _COPY_BYTES))):
                    out.write(chunk)
                    left -= len(chunk)
                    total += len(chunk)
        return total

    def _parts(self, session: str) -> Iterator[Item]:
        for fd, size in self._open(session):
            with open(fd, "rb") as source:  # noqa: PTH123 - a descriptor
                yield from read_part(source, size)

    def _open(self, session: str) -> Iterator[tuple[int, int]]:
        answer, fds = self._ask_for_files({"op": "open", "session": session})
        sizes = answer.get("sizes")
        left = list(fds)
        try:
            if not isinstance(sizes, list) or len(sizes) != len(fds):
                raise ControlError("the daemon's answer holds too few files")
            while left:
                size = sizes[len(fds) - len(left)]
                yield left.pop(0), size
        finally:
            for fd in left:
                os.close(fd)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        answer, fds = self._ask_for_files(question)
        for fd in fds:
            os.close(fd)
        return answer

    def _ask_for_files(self, question: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        try:
            sock = self._connect()
            sock.sendall(messages.pack(question, messages.MAX_REQUEST_BYTES))
            answer, fds = self._receive(sock)
        except TimeoutError as exc:
            self.close()
            raise DaemonUnreachableError(
                f"the daemon on {self.path} does not answer",
                hint="see: systemctl status gpucorrelate",
            ) from exc
        except OSError as exc:
            self.close()
            raise self._unreachable(exc) from exc
        if answer.get("ok") is True:
            return answer, fds
        for fd in fds:
            os.close(fd)
        code = answer.get("exit")
        raise ControlError(
            str(answer.get("error", "the daemon refused")),
            hint=str(answer.get("hint", "")),
            exit_code=code if isinstance(code, int) else EXIT_FAILED,
        )

    def _connect(self) -> socket.socket:
        # The daemon closes connections on which nothing is asked for a while.
        if self._socket is not None and _hung_up(self._socket):
            self.close()
        if self._socket is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            sock.settimeout(self._timeout_s)
            try:
                sock.connect(str(self.path))
            except OSError:
                sock.close()
                raise
            self._socket = sock
        return self._socket

    def _receive(self, sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
        reader = messages.MessageReader(messages.MAX_REPLY_BYTES)
        fds: list[int] = []
        try:
            while True:
                data, more, _, _ = socket.recv_fds(sock, _COPY_BYTES, _MAX_FDS)
                fds += more
                for message in reader.feed(data):
                    return message, fds
                if not data:
                    break
        except BaseException:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
            raise
        for fd in fds:
            os.close(fd)
        raise ConnectionResetError("the daemon closed the connection")

    def _unreachable(self, exc: OSError) -> DaemonUnreachableError | NotPermittedError:
        if isinstance(exc, PermissionError):
            return NotPermittedError(
                f"not permitted to use {self.path}",
                hint="join the group gpucorrelate (sudo usermod -aG gpucorrelate $USER, then "
                "log in again), or use sudo",
            )
        return DaemonUnreachableError(
            f"no daemon answers on {self.path}",
            hint="start it: sudo systemctl start gpucorrelate, or sudo gpucorrelate daemon",
        )


def _hung_up(sock: socket.socket) -> bool:
    """Whether a connection on which no answer is due has come to its end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
