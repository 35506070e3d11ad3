# SPDX-License-Identifier: Apache-2.0
"""Play one scenario: ``python -m gpucorrelate.verify.scenarios NAME SEED ROUNDS``.

Prints ``ready``, begins when a line comes on standard input, prints what it did as JSON lines
and then ``done``, and stays until its input ends. On a host that cannot play it, it prints
``impossible: WHY`` instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NoReturn

from gpucorrelate.probes.agents.process import gil_region
from gpucorrelate.verify.scenarios import BY_NAME
from gpucorrelate.verify.scenarios.kit import LIBC, Stage, say, set_name
from gpucorrelate.verify.scenarios.quota import NotPossibleError

_PR_SET_PDEATHSIG = 1


def _leave(*_: object) -> NoReturn:
    """End, cleaning up; once, for the signal comes for each of the parent's threads that ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def main(arguments: list[str]) -> int:
    """Play it; the exit code."""
    name, seed, rounds = arguments
    # Killed with its parent: nothing made here may outlive the one who asked for it.
    LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _leave)
    set_name("gpc-scenario")
    stage = Stage(int(seed), int(rounds))
    try:
        BY_NAME[name].play(stage)
    except NotPossibleError as exc:
        say(f"impossible: {exc}")
        return 0
    say(json.dumps({"process": {"pid": os.getpid(), "gil": str(gil_region() or "")}}))
    stage.end()
    say("done")
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
