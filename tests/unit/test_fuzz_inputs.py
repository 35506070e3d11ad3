# SPDX-License-Identifier: Apache-2.0
"""Seeds of the fuzz targets, and inputs that once broke a promise: none is broken now."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.fuzz.target import FOUND
from tests.fuzz.targets import TARGETS

_MIB = 1 << 20
INPUTS = [(name, path) for name, target in TARGETS.items() for path in target.found()]


@pytest.mark.parametrize("name", TARGETS)
def test_well_formed_inputs_pass_and_so_do_their_beginnings(name):
    target = TARGETS[name]
    seeds = list(target.seeds())
    assert seeds, "a target without a seed begins with nothing"
    for seed in seeds:
        target.run(seed)
        for size in range(0, len(seed), max(1, len(seed) // 16)):
            target.run(seed[:size])


@pytest.mark.parametrize(("name", "path"), INPUTS, ids=[path.name for _, path in INPUTS])
def test_what_was_once_found_is_no_more(name, path):
    TARGETS[name].run(path.read_bytes())


def test_a_recording_takes_memory_by_its_size_whatever_it_says():
    """Among them is one at which the fuzzer's own memory ran out."""
    target = TARGETS["recording"]
    inputs = [*target.seeds(), *(path.read_bytes() for path in target.found())]
    for data in inputs:
        target.run(data)  # what is imported and compiled is not its memory
        tracemalloc.start()
        try:
            target.run(data)
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most_bytes < _MIB + 1000 * len(data)


def test_every_input_that_was_found_belongs_to_a_target():
    assert {folder.name for folder in FOUND.iterdir()} <= set(TARGETS)
    assert INPUTS
