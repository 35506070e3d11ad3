# SPDX-License-Identifier: Apache-2.0
"""Load and attach BPF objects: the only file that calls libbpf, through ctypes.

Every failure becomes a ``KernelSupportError`` that says what was refused and what to do.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.wire.errors import KernelSupportError

if TYPE_CHECKING:
    from pathlib import Path

_PTR = ctypes.c_void_p
_INT = ctypes.c_int
_U32 = ctypes.c_uint32
_U64 = ctypes.c_uint64
_STR = ctypes.c_char_p
_SIZE = ctypes.c_size_t
_DEBUG = 2
_PRINTER = ctypes.CFUNCTYPE(_INT, _INT, _STR, _PTR)

#: C signature of what is used of libbpf: name -> (result, arguments).
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "libbpf_version_string": (_STR, ()),
    "libbpf_set_print": (_PTR, (_PRINTER,)),
    "bpf_object__open_mem": (_PTR, (_PTR, _SIZE, _PTR)),
    "bpf_object__load": (_INT, (_PTR,)),
    "bpf_object__close": (None, (_PTR,)),
    "bpf_object__find_program_by_name": (_PTR, (_PTR, _STR)),
    "bpf_object__next_program": (_PTR, (_PTR, _PTR)),
    "bpf_object__find_map_by_name": (_PTR, (_PTR, _STR)),
    "bpf_program__name": (_STR, (_PTR,)),
    "bpf_program__set_autoload": (_INT, (_PTR, ctypes.c_bool)),
    "bpf_program__fd": (_INT, (_PTR,)),
    "bpf_program__attach": (_PTR, (_PTR,)),
    "bpf_program__attach_perf_event": (_PTR, (_PTR, _INT)),
    "bpf_program__attach_iter": (_PTR, (_PTR, _PTR)),
    "bpf_iter_create": (_INT, (_INT,)),
    "bpf_link__fd": (_INT, (_PTR,)),
    "bpf_link__destroy": (_INT, (_PTR,)),
    "bpf_map__fd": (_INT, (_PTR,)),
    "bpf_map__set_max_entries": (_INT, (_PTR, _U32)),
    "bpf_map__initial_value": (_PTR, (_PTR, ctypes.POINTER(_SIZE))),
    "bpf_map_create": (_INT, (_INT, _STR, _U32, _U32, _U32, _PTR)),
    "bpf_map_update_elem": (_INT, (_INT, _PTR, _PTR, _U64)),
    "bpf_map_lookup_and_delete_batch": (
        _INT, (_INT, _PTR, _PTR, _PTR, _PTR, ctypes.POINTER(_U32), _PTR)),
    "bpf_obj_get_info_by_fd": (_INT, (_INT, _PTR, ctypes.POINTER(_U32))),
}  # fmt: skip

#: ``enum bpf_map_type`` of include/uapi/linux/bpf.h.
_MAP_TYPE_RINGBUF = 27
#: ``struct bpf_prog_info``: run_time_ns, run_cnt and recursion_misses begin at this offset.
_PROG_INFO_BYTES = 256
_PROG_INFO_RUN = struct.Struct("<QQQ")
_PROG_INFO_RUN_OFFSET = 192

#: ``perf_event_open`` on x86-64 and what is used of ``struct perf_event_attr``.
_NR_PERF_EVENT_OPEN = 298
_PERF_ATTR = struct.Struct("<IIQQQQQ")
_PERF_ATTR_BYTES = 128
_PERF_TYPE_SOFTWARE = 1
_PERF_FLAG_FD_CLOEXEC = 8

_ROOT_HINT = "run as root, or with CAP_BPF, CAP_PERFMON and CAP_DAC_READ_SEARCH"
#: Words of the lines of libbpf's and the verifier's output that say why.
_TELLING = ("failed", "not found", "invalid", "unknown", "not allowed")
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


def _load_library() -> ctypes.CDLL | None:
    for name in ("libbpf.so.1", "libbpf.so"):
        try:
            library = ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
        try:
            for function, (result, arguments) in _SIGNATURES.items():
                entry = getattr(library, function)
                entry.restype, entry.argtypes = result, arguments
        except AttributeError:
            continue
        return library
    return None


class _Library:
    """libbpf, opened at first use, and the last of what it printed."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._printer = _PRINTER(self._print)
        self.log: list[str] = []

    def _print(self, level: int, form: bytes, arguments: int) -> int:
        if level >= _DEBUG:
            return 0
        line = ctypes.create_string_buffer(1024)
        self._libc.vsnprintf(line, _SIZE(len(line)), form, _PTR(arguments))
        self.log.append(line.value.decode("utf-8", "replace").rstrip())
        del self.log[:-200]
        return 0

    def get(self) -> ctypes.CDLL:
        if self._library is None:
            library = _load_library()
            if library is None:
                raise KernelSupportError(
                    "libbpf.so.1 (libbpf 1.0 or later) is not installed",
                    hint="Debian: apt-get install libbpf1",
                )
            library.libbpf_set_print(self._printer)
            self._library = library
        return self._library

    @property
    def libc(self) -> ctypes.CDLL:
        return self._libc


_LIB = _Library()


def library_version() -> str | None:
    """The version of the installed libbpf, or ``None`` when it is missing or too old."""
    try:
        text: bytes = _LIB.get().libbpf_version_string()
    except KernelSupportError:
        return None
    return text.decode()


def _refused(what: str, code: int, hint: str = "") -> KernelSupportError:
    reason = os.strerror(code) if code else "no reason given"
    return KernelSupportError(f"{what}: {reason}", hint=hint or _HINTS.get(code, ""))


def _log_reason() -> str:
    """The line of libbpf's log that says most about a failed load."""
    lines = [part.strip() for line in _LIB.log for part in line.splitlines()]
    telling = [
        line.removeprefix("libbpf: ") for line in lines if any(word in line for word in _TELLING)
    ]
    return f" ({'; '.join(telling[:2])})" if telling else ""


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


class BpfObject:
    """One BPF object file: opened, configured, loaded, attached, closed.

    Args:
        path: The object file.

    Raises:
        KernelSupportError: libbpf is missing or the file is no BPF object.
    """

    def __init__(self, path: Path) -> None:
        self._lib = _LIB.get()
        try:
            self._bytes = path.read_bytes()
        except OSError as exc:
            raise KernelSupportError(
                f"BPF object {path.name} cannot be read: {exc.strerror}",
                hint="build it: python -m gpucorrelate.probes.ebpf.build",
            ) from exc
        _LIB.log.clear()
        self._object = self._lib.bpf_object__open_mem(self._bytes, len(self._bytes), None)
        if not self._object:
            code = ctypes.get_errno()
            raise _refused(f"BPF object {path.name} cannot be opened{_log_reason()}", code)
        self._links: dict[str, list[int]] = {}

    def programs(self) -> tuple[str, ...]:
        """Names of all programs in the object."""
        names: list[str] = []
        program = None
        while program := self._lib.bpf_object__next_program(self._object, program):
            names.append(self._lib.bpf_program__name(program).decode())
        return tuple(names)

    def skip(self, program: str) -> None:
        """Leave a program out when loading."""
        self._lib.bpf_program__set_autoload(self._program(program), False)  # noqa: FBT003

    def set_initial(self, variable_map: str, data: bytes) -> None:
        """Set what a global variable's map holds when the object is loaded."""
        size = _SIZE(0)
        address = self._lib.bpf_map__initial_value(self._map(variable_map), ctypes.byref(size))
        if not address or size.value < len(data):
            raise KernelSupportError(f"BPF map {variable_map} cannot hold {len(data)} bytes")
        ctypes.memmove(address, data, len(data))

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the size of a map before loading."""
        code = self._lib.bpf_map__set_max_entries(self._map(name), entries)
        if code:
            raise _refused(f"BPF map {name} cannot have {entries} entries", -code)

    def load(self) -> None:
        """Load the programs that are not skipped.

        Raises:
            KernelSupportError: the kernel refused; the message carries libbpf's reason.
        """
        _LIB.log.clear()
        code = self._lib.bpf_object__load(self._object)
        if code:
            raise _refused(f"BPF programs cannot be loaded{_log_reason()}", -code)

    def attach(self, program: str) -> None:
        """Attach a program to what its section names."""
        link = self._lib.bpf_program__attach(self._program(program))
        if not link:
            raise _refused(f"BPF program {program} cannot be attached", ctypes.get_errno())
        self._links.setdefault(program, []).append(link)

    def attach_software_event(self, program: str, event: int, cpus: tuple[int, ...]) -> None:
        """Run a program at every occurrence of a perf software event on the given CPUs."""
        for cpu in cpus:
            fd = _open_software_event(event, cpu)
            link = self._lib.bpf_program__attach_perf_event(self._program(program), fd)
            if not link:
                code = ctypes.get_errno()
                os.close(fd)
                raise _refused(f"BPF program {program} cannot be attached to CPU {cpu}", code)
            self._links.setdefault(program, []).append(link)  # owns the fd from here on

    def attached(self, program: str) -> bool:
        """Whether the program is attached."""
        return program in self._links

    def detach(self, program: str) -> None:
        """Detach a program; harmless when it is not attached."""
        for link in self._links.pop(program, []):
            self._lib.bpf_link__destroy(link)

    def read_iterator(self, program: str, chunk_bytes: int = 1 << 16) -> bytes:
        """Run an iterator program over everything and return what it wrote."""
        if program not in self._links:
            link = self._lib.bpf_program__attach_iter(self._program(program), None)
            if not link:
                raise _refused(f"BPF iterator {program} cannot be attached", ctypes.get_errno())
            self._links[program] = [link]
        fd = self._lib.bpf_iter_create(self._lib.bpf_link__fd(self._links[program][0]))
        if fd < 0:
            raise _refused(f"BPF iterator {program} cannot be opened", -fd)
        try:
            parts: list[bytes] = []
            while part := os.read(fd, chunk_bytes):
                parts.append(part)
        except OSError as exc:
            raise _refused(f"BPF iterator {program} cannot be read", exc.errno or 0) from exc
        finally:
            os.close(fd)
        return b"".join(parts)

    def map_fd(self, name: str) -> int:
        """The file descriptor of a loaded map; owned by the object."""
        fd: int = self._lib.bpf_map__fd(self._map(name))
        return fd

    def map_memory(self, name: str, size_bytes: int) -> mmap.mmap:
        """The memory of a global variable's map, shared with the running programs."""
        length = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return mmap.mmap(
            self.map_fd(name), length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
        )

    def runs(self) -> tuple[ProgramRun, ...]:
        """How often each loaded program ran and was missed."""
        found: list[ProgramRun] = []
        for name in self.programs():
            fd = self._lib.bpf_program__fd(self._program(name))
            info = ctypes.create_string_buffer(_PROG_INFO_BYTES)
            size = _U32(_PROG_INFO_BYTES)
            if fd < 0 or self._lib.bpf_obj_get_info_by_fd(fd, info, ctypes.byref(size)):
                continue
            run = _PROG_INFO_RUN.unpack_from(info.raw, _PROG_INFO_RUN_OFFSET)
            found.append(ProgramRun(name, *run))
        return tuple(found)

    def close(self) -> None:
        """Detach everything and unload."""
        for program in tuple(self._links):
            self.detach(program)
        if self._object:
            self._lib.bpf_object__close(self._object)
            self._object = None

    def _program(self, name: str) -> int:
        found: int | None = self._lib.bpf_object__find_program_by_name(self._object, name.encode())
        if not found:
            raise KernelSupportError(f"no BPF program {name} in the object")
        return found

    def _map(self, name: str) -> int:
        found: int | None = self._lib.bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise KernelSupportError(f"no BPF map {name} in the object")
        return found


def _open_software_event(event: int, cpu: int) -> int:
    """A perf event that fires each time ``event`` (``enum perf_sw_ids``) happens on a CPU."""
    attr = ctypes.create_string_buffer(_PERF_ATTR_BYTES)
    _PERF_ATTR.pack_into(attr, 0, _PERF_TYPE_SOFTWARE, _PERF_ATTR_BYTES, event, 1, 0, 0, 0)
    fd: int = _LIB.libc.syscall(
        ctypes.c_long(_NR_PERF_EVENT_OPEN), attr, _INT(-1), _INT(cpu), _INT(-1),
        ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
    )  # fmt: skip
    if fd < 0:
        code = ctypes.get_errno()
        hint = _PARANOID_HINT if code in {errno.EPERM, errno.EACCES} else ""
        raise _refused(f"perf software event on CPU {cpu} cannot be opened", code, hint)
    return fd


def create_ring(name: str, size_bytes: int) -> int:
    """A new BPF ring buffer; returns its file descriptor.

    Args:
        name: Name of the map, 15 bytes at most.
        size_bytes: A power of two and a multiple of the page size.
    """
    fd: int = _LIB.get().bpf_map_create(_MAP_TYPE_RINGBUF, name.encode(), 0, 0, size_bytes, None)
    if fd < 0:
        raise _refused(f"BPF ring of {size_bytes} bytes cannot be made", -fd)
    return fd


def set_inner_map(outer_fd: int, index: int, inner_fd: int) -> None:
    """Put a map into an array of maps.

    Returns only when no program that could have seen the old state is running: the kernel waits
    for them (``maybe_wait_bpf_programs`` in kernel/bpf/syscall.c).
    """
    key, value = _U32(index), _U32(inner_fd)
    code = _LIB.get().bpf_map_update_elem(outer_fd, ctypes.byref(key), ctypes.byref(value), 0)
    if code:
        raise _refused("BPF ring cannot be put in place", -code)


def take_all(fd: int, key_bytes: int, value_bytes: int, entries: int) -> tuple[bytes, bytes]:
    """Take every entry out of a hash map that nobody writes to.

    Returns:
        The keys and the values, packed one after another in the same order.
    """
    keys = ctypes.create_string_buffer(key_bytes * entries)
    values = ctypes.create_string_buffer(value_bytes * entries)
    count, batch = _U32(entries), _U32(0)
    code = _LIB.get().bpf_map_lookup_and_delete_batch(
        fd, None, ctypes.byref(batch), keys, values, ctypes.byref(count), None
    )
    if code and -code != errno.ENOENT:
        raise _refused("sums of short waits cannot be read", -code)
    taken = count.value
    return keys.raw[: taken * key_bytes], values.raw[: taken * value_bytes]
