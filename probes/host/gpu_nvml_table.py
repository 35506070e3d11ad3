# SPDX-License-Identifier: Apache-2.0
"""What to ask NVML, as a table, and what to make of its answers: pure, nothing is called here.

Which GPU, driver and binding know a number differs: each is optional. Functions and constants
are named as in ``nvidia-ml-py``; units are those of NVIDIA's NVML reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.host import gpu_metrics as metrics
from gpucorrelate.probes.host.gpu import NOT_SUPPORTED, Pace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.probes.host.reading import Metric

#: A scope of all links, for field values that have one for each.
ALL_LINKS = 0xFFFF_FFFF
#: NVML's way to say that a 64-bit number is not known.
_UNKNOWN = 0xFFFF_FFFF_FFFF_FFFF
_KIB = 1024
_KB = 1000

_REASONS = {
    "NVML_ERROR_NOT_SUPPORTED": NOT_SUPPORTED,
    "NVML_ERROR_NO_PERMISSION": "not permitted",
    "NVML_ERROR_NOT_FOUND": "nothing was recorded since the last look",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "this driver is too old to know it",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": "driver and binding disagree on its layout",
    "NVML_ERROR_INVALID_ARGUMENT": "this driver does not know it",
    "NVML_ERROR_GPU_IS_LOST": "the GPU fell off the bus",
    "NVML_ERROR_RESET_REQUIRED": "the GPU must be reset",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 not found: no NVIDIA driver here",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "library and loaded driver are of different versions",
    "NVML_ERROR_TIMEOUT": "the driver did not answer in time",
}
#: With these, another way to ask may still work.
TRY_NEXT = (
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_SUPPORTED",
)


@dataclass(frozen=True)
class Pick:
    """A number in an answer.

    Attributes:
        metric: What it is.
        of: Name of the member, position in a list, or None for the answer itself.
        scale: Factor from NVML's unit to the metric's.
    """

    metric: Metric
    of: str | int | None = None
    scale: int = 1


@dataclass(frozen=True)
class Call:
    """A function of the binding, and constants of it that follow the GPU's handle."""

    function: str
    constants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """One answer that holds one or more numbers.

    Attributes:
        pace: How often it is worth asking.
        picks: The numbers.
        calls: Ways to ask, best first; later ones for older drivers and bindings.
    """

    pace: Pace
    picks: tuple[Pick, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Field:
    """A number that is asked for by its field's id, many at once.

    Attributes:
        metric: What it is.
        constant: Name of its id in the binding.
        scope: Which link, or ``ALL_LINKS``; 0 for fields that are of the GPU as a whole.
        scale: Factor from NVML's unit to the metric's.
    """

    metric: Metric
    constant: str
    scope: int = 0
    scale: int = 1


def _one(
    pace: Pace,
    metric: Metric,
    function: str,
    *constants: str,
    of: str | None = None,
    scale: int = 1,
) -> Question:
    return Question(pace, (Pick(metric, of, scale),), (Call(function, constants),))


_GET = "nvmlDeviceGet"
QUESTIONS = (
    Question(
        Pace.FAST,
        (Pick(metrics.UTILIZATION, "gpu"), Pick(metrics.UTILIZATION_MEMORY, "memory")),
        (Call(_GET + "UtilizationRates"),),
    ),
    # The older call counts what the driver reserves as used.
    Question(
        Pace.FAST,
        (
            Pick(metrics.MEMORY_USED, "used"),
            Pick(metrics.MEMORY_FREE, "free"),
            Pick(metrics.MEMORY_TOTAL, "total"),
            Pick(metrics.MEMORY_RESERVED, "reserved"),
        ),
        (Call(_GET + "MemoryInfo", ("nvmlMemory_v2",)), Call(_GET + "MemoryInfo")),
    ),
    _one(Pace.FAST, metrics.POWER, _GET + "PowerUsage"),
    _one(Pace.FAST, metrics.ENERGY, _GET + "TotalEnergyConsumption"),
    _one(Pace.FAST, metrics.CLOCK_SM, _GET + "ClockInfo", "NVML_CLOCK_SM"),
    _one(Pace.FAST, metrics.CLOCK_MEMORY, _GET + "ClockInfo", "NVML_CLOCK_MEM"),
    Question(
        Pace.FAST,
        (Pick(metrics.TEMPERATURE),),
        (
            Call(_GET + "Temperature", ("NVML_TEMPERATURE_GPU",)),
            Call(_GET + "TemperatureV", ("NVML_TEMPERATURE_GPU",)),
        ),
    ),
    Question(
        Pace.FAST,
        (Pick(metrics.EVENT_REASONS),),
        (Call(_GET + "CurrentClocksEventReasons"), Call(_GET + "CurrentClocksThrottleReasons")),
    ),
    _one(Pace.FAST, metrics.PCIE_GENERATION, _GET + "CurrPcieLinkGeneration"),
    _one(Pace.FAST, metrics.PCIE_WIDTH, _GET + "CurrPcieLinkWidth"),
    _one(Pace.SLOW, metrics.PCIE_GENERATION_MAX, _GET + "MaxPcieLinkGeneration"),
    _one(Pace.SLOW, metrics.PCIE_WIDTH_MAX, _GET + "MaxPcieLinkWidth"),
    _one(Pace.SLOW, metrics.PCIE_REPLAYS, _GET + "PcieReplayCounter"),
    _one(Pace.SLOW, metrics.POWER_LIMIT, _GET + "EnforcedPowerLimit"),
    _one(Pace.SLOW, metrics.CLOCK_SM_MAX, _GET + "MaxClockInfo", "NVML_CLOCK_SM"),
    _one(Pace.SLOW, metrics.PSTATE, _GET + "PerformanceState"),
    _one(
        Pace.SLOW,
        metrics.ECC_CORRECTED,
        _GET + "TotalEccErrors",
        "NVML_MEMORY_ERROR_TYPE_CORRECTED",
        "NVML_VOLATILE_ECC",
    ),
    _one(
        Pace.SLOW,
        metrics.ECC_UNCORRECTED,
        _GET + "TotalEccErrors",
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
        "NVML_VOLATILE_ECC",
    ),
    Question(
        Pace.SLOW,
        (Pick(metrics.ROWS_PENDING, 2), Pick(metrics.ROWS_FAILED, 3)),
        (Call(_GET + "RemappedRows"),),
    ),
    *(
        _one(Pace.SLOW, metric, _GET + "ViolationStatus", constant, of="violationTime")
        for metric, constant in (
            (metrics.VIOLATION_POWER, "NVML_PERF_POLICY_POWER"),
            (metrics.VIOLATION_THERMAL, "NVML_PERF_POLICY_THERMAL"),
            (metrics.VIOLATION_BOARD, "NVML_PERF_POLICY_BOARD_LIMIT"),
            (metrics.VIOLATION_RELIABILITY, "NVML_PERF_POLICY_RELIABILITY"),
            (metrics.VIOLATION_SYNC, "NVML_PERF_POLICY_SYNC_BOOST"),
        )
    ),
)
FIELDS = (
    Field(metrics.PCIE_TX, "NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
    Field(metrics.PCIE_RX, "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
    Field(metrics.NVLINKS, "NVML_FI_DEV_NVLINK_LINK_COUNT"),
    Field(metrics.NVLINK_TX, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS, _KIB),
    Field(metrics.NVLINK_RX, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS, _KIB),
    Field(metrics.NVLINK_REPLAYS, "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
    Field(metrics.NVLINK_RECOVERIES, "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
    Field(metrics.NVLINK_CRC, "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
)
#: Each blocks for 20 ms: asked only where the counters of ``FIELDS`` are not to be had.
RATES = (
    (
        metrics.PCIE_TX,
        _one(
            Pace.SLOW,
            metrics.PCIE_TX_RATE,
            _GET + "PcieThroughput",
            "NVML_PCIE_UTIL_TX_BYTES",
            scale=_KB,
        ),
    ),
    (
        metrics.PCIE_RX,
        _one(
            Pace.SLOW,
            metrics.PCIE_RX_RATE,
            _GET + "PcieThroughput",
            "NVML_PCIE_UTIL_RX_BYTES",
            scale=_KB,
        ),
    ),
)
#: Functions that ``Nvml`` calls itself.
PROCESSES = _GET + "ComputeRunningProcesses"
PROCESS_USE = _GET + "ProcessUtilization"
#: Which member of a field's value holds it, by its type (``nvmlValueType_t``).
VALUE_TYPES = {
    "NVML_VALUE_TYPE_DOUBLE": "dVal",
    "NVML_VALUE_TYPE_UNSIGNED_INT": "uiVal",
    "NVML_VALUE_TYPE_UNSIGNED_LONG": "ulVal",
    "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG": "ullVal",
    "NVML_VALUE_TYPE_SIGNED_LONG_LONG": "sllVal",
    "NVML_VALUE_TYPE_SIGNED_INT": "siVal",
    "NVML_VALUE_TYPE_UNSIGNED_SHORT": "usVal",
}


def pick(answer: object, which: Pick) -> int | None:
    """The number in an answer, in its metric's unit; None where the answer has none."""
    found: object = answer
    if isinstance(which.of, str):
        found = getattr(answer, which.of, None)
    elif which.of is not None:
        several = answer if isinstance(answer, (list, tuple)) else ()
        found = several[which.of] if which.of < len(several) else None
    if isinstance(found, bool) or not isinstance(found, int) or found == _UNKNOWN:
        return None
    return found * which.scale


def field_value(nvml: Any, value: Any, scale: int) -> int | str:  # noqa: ANN401 - has no types
    """A field's number in its metric's unit, or the reason why there is none.

    Args:
        nvml: The binding.
        value: A ``c_nvmlFieldValue_t`` of it, filled in.
        scale: Factor to the metric's unit.
    """
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        return reason_of(nvml, value.nvmlReturn)
    for constant, member in VALUE_TYPES.items():
        if getattr(nvml, constant, None) == value.valueType:
            number: int | float = getattr(value.value, member)
            return round(number * scale) if math.isfinite(number) else "it is no number"
    return f"its type {value.valueType} is not known"


def reason_of(nvml: Any, code: int) -> str:  # noqa: ANN401 - the binding has no types
    """Why NVML gave no answer, for whoever misses it."""
    for name, reason in _REASONS.items():
        if getattr(nvml, name, None) == code:
            return reason
    return f"NVML says: {nvml.NVMLError(code)}"


@dataclass(frozen=True)
class ProcessUse:
    """What a process did on a GPU lately: means over the driver's samples, in percent."""

    pid: int
    sm: int
    memory: int


def process_use(samples: Iterable[Any], since_us: int) -> tuple[tuple[ProcessUse, ...], int]:
    """Means by process of the samples after ``since_us``, and the time of the latest of them.

    Args:
        samples: ``c_nvmlProcessUtilizationSample_t`` of the binding; empty ones are skipped.
        since_us: Time of the latest that was seen before, on NVML's clock.
    """
    seen: dict[int, list[tuple[int, int]]] = {}
    latest = since_us
    for sample in samples:
        if sample.timeStamp > since_us and sample.pid:
            seen.setdefault(sample.pid, []).append((sample.smUtil, sample.memUtil))
            latest = max(latest, sample.timeStamp)
    found = tuple(
        ProcessUse(
            pid,
            round(sum(sm for sm, _ in uses) / len(uses)),
            round(sum(memory for _, memory in uses) / len(uses)),
        )
        for pid, uses in sorted(seen.items())
    )
    return found, latest
