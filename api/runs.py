# SPDX-License-Identifier: Apache-2.0
"""The way in: a run, opened from a recording or from a folder of results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, cast, overload

from gpucorrelate.api.arrow import rows_of
from gpucorrelate.api.schema import TABLES
from gpucorrelate.api.tables import Table
from gpucorrelate.api.values import Request, Row, Segment, Step, StepSegment, Wait
from gpucorrelate.correlator.report.names import match_ids, named
from gpucorrelate.probes.wire.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Literal

    from gpucorrelate.api import values
    from gpucorrelate.api.arrow import ArrowTable
    from gpucorrelate.api.results import Saved
    from gpucorrelate.api.source import Source
    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.report import build
    from gpucorrelate.correlator.report.device_values import DeviceRunReport, DeviceStepReport
    from gpucorrelate.correlator.report.values import RequestReport, RunSummary, StepReport

R = TypeVar("R", Request, Step)


@dataclass(frozen=True)
class One(Generic[R]):
    """One request or step of a run.

    Attributes:
        row: Its row.
    """

    row: R
    _run: Run = field(repr=False, compare=False)


class OneRequest(One[Request]):
    """One request of a run."""

    def report(self) -> RequestReport:
        """Its report: path, waits, tokens, evidence, the host meanwhile.

        Raises:
            UsageError: the run is a folder of results, which has no evidence.
        """
        # The engine's id is unique, the API's need not be.
        return self._run.recording.request(self.row.internal_id or self.row.request_id)

    def segments(self) -> Iterator[Segment]:
        """The segments of its path, in order; they sum to its wall time."""
        for part in self._run.source.path("segments", self.row.request_key):
            yield from cast("Iterator[Segment]", rows_of(TABLES["segments"], part))


class OneStep(One[Step]):
    """One step of a run."""

    def report(self) -> StepReport | DeviceStepReport:
        """Its report; of a profile one of devices.

        Raises:
            UsageError: the run is a folder of results, which has no evidence.
            NotFoundError: it is a step in flight.
        """
        recording = self._run.recording
        if recording.is_profile:
            return recording.devices.report(self.row.step_key)
        return recording.step(self.row.step, self.row.process)

    def segments(self) -> Iterator[StepSegment]:
        """The segments of its path, in order; of a step in flight there are none."""
        for part in self._run.source.path("step_segments", self.row.step_key):
            yield from cast("Iterator[StepSegment]", rows_of(TABLES["step_segments"], part))


class Run:
    """A recording, or a folder of results, as tables and values. Close it, or use ``with``.

    Everything is read or computed when it is first asked for. A recording is held in memory
    (about six times its file); a folder of results is not.

    Attributes:
        name: Where it was opened.
        source: What its tables are made from.
    """

    def __init__(self, source: Source, recording: build.Run | None, name: str = "") -> None:
        self.source = source
        self._recording = recording
        self._tables: dict[str, Table[Row]] = {}
        self.name = name

    def __repr__(self) -> str:
        return f"<run {self.name}>"

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back memory and files; tables that were taken stay valid."""
        self.source.close()
        for table in self._tables.values():
            table.forget()

    @property
    def folder(self) -> Path | None:
        """The folder of results that it was opened from; ``None``: it is a recording."""
        from gpucorrelate.api.results import Results

        return self.source.folder if isinstance(self.source, Results) else None

    @property
    def recording(self) -> build.Run:
        """The recording behind it, from which reports are made.

        Raises:
            UsageError: it is a folder of results.
        """
        if self._recording is None:
            raise UsageError(
                f"{self.name}: results hold tables, no evidence",
                hint="open the recording that they were made from",
            )
        return self._recording

    # -- tables

    @overload
    def table(self, name: Literal["requests"]) -> Table[Request]: ...
    @overload
    def table(self, name: Literal["segments"]) -> Table[Segment]: ...
    @overload
    def table(self, name: Literal["steps"]) -> Table[Step]: ...
    @overload
    def table(self, name: Literal["step_segments"]) -> Table[values.StepSegment]: ...
    @overload
    def table(self, name: Literal["tokens"]) -> Table[values.Token]: ...
    @overload
    def table(self, name: Literal["causes"]) -> Table[values.Cause]: ...
    @overload
    def table(self, name: Literal["waits"]) -> Table[Wait]: ...
    @overload
    def table(self, name: Literal["gpu_ops"]) -> Table[values.GpuOp]: ...
    @overload
    def table(self, name: Literal["step_requests"]) -> Table[values.Membership]: ...
    @overload
    def table(self, name: Literal["context"]) -> Table[values.HostNumber]: ...
    @overload
    def table(self, name: Literal["counters"]) -> Table[values.Counter]: ...
    @overload
    def table(self, name: Literal["changes"]) -> Table[values.Change]: ...
    @overload
    def table(self, name: Literal["ledger"]) -> Table[values.LedgerEntry]: ...
    @overload
    def table(self, name: Literal["losses"]) -> Table[values.Loss]: ...
    @overload
    def table(self, name: Literal["capabilities"]) -> Table[values.Capability]: ...
    @overload
    def table(self, name: Literal["meta"]) -> Table[values.Fact]: ...
    @overload
    def table(self, name: str) -> Table[Row]: ...

    def table(self, name: str) -> Table[Row]:
        """A table by its name; docs/schema.md lists them.

        Raises:
            NotFoundError: there is no such table.
        """
        found = self._tables.get(name)
        if found is None:
            schema = TABLES.get(name)
            if schema is None:
                raise NotFoundError(f"no table {name!r:.80} (there are: {', '.join(TABLES)})")
            found = self._tables[name] = Table(self.source, schema)
        return found

    @property
    def requests(self) -> Table[Request]:
        """Requests in order of arrival."""
        return self.table("requests")

    @property
    def steps(self) -> Table[Step]:
        """Steps of engine cores, or of a profile."""
        return self.table("steps")

    @property
    def segments(self) -> Table[Segment]:
        """Segments of all requests' critical paths, request by request."""
        return self.table("segments")

    @property
    def waits(self) -> Table[Wait]:
        """Waits of traced threads, by thread and start."""
        return self.table("waits")

    # -- single ones

    def request(self, request_id: str | Request) -> OneRequest:
        """A request by any of its ids, or by a part of one that no other has, or by its row.

        Raises:
            NotFoundError: there is none.
            UsageError: several fit.
        """
        if isinstance(request_id, Request):
            return OneRequest(request_id, self)
        rows = list(self.requests)
        ids = [
            tuple(one for one in (r.request_id, r.internal_id, *r.aliases) if one) for r in rows
        ]
        found = match_ids(request_id, ids)
        if not found:
            raise NotFoundError(f"no request {request_id!r:.80} among the {len(rows)} recorded")
        if len(found) > 1:
            some = named([rows[at].request_id for at in found])
            raise UsageError(
                f"{len(found)} requests fit {request_id!r:.80}: {some}", hint="give more of the id"
            )
        return OneRequest(rows[found[0]], self)

    def step(self, number: int | Step, process: str = "") -> OneStep:
        """A step by its number, or by its row.

        Args:
            number: Its number.
            process: Whose, where several processes have one: ``EngineCore/4711``.

        Raises:
            NotFoundError: there is none.
            UsageError: several processes have one.
        """
        if isinstance(number, Step):
            return OneStep(number, self)
        found = [row for row in self.steps if row.step == number and process in ("", row.process)]
        if not found:
            raise NotFoundError(f"no step {number} was recorded")
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} processes have a step {number}: "
                f"{named([row.process for row in found])}",
                hint="say which: process=NAME",
            )
        return OneStep(found[0], self)

    def sql(self, query: str, **files: str | os.PathLike[str]) -> ArrowTable:
        """What an SQL query over the tables gives, as a ``pyarrow.Table``; DuckDB runs it.

        Args:
            query: One query that reads.
            **files: More tables by name: files of Parquet, CSV or JSON to join with.

        Raises:
            UsageError: it is not SQL, names what is not there, or would do more than read.
            NotFoundError: a file is not there.
            GpucorrelateError: DuckDB is not installed, or the query fails as it runs.
        """
        from gpucorrelate.api.query import Database

        own = {name: Path(place) for name, place in files.items()}
        with Database(self, own) as database:
            return database.ask_arrow(query)

    def save(self, folder: str | os.PathLike[str]) -> tuple[Saved, ...]:
        """Write every table as Parquet into a folder, which ``open`` takes too.

        Raises:
            UsageError: something else is there.
            StoreError: it cannot be written; what was there is as it was.
        """
        from gpucorrelate.api import results

        return results.save(self.source, Path(folder))

    def summary(self) -> RunSummary | DeviceRunReport:
        """The whole recording in a few numbers; of a profile, its devices and steps.

        Raises:
            UsageError: it is a folder of results.
        """
        recording = self.recording
        return recording.devices.whole() if recording.is_profile else recording.summary()


def open_run(place: str | os.PathLike[str]) -> Run:
    """Open a recording (a file, or a session's folder), or a folder of results.

    Of another tool's profile it opens what ``gpucorrelate import`` makes of it.

    Args:
        place: Where it is.

    Raises:
        NotFoundError: there is nothing of that name.
        RecordingError: it is neither, is damaged from its beginning, or holds several sessions.
        GpucorrelateError: pyarrow is not installed.
    """
    from gpucorrelate.api import results

    path = Path(place)
    if not path.exists():
        raise NotFoundError(f"{path}: no such file or folder")
    if results.is_results(path):
        return Run(results.Results(path), None, str(path))
    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.daemon.recording import open_recording

    return of_capture(Capture.from_batches(open_recording(path)), str(path))


def of_capture(capture: Capture, name: str = "") -> Run:
    """The run of a recording that is in memory.

    Raises:
        RecordingError: it holds several sessions.
    """
    from gpucorrelate.correlator.report import build

    return of_recording(build.Run.of(capture), name)


def of_recording(recording: build.Run, name: str = "") -> Run:
    """The run of a recording that is correlated already."""
    from gpucorrelate.api.build import Recorded

    return Run(Recorded(recording), recording, name)
