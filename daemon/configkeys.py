# SPDX-License-Identifier: Apache-2.0
"""What may stand in the settings file, by ``DaemonConfig`` and its tables, and the default file.

A field of those is a setting of the file, and its documentation is the comment there; so a new
one needs nothing here but its bounds. ``python -m gpucorrelate.daemon.configkeys`` prints the
default file, ``systemd/config.toml``.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
import typing
from dataclasses import dataclass
from pathlib import Path

from gpucorrelate.daemon.config import (
    GIB,
    LOG_LEVELS,
    MAX_TOTAL_BYTES,
    MIB,
    DaemonConfig,
    Limits,
    MetricsConfig,
)
from gpucorrelate.probes.ebpf.values import BACKENDS

#: Tables of the file, which are fields of ``DaemonConfig`` too, and whose fields they hold. Names
#: of settings in them begin with the table's and a dot.
TABLES: dict[str, type[Limits] | type[MetricsConfig]] = {
    "limits": Limits,
    "metrics": MetricsConfig,
}
_TABLE_TEXTS = {
    "limits": "What no peer and no session can exceed.",
    "metrics": "The daemon's own numbers for Prometheus.",
}
#: Units that sizes may be written in.
UNITS = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 1 << 40,
    "EiB": 1 << 60,
}

Value = bool | int | float | str | Path


@dataclass(frozen=True)
class Bounds:
    """What a number may be.

    Attributes:
        low: Smallest.
        high: Largest.
        zero: 0 is allowed too: it switches something off.
    """

    low: float
    high: float
    zero: bool = False

    def allow(self, value: float) -> bool:
        """Whether the number may be that."""
        return self.low <= value <= self.high or (self.zero and value == 0)


#: Of settings; what is not here is a count, from 1 up.
BOUNDS = {
    "segment_bytes": Bounds(4096, GIB),
    "session_max_bytes": Bounds(8192, MAX_TOTAL_BYTES),
    "total_max_bytes": Bounds(8192, MAX_TOTAL_BYTES),
    "max_age_s": Bounds(60, 10 * 365 * 86_400),
    "tick_ms": Bounds(1, 1000),
    "settle_ms": Bounds(0, 60_000),
    "ring_bytes": Bounds(4096, GIB),
    "min_wait_ns": Bounds(0, 1_000_000_000),
    "poll_ms": Bounds(10, 60_000, zero=True),
    "poll_share_ppm": Bounds(100, 1_000_000),
    "nice": Bounds(-20, 19),
    "limits.control_idle_s": Bounds(0.1, 3600),
    "limits.read_bytes_per_tick": Bounds(4096, GIB),
    "limits.idle_read_bytes_per_tick": Bounds(4096, GIB),
    "limits.string_bytes": Bounds(4096, GIB),
    "limits.idle_string_bytes": Bounds(4096, GIB),
    "limits.idle_bytes_per_uid": Bounds(4096, 64 * GIB),
    "limits.idle_bytes": Bounds(4096, 64 * GIB),
}
#: Of a number that is not in ``BOUNDS``.
COUNT = Bounds(1, 1 << 20)
#: Texts that may be empty, with an example of one that is not.
MAY_BE_EMPTY = {"metrics.listen": "127.0.0.1:9469"}
#: Settings that are one of a few words.
CHOICES = {"log_level": LOG_LEVELS, "backend": BACKENDS}


@dataclass(frozen=True)
class Key:
    """One setting of the file.

    Attributes:
        name: As in the file; those of a table begin with its name and a dot.
        kind: Type of the value.
        default: What holds without the file; None: it depends on other settings.
        text: What it means, from the settings' documentation.
    """

    name: str
    kind: type
    default: Value | None
    text: str

    @property
    def bounds(self) -> Bounds:
        """What a number may be."""
        return BOUNDS.get(self.name, COUNT)

    @property
    def is_size(self) -> bool:
        """Whether units may be written."""
        return "_bytes" in self.name and self.kind is int

    @property
    def allowed(self) -> str:
        """What it may be, in words."""
        choices = CHOICES.get(self.name)
        if choices is not None:
            return "one of " + ", ".join(f'"{one}"' for one in choices)
        if self.kind is bool:
            return "true or false"
        if self.kind is Path:
            return "an absolute path, in quotes"
        if self.name in MAY_BE_EMPTY:
            return f'a text in quotes like "{MAY_BE_EMPTY[self.name]}", or ""'
        if self.kind is str:
            return "a text in quotes"
        bounds = self.bounds
        written = _size if self.is_size else str
        span = f"{written(bounds.low)} to {written(bounds.high)}"
        what = "a whole number" if self.kind is int else "a number"
        units = ' or a size like "64 MiB",' if self.is_size else ""
        return f"{what},{units} from {span}{', or 0' if bounds.zero else ''}"


def all_keys() -> tuple[Key, ...]:
    """All settings, in the order in which the code declares them."""
    found = _keys_of(DaemonConfig, "")
    for table, cls in TABLES.items():
        found += _keys_of(cls, f"{table}.")
    return tuple(found)


def table_of(name: str) -> str:
    """The table that a setting is in; empty for one outside tables."""
    return name.partition(".")[0] if "." in name else ""


def _keys_of(cls: type[DaemonConfig | Limits | MetricsConfig], prefix: str) -> list[Key]:
    texts = _attribute_texts(cls.__doc__ or "")
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        if not prefix and field.name in TABLES:
            continue
        kind = next(k for k in (bool, int, float, str, Path) if _is(hints[field.name], k))
        text = texts.get(field.name, "")
        found.append(Key(prefix + field.name, kind, field.default, text))  # type: ignore[arg-type]
    return found


def _is(hint: object, kind: type) -> bool:
    return hint is kind or kind in typing.get_args(hint)


def _attribute_texts(doc: str) -> dict[str, str]:
    """The "Attributes" of a docstring, each in one line."""
    found: dict[str, str] = {}
    name = ""
    for line in doc.partition("Attributes:")[2].splitlines():
        match = re.fullmatch(r" {8}([a-z_]+): (.*)", line)
        if match is not None:
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith(" " * 12):
            found[name] += " " + line.strip()
    return found


def render_default() -> str:
    """The file that is installed: every setting with its default, commented out."""
    parts = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Settings of the gpucorrelate daemon. What is commented out is the default.",
        "# Check a change:  gpucorrelate daemon --check-config",
        "# Apply it:        systemctl reload gpucorrelate   (says what needs a restart)",
    ]
    for key in all_keys():
        table = table_of(key.name)
        name = key.name.removeprefix(f"{table}.")
        if table and f"[{table}]" not in parts:
            parts += ["", f"# {_TABLE_TEXTS[table]}", f"[{table}]"]
        parts += ["", *_comment(key.text), *_comment(f"({key.allowed})")]
        parts.append(f"#{name} = {_as_toml(key)}")
    return "\n".join(parts) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text.replace("``", ""), 92, initial_indent="# ", subsequent_indent="# ")


def _as_toml(key: Key) -> str:
    value = key.default
    if value is None:
        config = DaemonConfig()
        value = config.control_path if key.name == "control_socket" else config.ingest_path
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and key.is_size:
        return f'"{_size(value)}"'
    return f'"{value}"' if isinstance(value, (str, Path)) else str(value)


def _size(size_bytes: float) -> str:
    for unit, unit_bytes in reversed(UNITS.items()):
        if size_bytes >= unit_bytes and size_bytes % unit_bytes == 0:
            return f"{int(size_bytes) // unit_bytes} {unit}"
    return str(size_bytes)


if __name__ == "__main__":
    sys.stdout.write(render_default())
