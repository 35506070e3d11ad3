# SPDX-License-Identifier: Apache-2.0
"""What may be told of an exception: its kind and place, and not what it says.

Messages quote what was wrong, and in an engine that may be a prompt. So of a message there is
told a hash, by which the same one can be found again, here and in the engine's own log.
"""

from __future__ import annotations

import hashlib
import os

_HASH_BYTES = 4
_NAME_CHARS = 80


def told_of(error: BaseException) -> str:
    """``RuntimeError in execute_model (model_runner.py:12), message 8d7ab3f0``.

    The place is where it was raised; it is left out where that is not known, as is the hash of
    an empty message. At most some 250 letters, of the code alone.
    """
    kind = type(error).__name__[:_NAME_CHARS]
    message = _message(error)
    return kind + _place(error) + (f", message {message_hash(message)}" if message else "")


def message_hash(message: str) -> str:
    """Eight digits of BLAKE2b: ``b2sum -l 32`` of the same text."""
    data = message.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).hexdigest()


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - somebody else's code
        return ""


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    name, file = code.co_name[:_NAME_CHARS], os.path.basename(code.co_filename)[-_NAME_CHARS:]  # noqa: PTH119
    return f" in {name} ({file}:{trace.tb_lineno})"
