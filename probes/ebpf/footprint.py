# SPDX-License-Identifier: Apache-2.0
"""What loaded BPF programs and maps take: memory, and where the kernel counts it, time.

It is read from a process's descriptors (``/proc/PID/fdinfo``), so it holds for every program and
map that the process has open, whatever loaded them. The kernel measures a program's time only
while somebody asks for that: ``measuring`` does, or the setting ``kernel.bpf_stats_enabled``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.wire.errors import KernelSupportError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
STATS_SETTING = PROC / "sys/kernel/bpf_stats_enabled"
_PROGRAM, _MAP = "anon_inode:bpf-prog", "anon_inode:bpf-map"
#: ``struct bpf_prog_info`` and ``struct bpf_map_info`` of include/uapi/linux/bpf.h: the name's
#: place and length, and how much of them is asked for.
_PROGRAM_NAME_AT, _MAP_NAME_AT, _NAME_BYTES, _INFO_BYTES = 64, 24, 16, 128
#: ``BPF_STATS_RUN_TIME`` of the same file.
_RUN_TIME = 0


@dataclass(frozen=True)
class ProgramUse:
    """A loaded program.

    Attributes:
        number: The kernel's id of it.
        name: Its name, of which the kernel keeps 15 letters; empty where it is not told.
        run_ns: Time spent in it while that was measured, all CPUs together.
        runs: Times it ran while that was counted.
        missed: Times it was not run as it was running already on that CPU.
        memory_bytes: Memory of the kernel.
    """

    number: int
    name: str = ""
    run_ns: int = 0
    runs: int = 0
    missed: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True)
class MapUse:
    """A map.

    Attributes:
        number: The kernel's id of it.
        name: Its name, of which the kernel keeps 15 letters; empty where it is not told.
        entries: Most entries it can have; of a ring its size in bytes.
        memory_bytes: Memory of the kernel.
    """

    number: int
    name: str = ""
    entries: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Footprint:
    """Programs and maps that a process has open, each once, by id."""

    programs: tuple[ProgramUse, ...] = ()
    maps: tuple[MapUse, ...] = ()


def parse_fdinfo(text: str) -> dict[str, int]:
    """The numbers of a descriptor's ``fdinfo``; what is none is left out."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if value.strip().isdecimal():
            found[name] = int(value)
    return found


def read(pid: int | None = None) -> Footprint:
    """Programs and maps of a process.

    Args:
        pid: The process, which must be readable; None: this one, which is told names as well.

    Raises:
        OSError: the process is gone or its descriptors may not be read.
    """
    place = PROC / (str(pid) if pid is not None else "self")
    programs: dict[int, ProgramUse] = {}
    maps: dict[int, MapUse] = {}
    for link in (place / "fd").iterdir():
        fd = link.name
        try:
            what = str(link.readlink())
            if what not in (_PROGRAM, _MAP):
                continue
            told = parse_fdinfo((place / "fdinfo" / fd).read_text(encoding="ascii"))
        except OSError:
            continue  # closed meanwhile
        if what == _PROGRAM:
            number = told.get("prog_id", 0)
            name = _name(int(fd), _PROGRAM_NAME_AT) if pid is None else ""
            programs[number] = _program(number, name, told)
        else:
            number = told.get("map_id", 0)
            name = _name(int(fd), _MAP_NAME_AT) if pid is None else ""
            maps[number] = MapUse(number, name, told.get("max_entries", 0), told.get("memlock", 0))
    return Footprint(
        tuple(programs[number] for number in sorted(programs)),
        tuple(maps[number] for number in sorted(maps)),
    )


def _program(number: int, name: str, told: dict[str, int]) -> ProgramUse:
    return ProgramUse(
        number=number,
        name=name,
        run_ns=told.get("run_time_ns", 0),
        runs=told.get("run_cnt", 0),
        missed=told.get("recursion_misses", 0),
        memory_bytes=told.get("memlock", 0),
    )


def setting_on() -> bool:
    """Whether ``kernel.bpf_stats_enabled`` has the kernel measure all programs."""
    try:
        return STATS_SETTING.read_text(encoding="ascii").strip() not in ("", "0")
    except OSError:
        return False


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Have the kernel measure how long BPF programs run, all of the machine, meanwhile.

    Raises:
        NotPermittedError: the caller lacks CAP_SYS_ADMIN.
        KernelSupportError: the kernel cannot, or libbpf is not there.
    """
    library = _library()
    if library is None:
        raise KernelSupportError("libbpf.so.1 is not installed", hint="apt-get install libbpf1")
    fd: int = library.bpf_enable_stats(_RUN_TIME)
    if fd < 0:
        reason = os.strerror(-fd)
        if -fd in (1, 13):  # EPERM, EACCES
            raise NotPermittedError(
                f"the kernel does not measure BPF programs for this user: {reason}",
                hint="run it as root (CAP_SYS_ADMIN), or: sysctl kernel.bpf_stats_enabled=1",
            )
        raise KernelSupportError(f"the kernel cannot measure BPF programs: {reason}")
    try:
        yield
    finally:
        os.close(fd)


def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        return None


def _name(fd: int, at: int) -> str:
    library = _library()
    if library is None:
        return ""
    # What goes in is read as well: arrays to be filled, of which there are none.
    info = ctypes.create_string_buffer(_INFO_BYTES)
    size = ctypes.c_uint32(_INFO_BYTES)
    if library.bpf_obj_get_info_by_fd(fd, info, ctypes.byref(size)):
        return ""
    (raw,) = struct.unpack_from(f"{_NAME_BYTES}s", info, at)
    return str(raw.partition(b"\0")[0].decode("ascii", "replace"))
