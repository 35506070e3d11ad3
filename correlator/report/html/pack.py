# SPDX-License-Identifier: Apache-2.0
"""Data inside a page: shared words, columns of numbers, and compressed blocks of both.

A block is a header in JSON and columns behind it, compressed and in base64, so that a page can
hold a million segments and unpack those alone that somebody looks at. Its layout, before it is
compressed: the header's length (4 bytes, little-endian), the header, zeros up to a multiple of 8,
and the columns, each of which begins at a multiple of 8 behind that.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucorrelate.correlator.report.names import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpucorrelate.correlator.report.values import Actor, Cause

Json = dict[str, Any]
#: Columns by name, or numbers that are yet to become one.
Columns = dict[str, "NDArray[np.int64] | NDArray[np.float64] | list[int]"]

_ALIGN = 8
_LEAST_HELD_PERCENT = 1
_LEVEL = 6
#: JavaScript's numbers are whole up to here (Number.MAX_SAFE_INTEGER).
MOST_EXACT = (1 << 53) - 1
_UNSIGNED = (("u1", 1 << 8), ("u2", 1 << 16), ("u4", 1 << 32))


class Lexicon:
    """Everything that a page says in words: each text, actor and cause once, elsewhere a number.

    Outside names come in here and nowhere else, made harmless as in every report.
    """

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._actors: dict[Actor, int] = {}
        self._causes: dict[Cause, int] = {}
        self._near: dict[int, tuple[Actor | Cause, int]] = {}
        #: Time on paths by actor.
        self.held_ns: Counter[int] = Counter()

    def word(self, text: str) -> int:
        """The number of a text."""
        found = self._words.get(text)
        if found is None:
            found = self._words[text] = len(self._words)
        return found

    def actor(self, actor: Actor) -> int:
        """The number of an actor."""
        # Segments mostly share the object, and to compare values is slow.
        known = self._near.get(id(actor))
        if known is None:
            at = self._actors.setdefault(actor, len(self._actors))
            known = self._near[id(actor)] = (actor, at)
        return known[1]

    def cause(self, cause: Cause | None) -> int:
        """The number of a cause; 0 is none, others count from 1."""
        if cause is None:
            return 0
        known = self._near.get(id(cause))
        if known is None:
            at = self._causes.setdefault(cause, len(self._causes) + 1)
            if cause.actor is not None:
                self.actor(cause.actor)
            known = self._near[id(cause)] = (cause, at)
        return known[1]

    def holders(self) -> list[Actor]:
        """Actors that held a share of the paths worth the name."""
        least = sum(self.held_ns.values()) * _LEAST_HELD_PERCENT
        return [one for one, at in self._actors.items() if self.held_ns[at] * 100 >= least]

    def forget_objects(self) -> None:
        """Lets objects go that were kept so as to know them again; numbers stay."""
        self._near.clear()

    def table(self) -> Json:
        """All of it."""
        causes = [[safe(one.text), -1 if one.actor is None else self.actor(one.actor)]
                  for one in self._causes]  # fmt: skip
        actors = [
            {
                "label": safe(one.label),
                "shown": safe(one.shown),
                "tid": one.tid,
                "pid": one.pid,
                "role": safe(one.role),
                "traced": one.traced,
            }
            for one in self._actors
        ]
        return {"words": [safe(one) for one in self._words], "actors": actors, "causes": causes}


def to_json(value: object) -> str:
    """JSON that can stand in a script element whatever texts it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _narrow(values: NDArray[np.int64] | NDArray[np.float64] | list[int]) -> tuple[str, bytes]:
    """A column in the smallest type that holds it exactly."""
    column = np.asarray(values)
    if not len(column):
        return "u1", b""
    if column.dtype.kind in "iu":
        low, high = int(column.min()), int(column.max())
        if low >= 0:
            for name, most in _UNSIGNED:
                if high < most:
                    return name, column.astype(f"<{name}").tobytes()
        if max(-low, high) > MOST_EXACT:
            raise ValueError("a number of a column is too large to be exact in a page")
    return "f8", column.astype("<f8").tobytes()


@dataclass(frozen=True)
class Document:
    """One thing of a block: what it says, and its columns."""

    head: Json
    columns: Columns


def block(documents: Sequence[Document]) -> str:
    """Several things as one block.

    Raises:
        ValueError: a column holds a number beyond 2^53.
    """
    heads, body, at = [], [], 0
    for document in documents:
        placed = {}
        for name, values in document.columns.items():
            kind, data = _narrow(values)
            placed[name] = [kind, at, len(values)]
            filled = data + bytes(-len(data) % _ALIGN)
            body.append(filled)
            at += len(filled)
        heads.append({**document.head, "columns": placed})
    header = json.dumps(heads, separators=(",", ":"), allow_nan=False).encode()
    lead = len(header).to_bytes(4, "little") + header
    lead += bytes(-len(lead) % _ALIGN)
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = [packer.compress(part) for part in (lead, *body)]
    return base64.b64encode(b"".join([*packed, packer.flush()])).decode("ascii")
