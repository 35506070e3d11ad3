# SPDX-License-Identifier: Apache-2.0
"""Writes docs/schema.md from the row classes: ``python -m scripts.schema_page``."""

from __future__ import annotations

from pathlib import Path

from gpucorrelate.api.schema import page

PAGE = Path(__file__).parents[1] / "docs" / "schema.md"

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
