# SPDX-License-Identifier: Apache-2.0
"""What the agent adds to a step of 50 rows, measured inside one real engine.

Run with the engine's Python from the repository's root, with ``gpucorrelate`` installed there:
``python -m tests.bench.agent.in_process [PAIRS]``. The same batch of requests is generated
over and over in one process that holds frontend, scheduler and worker, with the agent started
and stopped in turn, in alternating order. Two things are measured: the CPU time of each
decode step on the thread that makes it, whose median over thousands of steps stands firm on a
busy machine, and the CPU time of the agent's own sending thread.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROWS = 50
TOKENS = 64
WARM_UP = 6
#: The first steps of a run prefill; the last one finishes everything.
SKIP_FIRST, SKIP_LAST = 4, 2


@dataclass
class Side:
    """What was measured with the agent started, or stopped."""

    steps_us: list[float] = field(default_factory=list)
    run_medians_us: list[float] = field(default_factory=list)
    sender_ns: int = 0
    steps: int = 0


class Agent:
    """The agent of this process, switched from outside as a daemon would."""

    def __init__(self, folder: Path) -> None:
        path = folder / "ingest.sock"
        os.environ["GPUCORRELATE_INGEST"] = str(path)
        self._sink = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("sink.py")), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._sink.stdin is not None
        assert self._sink.stdout is not None
        self._orders, self._answers = self._sink.stdin, self._sink.stdout
        self._answers.readline()

    def switch(self, *, on: bool) -> None:
        from gpucorrelate.probes.agents.vllm import plugin

        self._orders.write("start\n" if on else "stop\n")
        self._orders.flush()
        deadline = time.monotonic() + 5
        while plugin.start().on is not on:
            if time.monotonic() > deadline:
                raise RuntimeError("the agent does not follow: is gpucorrelate installed here?")
            time.sleep(0.002)
        time.sleep(0.02)

    @staticmethod
    def sender_ns() -> int:
        """CPU time of the agent's thread so far."""
        for thread in threading.enumerate():
            if thread.name == "gpucorrelate-sender" and thread.ident is not None:
                return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
        raise RuntimeError("the agent has no thread: is gpucorrelate installed here?")

    def close(self) -> int:
        """Bytes the other end read."""
        self._orders.close()
        read = int(self._answers.readline())
        self._sink.wait()
        return read


def engine(folder: Path):
    """A real engine in this process, and a function that generates one batch with it."""
    from tests.engine.model import write_model

    model = folder / "model"
    write_model(model)
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(model),
        load_format="dummy",
        dtype="float32",
        max_model_len=512,
        max_num_seqs=64,
        enforce_eager=True,
        distributed_executor_backend="uni",
        enable_prefix_caching=False,
    )
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0)
    prompts = [f"the step token {i}" for i in range(ROWS)]
    return llm, lambda: llm.generate(prompts, params, use_tqdm=False)


class StepClock:
    """CPU time of every step of an engine, on the thread that calls it."""

    def __init__(self, llm) -> None:
        self.taken: list[int] = []
        inner = llm.llm_engine.step

        def step():
            start = time.thread_time_ns()
            result = inner()
            self.taken.append(time.thread_time_ns() - start)
            return result

        llm.llm_engine.step = step


def measure(clock: StepClock, run, side: Side) -> None:
    clock.taken.clear()
    before = Agent.sender_ns()
    run()
    side.sender_ns += Agent.sender_ns() - before
    side.steps += len(clock.taken)
    decode = [ns / 1e3 for ns in clock.taken[SKIP_FIRST:-SKIP_LAST]]
    side.steps_us += decode
    side.run_medians_us.append(statistics.median(decode))


def report(started: Side, stopped: Side) -> None:
    print(f"{len(started.run_medians_us)} pairs of runs, {ROWS} rows a step")
    base, on = statistics.median(stopped.steps_us), statistics.median(started.steps_us)
    pairs = sorted(
        a - b for a, b in zip(started.run_medians_us, stopped.run_medians_us, strict=True)
    )
    low, middle, high = statistics.quantiles(pairs, n=4)
    sender = (started.sender_ns / started.steps - stopped.sender_ns / stopped.steps) / 1e3
    quiet = statistics.quantiles(started.steps_us, n=10)[0]
    quiet -= statistics.quantiles(stopped.steps_us, n=10)[0]
    print(f"step without      {base:8.1f} us CPU (median of {len(stopped.steps_us)})")
    print(f"hooks add         {on - base:8.1f} us; first deciles {quiet:.1f} us")
    print(f"  pairs of runs   {middle:8.1f} us (quartiles {low:.1f} to {high:.1f})")
    print(f"sender adds       {sender:8.1f} us")
    added = middle + sender
    print(f"together          {added:8.1f} us a step, ratio {1 + added / base:.4f}")


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agent = Agent(folder)
        llm, run = engine(folder)
        clock = StepClock(llm)
        for turn in range(WARM_UP):
            agent.switch(on=bool(turn % 2))
            run()
        sides = {True: Side(), False: Side()}
        for turn in range(pairs):
            for on in (True, False) if turn % 2 else (False, True):
                agent.switch(on=on)
                measure(clock, run, sides[on])
        report(sides[True], sides[False])
        from gpucorrelate.probes.agents.vllm import plugin

        print(f"dropped rows {plugin.start().drops.count}, bytes sent {agent.close()}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
