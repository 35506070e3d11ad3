# SPDX-License-Identifier: Apache-2.0
"""Waiting for descriptors with high numbers."""

from __future__ import annotations

import os
import resource

import pytest

from gpucorrelate.daemon.ready import readable

_HIGH = 1500


def test_a_descriptor_above_1024_can_be_waited_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= _HIGH:
        pytest.skip("no more descriptors allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _HIGH + 1), hard))
    read, write = os.pipe()
    high = os.dup2(read, _HIGH)
    try:
        assert readable([high, read], 0.01) == set()
        os.write(write, b"x")
        assert readable([high], 5) == {high}
        os.read(read, 1)
        os.close(write)
        assert readable([high], 5) == {high}, "its end is something to read"
    finally:
        os.close(read)
        os.close(high)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
