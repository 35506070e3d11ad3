# SPDX-License-Identifier: Apache-2.0
"""What loads the programs does not matter: by way of libbpf and of BCC the same is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.ebpf import bcc, bcc_object, bpf, btf, selftest, support
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from gpucorrelate.probes.wire.errors import KernelSupportError, SelfTestError
from tests.kernel.observe import ROOT, Seen, at_rest, now_ns, scenario, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_SAME = ("tid", "tgid", "wait_kind", "syscall", "op", "arg", "flags", "waker_tid", "waker_tgid",
         "waker_syscall", "cpu", "ran_tid")  # fmt: skip


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Tracer, Tracer]]:
    made = tuple(Tracer.start(TracerConfig(backend=name)) for name in ("libbpf", "bcc"))
    yield made[0], made[1]
    for one in made:
        one.stop()


@pytest.mark.bcc
@pytest.mark.parametrize("name", ["pthread_mutex", "condition", "epoll", "file_reader", "sleeps"])
def test_both_see_the_same_of_the_same_process(both: tuple[Tracer, Tracer], name: str) -> None:
    seen = [Seen(one) for one in both]
    arguments = (200, 100) if name == "sleeps" else ()
    with scenario(name, *arguments) as made:
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its line")
        for one in both:
            one.add_target(made.pid)
        begun = now_ns()
        made.go()
        made.truth()
        wait_until(lambda: at_rest(made.pid), "the scenario waits for its end")
        for drained in seen:
            drained.drain()
        for one in both:
            one.remove_target(made.pid)
    assert not any(drained.losses for drained in seen)
    libbpf, other = (
        sorted(
            (row for row in one.get("wait", tgid=made.pid) if row.start_ns >= begun),
            key=lambda row: (row.tid, row.start_ns),
        )
        for one in seen
    )
    assert [[row.values[key] for key in _SAME] for row in libbpf] == [
        [row.values[key] for key in _SAME] for row in other
    ]
    assert len(libbpf) >= 1
    for row, same in zip(libbpf, other, strict=True):
        # Their clocks are read one after the other at the same switch and the same wake.
        assert row.start_ns <= same.end_ns and same.start_ns <= row.end_ns
        assert bool(row.wake_ns) == bool(same.wake_ns)
    faults = [len(one.get("fault", tgid=made.pid)) for one in seen]
    assert faults[0] == faults[1]
    assert seen[0].comms(made.pid) == seen[1].comms(made.pid)


def test_without_bcc_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bcc, "SYSTEM_PYTHON", tmp_path / "none")
    with pytest.raises(KernelSupportError) as caught:
        Tracer.start(TracerConfig(backend="bcc"))
    assert "BCC is not installed" in caught.value.message
    assert "apt-get install" in caught.value.hint and "python3-bpfcc" in caught.value.hint


@pytest.mark.bcc
def test_where_libbpf_has_nothing_to_load_bcc_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not a call into libbpf: it may be missing, or older than what we call in it."""
    monkeypatch.setattr(support, "object_path", lambda: tmp_path / "none.bpf.o")
    monkeypatch.setattr(bpf, "_LIB", bpf._Library())
    monkeypatch.setattr(bpf, "_load_library", lambda: None)
    tracer = Tracer.start(TracerConfig(backend="auto", yields=True))
    assert tracer.stats().missed_runs == 0
    tracer.stop()
    assert tracer.backend == "bcc"


@pytest.mark.bcc
def test_a_kernel_laid_out_otherwise_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields read where another kernel has them: BCC compiles that and the kernel loads it."""

    class Shifted(btf.Btf):
        def fields(self, struct_name: str) -> dict[str, btf.Field]:
            found = super().fields(struct_name)
            if struct_name == "task_struct":
                found["pid"], found["__state"] = found["__state"], found["pid"]
            return found

    monkeypatch.setattr(bcc_object, "Btf", Shifted)
    monkeypatch.setattr(selftest, "_TRIES", 2)
    with pytest.raises(SelfTestError):
        Tracer.start(TracerConfig(backend="bcc"))


@pytest.mark.bcc
def test_fields_that_a_kernel_may_lack_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(btf.Btf):
        def fields(self, struct_name: str) -> dict[str, btf.Field]:
            optional = ("cfs_rq", "throttle_count", "throttled_clock_self_time")
            found = super().fields(struct_name)
            return {name: where for name, where in found.items() if name not in optional}

    monkeypatch.setattr(bcc_object, "Btf", Bare)
    Tracer.start(TracerConfig(backend="bcc")).stop()


@pytest.mark.bcc
def test_a_field_that_is_gone_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer(btf.Btf):
        def fields(self, struct_name: str) -> dict[str, btf.Field]:
            found = super().fields(struct_name)
            found.pop("on_cpu", None)
            return found

    monkeypatch.setattr(bcc_object, "Btf", Newer)
    with pytest.raises(KernelSupportError, match=r"struct task_struct has no on_cpu") as caught:
        Tracer.start(TracerConfig(backend="bcc"))
    assert caught.value.hint


@pytest.mark.bcc
def test_the_compiler_is_gone_once_it_has_compiled() -> None:
    """It takes far more memory than the probes, which run for months."""
    before = _mapped()
    tracer = Tracer.start(TracerConfig(backend="bcc"))
    try:
        assert not [name for name in _mapped() - before if "LLVM" in name or "bcc" in name]
        assert "bcc" not in sys.modules
    finally:
        tracer.stop()


def _mapped() -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if "/" in line}


@pytest.mark.bcc
def test_check_says_what_it_checked_with() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from gpucorrelate.cli.main import main; main()", "check",
         "--backend", "bcc", "--format", "json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    checks = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, checks
    found = bcc.find()
    assert found is not None
    assert checks["kernel.bcc"]["found"] == f"BCC {found.version} in {found.folder}"
    assert checks["ebpf.selftest"]["state"] == "ok"
    assert "by way of bcc" in checks["ebpf.selftest"]["found"]
    # What BCC does not need is not asked for.
    assert not {"kernel.libbpf", "kernel.programs"} & set(checks)
