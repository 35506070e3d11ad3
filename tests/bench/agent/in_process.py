# SPDX-License-Identifier: Apache-2.0
"""What the agent adds to a step of 50 rows, measured inside one real engine.

Run with the engine's Python from the repository's root, with ``gpucorrelate`` installed there:
``python -m tests.bench.agent.in_process [RUNS]``. The same batch of requests is generated over
and over in one process that holds frontend, scheduler and worker. Three things are measured:

- the time within the hooks: every hook has a clock around it and another around what it wraps,
  and a step's hooks are what lies between the two. The hooks are switched on and off every few
  steps, so that what remains of a difference is what they do when on;
- the CPU time of whole decode steps, each block of steps against its neighbours without hooks.
  It holds what the hooks do to the engine's caches too, and is a hundred times noisier;
- the CPU time of the agent's own sending thread: for decode steps, and for what is told of
  each request beside them.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

ROWS = 50
TOKENS = 256
WARM_UP = 4
#: Steps in a block, of which the first states its rows anew and is left out.
BLOCK = 8
#: The first steps of a run prefill; the last one finishes everything.
SKIP_FIRST, SKIP_LAST = 4, 2


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


class HookClock:
    """Time that a step's hooks take, apart from what they wrap.

    Attributes:
        taken_ns: Of the hooks called since the last ``clear``.
    """

    def __init__(self) -> None:
        self.taken_ns = 0
        self._inner: list[int] = []

    def inner(self, original):
        """A clock around what a hook wraps."""
        now, push = time.perf_counter_ns, self._inner.append

        @functools.wraps(original)
        def call(*args, **kwargs):
            start = now()
            try:
                return original(*args, **kwargs)
            finally:
                push(now() - start)

        return call

    def outer(self, hook):
        """A clock around a hook."""
        now, pop = time.perf_counter_ns, self._inner.pop

        @functools.wraps(hook)
        def call(*args, **kwargs):
            start = now()
            try:
                return hook(*args, **kwargs)
            finally:
                self.taken_ns += now() - start - pop()

        return call

    def around(self, make):
        """What makes a hook, with both clocks."""
        return lambda *args: self.outer(make(*args[:-1], self.inner(args[-1])))

    def install(self) -> None:
        """Put clocks around all hooks that will be made, before there are any."""
        from gpucorrelate.probes.agents.vllm import engine, frontend, patch, worker

        for name in ("_execute_model", "_sample_tokens", "_update_from_output"):
            setattr(engine.Steps, name, self.around(getattr(engine.Steps, name)))
        wrap = patch.wrap
        timed = {"step", "execute_model", "sample_tokens", "process_outputs"}

        def clocked(owner, name, make):
            return wrap(owner, name, self.around(make) if name in timed else make)

        for module in (engine, frontend, worker):
            setattr(module, "wrap", clocked)  # noqa: B010 - not an attribute to type checkers


class StepClock:
    """CPU time of every step of an engine, on the thread that calls it.

    Attributes:
        taken: Nanoseconds of each step since the last ``clear``.
        hooks: Those of its hooks.
        before: Called with the number of each step right before it.
    """

    def __init__(self, llm, hooks: HookClock) -> None:
        self.taken: list[int] = []
        self.hooks: list[int] = []
        self.before = lambda step: None
        inner = llm.llm_engine.step

        def step():
            self.before(len(self.taken))
            hooks.taken_ns = 0
            start = time.thread_time_ns()
            result = inner()
            self.taken.append(time.thread_time_ns() - start)
            self.hooks.append(hooks.taken_ns)
            return result

        llm.llm_engine.step = step

    def clear(self) -> None:
        self.taken.clear()
        self.hooks.clear()


def on_in(step: int, first: bool) -> bool:
    """Whether the hooks are on in a step."""
    return bool((step - SKIP_FIRST) // BLOCK % 2) is not first


def blocks(clock: StepClock, run, *, first: bool) -> tuple[list[float], dict[bool, list[int]]]:
    """Microseconds a step that each block with hooks took more than its neighbours without.

    And nanoseconds within the hooks in each step with hooks off, and on.
    """
    from gpucorrelate.probes.agents.vllm import plugin

    hooks = plugin.start()

    def before(step: int) -> None:
        if hooks.on is not on_in(step, first):
            hooks._switch(on=not hooks.on)

    clock.clear()
    clock.before = before
    run()
    clock.before = lambda step: None
    hooks._switch(on=True)
    decode = clock.taken[SKIP_FIRST:-SKIP_LAST]
    found = [
        (on_in(SKIP_FIRST + at, first), statistics.median(decode[at + 1 : at + BLOCK]) / 1e3)
        for at in range(0, len(decode) - BLOCK + 1, BLOCK)
    ]
    within: dict[bool, list[int]] = {False: [], True: []}
    for at in range(SKIP_FIRST, len(clock.hooks) - SKIP_LAST):
        if (at - SKIP_FIRST) % BLOCK:
            within[on_in(at, first)].append(clock.hooks[at])
    return [(b - a) if on else (a - b) for (_, a), (on, b) in pairwise(found)], within


def sender_us(clock: StepClock, run) -> tuple[float, float]:
    """Microseconds of the sending thread in one run: of decode steps, and of all the rest.

    The rest is what is told of each request, at its beginning and at its end.
    """
    from gpucorrelate.probes.agents.vllm import plugin

    hooks, last, marks = plugin.start(), len(clock.taken) - SKIP_LAST, []

    def before(step: int) -> None:
        if step in (SKIP_FIRST, last):
            hooks.transport.flush(1.0)
            marks.append(Agent.sender_ns())

    clock.clear()
    clock.before = before
    start = Agent.sender_ns()
    run()
    hooks.transport.flush(1.0)
    clock.before = lambda step: None
    decode = (marks[1] - marks[0]) / 1e3
    return decode, (Agent.sender_ns() - start) / 1e3 - decode


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agent = Agent(folder)
        hooks = HookClock()
        hooks.install()
        llm, run = engine(folder)
        clock = StepClock(llm, hooks)
        for turn in range(WARM_UP):
            agent.switch(on=bool(turn % 2))
            run()
        added: list[float] = []
        within: dict[bool, list[int]] = {False: [], True: []}
        started: list[tuple[float, float]] = []
        base: list[int] = []
        for turn in range(runs):
            agent.switch(on=True)
            found, times = blocks(clock, run, first=bool(turn % 2))
            added += found
            for on, taken in times.items():
                within[on] += taken
            started.append(sender_us(clock, run))
            agent.switch(on=False)
            clock.clear()
            run()
            base += clock.taken[SKIP_FIRST:-SKIP_LAST]
        low, middle, high = statistics.quantiles(added, n=4)
        # Means: a run holds one or two of the sender's turns.
        steps = len(clock.taken) - SKIP_FIRST - SKIP_LAST
        sender = statistics.mean(decode for decode, _ in started) / steps
        requests = statistics.mean(rest for _, rest in started) / ROWS
        without = statistics.median(base) / 1e3
        error = 1.25 * (high - low) / 1.35 / len(added) ** 0.5
        in_on, in_off = (statistics.median(within[which]) / 1e3 for which in (True, False))
        tenths = statistics.quantiles(within[True], n=10)
        print(f"{runs} runs, {ROWS} rows a step, hooks on and off in blocks of {BLOCK} steps")
        print(f"step without      {without:8.1f} us CPU (median of {len(base)})")
        print(f"hooks add         {in_on - in_off:8.1f} us", end=" ")
        print(f"(within them {in_on:.1f} on, {in_off:.1f} off;", end=" ")
        print(f"tenths of steps on {tenths[0] / 1e3:.1f} to {tenths[-1] / 1e3:.1f})")
        print(f"  whole steps     {middle:8.1f} us, standard error {error:.1f}")
        print(f"sender adds       {sender:8.1f} us, and {requests:.1f} us a request")
        whole = in_on - in_off + sender
        print(f"together          {whole:8.1f} us a step, ratio {1 + whole / without:.4f}")
        from gpucorrelate.probes.agents.vllm import plugin

        print(f"dropped rows {plugin.start().drops.count}, bytes sent {agent.close()}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
