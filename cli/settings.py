# SPDX-License-Identifier: Apache-2.0
"""From the daemon command's options and its settings file to its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.daemon import configfile
from gpucorrelate.daemon.config import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.configkeys import Value

_KIB = 1024
# Option -> setting; those that are not given keep the setting's own default.
_AS_IS = {
    "runtime_dir": "runtime_dir",
    "state_dir": "state_dir",
    "control": "control_socket",
    "ingest": "ingest_socket",
    "group": "group",
    "require_ebpf": "require_ebpf",
    "yields": "yields",
    "backend": "backend",
    "log_level": "log_level",
    "metrics": "metrics.listen",
    "metrics_remote": "metrics.remote",
    "metrics_requests": "metrics.requests",
}
_SIZES = {
    "session_max_mib": ("session_max_bytes", MIB),
    "total_max_mib": ("total_max_bytes", MIB),
    "ring_kib": ("ring_bytes", _KIB),
    "sum_below_us": ("min_wait_ns", 1_000),
    "poll_ms": ("poll_ms", 1),
}
_OFF = {
    "no_faults": "faults",
    "no_ebpf": "ebpf",
    "no_engine_metrics": "engine_metrics",
    "keep_privileges": "drop_privileges",
    "no_resume": "resume",
}


@dataclass(frozen=True)
class DaemonSettings:
    """Where the daemon's settings come from.

    Attributes:
        path: The settings file; None: the usual one, if it is there.
        options: What the command line says; it comes before the file.
    """

    path: Path | None
    options: tuple[tuple[str, Value], ...]

    @property
    def what(self) -> str:
        """The file, in words."""
        if self.path is not None:
            return str(self.path)
        there = configfile.DEFAULT_PATH.exists()
        return f"{configfile.DEFAULT_PATH}{'' if there else ' (not there)'}"

    def read(self) -> DaemonConfig:
        """The settings as they are now.

        Raises:
            NotFoundError: the file that was named is not there.
            NotPermittedError: it may not be read, or others than root could change it.
            UsageError: it, or the options, make no sense.
        """
        return configfile.config_of(configfile.read(self.path), dict(self.options))


def daemon_settings(given: Mapping[str, object]) -> DaemonSettings:
    """The settings for the options given."""
    settings: dict[str, Value] = {}
    for option, setting in _AS_IS.items():
        value = given.get(option)
        if isinstance(value, Path):
            settings[setting] = value.absolute()
        elif isinstance(value, str) or value is True:
            settings[setting] = value
    for option, (setting, unit) in _SIZES.items():
        value = given.get(option)
        if isinstance(value, int):
            settings[setting] = value * unit
    settings |= {setting: False for option, setting in _OFF.items() if given.get(option)}
    path = given.get("config")
    file = path.absolute() if isinstance(path, Path) else None
    return DaemonSettings(file, tuple(settings.items()))
