# SPDX-License-Identifier: Apache-2.0
"""What the daemon cost over a run: CPU, memory, and time in its BPF programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucorrelate.daemon.overhead import between

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucorrelate.daemon.overhead import ProgramCost
    from tests.soak.samples import Sample

_MIB = 1 << 20


@dataclass
class Cost:
    """CPU time and BPF run time, added up over the times that a session ran.

    Attributes:
        attached_s: How long that was.
        attached_cpu_s: CPU time of the daemon meanwhile.
        idle_s: How long no session ran.
        idle_cpu_s: CPU time of the daemon then, the ends of sessions included.
        engine_cpu_s: CPU time of the engine while a session ran.
        programs: Runs and nanoseconds by program, while a session ran.
    """

    attached_s: float = 0.0
    attached_cpu_s: float = 0.0
    idle_s: float = 0.0
    idle_cpu_s: float = 0.0
    engine_cpu_s: float = 0.0
    runs: Counter[str] = field(default_factory=Counter)
    run_ns: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)

    def add_programs(
        self, before: tuple[ProgramCost, ...], after: tuple[ProgramCost, ...]
    ) -> None:
        """What the programs did between two readings of one session."""
        for one in between(before, after):
            self.runs[one.name] += one.runs
            self.run_ns[one.name] += one.run_ns
            self.missed[one.name] += one.missed

    def lines(self, samples: Sequence[Sample], parts: Iterable[tuple[str, float]]) -> list[str]:
        """The report: one line each.

        Args:
            samples: All samples of the run.
            parts: Parts of the daemon's work and their shares of its CPU time.
        """
        attached = self.attached_cpu_s / max(self.attached_s, 1e-9)
        idle = self.idle_cpu_s / max(self.idle_s, 1e-9)
        bpf_s = self.run_ns.total() / 1e9
        engine = self.engine_cpu_s / max(self.attached_s, 1e-9)
        most = max(sample.rss_bytes for sample in samples)
        kernel = max(sample.bpf_bytes for sample in samples)
        found = [
            f"daemon while it records  {attached:8.2%} of one CPU, beside {engine:.0%} of the "
            "engine",
            f"daemon between sessions  {idle:8.2%} of one CPU",
            f"BPF programs             {bpf_s / max(self.attached_s, 1e-9):8.2%} of one CPU, in "
            "the traced threads' own time",
            f"memory                   {most / _MIB:8.1f} MiB at most, and "
            f"{kernel / _MIB:.1f} MiB of the kernel's for BPF",
            "daemon's CPU time by     " + ", ".join(f"{name} {part:.0%}" for name, part in parts),
            "",
            f"{'BPF program':18} {'runs':>13} {'ns a run':>9} {'% of a CPU':>10} {'missed':>7}",
        ]
        for name, run_ns in self.run_ns.most_common():
            share = run_ns / 1e9 / max(self.attached_s, 1e-9)
            each = run_ns / self.runs[name]
            found.append(
                f"{name:18} {self.runs[name]:>13,} {each:>9,.0f} {share:>10.3%} "
                f"{self.missed[name]:>7,}"
            )
        return found
