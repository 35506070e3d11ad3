# SPDX-License-Identifier: Apache-2.0
"""The trace that a caller counts its request to: the W3C header ``traceparent``, checked.

Clients may send anything under that name. What is not exactly as the specification has it is
as good as no header, as it says itself: https://www.w3.org/TR/trace-context-1/#traceparent-header
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Version, trace id, span id, flags; what follows is a later version's.
_LENGTH = 55
#: A later version may add to it; how much is not said, and more than this is nobody's header.
_LONGEST = 512
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_HALF = (1 << 64) - 1
_NAME = b"traceparent"

#: Both halves of the trace id, the caller's span id, flags.
Trace = tuple[int, int, int, int]


def parse(value: bytes) -> Trace | None:
    """What a header's value says; ``None`` where it is not well-formed."""
    if not _LENGTH <= len(value) <= _LONGEST:
        return None
    found = _FORM.fullmatch(value, 0, _LENGTH)
    if found is None or found[1] == b"ff":
        return None
    rest = value[_LENGTH:]
    # The first version ends here; a later one goes on with another field, if at all.
    if rest and (found[1] == b"00" or not rest.startswith(b"-")):
        return None
    trace, parent = int(found[2], 16), int(found[3], 16)
    if not trace or not parent:
        return None
    return trace >> 64, trace & _HALF, parent, int(found[4], 16)


def from_headers(headers: Iterable[Any]) -> Trace | None:
    """What the headers of an ASGI scope say; ``None`` if several of that name do."""
    found: bytes | None = None
    for key, value in headers:
        if key.lower() != _NAME:
            continue
        if found is not None:
            return None
        found = bytes(value)
    return None if found is None else parse(found.strip(b" \t"))


def from_mapping(headers: Any) -> Trace | None:
    """What headers given to the engine by a caller in its process say."""
    value = headers.get("traceparent") if headers else None
    if not isinstance(value, str) or len(value) > _LONGEST or not value.isascii():
        return None
    return parse(value.encode("ascii"))
