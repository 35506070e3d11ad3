# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.truth.synthetic``: a simulated recording, and the truth about it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.truth.synthetic.check import who
from tests.truth.synthetic.engine import Engine
from tests.truth.synthetic.loss import Lose, Sieve
from tests.truth.synthetic.options import ALL, DeviceOptions, Options
from tests.truth.synthetic.presets import PRESETS
from tests.truth.synthetic.records import Recorder
from tests.truth.synthetic.truth import Path as Way
from tests.truth.synthetic.truth import Truth

#: Requests of a long recording arrive this far apart, so that they do not all wait for each other.
_APART_US = 1_500


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    made = argparse.ArgumentParser(prog="python -m tests.truth.synthetic", description=__doc__)
    made.add_argument("--preset", choices=PRESETS, help="an engine that is made already")
    made.add_argument("--list", action="store_true", help="say what presets there are")
    made.add_argument("--seed", type=int)
    made.add_argument("--requests", type=int)
    made.add_argument("--ranks", type=int)
    made.add_argument("--depth", type=int, help="steps in flight")
    made.add_argument("--graph", type=int, help="nodes of each step's graph")
    made.add_argument("--kernels", type=int, help="kernels launched in each step")
    made.add_argument("--disturb", type=float, help="how much gets in the way; 1 is usual")
    made.add_argument("--lose", action="append", default=[], metavar="KIND[:SHARE]",
                      help="lose such events, and say so")  # fmt: skip
    made.add_argument("-o", "--output", type=Path, metavar="FILE.gpcf", help="the recording")
    made.add_argument("--truth", type=Path, metavar="FILE.json", help="what really happened")
    return made


def options_of(given: argparse.Namespace) -> Options:
    """The engine that was asked for."""
    options = PRESETS[given.preset or "plain"][1]
    if given.requests is not None and not given.preset:
        options = replace(options, spread_us=given.requests * _APART_US)
    for name in ("seed", "requests", "ranks", "depth"):
        if getattr(given, name) is not None:
            options = replace(options, **{name: getattr(given, name)})
    if options.depth > 1:
        options = replace(options, copier=True)
    device: DeviceOptions = options.device
    for name in ("graph", "kernels"):
        if getattr(given, name) is not None:
            device = replace(device, **{name: getattr(given, name)})
    options = replace(options, device=device, truth=given.truth is not None)
    if given.disturb is not None:
        options = replace(options, rates=ALL.scaled(given.disturb))
    return options


def losses(said: list[str]) -> list[Lose]:
    """``wait:0.1`` as what is lost."""
    pairs = [one.partition(":") for one in said]
    return [Lose(kind, float(share or 1)) for kind, _, share in pairs]


def told(way: Way) -> list[dict[str, Any]]:
    """A path for a file."""
    return [
        {
            "start_ns": one.start, "end_ns": one.end, "category": str(one.category),
            "actor": who(one.actor), "culprits": [who(c) for c in one.culprits if c is not None],
            "span": one.span, "step": one.step or None,
        }
        for one in way.stretches
    ]  # fmt: skip


def truths(engine: Engine) -> dict[str, Any]:
    """All requests and steps, with their paths."""
    truth = Truth()
    return {
        "seed": engine.options.seed,
        "requests": [
            {
                "id": asked.external, "arrival_ns": asked.received, "end_ns": asked.last_byte,
                "made_ns": asked.made, "written_ns": asked.written, "steps": asked.steps,
                "segments": [one for way in truth.request(asked, engine) for one in told(way)],
            }
            for asked in engine.requests
        ],
        "steps": [
            {"step": step.number, "start_ns": step.scheduled, "end_ns": step.updated}
            for step in engine.steps
        ],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Make a recording."""
    made = parser()
    given = made.parse_args(arguments)
    say = sys.stdout.write
    if given.list:
        for name, (words, _) in PRESETS.items():
            say(f"{name:14} {words}\n")
        return 0
    if given.output is None:
        made.error("-o FILE.gpcf is needed")
    begun = time.monotonic()
    with given.output.open("wb") as out:
        sieve = Sieve(*losses(given.lose), seed=given.seed or 0) if given.lose else None
        engine = Engine(options_of(given), Recorder(out, sieve))
        engine.play()
    took = time.monotonic() - begun
    events, size = engine.records.events, given.output.stat().st_size
    say(
        f"{given.output}: {events:,} events, {size:,} bytes, {len(engine.requests):,} requests, "
        f"{len(engine.steps):,} steps in {took:.1f} s ({events / took:,.0f} events/s)\n"
    )
    if given.truth is not None:
        with given.truth.open("w") as out_text:
            json.dump(truths(engine), out_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
