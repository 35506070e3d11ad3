# SPDX-License-Identifier: Apache-2.0
"""The programs on this kernel: they load and attach, and what it lacks is told."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpucorrelate.probes.ebpf import support
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
from gpucorrelate.probes.wire.schema import CapabilityState
from tests.qemu.inside.kit import BACKEND, keep

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_CAPABILITIES = "bpf,+perfmon,+sys_resource"

#: Starts the tracer with few capabilities and says what it lacks.
_MODEST = """
import json, sys
from gpucorrelate.probes.ebpf.tracer import Tracer, TracerConfig
tracer = Tracer.start(TracerConfig(backend=sys.argv[1]))
print(json.dumps({one.source: [int(one.state), one.reason] for one in tracer.capabilities()}))
tracer.stop()
"""


def test_facts_and_what_follows_from_them() -> None:
    found = support.facts(backend=BACKEND)
    keep("facts", dataclasses.asdict(found) | {"symbols": sorted(found.symbols)})
    follows = support.decide(found, backend=BACKEND)
    keep("support", dataclasses.asdict(follows))
    assert follows.usable, follows.missing


def test_every_program_loads_and_attaches() -> None:
    follows = support.decide(support.facts(backend=BACKEND), backend=BACKEND)
    tracer = Tracer.start(TracerConfig(backend=BACKEND))
    try:
        assert BACKEND in ("auto", tracer.backend)
        keep("backend", tracer.backend)
        if follows.spins:
            tracer.set_yields(on=True)
        attached = set(tracer.stats().programs)
        states = {one.source: one for one in tracer.capabilities()}
    finally:
        tracer.stop()
    wanted = set(follows.programs) - {support.WALK_PROGRAM}
    if follows.spins:
        wanted.add(support.SPIN_PROGRAM)
    assert attached == wanted
    keep("attached", sorted(attached))
    lacks = {item.what for item in follows.missing}
    for source, found in states.items():
        if source != "ebpf.sched":  # which also tells of what was seen
            assert (found.state is CapabilityState.ON) == (source not in lacks), found


def _modest() -> dict[str, tuple[int, str]]:
    """What a tracer with the capabilities that the README names says it lacks."""
    limits = [f"--{which}-caps=-all,+{_CAPABILITIES}" for which in ("bounding-set", "inh")]
    limits[0] = limits[0].replace("-caps", "")
    command = ["setpriv", *limits, sys.executable, "-c", _MODEST, BACKEND]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


def test_debians_level_of_paranoia_costs_the_end_of_faults_and_no_more() -> None:
    before = _PARANOID.read_text()
    if int(before) <= 2:
        pytest.fail(f"not Debian's: perf_event_paranoid is {before}")
    strict = _modest()
    try:
        _PARANOID.write_text("2")
        relaxed = _modest()
    finally:
        _PARANOID.write_text(before)
    lost = {source for source, told in strict.items() if told != relaxed.get(source)}
    assert lost == {"ebpf.faults"}
    state, why = strict["ebpf.faults"]
    assert state == CapabilityState.DEGRADED
    assert "perf_event_paranoid" in why
    assert "perf_event_paranoid" not in relaxed["ebpf.faults"][1]
