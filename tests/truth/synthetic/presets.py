# SPDX-License-Identifier: Apache-2.0
"""Engines that follow published figures, and a few that are made to be hard."""

from __future__ import annotations

from tests.truth.synthetic.options import ALL, Costs, DeviceOptions, Options

#: A 14B model on a small device, a prompt of 94 tokens and 12 back, asynchronous scheduling: a
#: step's window is twice the 120.6 ms that its own kernels take, for the device still runs the
#: step before; and of 155.2 ms to the first token 143.3 are the device's.
_OVERLAP = Options(
    requests=1,
    prompt=(94, 94),
    answer=(12, 12),
    depth=2,
    copier=True,
    budget=2048,
    spread=0,
    costs=Costs(parse=2_380, tokenise=1_900, send=600, receive=150, admit=200, schedule=900,
                update=700, output=700, chunk=300, prepare=2_700, sample=500, reply=60),
    device=DeviceOptions(graph=526, kernel=226.77, per_token=0.4855, spread=0, over=12),
)  # fmt: skip

#: One request from end to end: 7 tokens in, 100 out, an 8B model on a big device. About 7 ms to
#: the first token, of which 4.2 are the forward pass; then 4.8 ms for each.
_TRACE = Options(
    requests=1,
    prompt=(7, 7),
    answer=(100, 100),
    depth=2,
    copier=True,
    budget=2048,
    spread=0,
    costs=Costs(parse=500, tokenise=50, send=200, receive=60, admit=80, schedule=150, update=80,
                output=60, chunk=50, prepare=500, sample=100, reply=20),
    device=DeviceOptions(graph=350, kernel=11.63, per_token=0, spread=0, over=10),
)  # fmt: skip

_CHATS = Options(
    requests=40,
    spread_us=1_500_000,
    prompt=(20, 80),
    answer=(24, 24),
    long=6,
    long_prompt=(1_032, 1_032),
    budget=2_048,
    batch=32,
    depth=2,
    copier=True,
    device=DeviceOptions(graph=40, kernel=50, per_token=1.2, spread=0.1),
)


def _with(options: Options, **changes: object) -> Options:
    return Options(**{**vars(options), **changes})


PRESETS: dict[str, tuple[str, Options]] = {
    "overlap": ("asynchronous steps on a slow device: 241.2 ms of which 120 are the step "
                "before's; 155.2 ms to the first token", _OVERLAP),
    "trace": ("one request end to end: 7 ms to the first token, 4.8 ms a token", _TRACE),
    "waker": ("a wait of 100 ms: its waker spent 20 on a disk and 80 running", Options(
        requests=1, spread=0, costs=Costs(vocabulary=20_000, tokenise=80_000))),
    "over-wait": ("a call that waits for 8 ms of kernels and returns 30 ms after them", Options(
        requests=1, prompt=(8, 8), answer=(3, 3), spread=0,
        device=DeviceOptions(graph=100, kernel=80, per_token=0, spread=0, over=30_000))),
    "contended": ("scheduling waits 33.5 s for a lock that another thread holds", Options(
        requests=1, prompt=(8, 8), answer=(2, 2), hold_us=33_500_000, spread_us=4_000)),
    "long-prompts": ("short chats beside prompts of 1,032 tokens", _CHATS),
    "capped": ("the same, at most 256 tokens of a prompt where others decode",
               _with(_CHATS, cap=256)),
    "disturbed": ("everything gets in the way of two ranks' engine", Options(
        requests=16, spread_us=20_000, answer=(1, 16), ranks=2, depth=2, copier=True,
        rates=ALL.scaled(4), device=DeviceOptions(graph=12, kernels=3, blocks=True))),
    "plain": ("one worker without a device, one step at a time", Options()),
}  # fmt: skip
