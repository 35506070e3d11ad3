# SPDX-License-Identifier: Apache-2.0
"""What a recording of a real engine does not hold: no text, and no token ids in a row."""

from __future__ import annotations

import array
import io
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.engine.client import Request, Result, load
from tests.engine.daemon import ingest_env, running_daemon
from tests.engine.server import SYNC, running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.engine, pytest.mark.kernel]

#: Words that nothing else on the machine has.
_WORDS = "quetzalcoatlus zyzzyva crwth onomatopoeia syzygy kakorrhaphiophobia".split()
_KEY = "sk-verysecretapikey0123456789"
_RUN = 6


@dataclass(frozen=True)
class Recorded:
    """A recording as it lies on the disk, and what the client sent and got."""

    data: bytes
    results: tuple[Result, ...]


def _refused(url: str) -> int:
    """The status of a request that is wrong in a way that quotes it."""
    body = {"model": "tiny", "prompt": _WORDS, "max_tokens": f"not {_WORDS[0]}"}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {_KEY}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        assert _WORDS[0] in error.read().decode(), "the engine quotes what is wrong"
        return error.code


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("privacy")
    with (
        running_daemon(folder) as daemon,
        running_server(SYNC, folder, env=ingest_env(folder)) as server,
    ):
        session = daemon.attach(server.pid, agents=2 + SYNC.workers).session
        requests = [
            Request(f"private-{n}", " ".join(_WORDS[n % 3 :] * 3), max_tokens=32) for n in range(6)
        ]
        results = load(server.url, requests, concurrency=3)
        assert _refused(server.url) == 400
        time.sleep(1)
        daemon.client.detach(session=session)
        out = io.BytesIO()
        daemon.client.copy_session(session, out)
        yield Recorded(out.getvalue(), tuple(results))


def test_the_requests_are_recorded(recorded: Recorded) -> None:
    for result in recorded.results:
        assert result.ok
        assert result.request.request_id.encode() in recorded.data


def test_no_text_of_a_request_and_no_credential_is_recorded(recorded: Recorded) -> None:
    for word in (*_WORDS, _KEY):
        for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
            assert word.encode(encoding) not in recorded.data, word


def test_no_token_ids_are_recorded(recorded: Recorded) -> None:
    """Counts and hashes are; what came out cannot be read from those."""
    for result in recorded.results:
        ids = result.token_ids
        for at in range(len(ids) - _RUN):
            some = ids[at : at + _RUN]
            if len(set(some)) < _RUN - 1:
                continue  # repeated small numbers are in every recording
            for letter in "HIQ":
                assert array.array(letter, some).tobytes() not in recorded.data
