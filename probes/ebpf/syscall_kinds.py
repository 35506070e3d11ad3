# SPDX-License-Identifier: Apache-2.0
"""Which system call is which kind of wait, declared once; the programs look it up in a table.

Numbers of x86-64: arch/x86/entry/syscalls/syscall_64.tbl of Linux; others follow by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.ebpf.syscall_numbers import ARM64_TO_X86_64, SAME_FROM
from gpucorrelate.probes.wire.schema import WaitKind

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Entries of the table; the number is masked with this less one in C.
KINDS = 512


@dataclass(frozen=True)
class Syscall:
    """A system call in which a thread may wait."""

    number: int
    name: str
    kind: WaitKind


SYSCALLS = tuple(
    Syscall(number, name, WaitKind[kind])
    for number, name, kind in (
        (0, "read", "READ"),
        (1, "write", "WRITE"),
        (7, "poll", "POLL"),
        (16, "ioctl", "IOCTL"),
        (17, "pread64", "READ"),
        (18, "pwrite64", "WRITE"),
        (19, "readv", "READ"),
        (20, "writev", "WRITE"),
        (23, "select", "SELECT"),
        (35, "nanosleep", "SLEEP"),
        (40, "sendfile", "WRITE"),
        (42, "connect", "WRITE"),
        (43, "accept", "READ"),
        (44, "sendto", "WRITE"),
        (45, "recvfrom", "READ"),
        (46, "sendmsg", "WRITE"),
        (47, "recvmsg", "READ"),
        (74, "fsync", "WRITE"),
        (75, "fdatasync", "WRITE"),
        (202, "futex", "FUTEX"),
        (230, "clock_nanosleep", "SLEEP"),
        (232, "epoll_wait", "EPOLL"),
        (270, "pselect6", "SELECT"),
        (271, "ppoll", "POLL"),
        (275, "splice: fd_in", "READ"),
        (277, "sync_file_range", "WRITE"),
        (278, "vmsplice", "WRITE"),
        (281, "epoll_pwait", "EPOLL"),
        (288, "accept4", "READ"),
        (295, "preadv", "READ"),
        (296, "pwritev", "WRITE"),
        (299, "recvmmsg", "READ"),
        (307, "sendmmsg", "WRITE"),
        (327, "preadv2", "READ"),
        (328, "pwritev2", "WRITE"),
        (426, "io_uring_enter", "IO_URING"),
        (441, "epoll_pwait2", "EPOLL"),
        (449, "futex_waitv", "FUTEX"),
        (455, "futex_wait", "FUTEX"),
    )
)


def table() -> bytes:
    """x86-64's table as it lies in memory: the kind of each number, ``OTHER`` if none is named."""
    kinds = bytearray([WaitKind.OTHER]) * KINDS
    for call in SYSCALLS:
        kinds[call.number] = call.kind
    return bytes(kinds)


def _initialiser(calls: Iterable[Syscall]) -> str:
    lines = [f"\t\t[{call.number}] = GPC_WAIT_{call.kind.name}, /* {call.name} */ \\"
             for call in calls]  # fmt: skip
    return "\n".join(["#define GPC_KIND_TABLE \\", "\t{ \\", *lines, "\t}"])


def arm64() -> list[Syscall]:
    """Those that arm64 has, with its numbers; it has no ``poll``, ``select``, ``epoll_wait``."""
    theirs = {ours: number for number, ours in ARM64_TO_X86_64}
    found = [
        Syscall(call.number if call.number >= SAME_FROM else theirs[call.number], call.name,
                call.kind)
        for call in SYSCALLS
        if call.number >= SAME_FROM or call.number in theirs
    ]  # fmt: skip
    return sorted(found, key=lambda call: call.number)


def c_table() -> str:
    """The tables as C macros."""
    return "\n".join(
        [
            f"#define GPC_KINDS {KINDS}",
            "#if defined(__TARGET_ARCH_arm64)",
            _initialiser(arm64()),
            "#else",
            _initialiser(SYSCALLS),
            "#endif",
        ]
    )
