# SPDX-License-Identifier: Apache-2.0
"""Waits for what another process sends: how the wait is done and over what it comes."""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import socket
from typing import TYPE_CHECKING

from gpucorrelate.verify.scenarios.kit import (
    LIBC,
    RUN,
    SLEEP,
    WOKEN,
    Board,
    Peer,
    Stage,
    injected,
    now,
    run_and_sleep,
    watched,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_SYS_FUTEX, _FUTEX_WAIT, _FUTEX_WAKE = 202, 0, 1


def _pipe() -> tuple[int, int]:
    return os.pipe()


def _pair() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def _tcp() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one.detach(), other.detach()


def _eventfd() -> tuple[int, int]:
    fd = os.eventfd(0)
    return fd, fd


_MAKERS: tuple[Callable[[], tuple[int, int]], ...] = (_pipe, _pair, _tcp, _eventfd)
_WORD = (1).to_bytes(8, "little")


def _waited(stage: Stage, wait: Callable[[int], object]) -> None:
    """Operations that ask a peer and wait for its answer, over each sort of descriptor in turn.

    In controls the answer is there before they wait.
    """
    ends = [make() for make in _MAKERS]
    chosen = Board()

    def act(peer: Peer) -> None:
        run_and_sleep(peer.board)
        os.write(ends[chosen[0]][1], _WORD)

    stage.begin()
    peer = stage.peer(act)
    sorts = itertools.cycle(range(len(ends)))
    for control in stage.rounds():
        if control:
            reader, writer = ends[stage.random.randrange(len(ends))]
            os.write(writer, _WORD)
        else:
            chosen[0] = next(sorts)
            reader = ends[chosen[0]][0]
            peer.board[RUN], peer.board[SLEEP] = stage.delay(2), stage.delay()
        with stage.operation(control=control) as op:
            stage.work()
            wanted = now()
            if not control:
                peer.tell()
            wait(reader)
            os.read(reader, 8)
            stage.work()
        if not control:
            peer.heard()
            injected(op, peer, wanted)


def epoll(stage: Stage) -> None:
    """``epoll_wait`` on a pipe, a socketpair, TCP over loopback and an eventfd."""
    pollers: dict[int, select.epoll] = {}

    def wait(fd: int) -> None:
        if fd not in pollers:
            pollers[fd] = select.epoll()
            pollers[fd].register(fd, select.EPOLLIN)
        pollers[fd].poll()

    _waited(stage, wait)


def poll(stage: Stage) -> None:
    """``poll`` on a pipe, a socketpair, TCP over loopback and an eventfd."""

    def wait(fd: int) -> None:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll()

    _waited(stage, wait)


def select_(stage: Stage) -> None:
    """``select`` on a pipe, a socketpair, TCP over loopback and an eventfd."""
    _waited(stage, lambda fd: select.select([fd], [], []))


def read(stage: Stage) -> None:
    """A blocking ``read`` of a pipe, a socketpair, TCP over loopback and an eventfd."""
    _waited(stage, lambda fd: None)


def futex_of_a_process(stage: Stage) -> None:
    """A futex in memory shared with another process, which wakes whoever waits on it."""
    board = Board()
    word = ctypes.c_void_p(board.address(0))

    def act(peer: Peer) -> None:
        run_and_sleep(peer.board)
        board[0] = 1
        LIBC.syscall(_SYS_FUTEX, word, _FUTEX_WAKE, 1, 0, 0, 0)

    stage.begin()
    peer = stage.peer(act)
    for control in stage.rounds():
        board[0] = int(control)
        peer.board[RUN], peer.board[SLEEP] = stage.delay(2), stage.delay()
        with stage.operation(control=control) as op:
            stage.work()
            wanted = now()
            if not control:
                peer.tell()
            while board[0] == 0:
                LIBC.syscall(_SYS_FUTEX, word, _FUTEX_WAIT, 0, 0, 0, 0)
            stage.work()
        if not control:
            peer.heard()
            injected(op, peer, wanted)


def untraced_peer(stage: Stage) -> None:
    """A socketpair and TCP to a process that is not traced: who it is, not what it does."""
    ends = [_pair(), _tcp()]
    chosen = Board()

    def act(peer: Peer) -> None:
        run_and_sleep(peer.board)
        os.write(ends[chosen[0]][1], _WORD)

    peer = stage.peer(act)
    stage.begin()
    sorts = itertools.cycle(range(len(ends)))
    for control in stage.rounds():
        chosen[0] = next(sorts)
        reader, writer = ends[chosen[0]]
        peer.board[RUN], peer.board[SLEEP] = stage.delay(2), stage.delay()
        if control:
            os.write(writer, _WORD)
        with stage.operation(control=control) as op:
            stage.work()
            with watched() as wait:
                if not control:
                    peer.tell()
                os.read(reader, 8)
            stage.work()
        if not control:
            peer.heard()
            times = wait.times[0], peer.board[WOKEN]
            op.inject(times, "external", peer.pid, queued_ns=wait.queued_ns)
