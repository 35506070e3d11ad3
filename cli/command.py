# SPDX-License-Identifier: Apache-2.0
"""A command whose help ends with examples that can be copied as they stand."""

from __future__ import annotations

from typing import Any

import click


class Command(click.Command):
    """A click command with an "Examples" section.

    Args:
        *args: As for ``click.Command``.
        examples: Command lines, each with a remark or without.
        **more: As for ``click.Command``.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - passed on as they are
        examples: tuple[str, ...] = (),
        **more: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **more)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples unwrapped, after the options."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
