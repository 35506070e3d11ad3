# SPDX-License-Identifier: Apache-2.0
"""Numbers of GPUs, what each says, and what it is often mistaken for.

Meanings are those of NVIDIA's NVML reference and the manual of nvidia-smi. The subject of a
number is ``gpu:GPU-<uuid>``, and ``gpu:GPU-<uuid> pid:4711`` for a process on it.
"""

from __future__ import annotations

from gpucorrelate.probes.host.reading import Family

_OF = Family("gpu.")
_level, _total, _average = _OF.level, _OF.total, _OF.average

_STALE = (
    " The driver averages over 1/6 to 1 s by model and renews it no faster: asking more often "
    "gives the same value again, and what is shorter is not seen."
)
_NOW = " As it was at that moment: what happened between two readings is not seen."

UTILIZATION = _average(
    "utilization.gpu",
    "percent",
    "Share of time in which at least one kernel ran. Not the share of the GPU that was used: "
    "one small kernel after another makes 100." + _STALE,
)
UTILIZATION_MEMORY = _average(
    "utilization.memory",
    "percent",
    "Share of time in which the GPU's memory was read or written. Neither memory in use nor "
    "the share of its bandwidth." + _STALE,
)
MEMORY_TOTAL = _level("memory.total", "bytes", "Memory of the GPU.")
MEMORY_USED = _level(
    "memory.used",
    "bytes",
    "GPU memory that is allocated, by all processes. vLLM takes its KV cache at start, so it "
    "hardly moves and does not show how full the cache is." + _NOW,
)
MEMORY_FREE = _level("memory.free", "bytes", "GPU memory that is not allocated." + _NOW)
MEMORY_RESERVED = _level(
    "memory.reserved", "bytes", "GPU memory that driver and firmware keep for themselves."
)
UNIFIED_TOTAL = _level(
    "memory.unified.total",
    "bytes",
    "The machine's memory, which this GPU shares with the CPUs: it has none of its own.",
)
UNIFIED_AVAILABLE = _level(
    "memory.unified.available",
    "bytes",
    "Memory that the kernel could still hand out, to the GPU or to anybody: MemAvailable, "
    "page cache that can be dropped included." + _NOW,
)
POWER = _average(
    "power.draw",
    "mW",
    "Power of the board with its memory; averaged over 1 s by newer models, at that moment on "
    "older ones. For a window use the energy.",
)
POWER_LIMIT = _level("power.limit", "mW", "Power at which the driver lowers the clocks.")
ENERGY = _total(
    "energy",
    "mJ",
    "Energy used since the driver was loaded: divided by the time between two readings it is "
    "the mean power there, peaks included.",
)
CLOCK_SM = _level(
    "clocks.sm",
    "MHz",
    "Clock of the multiprocessors. Low is normal when idle; low under load has a reason, see "
    "gpu.clocks.event_reasons." + _NOW,
)
CLOCK_MEMORY = _level("clocks.mem", "MHz", "Clock of the GPU's memory." + _NOW)
CLOCK_SM_MAX = _level("clocks.max.sm", "MHz", "Highest clock of the multiprocessors.")
TEMPERATURE = _level("temperature.gpu", "C", "Temperature of the GPU's core." + _NOW)
EVENT_REASONS = _level(
    "clocks.event_reasons",
    "",
    "Bits that say why the clocks are below their highest; bit 0 is idle, which limits "
    "nothing." + _NOW,
)
PSTATE = _level("pstate", "", "Performance state: 0 is fastest, 8 and above mostly idle." + _NOW)

_HELD_BACK = " Summed by the driver, so nothing between two readings is missed."
VIOLATION_POWER = _total(
    "violation.power", "ns", "Time the clocks were lowered to stay within power." + _HELD_BACK
)
VIOLATION_THERMAL = _total(
    "violation.thermal", "ns", "Time the clocks were lowered for heat." + _HELD_BACK
)
VIOLATION_BOARD = _total(
    "violation.board_limit",
    "ns",
    "Time the clocks were lowered by a limit of the board." + _HELD_BACK,
)
VIOLATION_RELIABILITY = _total(
    "violation.reliability",
    "ns",
    "Time the clocks were lowered for the voltage's sake." + _HELD_BACK,
)
VIOLATION_SYNC = _total(
    "violation.sync_boost",
    "ns",
    "Time the clocks were lowered to those of other GPUs in a group." + _HELD_BACK,
)

_UNDER_LOAD = " An idle GPU lowers it to save power: only a reading under load counts."
PCIE_GENERATION = _level(
    "pcie.link.gen.current", "", "PCIe generation the link runs at now." + _UNDER_LOAD
)
PCIE_GENERATION_MAX = _level(
    "pcie.link.gen.max", "", "Highest PCIe generation that GPU and slot can both do."
)
PCIE_WIDTH = _level(
    "pcie.link.width.current", "count", "PCIe lanes the link uses now." + _UNDER_LOAD
)
PCIE_WIDTH_MAX = _level("pcie.link.width.max", "count", "PCIe lanes that GPU and slot have.")
PCIE_TX = _total(
    "pcie.tx",
    "bytes",
    "Sent by the GPU over PCIe, to the host or to other GPUs. The counter may wrap. Kernels "
    "that reach host memory send too, and look like compute in a profile.",
)
PCIE_RX = _total(
    "pcie.rx",
    "bytes",
    "Received by the GPU over PCIe. The counter may wrap. Kernels that reach host memory "
    "receive too, and look like compute in a profile.",
)
PCIE_TX_RATE = _average(
    "pcie.tx.rate",
    "bytes/s",
    "Sent by the GPU over PCIe in the 20 ms after the question: a short look, not the time "
    "since the last one.",
)
PCIE_RX_RATE = _average(
    "pcie.rx.rate",
    "bytes/s",
    "Received by the GPU over PCIe in the 20 ms after the question: a short look, not the time "
    "since the last one.",
)
PCIE_REPLAYS = _total(
    "pcie.replays",
    "count",
    "Packets that PCIe had to send again: more than a few an hour means a bad link.",
)
ECC_CORRECTED = _total(
    "ecc.corrected",
    "count",
    "Memory errors that were corrected since the driver was loaded; harmless one by one.",
)
ECC_UNCORRECTED = _total(
    "ecc.uncorrected",
    "count",
    "Memory errors that could not be corrected since the driver was loaded; the process that "
    "had the memory was ended.",
)
ROWS_PENDING = _level(
    "rows.pending", "", "1: memory rows wait to be replaced at the next reset of the GPU."
)
ROWS_FAILED = _level("rows.failed", "", "1: a memory row could not be replaced: a broken GPU.")

_ALL_LINKS = " Over all NVLinks of the GPU."
NVLINKS = _level("nvlink.count", "count", "NVLinks that the GPU has, in use or not.")
NVLINK_TX = _total("nvlink.tx", "bytes", "Data sent over NVLink, headers left out." + _ALL_LINKS)
NVLINK_RX = _total(
    "nvlink.rx", "bytes", "Data received over NVLink, headers left out." + _ALL_LINKS
)
NVLINK_REPLAYS = _total(
    "nvlink.replays", "count", "Packets that NVLink had to send again." + _ALL_LINKS
)
NVLINK_RECOVERIES = _total(
    "nvlink.recoveries", "count", "Times an NVLink had to be trained anew." + _ALL_LINKS
)
NVLINK_CRC = _total(
    "nvlink.crc_errors", "count", "Flow control units damaged on the way." + _ALL_LINKS
)

PROCESS_MEMORY = _level(
    "process.memory",
    "bytes",
    "GPU memory that a process holds, its CUDA context included. Process ids are those of the "
    "host." + _NOW,
)
PROCESS_SM = _average(
    "process.utilization.sm",
    "percent",
    "Share of time in which a kernel of this process ran, mean of the driver's samples since "
    "the last reading. Processes that take turns share one hundred.",
)
PROCESS_MEMORY_USE = _average(
    "process.utilization.memory",
    "percent",
    "Share of time in which this process had the GPU's memory read or written, mean of the "
    "driver's samples since the last reading.",
)
POLL_WALL = _level(
    "poll.wall",
    "ns",
    "How long asking about this GPU took: so far apart are the numbers of one round.",
)

#: Bits of ``EVENT_REASONS``, by NVML's ``nvmlClocksEventReasons``.
EVENT_REASON_NAMES = {
    0x001: "idle",
    0x002: "applications clocks setting",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability",
}


def event_reasons(bits: int) -> tuple[str, ...]:
    """Why the clocks are below their highest; a bit nobody here knows is named by number."""
    found = [name for bit, name in EVENT_REASON_NAMES.items() if bits & bit]
    unknown = bits & ~sum(EVENT_REASON_NAMES)
    return (*found, f"unknown ({unknown:#x})") if unknown else tuple(found)
