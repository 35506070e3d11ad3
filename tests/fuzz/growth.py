# SPDX-License-Identifier: Apache-2.0
"""Whether a target's memory grows with the inputs: ``python -m tests.fuzz.growth NAME FOLDER``.

All inputs of a corpus again and again, without atheris, which has leaks of its own. The first
rounds fill caches; after them the process may not grow by more than a small part of an input's
size for each input.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import mmap
import os
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS

_WARM, _ROUNDS = 2, 6
#: Runs of the target in a round, whatever the size of its corpus.
_RUNS = 500
#: What the allocator may take in all that time.
_MOST_GROWTH_BYTES = 8 << 20


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def main() -> int:
    """The exit code: 1 where it grows."""
    name, folder = sys.argv[1:]
    target = TARGETS[name]
    logging.disable(logging.CRITICAL)
    inputs = [path.read_bytes() for path in sorted(Path(folder).iterdir())] or [b""]
    seen = []
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        contextlib.redirect_stdout(nowhere),
    ):
        for _ in range(_WARM + _ROUNDS):
            for number in range(_RUNS):
                target.run(inputs[number % len(inputs)])
            seen.append(_resident_bytes())
    grown = seen[-1] - seen[_WARM - 1]
    told = f"{grown >> 10} KiB in {_ROUNDS * _RUNS} runs of {len(inputs)} inputs"
    print(f"{name}: grew by {told}")  # noqa: T201
    return 1 if grown > _MOST_GROWTH_BYTES else 0


if __name__ == "__main__":
    raise SystemExit(main())
