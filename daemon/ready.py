# SPDX-License-Identifier: Apache-2.0
"""Waiting for a few descriptors, whatever their numbers: a busy daemon has more than 1,024."""

from __future__ import annotations

import select


def readable(fds: list[int], timeout_s: float) -> set[int]:
    """Those that can be read from, or are at their end; none when the time is over."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_s * 1000)}
