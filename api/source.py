# SPDX-License-Identifier: Apache-2.0
"""Where tables come from: a recording, or a folder of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucorrelate.api.arrow import ArrowTable

#: Rows of a part, about: what is in memory at a time, and a row group of a file.
PART_ROWS = 1 << 18


class Source(Protocol):
    """Gives the tables of ``schema.TABLES``, in parts."""

    def parts(self, name: str) -> Iterator[ArrowTable]:
        """Rows of a table in order, some at a time; at least one part, which may be empty."""

    def path(self, name: str, key: int) -> Iterator[ArrowTable]:
        """Rows of ``segments`` of one request, or of ``step_segments`` of one step."""

    def close(self) -> None:
        """Give back what is held."""
