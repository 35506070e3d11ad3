# SPDX-License-Identifier: Apache-2.0
"""A real engine under load with a real daemon attached, and what was recorded of it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpucorrelate.correlator.capture import Capture
from gpucorrelate.correlator.report.build import Run
from gpucorrelate.probes.wire.frame import Decoder, StreamWriter, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, TokenPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gpucorrelate.correlator.report.values import RequestReport
    from gpucorrelate.daemon.client import Client
    from gpucorrelate.probes.wire.frame import Batch, Damage
    from tests.engine.client import Result
    from tests.engine.server import Profile

#: Far above the numbers that the daemon gives to producers.
CLIENT_STREAM = 1_000_000


@dataclass(frozen=True)
class Part:
    """A stretch of a fault in which it surely lasted.

    Of it the thread did something else on a CPU for ``cpu_ns``, and was ready without a CPU for
    ``queued_ns``.
    """

    start_ns: int
    end_ns: int
    cpu_ns: int
    queued_ns: int


@dataclass(frozen=True)
class Truth:
    """One line of the test plugin's log: what was really done, by whom, from when to when.

    ``ready_ns`` of it the thread was running, or ready and without a CPU. In ``parts`` of it the
    thread surely did what it was to do, and ``detail`` says what it did that to.
    """

    kind: str
    pid: int
    tid: int
    start_ns: int
    end_ns: int
    ready_ns: int
    parts: tuple[Part, ...] = ()
    detail: str = ""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Truth:
        """A line of the log."""
        parts = tuple(Part(*part) for part in row.pop("parts", ()))
        return cls(**row, parts=parts)

    def overlap_ns(self, start_ns: int, end_ns: int) -> int:
        """How much of an interval lies within it."""
        return max(0, min(end_ns, self.end_ns) - max(start_ns, self.start_ns))


def read_truth(folder: Path) -> list[Truth]:
    """All that the plugin logged in a folder, oldest first."""
    rows = [
        Truth.of(json.loads(line))
        for path in folder.glob("truth-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    return sorted(rows, key=lambda row: row.start_ns)


def client_frames(results: Iterable[Result]) -> bytes:
    """What the client saw of its tokens, as frames that may follow any recording."""
    writer = StreamWriter(CLIENT_STREAM)
    frames: list[bytes] = []
    stream = BY_NAME["stream"]
    row = (CLIENT_STREAM, 0, 0, "client", "client")
    frames += writer.frames(stream, 1, columns_of(stream, [row], writer.strings))
    tokens = BY_NAME["tokens"]
    rows = [
        (
            result.request.external_id,
            TokenPlace.CLIENT,
            len(result.token_ids),
            result.token_hash,
            result.end_ns,
            result.finish_reason,
        )
        for result in results
    ]
    if rows:
        frames += writer.frames(tokens, len(rows), columns_of(tokens, rows, writer.strings))
    return b"".join(frames)


def client_batches(results: Iterable[Result]) -> list[Batch | Damage]:
    """:func:`client_frames`, decoded."""
    items = Decoder().feed(client_frames(results))
    return [item[0] if isinstance(item, tuple) else item for item in items]


def capture_of(client: Client, session: str, results: Sequence[Result]) -> Capture:
    """A session's recording with the client's own count of tokens behind it."""
    return Capture.from_batches(
        itertools.chain(client.open_session(session), client_batches(results))
    )


@dataclass(frozen=True)
class Traced:
    """A traced load: what the client saw, what was recorded, what was made of it.

    Attributes:
        profile: How the engine ran.
        pid: The API server.
        results: All traced requests as the client saw them.
        capture: The recording.
        run: The correlator on it.
        truth: What the test plugin did.
    """

    profile: Profile
    pid: int
    results: tuple[Result, ...]
    capture: Capture
    run: Run
    truth: tuple[Truth, ...] = ()

    @classmethod
    def of(
        cls,
        profile: Profile,
        pid: int,
        results: Sequence[Result],
        capture: Capture,
        truth: Sequence[Truth] = (),
    ) -> Traced:
        """Correlate a capture."""
        return cls(profile, pid, tuple(results), capture, Run.of(capture), tuple(truth))

    @cached_property
    def _reports(self) -> dict[str, RequestReport]:
        wanted = [result.request.request_id for result in self.results]
        found: dict[str, RequestReport] = {}
        for report in self.run.all_requests():
            for request_id in wanted:
                if request_id in report.request_id or request_id in report.internal_id:
                    assert request_id not in found, f"{request_id} is reported twice"
                    found[request_id] = report
        return found

    def reports(self, tag: str = "") -> dict[str, RequestReport]:
        """Report of each traced request, by the client's id; all, or those of one load."""
        return {name: one for name, one in self._reports.items() if name.startswith(tag)}
