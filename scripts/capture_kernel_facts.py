# SPDX-License-Identifier: Apache-2.0
"""Save what the probes ask of a kernel, as one says it, for tests on any machine.

``python -m scripts.capture_kernel_facts [FOLDER]`` boots each kernel that the slow tests boot
(see ``tests/qemu``) and writes ``SERIES.json``, by default where the unit tests look.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.qemu import disk
from tests.qemu.guest import Guest, why_not
from tests.qemu.kernels import ROOT, SERIES, NoKernelError, kernel

_FOLDER = ROOT / "tests" / "unit" / "data" / "kernels"
_ASK = """
import dataclasses, json
from gpucorrelate.probes.ebpf.support import facts
found = facts()
print(json.dumps(dataclasses.asdict(found) | {"symbols": sorted(found.symbols)}))
"""


def main() -> int:
    """Capture; the exit code."""
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        kernels = [kernel(series) for series in SERIES]
    except NoKernelError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="gpcd") as made:
        image = disk.build(Path(made), kernels)
        for one in kernels:
            with Guest(one, image) as guest:
                found = json.loads(guest.python("-c", _ASK).text)
            path = folder / f"{one.series}.json"
            path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            print(f"{path}: {one.release}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
