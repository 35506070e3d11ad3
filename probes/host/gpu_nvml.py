# SPDX-License-Identifier: Apache-2.0
"""GPU counters through NVML, NVIDIA's own library, by its binding ``nvidia-ml-py``.

Only the calls are here; what to ask and what answers mean is in the table. A number that cannot
be had is told with the reason.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.host import gpu_metrics as metrics
from gpucorrelate.probes.host.gpu import Gpu, Pace, sysfs_address
from gpucorrelate.probes.host.gpu_nvml_table import (
    FIELDS,
    PROCESS_USE,
    PROCESSES,
    QUESTIONS,
    RATES,
    TRY_NEXT,
    Call,
    Question,
    field_value,
    pick,
    process_use,
    reason_of,
)
from gpucorrelate.probes.host.reading import Missing, Reading, Sample

if TYPE_CHECKING:
    from gpucorrelate.probes.host.reading import Metric

_TOO_OLD = "nvidia-ml-py is too old to know it"


class _Asked:
    """What one GPU answered in one round."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.readings: list[Reading] = []
        self.missing: list[Missing] = []

    def tell(self, metric: Metric, value: int | str, *, pid: int | None = None) -> None:
        """A number, or why there is none."""
        subject = self._subject if pid is None else f"{self._subject} pid:{pid}"
        if isinstance(value, str):
            self.missing.append(Missing(metric.name, subject, value))
        else:
            self.readings.append(Reading(metric, subject, value, time.monotonic_ns()))


class Nvml:
    """NVML, opened. For one thread: calls block as long as the driver takes.

    Args:
        nvml: The binding, initialised; shut down with this.
        gpus: The GPUs and their handles.
        missing: GPUs that could not be opened.
    """

    name = "nvml"

    def __init__(
        self,
        nvml: Any,  # noqa: ANN401 - the binding has no types
        gpus: tuple[tuple[Gpu, Any], ...],
        missing: tuple[Missing, ...],
    ) -> None:
        self._nvml = nvml
        self._gpus = gpus
        self._lost = missing
        self._seen_us: dict[str, int] = {}
        self._try_next = {getattr(nvml, name, None) for name in TRY_NEXT}

    @classmethod
    def open(cls) -> Nvml | Missing:
        """Find the GPUs; the reason where that cannot be done."""
        try:
            import pynvml as nvml
        except ImportError:
            return Missing("nvml", "host", "nvidia-ml-py is not installed")
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return Missing("nvml", "host", reason_of(nvml, error.value))
        gpus: list[tuple[Gpu, Any]] = []
        missing: list[Missing] = []
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            nvml.nvmlShutdown()
            return Missing("nvml", "host", reason_of(nvml, error.value))
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append((_identity(nvml, index, handle), handle))
            except nvml.NVMLError as error:
                missing.append(Missing("nvml", f"gpu:{index}", reason_of(nvml, error.value)))
        if not gpus:
            nvml.nvmlShutdown()
            return missing[0] if missing else Missing("nvml", "host", "the driver has no GPU")
        return cls(nvml, tuple(gpus), tuple(missing))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that could be opened."""
        return tuple(gpu for gpu, _ in self._gpus)

    def sample(self, pace: Pace) -> Sample:
        """Ask every GPU; ``SLOW`` asks for everything."""
        readings: list[Reading] = []
        missing = list(self._lost)
        for gpu, handle in self._gpus if self._nvml is not None else ():
            start_ns = time.monotonic_ns()
            asked = _Asked(gpu.subject)
            for question in QUESTIONS:
                if question.pace <= pace:
                    self._ask(asked, handle, question)
            if pace is Pace.SLOW:
                self._ask_fields(asked, handle)
                self._ask_processes(asked, gpu, handle)
            asked.tell(metrics.POLL_WALL, time.monotonic_ns() - start_ns)
            readings += asked.readings
            missing += asked.missing
        return Sample(tuple(readings), tuple(missing))

    def close(self) -> None:
        """Let go; twice does no harm."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                return

    def _ask(self, asked: _Asked, handle: Any, question: Question) -> None:  # noqa: ANN401
        answer, reason = self._call(handle, question.calls)
        for which in question.picks:
            value = None if reason else pick(answer, which)
            asked.tell(which.metric, reason or "not in its answer" if value is None else value)

    def _call(self, handle: Any, calls: tuple[Call, ...]) -> tuple[object, str]:  # noqa: ANN401
        """The answer of the first call that gives one; else the reason of the last."""
        nvml = self._nvml
        reason = ""
        for call in calls:
            function = getattr(nvml, call.function, None)
            arguments = [getattr(nvml, name, None) for name in call.constants]
            if function is None or None in arguments:
                continue
            try:
                return function(handle, *arguments), ""
            except nvml.NVMLError as error:
                reason = reason_of(nvml, error.value)
                if error.value not in self._try_next:
                    break
        return None, reason or _TOO_OLD

    def _ask_fields(self, asked: _Asked, handle: Any) -> None:  # noqa: ANN401
        nvml = self._nvml
        known = [(field, getattr(nvml, field.constant, None)) for field in FIELDS]
        ids = [(number, field.scope) for field, number in known if number is not None]
        silent: set[str] = set()
        try:
            answers = iter(nvml.nvmlDeviceGetFieldValues(handle, ids))
            values = [
                _TOO_OLD if number is None else field_value(nvml, next(answers), field.scale)
                for field, number in known
            ]
        except nvml.NVMLError as error:
            values = [reason_of(nvml, error.value)] * len(known)
        for (field, _), value in zip(known, values, strict=True):
            asked.tell(field.metric, value)
            if isinstance(value, str):
                silent.add(field.metric.name)
        for counter, question in RATES:
            if counter.name in silent:
                self._ask(asked, handle, question)

    def _ask_processes(self, asked: _Asked, gpu: Gpu, handle: Any) -> None:  # noqa: ANN401
        nvml = self._nvml
        found, reason = self._call(handle, (Call(PROCESSES),))
        if reason:
            asked.tell(metrics.PROCESS_MEMORY, reason)
        for process in found if isinstance(found, list) else ():
            held = process.usedGpuMemory
            asked.tell(
                metrics.PROCESS_MEMORY,
                "the driver does not tell" if held is None else held,
                pid=process.pid,
            )
        since_us = self._seen_us.get(gpu.uuid, 0)
        try:
            samples = getattr(nvml, PROCESS_USE)(handle, since_us)
        except nvml.NVMLError as error:
            asked.tell(metrics.PROCESS_SM, reason_of(nvml, error.value))
            return
        uses, self._seen_us[gpu.uuid] = process_use(samples, since_us)
        for use in uses:
            asked.tell(metrics.PROCESS_SM, use.sm, pid=use.pid)
            asked.tell(metrics.PROCESS_MEMORY_USE, use.memory, pid=use.pid)


def _identity(nvml: Any, index: int, handle: Any) -> Gpu:  # noqa: ANN401
    def text(found: str | bytes) -> str:
        # Which of both differs between versions of the binding.
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    bus_id = text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    uuid = text(nvml.nvmlDeviceGetUUID(handle))
    return Gpu(index, uuid, sysfs_address(bus_id), text(nvml.nvmlDeviceGetName(handle)))
