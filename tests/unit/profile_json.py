# SPDX-License-Identifier: Apache-2.0
"""What the command line prints of a profile as JSON, read back."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.report import device_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucorrelate.correlator.report.device_values import DeviceRunReport, DeviceStepReport


def run_document(run: DeviceRunReport, steps: Iterable[DeviceStepReport]) -> dict[str, Any]:
    """A whole profile."""
    out = io.StringIO()
    device_json.write_run(run, ((step, step.segments) for step in steps), out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def step_document(step: DeviceStepReport) -> dict[str, Any]:
    """One step."""
    out = io.StringIO()
    device_json.write_step(step, step.segments, out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found
