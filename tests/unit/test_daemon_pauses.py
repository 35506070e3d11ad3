# SPDX-License-Identifier: Apache-2.0
"""A daemon that is kept from running notices, and says what kept it."""

from __future__ import annotations

import signal
import time

from gpucorrelate.daemon.pauses import PauseWatch
from tests.unit.daemon_kit import Yard, wait_for


def test_short_turns_are_no_pauses() -> None:
    watch = PauseWatch()
    pauses = 0
    for _ in range(5):
        begun = time.monotonic()
        time.sleep(0.01)
        watch.turn()
        pauses += time.monotonic() - begun > 0.5
    assert watch.count <= pauses, "only what really was long, on a busy machine"
    watch.close()


def test_a_pause_tells_blocked_from_running() -> None:
    watch = PauseWatch()
    time.sleep(0.6)
    watch.turn()
    assert watch.last is not None
    assert watch.last.length_s >= 0.6
    assert watch.last.running_s < 0.3, "asleep"
    begun = time.thread_time()
    while time.thread_time() - begun < 0.6:
        pass
    watch.turn()
    assert watch.count == 2
    assert watch.last.running_s >= 0.5
    assert watch.longest is not None
    assert watch.longest.length_s >= watch.last.length_s
    watch.close()


def test_a_stopped_daemon_names_its_pause_and_loses_nothing_that_waited() -> None:
    yard = Yard()
    try:
        daemon = yard.daemon().start()
        peer = yard.peer(daemon)
        peer.join()
        session = daemon.client.attach(peer.pid).session.session
        peer.do("hear")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        peer.do("steps", 1, 50)
        time.sleep(0.8)
        daemon.process.send_signal(signal.SIGCONT)
        wait_for(lambda: daemon.client.progress(session).steps == 50, "what waited is taken")
        wait_for(lambda: daemon.client.status().pauses, "the pause is counted")
        assert "running" in daemon.client.status().longest_pause
        assert "the loop paused for" in daemon.log.read_text()
        assert daemon.recorded(session).rows("loss") == []
    finally:
        yard.clear()
