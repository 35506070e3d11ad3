# SPDX-License-Identifier: Apache-2.0
"""The wire: what goes in comes out, and hostile bytes cost nothing but themselves."""

from __future__ import annotations

import io
import zlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucorrelate.probes.wire import frame as wire
from gpucorrelate.probes.wire.errors import BatchError, FrameError
from gpucorrelate.probes.wire.frame import (
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_ROWS,
    Batch,
    Damage,
    Decoder,
    StreamReader,
    StreamWriter,
    StringTable,
    columns_of,
    decode_payload,
    encode,
    read_frames,
    readdress,
)
from gpucorrelate.probes.wire.schema import (
    BY_NAME,
    CTYPES,
    KERNEL_RECORD,
    KINDS,
    RESERVED_IDS,
    Kind,
)

SPAN = BY_NAME["span"]


def batches() -> st.SearchStrategy[Batch]:
    @st.composite
    def one(draw: st.DrawFn) -> Batch:
        kind = draw(st.sampled_from(KINDS))
        count = draw(st.integers(0, 5))
        sizes = [count * c.size_bytes for c in kind.columns]
        blob = draw(st.binary(min_size=sum(sizes), max_size=sum(sizes)))
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        columns = tuple(blob[end - size : end] for size, end in zip(sizes, ends, strict=True))
        strings = draw(st.lists(st.tuples(st.integers(1, 99), st.text(max_size=20)), max_size=3))
        clean = tuple((i, t.encode("utf-8", "replace").decode()) for i, t in strings)
        seq, drops = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 2**64 - 1))
        return Batch(kind.id, count, columns, seq, drops, clean, draw(st.integers(0, 2**32 - 1)))

    return one()


def good(items: list[tuple[Batch, bytes] | Damage]) -> list[Batch]:
    return [item[0] for item in items if not isinstance(item, Damage)]


@given(st.lists(batches(), max_size=5), st.integers(1, 50))
def test_batches_survive_the_trip_however_it_is_cut(sent: list[Batch], piece: int) -> None:
    data = b"".join(map(wire.encode, sent))
    decoder = Decoder()
    got: list[tuple[Batch, bytes] | Damage] = []
    for at in range(0, len(data), piece):
        got += decoder.feed(data[at : at + piece])
    assert good(got) == sent
    assert decoder.pending_bytes == 0
    assert b"".join(item[1] for item in got if not isinstance(item, Damage)) == data


@settings(max_examples=300)
@given(st.lists(st.one_of(st.binary(max_size=60), batches().map(encode)), max_size=8))
def test_noise_between_frames_costs_only_itself(parts: list[bytes]) -> None:
    decoder = Decoder()
    sent = [part for part in parts if part.startswith(MAGIC) and len(part) > 16]
    got = [item for part in parts for item in decoder.feed(part)]
    kept = [item[1] for item in got if not isinstance(item, Damage)]
    # Noise that ends in a header's beginning may swallow what follows it; nothing is invented.
    assert set(kept) <= set(sent)
    if not any(MAGIC[:1] in part for part in parts if part not in sent):
        assert kept == sent
    assert decoder.pending_bytes <= MAX_FRAME_BYTES + wire.HEADER.size


@settings(max_examples=300)
@given(batches(), st.data())
def test_a_flipped_byte_never_passes_unnoticed(batch: Batch, data: st.DataObject) -> None:
    frame = bytearray(encode(batch))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    items = list(read_frames(io.BytesIO(bytes(frame))))
    if 4 <= at < 8:  # the stream number is the daemon's to rewrite: not under the checksum
        assert isinstance(items[0], Batch)
    else:
        assert items
        assert all(isinstance(item, Damage) for item in items)


@given(batches(), st.data())
def test_a_cut_frame_is_reported_and_what_came_before_is_kept(
    batch: Batch, data: st.DataObject
) -> None:
    whole, cut = encode(batch), encode(batch)
    cut = cut[: data.draw(st.integers(1, len(cut) - 1))]
    items = list(read_frames(io.BytesIO(whole + cut), chunk_bytes=7))
    assert items[0] == batch
    assert items[1:]
    assert all(isinstance(item, Damage) for item in items[1:])


@settings(max_examples=500)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.binary(max_size=9)
        | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from("vksndct"), inner, max_size=7)
        ),
    )
)
def test_any_msgpack_is_a_batch_or_an_error_of_ours(value: object) -> None:
    try:
        batch = decode_payload(msgpack.packb(value))
    except (FrameError, BatchError):
        return
    assert isinstance(batch, Batch)


def payload(**changes: object) -> bytes:
    body = {"v": 1, "k": SPAN.id, "s": 1, "n": 1, "d": 0,
            "c": [bytes(c.size_bytes) for c in SPAN.columns]}  # fmt: skip
    body.update(changes)
    return msgpack.packb({k: v for k, v in body.items() if v is not None})  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 2},
        {"n": MAX_ROWS + 1},
        {"n": -1},
        {"n": True},
        {"n": None},
        {"c": None},
        {"c": "x"},
        {"c": [1]},
        {"c": [b""] * 65},
        {"c": []},
        {"k": 70000},
        {"k": "span"},
        {"v": 0},
        {"v": "1"},
        {"s": -1},
        {"d": 1.5},
        {"t": [[0, "x"]]},
        {"t": [[1, "x" * 1025]]},
        {"t": [[1]]},
        {"t": {"a": 1}},
        {"t": [[2**30, "x"]]},
    ],
)
def test_a_lying_batch_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises((BatchError, FrameError)):
        decode_payload(payload(**changes))


def test_an_unknown_kind_and_a_newer_column_are_no_damage() -> None:
    assert not decode_payload(payload(k=9999)).known
    columns = [bytes(c.size_bytes) for c in SPAN.columns] + [b"future"]
    assert len(decode_payload(payload(c=columns)).columns) == len(SPAN.columns)


def test_an_older_writer_s_missing_columns_read_as_empty() -> None:
    columns = [bytes(c.size_bytes) for c in SPAN.columns][:3]
    assert decode_payload(payload(c=columns)).columns[3:] == (b"",) * (len(SPAN.columns) - 3)


def test_a_length_beyond_the_limit_is_not_waited_for() -> None:
    decoder = Decoder()
    head = wire.HEADER.pack(MAGIC, 0, MAX_FRAME_BYTES + 1, 0)
    items = list(decoder.feed(head + encode(Batch(SPAN.id, 0, (b"",) * len(SPAN.columns)))))
    assert isinstance(items[0], Damage)
    assert good(items)


def test_a_bomb_of_nested_arrays_is_refused() -> None:
    bomb = b"\x91" * 100_000 + b"\xc0"
    frame = wire.HEADER.pack(MAGIC, 0, len(bomb), zlib.crc32(bomb)) + bomb
    assert [type(x) for x in Decoder().feed(frame)] == [Damage]


def test_readdressing_keeps_the_checksum_valid() -> None:
    frame = readdress(encode(Batch(SPAN.id, 0, (b"",) * len(SPAN.columns))), 42)
    batch = next(iter(Decoder().feed(frame)))
    assert not isinstance(batch, Damage)
    assert batch[0].stream == 42


def numbered(seq: int, drops: int = 0) -> Batch:
    return Batch(SPAN.id, 0, (b"",) * len(SPAN.columns), seq, drops)


def test_a_reader_counts_gaps_repeats_and_drops() -> None:
    reader = StreamReader()
    assert reader.accept(numbered(5)) == (True, 0, 0)  # joined late: nothing known to be missing
    assert reader.accept(numbered(8, drops=3)) == (True, 2, 3)
    assert reader.accept(numbered(8)) == (False, 0, 0)
    assert reader.accept(numbered(6)) == (False, 0, 0)
    assert reader.accept(numbered(9, drops=4)) == (True, 0, 1)
    assert (reader.missing, reader.repeated, reader.drops) == (2, 2, 4)


def test_strings_are_stated_before_they_are_used_and_ids_are_reused_in_bounds() -> None:
    table = StringTable(limit=3)
    assert [table.id(t) for t in ("a", "b", "a", "c", None, "")] == [1, 2, 1, 3, 0, 0]
    assert table.take_fresh() == ((1, "a"), (2, "b"), (3, "c"))
    assert table.id("d") == 2  # b was the least recently used
    assert table.take_fresh() == ((2, "d"),)


def test_a_writer_splits_what_does_not_fit_and_loses_nothing() -> None:
    writer = StreamWriter(9)
    rows = [(i, f"name {i}", i, i + 1, 0) for i in range(40_000)]
    columns = columns_of(SPAN, rows, writer.strings)
    frames = list(writer.frames(SPAN, len(rows), columns, drops=7))
    assert max(map(len, frames)) <= MAX_FRAME_BYTES
    reader, names, total = StreamReader(), {}, 0
    for item in Decoder().feed(b"".join(frames)):
        assert not isinstance(item, Damage)
        assert reader.accept(item[0])[:2] == (True, 0)
        names.update(reader.strings)
        total += item[0].count
    assert total == len(rows)
    assert set(names.values()) == {f"name {i}" for i in range(40_000)}


def test_a_text_beyond_the_limit_is_cut_at_a_character() -> None:
    table = StringTable()
    table.id("é" * 2000)
    (_, text) = table.take_fresh()[0]
    assert len(text.encode()) <= wire.MAX_STRING_BYTES
    assert set(text) == {"é"}


def test_schema_ids_and_names_are_unique_and_columns_have_known_types() -> None:
    assert len({k.id for k in KINDS}) == len({k.name for k in KINDS}) == len(KINDS)
    assert not {k.id for k in KINDS} & set(RESERVED_IDS)
    for kind in (*KINDS, Kind(0, "record", "", KERNEL_RECORD)):
        assert len({c.name for c in kind.columns}) == len(kind.columns)
        assert all(c.ctype in CTYPES for c in kind.columns)
    assert sum(c.size_bytes for c in KERNEL_RECORD) == 80
