# SPDX-License-Identifier: Apache-2.0
"""Files: profiles of other tools, recordings, a session's own file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import struct
import tempfile
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from gpucorrelate.cli.options import Look
from gpucorrelate.cli.produce import Wanted, write
from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.daemon import configfile
from gpucorrelate.daemon.config import DaemonConfig
from gpucorrelate.daemon.health import Tally
from gpucorrelate.daemon.recording import open_recording, scan_segment
from gpucorrelate.daemon.saved import FILE, SavedSession, SavedStream, SavedTarget, load
from gpucorrelate.daemon.segment_files import open_directory
from gpucorrelate.daemon.session import Session
from gpucorrelate.daemon.store import Segment
from gpucorrelate.daemon.values import to_map
from gpucorrelate.probes.importers import events
from gpucorrelate.probes.importers.kineto import read_kineto
from gpucorrelate.probes.importers.nsys import read_nsys
from gpucorrelate.probes.importers.recording import frames_of
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.wire.errors import GpucorrelateError, StoreError, TraceError, UsageError
from gpucorrelate.probes.wire.frame import HEADER, MAGIC, Damage, read_frames
from tests.fuzz.target import MEMORY, Target, file_of
from tests.unit.profile_rows import tables_of
from tests.unit.synth import API, CORE, MS, WORKER, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

# Kineto: what the compiled scanner reads is what the decoder alone reads.


def kineto(data: bytes) -> None:
    """Both ways of reading say the same, and the recording that comes of it is whole."""
    if data.lstrip()[:1] not in (b"{", b"["):
        data = b'{"traceEvents":[' + data
    with file_of(data) as path:
        by_scanner = _read(path)
        with mock.patch.object(events, "scanner", lambda: None):
            by_decoder = _read(path)
    assert by_scanner == by_decoder


def _read(path: Path) -> Any:
    matcher = StepMatcher("k|Step")
    try:
        trace = read_kineto(path, matcher)
    except TraceError as exc:
        return exc.message
    (process,) = trace.processes
    found = tables_of(process), process.ranges, sorted(trace.problems.lines()), trace.facts
    written = b"".join(frames_of([replace(trace, source="t")], matcher))
    assert not [item for item in read_frames(io.BytesIO(written)) if isinstance(item, Damage)]
    return found


_KERNEL = (
    '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5.5,"dur":4.25,'
    '"args":{"device":0,"context":1,"stream":7,"correlation":3,"graph id":0,"graph node id":1}}'
)
_OTHERS = (
    _KERNEL.replace('"kernel"', '"cuda_runtime"').replace('"k"', '"cudaLaunchKernel"'),
    _KERNEL.replace('"kernel"', '"gpu_memcpy"').replace('"k"', '"Memcpy HtoD"'),
    _KERNEL.replace('"kernel"', '"user_annotation"').replace('"k"', '"ProfilerStep#3"'),
    _KERNEL.replace('"kernel"', '"cuda_sync"').replace(
        '"device":0', '"cuda_sync_kind":"Event Sync","wait_on_cuda_event_id":4'
    ),
    _KERNEL.replace('"kernel"', '"cpu_op"'),
    '{"ph":"i","name":"a","s":"g"}',
)


def kineto_seeds() -> Iterator[bytes]:
    """Each kind of event alone, all, and whole documents."""
    every = (_KERNEL, *_OTHERS)
    for event in every:
        yield f"[{event}]".encode()
    yield f"[{','.join(every)}]".encode()
    facts = (
        '"baseTimeNanoseconds":17,"distributedInfo":{"rank":1},"deviceProperties":[{"name":"g"}]'
    )
    yield f'{{{facts},"traceEvents":[{",".join(every[:2])}]}}'.encode()


# Nsight Systems: the database's own bytes.

_COMMON = (
    "globalPid, deviceId, contextId, streamId, correlationId, graphId, graphNodeId, start, end"
)
_TABLES = {
    "StringIds": ("id, value", "1, 'cudaLaunchKernel_v7000'"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (f"{_COMMON}, demangledName, shortName",
                                   "16777216, 0, 1, 7, 3, 0, 0, 5, 9, 1, 1"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (f"{_COMMON}, bytes, copyKind",
                                   "16777216, 0, 1, 7, 4, 0, 0, 10, 12, 8, 1"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("globalTid, nameId, correlationId, start, end",
                                    "16777217, 1, 3, 2, 4"),
    "NVTX_EVENTS": ("globalTid, start, end, text, textId", "16777217, 1, 20, 'Step 1', NULL"),
    "PROCESSES": ("globalPid, name", "16777216, 'python'"),
}  # fmt: skip
#: Small pages make small files, in which a changed byte is more likely to matter.
_PAGE_BYTES = 512


def nsys(data: bytes) -> None:
    """Any database is a trace or refused."""
    with file_of(data) as path:
        try:
            trace = read_nsys(path, StepMatcher("k|Step"))
        except (TraceError, MemoryError):
            # SQLite has no memory for rows of the sizes that a damaged page tells; the command
            # line turns that into a line as well.
            return
        written = b"".join(frames_of([trace], StepMatcher("k|Step")))
    assert not [item for item in read_frames(io.BytesIO(written)) if isinstance(item, Damage)]


def nsys_seeds() -> Iterator[bytes]:
    """An export of one launch, and one of all tables."""
    for names in (("CUPTI_ACTIVITY_KIND_KERNEL",), tuple(_TABLES)):
        with contextlib.closing(sqlite3.connect(":memory:")) as database, database:
            database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            for name in names:
                columns, values = _TABLES[name]
                database.execute(
                    f'CREATE TABLE "{name}" ({columns.replace("end", chr(34) + "end" + chr(34))})'
                )
                database.execute(f'INSERT INTO "{name}" VALUES ({values})')
            database.commit()
            yield database.serialize()


# Recordings.


def recording(data: bytes) -> None:
    """Any recording is reported on or refused; rows come under right checksums."""
    whole = b"".join(_framed(data))
    with file_of(whole) as path:
        try:
            run = Run.of(Capture.from_batches(open_recording(path)))
            for form in ("text", "json"):
                write(run, Wanted(), form, _LOOK, io.StringIO())
                with contextlib.suppress(GpucorrelateError):
                    write(run, Wanted(everything=True), form, _LOOK, io.StringIO())
        except GpucorrelateError:
            return


_LOOK = Look(100, "never", 3)
_PART = struct.Struct("<BH")


def _framed(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _PART.size <= len(data):
        stream, size = _PART.unpack_from(data, at)
        at += _PART.size
        payload = data[at : at + size]
        at += size
        yield HEADER.pack(MAGIC, stream % 8, len(payload), zlib.crc32(payload)) + payload


def recording_seeds() -> Iterator[bytes]:
    """A step, a request and their waits; a launch and its kernel."""
    made = Recording().process(3, CORE, "core").process(4, API, "api").process(5, WORKER, "worker")
    made.add("step_begin", 3, step=1, tid=CORE, start_ns=MS, rowset=1, rows=1, tokens=1)
    made.wait(CORE, 2 * MS, 3 * MS, waker=WORKER).wait(WORKER, MS, 2 * MS, waker=CORE)
    made.add("step_end", 3, step=1, tid=CORE, end_ns=4 * MS)
    for anchor, moment in enumerate(range(1, 9)):
        made.add("request", 4 - anchor % 2, request="r", anchor=anchor, t_ns=moment * MS // 2)
    made.add("loss", 1, t_ns=2 * MS, since_ns=MS, hop="store.disk", what="rows", count=3)
    made.add("session", 1, t_ns=5 * MS, event=4, session="s")
    yield _unframed(made)
    other = Recording().process(3, CORE, "core")
    other.add("cuda_api", 3, pid=CORE, tid=CORE, name="cudaLaunchKernel", correlation=1,
              start_ns=MS, end_ns=2 * MS)  # fmt: skip
    other.add("gpu_op", 3, pid=CORE, op=1, gpu_stream=7, name="k", correlation=1, start_ns=3 * MS,
              end_ns=4 * MS)  # fmt: skip
    yield _unframed(other)
    # The same in a window of a live engine's, waited for.
    other.wait(CORE, 2 * MS, 4 * MS).add("gpu_window", 3, window=1, end_ns=5 * MS, what=13)
    other.add("cuda_api", 3, pid=CORE, tid=CORE, name="cudaStreamSynchronize", correlation=2,
              start_ns=2 * MS, end_ns=4 * MS)  # fmt: skip
    other.add("gpu_sync", 3, pid=CORE, sync=1, gpu_stream=7, correlation=2, start_ns=2 * MS,
              end_ns=4 * MS)  # fmt: skip
    yield _unframed(other)


def _unframed(made: Recording) -> bytes:
    parts = []
    for frame in made.frames:
        payload = frame[HEADER.size :]
        stream = int.from_bytes(frame[4:8], "little")
        parts.append(_PART.pack(stream, len(payload)) + payload)
    return b"".join(parts)


# Settings.


def config(data: bytes) -> None:
    """Any text is settings or refused in a line that names the file."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    place = Path("/etc/gpucorrelate/config.toml")
    try:
        made = configfile.config_of(configfile.parse(text, place), {})
    except UsageError as exc:
        assert exc.message.startswith(f"{place}:"), "it says where"
        assert "\n" not in exc.message, "in one line"
        return
    assert isinstance(made, DaemonConfig)


def config_seeds() -> Iterator[bytes]:
    """The settings that there are, each alone and all."""
    usual = DaemonConfig()
    known = {each.name: repr(getattr(usual, each.name)) for each in fields(usual)}
    lines = [f"{name} = {value.lower()}" for name, value in known.items()]
    for line in (*lines, "[limits]\nclients = 3", "limits.clients = 3", 'segment_bytes = "1 MiB"'):
        yield line.encode()
    yield "\n".join(lines).encode()
    # Neither is what tomllib calls a syntax error.
    yield b"nice = " + b"[" * 2000
    yield b"nice = 1" + b"0" * 5000


# What a daemon finds when it starts.


def state(data: bytes) -> None:
    """A session's file and its last segment, damaged in any way, never stop a start."""
    text, _, tail = data.partition(b"\0\0")
    folder = Path(tempfile.mkdtemp(prefix="gpcf", dir=MEMORY))
    try:
        (folder / FILE).write_bytes(text)
        (folder / "000001.gpcf").write_bytes(tail)
        _taken_up(folder)
        fd = open_directory(folder)
        try:
            kept = (folder / "000001.gpcf").read_bytes()
            assert tail.startswith(kept), "what is kept is what was there"
            if kept != tail:
                assert scan_segment(fd, "000001.gpcf", lambda _: None) == 0, "mended once for all"
        finally:
            os.close(fd)
    finally:
        shutil.rmtree(folder)


def _taken_up(folder: Path) -> None:
    fd = open_directory(folder)
    try:
        saved = load(fd)
    except StoreError:
        return
    finally:
        os.close(fd)
    config = DaemonConfig(folder, folder, ebpf=False)
    try:
        session = Session(folder, config, Tally(), replace(saved, session="one"))
        session.read_back()
    except (OSError, StoreError):
        return
    session.info()
    session.close("over")


def state_seeds() -> Iterator[bytes]:
    """A session as a kill leaves it."""
    saved = SavedSession(
        "one",
        targets=(SavedTarget(1, 2),),
        streams=(SavedStream(1, 0, 0), SavedStream(2, 0, 0), SavedStream(3, 7, 7)),
        segments=(Segment(1, 100, 5),),
        counts=(1, 2, 3),
    )
    made = Recording().process(3, CORE, "core").wait(CORE, 1, 2)
    tail = b"".join(made.frames)
    text = json.dumps(to_map(saved)).encode()
    yield text + b"\0\0" + tail
    yield text + b"\0\0" + tail[:-7]


_NSYS_WORDS = (b"CREATE TABLE ", b"globalPid", b"CUPTI_ACTIVITY_KIND_KERNEL", b"NULL", b"VIEW")
_TOML_WORDS = tuple(
    word.encode()
    for word in (*(each.name for each in fields(DaemonConfig)), " = ", "[limits]", "true", "1e3",
                 "inf", "nan", '"1 GiB"', "0x1f", "1979-05-27T07:32:00Z", "[[", '"""', "{")
)  # fmt: skip
_JSON_WORDS = tuple(
    word.encode()
    for word in ('"ph":"X"', '"cat":"', "kernel", "cuda_sync", '"ts":', '"dur":', '"args":{',
                 '"stream":', '"correlation":', "\\u0041", "1e3", "18446744073709551616",
                 "9223372036854775.807", '"traceEvents":[', '"baseTimeNanoseconds":')
)  # fmt: skip

TARGETS = (
    Target("kineto", kineto, kineto_seeds, _JSON_WORDS),
    Target("nsys", nsys, nsys_seeds, _NSYS_WORDS, 16384),
    Target("recording", recording, recording_seeds, (), 8192),
    Target("config", config, config_seeds, _TOML_WORDS),
    Target("state", state, state_seeds, (b'"streams"', b'"number":', b'"segments"', MAGIC), 8192),
)
