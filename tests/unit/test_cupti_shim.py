# SPDX-License-Identifier: Apache-2.0
"""The GPU agent's shim on buffers made by hand: a test build of it, without NVIDIA's library."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.agents.cupti import shim as shims
from gpucorrelate.probes.agents.cupti.shim import KINDS, Settings, Shim, ShimError, ShimRows
from gpucorrelate.probes.wire import schema
from gpucorrelate.probes.wire.cgen import C_KINDS
from gpucorrelate.probes.wire.frame import StringTable
from tests.unit.cupti_records import SIZES, Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

NATIVE = Path(shims.__file__).parent / "native"
NONE = (1 << 64) - 1
SMALL = Settings(buffer_bytes=64 << 10, buffers=4, chunks=16, version=130500)


def build(out: Path, *flags: str) -> Path:
    """Compile a test build of the shim."""
    sources = [str(path) for path in sorted(NATIVE.glob("*.c"))]
    command = [
        "cc", "-O1", "-g", "-std=c11", "-Wall", "-Wextra", "-Werror", "-DGCU_TEST", "-fPIC",
        "-pthread", "-fvisibility=hidden", *flags, "-shared", "-o", str(out), *sources, "-ldl",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return out


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim") / "shim.so")


class Fed(Shim):
    """A shim that is fed by hand."""

    def __init__(self, library: Path) -> None:
        super().__init__(library)
        self.texts: list[ctypes.Array[ctypes.c_char]] = []
        self.strings = StringTable()

    def name(self, text: bytes) -> int:
        """The address of a text that stays where it is."""
        kept = ctypes.create_string_buffer(text)
        self.texts.append(kept)
        return ctypes.addressof(kept)

    def lend(self) -> tuple[int | None, int]:
        """Address and size of a buffer of the pool."""
        at, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.library.gcu_test_wanted(ctypes.byref(at), ctypes.byref(size))
        return at.value, size.value

    def fill(self, at: int, data: bytes | bytearray) -> None:
        """Complete a buffer that was lent."""
        ctypes.memmove(at, bytes(data), len(data))
        self.library.gcu_test_filled(ctypes.c_void_p(at), ctypes.c_size_t(len(data)))

    def feed(self, data: bytes | bytearray) -> None:
        """A buffer, lent, filled and read."""
        at, size = self.lend()
        assert at is not None
        assert size >= len(data)
        self.fill(at, data)
        self.library.gcu_test_drain()

    def decoded(self, name: str) -> list[dict[str, int | str]]:
        """What waits of a kind, decoded as a reader would."""
        source = ShimRows(self, name)
        count, columns = source.columns(source.take(), self.strings)
        texts = dict(self.strings.take_fresh())
        self.known = getattr(self, "known", {}) | texts
        found: list[dict[str, int | str]] = [{} for _ in range(count)]
        for column, data in zip(source.kind.columns, columns, strict=count > 0):
            for row, value in zip(found, array(column.code, data), strict=True):
                row[column.name] = self.known.get(value, "") if column.ctype == "str" else value
        return found


@pytest.fixture
def shim(library: Path) -> Iterator[Fed]:
    fed = Fed(library)
    fed.open(None, SMALL)
    yield fed
    assert fed.close()


def test_python_and_c_mean_the_same_kinds() -> None:
    assert KINDS == C_KINDS
    shim = Shim()  # the one that is shipped
    widths = [sum(c.size_bytes for c in schema.BY_NAME[name].columns) for name in KINDS]
    assert [shim.library.gcu_width(number) for number in range(len(KINDS))] == widths
    assert not hasattr(shim.library, "gcu_test_filled")


@pytest.mark.parametrize("version", SIZES)
def test_every_field_of_every_record_is_read_in_every_version(library: Path, version: int) -> None:
    shim = Fed(library)
    shim.open(None, Settings(64 << 10, 4, 16, version))
    try:
        name = shim.name(b"gemm")
        shim.feed(
            Buffer(version)
            .kernel(
                name, 100, 200, correlation=11, device=3, context=5, stream=13, graph=2, node=8
            )
            .copy(1, 4096, 210, 220, correlation=12)
            .fill(64, 230, 240, correlation=13)
            .graph(250, 300, correlation=14, graph=6)
            .overhead(0, 50)
            .external()
            .call(5, 211, 90, 95, tid=78, correlation=11)
            .call(4, 307, 91, 94, tid=78, correlation=11)
            .call(5, 9999, 96, 97, tid=78, correlation=15)
            .sync(3, 310, 320, correlation=16, context=5, stream=13)
            .data
        )
        pid = os.getpid()
        kernel, copy, fill, graph = shim.decoded("gpu_op")
        assert kernel == {
            "pid": pid, "device": 3, "context": 5, "gpu_stream": 13, "op": 1, "name": "gemm",
            "correlation": 11, "graph": 2, "graph_node": 8, "start_ns": 100, "end_ns": 200,
            "bytes": 0, "copy": 0,
        }  # fmt: skip
        assert (copy["op"], copy["name"], copy["bytes"], copy["copy"]) == (
            2,
            "Memcpy HTOD",
            4096,
            1,
        )
        assert (copy["start_ns"], copy["end_ns"], copy["correlation"]) == (210, 220, 12)
        assert (fill["op"], fill["name"], fill["bytes"], fill["correlation"]) == (
            3,
            "Memset",
            64,
            13,
        )
        assert (graph["name"], graph["graph"], graph["correlation"]) == ("CUDA graph", 6, 14)
        assert (graph["start_ns"], graph["end_ns"]) == (250, 300)
        runtime, driver, other = shim.decoded("cuda_api")
        assert runtime == {
            "pid": pid, "tid": 78, "name": "cudaLaunchKernel", "api": 1, "correlation": 11,
            "start_ns": 90, "end_ns": 95,
        }  # fmt: skip
        assert (driver["name"], driver["api"]) == ("cuLaunchKernel", 2)
        assert other["name"] == "runtime call 9999"
        (sync,) = shim.decoded("gpu_sync")
        assert sync == {
            "pid": pid, "device": 3, "context": 5, "sync": 3, "gpu_stream": 13, "event": NONE,
            "correlation": 16, "start_ns": 310, "end_ns": 320, "record": 0, "record_stream": NONE,
        }  # fmt: skip
        counts = shim.counts()
        assert counts.records == 10
        assert counts.overhead_ns == 50
        assert counts.unread_bytes == counts.lost_rows == 0
    finally:
        assert shim.close()


@pytest.mark.parametrize("version", [0, 18, 19, 25, 29, 130002, 130501, 999999])
def test_a_version_that_is_not_known_is_refused(library: Path, version: int) -> None:
    shim = Fed(library)
    with pytest.raises(ShimError) as refused:
        shim.open(None, Settings(64 << 10, 4, 16, version))
    assert refused.value.code == shims.Refused.UNKNOWN_VERSION


@pytest.mark.parametrize(
    "settings", [Settings(16, 4, 16), Settings(1 << 30, 4, 16), Settings(1 << 20, 1, 16),
                 Settings(1 << 20, 4, 0), Settings(1 << 20, 1 << 20, 16)],
)  # fmt: skip
def test_settings_that_would_take_the_machine_are_refused(
    library: Path, settings: Settings
) -> None:
    with pytest.raises(ShimError):
        Fed(library).open(None, settings)


def test_what_is_unknown_in_a_buffer_is_counted_and_what_lies_before_is_kept(shim: Fed) -> None:
    good = Buffer().kernel(shim.name(b"k"), 1, 2).data
    strange = (7).to_bytes(4, "little") + bytes(60)
    cut = Buffer().kernel(shim.name(b"k"), 3, 4).data[:-8]
    huge = (0xFFFFFFFF).to_bytes(4, "little") + bytes(4)
    for tail in (strange, cut, huge, b"\1\2\3"):
        before = shim.counts()
        shim.feed(good + tail)
        after = shim.counts()
        assert after.records - before.records == 1
        assert after.unread_bytes - before.unread_bytes == len(tail)
        assert [row["end_ns"] for row in shim.decoded("gpu_op")] == [2]


def test_a_time_of_zero_stays_none_and_others_are_moved_to_our_clock(shim: Fed) -> None:
    shim.library.gcu_test_clock(ctypes.c_int64(-1000))
    shim.feed(Buffer().kernel(shim.name(b"k"), 0, 5000).kernel(shim.name(b"k"), 4000, 0).data)
    assert [(r["start_ns"], r["end_ns"]) for r in shim.decoded("gpu_op")] == [(0, 4000), (3000, 0)]
    shim.library.gcu_test_clock(ctypes.c_int64(0))


def test_a_name_is_read_again_when_its_memory_holds_another(shim: Fed) -> None:
    text = ctypes.create_string_buffer(b"first_kernel")
    at = ctypes.addressof(text)
    shim.feed(Buffer().kernel(at, 1, 2).data)
    text.value = b"second"
    shim.feed(Buffer().kernel(at, 3, 4).kernel(0, 5, 6).data)
    long = shim.name("é".encode() * 800)
    shim.feed(Buffer().kernel(long, 7, 8).data)
    first, second, none, cut = [str(row["name"]) for row in shim.decoded("gpu_op")]
    assert (first, second, none) == ("first_kernel", "second", "")
    assert cut == "é" * 500


def test_more_names_than_there_is_room_for_are_counted(shim: Fed) -> None:
    total = 20_000
    names = [shim.name(b"kernel_%d" % n) for n in range(total)]
    told: list[dict[str, int | str]] = []
    for at in range(0, total, 200):
        buffer = Buffer()
        for n in range(at, at + 200):
            buffer.kernel(names[n], n + 1, n + 2)
        shim.feed(buffer.data)
        told += shim.decoded("gpu_op")
    assert len(told) == total
    named = [row for row in told if row["name"]]
    assert all(row["name"] == f"kernel_{int(row['start_ns']) - 1}" for row in named)
    assert shim.counts().lost_names == total - len(named) > 0


def test_without_a_free_buffer_cupti_is_given_none_and_that_is_counted(shim: Fed) -> None:
    lent = [shim.lend()[0] for _ in range(SMALL.buffers)]
    assert None not in lent
    assert shim.lend() == (None, 0)
    assert shim.counts().refused == 1
    assert not shim.close(), "CUPTI may still write to what it was lent"
    for at in lent:
        assert at is not None
        shim.fill(at, b"")
    assert shim.counts().buffers == SMALL.buffers


def test_a_buffer_that_is_not_ours_or_comes_twice_is_left_alone(shim: Fed) -> None:
    at, _ = shim.lend()
    assert at is not None
    shim.fill(at, Buffer().kernel(shim.name(b"k"), 1, 2).data)
    shim.library.gcu_test_drain()
    before = shim.counts()
    for pointer in (at, at + 8, 4096, 0):
        shim.library.gcu_test_filled(ctypes.c_void_p(pointer), ctypes.c_size_t(248))
    shim.library.gcu_test_drain()
    assert shim.counts() == before
    again, _ = shim.lend()
    assert again == at
    shim.library.gcu_test_filled(ctypes.c_void_p(again), ctypes.c_size_t(1 << 40))
    assert shim.counts().unread_bytes == 1 << 40
    assert shim.lend()[0] == at
    shim.fill(at, b"")


def test_what_the_sender_does_not_take_is_refused_and_counted(shim: Fed) -> None:
    name = shim.name(b"k")
    sent = 0
    while not shim.counts().lost_rows:
        buffer = Buffer()
        for _ in range(250):
            sent += 1
            buffer.kernel(name, sent, sent + 1)
        shim.feed(buffer.data)
    counts = shim.counts()
    assert counts.rows[1] == counts.waiting[1] == SMALL.chunks * 2048
    assert counts.rows[1] + counts.lost_rows == sent == counts.records
    rows = shim.decoded("gpu_op")
    assert [row["start_ns"] for row in rows] == list(range(1, SMALL.chunks * 2048 + 1))
    assert shim.counts().waiting == (0, 0, 0, 0)
    shim.feed(Buffer().kernel(name, 5, 6).data)
    assert len(shim.decoded("gpu_op")) == 1


def test_a_forked_child_begins_anew_and_the_parent_goes_on(shim: Fed, library: Path) -> None:
    name = shim.name(b"k")
    shim.feed(Buffer().kernel(name, 1, 2).data)
    lent, _ = shim.lend()
    child = os.fork()
    if child == 0:
        # What the parent had lent is nobody's here; the child has a pool and a thread of its own.
        ok = shim.counts().records == 0 and shim.close()
        shim.library.gcu_test_filled(ctypes.c_void_p(lent), ctypes.c_size_t(248))
        shim.open(None, SMALL)
        shim.feed(Buffer().kernel(name, 3, 4).data)
        ok = ok and [row["start_ns"] for row in shim.decoded("gpu_op")] == [3] and shim.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert lent is not None
    shim.fill(lent, Buffer().kernel(name, 5, 6).data)
    shim.library.gcu_test_drain()
    assert [row["start_ns"] for row in shim.decoded("gpu_op")] == [1, 5]


def test_without_cupti_in_the_process_it_says_so() -> None:
    shim = Shim()
    with pytest.raises(ShimError) as refused:
        shim.open("/nowhere/libcupti.so.13", Settings())
    assert refused.value.code == shims.Refused.NO_LIBRARY
    assert str(refused.value) == "CUPTI is not in this process"


def test_the_mapped_library_is_found_by_its_name() -> None:
    maps = [
        "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libcuda.so.1\n",
        "7f02-7f03 r-xp 00000000 08:01 13 /venv/nvidia/cu13/lib/libcupti.so.13\n",
        "7f04-7f05 r--p 00000000 08:01 13 /venv/nvidia/cu13/lib/libcupti.so.13\n",
        "7f06-7f07 rw-p 00000000 00:00 0 \n",
    ]
    assert shims.mapped(maps) == "/venv/nvidia/cu13/lib/libcupti.so.13"
    assert shims.mapped(maps[:1]) is None
    assert shims.mapped(["7f-80 r-xp 0 08:01 1 /tmp/libcupti.so.13 (deleted)\n"]) is None


def test_the_driver_is_looked_for_before_anything_is_called() -> None:
    assert shims.driver_mapped(["7f-80 r-xp 0 08:01 1 /usr/lib/libcuda.so.550.54\n"])
    assert not shims.driver_mapped(["7f-80 r-xp 0 08:01 1 /usr/lib/libcudart.so.13\n"])


@pytest.fixture
def cupti() -> str:
    """The real library, mapped; without a driver it only tells its version and its records."""
    folder = importlib.util.find_spec("nvidia")
    places = folder.submodule_search_locations if folder else None
    found = [path for place in places or () for path in Path(place).rglob("libcupti.so.1*")]
    if not found:
        pytest.skip("nvidia-cuda-cupti is not installed")
    ctypes.CDLL(str(found[0]))
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        path = shims.mapped(maps)
    assert path is not None
    return path


def test_nvidias_library_takes_records_to_be_as_long_as_we_do(cupti: str) -> None:
    shim = Shim()
    shim.open(cupti, Settings())
    assert shim.version == 130101
    shim.check_layout(cupti)
    with pytest.raises(ShimError, match="CUPTI_ERROR"):
        shim.begin(shims.Window.CALLS)
    assert shim.close()


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_under_load_nothing_is_lost_or_raced_for(tmp_path: Path, sanitizer: str) -> None:
    program = tmp_path / "stress"
    source = Path(__file__).with_name("cupti_stress.c")
    command = [
        "cc", "-O1", "-g", "-std=c11", "-Wall", "-Wextra", "-Werror", "-DGCU_TEST", "-pthread",
        f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{NATIVE}", "-o", str(program),
        str(source), *map(str, sorted(NATIVE.glob("*.c"))), "-ldl",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    # Randomised addresses of newer kernels are too many for the thread sanitizer's shadow.
    run = subprocess.run(
        ["setarch", "-R", str(program)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 1000


_CYCLES = """
import ctypes, os, sys
from tests.unit.test_cupti_shim import Fed, SMALL, Buffer
from pathlib import Path
shim = Fed(Path(sys.argv[1]))
name = shim.name(b"k")
data = Buffer().kernel(name, 1, 2).data
def cycle():
    shim.open(None, SMALL)
    shim.feed(data)
    assert len(shim.decoded("gpu_op")) == 1
    assert shim.close()
def kept():
    text = Path("/proc/self/smaps_rollup").read_text()
    memory = int(text.split("Rss:")[1].split()[0])
    return memory, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
for _ in range(500):
    cycle()
before = kept()
for _ in range(int(sys.argv[2])):
    cycle()
print(*before, *kept())
"""


def test_ten_thousand_times_opened_and_closed_leave_nothing(library: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _CYCLES, str(library), "10000"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    rss, fds, threads, rss_after, fds_after, threads_after = map(int, run.stdout.split())
    assert (fds_after, threads_after) == (fds, threads)
    assert rss_after - rss < 1024, "a hundred bytes a cycle would be a MiB"
