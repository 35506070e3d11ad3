# SPDX-License-Identifier: Apache-2.0
"""What categories and phases mean, in a few words."""

from __future__ import annotations

from gpucorrelate.correlator.report.values import Category, PhaseName

CATEGORIES: dict[Category, str] = {
    Category.CPU: "running code",
    Category.GIL: "waiting for the interpreter lock",
    Category.LOCK: "blocked on a lock, explained no further",
    Category.MESSAGE: "blocked on a socket, pipe or queue, explained no further",
    Category.SPIN_HANDOFF: "polling before noticing what was already there",
    Category.RUN_QUEUE: "ready to run, waiting for a CPU",
    Category.PREEMPTED: "taken off the CPU for another thread",
    Category.THROTTLED: "ready to run, its cgroup out of CPU quota",
    Category.SLEEP: "asleep until a timer ended it",
    Category.PAGE_FAULT: "resolving page faults",
    Category.DISK: "waiting for a disk",
    Category.NETWORK: "waiting for the network",
    Category.IRQ: "woken by an interrupt or kernel thread",
    Category.EXTERNAL: "waiting for a process that is not traced",
    Category.UNOBSERVED: "no probe covered it",
    Category.UNEXPLAINED: "covered, but no evidence names a cause",
    Category.GPU: "the GPU ran this step's work",
    Category.GPU_EARLIER: "the GPU ran work of another step",
    Category.LAUNCH_GAP: "launched, not begun on the GPU yet",
    Category.QUEUE_GAP: "free to begin on the GPU, not begun yet",
    Category.SYNC_RETURN: "the GPU was done, the waiting call had not returned",
    Category.HOST: "the thread's own time; whether it had a CPU was not recorded",
}
PHASES: dict[PhaseName, str] = {
    PhaseName.RECEIVE: "received, until tokenising began: parsing, template, limits",
    PhaseName.TOKENISE: "turning the prompt into tokens",
    PhaseName.SEND: "tokenised, until handed to the engine's socket",
    PhaseName.ADMIT: "sent, until the engine core admitted it",
    PhaseName.QUEUE: "admitted, until first scheduled",
    PhaseName.PREFILL: "steps with its prompt's tokens, nobody decoding",
    PhaseName.MIXED: "steps in which some had prompt tokens and others decoded",
    PhaseName.DECODE: "steps in which all rows decoded",
    PhaseName.BETWEEN: "between its steps: not scheduled",
    PhaseName.OUTPUT: "from the engine's last output to the last byte",
    PhaseName.UNKNOWN: "a boundary is missing",
}
