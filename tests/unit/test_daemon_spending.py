# SPDX-License-Identifier: Apache-2.0
"""What polling takes, and what of its share that leaves."""

from __future__ import annotations

from gpucorrelate.daemon.spending import Spending, Spent

S = 1_000_000_000
MS = 1_000_000


def spent(second: int, loop_ms: int, thread_ms: int = 0, beside_ms: int = 0) -> Spent:
    return Spent(second * S, loop_ms * MS, thread_ms * MS, beside_ms * MS)


def test_what_is_spent_beside_looks_is_taken_from_their_share() -> None:
    spending = Spending(10_000)
    assert (spending.loop_ppm, spending.thread_ppm, spending.for_looks_ppm) == (0, 0, 10_000)
    for second in range(30):
        spending.note(spent(second, 5 * second, 2 * second, 3 * second))
    assert (spending.loop_ppm, spending.thread_ppm) == (5000, 2000)
    assert spending.for_looks_ppm == 7000


def test_looks_have_a_part_of_the_share_whatever_else_takes() -> None:
    spending = Spending(10_000)
    for second in range(5):
        spending.note(spent(second, 50 * second, 0, 50 * second))
    assert spending.for_looks_ppm == 2500


def test_only_the_last_seconds_count_and_a_pause_begins_anew() -> None:
    spending = Spending(10_000)
    spending.note(spent(0, 0))
    for second in range(1, 20):
        spending.note(spent(second, 900 + second))
    assert spending.loop_ppm == 1000, "what the first second cost is long ago"
    spending.note(spent(500, 919))
    assert spending.loop_ppm == 0
    spending.note(spent(501, 929))
    assert spending.loop_ppm == 10_000, "and not spread over the time in which nobody polled"
