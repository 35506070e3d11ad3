# SPDX-License-Identifier: Apache-2.0
"""How much of the GPU is recorded, as options of the commands that attach."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpucorrelate.cli.moments import duration_s
from gpucorrelate.probes.wire.gpu import BOUNDS, GpuMode, GpuPlan

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

_DEFAULT = GpuPlan()


def gpu_options(function: F) -> F:
    """Options that become the argument ``gpu``, a ``GpuPlan``."""

    @wraps(function)
    def read(
        *args: Any,  # noqa: ANN401
        gpu: str,
        gpu_window: str,
        gpu_every: str,
        gpu_steps: int,
        gpu_budget: float,
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        plan = GpuPlan(
            GpuMode(gpu),
            window_ms=_ms("--gpu-window", "window_ms", gpu_window),
            every_ms=_ms("--gpu-every", "every_ms", gpu_every),
            steps=gpu_steps,
            budget_ppm=round(gpu_budget * 10_000),
        )
        return function(*args, gpu=plan, **kwargs)

    for option in reversed(_OPTIONS):
        read = option(read)
    return read  # type: ignore[return-value]


def _ms(option: str, name: str, text: str) -> int:
    found = round(duration_s(text) * 1000)
    least, most = BOUNDS[name]
    if not least <= found <= most:
        raise click.UsageError(f"{option} {text}: must be {least / 1000:g}s to {most // 1000}s")
    return found


_OPTIONS = (
    click.option(
        "--gpu",
        type=click.Choice([mode.value for mode in GpuMode]),
        default=_DEFAULT.mode.value,
        show_default=True,
        help="What is recorded of the GPU: nothing; windows, a CUDA graph's launch as one record; "
        "windows with each kernel of a graph; all the time; or windows by way of cupti-python.",
    ),
    click.option(
        "--gpu-window", metavar="TIME", default="2s", show_default=True, help="Of a window."
    ),
    click.option(
        "--gpu-every", metavar="TIME", default="30s", show_default=True,
        help="From one window's begin to the next one's.",
    ),
    click.option(
        "--gpu-steps", type=click.IntRange(*BOUNDS["steps"]), metavar="N", default=0,
        help="A window also ends after N steps.",
    ),
    click.option(
        "--gpu-budget", type=click.FloatRange(0, 1000), metavar="PERCENT", default=5.0,
        show_default=True,
        help="Windows end for good when steps are longer by more than this in them.",
    ),
)  # fmt: skip
