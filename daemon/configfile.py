# SPDX-License-Identifier: Apache-2.0
"""The daemon's settings file, ``/etc/gpucorrelate/config.toml``: read and checked.

Its keys are the fields of ``DaemonConfig``, and in the tables those of ``configkeys.TABLES``. What
is wrong is told with its line, and with what is allowed there.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomllib

from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.configkeys import (
    CHOICES,
    MAY_BE_EMPTY,
    TABLES,
    UNITS,
    Key,
    Value,
    all_keys,
    table_of,
)
from gpucorrelate.probes.wire.errors import NotFoundError, NotPermittedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PATH = Path("/etc/gpucorrelate/config.toml")
_MOST_BYTES = 1 << 20
#: ``sun_path`` of sys/un.h has 108 bytes, the last of them zero.
_SOCKET_PATH_BYTES = 107
_SIZE = re.compile(r"([0-9]{1,19})\s*([KMGTE]iB|B)?")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*=""")
_TABLE = re.compile(r"\s*\[\s*([A-Za-z0-9_.\"' -]+?)\s*\]")
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True)
class Entry:
    """A setting that the file has."""

    name: str
    value: Value
    line: int


@dataclass(frozen=True)
class ConfigFile:
    """A settings file that was read and whose every value is allowed by itself."""

    path: Path
    entries: tuple[Entry, ...] = ()


def read(path: Path | None) -> ConfigFile | None:
    """The settings file.

    Args:
        path: The file; None: the usual one, which need not be there.

    Returns:
        Its settings; None where there is no file.

    Raises:
        NotFoundError: a file that was named is not there.
        NotPermittedError: it may not be read, or others than root could change it.
        UsageError: it is no TOML, or a setting is unknown, of the wrong type or out of bounds.
    """
    place = path or DEFAULT_PATH
    try:
        text = _text(place)
    except FileNotFoundError:
        if path is None:
            return None
        raise NotFoundError(f"{place}: no such file", hint="name the settings file") from None
    except PermissionError as exc:
        raise NotPermittedError(f"{place}: {exc.strerror}", hint="run it as root") from exc
    except OSError as exc:
        raise UsageError(f"{place}: {exc.strerror or exc}") from exc
    return parse(text, place)


def _text(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise UsageError(f"{path}: is no file")
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        if os.geteuid() == 0 and (found.st_uid != 0 or found.st_mode & 0o022):
            # Whoever can write it could have root write anywhere.
            raise NotPermittedError(
                f"{path}: others than root can change it",
                hint=f"chown root {path} && chmod go-w {path}",
            )
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path}: longer than {_MOST_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: no UTF-8 text") from exc


def parse(text: str, path: Path) -> ConfigFile:
    """The settings in the text of a file; see ``read``."""
    try:
        data = tomllib.loads(text)
    # Numbers too long and tables too deep are no TOMLDecodeError.
    except (ValueError, RecursionError) as exc:
        what = str(exc)
        match = _AT_LINE.search(what)
        line = int(match[1]) if match else max(1, len(text.splitlines()))
        what = what.removesuffix(match[0]) if match else what.removesuffix(" (at end of document)")
        raise UsageError(f"{path}:{line}: {what}", hint="it is to be TOML: toml.io") from exc
    lines = _lines(text)
    flat: dict[str, object] = {}
    for name, value in data.items():
        if name in TABLES and isinstance(value, dict):
            flat |= {f"{name}.{inner}": one for inner, one in value.items()}
        else:
            flat[name] = value
    known = {key.name: key for key in all_keys()}
    entries = []
    for name, value in flat.items():
        line = lines.get(name, lines.get(table_of(name), 1))
        where = f"{path}:{line}"
        key = known.get(name)
        if key is None:
            raise _unknown(where, name, list(known))
        entries.append(Entry(name, _checked(where, key, value), line))
    return ConfigFile(path, tuple(entries))


def _lines(text: str) -> dict[str, int]:
    """The line of every key; tomllib does not say."""
    found: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        table = _TABLE.match(line)
        if table is not None and "=" not in line.partition("]")[0]:
            prefix = table[1].strip("\"' ") + "."
            found.setdefault(prefix[:-1], number)
            continue
        key = _KEY.match(line)
        if key is not None:
            found.setdefault(prefix + (key[1] or key[2] or key[3] or ""), number)
            continue
        dotted = re.match(rf"\s*({'|'.join(TABLES)})\s*\.\s*([a-z_]+)\s*=", line)
        if dotted is not None:
            found.setdefault(f"{dotted[1]}.{dotted[2]}", number)
    return found


def _unknown(where: str, name: str, known: list[str]) -> UsageError:
    shown = name if len(name) <= 60 else f"{name[:60]}..."
    table = table_of(name) if table_of(name) in TABLES else ""
    mine = [one for one in known if table_of(one) == table]
    close = difflib.get_close_matches(name, known, 1)
    meant = f"; did you mean '{close[0]}'?" if close else ""
    allowed = ", ".join(one.removeprefix(f"{table}.") for one in mine)
    where_allowed = f"in [{table}]" if table else "outside tables"
    return UsageError(
        f"{where}: unknown setting '{shown}'{meant}", hint=f"{where_allowed}: {allowed}"
    )


def _checked(where: str, key: Key, value: object) -> Value:
    wrong = UsageError(f"{where}: {key.name} = {_shown(value)}: must be {key.allowed}")
    if key.kind is bool:
        if not isinstance(value, bool):
            raise wrong
        return value
    if key.kind in (str, Path):
        return _checked_text(key, value, wrong)
    if key.is_size and isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise wrong
        value = int(match[1]) * UNITS[match[2] or "B"]
    kinds = (int,) if key.kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise wrong
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong
    if not key.bounds.allow(value):
        raise wrong
    return key.kind(value)  # type: ignore[no-any-return]


def _checked_text(key: Key, value: object, wrong: UsageError) -> Value:
    if not isinstance(value, str) or not value.isprintable():
        raise wrong
    if not value and key.name not in MAY_BE_EMPTY:
        raise wrong
    choices = CHOICES.get(key.name)
    if choices is not None and value not in choices:
        raise wrong
    if key.kind is str:
        return value
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts:
        raise wrong
    if key.name.endswith("_socket") and len(os.fsencode(value)) > _SOCKET_PATH_BYTES:
        raise UsageError(f"{wrong.message} of at most {_SOCKET_PATH_BYTES} bytes")
    return path


def _shown(value: object) -> str:
    text = repr(value).replace("'", '"') if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:60]}..."


def config_of(file: ConfigFile | None, given: Mapping[str, Value]) -> DaemonConfig:
    """The settings: the code's own, over them the file's, over them those given.

    A limit on one session raises the limit on all, and lowers the size of a segment, where
    those would contradict it and are not set themselves.

    Raises:
        UsageError: settings contradict each other; the message names the file's line, where one
            of its settings is at fault.
    """
    entries = file.entries if file is not None else ()
    try:
        return _build({entry.name: entry.value for entry in entries} | dict(given))
    except UsageError as exc:
        for left_out in reversed(entries):
            rest = {one.name: one.value for one in entries if one is not left_out} | dict(given)
            if left_out.name not in given and _fits(rest) and file is not None:
                where = f"{file.path}:{left_out.line}"
                raise UsageError(f"{where}: {left_out.name}: {exc.message}") from exc
        if file is not None and entries:
            raise UsageError(f"{file.path}:{entries[0].line}: {exc.message}") from exc
        raise


def _fits(settings: Mapping[str, Value]) -> bool:
    try:
        _build(settings)
    except UsageError:
        return False
    return True


def _build(settings: Mapping[str, Value]) -> DaemonConfig:
    own = {name: value for name, value in settings.items() if "." not in name}
    tables = {table: cls(**_within(table, settings)) for table, cls in TABLES.items()}
    session, total = own.get("session_max_bytes"), own.get("total_max_bytes")
    if session is None and isinstance(total, int):
        session = own["session_max_bytes"] = min(total, DaemonConfig.session_max_bytes)
    if isinstance(session, int):
        own.setdefault("segment_bytes", min(DaemonConfig.segment_bytes, session // 2))
        if total is None:
            own["total_max_bytes"] = max(session, DaemonConfig.total_max_bytes)
    return DaemonConfig(**tables, **own)  # type: ignore[arg-type]


def _within(table: str, settings: Mapping[str, Value]) -> dict[str, Any]:
    return {name.partition(".")[2]: v for name, v in settings.items() if table_of(name) == table}
