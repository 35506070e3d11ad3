# SPDX-License-Identifier: Apache-2.0
"""Which system call is which kind of wait, declared once; the programs look it up in a table.

Numbers of x86-64: arch/x86/entry/syscalls/syscall_64.tbl of Linux.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucorrelate.probes.wire.schema import WaitKind

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
    """The table as it lies in memory: the kind of each number, ``OTHER`` where none is named."""
    kinds = bytearray([WaitKind.OTHER]) * KINDS
    for call in SYSCALLS:
        kinds[call.number] = call.kind
    return bytes(kinds)


def c_table() -> str:
    """The table as C macros."""
    lines = [f"\t\t[{call.number}] = GPC_WAIT_{call.kind.name}, /* {call.name} */ \\"
             for call in SYSCALLS]  # fmt: skip
    return "\n".join(
        [f"#define GPC_KINDS {KINDS}", "#define GPC_KIND_TABLE \\", "\t{ \\", *lines, "\t}"]
    )
