# SPDX-License-Identifier: Apache-2.0
"""Lab mode on records as cupti-python hands them out, its own classes where they are there."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gpucorrelate.probes.agents.cupti.lab import CAUTION, Lab, make_lab
from gpucorrelate.probes.agents.cupti.shim import ShimError
from gpucorrelate.probes.wire.frame import StringTable
from gpucorrelate.probes.wire.schema import BY_NAME
from tests.unit.cupti_records import Buffer

VERSION = 130_500


def without_library() -> Lab:
    """Lab mode that is handed records and asks CUPTI for nothing."""
    return Lab(cast("Any", None), VERSION)


@dataclass(frozen=True)
class Record:
    """A record's attributes, as the package names them."""

    kind: int
    start: int = 0
    end: int = 0
    name: str = ""
    device_id: int = 0
    context_id: int = 0
    stream_id: int = 0
    correlation_id: int = 0
    graph_id: int = 0
    graph_node_id: int = 0
    bytes: int = 0
    copy_kind: int = 0
    cbid: int = 0
    thread_id: int = 0
    type: int = 0
    cuda_event_id: int = 0


def decoded(lab: Lab, name: str) -> list[dict[str, Any]]:
    """Rows through the wire's own columns, so that a value that does not fit is found."""
    rows = lab.rows(name).take()
    count, _ = lab.rows(name).columns(rows, StringTable())
    assert count == len(rows), "none was refused for its values"
    names = [column.name for column in BY_NAME[name].columns]
    return [dict(zip(names, row, strict=True)) for row in rows]


RECORDS = (
    Record(10, 100, 200, "gemm", 3, 5, 13, 11, 2, 8),
    Record(1, 210, 220, device_id=3, context_id=5, correlation_id=12, bytes=4096, copy_kind=1),
    Record(2, 230, 240, device_id=3, context_id=5, correlation_id=13, bytes=64),
    Record(51, 250, 300, device_id=3, context_id=5, correlation_id=14, graph_id=6),
    Record(5, 90, 95, correlation_id=11, cbid=211, thread_id=78),
    Record(4, 91, 94, correlation_id=11, cbid=9999, thread_id=78),
    Record(38, 310, 320, context_id=5, stream_id=(1 << 32) - 1, correlation_id=16, type=3),
    Record(17),
)


def test_records_become_rows() -> None:
    lab = without_library()
    lab._offset_ns = 1000
    lab.completed(RECORDS)
    kernel, copy, fill, graph = decoded(lab, "gpu_op")
    assert (kernel["name"], kernel["device"], kernel["gpu_stream"]) == ("gemm", 3, 13)
    assert (kernel["correlation"], kernel["graph"], kernel["graph_node"]) == (11, 2, 8)
    assert (kernel["start_ns"], kernel["end_ns"]) == (1100, 1200)
    assert (copy["op"], copy["name"], copy["bytes"], copy["copy"]) == (2, "Memcpy HTOD", 4096, 1)
    assert (fill["op"], fill["bytes"], fill["correlation"]) == (3, 64, 13)
    assert (graph["op"], graph["name"], graph["graph"]) == (1, "CUDA graph", 6)
    launch, driver = decoded(lab, "cuda_api")
    assert (launch["name"], launch["api"], launch["tid"]) == ("call 211", 1, 78)
    assert (driver["name"], driver["api"]) == ("call 9999", 2)
    (sync,) = decoded(lab, "gpu_sync")
    assert (sync["sync"], sync["device"], sync["correlation"]) == (3, 3, 16)
    assert sync["gpu_stream"] == (1 << 64) - 1, "none"
    assert lab.counts().records == len(RECORDS)
    assert "lab mode" in CAUTION


def test_without_the_package_it_says_what_is_needed() -> None:
    if importlib.util.find_spec("cupti") is not None:
        pytest.skip("cupti-python is installed")
    with pytest.raises(ShimError, match="needs cupti-python beside the engine"):
        make_lab()


def test_the_packages_own_classes_have_these_attributes() -> None:
    """NVIDIA's classes on records made by hand; needs cupti-python, no GPU."""
    cupti = pytest.importorskip("cupti.cupti")
    lab = without_library()
    made = []
    for cls, buffer in (
        (cupti.ActivityKernel13, Buffer().kernel(0, 100, 200, correlation=11, device=3, context=5,
                                                 stream=13, graph=2, node=8)),
        (cupti.ActivityMemcpy7, Buffer().copy(1, 4096, 210, 220, correlation=12)),
        (cupti.ActivityMemset5, Buffer().fill(64, 230, 240, correlation=13)),
        (cupti.ActivityGraphTrace2, Buffer().graph(250, 300, correlation=14, graph=6)),
        (cupti.ActivityAPI, Buffer().call(5, 211, 90, 95, tid=78, correlation=11)),
        (cupti.ActivitySynchronization2, Buffer().sync(3, 310, 320, correlation=16, context=5,
                                                        stream=13)),
    ):  # fmt: skip
        made.append(cls.from_buffer(bytes(buffer.data)))
    lab.completed(made)
    names = {name: decoded(lab, name) for name in ("gpu_op", "cuda_api", "gpu_sync")}
    kernel, copy, fill, graph = names["gpu_op"]
    assert (kernel["device"], kernel["gpu_stream"], kernel["correlation"]) == (3, 13, 11)
    assert (kernel["graph"], kernel["graph_node"]) == (2, 8)
    assert (copy["bytes"], copy["copy"]) == (4096, 1)
    assert (fill["bytes"], graph["graph"]) == (64, 6)
    assert names["cuda_api"][0]["tid"] == 78
    assert names["gpu_sync"][0]["gpu_stream"] == 13
