# SPDX-License-Identifier: Apache-2.0
"""Memory and files that are not there yet: page faults, reads, writes forced to disk."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.verify.scenarios.kit import Stage, now, watched
from gpucorrelate.verify.scenarios.quota import NotPossibleError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIB = 1 << 20
_CHUNK_BYTES = 256 << 10
#: Touched pages lie this far apart, so that none comes with another.
_APART_BYTES = _MIB
_TOUCHES = 6
_STORM_PAGES = (2_000, 5_000)
#: Where temporary files are, as a rule, not in memory; else the usual place.
_ON_DISK = ("/var/tmp",)
_NO_HUGE = 15  # MADV_NOHUGEPAGE


@contextlib.contextmanager
def _cold_file(size_bytes: int) -> Iterator[int]:
    """A file of random bytes on a disk, none of which is in memory; it has no name to be left.

    Raises:
        NotPossibleError: there is no room, or temporary files are in memory themselves.
    """
    folder = next((path for path in _ON_DISK if Path(path).is_dir()), tempfile.gettempdir())
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            for _ in range(size_bytes // _MIB):
                file.write(os.urandom(_MIB))
            file.flush()
            _drop(file.fileno(), 0, 0)
        except OSError as exc:
            why = f"a temporary file of {size_bytes // _MIB} MiB in {folder}: {exc.strerror}"
            raise NotPossibleError(why) from exc
        fd = file.fileno()
        before = _major_faults()
        with mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ) as memory:
            _ = memory[0]
        if _major_faults() == before:
            raise NotPossibleError("temporary files are not on a disk here, but in memory")
        yield fd


def _drop(fd: int, start: int, length: int) -> None:
    """Put a part of a file out of memory."""
    os.fsync(fd)
    os.posix_fadvise(fd, start, length, os.POSIX_FADV_DONTNEED)


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def major_faults(stage: Stage) -> None:
    """Pages of a mapped file that are on disk only; in controls they have been touched before."""
    count = 64
    with _cold_file(count * _MIB) as fd:
        stat = os.fstat(fd)
        name = f"{os.major(stat.st_dev)}:{os.minor(stat.st_dev)} inode {stat.st_ino}"
        stage.begin()
        memory, at = _mapped(fd, count), 0
        for control in stage.rounds():
            if at + _TOUCHES > count:
                memory.close()
                _drop(fd, 0, 0)
                memory, at = _mapped(fd, count), 0
            offsets = [k * _APART_BYTES for k in range(at, at + _TOUCHES)]
            if control:
                for offset in offsets:
                    _ = memory[offset]
            at += _TOUCHES
            touched = []
            with stage.operation(control=control) as op:
                for offset in offsets:
                    stage.work()
                    before = _major_faults()
                    with watched() as touch:
                        _ = memory[offset]
                    touched.append((touch, _major_faults() - before))
            for touch, major in touched:
                if major:
                    op.inject(
                        touch.times,
                        "page-fault",
                        f"file {name}",
                        cpu_ns=touch.cpu_ns,
                        queued_ns=touch.queued_ns,
                    )
        memory.close()


def _mapped(fd: int, count: int) -> mmap.mmap:
    memory = mmap.mmap(fd, count * _MIB, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    memory.madvise(mmap.MADV_RANDOM)
    return memory


def minor_faults(stage: Stage) -> None:
    """Memory written for the first time, page after page; in controls it is written again.

    The writing itself, which is no fault, is measured where there are none.
    """
    most = _STORM_PAGES[1] * mmap.PAGESIZE
    memory = mmap.mmap(-1, most)
    memory.madvise(_NO_HUGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def fill(size: int) -> int:
        start = now()
        ctypes.memset(address, 1, size)
        return now() - start

    fill(most)
    own = min(fill(most) for _ in range(10))
    stage.begin()
    for control in stage.rounds():
        size = stage.random.randint(*_STORM_PAGES) * mmap.PAGESIZE
        if not control:
            memory.madvise(mmap.MADV_DONTNEED)
        with stage.operation(control=control) as op:
            stage.work()
            with watched() as filling:
                fill(size)
            stage.work()
        if control:
            continue
        op.inject(
            filling.times,
            "page-fault",
            "memory",
            cpu_ns=own * size // most,
            queued_ns=filling.queued_ns,
        )
        fill(most)


def file_read(stage: Stage) -> None:
    """Reads of a file that is not in memory; in controls it is.

    The copying, which is the reader's own running, is known from its CPU time.
    """
    count = 64
    with _cold_file(count * _CHUNK_BYTES) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        stage.begin()
        for control in stage.rounds():
            start_byte = stage.random.randrange(count) * _CHUNK_BYTES
            if control:
                os.pread(fd, _CHUNK_BYTES, start_byte)
            else:
                _drop(fd, 0, 0)
            with stage.operation(control=control) as op:
                stage.work()
                with watched() as io:
                    os.pread(fd, _CHUNK_BYTES, start_byte)
                stage.work()
            if not control:
                op.inject(io.times, "disk", "disk", cpu_ns=io.cpu_ns, queued_ns=io.queued_ns)


def fsync(stage: Stage) -> None:
    """What was written is forced to disk; in controls it has been before."""
    with _cold_file(_MIB) as fd:
        stage.begin()
        for control in stage.rounds():
            os.pwrite(fd, os.urandom(_CHUNK_BYTES), 0)
            if control:
                os.fsync(fd)
            with stage.operation(control=control) as op:
                stage.work()
                with watched() as io:
                    os.fsync(fd)
                stage.work()
            if not control:
                op.inject(io.times, "disk", "disk", cpu_ns=io.cpu_ns, queued_ns=io.queued_ns)
