# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucorrelate.correlator.report import units

LENGTHS = st.lists(st.integers(0, 10**15), min_size=1, max_size=30)


@given(LENGTHS, st.integers(0, 10**6))
def test_apportioned_units_sum_to_what_was_given(values, whole):
    parts = units.apportion(values, whole)
    assert sum(parts) == (whole if sum(values) else 0)
    for value, part in zip(values, parts, strict=True):
        assert abs(part * sum(values) - value * whole) < max(sum(values), 1)


@given(LENGTHS)
def test_shares_as_shown_add_to_a_hundred(values):
    shown = units.shares(values)
    tenths = sum(0 if one.startswith("<") else round(float(one[:-1]) * 10) for one in shown)
    assert tenths == (1000 if sum(values) else 0)
    for value, one in zip(values, shown, strict=True):
        assert (one == "0.0%") == (value == 0)


@given(LENGTHS)
def test_numbers_of_a_block_add_to_its_total_as_shown(values):
    scale = units.Scale.of(sum(values))
    shown = sum(Decimal(one) for one in scale.numbers(values) if not one.startswith("<"))
    assert shown == Decimal(scale.number(sum(values)))


@given(st.integers(1, 10**18))
def test_a_duration_is_within_half_of_its_last_digit(length_ns):
    number, unit = units.duration(length_ns).split()
    unit_ns = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    last = Decimal(1).scaleb(-len(number.partition(".")[2]))
    assert abs(Decimal(number) * unit_ns - length_ns) * 2 <= last * unit_ns
    assert Decimal(number) < 1000 or unit == "s"


@pytest.mark.parametrize(
    ("length_ns", "shown"),
    [
        (None, "?"),
        (0, "0"),
        (1, "1 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (7_400_000, "7.40 ms"),
        (73_100_000, "73.1 ms"),
        (999_400, "999 us"),
        (999_600, "1.00 ms"),
        (999_999_999, "1.00 s"),
        (3_600_000_000_000, "3600 s"),
        (-1_500_000, "-1.50 ms"),
    ],
)
def test_durations_read_as_people_write_them(length_ns, shown):
    assert units.duration(length_ns) == shown


def test_a_part_too_small_to_show_is_not_shown_as_zero():
    assert units.share(1, 10**9) == "<0.1%"
    assert units.share(0, 10**9) == "0.0%"
    assert units.share(1, 0) == "?"
    assert units.Scale.of(10**10).numbers([10**10, 1]) == ["10.00", "<0.01"]


def test_quantiles_are_values_that_occurred():
    assert units.quantile([], 99) is None
    assert units.quantile([5], 50) == 5
    assert units.quantile(list(range(1, 101)), 99) == 99
    assert units.quantile([1, 2, 3, 4], 50) == 2


def test_a_moment_reads_like_the_kernels_log():
    assert units.instant(1_234_567_890_123) == "1234.567890"
    assert units.instant(5) == "0.000000"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1.00 kB"), (3_210, "3.21 kB"),
        (9_994, "9.99 kB"), (9_996, "10.0 kB"), (99_960, "100 kB"), (999_400, "999 kB"),
        (999_600, "1.00 MB"), (71_200_000_000, "71.2 GB"), (5_000_000_000_000_000, "5000 TB"),
    ],
)  # fmt: skip
def test_sizes_have_the_unit_that_suits_them(size_bytes: int, text: str) -> None:
    assert units.size(size_bytes) == text
