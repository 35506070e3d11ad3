# SPDX-License-Identifier: Apache-2.0
"""The programs by way of BCC: compiled on this host for its kernel, loaded by system calls.

BCC's own loader cannot attach typed raw tracepoints, keep thread-local storage or share plain
memory, so it compiles and no more: maps are made here, their addresses put into the
instructions, and programs attached to the same points as by libbpf.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from gpucorrelate.probes.ebpf import bcc, bpfsys, layout, support, syscall_kinds
from gpucorrelate.probes.ebpf.bpfsys import AttachType, MapSpec, MapType, ProgramSpec, ProgramType
from gpucorrelate.probes.ebpf.btf import Btf, BtfKind
from gpucorrelate.probes.ebpf.layout import MapSlot
from gpucorrelate.probes.wire.errors import KernelSupportError

if TYPE_CHECKING:
    import mmap

_LICENSE = "Dual BSD/GPL"
_ITERATES = "bpf_iter_task"
_KEY_BYTES = 4
_WORD_BYTES = 8
#: The map of rings is made like one ring of this size; those put in may be larger.
_RING_LIKE_BYTES = 4096

_RINGS, _STATES = "gpc_rings", "gpc_states"
_SUMS = {"gpc_sums_even": MapSlot.SUMS_EVEN, "gpc_sums_odd": MapSlot.SUMS_ODD}
#: Memory of the programs: name as libbpf has it, its map, bytes.
_MEMORY = {
    ".rodata.config": (MapSlot.CONFIG, layout.CONFIG_WORDS * _WORD_BYTES),
    ".rodata.kinds": (MapSlot.KINDS, syscall_kinds.KINDS),
    ".bss.control": (MapSlot.CONTROL, layout.CONTROL_WORDS * _WORD_BYTES),
    ".bss.targets": (MapSlot.TARGETS, layout.TARGET_WORDS * _WORD_BYTES),
    ".bss.cpus": (MapSlot.CPUS, layout.MAX_CPUS * layout.CPU_WORDS * _WORD_BYTES),
    ".bss.stints": (MapSlot.STINTS, layout.MAX_CPUS * layout.STINTS_BYTES),
    ".bss.walk": (MapSlot.WALK, layout.REC_BYTES),
}

_INSTRUCTION = struct.Struct("<BBhi")
_LOAD_WORD = 0x18  # BPF_LD | BPF_DW | BPF_IMM: two instructions with 64 bits
_MARKS = range(layout.MAP_MARK, layout.MAP_MARK + len(MapSlot))


def relocated(instructions: bytes, fds: dict[MapSlot, int]) -> bytes:
    """Instructions with the maps' file descriptors where the compiler left marks.

    Raises:
        KernelSupportError: the instructions name a map that we do not know.
    """
    found = bytearray(instructions)
    offset = 0
    while offset < len(found):
        code, registers, _, value = _INSTRUCTION.unpack_from(found, offset)
        if code == _LOAD_WORD:
            if registers >> 4:  # whose source is a map or its memory, not a plain number
                if value not in _MARKS:
                    raise KernelSupportError(
                        "BCC made instructions that name an unknown map",
                        hint="use the other backend (libbpf), and report BCC's version",
                    )
                fd = fds[MapSlot(value - layout.MAP_MARK)]
                struct.pack_into("<i", found, offset + 4, fd)
            offset += _INSTRUCTION.size
        offset += _INSTRUCTION.size
    return bytes(found)


def storage_types(value_bytes: int) -> bytes:
    """BTF of an ``int`` (id 1) and of a struct of so many bytes (id 4), as storage needs it."""
    strings = b"\0int\0char\0gpc_state\0bytes\0"

    def name(text: bytes) -> int:
        return strings.index(b"\0" + text + b"\0") + 1

    def kind(number: BtfKind, parts: int = 0) -> int:
        return number << 24 | parts

    signed = 1 << 24
    types = struct.pack("<4I", name(b"int"), kind(BtfKind.INT), 4, signed | 32)
    types += struct.pack("<4I", name(b"char"), kind(BtfKind.INT), 1, 8)
    types += struct.pack("<6I", 0, kind(BtfKind.ARRAY), 0, 2, 1, value_bytes)
    types += struct.pack("<3I", name(b"gpc_state"), kind(BtfKind.STRUCT, 1), value_bytes)
    types += struct.pack("<3I", name(b"bytes"), 3, 0)
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return head + types + strings


class BccObject:
    """The programs, compiled by BCC: opened, configured, loaded, attached, closed.

    Raises:
        KernelSupportError: BCC is missing, or this kernel's types are not as the programs need.
    """

    def __init__(self) -> None:
        points = support.tracepoints()
        names = {_ITERATES, *(f"btf_trace_{point}" for point in points.values())}
        types = Btf.of_kernel(names | bcc.struct_names())
        self._ids = {name: types.id_of(BtfKind.TYPEDEF, name) for name in names}
        self._ids[_ITERATES] = types.id_of(BtfKind.FUNC, _ITERATES)
        self._points = points
        self._wanted = [*points, *support.FAULT_EVENTS, support.WALK_PROGRAM]
        self._code = bcc.compile_programs(bcc.source(types), tuple(self._wanted))
        self._initial = {".rodata.kinds": syscall_kinds.table()}
        self._entries = {_RINGS: 1, **dict.fromkeys(_SUMS, layout.SUM_ENTRIES)}
        self._maps: dict[MapSlot, int] = {}
        self._programs: dict[str, int] = {}
        self._links: dict[str, list[int]] = {}

    def programs(self) -> tuple[str, ...]:
        """Names of all programs."""
        return tuple(self._code)

    def skip(self, program: str) -> None:
        """Leave a program out when loading."""
        self._wanted.remove(program)

    def set_initial(self, variable_map: str, data: bytes) -> None:
        """Set what a global variable's map holds when the programs are loaded."""
        if len(data) > _MEMORY[variable_map][1]:
            raise KernelSupportError(f"BPF map {variable_map} cannot hold {len(data)} bytes")
        self._initial[variable_map] = data

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the size of a map before loading."""
        self._entries[name] = entries

    def load(self) -> None:
        """Make the maps and load the programs that are not skipped.

        Raises:
            KernelSupportError: the kernel refused; the message carries the verifier's reason.
        """
        for name, (slot, size) in _MEMORY.items():
            self._maps[slot] = self._make_memory(name, size)
        self._make_maps()
        self._types_of_storage()
        for program in self._wanted:
            code = relocated(self._code[program], self._maps)
            self._programs[program] = bpfsys.load_program(self._spec(program), code)

    def _make_memory(self, name: str, size: int) -> int:
        constant = name.startswith(".rodata")
        flags = bpfsys.MMAPABLE | (bpfsys.READ_ONLY_FOR_PROGRAMS if constant else 0)
        fd = bpfsys.create_map(MapSpec(name, MapType.ARRAY, _KEY_BYTES, size, 1, flags))
        if data := self._initial.get(name):
            what = f"BPF map {name} cannot be filled"
            bpfsys.put(fd, bytes(_KEY_BYTES), data.ljust(size, b"\0"), what)
        if constant:
            bpfsys.freeze(fd)
        return fd

    def _make_maps(self) -> None:
        like = bpfsys.create_ring("gpc_ring", _RING_LIKE_BYTES)
        try:
            self._maps[MapSlot.RINGS] = bpfsys.create_map(
                MapSpec(_RINGS, MapType.ARRAY_OF_MAPS, _KEY_BYTES, _KEY_BYTES,
                        self._entries[_RINGS], inner_fd=like)
            )  # fmt: skip
        finally:
            os.close(like)
        for name, slot in _SUMS.items():
            self._maps[slot] = bpfsys.create_map(
                MapSpec(name, MapType.HASH, layout.SUM_KEY_BYTES, layout.SUM_BYTES,
                        self._entries[name])
            )  # fmt: skip

    def _types_of_storage(self) -> None:
        types = bpfsys.load_btf(storage_types(layout.STATE_BYTES))
        try:
            self._maps[MapSlot.STATES] = bpfsys.create_map(
                MapSpec(_STATES, MapType.TASK_STORAGE, _KEY_BYTES, layout.STATE_BYTES, 0,
                        bpfsys.NO_PREALLOC, types=bpfsys.ValueTypes(types, 1, 4))
            )  # fmt: skip
        finally:
            os.close(types)

    def _spec(self, program: str) -> ProgramSpec:
        if program in support.FAULT_EVENTS:
            return ProgramSpec(program, ProgramType.PERF_EVENT, AttachType.NONE, 0, _LICENSE)
        if program == support.WALK_PROGRAM:
            name, attach = _ITERATES, AttachType.ITERATOR
        else:
            name, attach = f"btf_trace_{self._points[program]}", AttachType.RAW_TRACEPOINT
        found = self._ids[name]
        if found is None:
            raise KernelSupportError(
                f"BPF program {program} cannot be loaded: the kernel has no {name}",
                hint="the kernel lacks a tracepoint it needs; see 'check'",
            )
        return ProgramSpec(program, ProgramType.TRACING, attach, found, _LICENSE)

    def attach(self, program: str) -> None:
        """Attach a program to its tracepoint."""
        link = bpfsys.attach_tracing(self._program(program))
        if link < 0:
            raise bpfsys.refused(f"BPF program {program} cannot be attached", -link)
        self._links.setdefault(program, []).append(link)

    def attach_software_event(self, program: str, event: int, cpus: tuple[int, ...]) -> None:
        """Run a program at every occurrence of a perf software event on the given CPUs."""
        for cpu in cpus:
            fd = bpfsys.open_software_event(event, cpu)
            try:
                bpfsys.attach_to_event(fd, self._program(program))
            except OSError as exc:
                os.close(fd)
                what = f"BPF program {program} cannot be attached to CPU {cpu}"
                raise bpfsys.refused(what, exc.errno or 0) from exc
            self._links.setdefault(program, []).append(fd)

    def detach(self, program: str) -> None:
        """Detach a program; harmless when it is not attached."""
        for link in self._links.pop(program, []):
            os.close(link)

    def read_iterator(self, program: str) -> bytes:
        """Run an iterator program over everything and return what it wrote."""
        if program not in self._links:
            link = bpfsys.attach_iterator(self._program(program))
            if link < 0:
                raise bpfsys.refused(f"BPF iterator {program} cannot be attached", -link)
            self._links[program] = [link]
        return bpfsys.run_iterator(self._links[program][0], program)

    def map_fd(self, name: str) -> int:
        """The file descriptor of a loaded map; owned by the object."""
        slots = {_RINGS: MapSlot.RINGS, _STATES: MapSlot.STATES, **_SUMS}
        return self._maps[slots[name]]

    def map_memory(self, name: str, size_bytes: int) -> mmap.mmap:
        """The memory of a global variable's map, shared with the running programs."""
        return bpfsys.map_memory(self._maps[_MEMORY[name][0]], size_bytes)

    def runs(self) -> tuple[bpfsys.ProgramRun, ...]:
        """How often each loaded program ran and was missed."""
        found = (bpfsys.program_run(name, fd) for name, fd in self._programs.items())
        return tuple(run for run in found if run is not None)

    def close(self) -> None:
        """Detach everything and unload."""
        for program in tuple(self._links):
            self.detach(program)
        for fd in (*self._programs.values(), *self._maps.values()):
            os.close(fd)
        self._programs, self._maps = {}, {}

    def _program(self, name: str) -> int:
        try:
            return self._programs[name]
        except KeyError:
            raise KernelSupportError(f"BPF program {name} is not loaded") from None
