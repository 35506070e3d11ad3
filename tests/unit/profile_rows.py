# SPDX-License-Identifier: Apache-2.0
"""What was read of a profile, as values that can be compared."""

from __future__ import annotations

from typing import Any


def tables_of(process: Any) -> list[list[list[Any]]]:
    """Columns of what was read of one process: operations, calls, synchronisations; with texts."""
    texts = list(process.texts)
    return [
        [
            [texts[i] for i in values] if column.ctype == "str" else list(values)
            for column, values in zip(rows.kind.columns, rows.columns, strict=True)
        ]
        for rows in (process.ops, process.api, process.syncs)
    ]
