# SPDX-License-Identifier: Apache-2.0
"""GPU counters without a GPU.

The calls of NVML themselves are not run here: there is no driver, and nothing stands in for
NVIDIA's library. What is asked is checked against the real binding, what answers are made into
is checked with the binding's own structures, and texts of nvidia-smi are as people published
them (bug reports of gpustat, nvitop, telegraf and others).
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.host import gpu_metrics as metrics
from gpucorrelate.probes.host import gpu_nvml_table as table
from gpucorrelate.probes.host import gpu_smi as smi
from gpucorrelate.probes.host.gpu import (
    NOT_SUPPORTED,
    Gpu,
    Pace,
    open_source,
    shares_memory,
    sysfs_address,
    unified_memory,
)
from gpucorrelate.probes.host.gpu_nvml import Nvml
from gpucorrelate.probes.host.gpu_nvml_table import Pick, field_value, pick, process_use, reason_of
from gpucorrelate.probes.host.reading import Metric, Missing, Sample
from gpucorrelate.probes.host.run_bounded import Finished, run_bounded
from gpucorrelate.probes.wire.schema import Nature

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

MIB = 1 << 20
GB10 = Gpu(0, "GPU-b", "000f:01:00.0", "NVIDIA GB10")
H200 = Gpu(1, "GPU-h", "0000:19:00.0", "NVIDIA H200")
ALL_METRICS = [each for each in vars(metrics).values() if isinstance(each, Metric)]
#: What R132 asks for, beside the time and the index.
WANTED = {
    "gpu.utilization.gpu",
    "gpu.utilization.memory",
    "gpu.memory.used",
    "gpu.power.draw",
    "gpu.clocks.sm",
    "gpu.clocks.mem",
    "gpu.temperature.gpu",
}


def test_every_metric_says_what_it_means() -> None:
    assert len({metric.name for metric in ALL_METRICS}) == len(ALL_METRICS)
    for metric in ALL_METRICS:
        assert metric.meaning.endswith("."), metric.name
    assert "at least one kernel ran" in metrics.UTILIZATION.meaning
    assert "Not the share of the GPU" in metrics.UTILIZATION.meaning
    assert "Neither memory in use" in metrics.UTILIZATION_MEMORY.meaning


def test_both_sources_ask_for_what_is_wanted() -> None:
    fast = {
        which.metric.name
        for question in table.QUESTIONS
        if question.pace is Pace.FAST
        for which in question.picks
    }
    assert fast >= WANTED
    assert {field.metric.name for field in smi.FIELDS} >= WANTED


def test_the_binding_knows_all_that_it_is_asked() -> None:
    questions = [*table.QUESTIONS, *(question for _, question in table.RATES)]
    for question in questions:
        for call in question.calls:
            assert callable(getattr(pynvml, call.function)), call
            for constant in call.constants:
                assert isinstance(getattr(pynvml, constant), int), constant
    for field in table.FIELDS:
        assert isinstance(getattr(pynvml, field.constant), int)
    for constant, member in table.VALUE_TYPES.items():
        assert isinstance(getattr(pynvml, constant), int)
        assert hasattr(pynvml.c_nvmlFieldValue_t().value, member)
    for function in (table.PROCESSES, table.PROCESS_USE, "nvmlDeviceGetFieldValues"):
        assert callable(getattr(pynvml, function))
    for name in table.TRY_NEXT:
        assert isinstance(getattr(pynvml, name), int)


def test_the_bits_are_those_of_the_binding() -> None:
    for name, value in vars(pynvml).items():
        if not name.startswith("nvmlClocksEventReason") or not value:
            continue
        if name.endswith(("All", "UserDefinedClocks")):
            continue
        (said,) = metrics.event_reasons(value)
        assert not said.startswith("unknown"), name
    assert metrics.event_reasons(0) == ()
    assert metrics.event_reasons(0x44) == ("software power cap", "hardware thermal slowdown")
    assert metrics.event_reasons(0x1000_0001) == ("idle", "unknown (0x10000000)")


def picked(answer: object, function: str) -> dict[str, int | None]:
    (question,) = (
        each for each in table.QUESTIONS if each.calls[0].function == f"nvmlDeviceGet{function}"
    )
    return {which.metric.name: pick(answer, which) for which in question.picks}


def test_answers_are_taken_apart() -> None:
    rates = pynvml.c_nvmlUtilization_t(gpu=97, memory=12)
    assert picked(rates, "UtilizationRates") == {
        "gpu.utilization.gpu": 97,
        "gpu.utilization.memory": 12,
    }
    newer = pynvml.c_nvmlMemory_v2_t(total=150 * MIB, reserved=5, free=7, used=11)
    assert picked(newer, "MemoryInfo") == {
        "gpu.memory.total": 150 * MIB,
        "gpu.memory.reserved": 5,
        "gpu.memory.free": 7,
        "gpu.memory.used": 11,
    }
    older = pynvml.c_nvmlMemory_t(total=9, free=7, used=2)
    assert picked(older, "MemoryInfo")["gpu.memory.reserved"] is None
    assert picked(older, "MemoryInfo")["gpu.memory.used"] == 2
    assert picked((3, 1, 0, 1), "RemappedRows") == {"gpu.rows.pending": 0, "gpu.rows.failed": 1}
    assert picked(455_123, "PowerUsage") == {"gpu.power.draw": 455_123}


def test_violations_are_nanoseconds_and_rates_bytes() -> None:
    (power, *_) = (
        question
        for question in table.QUESTIONS
        if question.calls[0].function == "nvmlDeviceGetViolationStatus"
    )
    answer = pynvml.c_nvmlViolationTime_t(referenceTime=1, violationTime=1_500_000)
    assert pick(answer, power.picks[0]) == 1_500_000
    assert power.picks[0].metric.unit == "ns"
    for counter, question in table.RATES:
        assert counter.nature is Nature.TOTAL
        assert pick(12, question.picks[0]) == 12_000
        assert question.picks[0].metric.unit == "bytes/s"


@pytest.mark.parametrize("answer", [None, "x", 1.5, True, 2**64 - 1, [], object()])
def test_what_is_no_number_is_unknown(answer: object) -> None:
    assert pick(answer, Pick(metrics.POWER)) is None
    assert pick(answer, Pick(metrics.POWER, "gpu")) is None
    assert pick(answer, Pick(metrics.POWER, 0)) is None


def field(code: int = 0, kind: str = "UNSIGNED_LONG_LONG", **value: float) -> object:
    made = pynvml.c_nvmlFieldValue_t()
    made.nvmlReturn = code
    made.valueType = getattr(pynvml, f"NVML_VALUE_TYPE_{kind}")
    for member, number in value.items():
        setattr(made.value, member, number)
    return made


def test_fields_are_read_by_their_type() -> None:
    assert field_value(pynvml, field(ullVal=5 << 40), 1024) == 5 << 50
    assert field_value(pynvml, field(kind="UNSIGNED_INT", uiVal=18), 1) == 18
    assert field_value(pynvml, field(kind="SIGNED_INT", siVal=-3), 1) == -3
    assert field_value(pynvml, field(kind="DOUBLE", dVal=2.6), 10) == 26
    assert field_value(pynvml, field(kind="DOUBLE", dVal=float("nan")), 1) == "it is no number"
    assert field_value(pynvml, field(pynvml.NVML_ERROR_NOT_SUPPORTED), 1) == NOT_SUPPORTED
    unknown = field()
    unknown.valueType = 99  # type: ignore[attr-defined]
    assert "99" in str(field_value(pynvml, unknown, 1))


def test_nvlinks_are_asked_for_as_a_sum() -> None:
    scopes = {each.metric.name: each.scope for each in table.FIELDS}
    assert scopes["gpu.nvlink.tx"] == scopes["gpu.nvlink.rx"] == 0xFFFF_FFFF
    assert scopes["gpu.pcie.tx"] == 0


def test_every_error_has_a_reason() -> None:
    codes = {
        value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_") and isinstance(value, int)
    }
    assert len(codes) > 20
    for code in codes:
        assert reason_of(pynvml, code)
    assert reason_of(pynvml, pynvml.NVML_ERROR_NOT_SUPPORTED) == NOT_SUPPORTED
    assert "libnvidia-ml.so.1" in reason_of(pynvml, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert "NVML says" in reason_of(pynvml, 4242)


def test_processes_share_a_gpu() -> None:
    def sample(pid: int, at_us: int, sm: int, memory: int) -> object:
        return pynvml.c_nvmlProcessUtilizationSample_t(
            pid=pid, timeStamp=at_us, smUtil=sm, memUtil=memory
        )

    samples = [
        sample(7, 100, 99, 99),  # was seen before
        sample(7, 200, 40, 10),
        sample(7, 300, 60, 20),
        sample(9, 250, 5, 1),
        sample(0, 400, 1, 1),  # nobody's
        sample(0, 0, 0, 0),  # the rest of the driver's array
    ]
    found, latest = process_use(samples, 100)
    assert [(use.pid, use.sm, use.memory) for use in found] == [(7, 50, 15), (9, 5, 1)]
    assert latest == 300
    assert process_use(samples, 300) == ((), 300)


def test_without_a_driver_the_reason_is_told() -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is an NVIDIA driver here")
    found = Nvml.open()
    assert isinstance(found, Missing)
    assert (found.what, found.subject) == ("nvml", "host")
    assert "libnvidia-ml.so.1 not found" in found.reason
    opened = open_source()
    assert opened.source is None
    assert [missing.what for missing in opened.missing] == ["nvml", "nvidia-smi"]


@pytest.mark.parametrize("pace", list(Pace))
def test_what_the_library_refuses_is_missing_one_by_one(pace: Pace) -> None:
    """The real binding, never initialised: it refuses every call, each in its own way."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is an NVIDIA driver here")
    source = Nvml(pynvml, ((H200, pynvml.c_nvmlDevice_t()),), ())
    sample = source.sample(pace)
    asked = {
        which.metric.name
        for question in table.QUESTIONS
        if question.pace <= pace
        for which in question.picks
    }
    if pace is Pace.SLOW:
        asked |= {each.metric.name for each in table.FIELDS}
        asked |= {question.picks[0].metric.name for _, question in table.RATES}
        asked |= {metrics.PROCESS_MEMORY.name, metrics.PROCESS_SM.name}
    assert sorted(missing.what for missing in sample.missing) == sorted(asked)
    assert {missing.subject for missing in sample.missing} == {"gpu:GPU-h"}
    assert {missing.reason for missing in sample.missing} == {"NVML says: Uninitialized"}
    assert [reading.metric for reading in sample.readings] == [metrics.POLL_WALL]
    source.close()
    source.close()
    assert source.sample(pace) == Sample()


# What people published. Two GPUs of a server, as gpustat's issue 5 shows them.
TITANS = """\
0, GPU-004f693d-767b-b215-b4a9-a18af0ffd643, 00000000:04:00.0, GeForce GTX TITAN X
1, GPU-86fe97db-bf54-a056-4e8d-9b07e1a298e7, 00000000:05:00.0, GeForce GTX TITAN X
"""


def test_gpus_are_known_by_uuid_and_place() -> None:
    first, second = smi.parse_identity(TITANS)
    assert first.subject == "gpu:GPU-004f693d-767b-b215-b4a9-a18af0ffd643"
    assert (second.index, second.address) == (1, "0000:05:00.0")
    assert second.name == "GeForce GTX TITAN X"
    assert smi.parse_identity("No devices were found\n") == ()
    assert smi.parse_identity("x, GPU-1, 0, y\n") == ()
    (odd,) = smi.parse_identity("0, GPU-1, 0000000F:01:00.0, A name, with a comma\n")
    assert (odd.address, odd.name) == ("000f:01:00.0", "A name, with a comma")


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:01:00.0", "0000:01:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:A1:00.0", "10000:a1:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("01:00.0", "0000:01:00.0"),
        ("[N/A]", ""),
        ("", ""),
    ],
)
def test_places_as_sysfs_writes_them(bus_id: str, address: str) -> None:
    assert sysfs_address(bus_id) == address


def asked(text: str, *names: str) -> Sample:
    """The answer to ``uuid`` and these fields."""
    known = {name: field for field in smi.FIELDS for name in field.names}
    return smi.parse_gpus(text, tuple(known[name] for name in names), 42)


def values(sample: Sample) -> dict[str, int]:
    return {reading.metric.name: reading.value for reading in sample.readings}


def reasons(sample: Sample) -> dict[str, str]:
    return {missing.what: missing.reason for missing in sample.missing}


def test_a_busy_gpu() -> None:
    # MindMiner's issue 627, in this order.
    sample = asked(
        "GPU-a, 100, 37, 56, 228.82, 210.00, 6800, [Unknown Error]\n",
        "utilization.gpu",
        "utilization.memory",
        "temperature.gpu",
        "power.draw",
        "power.limit",
        "clocks.mem",
        "pcie.link.gen.max",
    )
    assert values(sample) == {
        "gpu.utilization.gpu": 100,
        "gpu.utilization.memory": 37,
        "gpu.temperature.gpu": 56,
        "gpu.power.draw": 228_820,
        "gpu.power.limit": 210_000,
        "gpu.clocks.mem": 6800,
    }
    assert reasons(sample) == {"gpu.pcie.link.gen.max": "nvidia-smi says: unknown error"}
    assert {reading.t_ns for reading in sample.readings} == {42}


def test_a_gpu_without_memory_of_its_own() -> None:
    # A GB10 with driver 580, as nvitop's pull request 208 shows it.
    sample = asked(
        "GPU-b, [N/A], [N/A], [N/A], 0, 11.17, 35\n",
        "memory.total",
        "memory.used",
        "memory.free",
        "utilization.gpu",
        "power.draw",
        "temperature.gpu",
    )
    assert values(sample) == {
        "gpu.utilization.gpu": 0,
        "gpu.power.draw": 11_170,
        "gpu.temperature.gpu": 35,
    }
    assert reasons(sample) == {
        "gpu.memory.total": NOT_SUPPORTED,
        "gpu.memory.used": NOT_SUPPORTED,
        "gpu.memory.free": NOT_SUPPORTED,
    }


def test_several_gpus_and_a_broken_line() -> None:
    text = "GPU-a, 25, 802\n\nGPU-b, 54\nGPU-c, 55, 6442\n"
    sample = asked(text, "temperature.gpu", "memory.used")
    assert [(each.subject, each.value) for each in sample.readings] == [
        ("gpu:GPU-a", 25),
        ("gpu:GPU-a", 802 * MIB),
        ("gpu:GPU-c", 55),
        ("gpu:GPU-c", 6442 * MIB),
    ]
    (broken,) = sample.missing
    assert "2 values where 3 were asked for" in broken.reason


@pytest.mark.parametrize(
    ("text", "scale", "value"),
    [
        ("37", 1, 37),
        (" 37 ", 1, 37),
        ("45.1275", 1000, 45_128),
        ("0.0004", 1000, 0),
        ("-3", 1, -3),
        ("0x0000000000000004", 1, 4),
        ("P8", 1, 8),
        ("[N/A]", 1, NOT_SUPPORTED),
        ("N/A", 1, NOT_SUPPORTED),
        ("[Not Supported]", 1, NOT_SUPPORTED),
        ("[Insufficient Permissions]", 1, "not permitted"),
        ("[GPU requires reset]", 1, "the GPU must be reset"),
        ("", 1, "nvidia-smi says nothing"),
        ("45,12", 1, "nvidia-smi says: '45,12'"),
        ("1e3", 1, "nvidia-smi says: '1e3'"),
        ("٣", 1, "nvidia-smi says: '٣'"),
    ],
)
def test_values_and_what_is_none(text: str, scale: int, value: int | str) -> None:
    assert smi.parse_value(text, scale) == value


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_decimals_are_exact(number: int, places: int) -> None:
    sign = "-" if number < 0 else ""
    digits = str(abs(number)).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    assert smi.parse_value(sign + text, 10**places) == number


@given(st.text(max_size=300))
def test_any_output_is_no_crash(text: str) -> None:
    smi.parse_identity(text)
    smi.parse_gpus(text, smi.FIELDS, 1)
    smi.parse_processes(text, 1)
    smi.refused_field(text)
    smi.parse_value(text)
    sysfs_address(text)


def test_processes_of_several_gpus() -> None:
    text = "GPU-a, 4711, 120342\nGPU-b, 4712, [N/A]\nGPU-b, -, 3\n"
    sample = smi.parse_processes(text, 1)
    (known,) = sample.readings
    assert (known.subject, known.value) == ("gpu:GPU-a pid:4711", 120342 * MIB)
    (unknown,) = sample.missing
    assert (unknown.subject, unknown.reason) == ("gpu:GPU-b pid:4712", NOT_SUPPORTED)


def test_a_refused_field_is_asked_for_by_its_older_name_and_then_dropped() -> None:
    said = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n'
    refused = smi.refused_field(said)
    assert refused == "clocks_event_reasons.active"
    older = smi.without(smi.FIELDS, refused)
    assert len(older) == len(smi.FIELDS)
    assert "clocks_throttle_reasons.active" in {field.names[0] for field in older}
    dropped = smi.without(older, "clocks_throttle_reasons.active")
    assert len(dropped) == len(smi.FIELDS) - 1
    assert metrics.EVENT_REASONS not in {field.metric for field in dropped}
    assert smi.without(dropped, "no.such.field") == dropped
    assert smi.refused_field("No devices were found\n") is None


def test_why_it_failed_is_told_in_its_words() -> None:
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    said = smi.why_failed(Finished(9, text))
    assert said.startswith("nvidia-smi ended with code 9: NVIDIA-SMI has failed")
    assert smi.why_failed(Finished(-9, problem="took longer than 10 s")) == (
        "nvidia-smi took longer than 10 s"
    )


def test_a_program_that_is_none_of_nvidias_is_missing() -> None:
    echo = shutil.which("echo")
    assert echo is not None
    found = smi.Smi.open(echo)  # it prints its arguments, which name no GPU
    assert isinstance(found, Missing)
    nowhere = smi.Smi.open("/nonexistent/nvidia-smi")
    assert isinstance(nowhere, Missing)
    assert "cannot be started: No such file" in nowhere.reason


def silent(*gpus: Gpu, reason: str = NOT_SUPPORTED) -> Sample:
    return Sample((), tuple(Missing("gpu.memory.used", gpu.subject, reason) for gpu in gpus))


def test_the_machines_memory_stands_in_where_the_gpu_shares_it(tmp_path: Path) -> None:
    # The numbers of nvitop's pull request 208.
    (tmp_path / "meminfo").write_text(
        "MemTotal:       127600748 kB\nMemFree:  9 kB\nMemAvailable:   118566368 kB\n"
    )
    found = unified_memory([GB10, H200], silent(GB10, H200), tmp_path)
    assert {(each.subject, each.metric.name, each.value) for each in found.readings} == {
        ("gpu:GPU-b", "gpu.memory.unified.total", 127600748 * 1024),
        ("gpu:GPU-b", "gpu.memory.unified.available", 118566368 * 1024),
    }
    assert not found.missing


def test_a_gpu_that_is_silent_for_another_reason_gets_none(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    assert not unified_memory([GB10], silent(GB10, reason="not permitted"), tmp_path).readings
    assert not unified_memory([H200], silent(H200), tmp_path).readings
    assert not unified_memory([GB10], Sample(), tmp_path).readings


def test_without_meminfo_that_is_missing_too(tmp_path: Path) -> None:
    (missing,) = unified_memory([GB10], silent(GB10), tmp_path).missing
    assert missing.subject == "gpu:GPU-b"


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("NVIDIA GB10", True),
        ("NVIDIA Jetson AGX Orin", True),
        ("NVIDIA Thor", True),
        ("NVIDIA H200", False),
        ("NVIDIA GB100", False),
        ("NVIDIA GH200 480GB", False),
    ],
)
def test_which_gpus_share_the_machines_memory(name: str, shared: bool) -> None:
    assert shares_memory(Gpu(0, "GPU-x", "", name)) == shared


def test_this_machines_memory_is_that_of_a_gpu_that_shares_it() -> None:
    gpu = Gpu(0, "GPU-x", "", "NVIDIA GB10")
    silent = Sample((), (Missing(metrics.MEMORY_USED.name, gpu.subject, NOT_SUPPORTED),))
    found = {one.metric: one.value for one in unified_memory([gpu], silent).readings}
    assert 0 < found[metrics.UNIFIED_AVAILABLE] < found[metrics.UNIFIED_TOTAL]
    assert found[metrics.UNIFIED_TOTAL] == psutil.virtual_memory().total


def python(code: str, timeout_s: float = 30.0, limit_bytes: int = 1 << 20) -> Finished:
    command = (sys.executable, "-c", code)
    return run_bounded(command, timeout_s=timeout_s, limit_bytes=limit_bytes)


def test_a_programs_output_errors_and_code() -> None:
    done = python("import os, sys; print(os.environ['LC_ALL']); print('no', file=sys.stderr)")
    assert done == Finished(0, "C\n", "no\n")
    assert done.ok
    failed = python("raise SystemExit(9)")
    assert (failed.code, failed.ok, failed.problem) == (9, False, "")


def test_a_program_that_hangs_is_ended_with_its_children() -> None:
    code = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '1000']);"
        "print(child.pid, flush=True); time.sleep(1000)"
    )
    done = python(code, timeout_s=1.5)
    assert (done.ok, done.problem) == (False, "took longer than 1.5 s")
    child = Path(f"/proc/{int(done.output)}")
    deadline = time.monotonic() + 20
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(child)


def _runs(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_that_leaves_a_child_behind_does_not_hold_us() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '1000']); print('done', flush=True)"
    done = python(code, timeout_s=1.5)
    assert (done.code, done.output, done.ok) == (0, "done\n", False)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_that_never_stops_writing(stream: str) -> None:
    code = f"import sys\nwhile True: sys.{stream}.write('x' * 4096)"
    done = python(code, timeout_s=2.0, limit_bytes=10_000)
    assert not done.ok
    assert len(done.output) <= 10_000
    assert len(done.errors) <= 4096
    assert ("wrote more" in done.problem) == (stream == "stdout")
