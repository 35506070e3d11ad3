# SPDX-License-Identifier: Apache-2.0
"""The engine's own metrics, from the port that its server listens on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.daemon.look import Found
from gpucorrelate.daemon.tree import looks_like_engine
from gpucorrelate.probes.host import procfs
from gpucorrelate.probes.host.engine_scrape import EngineEndpoint
from gpucorrelate.probes.host.listening import read_listeners
from gpucorrelate.probes.host.reading import Missing, Sample, Standing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: What vLLM listens on unless it is told otherwise.
_ENGINE_PORT = 8000
#: A server comes up a minute after its process, say: it is looked for until then.
_FIND_NS = 10_000_000_000
_NOBODY = Missing("engine.metrics", "host", "no process of it listens where an engine's would")


class Engine:
    """Looks at one engine, and for it where it does not serve yet."""

    def __init__(self) -> None:
        self._endpoint: EngineEndpoint | None = None
        self._find_ns = 0
        self._failing = ""

    def look(self, pids: Collection[int], now_ns: int) -> Found:
        """Ask the server; find it first if need be."""
        opened = self._endpoint is None and now_ns >= self._find_ns
        if opened:
            self._find_ns = now_ns + _FIND_NS
            self._endpoint = endpoint(pids)
            self._failing = ""
        if self._endpoint is None:
            standing = Standing(works=False, missing=() if self._failing else (_NOBODY,))
            rest_ns = max(0, self._find_ns - now_ns)
            return Found(Sample(), standing, failing=self._failing, opened=opened, rest_ns=rest_ns)
        found = self._endpoint.sample("vllm")
        if not found.readings:
            self._endpoint = None
            self._failing = "; ".join(f"{one.subject}: {one.reason}" for one in found.missing)
        standing = Standing(bool(found.readings), found.missing)
        return Found(found, standing, failing=self._failing, opened=opened)

    def close(self) -> None:
        """Forget where it was."""
        self._endpoint, self._find_ns, self._failing = None, 0, ""


def endpoint(pids: Iterable[int]) -> EngineEndpoint | None:
    """Where an engine's server answers.

    Only a port that its arguments name, or the usual one, and only if that very process listens
    on it: what else may listen there would not know what to make of a question over HTTP.
    """
    for pid in pids:
        process = procfs.read_process(pid)
        if process is None or not looks_like_engine(process):
            continue
        port = port_of(process.argv)
        for listener in read_listeners(pid):
            if listener.port == port:
                return EngineEndpoint(listener.reached_by, port)
    return None


def port_of(argv: tuple[str, ...]) -> int:
    """The port that a command line names; 0 where it is none."""
    for at, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name == "--port":
            text = value or (argv[at + 1] if at + 1 < len(argv) else "")
            return int(text) if text.isdecimal() and len(text) < 6 else 0
    return _ENGINE_PORT
