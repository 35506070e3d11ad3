# SPDX-License-Identifier: Apache-2.0
"""Ids of traces and spans that are the same whenever the same recording is exported.

A receiver that is sent a span twice has it once, as far as it goes by ids; so an export that was
cut off may simply be done again.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucorrelate.correlator.capture import Capture

_SEPARATOR = b"\0"
#: Of the trace id, what OpenTelemetry's consistent sampling takes for random.
RANDOM_BITS = 56


class Identity:
    """Makes the ids of one recording.

    Args:
        key: Anything that tells the recording from others.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, capture: Capture) -> Identity:
        """By the recording's session and boot; where it says neither, by its first rows."""
        facts = [*capture.facts("boot_id")[:1], *capture.facts("session")[:1]]
        if len(facts) == 2:
            return cls(_SEPARATOR.join(fact.value.encode("utf-8", "replace") for fact in facts))
        from gpucorrelate.correlator.report.redact import key_of

        return cls(key_of(capture))

    def trace(self, request: str) -> int:
        """A request's own trace id: 128 bits, not 0."""
        return self._number(16, b"trace", request)

    def span(self, request: str, place: str) -> int:
        """The id of one of a request's spans: 64 bits, not 0.

        Args:
            request: The engine's id of the request, which is unique in the recording.
            place: Which of its spans.
        """
        return self._number(8, b"span", request, place)

    def _number(self, size: int, kind: bytes, *parts: str) -> int:
        digest = hashlib.blake2b(digest_size=size, person=b"gpucorrelate-ot")
        for part in (self._key, kind, *(part.encode("utf-8", "surrogatepass") for part in parts)):
            digest.update(len(part).to_bytes(8, "little") + part)
        return int.from_bytes(digest.digest(), "big") or 1
