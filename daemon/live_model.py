# SPDX-License-Identifier: Apache-2.0
"""The name of the model that a session's engines serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator.report.run_facts import SEVERAL_MODELS
from gpucorrelate.daemon.columns import rows_of
from gpucorrelate.probes.wire.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucorrelate.probes.wire.frame import Batch

_META = BY_NAME["meta"]
#: What clients call it; of an older agent, where it was loaded from.
_KEYS = ("served_model_name", "model")
_LETTERS = 200
#: Agents choose the words.
_MOST_NAMES = 64


class Model:
    """What engines say that they serve."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {key: set() for key in _KEYS}

    def take(self, batch: Batch, strings: Mapping[int, str]) -> None:
        """Learn from a batch."""
        if batch.kind != _META.id or not batch.count:
            return
        at = _META.index("key"), _META.index("value")
        for row in rows_of(_META, batch, strings):
            names = self._names.get(row[at[0]])
            if names is not None and len(names) < _MOST_NAMES:
                names.add(row[at[1]][:_LETTERS])

    @property
    def name(self) -> str:
        """Empty while it is not known, ``several`` where engines differ."""
        for names in self._names.values():
            if names:
                return next(iter(names)) if len(names) == 1 else SEVERAL_MODELS
        return ""
