# SPDX-License-Identifier: Apache-2.0
"""Captures written row by row, through the real wire format."""

from __future__ import annotations

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.probes.wire.frame import Decoder, StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, WaitKind

API, CORE, WORKER = 100, 200, 300
MS = 1_000_000


class Recording:
    """Rows in, capture out; columns left out are zero."""

    def __init__(self) -> None:
        self.writers: dict[int, StreamWriter] = {}
        self.frames: list[bytes] = []
        self.stream_rows: set[int] = set()

    def add(self, kind_name: str, by: int = 2, /, **values: int | str) -> Recording:
        kind = BY_NAME[kind_name]
        known = {c.name for c in kind.columns}
        assert set(values) <= known, set(values) - known
        row = [values.get(c.name, "" if c.ctype == "str" else 0) for c in kind.columns]
        writer = self.writers.setdefault(by, StreamWriter(by))
        self.frames += writer.frames(kind, 1, columns_of(kind, [row], writer.strings))
        return self

    def process(self, stream: int, tgid: int, role: str, *, since: int = 0) -> Recording:
        self.add("stream", 1, stream=stream, tgid=tgid, producer="vllm", role=role)
        self.add("thread", stream, tid=tgid, name="MainThread", role=f"{role}.main")
        return self.add("session", 1, t_ns=since, event=2, tgid=tgid, session="s")

    def wait(
        self,
        tid: int,
        start: int,
        end: int,
        *,
        wake: int | None = None,
        kind: WaitKind = WaitKind.EPOLL,
        waker: int = 0,
        waker_tgid: int | None = None,
        flags: int = 0,
        tgid: int | None = None,
        **more: int,
    ) -> Recording:
        return self.add(
            "wait",
            2,
            tid=tid,
            tgid=tid if tgid is None else tgid,
            start_ns=start,
            end_ns=end,
            wake_ns=end if wake is None else wake,
            wait_kind=kind,
            flags=flags,
            waker_tid=waker,
            waker_tgid=waker if waker_tgid is None else waker_tgid,
            **more,
        )

    def capture(self, end_ns: int | None = 100_000) -> Capture:
        if end_ns is not None:
            self.add("session", 1, t_ns=end_ns, event=4, session="s")
        decoder = Decoder()
        items = [item for frame in self.frames for item in decoder.feed(frame)]
        return Capture.from_batches([item[0] for item in items if isinstance(item, tuple)])
