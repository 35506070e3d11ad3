# SPDX-License-Identifier: Apache-2.0
"""The two ways from the programs' source into the kernel, behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gpucorrelate.probes.ebpf import support
from gpucorrelate.probes.ebpf.bcc_object import BccObject
from gpucorrelate.probes.ebpf.bpf import BpfObject
from gpucorrelate.probes.ebpf.values import Backend

if TYPE_CHECKING:
    import mmap

    from gpucorrelate.probes.ebpf.bpfsys import ProgramRun


class Programs(Protocol):
    """The programs with their maps: opened, configured, loaded, attached, closed.

    Maps have the names of libbpf; those of global variables are called after their section.
    Every method may raise ``KernelSupportError`` with the kernel's reason.
    """

    def programs(self) -> tuple[str, ...]:
        """Names of all programs."""

    def skip(self, program: str) -> None:
        """Leave a program out when loading."""

    def set_initial(self, variable_map: str, data: bytes) -> None:
        """Set what a global variable's map holds when the programs are loaded."""

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the size of a map before loading."""

    def load(self) -> None:
        """Load the programs that are not skipped."""

    def attach(self, program: str) -> None:
        """Attach a program to its tracepoint."""

    def attach_software_event(self, program: str, event: int, cpus: tuple[int, ...]) -> None:
        """Run a program at every occurrence of a perf software event on the given CPUs."""

    def detach(self, program: str) -> None:
        """Detach a program; harmless when it is not attached."""

    def read_iterator(self, program: str) -> bytes:
        """Run an iterator program over everything and return what it wrote."""

    def map_fd(self, name: str) -> int:
        """The file descriptor of a loaded map; owned by the object."""

    def map_memory(self, name: str, size_bytes: int) -> mmap.mmap:
        """The memory of a global variable's map, shared with the running programs."""

    def runs(self) -> tuple[ProgramRun, ...]:
        """How often each loaded program ran and was missed."""

    def close(self) -> None:
        """Detach everything and unload."""


def open_programs(backend: Backend) -> Programs:
    """The programs by way of a backend, not loaded yet.

    Raises:
        KernelSupportError: it cannot be used here.
    """
    if backend is Backend.BCC:
        return BccObject()
    return BpfObject(support.object_path())
