# SPDX-License-Identifier: Apache-2.0
"""Every message of a queue is on record from the start on, also one that is waited for already."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.vllm import contract, shm_queue
from gpucorrelate.probes.wire.frame import StringTable
from gpucorrelate.probes.wire.schema import BY_NAME, QueueOp

_COLUMNS = [column.name for column in BY_NAME["queue_msg"].columns]
_SLOTS = 2


@pytest.fixture
def agent():
    made = Agent("test", path="/nonexistent")
    yield made
    made.stopped()


@pytest.fixture
def pair(agent):
    """A writer and a reader of one queue, which wait as the engine's do."""
    slots = [None] * _SLOTS

    class MessageQueue:
        def __init__(self, local_reader_rank):
            self.buffer = SimpleNamespace(shared_memory=SimpleNamespace(name="q"))
            self.local_reader_rank = local_reader_rank
            self.current_idx = 0

        @contextmanager
        def acquire_write(self, timeout=None):
            while slots[self.current_idx] is not None:
                time.sleep(0.0001)
            yield self.current_idx
            self.current_idx = (self.current_idx + 1) % _SLOTS

        @contextmanager
        def acquire_read(self, timeout=None, indefinite=False):
            while slots[self.current_idx] is None:
                time.sleep(0.0001)
            yield self.current_idx
            slots[self.current_idx] = None
            self.current_idx = (self.current_idx + 1) % _SLOTS

        def enqueue(self, obj, timeout=None):
            with self.acquire_write(timeout) as slot:
                slots[slot] = obj

        def dequeue(self, timeout=None, indefinite=False):
            with self.acquire_read(timeout, indefinite) as slot:
                return slots[slot]

    made = ModuleType(contract.QUEUE)
    vars(made).update(MessageQueue=MessageQueue, ShmRingBuffer=type("ShmRingBuffer", (), {}))
    shm_queue.install(agent, made)
    return MessageQueue(-1), MessageQueue(0)


def rows(agent):
    """What the hooks have put, as dictionaries."""
    buffer = agent.rows("queue_msg")
    found = []
    for count, columns in drained(buffer):
        decoded = [decode(name, data, count) for name, data in zip(_COLUMNS, columns, strict=True)]
        found += [dict(zip(_COLUMNS, row, strict=True)) for row in zip(*decoded, strict=True)]
    return sorted(found, key=lambda row: row["end_ns"])


def drained(buffer):
    count, columns = buffer.columns(buffer.take(), StringTable())
    return [(count, columns)] if count else []


def decode(name, data, count):
    width = len(data) // count
    return [int.from_bytes(data[k * width : (k + 1) * width], "little") for k in range(count)]


def test_a_read_that_waits_when_tracing_begins_is_on_record(agent, pair):
    writer, reader = pair
    for k in range(3):  # numbers are counted while nobody listens
        writer.enqueue(k)
        assert reader.dequeue() == k
    got = []
    waiting = threading.Thread(target=lambda: got.append(reader.dequeue()))
    waiting.start()
    time.sleep(0.02)
    agent.started("s")
    time.sleep(0.02)
    before = time.monotonic_ns()
    writer.enqueue("late")
    waiting.join()
    assert got == ["late"]
    write, read = sorted(rows(agent), key=lambda row: row["op"] == QueueOp.READ)
    assert (write["op"], read["op"]) == (QueueOp.WRITE, QueueOp.READ)
    assert write["seq"] == read["seq"] == 4
    assert write["queue"] == read["queue"]
    assert read["start_ns"] == agent.started_ns  # no wait is told of before tracing began
    assert before < write["end_ns"] <= read["ready_ns"] <= read["end_ns"]
    assert read["tid"] == waiting.native_id


def test_a_write_that_waits_when_tracing_begins_claims_no_wait(agent, pair):
    writer, reader = pair
    for k in range(_SLOTS):
        writer.enqueue(k)
    waiting = threading.Thread(target=lambda: writer.enqueue("late"))
    waiting.start()
    time.sleep(0.02)
    agent.started("s")
    assert [reader.dequeue() for _ in range(_SLOTS)] == [0, 1]
    waiting.join()
    assert reader.dequeue() == "late"
    (write,) = [row for row in rows(agent) if row["op"] == QueueOp.WRITE]
    assert write["seq"] == _SLOTS + 1
    assert write["start_ns"] == write["ready_ns"] == write["end_ns"] > agent.started_ns


def test_times_of_an_earlier_session_are_not_told_in_a_later_one(agent, pair):
    writer, reader = pair
    agent.started("first")
    writer.enqueue(1)
    reader.dequeue()
    got = []
    waiting = threading.Thread(target=lambda: got.append(reader.dequeue()))
    waiting.start()  # timed by the first session's hooks
    time.sleep(0.02)
    agent.stopped()
    rows(agent)
    writer.enqueue(2)
    waiting.join()
    waiting = threading.Thread(target=lambda: got.append(reader.dequeue()))
    waiting.start()
    time.sleep(0.02)
    agent.started("second")
    writer.enqueue(3)
    waiting.join()
    assert got == [2, 3]
    assert [row["seq"] for row in rows(agent)] == [3, 3]
    for row in rows(agent):
        assert row["start_ns"] >= agent.started_ns
