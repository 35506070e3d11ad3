# SPDX-License-Identifier: Apache-2.0
"""Engines drawn at random: small, and each with something of everything that there is."""

from __future__ import annotations

import random

from tests.truth.synthetic.options import ALL, DeviceOptions, Options, Rates


def drawn(seed: int) -> Options:
    """A small engine."""
    chance = random.Random(seed)
    depth = chance.choice((1, 1, 2, 3))
    return Options(
        seed=seed,
        requests=chance.randint(1, 6),
        spread_us=chance.choice((500, 4_000, 15_000)),
        prompt=(1, chance.choice((8, 60, 300))),
        answer=(1, chance.choice((1, 4, 9))),
        ranks=chance.choice((1, 1, 2, 4)),
        depth=depth,
        copier=depth > 1 or chance.random() < 0.4,
        budget=chance.choice((16, 64, 512)),
        batch=chance.choice((2, 8)),
        cap=chance.choice((0, 0, 8)),
        device=_device(chance),
        rates=_rates(chance),
    )


def _device(chance: random.Random) -> DeviceOptions:
    if chance.random() < 0.35:
        return DeviceOptions()
    return DeviceOptions(
        kernels=chance.choice((0, 3, 12)),
        graph=chance.choice((1, 8, 20)),
        kernel=chance.choice((2, 20, 60)),
        copy_stream=chance.random() < 0.6,
        blocks=chance.random() < 0.4,
    )


def _rates(chance: random.Random) -> Rates:
    draw = chance.random()
    if draw < 0.2:
        return Rates()
    if draw < 0.6:
        return ALL.scaled(chance.choice((1, 4, 12)))
    # One kind alone, and often.
    name = chance.choice(sorted(vars(ALL)))
    often = 50 if name == "late" else 40 * getattr(ALL, name)
    return Rates(**{name: often})
