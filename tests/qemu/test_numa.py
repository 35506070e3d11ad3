# SPDX-License-Identifier: Apache-2.0
"""Two NUMA nodes: read truly, disagreements found, and saved for tests on any machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.qemu.checks import passed
from tests.qemu.kernels import ROOT

if TYPE_CHECKING:
    from tests.qemu.guest import Guest

SAVED = ROOT / "tests" / "unit" / "data" / "two_nodes"
#: Files whose text is the machine's and not the moment's.
_FIXED = ("online", "has_cpu", "has_memory", "cpulist", "distance", "class", "vendor", "device",
          "numa_node", "local_cpulist", "current_link_speed", "current_link_width",
          "max_link_speed", "max_link_width")  # fmt: skip


def test_memory_on_the_far_node_is_found_and_recorded(guest: Guest) -> None:
    assert passed(guest, "check_numa")


def _tree(folder: Path) -> dict[str, str]:
    """Every file and link of a saved machine; the text of those that do not change by the hour."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file() and path.name != "README":
            parts = ["PID" if part.isdecimal() else part for part in Path(name).parts]
            fixed = path.name in _FIXED
            found["/".join(parts)] = path.read_text() if fixed else ""
    return found


def test_the_saved_machine_can_be_made_again(guest: Guest, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.capture_two_nodes", str(guest.kernel.image),
               str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert _tree(tmp_path) == _tree(SAVED)
