# SPDX-License-Identifier: Apache-2.0
"""The last rows of a process that ends in good order are sent, however it was started."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpucorrelate.probes.agents.agent import Agent
from gpucorrelate.probes.agents.control import Start
from gpucorrelate.probes.agents.current import flush_at_exit
from gpucorrelate.probes.agents.transport import Pace
from tests.unit.agent_peer import Listener, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

#: No tick comes before the end.
NO_TICK = Pace(tick_s=600.0, connect_s=0.02)


def put_and_end(path: str) -> None:
    """Put rows as soon as they are wanted, and end."""
    agent = Agent("vllm", path, NO_TICK)
    flush_at_exit(agent)
    agent.transport.run()
    work(agent)


def work(agent: Agent) -> None:
    wait_until(lambda: agent.on)
    time.sleep(0.05)  # the turn that it was started in is over
    for number in range(3):
        agent.rows("span").put((1, agent.texts.number("work"), number, number + 1, 0))


def fork_and_end(path: str) -> None:
    """The same in a child that inherits the agent, as an engine's processes may."""
    agent = Agent("vllm", path, NO_TICK)
    flush_at_exit(agent)
    os.register_at_fork(after_in_child=agent.reborn)
    child = multiprocessing.get_context("fork").Process(target=work, args=(agent,))
    child.start()
    child.join()


_SCRIPT = "import sys; from tests.unit.test_agent_exit import {0}; {0}(sys.argv[1])"


def started(how: str, path: str) -> Callable[[], object]:
    """Start a process that puts rows; what waits for its end."""
    if how == "spawn":
        child = multiprocessing.get_context("spawn").Process(target=put_and_end, args=(path,))
        child.start()
        return child.join
    script = _SCRIPT.format("fork_and_end" if how == "fork" else "put_and_end")
    return subprocess.Popen([sys.executable, "-c", script, path]).wait


@pytest.mark.parametrize("how", ["script", "spawn", "fork"])
def test_the_last_rows_are_sent(tmp_path, how):
    path = tmp_path / "ingest.sock"
    listener = Listener(path)
    try:
        ended = started(how, str(path))
        peer = listener.accept()
        peer.tell(Start("s"))
        ended()
        peer.read_for(0.2)
        assert [row[2] for row in peer.rows.get("span", ())] == [0, 1, 2]
        peer.close()
    finally:
        listener.close()
