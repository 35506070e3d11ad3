# SPDX-License-Identifier: Apache-2.0
"""Boot a kernel in QEMU with this tree and run a gpucorrelate command there.

``python -m scripts.qemu_guest 6.12 check`` uses the machine of the slow tests (``tests/qemu``);
emulated, so it takes half a minute. ``python -m scripts.qemu_guest 6.12 --shell 'dmesg'`` runs
another command.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.qemu import disk
from tests.qemu.guest import Guest, why_not
from tests.qemu.kernels import NoKernelError, kernel


def main() -> int:
    """Boot, run, and turn off; the command's exit code."""
    if len(sys.argv) < 3:
        print("usage: python -m scripts.qemu_guest SERIES COMMAND...", file=sys.stderr)
        return 2
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    series, *command = sys.argv[1:]
    try:
        booted = kernel(series)
    except NoKernelError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="gpcd") as folder:
        image = disk.build(Path(folder), [booted])
        with Guest(booted, image) as guest:
            print(f"{booted.release} is up", file=sys.stderr)
            if command[0] == "--shell":
                done = guest.run("sh", "-c", " ".join(command[1:]), check=False)
            else:
                done = guest.gpucorrelate(*command, check=False)
    print(done.text, end="")
    return done.code


if __name__ == "__main__":
    sys.exit(main())
