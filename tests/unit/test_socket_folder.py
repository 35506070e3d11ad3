# SPDX-License-Identifier: Apache-2.0
"""The folder of a socket: made where it alone is missing, else told in a line."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon.sockets import listen
from gpucorrelate.probes.wire.errors import DaemonError
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.daemon_kit import Yard


def test_it_is_made_for_everybody_to_pass_through_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        listen(tmp_path / "ingest" / "one.sock", mode=0o666).close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "ingest").stat().st_mode) == 0o755


def test_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "ingest").mkdir(mode=0o710)
    listen(tmp_path / "ingest" / "one.sock", mode=0o666).close()
    assert stat.S_IMODE((tmp_path / "ingest").stat().st_mode) == 0o710


def test_its_parents_are_not_made_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match="there is no ") as raised:
        listen(tmp_path / "a" / "b" / "one.sock", mode=0o666)
    assert raised.value.hint == f"make the folder: sudo mkdir -p {tmp_path}/a/b"
    assert not (tmp_path / "a").exists()


def test_engines_reach_a_daemon_whose_ingest_socket_has_a_folder_of_its_own(yard: Yard) -> None:
    folder = yard.folder / "r" / "ingest"
    daemon = yard.daemon(ingest_socket=str(folder / "ingest.sock")).start()
    assert [path.name for path in folder.iterdir()] == ["ingest.sock"]
    (folder / "ingest.sock").unlink()
    folder.rmdir()
    wait_for((folder / "ingest.sock").is_socket, "made again, with its folder")
    assert daemon.end() == 0
