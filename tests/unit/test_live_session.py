# SPDX-License-Identifier: Apache-2.0
"""Following a session of a real daemon: restarts, its end, segments that are deleted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.daemon.live import LiveOptions, LiveSession
from gpucorrelate.probes.wire.errors import ControlError, DaemonUnreachableError
from tests.unit.daemon_kit import wait_for

if TYPE_CHECKING:
    from gpucorrelate.daemon.live import LiveUpdate
    from tests.unit.daemon_kit import DaemonProcess, PeerProcess, Yard

_ALL = LiveOptions(cpu_share=None, settle_s=0.05)


def attached(yard: Yard, **settings: object) -> tuple[DaemonProcess, PeerProcess, str]:
    daemon = yard.daemon(**settings).start()
    peer = yard.peer(daemon)
    session = daemon.client.attach(peer.pid).session.session
    assert peer.join()["op"] == "start"
    return daemon, peer, session


def served(peer: PeerProcess, name: str) -> None:
    """A request that took some time: one that took none is no request."""
    for anchor in ("ADMITTED", "FINISHED"):
        peer.do("request", name, [anchor])


class Followed:
    """A session that is polled until something is so; all updates are kept."""

    def __init__(self, live: LiveSession) -> None:
        self.live = live
        self.updates: list[LiveUpdate] = []

    def poll(self) -> LiveUpdate:
        self.updates.append(self.live.poll())
        return self.updates[-1]

    def polled(self) -> Followed:
        """Itself, after a poll."""
        self.poll()
        return self

    @property
    def finished(self) -> list[str]:
        return [one.internal_id for update in self.updates for one in update.finished]

    @property
    def notes(self) -> list[str]:
        return [note for update in self.updates for note in update.notes]


def test_requests_of_a_running_session_are_reported_once_each(yard: Yard) -> None:
    daemon, peer, session = attached(yard)
    peer.do("request", "before", ["ADMITTED", "FINISHED"])
    wait_for(lambda: daemon.client.progress(session).requests_finished, "it is recorded")
    time.sleep(0.1)
    seen = Followed(LiveSession.follow(daemon.client, session, _ALL))
    assert seen.poll().in_flight_total == 0
    peer.do("request", "one", ["ADMITTED"])
    wait_for(lambda: seen.poll().in_flight_total == 1, "one is in flight")
    assert seen.updates[-1].in_flight[0].request_id == "one"
    peer.do("request", "one", ["FINISHED"])
    served(peer, "two")
    wait_for(lambda: len(seen.polled().finished) >= 2, "both are reported")
    for _ in range(5):
        seen.poll()
    # What ended before it was followed is no news.
    assert sorted(seen.finished) == ["one", "two"]
    daemon.client.detach(session)
    last = wait_for(lambda: (u := seen.poll()).ended and u, "the session ended")
    assert last.state == "detached"
    assert "the session ended: detached" in seen.notes


def test_a_daemon_that_is_started_again_is_told_of_and_followed_on(yard: Yard) -> None:
    daemon, peer, session = attached(yard)
    seen = Followed(LiveSession.follow(daemon.client, session, _ALL))
    seen.poll()
    served(peer, "one")
    wait_for(lambda: seen.polled().finished, "it is reported")
    daemon.kill()
    for _ in range(3):
        assert seen.poll().state == "daemon away"
    assert seen.notes.count("the daemon does not answer; it is asked again") == 1
    again = yard.daemon().start()
    wait_for(lambda: seen.poll().state == "attached", "it is followed again")
    assert "the daemon answers again" in seen.notes
    peer.do("connect", again.ingest)
    peer.do("greet", "core")
    peer.do("hear")
    served(peer, "two")
    wait_for(lambda: "two" in seen.polled().finished, "the next is reported")
    assert seen.finished == ["one", "two"]


def test_files_that_are_deleted_before_they_are_read_are_told_of(yard: Yard) -> None:
    daemon, peer, session = attached(
        yard, segment_bytes=4096, session_max_bytes=16_384, total_max_bytes=1 << 20
    )
    seen = Followed(LiveSession.follow(daemon.client, session, _ALL))
    seen.poll()
    for turn in range(40):
        peer.do("steps", 1 + 50 * turn, 50)
    wait_for(lambda: daemon.client.progress(session).steps == 2000, "all is recorded")
    wait_for(lambda: daemon.client.sessions()[0].size_bytes < 40_000, "the oldest are deleted")
    seen.poll()
    assert any("store.retention" in line.name for line in seen.updates[-1].losses)
    served(peer, "one")
    wait_for(lambda: seen.polled().finished, "what comes after is reported")


def test_where_there_is_no_daemon_or_no_session(yard: Yard) -> None:
    daemon = yard.daemon().start()
    with pytest.raises(ControlError, match="no session"):
        LiveSession.follow(daemon.client)
    daemon.kill()
    with pytest.raises(DaemonUnreachableError):
        LiveSession.follow(daemon.client)
