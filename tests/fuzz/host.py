# SPDX-License-Identifier: Apache-2.0
"""What the host says: /proc, cgroups, pressure, NUMA, nvidia-smi, an engine's metrics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.host import (
    cgroup_paths,
    cgroup_v1,
    cgroup_v2,
    engine_metrics,
    engine_scrape,
    gpu_smi,
    listening,
    numa,
    placement,
    procfs,
    psi,
    thread_text,
)
from tests.fuzz.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_I64 = 1 << 63


@dataclass(frozen=True)
class _Parser:
    """A parser, what it raises where it says so, and a text as it takes."""

    parse: Callable[[str], Any]
    seed: str
    raises: tuple[type[Exception], ...] = ()


_STAT = "12 (a b) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 999 1 2 3" + " 0" * 28
_STATUS = (
    "Name:\ta b\nTgid:\t12\nUid:\t0\t0\t0\t0\nNStgid:\t12\nNSpid:\t12\nCapEff:\t00000000a80425fb\n"
    "Cpus_allowed_list:\t0-3,7\nMems_allowed_list:\t0\nvoluntary_ctxt_switches:\t5\n"
    "nonvoluntary_ctxt_switches:\t6\n"
)
_TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
    "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 77 1\n"
)

PROC = (
    _Parser(procfs.parse_stat, _STAT, (ValueError,)),
    _Parser(procfs.parse_status, _STATUS, (ValueError,)),
    _Parser(lambda text: procfs.command_line(procfs.parse_argv(text.encode())),
            "vllm\0serve\0--api-key\0secret\0--port=80\0"),
    _Parser(thread_text.parse_schedstat, "1 2 3\n"),
    _Parser(thread_text.parse_task_stat, _STAT),
    _Parser(thread_text.parse_switches, _STATUS),
    _Parser(thread_text.parse_wchan, "folio_wait_bit_common"),
    _Parser(placement.parse_affinity, _STATUS),
    _Parser(listening.parse_tcp, _TCP),
    _Parser(numa.parse_ids, "0-1,3\n"),
    _Parser(lambda text: numa.parse_distances(text, (0, 1)), "10 21\n"),
    _Parser(numa.parse_numastat, "numa_hit 12\nnuma_miss 0\n"),
    _Parser(numa.parse_node_meminfo, "Node 0 MemTotal:  12 kB\n"),
    _Parser(numa.parse_node, "-1\n"),
    *(
        _Parser(partial(psi.parse_pressure, resource=name, machine=machine),
                "some avg10=0.12 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 "
                "avg300=0.00 total=9\n")
        for name in ("cpu", "memory", "io", "irq") for machine in (False, True)
    ),
)  # fmt: skip

CGROUP = (
    *(
        _Parser(file.parse, seed)
        for file in (*cgroup_v1.FILES, *cgroup_v2.FILES)
        for seed in ("5\n",)
    ),
    _Parser(cgroup_v2.parse_cpu_max, "max 100000\n"),
    _Parser(cgroup_v2.parse_io_stat, "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"),
    _Parser(cgroup_v2.parse_io_weight, "default 100\n8:0 50\n"),
    _Parser(cgroup_v1.parse_service_bytes, "8:0 Read 4096\n8:0 Write 1\nTotal 9\n"),
    _Parser(cgroup_paths.parse_proc_cgroup, "3:cpu,cpuacct:/a:b c\n1:name=systemd:/\n0::/../x\n"),
    _Parser(cgroup_paths.parse_mountinfo,
            "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
            "31 24 0:27 / /a\\040b rw - cgroup cgroup rw,cpu,cpuacct\n"),
    _Parser(lambda text: cgroup_paths.below(*(text.split("\n", 1) * 2)[:2]), "/a\n/a/b"),
)  # fmt: skip

SMI = (
    _Parser(lambda text: gpu_smi.parse_csv(text, 3), "0, GPU-1, 5 %\n"),
    _Parser(gpu_smi.parse_value, "12.5 W"),
    _Parser(gpu_smi.refused_field, 'Field "clocks.x" is not a valid field to query.\n'),
    _Parser(gpu_smi.parse_identity, "0, GPU-1, NVIDIA H100, 00000000:01:00.0\n"),
    _Parser(lambda text: gpu_smi.parse_gpus(text, gpu_smi.FIELDS, 1), "0, 5 %, 3\n"),
    _Parser(lambda text: gpu_smi.parse_processes(text, 1), "GPU-1, 77, 12 MiB\n"),
)

_METRICS = (
    "# HELP vllm:num_requests_running n\n# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{engine="0",model_name="a\\"b"} 3.0\n'
    'vllm:generation_tokens_total{engine="0",model_name="m"} 5e3 1700000000\n'
    'vllm:prompt_tokens_total{engine="1"} NaN\n'
)


def _told(parser: _Parser, text: str) -> None:
    try:
        found = parser.parse(text)
    except parser.raises:
        return
    numbers = [value.value for value in getattr(found, "values", ())]
    assert all(-_I64 <= number < _I64 for number in numbers), numbers
    problems = getattr(found, "problems", ())
    assert sum(map(len, problems)) < 1000, "what is wrong is told in a few words"


def _any_of(parsers: tuple[_Parser, ...], data: bytes) -> None:
    if data:
        _told(parsers[data[0] % len(parsers)], data[1:].decode("utf-8", "replace"))


def _seeds(parsers: tuple[_Parser, ...]) -> Iterator[bytes]:
    for at, parser in enumerate(parsers):
        yield bytes([at]) + parser.seed.encode()


def metrics(data: bytes) -> None:
    """An engine's answer is numbers and problems, whatever it says."""
    found = engine_metrics.parse_metrics(data.decode("utf-8", "replace"))
    for reading in engine_metrics.engine_readings("a", found, 1):
        assert -_I64 <= reading.value < _I64
    body = engine_scrape.parse_response(data)
    assert isinstance(body, bytes | str)
    assert len(body) <= len(data) + 200


def metrics_seeds() -> Iterator[bytes]:
    """Text alone, and whole answers."""
    text = _METRICS.encode()
    yield text
    yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nvllm:\r\n0\r\n\r\n"
    yield b"HTTP/1.1 503 No\r\n\r\n"


_NAMES = tuple(name.encode() for name in engine_metrics.NAMES)

TARGETS = (
    Target("proc", partial(_any_of, PROC), partial(_seeds, PROC),
           (b"Tgid:\t", b"CapEff:\t", b"Uid:\t", b"NSpid:\t", b"some avg10=", b"total=", b" kB")),
    Target("cgroup", partial(_any_of, CGROUP), partial(_seeds, CGROUP),
           (b"max", b"usage_usec ", b"default ", b"rbytes=", b" - cgroup2 ", b"\\040", b"8:0 ")),
    Target("smi", partial(_any_of, SMI), partial(_seeds, SMI), (b"[N/A]", b" MiB", b"GPU-")),
    Target("metrics", metrics, metrics_seeds,
           (*_NAMES[:20], b'{engine="', b'"} ', b"NaN", b"+Inf", b"HTTP/1.1 200 OK\r\n",
            b"Transfer-Encoding: chunked\r\n", b"Content-Length: ")),
)  # fmt: skip
