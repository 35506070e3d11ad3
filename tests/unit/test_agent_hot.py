# SPDX-License-Identifier: Apache-2.0
"""The hooks' fast paths do what the hooks in Python do, whatever the engine does."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import tracemalloc
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpucorrelate.probes.agents import hot
from gpucorrelate.probes.agents.agent import KINDS, Agent
from gpucorrelate.probes.agents.buffers import DEFAULT_LIMIT, Drops, FlatRows
from gpucorrelate.probes.agents.vllm import contract, engine, frontend, rowsets, worker
from tests.unit.engine_peer import Failed, Script, install, run
from tests.unit.test_agent_rowsets import Batch, Request

pytestmark = pytest.mark.skipif(
    os.environ.get("GPUCORRELATE_NATIVE") == "0", reason="GPUCORRELATE_NATIVE=0 leaves them out"
)


def test_the_fast_paths_are_built():
    assert hot.NATIVE, "no C fast paths: run 'make native'"


@pytest.fixture
def agent(tmp_path):
    return Agent("vllm", str(tmp_path / "nobody"))


_NO_TWO_RUNS_SHARE = {"tid", "t_ns", "start_ns", "end_ns", "sched_start_ns", "sched_end_ns"}


def _rows(agent: Agent) -> dict[str, list[tuple]]:
    """All rows in order, but for times and thread ids, which no two runs share."""
    found = {"rowsets": [tuple(map(tuple, rows[1:])) for rows in agent.rowsets.take()]}
    for name in KINDS:
        if name == "step_rows":
            continue
        buffer = agent.rows(name)
        taken = buffer.take()
        columns = buffer.kind.columns
        keep = [at for at, c in enumerate(columns) if c.name not in _NO_TWO_RUNS_SHARE]
        if isinstance(buffer, FlatRows):
            taken = list(struct.iter_unpack(f"<{len(columns)}q", taken))
        found[name] = [tuple(row[at] for at in keep) for row in taken]
    return found


def _times(agent: Agent) -> None:
    """Every row of the busy kinds starts before it ends."""
    begun = list(struct.iter_unpack("<10q", agent.rows("step_begin").take()))
    assert all(0 < turned <= scheduled == start for _, _, turned, scheduled, start, *_ in begun)
    for name in ("worker_step", "step_update", "outputs", "span"):
        buffer = agent.rows(name)
        index = buffer.kind.index
        start = index("start_ns")
        rows = list(struct.iter_unpack(f"<{len(buffer.kind.columns)}q", buffer.take()))
        assert rows
        for row in rows:
            assert 0 < row[start] <= row[start + 1]
            assert row[index("tid")] == threading.get_native_id()


def _played(path, monkeypatch, script: Script, *, native: bool):
    with monkeypatch.context() as patch:
        if not native:
            patch.setattr(hot, "_native", None)
        agent = Agent("vllm", str(path / "nobody"))
        made = install(agent)
        agent.started("s")
        run(agent, made, script)
    return agent, _rows(agent), script.returned


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_of_the_hooks_in_python(tmp_path, monkeypatch, seed, asynchronous, clients):
    kinds = {"seed": seed, "asynchronous": asynchronous, "clients": clients}
    _, fast, given = _played(tmp_path, monkeypatch, Script(**kinds), native=True)
    _, plain, wanted = _played(tmp_path, monkeypatch, Script(**kinds), native=False)
    assert given == wanted
    assert fast.keys() == plain.keys()
    for name, rows in plain.items():
        assert fast[name] == rows, name
    assert len(fast["step_begin"]) > 30


def test_nearly_every_steady_step_takes_the_fast_path(agent, monkeypatch):
    """Else the comparison above compares Python with itself."""
    calls: list[str] = []
    for owner, name in (
        (engine.Steps, "_begin_step"),
        (engine.Steps, "_put_updates"),
        (worker._Calls, "_executed"),
        (worker._Calls, "_sampled"),
        (rowsets.ListRowsets, "of_outputs"),
        (frontend._Outputs, "_ended"),
    ):
        original = getattr(owner, name)

        def counted(*args, _name=name, _original=original, **kwargs):
            calls.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
    made = install(agent)
    agent.started("s")
    _steady(made, 100)
    assert len(agent.rows("step_begin")) == len(agent.rows("step_update")) == 100
    assert len(agent.rows("worker_step")) == 200
    assert len(calls) <= 8, calls


def _steady(made, steps: int, core=None, processor=None):
    """Fifty decoding requests."""
    batch = Batch()
    for at in range(50):
        batch.alive[f"r{at}"] = Request(f"r{at}", 1, 1, 2)
    core = made.EngineCore(batch, False)
    processor = made.OutputProcessor()
    for _ in range(steps):
        plan = batch.plan(8)
        plan.total_num_scheduled_tokens = 50
        core.scheduler.plan = plan
        outputs = [
            SimpleNamespace(request_id=name, new_token_ids=[1], finish_reason=None)
            for name in plan.num_scheduled_tokens
        ]
        core.scheduler.outputs = {0: SimpleNamespace(outputs=outputs, timestamp=1.5)}
        core.step(False)
        processor.process_outputs(outputs, 1.5)


def test_times_are_the_calls_own(agent):
    made = install(agent)
    agent.started("s")
    _steady(made, 20)
    _times(agent)


@pytest.mark.parametrize("native", [True, False])
def test_hooks_leave_no_memory_behind(agent, monkeypatch, native):
    if not native:
        monkeypatch.setattr(hot, "_native", None)
    made = install(agent)
    agent.started("s")

    def some(steps: int) -> None:
        for seed in range(3):
            script = Script(seed, steps, asynchronous=bool(seed % 2))
            run(agent, made, script)
        _steady(made, steps)
        for name in KINDS:
            (agent.rowsets if name == "step_rows" else agent.rows(name)).take()
        for forget in agent.at_stop:  # requests whose end was not seen
            forget()
        gc.collect()

    some(200)
    tracemalloc.start()
    try:
        some(50)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(4):
            some(200)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # 800 steps of 50 rows; one object lost in each would be above 40 kB.
    assert grown < 20_000


def test_a_hooked_engine_can_be_collected(agent):
    made = install(agent)
    agent.started("s")
    core = made.EngineCore(Batch(), False)
    core.add_request(None)
    gone = weakref.ref(core), weakref.ref(core.scheduler), weakref.ref(core.runner)
    del core
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_hooks_look_like_what_they_wrap(agent):
    made = install(agent)
    hook = made.MsgpackEncoder.__dict__["encode"]
    assert type(hook).__name__ == "Hook"
    assert hook.__name__ == "encode"
    assert list(inspect.signature(hook).parameters) == ["self", "obj"]
    assert made.MsgpackEncoder().encode(1) == [1]
    bound = made.MsgpackEncoder().encode
    assert bound(2) == [2]
    assert made.MsgpackEncoder.encode(made.MsgpackEncoder(), obj=3) == [3]


def test_a_hook_is_copied_and_referred_to_like_a_function(agent, monkeypatch):
    made = install(agent)
    hook = made.MsgpackEncoder.__dict__["encode"]
    assert copy.copy(hook) is hook
    assert copy.deepcopy({"of": hook})["of"] is hook
    assert weakref.ref(hook)() is hook
    encoder = made.MsgpackEncoder()
    assert weakref.WeakMethod(encoder.encode)() == encoder.encode
    monkeypatch.setattr(hook, "__module__", __name__)
    monkeypatch.setattr(hook, "__qualname__", "hooked")
    monkeypatch.setitem(globals(), "hooked", hook)
    assert pickle.loads(pickle.dumps(hook)) is hook
    core = made.EngineCore(Batch(), False)
    core.add_request(None)
    execute = core.model_executor.execute_model
    assert type(execute).__name__ == "Hook"
    assert execute.__name__ == "execute_model"
    assert "kwargs" in inspect.signature(execute).parameters


class _Ends:
    """Of no length: what is called meanwhile is the signal handler that ends the process."""

    def __init__(self, after: int = 0) -> None:
        self.left = after

    def __len__(self) -> int:
        self.left -= 1
        if self.left == -1:
            signal.raise_signal(signal.SIGUSR1)
        return 0


def _end(*_):
    raise SystemExit(3)


@pytest.fixture
def _signalled():
    before = signal.signal(signal.SIGUSR1, _end)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_signalled")
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("attribute", "after", "executed"),
    [("waiting", 0, False), ("finished_req_ids", 0, True), ("finished_req_ids", 1, True)],
)
def test_what_ends_the_engine_is_not_a_hooks_to_keep(
    agent, monkeypatch, native, attribute, after, executed
):
    """A signal handler raises in whatever Python runs, and that may be a hook's."""
    if not native:
        monkeypatch.setattr(hot, "_native", None)
    made = install(agent)
    agent.started("s")
    batch = Batch({"a": Request("a", 1, 1, 2)})
    core = made.EngineCore(batch, False)
    for last in (False, False, True):
        core.scheduler.plan = plan = batch.plan(8)
        plan.total_num_scheduled_tokens = 1
        output = SimpleNamespace(request_id="a", new_token_ids=[1])
        core.scheduler.outputs = {0: SimpleNamespace(outputs=[output], timestamp=1.5)}
        core.runner.input_batch._req_ids = []
        if not last:
            core.step(False)
    setattr(core.scheduler, attribute, _Ends(after))
    with pytest.raises(SystemExit) as caught:
        core.step(False)
    assert caught.value.code == 3
    assert bool(core.runner.input_batch._req_ids) is executed
    setattr(core.scheduler, attribute, [])
    core.scheduler.plan = batch.plan(8)
    assert core.step(False) is core.scheduler.outputs


@pytest.mark.parametrize("native", [True, False])
def test_what_ends_the_engine_while_a_row_is_refused(monkeypatch, tmp_path, native):
    if not native:
        monkeypatch.setattr(hot, "_native", None)
    monkeypatch.setattr(Drops, "add", _end)
    agent = Agent("vllm", str(tmp_path / "nobody"))
    made = install(agent)
    agent.started("s")
    encoder, full = made.MsgpackEncoder(), agent.rows("span")
    while len(full) < DEFAULT_LIMIT:
        encoder.encode(1)
    with pytest.raises(SystemExit):
        encoder.encode(1)
    with pytest.raises(SystemExit):
        full.put((1, 2, 3, 4, 5))


@pytest.mark.parametrize("on", [False, True])
def test_exceptions_pass_as_they_are(agent, on):
    made = install(agent)
    if on:
        agent.started("s")
    with pytest.raises(Failed, match="encode") as caught:
        made.MsgpackEncoder().encode(None)
    assert caught.value.__context__ is None
    with pytest.raises(TypeError, match="missing 1 required"):
        made.MsgpackEncoder().encode()
    with pytest.raises(TypeError, match="missing 1 required"):
        made.OutputProcessor().process_outputs()
    core = made.EngineCore(Batch({"a": Request("a", 1, 1, 2)}), False)
    core.scheduler.plan = Batch({"a": Request("a", 1, 1, 2)}).plan(8)
    core.runner.fail = "execute"
    with pytest.raises(Failed, match="execute"):
        core.step(False)
    assert len(agent.rows("step_end")) == (1 if on else 0)


def test_hooks_survive_what_no_engine_should_give_them(agent):
    """Objects without the attributes, of other types, of other lengths: no crash, no exception."""
    made = install(agent)
    agent.started("s")
    processor = made.OutputProcessor()
    rng = random.Random(1)
    odd = [None, 3, "x", [], [1], {}, object(), SimpleNamespace(), [SimpleNamespace()]]
    for _ in range(500):
        core = made.EngineCore(Batch(), False)
        core.runner.execute_model = lambda output: None
        core.runner.input_batch = rng.choice(odd)
        core.scheduler.plan = SimpleNamespace(
            num_scheduled_tokens=rng.choice(odd),
            scheduled_cached_reqs=rng.choice(odd),
            scheduled_new_reqs=rng.choice(odd),
            scheduled_spec_decode_tokens=rng.choice(odd),
            total_num_scheduled_tokens=rng.choice(odd),
        )
        core.scheduler.waiting = rng.choice(odd)
        core.scheduler.finished_req_ids = rng.choice(odd)
        core.scheduler.outputs = rng.choice([{}, {0: rng.choice(odd)}, rng.choice(odd)])
        for part in agent._parts.values():
            part._broken, part._faults = False, 0
            part.switch(True)
        core.step(rng.random() < 0.5)
        outputs = [SimpleNamespace(request_id=n, new_token_ids=rng.choice(odd)) for n in odd]
        for output in outputs:
            output.finish_reason = None
        processor.process_outputs(outputs, rng.choice(odd))
    assert agent.drops.count >= 0


def test_a_forked_childs_rows_carry_its_own_thread(agent):
    made = install(agent)
    agent.started("s")
    made.MsgpackEncoder().encode(1)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        agent.rows("span").take()
        made.MsgpackEncoder().encode(2)
        row = struct.unpack("<5q", agent.rows("span").take())
        os.write(write, struct.pack("<2q", row[0], threading.get_native_id()))
        os._exit(0)
    os.waitpid(child, 0)
    seen, own = struct.unpack("<2q", os.read(read, 16))
    os.close(read)
    os.close(write)
    assert seen == own == child


def test_the_sources_have_no_format_with_a_length():
    """What it takes depends on the headers built with, which are another Python's."""
    sources = sorted((Path(hot.__file__).parent / "native").glob("*.c"))
    assert sources
    for path in sources:
        assert not re.findall(r'"\w*[syzu]#[^"\n]*"', path.read_text()), path.name


@pytest.mark.parametrize("seed", range(5))
def test_columns_are_those_python_takes_out(seed, monkeypatch):
    rng = random.Random(seed)
    sizes = bytes(rng.choice([1, 2, 4, 8]) for _ in range(rng.randint(1, 12)))
    values = [rng.randint(-(1 << 63), (1 << 63) - 1) for _ in range(len(sizes) * 17)]
    rows = struct.pack(f"<{len(values)}q", *values)
    found = hot.transposed(rows, sizes)
    for at, size in enumerate(sizes):
        wanted = [(value & (1 << 8 * size) - 1).to_bytes(size, "little") for value in values]
        assert found[at] == b"".join(wanted[at :: len(sizes)])
    for bad in ((rows[:-1], sizes), (rows, b""), (rows, bytes([3]))):
        with pytest.raises(ValueError, match="not whole rows"):
            hot.transposed(*bad)


def test_a_store_refuses_what_does_not_fit():
    drops = Drops()
    store = hot.Store(3, 4, drops)
    for row in ((1, 2), (1, 2, 3, 4), (1, 2, "x"), (1, 2, 1 << 63), (1, 2, None), (1, 2, 3.5)):
        assert store.put(row) is False
    assert drops.count == 6
    assert [store.put((n, n, True)) for n in range(6)] == [True] * 4 + [False] * 2
    assert drops.count == 8
    assert len(store) == 4
    assert store.take() == struct.pack("<12q", *[v for n in range(4) for v in (n, n, 1)])
    assert store.take() == b""
    assert store.put((1, 2, 3)) is True


@pytest.mark.parametrize("arguments", [(0, 4), (65, 4), (3, 0), (3, 1 << 25)])
def test_a_store_of_a_senseless_size_is_refused(arguments):
    with pytest.raises(ValueError, match="64 columns"):
        hot.Store(arguments[0], arguments[1], Drops())


def test_a_hook_of_wrong_things_is_refused(agent):
    part, drops = agent.part(contract.PART_SERIAL), agent.drops
    for arguments in (
        ("nonsense", len, len, part, drops, 0, False, None, None, None, None, None),
        ("span", len, len, part, drops, 0, False, None, None, None, None, None),
        ("span", len, len, object(), drops, 0, False, None, None, None, None, None),
        ("sample", len, len, part, drops, 0, False, agent.rows("span").store, None, None, None,
         None),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            hot._native.Hook(*arguments)


def test_what_was_not_made_does_nothing():
    hook = hot._native.Hook.__new__(hot._native.Hook)
    with pytest.raises(TypeError, match="not made"):
        hook()
    store = hot.Store.__new__(hot.Store)
    assert store.put(()) is False
    assert store.put((1,)) is False
    assert (len(store), store.take()) == (0, b"")


def test_lists_that_change_while_they_are_compared_are_no_crash(agent):
    """Attributes may be properties, and other threads run while those do."""
    made = install(agent)
    agent.started("s")
    processor = made.OutputProcessor()
    outputs: list = []

    class Output:
        finish_reason = None
        new_token_ids = (1,)

        @property
        def request_id(self):
            if self.wild:
                outputs.clear()
                for one in gc.get_objects():
                    if type(one) is rowsets.ListRowsets:
                        one.ids, one.counts = None, None
                gc.collect()
            return "r"

        def __init__(self, wild):
            self.wild = wild

    outputs[:] = [Output(False) for _ in range(9)]
    processor.process_outputs(outputs, 1.0)
    outputs[:] = [Output(at == 4) for at in range(9)]
    processor.process_outputs(outputs, 1.0)
    assert outputs == []
    assert len(agent.rows("outputs")) == 2


class _Output(SimpleNamespace):
    """A scheduler's output with attributes that are anybody's code."""

    def __setattr__(self, name, value):
        if name == "_gpucorrelate_step":
            self.then()
        super().__setattr__(name, value)

    @property
    def scheduled_spec_decode_tokens(self):
        self.then()
        return {}


def _without(owner, name):
    delattr(owner, name)


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: _without(steps, "open"),
        lambda steps: setattr(steps, "open", []),
        lambda steps: setattr(steps, "open", None),
        lambda steps: _without(steps, "rowsets"),
        lambda steps: setattr(steps, "rowsets", None),
        lambda steps: _without(steps.rowsets, "ids"),
        lambda steps: _without(steps.rowsets, "in_flight"),
        lambda steps: setattr(steps.rowsets, "in_flight", []),
        lambda steps: _without(steps.rowsets, "scheduled"),
        lambda steps: setattr(steps.rowsets, "scheduled", None),
    ],
)
@pytest.mark.parametrize("during", [False, True])
def test_memos_that_change_while_a_step_begins_are_no_crash(agent, change, during):
    made = install(agent)
    agent.started("s")
    batch = Batch({"a": Request("a", 1, 1, 2)})
    core = made.EngineCore(batch, False)
    for last in (False, False, True):
        plan = vars(batch.plan(8)) | {"total_num_scheduled_tokens": 1}
        del plan["scheduled_spec_decode_tokens"]
        core.scheduler.plan = _Output(**plan, then=lambda: None)
        core.scheduler.outputs = {}
        if not last:
            core.step(False)
    steps, changes = core._gpucorrelate_steps, [change]
    if during:
        core.scheduler.plan.then = lambda: changes.pop()(steps) if changes else None
    else:
        change(steps)
    assert core.step(False) is core.scheduler.outputs


def test_ids_that_change_while_they_are_compared_are_no_crash(agent):
    class Id(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            for one in gc.get_objects():
                if type(one) is rowsets.ListRowsets and one.ids:
                    one.ids[:] = ["other"]
            return NotImplemented

    made = install(agent)
    agent.started("s")
    processor = made.OutputProcessor()
    for kind in (Id, str):
        output = SimpleNamespace(request_id=kind(1.5), new_token_ids=[1], finish_reason=None)
        processor.process_outputs([output], 1.0)
        del output  # what was stated alone refers to the id
    assert len(agent.rows("outputs")) == 2


def test_a_result_seen_within_another_gives_back_its_type(agent):
    made = install(agent)
    agent.started("s")
    core = made.EngineCore(Batch(), False)
    core.add_request(None)

    class First:
        pass

    class Second:
        pass

    class Third:
        def __getattr__(self, name):
            sample(Second())
            raise AttributeError(name)

    core.runner.sample_tokens = lambda result: result
    sample = core.model_executor.sample_tokens
    sample(First())
    before = sys.getrefcount(First)
    sample(Third())
    assert sys.getrefcount(First) == before - 1


def test_a_store_keeps_its_columns_and_a_hook_wants_its_own(agent):
    part, drops = agent.part(contract.PART_SERIAL), agent.drops
    store = hot.Store(5, 4, drops)
    with pytest.raises(ValueError, match="made once"):
        hot.Store.__init__(store, 64, 4, drops)
    for columns in (4, 6, 64):
        arguments = ("span", len, len, part, drops, 0, False, hot.Store(columns, 4, drops))
        with pytest.raises(TypeError, match="no hook span"):
            hot._native.Hook(*arguments, None, None, None, None)


def test_a_number_beyond_any_descriptor_is_none():
    with pytest.raises(OSError, match="descriptor"):
        hot.identity((1 << 32) + 1)


def test_the_fast_paths_can_be_left_out():
    code = "from gpucorrelate.probes.agents import hot; print(hot.NATIVE, hot.Store.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"GPUCORRELATE_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "gpucorrelate.probes.agents.hot"]
