# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
import threading
import zlib
from array import array

import pytest

from gpucorrelate.probes.agents.buffers import (
    Buffer,
    Drops,
    FlatRows,
    Row,
    Rows,
    RowsetRows,
    Texts,
)
from gpucorrelate.probes.agents.spans import SpanRows
from gpucorrelate.probes.agents.vllm.requests import token_hash
from gpucorrelate.probes.wire.frame import StringTable
from gpucorrelate.probes.wire.schema import BY_NAME

SPAN = BY_NAME["span"]


def decoded(kind, columns, strings):
    texts = dict(strings.take_fresh())
    values = []
    for column, data in zip(kind.columns, columns, strict=True):
        numbers = array(column.code, data)
        values.append([texts.get(n, "") for n in numbers] if column.ctype == "str" else numbers)
    return list(zip(*values, strict=True))


def test_a_full_buffer_refuses_and_counts():
    drops = Drops()
    rows = Rows(SPAN, drops, limit=3)
    kept = [rows.put((1, "x", n, n + 1, 0)) for n in range(5)]
    assert kept == [True, True, True, False, False]
    assert drops.count == 2
    assert [row[2] for row in rows.take()] == [0, 1, 2]
    assert rows.put((1, "x", 9, 10, 0))


@pytest.mark.parametrize("flat", [False, True])
def test_every_row_is_taken_or_counted_while_threads_put(flat):
    drops, texts = Drops(), Texts()
    kind = BY_NAME["outputs"]  # integers alone
    rows: Buffer = FlatRows(kind, drops, texts, 500) if flat else Rows(kind, drops, 500)
    writers, each = 4, 20_000
    start = threading.Barrier(writers + 1)

    def write(writer: int) -> None:
        start.wait()
        for n in range(each):
            rows.put((writer, n, n, n, 1, 1))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    start.wait()
    taken: list[tuple[int, int]] = []

    def collect() -> None:
        count, columns = rows.columns(rows.take(), StringTable())
        if count:
            taken.extend(zip(array("I", columns[0]), array("q", columns[1]), strict=True))

    while any(thread.is_alive() for thread in threads):
        collect()
    collect()
    assert len(taken) + drops.count == writers * each
    for writer in range(writers):
        numbers = [n for who, n in taken if who == writer]
        assert numbers == sorted(set(numbers))


def test_a_value_that_does_not_fit_costs_its_row_alone():
    drops, strings = Drops(), StringTable()
    rows = Rows(SPAN, drops)
    given: list[Row] = [
        (1, "a", 0, 1, 0),
        (-1, "b", 0, 1, 0),
        (2, "c", 0, 1, 1 << 64),
        (3, "d", 5, 6, 7),
    ]
    count, columns = rows.columns(given, strings)
    assert count == 2
    assert drops.count == 2
    assert decoded(SPAN, columns, strings) == [(1, "a", 0, 1, 0), (3, "d", 5, 6, 7)]


def test_rowsets_are_bounded_by_rows_and_refused_whole():
    drops = Drops()
    rowsets = RowsetRows(drops, limit=5)
    three = ("a", "b", "c")
    numbers = ((1, 2, 3),) * 5
    assert rowsets.put((1, three, *numbers))
    assert not rowsets.put((2, three, *numbers))
    assert drops.count == 3
    assert len(rowsets.take()) == 1
    assert rowsets.put((3, three, *numbers))


def test_statements_become_rows():
    drops, strings = Drops(), StringTable()
    rowsets = RowsetRows(drops)
    rowsets.put((7, ("a", "b"), (1, 2), (3, 4), (5, 6), (0, 1), (True, False)))
    rowsets.put((8, ("b",), (9,), (0,), (0,), (0,), (0,)))
    count, columns = rowsets.columns(rowsets.take(), strings)
    assert count == 3
    assert decoded(rowsets.kind, columns, strings) == [
        (7, 0, "a", 1, 3, 5, 0, 1),
        (7, 1, "b", 2, 4, 6, 1, 0),
        (8, 0, "b", 9, 0, 0, 0, 0),
    ]


def test_a_bad_statement_is_dropped_and_counted():
    drops, strings = Drops(), StringTable()
    rowsets = RowsetRows(drops)
    short, negative = (1, ("a", "b"), (1,), *((0, 0),) * 4), (2, ("a",), (-1,), *((0,),) * 4)
    count, columns = rowsets.columns([short, negative], strings)
    assert (count, columns) == (0, ())
    assert drops.count == 3


def test_versions_change_with_every_loss_and_start():
    drops = Drops()
    seen = {drops.version}
    drops.add(1)
    seen.add(drops.version)
    drops.renew()
    seen.add(drops.version)
    assert len(seen) == 3
    assert drops.count == 1


@pytest.mark.parametrize("name", ["span", "step_begin", "worker_step", "queue_msg"])
def test_flat_rows_make_the_same_columns_as_tuples(name):
    kind, drops, texts = BY_NAME[name], Drops(), Texts()
    flat, plain = FlatRows(kind, drops, texts), Rows(kind, drops)
    rng = random.Random(1)
    for _ in range(300):
        row: list[int] = []
        named: list[int | str] = []
        for column in kind.columns:
            if column.ctype == "str":
                word = rng.choice(["", "one", "two", "three"])
                row.append(texts.number(word))
                named.append(word)
            else:
                bits = 8 * column.size_bytes - (1 if column.ctype[0] == "i" else 0)
                row.append(rng.getrandbits(min(bits, 63)))
                named.append(row[-1])
        assert flat.put(tuple(row))
        assert plain.put(tuple(named))
    assert len(flat) == 300
    flat_strings, plain_strings = StringTable(), StringTable()
    count, columns = flat.columns(flat.take(), flat_strings)
    assert count == 300
    assert len(flat) == 0
    expected = plain.columns(plain.take(), plain_strings)[1]
    assert decoded(kind, columns, flat_strings) == decoded(kind, expected, plain_strings)


def test_flat_rows_refuse_what_is_full_or_no_integer_and_stay_whole():
    drops, texts = Drops(), Texts()
    rows = FlatRows(SPAN, drops, texts, limit=3)
    name = texts.number("x")
    assert rows.put((1, name, 0, 1, 0))
    assert not rows.put((1, name, 0, None, 0))
    assert not rows.put((1, name, 0, 1 << 63, 0))
    assert not rows.put((1, name, 0))
    assert rows.put((2, name, 5, 6, 0))
    assert rows.put((3, name, 7, 8, 0))
    assert not rows.put((4, name, 9, 9, 0))
    assert drops.count == 4
    strings = StringTable()
    _, columns = rows.columns(rows.take(), strings)
    assert [row[0] for row in decoded(SPAN, columns, strings)] == [1, 2, 3]


def test_texts_are_bounded():
    texts = Texts(limit=4)
    numbers = [texts.number(text) for text in ("", "a", "b", "c", "d", "a", "")]
    assert numbers == [0, 2, 3, 1, 1, 2, 0]
    strings = StringTable()
    column = texts.on_wire(array("I", numbers).tobytes(), strings)
    names = dict(strings.take_fresh())
    found = [names.get(number, "") for number in array("I", column)]
    assert found == ["", "a", "b", Texts.OTHER, Texts.OTHER, "a", ""]


def test_spans_are_implied_by_other_kinds():
    drops, strings, texts = Drops(), StringTable(), Texts()
    spans, updates = SpanRows(drops, texts), FlatRows(BY_NAME["step_update"], drops, texts)
    begins = FlatRows(BY_NAME["step_begin"], drops, texts)
    worker = Rows(BY_NAME["worker_step"], drops)
    spans.inherit(updates, "update", "start_ns")
    spans.inherit(begins, "schedule", "sched_start_ns")
    spans.inherit_phases(worker, {1: "execute", 2: "sample"})
    updates.put((4, 11, 100, 110, 0, 0, 0, 0))
    updates.columns(updates.take(), strings)
    begins.put((5, 11, 0, 0, 9, 0, 0, 0, 0, 0))
    begins.put((6, 11, 50, 60, 61, 0, 0, 0, 0, 0))
    begins.columns(begins.take(), strings)
    worker.columns([(5, 12, 0, 1, 70, 80, 0), (5, 12, 0, 2, 81, 82, 0)], strings)
    spans.put((9, texts.number("own"), 1, 2, 3))
    count, columns = spans.columns(spans.take(), strings)
    assert count == 5
    assert decoded(SPAN, columns, strings) == [
        (9, "own", 1, 2, 3),
        (11, "update", 100, 110, 4),
        (11, "schedule", 50, 60, 6),  # not the one that was not seen to start
        (12, "execute", 70, 80, 5),
        (12, "sample", 81, 82, 5),
    ]
    assert spans.columns(b"", strings) == (0, ())


@pytest.mark.parametrize("tokens", [[], [0], [1, 2, 3], [2**32 - 1]])
def test_token_hash_is_crc32_of_little_endian_words(tokens):
    expected = zlib.crc32(b"".join(token.to_bytes(4, "little") for token in tokens))
    assert token_hash(tokens) == expected


def test_token_hash_takes_ids_that_are_no_u32():
    assert token_hash([-1]) == token_hash([0xFFFFFFFF])
