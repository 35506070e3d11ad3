# SPDX-License-Identifier: Apache-2.0
"""Reading the settings again while the daemon runs: what can change, and what needs a restart."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.configkeys import TABLES, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Settings that hold from the next turn on. All others are built into what is open or loaded:
#: sockets, recordings, kernel probes, streams.
RELOADABLE = (
    "session_max_bytes",
    "total_max_bytes",
    "max_age_s",
    "tick_ms",
    "log_level",
    "limits.clients",
    "limits.clients_per_uid",
    "limits.control_clients",
    "limits.control_clients_per_uid",
    "limits.control_idle_s",
    "limits.read_bytes_per_tick",
    "limits.idle_read_bytes_per_tick",
    "limits.damaged",
    "limits.sessions",
    "limits.sessions_per_uid",
    "limits.finished_sessions",
    "metrics.listen",
    "metrics.remote",
    "metrics.requests",
    "metrics.exemplars",
)


@dataclass(frozen=True)
class Reload:
    """What comes of new settings.

    Attributes:
        config: What holds from now on.
        changed: Settings that were taken over.
        left: Settings that differ and need a restart.
    """

    config: DaemonConfig
    changed: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def text(self) -> str:
        """In one line."""
        parts = [f"changed: {', '.join(self.changed) or 'nothing'}"]
        if self.left:
            parts.append(f"needs a restart: {', '.join(self.left)}")
        return "; ".join(parts)


def reload(old: DaemonConfig, new: DaemonConfig) -> Reload:
    """Take over what can be taken over.

    Raises:
        UsageError: what can be taken over contradicts what needs a restart.
    """
    differ = list(_differences(old, new))
    changed = tuple(name for name in differ if name in RELOADABLE)
    own = {name: getattr(new, name) for name in changed if not table_of(name)}
    for table in TABLES:
        inner = [name.partition(".")[2] for name in changed if table_of(name) == table]
        taken = {name: getattr(getattr(new, table), name) for name in inner}
        own[table] = replace(getattr(old, table), **taken)
    config = replace(old, **own)
    return Reload(config, changed, tuple(name for name in differ if name not in RELOADABLE))


def _differences(old: DaemonConfig, new: DaemonConfig) -> Iterable[str]:
    for field in dataclasses.fields(DaemonConfig):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if field.name not in TABLES:
            if before != after:
                yield field.name
            continue
        for inner in dataclasses.fields(TABLES[field.name]):
            if getattr(before, inner.name) != getattr(after, inner.name):
                yield f"{field.name}.{inner.name}"
