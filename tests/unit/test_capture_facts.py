# SPDX-License-Identifier: Apache-2.0
"""Facts of a recording: who stated what, and what was stated last."""

from __future__ import annotations

from gpucorrelate.correlator.capture import Fact
from tests.unit.synth import Recording


def test_facts_are_told_by_key_in_the_order_in_which_they_were_stated() -> None:
    made = Recording()
    for stream, key, value in ((4, "gil", "a"), (5, "gil", "b"), (4, "model", "m")):
        made.add("meta", stream, key=key, value=value)
    capture = made.capture()
    assert capture.facts("gil") == (Fact(4, "gil", "a"), Fact(5, "gil", "b"))
    assert len(capture.facts()) == 3
    assert (capture.fact("gil"), capture.fact("model"), capture.fact("nothing")) == ("b", "m", "")
