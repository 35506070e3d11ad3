# SPDX-License-Identifier: Apache-2.0
"""What held up a step of a profile, in a sentence, unless the unknown could overturn it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.values import Category, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucorrelate.correlator.report.device_values import (
        DeviceLedger,
        PathCommunication,
        PathCopies,
        StepDevice,
    )

_UNKNOWN = (Category.UNOBSERVED, Category.UNEXPLAINED)
#: What each part of the path means for the step as a whole.
_MEANS = {
    Category.HOST: "host-bound: the path is {share} host code and API calls",
    Category.CPU: "host-bound: the path is {share} host code and API calls",
    Category.GPU: "GPU-bound: the path is {share} the step's own GPU work",
    Category.GPU_EARLIER: "behind earlier steps: the path is {share} GPU work they launched",
    Category.LAUNCH_GAP: "launch-bound: the path is {share} launched work not yet begun",
    Category.QUEUE_GAP: "dispatch-bound: the path is {share} gaps between queued GPU work",
    Category.SYNC_RETURN: "return-bound: the path is {share} calls returning after GPU work ended",
}


#: A smaller part of the path is not worth a word in the sentence.
_TENTH = 10


def of(
    sums: Sequence[tuple[Category, int]],
    did: tuple[StepDevice, PathCommunication, PathCopies],
    ledger: DeviceLedger,
    wall_ns: int,
) -> Verdict:
    """The verdict on a step.

    Withheld where the lead of the largest part over the next is no more than what is unknown, or
    than what records that were left out could have covered.

    Args:
        sums: Its path by category, the longest first.
        did: What devices did in it, and the communication and the copies on its path.
        ledger: What became of every record.
        wall_ns: Its length.
    """
    unknown_ns = sum(length for category, length in sums if category in _UNKNOWN)
    ranked = [pair for pair in sums if pair[0] not in _UNKNOWN][:2]
    if not ranked:
        return Verdict(
            "no verdict: nothing is known of the step", (), None, unknown_ns, ("empty",)
        )
    (largest, length), *rest = ranked
    lead = length - (rest[0][1] if rest else 0)
    if lead <= unknown_ns:
        why = f"{units.share(unknown_ns, wall_ns)} of the path is unobserved or unexplained"
        return Verdict(f"no verdict: {why}", (), None, unknown_ns, (why,))
    left_out = ledger.invalid + ledger.repeated_ids
    if left_out and lead * ledger.gpu_records <= 2 * left_out * wall_ns:
        why = f"{left_out:,} GPU records are invalid or joined by an id that several calls have"
        return Verdict(f"no verdict: {why}", (), None, unknown_ns, (why,))
    device, communication, copies = did
    means = _MEANS.get(largest, f"the path is {{share}} {largest}")
    if largest is Category.GPU and communication.length_ns * 2 > length:
        means = "communication-bound: the path is {share} the step's own GPU work"
    elif largest is Category.GPU and copies.length_ns * 2 > length:
        means = "copy-bound: the path is {share} the step's own GPU work"
    text = means.format(share=units.share(length, wall_ns))
    text += _waiting(communication, wall_ns) + _copied(copies, wall_ns)
    busy = dict(device.parts).get("own GPU work", 0)
    text += f"; its own GPU work fills {units.share(busy, wall_ns)} of the step"
    return Verdict(text, (), None, unknown_ns, ())


def _waiting(communication: PathCommunication, wall_ns: int) -> str:
    """What of the path may be, or was, waiting for other processes on the device."""
    if communication.length_ns * _TENTH < wall_ns:
        return ""
    text = f"; {units.share(communication.length_ns, wall_ns)} is communication kernels, which run"
    text += " while they wait for other processes too"
    if communication.waited_ns is None:
        return f"{text} (how long is not on record)"
    return f"{text} (at least {units.duration(communication.waited_ns)} of it)"


def _copied(copies: PathCopies, wall_ns: int) -> str:
    """How much of the path copies and fills are, where that is a tenth of it or more."""
    if copies.length_ns * _TENTH < wall_ns:
        return ""
    text = f"; {units.share(copies.length_ns, wall_ns)} is copies and fills"
    return f"{text}, {units.share(copies.kernels_ns, wall_ns)} kernels"
