# SPDX-License-Identifier: Apache-2.0
"""Reports of a profile: a recording of devices and calls without an engine's own steps."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from gpucorrelate.cli.options import JSON, Look
from gpucorrelate.cli.output import text_options
from gpucorrelate.correlator.report import device_json, device_text, json
from gpucorrelate.probes.wire.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.cli.produce import Wanted
    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.device_values import DeviceStepRow


def must_be_of_a_profile(run: Run, want: Wanted) -> None:
    """Refuse what a profile does not have.

    Raises:
        UsageError: times were given, by which requests are chosen.
        NotFoundError: a request is wanted, or there is no device activity.
    """
    if want.since or want.until:
        raise UsageError("--since and --until do not go with a profile: it has steps")
    if want.request_id is not None:
        raise NotFoundError(
            "a profile has steps and no requests", hint="see: gpucorrelate report --slowest 1"
        )
    if not run.devices.ledger.gpu_records:
        raise NotFoundError("this trace holds no device activity")


def write(run: Run, want: Wanted, form: str, look: Look, out: IO[str]) -> None:
    """Writes what is wanted of a profile.

    Raises:
        NotFoundError: it has no requests, no such step, or no device activity.
    """
    devices = run.devices
    must_be_of_a_profile(run, want)
    if want.step is not None:
        chosen = [devices.find(want.step, want.process)]
    elif want.slowest is not None:
        chosen = devices.slowest(want.slowest)
    elif form == JSON:
        steps = map(devices.parts, range(len(devices.steps)))
        device_json.write_run(devices.whole(), steps, out)
        return
    else:
        device_text.render_run(devices.whole(), out, text_options(look, out))
        return
    for i, step in enumerate(chosen):
        if form == JSON:
            device_json.write_step(*devices.parts(step), out)
        else:
            out.write("\n\n" if i else "")
            device_text.render_step(devices.report(step), out, text_options(look, out))


def write_steps(
    rows: Sequence[DeviceStepRow], form: str, look: Look, out: IO[str], *, of: int
) -> None:
    """Writes a list of a profile's steps."""
    if form == JSON:
        json.write_lines(map(device_json.step_row_to_dict, rows), out)
    else:
        device_text.render_steps(rows, out, text_options(look, out), of=of)
