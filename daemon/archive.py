# SPDX-License-Identifier: Apache-2.0
"""Recordings of sessions that have ended."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucorrelate.daemon.moments import age_s
from gpucorrelate.daemon.saved import DETACHED, SavedSession
from gpucorrelate.daemon.segment_files import open_directory, open_regular, segment_numbers
from gpucorrelate.daemon.store import Segment
from gpucorrelate.daemon.values import ProcessInfo, Progress, SessionInfo
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.wire.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from gpucorrelate.daemon.config import DaemonConfig
    from gpucorrelate.daemon.health import Tally

log = logging.getLogger(__name__)


class Archive:
    """Ended sessions, by id.

    Args:
        base: Directory of all sessions.
        config: The daemon's settings.
        tally: Where deletions are counted.
    """

    def __init__(self, base: Path, config: DaemonConfig, tally: Tally) -> None:
        self._base = base
        self._config = config
        self._tally = tally
        self._boot_id = procfs.boot_id()
        self._saved: dict[str, SavedSession] = {}
        self._found_s: dict[str, float] = {}
        self._stuck: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._saved

    def reconfigure(self, config: DaemonConfig) -> None:
        """From now on keep other limits."""
        self._config = config

    def names(self) -> list[str]:
        """Ids of all."""
        return list(self._saved)

    def add(self, saved: SavedSession, *, measure: bool = False) -> None:
        """A session has ended; ``measure`` looks at its files instead of what it remembers."""
        if measure:
            segments, written_unix_s = _on_disk(self._base / saved.session, saved.segments)
            ended = saved.ended_unix_s or written_unix_s
            saved = replace(saved, segments=segments, ended_unix_s=ended)
        self._saved[saved.session] = saved
        self._found_s.setdefault(saved.session, time.monotonic())

    def owner(self, name: str) -> int:
        """User id it belongs to."""
        return self._saved[name].uid

    def info(self, name: str) -> SessionInfo:
        """The session as callers see it."""
        saved = self._saved[name]
        return SessionInfo(
            session=saved.session,
            state=DETACHED,
            uid=saved.uid,
            root_pid=saved.root_pid,
            command=saved.command,
            started_unix_s=saved.started_unix_s,
            ended_unix_s=saved.ended_unix_s,
            reason=saved.reason,
            processes=tuple(
                ProcessInfo(t.pid, t.comm, alive=t.alive, command=t.command) for t in saved.targets
            ),
            segments=len(saved.segments),
            size_bytes=_size(saved),
            lost=saved.lost,
        )

    def progress(self, name: str) -> Progress:
        """What is left of its live numbers."""
        saved = self._saved[name]
        return Progress(
            name,
            state=DETACHED,
            t_ns=time.monotonic_ns(),
            lost=saved.lost,
            size_bytes=_size(saved),
        )

    def stored(self) -> tuple[int, int]:
        """Segments and bytes on disk."""
        everything = self._saved.values()
        return sum(len(s.segments) for s in everything), sum(map(_size, everything))

    def open(self, name: str) -> list[tuple[int, int]]:
        """Descriptors and sizes of its files, in order.

        Raises:
            StoreError: they cannot be opened.
        """
        fd = open_directory(self._base / name)
        opened: list[tuple[int, int]] = []
        try:
            for number in segment_numbers(fd):
                one = open_regular(fd, Segment(number).name)
                opened.append((one, os.fstat(one).st_size))
        except OSError as exc:
            for one, _ in opened:
                os.close(one)
            raise StoreError(f"cannot read session {name}: {exc.strerror}") from exc
        finally:
            os.close(fd)
        return opened

    def trim(self, running_bytes: int) -> int:
        """Delete what is too old, too much or too many, the longest ended first.

        Args:
            running_bytes: Size of the recordings that still go on.

        Returns:
            Bytes on disk afterwards, all recordings.
        """
        config = self._config
        total = running_bytes + self.stored()[1]
        owned = Counter(saved.uid for saved in self._saved.values())
        for saved in sorted(self._saved.values(), key=self._age_s, reverse=True):
            over = total > config.total_max_bytes or self._age_s(saved) > config.max_age_s
            if (over or self._one_too_many(owned, saved.uid)) and self._delete(saved):
                total -= _size(saved)
                owned[saved.uid] -= 1
        return total

    def _one_too_many(self, owned: Counter[int], uid: int) -> bool:
        """Whether there are too many, and no user has more of them."""
        most = self._config.limits.finished_sessions
        return owned.total() > most and owned[uid] == max(owned.values())

    def _delete(self, saved: SavedSession) -> bool:
        shutil.rmtree(self._base / saved.session, ignore_errors=True)
        if (self._base / saved.session).exists():
            self._complain(saved.session)
            return False
        log.info("session %s deleted to keep the limits", saved.session)
        del self._saved[saved.session], self._found_s[saved.session]
        self._tally.count_store(deleted_sessions=1, deleted_segments=len(saved.segments))
        return True

    def _complain(self, name: str) -> None:
        if name not in self._stuck:
            log.warning("session %s is over the limits and cannot be deleted", name)
        self._stuck.add(name)

    def _age_s(self, saved: SavedSession) -> float:
        return age_s(saved, self._boot_id, time.monotonic() - self._found_s[saved.session])


def _on_disk(directory: Path, known: tuple[Segment, ...]) -> tuple[tuple[Segment, ...], float]:
    """Files of a session, and when it was last written to."""
    by_number = {segment.number: segment for segment in known}
    try:
        fd = open_directory(directory)
    except StoreError:
        return (), time.time()
    try:
        written = os.fstat(fd).st_mtime
        found = []
        for number in segment_numbers(fd):
            stat = os.stat(Segment(number).name, dir_fd=fd)
            segment = by_number.get(number, Segment(number))
            found.append(replace(segment, size_bytes=stat.st_size))
            written = max(written, stat.st_mtime)
        return tuple(found), written
    finally:
        os.close(fd)


def _size(saved: SavedSession) -> int:
    return sum(segment.size_bytes for segment in saved.segments)
