# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpucorrelate.cli.moments import duration_s, length_ns, moment_ns
from gpucorrelate.probes.wire.errors import GpucorrelateError, UsageError

END = 1_234_567_890_123


@pytest.mark.parametrize(
    ("text", "t_ns"),
    [
        ("30s", END - 30 * 10**9),
        ("1.5m", END - 90 * 10**9),
        ("2h", END - 7200 * 10**9),
        ("250ms", END - 250 * 10**6),
        ("10us", END - 10_000),
        ("7ns", END - 7),
        ("0s", END),
        ("1234.567", 1_234_567_000_000),
        ("1234567000001", 1_234_567_000_001),
        (" 5m ", END - 300 * 10**9),
    ],
)
def test_a_moment_can_be_written_in_three_ways(text, t_ns):
    assert moment_ns(text, END) == t_ns


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-5m", "5 parsecs", "1e9", "0x10", "٣s", "1..2", "5mm"]
)
def test_what_is_no_moment_is_a_usage_error(text):
    with pytest.raises(UsageError) as caught:
        moment_ns(text, END)
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize("text", ["999999999999999999h", "9999999999999999999", "999999999999.9"])
def test_a_moment_fits_what_a_recording_holds(text):
    assert -(1 << 63) <= moment_ns(text, END) < 1 << 63


@example("0\x1f")
@given(st.text(max_size=30))
def test_no_text_breaks_the_reading_of_moments(text):
    for read in (lambda: moment_ns(text, END), lambda: duration_s(text)):
        try:
            assert isinstance(read(), int | float)
        except GpucorrelateError as exc:
            assert "\n" not in exc.message


def test_durations_are_seconds_unless_they_say_otherwise():
    assert duration_s("60") == 60.0
    assert duration_s("1.5") == 1.5
    assert duration_s("2m") == 120.0
    assert length_ns("2") is None
    for text in ("0", "0s", "soon", "-1", "999999999999h", "9" * 5000):
        with pytest.raises(UsageError):
            duration_s(text)
