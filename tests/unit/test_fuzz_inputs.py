# SPDX-License-Identifier: Apache-2.0
"""Seeds of the fuzz targets, and inputs that once broke a promise: none is broken now."""

from __future__ import annotations

import pytest

from tests.fuzz.target import FOUND
from tests.fuzz.targets import TARGETS

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


def test_every_input_that_was_found_belongs_to_a_target():
    assert {folder.name for folder in FOUND.iterdir()} <= set(TARGETS)
    assert INPUTS
