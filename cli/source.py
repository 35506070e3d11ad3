# SPDX-License-Identifier: Apache-2.0
"""From a recording or a session of the daemon to what can be reported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from gpucorrelate.probes.wire.errors import EXIT_INCOMPLETE, EXIT_OK, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpucorrelate.cli.options import Source
    from gpucorrelate.correlator.report.build import Run
    from gpucorrelate.correlator.report.values import Ledger
    from gpucorrelate.daemon.client import Client
    from gpucorrelate.probes.wire.frame import Batch, Damage

# sun_path of unix(7), less the zero at its end.
_SOCKET_BYTES = 107


def client_of(control: Path | None) -> Client:
    """The daemon's client; it connects when it is used, and closes when the command ends.

    Raises:
        UsageError: no socket can have that name.
    """
    from gpucorrelate.daemon.client import Client
    from gpucorrelate.daemon.config import default_control_path

    place = control or default_control_path()
    if len(os.fsencode(place)) > _SOCKET_BYTES:
        raise UsageError(f"{place}: a socket's name has {_SOCKET_BYTES} bytes at most")
    return click.get_current_context().with_resource(Client(control))


def open_run(source: Source, *, redact: bool = False) -> Run:
    """What the source recorded, joined and ready for reports.

    Args:
        source: Where it is.
        redact: Reports and lists hold hashes in place of the requests' ids.

    Raises:
        RecordingError: the file is no recording.
        DaemonError: the daemon cannot be asked.
        NotFoundError: there is no such session, or none at all.
    """
    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.report.build import Run

    if redact:
        from gpucorrelate.correlator.report.redact import RedactedRun

        return RedactedRun.of(Capture.from_batches(batches_of(source)))
    return Run.of(Capture.from_batches(batches_of(source)))


def batches_of(source: Source) -> Iterator[Batch | Damage]:
    """The source's events, as they were written."""
    if source.file is not None:
        from gpucorrelate.daemon.client import open_recording

        if not source.file.exists():
            raise NotFoundError(
                f"{source.file}: no such file",
                hint="a recording is made by: gpucorrelate record -o FILE --pid PID",
            )
        return open_recording(source.file)
    client = client_of(source.control)
    if not source.session and not client.sessions():
        raise NotFoundError(
            "the daemon has no session",
            hint="attach to an engine: gpucorrelate attach --pid PID; or name a recording's FILE",
        )
    return client.open_session(source.session)


def strict_code(ledger: Ledger, *, strict: bool) -> int:
    """The exit code of a report that was printed in full: 8 only where the user asked for it."""
    return EXIT_INCOMPLETE if strict and not ledger.clean else EXIT_OK
