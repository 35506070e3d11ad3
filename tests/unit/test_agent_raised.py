# SPDX-License-Identifier: Apache-2.0
"""What is told of an exception: enough to find it in the engine's log, and none of its words."""

from __future__ import annotations

import pytest

from gpucorrelate.probes.agents.raised import message_hash, told_of
from gpucorrelate.probes.wire.frame import MAX_STRING_BYTES


def _fails(message: object) -> None:
    raise ValueError(message)


def _raises(message: object) -> BaseException:
    with pytest.raises(ValueError) as caught:
        _fails(message)
    return caught.value


def test_kind_and_place_and_hash_are_told() -> None:
    told = told_of(_raises("the prompt: my secret"))
    line = _fails.__code__.co_firstlineno + 1
    known = message_hash("the prompt: my secret")
    assert told == f"ValueError in _fails (test_agent_raised.py:{line}), message {known}"
    assert told_of(_raises("the prompt: another")) != told


def test_the_hash_is_what_b2sum_says() -> None:
    assert message_hash("x") == "b1ba07e5"  # printf x | b2sum -l 32


def test_an_exception_that_was_not_raised_has_no_place() -> None:
    assert told_of(KeyError("a")) == f"KeyError, message {message_hash(repr('a'))}"
    assert told_of(TimeoutError()) == "TimeoutError"


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("message", ["x" * (1 << 20), "\ud800", b"\xff", None, _Mute()])
def test_whatever_it_says_the_line_is_short_and_none_of_that(message: object) -> None:
    told = told_of(message if isinstance(message, BaseException) else _raises(message))
    assert len(told.encode()) < MAX_STRING_BYTES / 2
    assert told.startswith(("ValueError in _fails", "_Mute"))


def test_long_names_are_cut() -> None:
    kind = type("E" * 5000, (Exception,), {})
    name = "f" * 5000
    place: dict[str, object] = {"kind": kind}
    exec(compile(f"def {name}():\n    raise kind('x')", "p" * 5000, "exec"), place)
    try:
        place[name]()  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001
        told = told_of(error)
    assert len(told.encode()) < MAX_STRING_BYTES / 2
