# SPDX-License-Identifier: Apache-2.0
"""Load and attach compiled BPF objects: the only file that calls libbpf, through ctypes.

Every failure becomes a ``KernelSupportError`` that says what was refused and what to do.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.ebpf import bpfsys
from gpucorrelate.probes.ebpf.bpfsys import refused
from gpucorrelate.probes.wire.errors import KernelSupportError

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from gpucorrelate.probes.ebpf.bpfsys import ProgramRun

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
    "bpf_link__fd": (_INT, (_PTR,)),
    "bpf_link__destroy": (_INT, (_PTR,)),
    "bpf_map__fd": (_INT, (_PTR,)),
    "bpf_map__set_max_entries": (_INT, (_PTR, _U32)),
    "bpf_map__initial_value": (_PTR, (_PTR, ctypes.POINTER(_SIZE))),
}  # fmt: skip

#: Words of the lines of libbpf's and the verifier's output that say why.
_TELLING = ("failed", "not found", "invalid", "unknown", "not allowed")


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


def _log_reason() -> str:
    """The line of libbpf's log that says most about a failed load."""
    lines = [part.strip() for line in _LIB.log for part in line.splitlines()]
    telling = [
        line.removeprefix("libbpf: ") for line in lines if any(word in line for word in _TELLING)
    ]
    return f" ({'; '.join(telling[:2])})" if telling else ""


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
            raise refused(f"BPF object {path.name} cannot be opened{_log_reason()}", code)
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
            raise refused(f"BPF map {name} cannot have {entries} entries", -code)

    def load(self) -> None:
        """Load the programs that are not skipped.

        Raises:
            KernelSupportError: the kernel refused; the message carries libbpf's reason.
        """
        _LIB.log.clear()
        code = self._lib.bpf_object__load(self._object)
        if code:
            raise refused(f"BPF programs cannot be loaded{_log_reason()}", -code)

    def attach(self, program: str) -> None:
        """Attach a program to what its section names."""
        link = self._lib.bpf_program__attach(self._program(program))
        if not link:
            raise refused(f"BPF program {program} cannot be attached", ctypes.get_errno())
        self._links.setdefault(program, []).append(link)

    def attach_software_event(self, program: str, event: int, cpus: tuple[int, ...]) -> None:
        """Run a program at every occurrence of a perf software event on the given CPUs."""
        for cpu in cpus:
            fd = bpfsys.open_software_event(event, cpu)
            link = self._lib.bpf_program__attach_perf_event(self._program(program), fd)
            if not link:
                code = ctypes.get_errno()
                os.close(fd)
                raise refused(f"BPF program {program} cannot be attached to CPU {cpu}", code)
            self._links.setdefault(program, []).append(link)  # owns the fd from here on

    def detach(self, program: str) -> None:
        """Detach a program; harmless when it is not attached."""
        for link in self._links.pop(program, []):
            self._lib.bpf_link__destroy(link)

    def read_iterator(self, program: str) -> bytes:
        """Run an iterator program over everything and return what it wrote."""
        if program not in self._links:
            link = self._lib.bpf_program__attach_iter(self._program(program), None)
            if not link:
                raise refused(f"BPF iterator {program} cannot be attached", ctypes.get_errno())
            self._links[program] = [link]
        return bpfsys.run_iterator(self._lib.bpf_link__fd(self._links[program][0]), program)

    def map_fd(self, name: str) -> int:
        """The file descriptor of a loaded map; owned by the object."""
        fd: int = self._lib.bpf_map__fd(self._map(name))
        return fd

    def map_memory(self, name: str, size_bytes: int) -> mmap.mmap:
        """The memory of a global variable's map, shared with the running programs."""
        return bpfsys.map_memory(self.map_fd(name), size_bytes)

    def runs(self) -> tuple[ProgramRun, ...]:
        """How often each loaded program ran and was missed."""
        fds = [(name, self._lib.bpf_program__fd(self._program(name))) for name in self.programs()]
        found = (bpfsys.program_run(name, fd) for name, fd in fds if fd >= 0)
        return tuple(run for run in found if run is not None)

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
