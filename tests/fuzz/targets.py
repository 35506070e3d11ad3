# SPDX-License-Identifier: Apache-2.0
"""All fuzz targets."""

from __future__ import annotations

from tests.fuzz import files, host, wire

TARGETS = {target.name: target for target in (*wire.TARGETS, *host.TARGETS, *files.TARGETS)}
