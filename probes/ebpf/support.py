# SPDX-License-Identifier: Apache-2.0
"""What this kernel lets us see: facts are read in one place, what follows from them is pure.

The programs need typed raw tracepoints (``tp_btf``), so a kernel without BTF is refused: raw
tracepoints without types would need a checked read for each of a dozen fields at every context
switch. The kernel is asked for each tracepoint, type and helper, never for its version.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.probes.ebpf import bcc, bpf
from gpucorrelate.probes.ebpf.syscall_numbers import ARM64, X86_64
from gpucorrelate.probes.ebpf.values import BACKENDS, Backend
from gpucorrelate.probes.wire.errors import KernelSupportError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Inode of the initial pid namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h).
_INITIAL_PID_NS = "pid:[4026531836]"

#: Capability numbers of include/uapi/linux/capability.h.
_CAP_SYS_ADMIN = 21
_CAP_PERFMON = 38
_CAP_BPF = 39

#: Programs and the tracepoint each needs; ``None``: no tracepoint.
SCHED_PROGRAMS = {"wait_switch": "sched_switch", "wait_waking": "sched_waking"}
TASK_PROGRAMS = {"task_fork": "sched_process_fork", "task_exit": "sched_process_exit",
                 "task_exec": "sched_process_exec", "task_renamed": "task_rename"}  # fmt: skip
CONTEXT_PROGRAMS = {"context_hrtimer_entry": "hrtimer_expire_entry",
                    "context_hrtimer_exit": "hrtimer_expire_exit",
                    "context_timer_entry": "timer_expire_entry",
                    "context_timer_exit": "timer_expire_exit",
                    "context_softirq_entry": "softirq_entry",
                    "context_softirq_exit": "softirq_exit",
                    "context_irq_entry": "irq_handler_entry",
                    "context_irq_exit": "irq_handler_exit"}  # fmt: skip
FAULT_PROGRAMS = {"fault_user": "page_fault_user", "fault_kernel": "page_fault_kernel",
                  "fault_file": "mm_filemap_fault"}  # fmt: skip
#: Programs run by perf software events: ``enum perf_sw_ids`` of include/uapi/linux/perf_event.h.
FAULT_EVENTS = {"fault_minor": 5, "fault_major": 6}
SPIN_PROGRAM = "spin_syscall"
SPIN_TRACEPOINT = "sys_enter"
WALK_PROGRAM = "walk_tasks"
#: What the programs are written for; of BCC's the registers of one machine alone are tried.
MACHINES = {Backend.LIBBPF: (X86_64, ARM64), Backend.BCC: (X86_64,)}

_TRACEPOINTS = (*SCHED_PROGRAMS.values(), *TASK_PROGRAMS.values(), *CONTEXT_PROGRAMS.values(),
                *FAULT_PROGRAMS.values(), SPIN_TRACEPOINT)  # fmt: skip
#: Types, functions and variables looked up in the kernel's BTF besides the tracepoints.
_SYMBOLS = ("bpf_iter__task", "bpf_task_pt_regs", "bpf_get_current_task_btf")


def tracepoints() -> dict[str, str]:
    """Every program that belongs to a tracepoint, with that tracepoint."""
    pairs = (SCHED_PROGRAMS, TASK_PROGRAMS, CONTEXT_PROGRAMS, FAULT_PROGRAMS)
    return {**{name: point for one in pairs for name, point in one.items()},
            SPIN_PROGRAM: SPIN_TRACEPOINT}  # fmt: skip


@dataclass(frozen=True)
class KernelFacts:
    """What was read about this host.

    Attributes:
        machine: Architecture, as ``uname -m``.
        release: Kernel release, as ``uname -r``.
        btf: Whether the kernel describes its types.
        symbols: Which of the tracepoints and symbols we ask for the kernel's BTF has.
        capabilities: Effective capabilities of this process, as a bit set.
        perf_event_paranoid: The sysctl; ``None`` when it cannot be read.
        initial_pid_ns: Whether this process is in the initial pid namespace; ``None``: unknown.
        lockdown: The kernel's lockdown mode: ``none``, ``integrity``, ``confidentiality`` or
            ``""`` where it has none.
        libbpf: Version of libbpf, or ``None``.
        object_built: Whether the compiled programs are there.
        bcc: BCC, or ``None``: it is missing, or nobody asked.
    """

    machine: str
    release: str
    btf: bool
    symbols: frozenset[str]
    capabilities: int
    perf_event_paranoid: int | None
    initial_pid_ns: bool | None
    lockdown: str
    libbpf: str | None
    object_built: bool
    bcc: bcc.FoundBcc | None = None

    def has_capability(self, number: int) -> bool:
        """Whether a capability is effective."""
        return bool(self.capabilities >> number & 1)


@dataclass(frozen=True)
class Missing:
    """Something that cannot be seen here.

    Attributes:
        what: Source of evidence, as ``ebpf.sched``.
        why: What the kernel or its settings lack.
        mend: What to do; empty when nothing helps.
        fatal: Whether nothing can be traced without it.
    """

    what: str
    why: str
    mend: str
    fatal: bool = False


@dataclass(frozen=True)
class Support:
    """Which programs to load here, and what is lost.

    Attributes:
        programs: Programs to load and attach, yield runs left out (they are attached on demand).
        spins: Whether yield runs can be traced.
        missing: What cannot be seen, worst first.
        backend: What loads them.
    """

    programs: tuple[str, ...]
    spins: bool
    missing: tuple[Missing, ...]
    backend: Backend = Backend.LIBBPF

    @property
    def usable(self) -> bool:
        """Whether waits can be traced at all."""
        return not any(item.fatal for item in self.missing)


def object_path() -> Path:
    """Where the compiled programs are."""
    return Path(__file__).resolve().parent / "gpucorrelate.bpf.o"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def parse_capabilities(status: str) -> int:
    """Effective capabilities from the text of ``/proc/self/status``."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def parse_lockdown(text: str) -> str:
    """The mode in brackets of ``/sys/kernel/security/lockdown``."""
    _, _, rest = text.partition("[")
    return rest.partition("]")[0]


def known_symbols(btf: bytes) -> frozenset[str]:
    """Those of the names we ask for that occur in a BTF blob's string table."""
    found = {name for name in _TRACEPOINTS if b"\0btf_trace_" + name.encode() + b"\0" in btf}
    found |= {name for name in _SYMBOLS if b"\0" + name.encode() + b"\0" in btf}
    return frozenset(found)


def _pid_namespace(root: Path) -> bool | None:
    try:
        return os.readlink(root / "proc/self/ns/pid") == _INITIAL_PID_NS  # noqa: PTH115
    except OSError:
        return None


def facts(root: Path = Path("/"), *, backend: str = "auto") -> KernelFacts:
    """Read what decides which programs can run.

    Args:
        root: Where ``proc`` and ``sys`` are; for tests.
        backend: One of ``BACKENDS``. BCC, which takes a process to ask for, is looked for only
            where it may be needed.

    Raises:
        KernelSupportError: there is no such backend.
    """
    if backend not in BACKENDS:
        raise KernelSupportError(
            f"no backend {backend!r}", hint=f"backends: {', '.join(BACKENDS)}"
        )
    libbpf, built = bpf.library_version(), object_path().exists()
    ready = libbpf is not None and built
    look = backend == Backend.BCC or (backend != Backend.LIBBPF and not ready)
    try:
        btf = (root / "sys/kernel/btf/vmlinux").read_bytes()
    except OSError:
        btf = b""
    paranoid = _read(root / "proc/sys/kernel/perf_event_paranoid").strip()
    return KernelFacts(
        machine=platform.machine(),
        release=_read(root / "proc/sys/kernel/osrelease").strip(),
        btf=bool(btf),
        symbols=known_symbols(btf),
        capabilities=parse_capabilities(_read(root / "proc/self/status")),
        perf_event_paranoid=int(paranoid) if paranoid.lstrip("-").isdigit() else None,
        initial_pid_ns=_pid_namespace(root),
        lockdown=parse_lockdown(_read(root / "sys/kernel/security/lockdown")),
        libbpf=libbpf,
        object_built=built,
        bcc=bcc.find() if look else None,
    )


def choose(found: KernelFacts, backend: str) -> Backend:
    """The backend for what was asked for, one of ``BACKENDS``."""
    if backend != "auto":
        return Backend(backend)
    ready = found.libbpf is not None and found.object_built
    return Backend.BCC if found.bcc is not None and not ready else Backend.LIBBPF


def _backend_missing(found: KernelFacts, backend: Backend) -> list[tuple[str, str]]:
    if backend is Backend.BCC:
        return [] if found.bcc is not None else [("BCC is not installed", bcc.INSTALL)]
    missing = []
    if found.libbpf is None:
        missing.append(("libbpf.so.1 is not installed", "Debian: apt-get install libbpf1"))
    if not found.object_built:
        build = "python -m gpucorrelate.probes.ebpf.build"
        missing.append(("the BPF programs are not compiled", build))
    return missing


def _fatal(found: KernelFacts, backend: Backend) -> list[Missing]:
    missing: list[Missing] = []

    def lacks(why: str, mend: str) -> None:
        missing.append(Missing("ebpf.sched", why, mend, fatal=True))

    if found.machine not in MACHINES[backend]:
        others = [one.value for one in Backend if found.machine in MACHINES[one]]
        lacks(
            f"the BPF programs are not written for {found.machine} by way of {backend.value}"
            if others
            else f"the BPF programs are not written for {found.machine}",
            f"use the other backend ({others[0]})" if others else "",
        )
    if not found.btf:
        lacks(
            "the kernel has no BTF (/sys/kernel/btf/vmlinux)",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y; Debian's and Ubuntu's are",
        )
    for why, mend in _backend_missing(found, backend):
        lacks(why, mend)
    admin = found.has_capability(_CAP_SYS_ADMIN)
    if not admin and not (found.has_capability(_CAP_BPF) and found.has_capability(_CAP_PERFMON)):
        lacks("CAP_BPF and CAP_PERFMON are missing", "run as root or with these capabilities")
    if found.lockdown == "confidentiality":
        lacks("kernel lockdown forbids reading kernel memory", "boot without it")
    if found.btf:
        needed = (*SCHED_PROGRAMS.values(), "sched_process_fork", "sched_process_exit")
        absent = [name for name in needed if name not in found.symbols]
        absent += [name for name in _SYMBOLS if name not in found.symbols]
        if absent:
            lacks(f"the kernel lacks {', '.join(absent)}", "use Linux 5.15 or later")
    return missing


def _perf_refused(found: KernelFacts) -> bool:
    """Debian's patch: level 3 refuses perf events even with CAP_PERFMON."""
    paranoid = found.perf_event_paranoid
    return paranoid is not None and paranoid > 2 and not found.has_capability(_CAP_SYS_ADMIN)


def _faults(found: KernelFacts) -> tuple[list[str], list[Missing]]:
    absent = [name for name in FAULT_PROGRAMS.values() if name not in found.symbols]
    if "page_fault_user" in absent or "page_fault_kernel" in absent:
        why = f"the kernel lacks {', '.join(absent)}"
        if found.machine == ARM64:
            why += " (as all of arm64): page faults that block show as waits, without address"
        return [], [Missing("ebpf.faults", why, "")]
    programs = [name for name, needs in FAULT_PROGRAMS.items() if needs in found.symbols]
    missing: list[Missing] = []
    if absent:
        why = "the kernel lacks mm_filemap_fault: faults do not name their file"
        missing.append(Missing("ebpf.faults", why, ""))
    if _perf_refused(found):
        why = (
            f"kernel.perf_event_paranoid={found.perf_event_paranoid} refuses perf events: only "
            "faults that block are seen, without their end"
        )
        mend = "sysctl kernel.perf_event_paranoid=2, or give CAP_SYS_ADMIN"
        missing.append(Missing("ebpf.faults", why, mend))
    else:
        programs += FAULT_EVENTS
    return programs, missing


def reasons(missing: Iterable[Missing]) -> dict[str, str]:
    """Why each source is not what it could be, and how to mend it: all reasons, each once."""
    found: dict[str, dict[str, None]] = {}
    for item in missing:
        text = f"{item.why}; {item.mend}" if item.mend else item.why
        found.setdefault(item.what, {})[text] = None
    return {what: "; ".join(texts) for what, texts in found.items()}


def decide(found: KernelFacts, *, faults: bool = True, backend: str = "auto") -> Support:
    """Which programs to load on a host with these facts.

    Args:
        found: What was read.
        faults: Whether page faults are wanted.
        backend: What was asked for, one of ``BACKENDS``.
    """
    chosen = choose(found, backend)
    missing = _fatal(found, chosen)
    programs = [*SCHED_PROGRAMS, WALK_PROGRAM]
    programs += [name for name, needs in TASK_PROGRAMS.items() if needs in found.symbols]
    context = [name for name, needs in CONTEXT_PROGRAMS.items() if needs in found.symbols]
    if len(context) < len(CONTEXT_PROGRAMS):
        # Half a pair would leave its mark set for ever.
        context = []
        why = (
            "the kernel does not say in which context a wake is done: timers and the network may "
            "be taken for the thread they interrupted"
        )
        missing.append(Missing("ebpf.context", why, ""))
    programs += context
    if faults:
        more, lost_faults = _faults(found)
        programs += more
        missing += lost_faults
    if found.initial_pid_ns is False:
        why = "not in the initial pid namespace: ids in records are the initial namespace's"
        missing.append(Missing("ebpf.pidns", why, "run with the host's pid namespace"))
    spins = SPIN_TRACEPOINT in found.symbols
    if not spins:
        missing.append(Missing("ebpf.spins", "the kernel lacks sys_enter: no yield runs", ""))
    return Support(tuple(programs), spins, tuple(missing), chosen)
