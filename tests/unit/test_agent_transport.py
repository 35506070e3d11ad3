# SPDX-License-Identifier: Apache-2.0
"""The agent's transport against a real socket: every way a daemon can let it down."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.control import Start, Stop
from gpucorrelate.probes.agents.raised import message_hash
from gpucorrelate.probes.agents.transport import Pace
from gpucorrelate.probes.wire.frame import StreamReader
from gpucorrelate.probes.wire.schema import CapabilityState
from tests.unit.agent_peer import Listener, Peer, wait_until

QUICK = Pace(tick_s=0.005, connect_s=0.02, orphan_s=0.3)


def put(agent: Agent, number: int) -> None:
    agent.rows("span").put((1, agent.texts.number("work"), number, number + 1, 0))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ingest.sock"


@pytest.fixture
def listener(path):
    listener = Listener(path)
    yield listener
    listener.close()


@pytest.fixture
def agent(path):
    agent = Agent("vllm", str(path), QUICK)
    agent.role("core")
    yield agent
    agent.transport.close()


@pytest.fixture
def peer(agent, listener):
    agent.transport.run()
    peer = listener.accept()
    yield peer
    peer.close()


def started(agent: Agent, peer: Peer) -> Peer:
    peer.tell(Start("s"))
    wait_until(lambda: agent.on)
    return peer


def clog(agent: Agent) -> int:
    """Put rows until the peer, which does not read, has made the socket refuse more."""
    n = 0
    while True:
        for _ in range(500):
            put(agent, n)
            n += 1
        time.sleep(0.006)
        stuck = agent.transport.backlog_bytes
        if stuck:
            time.sleep(0.05)
            if agent.transport.backlog_bytes == stuck:
                return n


def numbers(peer: Peer) -> list[int]:
    return [int(str(row[2])) for row in peer.rows.get("span", ())]


def test_says_who_it_is_and_nothing_else_until_started(agent, peer):
    agent.part("engine").works()
    put(agent, 0)
    peer.read_for(0.1)
    assert [batch.kind for batch in peer.batches] == [23]
    (row,) = peer.rows["stream"]
    assert row[1] == os.getpid()
    assert row[3:] == ("vllm", "core")


def test_start_tells_what_is_known_then_what_happens(agent, peer):
    agent.part("engine").works()
    agent.part("queue").lack("half of it")
    agent.fact("model", "tiny")
    put(agent, -1)  # from before the start: not part of the session
    started(agent, peer)
    put(agent, 7)
    peer.read(lambda: "span" in peer.rows)
    states = {row[1]: (row[2], row[3]) for row in peer.rows["capability"]}
    assert states == {
        "engine": (CapabilityState.ON, ""),
        "queue": (CapabilityState.DEGRADED, "half of it"),
    }
    facts = {row[1]: row[2] for row in peer.rows["meta"]}
    assert facts["model"] == "tiny"
    assert facts["gil"].startswith("0x")
    assert (os.getpid(), "MainThread", "core.main") in peer.rows["thread"]
    assert numbers(peer) == [7]


def test_numbers_have_no_gap_and_rows_keep_their_order(agent, peer):
    started(agent, peer)
    for n in range(20_000):
        put(agent, n)
        if n % 1000 == 0:
            time.sleep(0.001)
    peer.read(lambda: len(numbers(peer)) + agent.drops.count >= 20_000)
    assert peer.reader.missing == peer.reader.repeated == 0
    got = numbers(peer)
    assert got == sorted(set(got))
    assert len(got) + agent.drops.count == 20_000


def test_stop_sends_what_is_there_and_start_begins_anew(agent, peer):
    started(agent, peer)
    put(agent, 1)
    peer.tell(Stop())
    wait_until(lambda: not agent.on)
    peer.read(lambda: numbers(peer) == [1])
    put(agent, 2)
    peer.read_for(0.05)
    started(agent, peer)
    put(agent, 3)
    peer.read(lambda: len(numbers(peer)) == 2)
    assert numbers(peer) == [1, 3]


def test_a_role_that_becomes_known_is_told(agent, peer):
    started(agent, peer)
    peer.read(lambda: "thread" in peer.rows)
    agent.role("api")
    peer.read(lambda: len(peer.rows.get("stream", ())) == 2)
    assert [row[4] for row in peer.rows["stream"]] == ["core", "inproc"]


def test_a_hung_daemon_costs_rows_not_memory_nor_time(agent, peer):
    started(agent, peer)
    longest = 0.0
    total = 400_000
    for n in range(total):
        before = time.perf_counter()
        put(agent, n)
        longest = max(longest, time.perf_counter() - before)
        if n % 5000 == 0:
            time.sleep(0.002)
    assert len(agent.rows("span")) <= 32_768
    assert agent.transport.backlog_bytes < 8 << 20
    assert agent.drops.count > 0
    peer.read(lambda: len(numbers(peer)) + agent.drops.count >= total, timeout_s=30)
    put(agent, total)
    peer.read(lambda: numbers(peer)[-1] == total)
    assert peer.reader.drops == agent.drops.count
    assert len(numbers(peer)) + agent.drops.count == total + 1


def test_what_a_stop_finds_unsent_is_counted_and_told(agent, peer):
    """A daemon that is behind says stop: what the socket has no room for is lost."""
    started(agent, peer)
    total = clog(agent)
    for n in range(total, total + 100):
        put(agent, n)
    peer.tell(Stop())
    wait_until(lambda: agent.drops.count >= 100)
    assert not agent.on
    peer.read(lambda: peer.reader.drops == agent.drops.count)
    assert len(numbers(peer)) + peer.reader.drops == total + 100
    lost = agent.drops.count
    peer.tell(Start("next"))
    wait_until(lambda: agent.on)
    put(agent, -7)
    peer.read(lambda: numbers(peer)[-1] == -7)
    assert peer.reader.drops == lost, "the next session is not charged with it"


def test_what_waits_for_a_daemon_that_never_comes_back_is_counted(agent, listener):
    agent.transport.run()
    peer = started(agent, listener.accept())
    peer.read(lambda: "thread" in peer.rows)
    listener.close()
    peer.close()
    wait_until(lambda: not agent.transport.connected)
    for n in range(10):
        put(agent, n)
    wait_until(lambda: agent.drops.count >= 10)
    assert not agent.on
    assert len(agent.rows("span")) == 0


def test_numbers_continue_over_a_restart_and_strings_are_stated_again(agent, listener):
    agent.transport.run()
    first = started(agent, listener.accept())
    put(agent, 1)
    first.read(lambda: numbers(first) == [1])
    first.close()
    put(agent, 2)
    wait_until(lambda: not agent.transport.connected)
    second = listener.accept(StreamReader())  # a new daemon knows no strings
    second.tell(Start("s"))
    second.read(lambda: 2 in numbers(second))
    assert second.rows["span"][0][1] == "work"
    assert second.rows["stream"][0][3:] == ("vllm", "core")
    in_order = [n for n in second.numbers if n]
    assert in_order[0] == first.reader.last_seq + 1
    assert in_order == list(range(in_order[0], in_order[0] + len(in_order)))
    second.close()


def test_a_frame_cut_by_a_lost_connection_is_sent_again_whole(agent, listener):
    agent.transport.run()
    first = started(agent, listener.accept())
    first.read(lambda: "thread" in first.rows)
    n = clog(agent)
    first.read_some(0.5)
    taken = len(numbers(first))
    last = first.reader.last_seq
    assert first.raw
    first.close()
    second = listener.accept(first.reader)  # the same daemon, a new connection
    second.tell(Start("s"))
    put(agent, n)
    second.read(lambda: n in numbers(second))
    # What the kernel had taken and nobody read is missing, and said to be; nothing is damaged,
    # nothing comes twice, and the frame that was cut is there.
    assert second.reader.repeated == 0
    kept = taken + len(numbers(second))
    frames = [number for number in second.numbers if number]
    assert frames == list(range(frames[0], frames[0] + len(frames)))
    assert second.reader.missing == frames[0] - last - 1
    assert kept + agent.drops.count <= n + 1
    got = numbers(second)
    assert got == sorted(set(got))
    second.close()


def test_without_a_daemon_it_goes_dormant(agent, listener):
    agent.transport.run()
    peer = started(agent, listener.accept())
    listener.close()
    peer.close()
    put(agent, 1)
    assert agent.on
    wait_until(lambda: not agent.on)
    assert len(agent.rows("span")) == 0


def test_it_waits_for_a_daemon_that_is_not_there_yet(agent, path):
    agent.transport.run()
    time.sleep(0.1)
    assert not agent.on
    listener = Listener(path)
    peer = started(agent, listener.accept())
    peer.read(lambda: "thread" in peer.rows)
    peer.close()
    listener.close()


@pytest.mark.parametrize("damage", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xc1"])
def test_a_daemon_that_talks_nonsense_is_left_and_tried_again(agent, listener, damage):
    agent.transport.run()
    peer = listener.accept()
    peer.socket.sendall(damage)
    again = listener.accept()
    started(agent, again)
    peer.close()
    again.close()


def test_a_closing_socket_never_raises_into_the_thread(agent, listener):
    agent.transport.run()
    for _ in range(5):
        peer = started(agent, listener.accept())
        for n in range(3000):
            put(agent, n)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        peer.close()
        wait_until(lambda: not agent.transport.connected)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("gpucorrelate-sender") == 1


def test_flush_does_not_wait_for_the_next_tick(path, listener):
    agent = Agent("vllm", str(path), Pace(tick_s=30.0, connect_s=0.02))
    agent.transport.run()
    peer = started(agent, listener.accept())
    peer.read(lambda: "thread" in peer.rows)
    put(agent, 5)
    agent.transport.flush(5.0)
    peer.read(lambda: numbers(peer) == [5])
    agent.transport.close()
    peer.close()


def test_flush_gives_up_on_a_hung_daemon(path, listener):
    agent = Agent("vllm", str(path), Pace(tick_s=0.005, connect_s=0.02))
    agent.transport.run()
    peer = started(agent, listener.accept())
    clog(agent)
    agent.transport.flush(0.05)
    assert agent.transport.backlog_bytes > 0
    peer.close()
    agent.transport.close()


def test_a_forked_child_has_its_own_stream_and_leaves_the_parents_alone(agent, listener):
    agent.transport.run()
    parent = started(agent, listener.accept())
    put(agent, 1)
    parent.read(lambda: numbers(parent) == [1])
    os.register_at_fork(after_in_child=agent.reborn)
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        agent.role("worker")
        time.sleep(20)
        os._exit(0)
    try:
        other = listener.accept()
        other.read(lambda: "stream" in other.rows)
        other.tell(Start("s"))
        other.read(lambda: "thread" in other.rows and other.rows["stream"][-1][4] == "worker")
        assert other.rows["stream"][0][1] == child
        assert other.reader.last_seq < 20
        put(agent, 2)
        parent.read(lambda: numbers(parent) == [1, 2])
        other.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    parent.close()


def test_a_part_that_keeps_failing_is_switched_off_and_says_so(agent, peer):
    started(agent, peer)
    part = agent.part("engine")
    assert part.on
    for n in range(5):
        part.fault(ValueError(f"number {n}"))
    assert not part.on
    peer.read(lambda: len(peer.rows.get("capability", ())) == 5)
    states = [row[2] for row in peer.rows["capability"]]
    assert states == [CapabilityState.DEGRADED] * 4 + [CapabilityState.OFF]
    told = peer.rows["capability"][-1][3]
    assert told.endswith(f"last ValueError, message {message_hash('number 4')}")
    assert "number" not in told, "what an exception says may be a prompt"
    peer.tell(Stop())
    wait_until(lambda: not agent.on)
    started(agent, peer)
    assert not part.on
    assert agent.part("other").on
