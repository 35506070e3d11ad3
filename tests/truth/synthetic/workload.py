# SPDX-License-Identifier: Apache-2.0
"""Requests and steps, with every moment of them that the simulator knows."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Asked:
    """A request, and every moment of it that the simulator knows."""

    number: int
    prompt: int
    answer: int
    computed: int = 0
    scheduled_tokens: int = 0  # output tokens planned
    produced: int = 0
    received: int = 0
    tokenise_start: int = 0
    tokenised: int = 0
    sent: int = 0
    admitted: int = 0
    first_scheduled: int = 0
    made: list[int] = field(default_factory=list)  # each token's step's update ended
    written: list[int] = field(default_factory=list)
    last_byte: int = 0
    steps: list[int] = field(default_factory=list)

    @property
    def external(self) -> str:
        """The id that the client knows."""
        return f"cmpl-{self.number:06d}-0"

    @property
    def internal(self) -> str:
        """The engine's own."""
        return f"{self.external}-{self.number * 2654435761 & 0xFFFFFFFF:08x}"


@dataclass(eq=False)
class Step:
    """A step, as the core plans it."""

    number: int
    rows: list[tuple[Asked, int, bool]]  # request, tokens, whether it yields one
    scheduled: int = 0
    updated: int = 0
    prompts: int = 0  # rows with tokens of a prompt

    @property
    def tokens(self) -> int:
        """Tokens in it."""
        return sum(tokens for _, tokens, _ in self.rows)

    @property
    def kind(self) -> str:
        """Whose tokens it holds."""
        if not self.prompts:
            return "decode"
        return "prefill" if self.prompts == len(self.rows) else "mixed"
