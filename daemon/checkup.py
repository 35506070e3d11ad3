# SPDX-License-Identifier: Apache-2.0
"""What this host can and cannot observe, why, and how to mend it; needs no daemon."""

from __future__ import annotations

import grp
import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gpucorrelate
from gpucorrelate.daemon import checkup_host, privileges, tree
from gpucorrelate.daemon.checkup_values import Check, CheckState, ok
from gpucorrelate.daemon.client import Client
from gpucorrelate.daemon.config import GROUP, default_control_path
from gpucorrelate.probes.agents import DISABLE_VARIABLE
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.errors import GpucorrelateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpucorrelate.probes.ebpf.support import KernelFacts, Support
    from gpucorrelate.probes.ebpf.values import Backend
    from gpucorrelate.probes.host.procfs import Process

_PLUGINS = "vllm.general_plugins"
#: Where it is set, vLLM loads the plugins that it names and no others.
_ALLOWED = "VLLM_PLUGINS"
_SHOWN = 5


@dataclass(frozen=True)
class CheckReport:
    """Everything that was looked at.

    Attributes:
        version: Version of gpucorrelate.
        kernel: Release and machine of the kernel.
        checks: The checks, what all else rests on first.
    """

    version: str
    kernel: str
    checks: tuple[Check, ...]

    @property
    def usable(self) -> bool:
        """Whether the main job can be done here."""
        return not any(c.needed and c.state is CheckState.MISSING for c in self.checks)

    @property
    def complete(self) -> bool:
        """Whether nothing is degraded or missing."""
        return all(check.state is CheckState.OK for check in self.checks)


def run(*, backend: str = "auto") -> CheckReport:
    """Look at this host. As root the kernel probes are loaded for a moment and tried.

    Args:
        backend: What loads them, see ``DaemonConfig``.
    """
    uname = platform.uname()
    running = [p for p in map(procfs.read_process, procfs.process_ids()) if p is not None]
    engines = [p for p in running if p.stat.alive and tree.looks_like_engine(p)]
    checks = [_privileges(), *_kernel(backend), _tracefs(), _group(), _daemon(), *_engine(engines)]
    checks += checkup_host.run([engine.pid for engine in engines])
    return CheckReport(gpucorrelate.__version__, f"{uname.release} {uname.machine}", tuple(checks))


def _privileges() -> Check:
    has = privileges.current()
    if has.uid == 0 and "CAP_SYS_PTRACE" in has.names:
        return ok("privileges", has.text)
    return Check(
        "privileges",
        CheckState.DEGRADED,
        has.text,
        "this user cannot load kernel probes; the checks below hold for this user",
        "sudo gpucorrelate check",
    )


def _kernel(backend: str) -> list[Check]:
    try:
        from gpucorrelate.probes.ebpf import support
    except ImportError as exc:
        why = f"the kernel probes are not installed: {exc}"
        mend = "pip install 'gpucorrelate[daemon]'"
        return [
            Check("ebpf.sched", CheckState.MISSING, why, _LOST["ebpf.sched"], mend, needed=True)
        ]
    facts = support.facts(backend=backend)
    found = support.decide(facts, backend=backend)
    checks = [*facts_of_kernel(facts, found.backend), *sources_of_kernel(found)]
    if found.usable:
        checks.append(_selftest(backend))
    return checks


def _loader(facts: KernelFacts, backend: Backend) -> list[tuple[str, bool, str, str]]:
    if backend == "bcc":
        from gpucorrelate.probes.ebpf.bcc import INSTALL

        found = f"BCC {facts.bcc.version} in {facts.bcc.folder}" if facts.bcc else ""
        return [("kernel.bcc", facts.bcc is not None, found, INSTALL)]
    return [
        ("kernel.libbpf", facts.libbpf is not None, f"libbpf {facts.libbpf}",
         "apt-get install libbpf1"),
        ("kernel.programs", facts.object_built, "compiled BPF programs",
         "python -m gpucorrelate.probes.ebpf.build"),
    ]  # fmt: skip


def facts_of_kernel(facts: KernelFacts, backend: Backend) -> list[Check]:
    """What the kernel probes rest on by way of a backend, one line each. Pure."""
    rows = [
        ("kernel.btf", facts.btf, "/sys/kernel/btf/vmlinux",
         "use a kernel built with CONFIG_DEBUG_INFO_BTF=y; Debian's and Ubuntu's are"),
        *_loader(facts, backend),
    ]  # fmt: skip
    checks = [
        ok(name, what)
        if there
        else Check(name, CheckState.MISSING, "not there", _LOST["ebpf.sched"], mend, needed=True)
        for name, there, what, mend in rows
    ]
    level = facts.perf_event_paranoid
    if level is None or level <= 2:
        checks.append(ok("kernel.perf_event_paranoid", "unknown" if level is None else f"{level}"))
    else:
        checks.append(
            Check(
                "kernel.perf_event_paranoid",
                CheckState.DEGRADED,
                f"{level}: perf events need CAP_SYS_ADMIN (a patch of Debian's and Ubuntu's)",
                "a daemon without CAP_SYS_ADMIN does not see when page faults end",
                "sysctl kernel.perf_event_paranoid=2",
            )
        )
    return checks


#: What the reports lack without each source.
_LOST = {
    "ebpf.sched": "waits, wakers and run-queue delay",
    "ebpf.context": "whether a timer, the network or an interrupt woke a thread",
    "ebpf.faults": "page faults, their files and their waits",
    "ebpf.spins": "polling with sched_yield in processes without an agent",
    "ebpf.pidns": "the match of kernel ids and ids of this pid namespace",
}


def sources_of_kernel(found: Support) -> list[Check]:
    """What the kernel probes can see, one line each. Pure."""
    checks = []
    for name, lost in _LOST.items():
        missing = [item for item in found.missing if item.what == name]
        if not missing:
            checks.append(ok(name, f"sees {lost}" if name != "ebpf.pidns" else "host's ids"))
            continue
        fatal = any(item.fatal for item in missing)
        checks.append(
            Check(
                name,
                CheckState.MISSING if fatal else CheckState.DEGRADED,
                "; ".join(dict.fromkeys(item.why for item in missing)),
                lost,
                "; ".join(dict.fromkeys(item.mend for item in missing if item.mend)),
                needed=name == "ebpf.sched",
            )
        )
    return checks


def _selftest(backend: str) -> Check:
    name = "ebpf.selftest"
    try:
        from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig

        tracer = Tracer.start(TracerConfig(backend=backend))
    except (GpucorrelateError, OSError) as exc:
        hint = getattr(exc, "hint", "")
        return Check(name, CheckState.MISSING, str(exc), _LOST["ebpf.sched"], hint, needed=True)
    tracer.stop()
    seen = "a wait made for the purpose was seen, with its length and its waker"
    return ok(name, f"{seen}, by way of {tracer.backend}")


def _tracefs() -> Check:
    mounted = Path("/sys/kernel/tracing/events").is_dir()
    return ok("kernel.tracefs", "mounted" if mounted else "not mounted; not needed")


def _group() -> Check:
    try:
        members = grp.getgrnam(GROUP).gr_mem
    except KeyError:
        return Check(
            "group",
            CheckState.DEGRADED,
            f"no group {GROUP}",
            "only root may use the daemon",
            f"sudo groupadd --system {GROUP}",
        )
    return ok("group", f"{GROUP}: {', '.join(members) or 'no members, only root'}")


def _daemon() -> Check:
    try:
        with Client(timeout_s=3.0) as client:
            status = client.status()
    except GpucorrelateError as exc:
        lost = "nothing is recorded until it runs; reports of files work"
        return Check("daemon", CheckState.MISSING, exc.message, lost, exc.hint)
    agents = status.ingest.clients
    found = f"{status.version}, process {status.pid}, {agents} agents, on {default_control_path()}"
    if status.version != gpucorrelate.__version__:
        return Check(
            "daemon",
            CheckState.DEGRADED,
            found,
            f"it is of another version than this command ({gpucorrelate.__version__})",
            "sudo systemctl restart gpucorrelate",
        )
    return ok("daemon", found)


def _engine(engines: Sequence[Process]) -> list[Check]:
    shown = ", ".join(f"{p.pid} {p.stat.comm}" for p in engines[:_SHOWN])
    more = f" and {len(engines) - _SHOWN} more" if len(engines) > _SHOWN else ""
    return [
        _agent(),
        engine_environment(os.environ, {p.pid: _environment(p.pid) for p in engines}),
        ok("engine.processes", f"{shown}{more}" if engines else "none runs"),
    ]


_NO_AGENT = "requests, steps and who is who in the engine; only OS waits are left"


def _agent() -> Check:
    if _spec("vllm") is None:
        return Check(
            "engine.agent",
            CheckState.DEGRADED,
            "vLLM is not in this Python environment",
            f"{_NO_AGENT}, unless the engine's own environment has the agent",
            "pip install gpucorrelate in the engine's environment",
        )
    if not _registered():
        return Check(
            "engine.agent",
            CheckState.MISSING,
            "vLLM is here, but gpucorrelate is not registered as a plugin of it",
            _NO_AGENT,
            "pip install gpucorrelate in this environment",
        )
    return ok("engine.agent", f"plugin for vLLM {_version('vllm')}")


def engine_environment(
    here: Mapping[str, str], engines: Mapping[int, Mapping[str, str] | None]
) -> Check:
    """Whether a variable keeps the agent from running, here or in running engines. Pure.

    Args:
        here: Variables of this process, which an engine started from the same shell gets too.
        engines: Variables of running engines, by process; None where they cannot be read.
    """
    name = "engine.environment"
    found = [f"{why} here"] if (why := _switched_off(here)) else []
    found += [
        f"{why} in process {pid}"
        for pid, variables in engines.items()
        if variables is not None and (why := _switched_off(variables))
    ]
    if found:
        return Check(
            name,
            CheckState.DEGRADED,
            "; ".join(found),
            f"in an engine started so: {_NO_AGENT}",
            f"unset {DISABLE_VARIABLE}, or add gpucorrelate to {_ALLOWED}; then start the engine "
            "again",
        )
    unread = [pid for pid, variables in engines.items() if variables is None]
    if unread:
        return Check(
            name,
            CheckState.DEGRADED,
            f"that of process {', '.join(map(str, unread[:_SHOWN]))} cannot be read",
            f"whether {DISABLE_VARIABLE} is set there",
            "sudo gpucorrelate check",
        )
    count = "process" if len(engines) == 1 else "processes"
    where = f"here or in {len(engines)} running {count}" if engines else "here"
    return ok(name, f"nothing switches the agent off {where}")


def _switched_off(variables: Mapping[str, str]) -> str:
    """Which variable keeps the agent from running, and how; empty if none does."""
    if variables.get(DISABLE_VARIABLE, "") not in ("", "0"):
        return f"{DISABLE_VARIABLE} is set"
    allowed = variables.get(_ALLOWED)
    if allowed is not None and "gpucorrelate" not in allowed.split(","):
        return f"{_ALLOWED} leaves gpucorrelate out"
    return ""


def _environment(pid: int) -> dict[str, str] | None:
    """The variables of ours and vLLM's that a process was started with."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (one.partition(b"=") for one in data.split(b"\0"))
    return {
        name: value.decode("utf-8", "replace")
        for key, _, value in pairs
        if (name := key.decode("utf-8", "replace")) in (DISABLE_VARIABLE, _ALLOWED)
    }


def _spec(name: str) -> object | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _registered() -> bool:
    points = importlib.metadata.entry_points(group=_PLUGINS)
    return any(point.name == "gpucorrelate" for point in points)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
