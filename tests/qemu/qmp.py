# SPDX-License-Identifier: Apache-2.0
"""The emulator's control socket: plug devices in and out of a running guest.

Format: QEMU Machine Protocol, docs/interop/qmp-spec of QEMU.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S = 60.0


class MonitorError(Exception):
    """The emulator refused a command; the text is its own."""


class Monitor:
    """A connection to the control socket.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE_S)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rw", encoding="utf-8")
        self._file.readline()
        self.do("qmp_capabilities")

    def do(self, command: str, **arguments: object) -> Any:
        """Have a command carried out; what it returns.

        Raises:
            MonitorError: it is refused.
        """
        names = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._file.write(json.dumps({"execute": command, "arguments": names}) + "\n")
        self._file.flush()
        while True:
            heard = self._hear()
            if "error" in heard:
                raise MonitorError(heard["error"]["desc"])
            if "return" in heard:
                return heard["return"]
            # All else is events, which nobody here waits for.

    def plugged(self) -> set[str]:
        """Ids of the devices that are plugged in, by the emulator's account."""
        found = self.do("qom-list", path="/machine/peripheral")
        return {one["name"] for one in found if one["name"] != "type"}

    def _hear(self) -> dict[str, Any]:
        line = self._file.readline()
        if not line:
            raise MonitorError("the emulator is gone")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()
