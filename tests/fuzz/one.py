# SPDX-License-Identifier: Apache-2.0
"""One fuzz target under atheris: ``python -m tests.fuzz.one NAME CORPUS [OPTION...]``."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import atheris  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    name, corpus, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["gpucorrelate"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    logging.disable(logging.CRITICAL)
    for seed in (*target.seeds(), *(path.read_bytes() for path in target.found())):
        (Path(corpus) / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as words:
        for word in target.words:
            words.write('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n')
        words.flush()
        arguments = [sys.argv[0], corpus, f"-max_len={target.max_bytes}", *options]
        if target.words:
            arguments.append(f"-dict={words.name}")
        atheris.Setup(arguments, _quiet(target.run))
        atheris.Fuzz()


def _quiet(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
    # Reports' warnings go to standard error by the thousand; libFuzzer writes to the descriptor.
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives

    def quiet(data: bytes) -> None:
        with contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
            run(data)

    return quiet


if __name__ == "__main__":
    main()
