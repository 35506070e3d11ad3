# SPDX-License-Identifier: Apache-2.0
"""Giving up what root may do and the daemon does not need.

The user id stays 0, so the daemon's own files stay writable; what goes are the capabilities
(``capset(2)``) and the way back to them: the bounding set and setuid programs.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucorrelate.probes.host import procfs

if TYPE_CHECKING:
    from collections.abc import Mapping

# include/uapi/linux/capability.h
CAP_DAC_READ_SEARCH = 2
CAP_SYS_PTRACE = 19
CAP_PERFMON = 38
CAP_BPF = 39
_LAST_CAP = 63
_VERSION_3 = 0x2008_0522

# include/uapi/linux/prctl.h
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38

#: Reading rings and maps, and processes of other users.
KEPT = {
    "CAP_BPF": CAP_BPF,
    "CAP_PERFMON": CAP_PERFMON,
    "CAP_SYS_PTRACE": CAP_SYS_PTRACE,
    "CAP_DAC_READ_SEARCH": CAP_DAC_READ_SEARCH,
}


@dataclass(frozen=True)
class Privileges:
    """What this process may do.

    Attributes:
        uid: Effective user id.
        names: Capabilities of ``KEPT`` that it has.
        others: Number of further capabilities that it has.
        note: What could not be given up, and why; empty when all went well.
    """

    uid: int
    names: tuple[str, ...]
    others: int
    note: str = ""

    @property
    def text(self) -> str:
        """In words."""
        have = ", ".join(self.names) if self.names else "no capabilities"
        more = f" and {self.others} more" if self.others else ""
        return f"uid {self.uid}, {have}{more}" + (f"; {self.note}" if self.note else "")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def current(note: str = "") -> Privileges:
    """What this process may do now."""
    status = procfs.read_status(os.getpid())
    bits = status.cap_effective if status else 0
    names = tuple(name for name, bit in KEPT.items() if bits >> bit & 1)
    others = bits.bit_count() - len(names)
    return Privileges(os.geteuid(), names, others, note)


def drop(kept: Mapping[str, int] = KEPT) -> Privileges:
    """Keep only some capabilities (as far as the process has them) and no way back.

    Args:
        kept: Those that are kept, by name.

    Never raises: what does not work is in ``note``, and the daemon goes on with what it has.
    """
    status = procfs.read_status(os.getpid())
    have = status.cap_effective if status else 0
    keep = have & sum(1 << bit for bit in kept.values())
    libc = ctypes.CDLL(None, use_errno=True)
    notes: list[str] = []
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        notes.append(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    for bit in range(_LAST_CAP + 1):
        # Refused for bits this kernel does not know, and without CAP_SETPCAP: no matter then,
        # because no_new_privs closes the same way.
        libc.prctl(_PR_CAPBSET_DROP, bit, 0, 0, 0) if not keep >> bit & 1 else None
    header = _Header(_VERSION_3, 0)
    low, high = keep & 0xFFFF_FFFF, keep >> 32
    data = (_Data * 2)(_Data(low, low, 0), _Data(high, high, 0))
    if libc.capset(ctypes.byref(header), data) != 0:
        notes.append(f"capset: {os.strerror(ctypes.get_errno())}")
    # Capabilities are per thread; a library may have started threads before.
    left = sum(1 for bits in _thread_bits() if bits & ~keep)
    if left:
        notes.append(f"{left} helper threads keep theirs")
    return current("; ".join(notes))


def _thread_bits() -> list[int]:
    found = []
    for tid in procfs.thread_ids(os.getpid()):
        status = procfs.read_status(os.getpid(), tid)
        if status is not None:
            found.append(status.cap_effective)
    return found
