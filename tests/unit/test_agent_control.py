# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.probes.agents.control import (
    MAX_MESSAGE_BYTES,
    ControlDecoder,
    Start,
    Stop,
    encode,
)
from gpucorrelate.probes.wire.errors import FrameError

MESSAGES = st.one_of(st.builds(Start, st.text(max_size=40)), st.just(Stop()))


@given(st.lists(MESSAGES, max_size=8), st.data())
def test_messages_survive_any_cutting(messages, data):
    stream = b"".join(encode(message) for message in messages)
    decoder = ControlDecoder()
    got: list[Start | Stop] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += decoder.feed(stream[:size])
        stream = stream[size:]
    assert got == messages


def packed(body: object) -> bytes:
    payload: bytes = msgpack.packb(body)
    return struct.pack("<I", len(payload)) + payload


def test_what_a_newer_daemon_says_is_passed_over():
    stream = packed({"op": "dance"}) + packed({"op": "stop", "extra": 1}) + packed({})
    assert list(ControlDecoder().feed(stream)) == [Stop()]


def test_a_session_that_is_no_text_is_no_session():
    assert list(ControlDecoder().feed(packed({"op": "start", "session": 7}))) == [Start("")]


@pytest.mark.parametrize(
    "damage",
    [
        struct.pack("<I", MAX_MESSAGE_BYTES + 1),
        struct.pack("<I", 1) + b"\xc1",
        packed([1, 2]),
        packed("start"),
    ],
)
def test_damage_is_told(damage):
    with pytest.raises(FrameError):
        list(ControlDecoder().feed(damage))
