# SPDX-License-Identifier: Apache-2.0
"""What follows from a host's facts: which programs load, what is lost, how to mend it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.ebpf import support
from gpucorrelate.probes.ebpf.bcc import FoundBcc
from gpucorrelate.probes.ebpf.support import KernelFacts, decide

if TYPE_CHECKING:
    from pathlib import Path

TRACEPOINTS = frozenset(
    {
        "sched_switch", "sched_waking", "sched_process_fork", "sched_process_exit",
        "sched_process_exec", "task_rename", "hrtimer_expire_entry", "hrtimer_expire_exit",
        "timer_expire_entry", "timer_expire_exit", "softirq_entry", "softirq_exit",
        "irq_handler_entry", "irq_handler_exit", "page_fault_user", "page_fault_kernel",
        "mm_filemap_fault", "sys_enter", "bpf_iter__task", "bpf_task_pt_regs",
        "bpf_get_current_task_btf",
    }
)  # fmt: skip
ALL_CAPABILITIES = (1 << 41) - 1
CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 1 << 21, 1 << 38, 1 << 39

GOOD = KernelFacts(
    machine="x86_64",
    release="6.12.0",
    btf=True,
    symbols=TRACEPOINTS,
    capabilities=ALL_CAPABILITIES,
    perf_event_paranoid=2,
    initial_pid_ns=True,
    lockdown="none",
    libbpf="v1.1",
    object_built=True,
)


def without(*names: str) -> KernelFacts:
    return dataclasses.replace(GOOD, symbols=TRACEPOINTS - set(names))


def test_a_good_host_lacks_nothing() -> None:
    found = decide(GOOD)
    assert found.usable and found.spins and found.missing == ()
    assert {"wait_switch", "wait_waking", "walk_tasks", "fault_major"} <= set(found.programs)
    # It sees every syscall of the machine: never attached unless asked for.
    assert "spin_syscall" not in found.programs


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (dataclasses.replace(GOOD, machine="riscv64"), "riscv64"),
        (dataclasses.replace(GOOD, btf=False), "BTF"),
        (dataclasses.replace(GOOD, libbpf=None), "libbpf"),
        (dataclasses.replace(GOOD, object_built=False), "not compiled"),
        (dataclasses.replace(GOOD, capabilities=0), "CAP_BPF"),
        (dataclasses.replace(GOOD, capabilities=CAP_BPF), "CAP_PERFMON"),
        (dataclasses.replace(GOOD, lockdown="confidentiality"), "lockdown"),
        (without("sched_waking"), "sched_waking"),
        (without("bpf_task_pt_regs"), "bpf_task_pt_regs"),
    ],
)
def test_what_nothing_works_without(facts: KernelFacts, why: str) -> None:
    found = decide(facts)
    assert not found.usable
    fatal = [item for item in found.missing if item.fatal]
    assert len(fatal) == 1
    assert why in fatal[0].why


BCC = FoundBcc("/usr/lib/python3/dist-packages/bcc", "0.26.0")


@pytest.mark.parametrize(
    ("facts", "asked", "taken"),
    [
        (GOOD, "auto", "libbpf"),
        (dataclasses.replace(GOOD, bcc=BCC), "auto", "libbpf"),
        (dataclasses.replace(GOOD, bcc=BCC), "bcc", "bcc"),
        (dataclasses.replace(GOOD, bcc=BCC, libbpf=None), "auto", "bcc"),
        (dataclasses.replace(GOOD, bcc=BCC, object_built=False), "auto", "bcc"),
        (dataclasses.replace(GOOD, bcc=BCC, object_built=False, libbpf=None), "bcc", "bcc"),
    ],
)
def test_which_backend_is_taken(facts: KernelFacts, asked: str, taken: str) -> None:
    found = decide(facts, backend=asked)
    assert found.usable
    assert found.backend == taken
    # The same programs, whoever loads them.
    assert found.programs == decide(GOOD).programs


@pytest.mark.parametrize(
    ("facts", "asked", "why"),
    [
        (GOOD, "bcc", "BCC is not installed"),
        (dataclasses.replace(GOOD, libbpf=None), "auto", "libbpf.so.1"),
        (dataclasses.replace(GOOD, bcc=BCC, libbpf=None), "libbpf", "libbpf.so.1"),
        (dataclasses.replace(GOOD, bcc=BCC, btf=False), "bcc", "BTF"),
    ],
)
def test_a_backend_that_was_asked_for_is_not_swapped(
    facts: KernelFacts, asked: str, why: str
) -> None:
    found = decide(facts, backend=asked)
    (fatal,) = [item for item in found.missing if item.fatal]
    assert why in fatal.why and fatal.mend


def test_root_is_not_needed_with_two_capabilities() -> None:
    assert decide(dataclasses.replace(GOOD, capabilities=CAP_BPF | CAP_PERFMON)).usable


def test_debians_paranoia_costs_the_end_of_faults_only() -> None:
    strict = dataclasses.replace(GOOD, perf_event_paranoid=3, capabilities=CAP_BPF | CAP_PERFMON)
    found = decide(strict)
    assert found.usable
    assert "fault_user" in found.programs
    assert not {"fault_minor", "fault_major"} & set(found.programs)
    (item,) = found.missing
    assert item.what == "ebpf.faults" and "perf_event_paranoid=2" in item.mend
    # CAP_SYS_ADMIN is above the sysctl.
    assert decide(dataclasses.replace(GOOD, perf_event_paranoid=3)).missing == ()


def test_half_a_pair_of_context_marks_is_not_attached() -> None:
    found = decide(without("softirq_exit"))
    assert found.usable
    assert not [name for name in found.programs if name.startswith("context_")]
    assert [item.what for item in found.missing] == ["ebpf.context"]


def test_faults_can_be_missing_in_part_or_whole_or_not_wanted() -> None:
    no_file = decide(without("mm_filemap_fault"))
    assert "fault_major" in no_file.programs and "fault_file" not in no_file.programs
    assert [item.what for item in no_file.missing] == ["ebpf.faults"]
    none = decide(without("page_fault_user"))
    assert not [name for name in none.programs if name.startswith("fault_")]
    unwanted = decide(GOOD, faults=False)
    assert unwanted.missing == ()
    assert not [name for name in unwanted.programs if name.startswith("fault_")]


def test_other_losses_are_named() -> None:
    inner = decide(dataclasses.replace(GOOD, initial_pid_ns=False))
    assert inner.usable and [item.what for item in inner.missing] == ["ebpf.pidns"]
    no_spins = decide(without("sys_enter"))
    assert not no_spins.spins and [item.what for item in no_spins.missing] == ["ebpf.spins"]


def test_names_are_found_in_a_string_table_whole() -> None:
    blob = b"\x9f\xeb\0btf_trace_sched_switch\0btf_trace_sched_waking_x\0bpf_task_pt_regs\0"
    assert support.known_symbols(blob) == {"sched_switch", "bpf_task_pt_regs"}
    assert support.known_symbols(b"") == frozenset()


def test_texts_of_proc_and_sys() -> None:
    assert support.parse_capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n") == ALL_CAPABILITIES
    assert support.parse_capabilities("") == 0
    assert support.parse_lockdown("none integrity [confidentiality]\n") == "confidentiality"
    assert support.parse_lockdown("") == ""


def test_facts_of_a_bare_root(tmp_path: Path) -> None:
    found = support.facts(tmp_path)
    assert not found.btf
    assert found.capabilities == 0
    assert found.perf_event_paranoid is None
    assert found.initial_pid_ns is None


def test_facts_of_a_made_up_root(tmp_path: Path) -> None:
    for name, content in {
        "sys/kernel/btf/vmlinux": "\0btf_trace_sched_switch\0",
        "proc/sys/kernel/perf_event_paranoid": "-1\n",
        "proc/sys/kernel/osrelease": "6.1.0-test\n",
        "proc/self/status": "CapEff:\t0000000000000001\n",
        "sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "proc/self/ns").mkdir()
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532000]")
    found = support.facts(tmp_path)
    assert found.btf and found.symbols == {"sched_switch"}
    assert (found.release, found.perf_event_paranoid) == ("6.1.0-test", -1)
    assert (found.capabilities, found.lockdown, found.initial_pid_ns) == (1, "none", False)


def test_a_source_has_all_its_reasons_and_each_once() -> None:
    first = support.Missing("ebpf.faults", "no file", "")
    second = support.Missing("ebpf.faults", "refused", "sysctl")
    other = support.Missing("ebpf.pidns", "inside", "")
    assert support.reasons((first, second, other, second, first)) == {
        "ebpf.faults": "no file; refused; sysctl", "ebpf.pidns": "inside"
    }  # fmt: skip
    facts = dataclasses.replace(
        without("mm_filemap_fault"), perf_event_paranoid=3, capabilities=CAP_BPF | CAP_PERFMON
    )
    told = support.reasons(decide(facts).missing)["ebpf.faults"]
    assert "mm_filemap_fault" in told and "perf_event_paranoid=3" in told
