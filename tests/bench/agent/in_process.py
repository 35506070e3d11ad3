# SPDX-License-Identifier: Apache-2.0
"""What the agent adds to a step of 50 rows, measured inside one real engine.

Run with the engine's Python from the repository's root, with ``gpucorrelate`` installed there:
``python -m tests.bench.agent.in_process [PAIRS]``. The same batch of requests is generated
over and over, with the agent started and stopped in turn, in one process that holds frontend,
scheduler and worker, so that everything the agent does in a step is counted, its sender too.
Prints medians over pairs of runs next to each other; the order alternates.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROWS = 50
TOKENS = 64
WARM_UP = 6


@dataclass(frozen=True)
class Sample:
    """Seconds one run took."""

    wall_s: float
    process_s: float
    main_s: float


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
        self._sink.stdout.readline()

    def switch(self, *, on: bool) -> None:
        from gpucorrelate.probes.agents.vllm import plugin

        self._sink.stdin.write("start\n" if on else "stop\n")
        self._sink.stdin.flush()
        deadline = time.monotonic() + 5
        while plugin.start().on is not on:
            if time.monotonic() > deadline:
                raise RuntimeError("the agent does not follow: is gpucorrelate installed here?")
            time.sleep(0.002)
        time.sleep(0.02)

    def close(self) -> int:
        self._sink.stdin.close()
        read = int(self._sink.stdout.readline())
        self._sink.wait()
        return read


def engine(folder: Path):
    """A real engine in this process."""
    from tests.engine.model import write_model

    model = folder / "model"
    write_model(model)
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="WARNING",
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
    return lambda: llm.generate(prompts, params, use_tqdm=False)


def timed(run) -> Sample:
    wall, process, main = time.perf_counter(), time.process_time(), time.thread_time()
    run()
    return Sample(
        time.perf_counter() - wall, time.process_time() - process, time.thread_time() - main
    )


def report(pairs: list[tuple[Sample, Sample]]) -> None:
    """Medians and quartiles over the pairs (started, stopped)."""
    print(f"{len(pairs)} pairs, {ROWS} rows a step, {TOKENS} steps a run")
    for name in ("main_s", "process_s", "wall_s"):
        started = [getattr(on, name) for on, _ in pairs]
        stopped = [getattr(off, name) for _, off in pairs]
        added = sorted((a - b) / TOKENS * 1e6 for a, b in zip(started, stopped, strict=True))
        ratio = statistics.median(a / b for a, b in zip(started, stopped, strict=True))
        low, _, high = statistics.quantiles(added, n=4)
        print(
            f"{name[:-2]:8} step {statistics.median(stopped) / TOKENS * 1e6:7.0f} us, "
            f"agent adds {statistics.median(added):6.1f} us "
            f"(quartiles {low:.1f} to {high:.1f}), ratio {ratio:.4f}"
        )


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agent = Agent(folder)
        run = engine(folder)
        for turn in range(WARM_UP):
            agent.switch(on=bool(turn % 2))
            run()
        samples = []
        for turn in range(pairs):
            both = {}
            for on in (True, False) if turn % 2 else (False, True):
                agent.switch(on=on)
                both[on] = timed(run)
            samples.append((both[True], both[False]))
        report(samples)
        from gpucorrelate.probes.agents.vllm import plugin

        print(f"dropped rows {plugin.start().drops.count}, bytes sent {agent.close()}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
