# SPDX-License-Identifier: Apache-2.0
"""The ``bpf`` and ``perf_event_open`` system calls: maps, rings, programs, without a library.

Both backends use it. Every failure becomes a ``KernelSupportError`` that says what was refused
and what to do. Numbers and layouts are those of include/uapi/linux/bpf.h and perf_event.h.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass

from gpucorrelate.probes.ebpf import syscall_numbers
from gpucorrelate.probes.wire.errors import KernelSupportError

_NR_PERF_EVENT_OPEN = syscall_numbers.own("perf_event_open")
_NR_BPF = syscall_numbers.own("bpf")

_ATTR_BYTES = 128
_LOG_BYTES = 1 << 20
_NAME_BYTES = 15

#: ``struct bpf_prog_info``: run_time_ns, run_cnt and recursion_misses begin at this offset.
_PROG_INFO_BYTES = 256
_PROG_INFO_RUN = struct.Struct("<QQQ")
_PROG_INFO_RUN_OFFSET = 192

#: What is used of ``struct perf_event_attr``.
_PERF_ATTR = struct.Struct("<IIQQQQQ")
_PERF_ATTR_BYTES = 128
_PERF_TYPE_SOFTWARE = 1
_PERF_FLAG_FD_CLOEXEC = 8
_PERF_EVENT_IOC_ENABLE = 0x2400
_PERF_EVENT_IOC_SET_BPF = 0x40042408

_ROOT_HINT = "run as root, or with CAP_BPF, CAP_PERFMON and CAP_DAC_READ_SEARCH"
_HINTS = {
    errno.EPERM: _ROOT_HINT,
    errno.EACCES: _ROOT_HINT,
    errno.ENOENT: "the kernel lacks a tracepoint, a field or a helper it needs; see 'check'",
    errno.ESRCH: "the kernel lacks a type or tracepoint it needs; see 'check'",
    errno.EINVAL: "the kernel does not know a feature it needs (Linux 5.15 or later); see 'check'",
    errno.ENOMEM: "not enough memory, or RLIMIT_MEMLOCK too small: use smaller rings",
    errno.E2BIG: "the kernel's verifier gives up; a newer kernel may accept it",
}
_PARANOID_HINT = (
    "kernel.perf_event_paranoid above 2 refuses perf events without CAP_SYS_ADMIN: "
    "sysctl kernel.perf_event_paranoid=2"
)

_LIBC = ctypes.CDLL(None, use_errno=True)


class Command(enum.IntEnum):
    """``enum bpf_cmd``."""

    MAP_CREATE = 0
    MAP_UPDATE_ELEM = 2
    PROG_LOAD = 5
    OBJ_GET_INFO_BY_FD = 15
    RAW_TRACEPOINT_OPEN = 17
    BTF_LOAD = 18
    MAP_FREEZE = 22
    MAP_LOOKUP_AND_DELETE_BATCH = 25
    LINK_CREATE = 28
    ITER_CREATE = 33


class MapType(enum.IntEnum):
    """``enum bpf_map_type``."""

    HASH = 1
    ARRAY = 2
    ARRAY_OF_MAPS = 12
    RINGBUF = 27
    TASK_STORAGE = 29


class ProgramType(enum.IntEnum):
    """``enum bpf_prog_type``."""

    PERF_EVENT = 7
    TRACING = 26


class AttachType(enum.IntEnum):
    """``enum bpf_attach_type``; 0 stands for none."""

    NONE = 0
    RAW_TRACEPOINT = 23
    ITERATOR = 28


#: Flags of maps.
NO_PREALLOC = 1 << 0
READ_ONLY_FOR_PROGRAMS = 1 << 7
MMAPABLE = 1 << 10


def refused(what: str, code: int, hint: str = "") -> KernelSupportError:
    """The error for something that the kernel refused.

    Args:
        what: What it was.
        code: The error number; 0: none was given.
        hint: What to do; by default what usually helps against that error.
    """
    reason = os.strerror(code) if code else "no reason given"
    return KernelSupportError(f"{what}: {reason}", hint=hint or _HINTS.get(code, ""))


class _Attr:
    """``union bpf_attr`` for one call, and the memory that it points to."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(_ATTR_BYTES)
        self._held: list[object] = []

    def u32(self, offset: int, *values: int) -> None:
        struct.pack_into(f"<{len(values)}I", self.buffer, offset, *values)

    def u64(self, offset: int, value: int) -> None:
        struct.pack_into("<Q", self.buffer, offset, value)

    def name(self, offset: int, text: str) -> None:
        struct.pack_into(f"{_NAME_BYTES}s", self.buffer, offset, text.encode()[:_NAME_BYTES])

    def pointer(self, offset: int, data: bytes | ctypes.Array[ctypes.c_char]) -> None:
        """Point to a copy of bytes, or to a buffer that the kernel fills."""
        held = ctypes.create_string_buffer(data, len(data)) if isinstance(data, bytes) else data
        self._held.append(held)
        self.u64(offset, ctypes.addressof(held))

    def call(self, command: Command) -> int:
        """The result, or the negative error number."""
        result: int = _LIBC.syscall(
            ctypes.c_long(_NR_BPF), ctypes.c_long(command), self.buffer,
            ctypes.c_ulong(_ATTR_BYTES),
        )  # fmt: skip
        return result if result >= 0 else -ctypes.get_errno()


@dataclass(frozen=True)
class ValueTypes:
    """BTF that says what a map's keys and values are, where the kernel wants to know.

    Attributes:
        btf_fd: Loaded BTF.
        key_id: Id of the key's type in it.
        value_id: Id of the value's.
    """

    btf_fd: int = 0
    key_id: int = 0
    value_id: int = 0


@dataclass(frozen=True)
class MapSpec:
    """A map to be made.

    Attributes:
        name: Its name; 15 characters of it are used.
        kind: Its type.
        key_bytes: Size of a key.
        value_bytes: Size of a value.
        entries: Most entries.
        flags: Flags of maps.
        inner_fd: For an array of maps, one like those that it will hold.
        types: What its keys and values are.
    """

    name: str
    kind: MapType
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int = 0
    inner_fd: int = 0
    types: ValueTypes = ValueTypes()


def create_map(spec: MapSpec) -> int:
    """Make a map; returns its file descriptor.

    Raises:
        KernelSupportError: the kernel refused.
    """
    attr = _Attr()
    attr.u32(0, spec.kind, spec.key_bytes, spec.value_bytes, spec.entries, spec.flags)
    attr.u32(20, spec.inner_fd)
    attr.name(28, spec.name)
    attr.u32(48, spec.types.btf_fd, spec.types.key_id, spec.types.value_id)
    fd = attr.call(Command.MAP_CREATE)
    if fd < 0:
        raise refused(f"BPF map {spec.name} cannot be made", -fd)
    return fd


def create_ring(name: str, size_bytes: int) -> int:
    """A new BPF ring buffer; returns its file descriptor.

    Args:
        name: Name of the map, 15 bytes at most.
        size_bytes: A power of two and a multiple of the page size.
    """
    return create_map(MapSpec(name, MapType.RINGBUF, 0, 0, size_bytes))


def put(fd: int, key: bytes, value: bytes, what: str) -> None:
    """Put an entry into a map.

    Raises:
        KernelSupportError: the kernel refused; ``what`` says what could not be done.
    """
    attr = _Attr()
    attr.u32(0, fd)
    attr.pointer(8, key)
    attr.pointer(16, value)
    code = attr.call(Command.MAP_UPDATE_ELEM)
    if code:
        raise refused(what, -code)


def set_inner_map(outer_fd: int, index: int, inner_fd: int) -> None:
    """Put a map into an array of maps.

    Returns only when no program that could have seen the old state is running: the kernel waits
    for them (``maybe_wait_bpf_programs`` in kernel/bpf/syscall.c).
    """
    key, value = struct.pack("<I", index), struct.pack("<I", inner_fd)
    put(outer_fd, key, value, "BPF ring cannot be put in place")


def freeze(fd: int) -> None:
    """Let nobody change a map any more, so that programs are checked for what is in it."""
    attr = _Attr()
    attr.u32(0, fd)
    code = attr.call(Command.MAP_FREEZE)
    if code:
        raise refused("BPF map cannot be frozen", -code)


def map_memory(fd: int, size_bytes: int) -> mmap.mmap:
    """The memory of a map of one value, shared with the running programs."""
    length = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def take_all(fd: int, key_bytes: int, value_bytes: int, entries: int) -> tuple[bytes, bytes]:
    """Take every entry out of a hash map that nobody writes to.

    Returns:
        The keys and the values, packed one after another in the same order.
    """
    keys = ctypes.create_string_buffer(key_bytes * entries)
    values = ctypes.create_string_buffer(value_bytes * entries)
    batch = ctypes.create_string_buffer(8)
    attr = _Attr()
    attr.pointer(8, batch)
    attr.pointer(16, keys)
    attr.pointer(24, values)
    attr.u32(32, entries, fd)
    code = attr.call(Command.MAP_LOOKUP_AND_DELETE_BATCH)
    if code and -code != errno.ENOENT:
        raise refused("sums of short waits cannot be read", -code)
    (taken,) = struct.unpack_from("<I", attr.buffer, 32)
    return keys.raw[: taken * key_bytes], values.raw[: taken * value_bytes]


def load_btf(data: bytes) -> int:
    """Load descriptions of types; returns the file descriptor."""
    attr = _Attr()
    attr.pointer(0, data)
    attr.u32(16, len(data))
    fd = attr.call(Command.BTF_LOAD)
    if fd < 0:
        raise refused("descriptions of types cannot be loaded", -fd)
    return fd


@dataclass(frozen=True)
class ProgramSpec:
    """A program to be loaded.

    Attributes:
        name: Its name; 15 characters of it are used.
        kind: Its type.
        attach: What it will be attached to.
        attach_id: Id of that in the kernel's BTF; 0: none is needed.
        license: The licence of its source.
    """

    name: str
    kind: ProgramType
    attach: AttachType
    attach_id: int
    license: str


def load_program(spec: ProgramSpec, instructions: bytes) -> int:
    """Load a program; returns its file descriptor.

    Raises:
        KernelSupportError: the verifier refused; the message carries its last words.
    """
    attr = _Attr()
    attr.u32(0, spec.kind, len(instructions) // 8)
    attr.pointer(8, instructions)
    attr.pointer(16, spec.license.encode() + b"\0")
    attr.name(48, spec.name)
    attr.u32(68, spec.attach)
    attr.u32(108, spec.attach_id)
    fd = attr.call(Command.PROG_LOAD)
    if fd >= 0:
        return fd
    # Only a refused program is worth the time that the verifier takes to say why.
    log = ctypes.create_string_buffer(_LOG_BYTES)
    attr.u32(24, 1, _LOG_BYTES)
    attr.pointer(32, log)
    again = attr.call(Command.PROG_LOAD)
    if again >= 0:
        return again
    lines = [line for line in log.value.decode("utf-8", "replace").splitlines() if line.strip()]
    why = [line for line in lines if not line.startswith(("processed ", "max_states"))][-1:]
    told = f" ({why[0]})" if why else ""
    raise refused(f"BPF program {spec.name} cannot be loaded{told}", -fd)


def attach_tracing(fd: int) -> int:
    """Attach a typed raw tracepoint's program; detached when what is returned is closed."""
    attr = _Attr()
    attr.u32(8, fd)
    return attr.call(Command.RAW_TRACEPOINT_OPEN)


def attach_iterator(fd: int) -> int:
    """Make an iterator of a program; gone when what is returned is closed."""
    attr = _Attr()
    attr.u32(0, fd, 0, AttachType.ITERATOR)
    return attr.call(Command.LINK_CREATE)


def run_iterator(link_fd: int, what: str, chunk_bytes: int = 1 << 16) -> bytes:
    """Run an iterator over everything and return what it wrote.

    Raises:
        KernelSupportError: it cannot be run; ``what`` names it.
    """
    attr = _Attr()
    attr.u32(0, link_fd)
    fd = attr.call(Command.ITER_CREATE)
    if fd < 0:
        raise refused(f"BPF iterator {what} cannot be opened", -fd)
    try:
        parts: list[bytes] = []
        while part := os.read(fd, chunk_bytes):
            parts.append(part)
    except OSError as exc:
        raise refused(f"BPF iterator {what} cannot be read", exc.errno or 0) from exc
    finally:
        os.close(fd)
    return b"".join(parts)


def open_software_event(event: int, cpu: int) -> int:
    """A perf event that fires each time ``event`` (``enum perf_sw_ids``) happens on a CPU."""
    attr = ctypes.create_string_buffer(_PERF_ATTR_BYTES)
    _PERF_ATTR.pack_into(attr, 0, _PERF_TYPE_SOFTWARE, _PERF_ATTR_BYTES, event, 1, 0, 0, 0)
    fd: int = _LIBC.syscall(
        ctypes.c_long(_NR_PERF_EVENT_OPEN), attr, ctypes.c_int(-1), ctypes.c_int(cpu),
        ctypes.c_int(-1), ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
    )  # fmt: skip
    if fd < 0:
        code = ctypes.get_errno()
        hint = _PARANOID_HINT if code in {errno.EPERM, errno.EACCES} else ""
        raise refused(f"perf software event on CPU {cpu} cannot be opened", code, hint)
    return fd


def attach_to_event(event_fd: int, program_fd: int) -> None:
    """Run a program at a perf event, until the event is closed.

    Raises:
        OSError: the kernel refused.
    """
    fcntl.ioctl(event_fd, _PERF_EVENT_IOC_SET_BPF, program_fd)
    fcntl.ioctl(event_fd, _PERF_EVENT_IOC_ENABLE, 0)


@dataclass(frozen=True)
class ProgramRun:
    """How often a program ran.

    Attributes:
        name: Name of the program.
        run_ns: Time spent in it; 0 unless ``kernel.bpf_stats_enabled``.
        runs: Times it ran; 0 unless ``kernel.bpf_stats_enabled``.
        missed: Times it was not run because it was already running on that CPU.
    """

    name: str
    run_ns: int
    runs: int
    missed: int


def program_run(name: str, fd: int) -> ProgramRun | None:
    """How often a loaded program ran and was missed; ``None`` where the kernel does not say."""
    # What goes in is read as well: arrays to be filled, of which there are none.
    info = ctypes.create_string_buffer(_PROG_INFO_BYTES)
    attr = _Attr()
    attr.u32(0, fd, _PROG_INFO_BYTES)
    attr.pointer(8, info)
    if attr.call(Command.OBJ_GET_INFO_BY_FD):
        return None
    return ProgramRun(name, *_PROG_INFO_RUN.unpack_from(info.raw, _PROG_INFO_RUN_OFFSET))
