# SPDX-License-Identifier: Apache-2.0
"""From a recording, a session of the daemon or a folder of results to a run's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.cli.source import open_run

if TYPE_CHECKING:
    from gpucorrelate.api.runs import Run
    from gpucorrelate.cli.options import Source


def tables_of(source: Source, *, redact: bool = False) -> Run:
    """What the source recorded, as tables.

    Args:
        source: Where it is; its file may be a folder of results.
        redact: Hashes in place of the requests' ids; a folder of results stays as it is.

    Raises:
        GpucorrelateError: pyarrow is not installed.
        NotFoundError: there is nothing of that name, or no session.
        RecordingError: the file is no recording, or one of the results cannot be read.
        DaemonError: the daemon cannot be asked.
    """
    from gpucorrelate.api import arrow, results, runs

    arrow.pyarrow()  # before anything long is begun
    if source.file is not None and results.is_results(source.file):
        return runs.open_run(source.file)
    return runs.of_recording(open_run(source, redact=redact), str(source.file or source.session))
