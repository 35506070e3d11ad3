# SPDX-License-Identifier: Apache-2.0
"""What a new segment restates, so that it can be read without the old ones."""

from __future__ import annotations

from gpucorrelate.daemon.recall import Recall
from gpucorrelate.probes.wire.frame import Batch, Decoder, StringTable, columns_of
from gpucorrelate.probes.wire.schema import BY_NAME, TaskEvent
from tests.unit.daemon_kit import Recorded

STEP_ROWS = BY_NAME["step_rows"]


class Feed:
    """A stream that a recall follows."""

    def __init__(self) -> None:
        self.recall = Recall(3)
        self.table = StringTable()
        self.strings: dict[int, str] = {}
        self.seq = 0

    def rows(self, name: str, rows: list[tuple]) -> None:
        kind = BY_NAME[name]
        columns = columns_of(kind, rows, self.table)
        self.strings.update(self.table.take_fresh())
        self.batch(Batch(kind.id, len(rows), columns))

    def batch(self, batch: Batch) -> None:
        self.recall.take(batch, self.strings)

    def restated(self) -> Recorded:
        items = Decoder().feed(b"".join(self.recall.frames(self.strings)))
        found = Recorded(item[0] if isinstance(item, tuple) else item for item in items)
        assert not found.damage
        assert {batch.seq for batch in found.batches} <= {0}
        assert {batch.stream for batch in found.batches} <= {3}
        return found


def rowset(number: int, *requests: str) -> list[tuple]:
    return [(number, row, request, 1, 0, 1, 0, 1) for row, request in enumerate(requests)]


def test_the_latest_of_each_fact_is_restated() -> None:
    feed = Feed()
    feed.rows("thread", [(1, "MainThread", ""), (2, "other", "core.input")])
    feed.rows("thread", [(1, "MainThread", "core.main")])
    feed.rows("meta", [(1, "model", "old"), (2, "model", "new")])
    feed.rows("capability", [(1, "vllm.engine", 3, "bad"), (2, "vllm.engine", 1, "")])
    found = feed.restated()
    assert sorted(found.rows("thread")) == [
        (1, "MainThread", "core.main"),
        (2, "other", "core.input"),
    ]
    assert found.rows("meta") == [(2, "model", "new")]
    assert found.rows("capability") == [(2, "vllm.engine", 1, "")]


def test_a_dead_task_is_not_restated() -> None:
    feed = Feed()
    feed.rows("task", [(1, 1, 5, int(TaskEvent.SEEN), "a", 0, 1, 1, 0)])
    feed.rows("task", [(2, 1, 5, int(TaskEvent.FORK), "b", 0, 0, 0, 0)])
    feed.rows("task", [(1, 1, 6, int(TaskEvent.EXIT), "a", 0, 0, 0, 0)])
    assert feed.restated().values("task", "tid") == [2]
    feed.recall.forget_task(2)
    assert feed.restated().rows("task") == []


def test_the_state_that_each_subject_is_in_is_restated_as_it_was_told() -> None:
    feed = Feed()
    feed.rows("change", [(1, 0, "pid:1", "cgroup", "", "/a"), (2, 0, "pid:2", "cgroup", "", "/a")])
    feed.rows("change", [(5, 4, "pid:1", "cgroup", "/a", "/b")])
    feed.rows("change", [(6, 5, "pid:1", "allowed CPUs and nodes", "", "CPUs 0")])
    feed.rows("change", [(7, 6, "tid:1", "blocked in", "", "folio_wait_bit_common")])
    feed.rows("change", [(8, 7, "pci:1", "driver", "", "nvidia")])
    feed.rows("change", [(9, 8, "pci:1", "driver", "nvidia", "")])
    held = [
        (2, 0, "pid:2", "cgroup", "", "/a"),
        (5, 4, "pid:1", "cgroup", "/a", "/b"),
        (6, 5, "pid:1", "allowed CPUs and nodes", "", "CPUs 0"),
    ]
    assert sorted(feed.restated().rows("change")) == held
    assert feed.recall.latest_change("pid:1", "cgroup") == held[1]
    assert feed.recall.latest_change("pci:1", "driver") is None
    feed.recall.forget_changes("pid:1")
    assert feed.restated().rows("change") == held[:1]
    feed.recall.forget_changes("pid:2")
    assert feed.recall.row_bytes == 0


def test_rowsets_in_use_outlive_those_that_are_not() -> None:
    feed = Feed()
    feed.rows("step_rows", rowset(1, "kept-a", "kept-b"))
    for number in range(2, 1000):
        feed.rows("step_rows", rowset(number, f"r{number}"))
        feed.rows("step_begin", [(number, 1, 1, 1, 1, 1, number, 2, 2, 0)])
    found = feed.restated()
    numbers = found.values("step_rows", "rowset")
    assert numbers.count(1) == 2
    assert 999 in numbers
    assert len(set(numbers)) < 300, "and it is bounded"
    assert {"kept-a", "kept-b"} <= set(found.values("step_rows", "request"))


def test_a_rowset_cut_by_a_batch_is_whole_and_one_stated_again_is_new() -> None:
    feed = Feed()
    first = rowset(1, "a", "b", "c")
    feed.rows("step_rows", first[:2])
    feed.rows("step_rows", first[2:])
    assert feed.restated().values("step_rows", "request") == ["a", "b", "c"]
    feed.rows("step_rows", rowset(1, "x"))
    assert feed.restated().values("step_rows", "request") == ["x"]


def test_large_rowsets_are_bounded_by_their_size() -> None:
    feed = Feed()
    for number in range(1, 60):
        feed.rows("step_rows", rowset(number, *[f"r{row}" for row in range(5000)]))
    found = feed.restated()
    assert max(found.values("step_rows", "rowset")) == 59
    assert len(found.rows("step_rows")) * 29 < 5 << 20


def test_an_older_agents_rowsets_lack_columns_and_stay_readable() -> None:
    feed = Feed()
    columns = columns_of(STEP_ROWS, rowset(1, "a"), feed.table)
    feed.strings.update(feed.table.take_fresh())
    feed.batch(Batch(STEP_ROWS.id, 1, (*columns[:-2], b"", b"")))
    assert feed.restated().rows("step_rows") == [(1, 0, "a", 1, 0, 1, 0, 0)]


def test_facts_without_end_are_bounded() -> None:
    feed = Feed()
    for at in range(0, 5000, 500):
        feed.rows("meta", [(1, f"key-{n}", "v") for n in range(at, at + 500)])
    keys = feed.restated().values("meta", "key")
    assert "key-4999" in keys
    assert len(keys) <= 1024


def test_strings_that_facts_need_do_not_disturb_the_living_ones() -> None:
    feed = Feed()
    feed.rows("thread", [(1, "MainThread", "core.main")])
    # The stream has used that string's number for something else since.
    feed.strings[1] = "request-77"
    found = feed.restated()
    assert found.rows("thread") == [(1, "MainThread", "core.main")]
    assert found.readers[3].strings[1] == "request-77"
