# SPDX-License-Identifier: Apache-2.0
"""From the daemon command's options to its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucorrelate.daemon.config import MIB, DaemonConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

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
}
_SIZES = {
    "session_max_mib": ("session_max_bytes", MIB),
    "total_max_mib": ("total_max_bytes", MIB),
    "ring_kib": ("ring_bytes", _KIB),
    "sum_below_us": ("min_wait_ns", 1_000),
}
_OFF = {
    "no_faults": "faults",
    "no_ebpf": "ebpf",
    "keep_privileges": "drop_privileges",
    "no_resume": "resume",
}


def daemon_config(given: Mapping[str, object]) -> DaemonConfig:
    """The settings for the options given.

    A limit on one session raises the limit on all, and lowers the size of a segment, where
    those would contradict it.

    Raises:
        UsageError: settings contradict each other.
    """
    settings: dict[str, Any] = {}
    for option, setting in _AS_IS.items():
        value = given.get(option)
        if value is not None and value is not False:
            settings[setting] = value.absolute() if isinstance(value, Path) else value
    for option, (setting, unit) in _SIZES.items():
        value = given.get(option)
        if isinstance(value, int):
            settings[setting] = value * unit
    settings |= {setting: False for option, setting in _OFF.items() if given.get(option)}
    _reconcile(settings)
    return DaemonConfig(**settings)


def _reconcile(settings: dict[str, Any]) -> None:
    session = settings.get("session_max_bytes")
    total = settings.get("total_max_bytes")
    if session is None and total is not None:
        session = settings["session_max_bytes"] = min(total, DaemonConfig.session_max_bytes)
    if session is None:
        return
    settings["segment_bytes"] = min(DaemonConfig.segment_bytes, session // 2)
    if total is None:
        settings["total_max_bytes"] = max(session, DaemonConfig.total_max_bytes)
