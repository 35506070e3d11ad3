# SPDX-License-Identifier: Apache-2.0
"""Everything of vLLM's insides that the agent relies on, by part.

Checked twice with the same comparison: at run time, before a hook is put in place (a part
whose needs are not met is refused and says so), and against the sources of each release that
is claimed to work (``tests/compat``). Nothing else of vLLM may be touched by a hook without a
default for its absence.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucorrelate.probes.agents.vllm.signature import Need

CORE = "vllm.v1.engine.core"
SCHEDULER = "vllm.v1.core.sched.scheduler"
SCHEDULED = "vllm.v1.core.sched.output"
EXECUTOR = "vllm.v1.executor.abstract"
QUEUE = "vllm.distributed.device_communicators.shm_broadcast"
RUNNER = "vllm.v1.worker.gpu_model_runner"
RUNNER_V2 = "vllm.v1.worker.gpu.model_runner"
ASYNC_LLM = "vllm.v1.engine.async_llm"
OUTPUTS = "vllm.v1.engine.output_processor"
CLIENT = "vllm.v1.engine.core_client"
ENGINE_TYPES = "vllm.v1.engine"
SERIAL = "vllm.v1.serial_utils"
RENDERER = "vllm.renderers.base"
INPUTS = "vllm.v1.engine.input_processor"
INPUTS_OLD = "vllm.v1.engine.processor"
REQUEST = "vllm.v1.request"
UVICORN = "uvicorn.config"

PART_ENGINE = "vllm.engine"
PART_REQUESTS = "vllm.requests"
PART_WORKER = "vllm.worker"
PART_QUEUE = "vllm.queue"
PART_FRONTEND = "vllm.frontend"
PART_TOKENISE = "vllm.tokenise"
PART_SERIAL = "vllm.serial"
PART_HTTP = "vllm.http"

#: What is lost when a part is off; ends its capability row.
LOST = {
    PART_ENGINE: "no steps, no rows, no join from requests to steps",
    PART_REQUESTS: "no admission, preemption or finish of requests in the engine",
    PART_WORKER: "no model-runner calls and no packed rows in workers",
    PART_QUEUE: "queue hand-offs only as far as the kernel sees them",
    PART_FRONTEND: "no join from HTTP exchanges to engine requests",
    PART_TOKENISE: "tokenising is not told apart from other frontend work",
    PART_SERIAL: "serialising is not told apart from other work",
    PART_HTTP: "no arrival, chunks or last byte of HTTP exchanges",
}


@dataclass(frozen=True)
class Fields:
    """Attributes that objects of a class must have.

    Attributes:
        module: Where the class lives.
        owner: Class name.
        names: Attributes, declared in the class body or assigned in its ``__init__``.
    """

    module: str
    owner: str
    names: tuple[str, ...]


_SO = ("scheduler_output",)
_REQUEST = ("request",)

NEEDS: dict[str, tuple[Need, ...]] = {
    PART_ENGINE: (
        Need(CORE, "EngineCore", "step"),
        Need(CORE, "EngineCore", "step_with_batch_queue", optional=True),
        Need(CORE, "EngineCore", "add_request", _REQUEST),
        Need(SCHEDULER, "Scheduler", "schedule"),
        Need(SCHEDULER, "Scheduler", "update_from_output", (*_SO, "model_runner_output")),
        Need(EXECUTOR, "Executor", "execute_model", _SO),
        Need(EXECUTOR, "Executor", "sample_tokens", ("grammar_output",), optional=True),
    ),
    PART_REQUESTS: (
        Need(SCHEDULER, "Scheduler", "add_request", _REQUEST),
        Need(SCHEDULER, "Scheduler", "_free_request", _REQUEST),
        Need(SCHEDULER, "Scheduler", "_preempt_request", _REQUEST, optional=True),
    ),
    PART_WORKER: (
        Need(RUNNER, "GPUModelRunner", "execute_model", _SO),
        Need(RUNNER, "GPUModelRunner", "sample_tokens", ("grammar_output",), optional=True),
    ),
    PART_QUEUE: (
        Need(QUEUE, "MessageQueue", "enqueue", ("obj",)),
        Need(QUEUE, "MessageQueue", "dequeue"),
        Need(QUEUE, "MessageQueue", "acquire_write"),
        Need(QUEUE, "MessageQueue", "acquire_read"),
    ),
    PART_FRONTEND: (
        Need(ASYNC_LLM, "AsyncLLM", "_run_output_handler"),
        Need(OUTPUTS, "OutputProcessor", "add_request", _REQUEST),
        Need(
            OUTPUTS,
            "OutputProcessor",
            "process_outputs",
            ("engine_core_outputs", "engine_core_timestamp"),
        ),
        Need(OUTPUTS, "OutputProcessor", "abort_requests", ("request_ids",)),
        Need(CLIENT, "AsyncMPClient", "add_request_async", _REQUEST, coroutine=True),
        Need(CLIENT, "DPAsyncMPClient", "add_request_async", _REQUEST, coroutine=True),
        Need(CLIENT, "SyncMPClient", "add_request", _REQUEST),
        Need(CLIENT, "InprocClient", "add_request", _REQUEST),
    ),
    PART_TOKENISE: (
        Need(RENDERER, "BaseRenderer", "render_cmpl_async", ("prompts",), coroutine=True),
        Need(RENDERER, "BaseRenderer", "render_chat_async", ("conversations",), coroutine=True),
        Need(RENDERER, "BaseRenderer", "_tokenize_prompt", ("prompt",)),
    ),
    PART_SERIAL: (
        Need(SERIAL, "MsgpackEncoder", "encode", ("obj",)),
        Need(SERIAL, "MsgpackEncoder", "encode_into", ("obj", "buf")),
        Need(SERIAL, "MsgpackDecoder", "decode", ("bufs",)),
    ),
    PART_HTTP: (Need(UVICORN, "Config", "load"),),
}

#: The second model runner (GPU with Triton) fulfils the same part in another module.
RUNNER_V2_NEEDS: tuple[Need, ...] = (
    Need(RUNNER_V2, "GPUModelRunner", "execute_model", _SO),
    Need(RUNNER_V2, "GPUModelRunner", "sample_tokens", ("grammar_output",)),
)

#: Before the renderers, the input processor tokenised.
TOKENISE_OLD_NEEDS: tuple[Need, ...] = (
    Need(INPUTS, "InputProcessor", "process_inputs", ("request_id", "prompt")),
    Need(INPUTS_OLD, "Processor", "process_inputs", ("request_id", "prompt")),
)

FIELDS: dict[str, tuple[Fields, ...]] = {
    PART_ENGINE: (
        Fields(
            SCHEDULED,
            "SchedulerOutput",
            (
                "scheduled_new_reqs",
                "scheduled_cached_reqs",
                "num_scheduled_tokens",
                "total_num_scheduled_tokens",
                "scheduled_spec_decode_tokens",
            ),
        ),
        Fields(SCHEDULED, "CachedRequestData", ("req_ids", "num_computed_tokens")),
        Fields(SCHEDULED, "NewRequestData", ("req_id", "num_computed_tokens")),
        Fields(SCHEDULER, "Scheduler", ("requests", "waiting", "finished_req_ids")),
        Fields(ENGINE_TYPES, "EngineCoreOutput", ("request_id", "new_token_ids", "finish_reason")),
        Fields(ENGINE_TYPES, "EngineCoreOutputs", ("outputs", "timestamp")),
        Fields(REQUEST, "Request", ("request_id", "num_prompt_tokens", "num_computed_tokens")),
    ),
    PART_REQUESTS: (
        Fields(REQUEST, "Request", ("request_id", "num_prompt_tokens", "_output_token_ids")),
        Fields(SCHEDULER, "Scheduler", ("kv_cache_manager",)),
    ),
    PART_QUEUE: (
        Fields(QUEUE, "MessageQueue", ("buffer", "current_idx", "local_reader_rank")),
        Fields(QUEUE, "ShmRingBuffer", ("shared_memory", "max_chunks")),
    ),
    PART_FRONTEND: (
        Fields(OUTPUTS, "OutputProcessor", ("request_states",)),
        Fields(OUTPUTS, "RequestState", ("detokenizer",)),
    ),
}


def modules() -> frozenset[str]:
    """Modules to watch for."""
    needs = [need for part in NEEDS.values() for need in part]
    return frozenset(need.module for need in (*needs, *RUNNER_V2_NEEDS, *TOKENISE_OLD_NEEDS))
