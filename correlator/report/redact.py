# SPDX-License-Identifier: Apache-2.0
"""Reports without the ids of requests: each id is replaced by a short hash, the same everywhere.

Ids may come from clients (``X-Request-Id``) and mean something to them. The hash's key is drawn
from the recording itself, from moments and ids in it that no report shows in full: an id has one
hash in all reports of one recording, another in those of another, and who has only the reports
cannot try out ids. Whoever has the recording has the ids anyway.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from gpucorrelate.correlator.report.build import Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpucorrelate.correlator.capture import Capture
    from gpucorrelate.correlator.report.values import (
        Ledger,
        RequestReport,
        RequestRow,
        RunSummary,
        StepReport,
    )
    from gpucorrelate.correlator.requests import Request

V = TypeVar("V")

_PREFIX = "id-"
_DIGITS = 12
#: Rows of each kind that the key is drawn from: the first ones, so that a recording that still
#: grows keeps its key.
_KEY_ROWS = 4096
_KEY_KINDS = ("request", "wait", "step_begin", "tokens")
#: In running text a shorter id is no different from a word or a number.
_SHORTEST = 6
_PIECE = re.compile(r"[A-Za-z0-9_-]+")
_WORD = re.compile(rf"[A-Za-z0-9_-]{{{_SHORTEST},}}")


def key_of(capture: Capture) -> bytes:
    """The key of a recording's hashes."""
    digest = hashlib.blake2b(digest_size=32, person=b"gpucorrelate-ids")
    for kind in _KEY_KINDS:
        table = capture.table(kind)
        for column in table.kind.columns:
            rows = table[column.name][:_KEY_ROWS]
            if column.ctype != "str":
                digest.update(rows.tobytes())
                continue
            for at in rows.tolist():
                text = capture.strings[at].encode("utf-8", "surrogatepass")
                digest.update(len(text).to_bytes(4, "little") + text)
    return digest.digest()


class Redactor:
    """Replaces ids in values of any kind.

    Args:
        key: The hashes' key.
        ids: The ids.
    """

    def __init__(self, key: bytes, ids: Iterable[str]) -> None:
        self._hashes = {one: _hash(key, one) for one in ids if one}
        #: Ids that are no single word, by their first one, so that few are looked for in a text.
        self._odd: dict[str, list[str]] = {}
        for one in sorted(self._hashes, key=len, reverse=True):
            if len(one) >= _SHORTEST and not _WORD.fullmatch(one):
                first = _PIECE.search(one)
                self._odd.setdefault(first[0] if first else "", []).append(one)
        self._texts: dict[str, str] = {}
        self._memo: dict[int, tuple[object, object]] = {}

    def id(self, text: str) -> str:
        """The hash of an id; of what is none the text itself."""
        return self._hashes.get(text, text)

    def value(self, value: V) -> V:
        """The same value with a hash in place of every id, wherever it is in it."""
        self._memo = {}
        done: V = self._value(value)
        self._memo = {}
        return done

    def _value(self, value: Any) -> Any:  # noqa: ANN401 - what comes in goes out
        if isinstance(value, str):
            return value if isinstance(value, enum.Enum) else self._text(value)
        if isinstance(value, tuple):
            items = [self._value(item) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else tuple(items)
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        # Actors and causes are shared by thousands of segments.
        known = self._memo.get(id(value))
        if known is None:
            known = self._memo[id(value)] = (value, self._fields(value))
        return known[1]

    def _fields(self, value: Any) -> Any:  # noqa: ANN401 - a dataclass, and the same kind again
        changed = {}
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            new = self._value(old)
            if new is not old:
                changed[field.name] = new
        return dataclasses.replace(value, **changed) if changed else value

    def _text(self, text: str) -> str:
        found = self._hashes.get(text)
        if found is not None:
            return found
        known = self._texts.get(text)
        if known is None:
            known = text
            for piece in ("", *_PIECE.findall(text)) if self._odd else ():
                for one in self._odd.get(piece, ()):
                    known = known.replace(one, self._hashes[one])
            known = _WORD.sub(lambda match: self.id(match[0]), known)
            self._texts[text] = known
        return text if known == text else known


def _hash(key: bytes, text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return _PREFIX + hmac.new(key, data, hashlib.sha256).hexdigest()[:_DIGITS]


class RedactedRun(Run):
    """A run that has hashes in place of ids, in all that can be made of it.

    It is joined by the real ids, and then its requests and its strings are exchanged. Requests
    are found by their real ids and by their hashes.
    """

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture)
        self._found = tuple(request.ids for request in self.requests_)
        ids = [one for found in self._found for one in found]
        # An id of a step's row may be of a request of which nothing else was recorded.
        rows = self._sets.request
        ids += [self.capture.strings[at] for at in set(rows.tolist())]
        self._redactor = Redactor(key_of(self.capture), ids)
        strings = self._redactor.value(self.capture.strings)
        self.capture = dataclasses.replace(self.capture, strings=strings)
        self.states = dataclasses.replace(self.states, capture=self.capture)
        self.requests_ = self._redactor.value(self.requests_)
        self._real = {self._redactor.id(one): one for one in ids}

    @cached_property
    def ledger(self) -> Ledger:
        """What everything here rests on."""
        return self._redactor.value(super().ledger)

    def ids(self) -> tuple[tuple[str, ...], ...]:
        """All ids that each request is found by: the real ones."""
        return self._found

    def find(self, wanted: str) -> Request:
        """The request that a text means: a real id, a part of one, or a hash."""
        return super().find(self._real.get(wanted, wanted))

    def requests(
        self, *, since_ns: int | None = None, until_ns: int | None = None, wanted: str = ""
    ) -> tuple[RequestRow, ...]:
        """One row per request that overlaps the time window, in order of arrival."""
        real = self._real.get(wanted, wanted)
        rows = super().requests(since_ns=since_ns, until_ns=until_ns, wanted=real)
        return self._redactor.value(rows)

    def request(self, request_id: str) -> RequestReport:
        """The report of one request. Raises as ``find`` does."""
        return self._redactor.value(super().request(request_id))

    def all_requests(self) -> Iterator[RequestReport]:
        """Reports of all requests, in order of arrival."""
        return map(self._redactor.value, super().all_requests())

    def slowest(self, count: int) -> Iterator[RequestReport]:
        """Reports of the slowest finished requests, slowest first."""
        return map(self._redactor.value, super().slowest(count))

    def step(self, number: int, process: str = "") -> StepReport:
        """The report of one step. Arguments and errors are those of ``find_step``."""
        return self._redactor.value(super().step(number, process))

    def summary(self) -> RunSummary:
        """The whole recording in a few numbers."""
        return self._redactor.value(super().summary())
