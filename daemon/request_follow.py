# SPDX-License-Identifier: Apache-2.0
"""The process that explains requests for the metrics: follows the daemon's sessions, and counts.

``python -m gpucorrelate.daemon.request_follow CONTROL_SOCKET`` is started by the daemon, and by
nobody else. It is apart from it as explaining takes CPU time and memory that the daemon must not
spend: here both are bounded, nothing waits for it, and it may end at any time. It writes its sums
to standard output, a JSON document a line, until its standard input is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpucorrelate.daemon import privileges
from gpucorrelate.daemon.client import Client
from gpucorrelate.daemon.live import LiveOptions, LiveSession
from gpucorrelate.daemon.ready import readable
from gpucorrelate.daemon.request_sums import Counting
from gpucorrelate.daemon.values import to_map
from gpucorrelate.probes.wire.errors import GpucorrelateError

if TYPE_CHECKING:
    from typing import BinaryIO

    from gpucorrelate.daemon.request_sums import RequestSums

#: Time between looks.
EVERY_S = 2.0
#: Share of one CPU for all sessions together.
CPU_SHARE = 0.1
MOST_SESSIONS = 4
#: Events held of a session.
_HELD_BYTES = 48 << 20
#: Memory of this process: above it it ends, and is started again.
_MOST_MEMORY_BYTES = 640 << 20
_NICE = 15
_TIMEOUT_S = 10.0


class Followed:
    """The running sessions of a daemon.

    Args:
        client: A connection to it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._live: dict[str, LiveSession] = {}
        self._counting = Counting()
        self._waiting = 0

    def look(self) -> RequestSums:
        """Take what is new; whoever cannot be asked now is asked the next time."""
        with contextlib.suppress(GpucorrelateError):
            self._meet()
        for session, live in list(self._live.items()):
            try:
                update = live.poll()
            except GpucorrelateError:  # it was deleted, or is damaged beyond reading
                self._leave(session)
                continue
            self._counting.take(update)
            if update.ended:
                self._leave(session)
        return self._counting.sums(
            cpu_ns=time.process_time_ns(), sessions=len(self._live), not_followed=self._waiting
        )

    def _meet(self) -> None:
        running = [one.session for one in self._client.sessions() if one.state == "attached"]
        new = [session for session in running if session not in self._live]
        room = max(0, MOST_SESSIONS - len(self._live))
        self._waiting = max(0, len(new) - room)
        options = LiveOptions(
            cpu_share=CPU_SHARE / MOST_SESSIONS if len(running) > 1 else CPU_SHARE,
            max_bytes=_HELD_BYTES,
            in_flight=False,
        )
        for session in new[:room]:
            self._live[session] = LiveSession.follow(self._client, session, options)

    def _leave(self, session: str) -> None:
        self._live.pop(session).close()
        self._counting.forget(session)


def serve(followed: Followed, out: BinaryIO) -> None:
    """Look again and again, until standard input is closed or nobody reads any more."""
    while True:
        line = json.dumps(to_map(followed.look()), separators=(",", ":"))
        try:
            out.write(line.encode() + b"\n")
            out.flush()
        except BrokenPipeError:
            return
        if readable([0], EVERY_S) and not os.read(0, 4096):
            return


def main() -> int:
    """Give up what is not needed, and serve."""
    privileges.drop({})
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    try:
        with Client(Path(sys.argv[1]), timeout_s=_TIMEOUT_S) as client:
            serve(Followed(client), sys.stdout.buffer)
    except (MemoryError, KeyboardInterrupt):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
