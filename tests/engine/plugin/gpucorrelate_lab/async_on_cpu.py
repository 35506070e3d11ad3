# SPDX-License-Identifier: Apache-2.0
"""Async scheduling on the CPU platform, so that its code paths run without a GPU.

vLLM's CPU platform forces ``async_scheduling`` off, and its asynchronous output object copies
on a CUDA stream. Both are replaced: the wish of the command line is kept, and the output
object holds what is already in host memory.
"""

from __future__ import annotations

from typing import Any


def _keep_async_scheduling() -> None:
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted is not False

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _output_in_host_memory() -> None:
    import vllm.v1.worker.gpu_model_runner as runner
    from vllm.v1.outputs import AsyncModelRunnerOutput

    class Done:
        """Stands where a CUDA event would: the copy it marks is always complete."""

        def synchronize(self) -> None:
            """Return at once."""

        def record(self, stream: Any = None) -> None:
            """Nothing to mark."""

        def query(self) -> bool:
            """Report completion."""
            return True

    class HostOutput(AsyncModelRunnerOutput):  # type: ignore[misc]  # vLLM is not typed here
        """Sampled token ids that need no copy."""

        def __init__(
            self,
            model_runner_output: Any,
            sampled_token_ids: Any,
            logprobs_tensors: Any = None,
            invalid_req_indices: Any = (),
            *_args: Any,
            **_kwargs: Any,
        ) -> None:
            self._output = model_runner_output
            self._invalid = list(invalid_req_indices)
            # The input batch reads these two for the next step's inputs.
            self.sampled_token_ids_cpu = sampled_token_ids.clone()
            self.async_copy_ready_event = Done()

        def get_output(self) -> Any:
            """The runner's output with the token ids filled in."""
            ids = self.sampled_token_ids_cpu.tolist()
            for row in self._invalid:
                ids[row].clear()
            self._output.sampled_token_ids = ids
            return self._output

    runner.AsyncGPUModelRunnerOutput = HostOutput


def install() -> None:
    """Replace both; call once in a process."""
    _keep_async_scheduling()
    _output_in_host_memory()
