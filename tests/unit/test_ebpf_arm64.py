# SPDX-License-Identifier: Apache-2.0
"""arm64, as far as another machine can tell: it compiles, and what it lacks is known."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpucorrelate.probes.ebpf import bpf, build, decode, support, syscall_kinds
from gpucorrelate.probes.ebpf.bcc import FoundBcc
from gpucorrelate.probes.ebpf.bpf import BpfObject
from gpucorrelate.probes.ebpf.support import KernelFacts, decide
from gpucorrelate.probes.ebpf.syscall_numbers import (
    ARM64,
    ARM64_TO_X86_64,
    SAME_FROM,
    UNKNOWN,
    X86_64,
    own,
)
from gpucorrelate.probes.wire.schema import WaitKind

if TYPE_CHECKING:
    from collections.abc import Mapping

KERNELS = Path(__file__).parent / "data" / "kernels"
needs_clang = pytest.mark.skipif(
    shutil.which("clang") is None or not build.include_paths(), reason="needs clang and libbpf-dev"
)
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def recorded(series: str) -> KernelFacts:
    """What Debian's kernel of that series for arm64 says in its image."""
    found = json.loads((KERNELS / f"arm64-{series}.json").read_text())
    return KernelFacts(**found | {"symbols": frozenset(found["symbols"])})


@needs_clang
def test_the_same_programs_compile_for_both(tmp_path: Path) -> None:
    if bpf.library_version() is None:
        pytest.skip("libbpf.so.1 is not installed")
    names = {}
    for machine, arch in build.ARCHES.items():
        folder = tmp_path / arch
        folder.mkdir()
        made = build.compile_object(build.HERE / "gpucorrelate.bpf.c", folder, arch)
        loaded = BpfObject(made)
        names[machine] = set(loaded.programs())
        loaded.close()
    assert names[ARM64] == names[X86_64] >= {"wait_switch", "wait_waking", "spin_syscall"}


@pytest.mark.parametrize("series", ["6.1", "6.12"])
def test_waits_are_traced_and_faults_are_not(series: str) -> None:
    facts = recorded(series)
    assert facts.machine == ARM64
    assert not {"page_fault_user", "page_fault_kernel"} & facts.symbols
    found = decide(facts)
    assert found.usable and found.spins
    assert {"wait_switch", "wait_waking", *support.CONTEXT_PROGRAMS} <= set(found.programs)
    assert not [name for name in found.programs if name.startswith("fault_")]
    (missing,) = found.missing
    assert (missing.what, missing.fatal) == ("ebpf.faults", False)
    assert "arm64" in missing.why


def test_bcc_is_told_of_as_what_it_is_there() -> None:
    bcc = FoundBcc("/usr/lib/python3/dist-packages/bcc", "0.26.0")
    facts = KernelFacts(**vars(recorded("6.12")) | {"bcc": bcc})
    (fatal,) = [item for item in decide(facts, backend="bcc").missing if item.fatal]
    assert "aarch64 by way of bcc" in fatal.why
    assert "libbpf" in fatal.mend


def _header(name: str, flags: tuple[str, ...] = ()) -> Mapping[str, int]:
    """Names and numbers in a header of the kernel's."""
    said = subprocess.run(
        ["cc", "-dM", "-E", *flags, "-"],
        input=f"#include <{name}>\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode:
        pytest.skip(f"no {name}: {said.stderr.splitlines()[0]}")
    raw = dict(re.findall(r"^#define (__NR\w+) (\w+)$", said.stdout, re.MULTILINE))
    found = {}
    for key, value in raw.items():
        while value in raw:
            value = raw[value]
        if key.startswith("__NR_") and value.isdigit():
            found[key.removeprefix("__NR_")] = int(value)
    return found


@pytest.fixture
def arm64() -> Mapping[str, int]:
    return _header("asm-generic/unistd.h", ("-D__BITS_PER_LONG=64",))


@pytest.fixture
def x86_64() -> Mapping[str, int]:
    return _header("asm/unistd_64.h")


@needs_cc
def test_every_number_is_the_headers(arm64: Mapping[str, int], x86_64: Mapping[str, int]) -> None:
    both = {(number, x86_64[name]) for name, number in arm64.items() if name in x86_64}
    assert {pair for pair in both if pair[0] < SAME_FROM} == set(ARM64_TO_X86_64)
    assert all(theirs == ours for theirs, ours in both if theirs >= SAME_FROM)
    for name in ("read", "bpf", "perf_event_open"):
        assert (own(name, ARM64), own(name, X86_64)) == (arm64[name], x86_64[name])


@needs_cc
def test_every_wait_is_of_the_same_kind(
    arm64: Mapping[str, int], x86_64: Mapping[str, int]
) -> None:
    names = {number: name for name, number in arm64.items()}
    theirs = {names[call.number]: call.kind for call in syscall_kinds.arm64() if
              call.number in names}  # fmt: skip
    kinds = {call.number: call.kind for call in syscall_kinds.SYSCALLS}
    assert len(theirs) > 25
    assert {"futex", "ppoll", "epoll_pwait", "pselect6", "read", "nanosleep"} <= theirs.keys()
    for name, kind in theirs.items():
        assert kinds[x86_64[name]] is kind, name
    assert theirs["futex"] is WaitKind.FUTEX


@needs_cc
def test_the_programs_own_numbers_are_the_headers(arm64: Mapping[str, int]) -> None:
    text = (build.HERE / "syscalls.bpf.h").read_text()
    part = text.partition("defined(__TARGET_ARCH_arm64)")[2].partition("#endif")[0]
    used = dict(re.findall(r"#define NR_(\w+) (\d+)", part))
    assert set(used) == set(re.findall(r"NR_([A-Z_]+)", text.partition("#endif")[0]))
    for name, number in used.items():
        assert arm64.get(name.lower(), int(number)) == int(number), name


def test_events_have_the_numbers_of_x86_64() -> None:
    theirs = np.array([-2, -1, 98, 63, 64, 441, 455, 244], "<i2")
    assert decode.as_x86_64(theirs, ARM64).tolist() == [-2, -1, 202, 0, 1, 441, 455, UNKNOWN + 244]
    assert decode.as_x86_64(theirs, X86_64) is theirs
