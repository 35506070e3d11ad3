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

from gpucorrelate.probes.agents.raised import message_hash
from tests.engine.client import Request, Result, load
from tests.engine.daemon import ingest_env, running_daemon
from tests.engine.server import SYNC, running_server
from tests.engine.traced import capture_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.engine, pytest.mark.kernel]

#: Words that nothing else on the machine has.
_WORDS = "quetzalcoatlus zyzzyva crwth onomatopoeia syzygy kakorrhaphiophobia".split()
_KEY = "sk-verysecretapikey0123456789"
_RUN = 6


@dataclass(frozen=True)
class Recorded:
    """A recording as it lies on the disk, what the client sent and got, and what was raised."""

    data: bytes
    results: tuple[Result, ...]
    raised: tuple[str, ...]


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
    (folder / "flags").mkdir()
    env = {**ingest_env(folder), "GPUCORRELATE_LAB_DIR": str(folder)}
    with (
        running_daemon(folder) as daemon,
        running_server(SYNC, folder, env=env) as server,
    ):
        session = daemon.attach(server.pid, agents=2 + SYNC.workers).session
        requests = [
            Request(f"private-{n}", " ".join(_WORDS[n % 3 :] * 3), max_tokens=32) for n in range(6)
        ]
        results = load(server.url, requests, concurrency=3)
        assert _refused(server.url) == 400
        # The engine dies of an exception that quotes the prompt, as those of a tokenizer do.
        (folder / "flags" / "core.execute.raise").write_text(f": {' '.join(_WORDS)}")
        last = Request("private-dead", " ".join(_WORDS), max_tokens=8)
        (dead,) = load(server.url, [last], concurrency=1)
        assert not dead.ok
        time.sleep(1)
        assert _WORDS[0] in server.log_path.read_text(), "the engine's own log has it"
        daemon.client.detach(session=session)
        out = io.BytesIO()
        daemon.client.copy_session(session, out)
        ends = capture_of(daemon.client, session, results)
        errors = ends.table("step_end")["error"].tolist()
        raised = tuple(text for text in (ends.strings[i] for i in errors) if text)
        yield Recorded(out.getvalue(), tuple(results), raised)


def test_the_requests_are_recorded(recorded: Recorded) -> None:
    for result in recorded.results:
        assert result.ok
        assert result.request.request_id.encode() in recorded.data


def test_of_what_a_step_raised_the_kind_is_recorded(recorded: Recorded) -> None:
    assert recorded.raised
    said = f"gpucorrelate-lab: execute_model raises, as asked: {' '.join(_WORDS)}"
    assert recorded.raised[0].startswith("RuntimeError")
    assert recorded.raised[0].endswith(f", message {message_hash(said)}")


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
