# SPDX-License-Identifier: Apache-2.0
"""The loads under which delays are injected: few requests at a time, each with its own prompt."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.engine.client import Request
from tests.engine.model import sentences

_WORDS = " ".join(sentences(200, 11)).split()

_LONG_ANSWER = (300, 440)


@dataclass(frozen=True)
class Shape:
    """What a load is made of.

    Attributes:
        count: Requests.
        streams: Requests at a time.
        words: Fewest and most words of a prompt.
        tokens: Fewest and most tokens of an answer.
        long_words: Words of a long prompt.
        long_every: One prompt in so many is long; 0: none.
        slow: Long answers that one more client reads slowly meanwhile.
    """

    count: int = 90
    streams: int = 3
    words: tuple[int, int] = (3, 20)
    tokens: tuple[int, int] = (8, 48)
    long_words: int = 0
    long_every: int = 0
    slow: int = 0

    def requests(self, tag: str, seed: int) -> list[Request]:
        """The load's requests; each prompt begins with its request's id."""
        rng = random.Random(seed)
        made = []
        for n in range(self.count):
            name = f"{tag}{n:04d}"
            long = self.long_every and n % self.long_every == 0
            count = self.long_words if long else rng.randint(*self.words)
            words = " ".join(rng.choice(_WORDS) for _ in range(count))
            made.append(Request(name, f"{name} {words}", rng.randint(*self.tokens)))
        return made

    def slow_requests(self, tag: str, seed: int) -> list[Request]:
        """Requests with long answers, for a slow client."""
        rng = random.Random(seed)
        names = [f"{tag}slow{n:02d}" for n in range(self.slow)]
        return [Request(name, f"{name} step token", rng.randint(*_LONG_ANSWER)) for name in names]


USUAL = Shape()
#: So short that much of a request's life is outside of the engine.
SHORT = Shape(count=160, tokens=(2, 12))
#: Long answers that a client reads slowly, beside others.
SLOW = Shape(count=200, slow=6)
#: Some prompts take several steps to compute.
LONG_PROMPTS = Shape(count=60, long_words=500, long_every=5)
#: More requests at a time than the engine takes.
CROWD = Shape(count=60, streams=9)
#: More text than fits in the engine's memory.
TIGHT = Shape(count=40, streams=8, words=(20, 60), tokens=(60, 160))
#: Answers so long that most requests are there when the engine dies.
FATAL = Shape(count=60, streams=8, tokens=(100, 300))
