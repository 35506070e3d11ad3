# SPDX-License-Identifier: Apache-2.0
"""The compiled scanner reads what the decoder reads: same rows, same problems, same errors."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucorrelate.probes.importers import events, jsontext, native
from gpucorrelate.probes.importers.kineto import read_kineto
from gpucorrelate.probes.importers.rows import StepMatcher
from gpucorrelate.probes.wire.errors import TraceError
from tests.unit.profile_rows import tables_of

HERE = Path(__file__).parent
SOURCES = Path(native.__file__).parent
PHASES = ['"X"'], ['"i"', '"XX"', '"\\u0058"', "null", "5"]
CATEGORIES = (
    [
        '"kernel"', '"Kernel"', '"gpu_memcpy"', '"MEMSET"', '"cuda_runtime"', '"hip_driver"',
        '"cuda_sync"', '"Cuda_Sync"', '"user_annotation"', '"cpu_op"',
    ],
    ['"\u212aernel"', '"kern\\u0065l"', "null", "7", '["kernel"]', '""'],
)  # fmt: skip
NAMES = (
    [
        '"k"', '"cudaLaunchKernel"', '"ProfilerStep#3"', '"Memcpy HtoD (Pinned -> Device)"',
        '"\u00e9"', '"Stream Sync"', '""',
    ],
    ["null", "5", '"a\\n"', '"\\ud800"', '"\\ud83d\\ude00"', f'"{"x" * 17_000}"', "[1]"],
)  # fmt: skip
INTEGERS = ["0", "7", "42", "-1", '"stream 7"', "4294967295", "18446744073709551615"]
ODD_INTEGERS = [
    "-0", "4294967296", "18446744073709551616", "-9223372036854775808", "-9223372036854775809",
    "9" * 50, "7.0", "1e3", "1e99", '"0x1f"', '"007"', '"7 "', '"stream -1"', '"\u0663"', '"x"',
    '"\\u0037"', '"\u00e9 5"', '""', "null", "true", "[]", "{}",
]  # fmt: skip
MOMENTS = ["0", "1000", "1669783687464181", "1000.001", "5.25", "5.0005", "5.0015", "6.123456789"]
ODD_MOMENTS = [
    "6.1234567891", "5.000500001", "9223372036854775.807", "9223372036854776", "9000000000000001",
    "8999999999999999.9996", "-1", "-0", "1.5e3", "1E-3", '"5"', "null", "[]", "1e400",
]  # fmt: skip
DETAILS = [
    "device", "context", "stream", "correlation", "graph id", "graph node id", "bytes",
    "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id", "wait_on_stream", "External id",
    "strea\\u006d", "cuda_sync_kind",
]  # fmt: skip
SYNCS = (
    ['"Event Sync"', '"Stream Sync"', '"CONTEXT SYNC"', '"Stream Wait Event"', '"other"'],
    ['"Strea\\u006d Sync"', '"\u212a"', "null", "3", "[]"],
)
VALUES = [
    '"\u00e9"', '{"x": {"y": [[[]], "]"]}}', "-0.1e5", '"\\\\"', '" }, { "',
    '{"cat":"kernel","ph":"X"}', '"\\ud800"',
]  # fmt: skip
#: Deeper than the scanner counts: what stands beside it is left to the decoder too.
DEEP = "[" * 70 + "]" * 70
SPOILING = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"e", b"\n", b"\x1f", b"\x80"]
KEYS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]


class Documents:
    """Documents drawn by chance: a share of their values is odd, from none to half of all."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._odd = self._random.choice([0, 0.02, 0.1, 0.5])

    def document(self):
        one_of = self._random.choice
        count = one_of([1, 2, 5, 20])
        listed = f",{self._space()}".join(self._element() for _ in range(count))
        before = one_of(["", '"baseTimeNanoseconds": 17, ', '"a": [{}, {}], '])
        after = one_of(["", ', "distributedInfo": {"rank": 3}'])
        return f'{{{before}"traceEvents" : [{listed}]{after}}}'.encode()

    def spoilt(self):
        text, draw = self.document(), self._random
        for _ in range(draw.choice([1, 1, 2, 5])):
            at, gone = draw.randrange(len(text) + 1), draw.choice([0, 0, 1, 1, 3, 20])
            instead = draw.choice([b"", draw.randbytes(1), *SPOILING])
            text = text[:at] + instead + text[at + gone :] or b"["
        return text[: draw.randrange(1, len(text) + 1)] if draw.random() < 0.2 else text

    def block_bytes(self):
        return self._random.choice([1, 17, 100, 1000, 192 << 10, 192 << 10])

    def _space(self):
        return self._random.choice(["", "", " ", "\n  "])

    def _some(self, plain, odd):
        return self._random.choice(odd if self._random.random() < self._odd else plain)

    def _object(self, members):
        space = self._space()
        return "{" + ",".join(f'{space}"{k}":{space}{v}{space}' for k, v in members) + "}"

    def _element(self):
        if self._random.random() < self._odd / 10:
            return self._random.choice([*VALUES, DEEP])
        integers, moments = (INTEGERS, ODD_INTEGERS), (MOMENTS, ODD_MOMENTS)
        args = [
            (key, self._some(*(SYNCS if key == "cuda_sync_kind" else integers)))
            for key in self._random.sample(DETAILS, self._random.randrange(len(DETAILS)))
        ]
        choices = [PHASES, CATEGORIES, NAMES, integers, integers, moments, moments]
        values = [*(self._some(*each) for each in choices), self._object(args)]
        members = list(zip(KEYS, values, strict=True))
        if self._random.random() < self._odd:
            members.append(
                (self._random.choice([*KEYS, "na\\u006de"]), self._random.choice(VALUES))
            )
        if self._random.random() < self._odd:
            del members[self._random.randrange(len(members))]
        if self._random.random() < 0.3:
            self._random.shuffle(members)
        return self._object(members)


def outcome(path, block_bytes, scanner):
    """Everything that is read of a file, or the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "_BLOCK_BYTES", block_bytes)
        patch.setattr(events, "scanner", scanner)
        try:
            trace = read_kineto(path, StepMatcher("k|Step"))
        except TraceError as exc:
            return exc.message
    (process,) = trace.processes
    ours = (process.pid, process.rank, process.ranges, sorted(process.texts))
    # How far it was read when a letter is found that is none differs.
    return tables_of(process), ours, sorted(trace.problems.lines()), trace.facts


def assert_alike(path, block_bytes=192 << 10):
    """The scanner and the decoder alone say the same of a file."""
    assert events.scanner() is not None, "the importers' C part is not built: make native"
    alone = outcome(path, block_bytes, lambda: None)
    assert outcome(path, block_bytes, events.scanner) == alone
    return alone


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32))
def test_any_document_is_read_as_the_decoder_reads_it(tmp_path_factory, seed):
    drawn = Documents(seed)
    path = tmp_path_factory.mktemp("any") / "t.json"
    path.write_bytes(drawn.document())
    assert_alike(path, drawn.block_bytes())


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32))
def test_what_is_wrong_is_told_as_the_decoder_tells_it(tmp_path_factory, seed):
    drawn = Documents(seed)
    path = tmp_path_factory.mktemp("spoilt") / "t.json"
    path.write_bytes(drawn.spoilt())
    assert_alike(path, drawn.block_bytes())


def _whole(category):
    """An event that has all that is used of any, and nothing that is odd."""
    args = {key: "7" for key in DETAILS if "\\" not in key} | {"cuda_sync_kind": '"Event Sync"'}
    values = ['"X"', category, '"k"', "9", "7", "1000.5", "2.25", args]
    return dict(zip(KEYS, values, strict=True))


def _text(event):
    args = ",".join(f'"{key}":{value}' for key, value in event["args"].items())
    return "{" + ",".join(f'"{k}":{v}' for k, v in (event | {"args": f"{{{args}}}"}).items()) + "}"


def _variants(category):
    """The whole event with each value replaced, missing or there twice, one at a time."""
    yield _text(_whole(category))
    values = {"ph": PHASES, "cat": CATEGORIES, "name": NAMES, "ts": (MOMENTS, ODD_MOMENTS)}
    values |= {"dur": values["ts"], "cuda_sync_kind": SYNCS}
    for place in ("", "args"):
        whole = _whole(category)
        for key in whole["args"] if place else KEYS[:-1]:
            plain, odd = values.get(key, (INTEGERS, ODD_INTEGERS))
            for value in (*plain, *odd, *VALUES):
                event = _whole(category)
                (event[place] if place else event)[key] = value
                yield _text(event)
            event = _whole(category)
            there = event[place] if place else event
            other = '"twice"' if key in ("ph", "cat") else "3"
            for first, last in ((there[key], other), (other, there[key])):
                twice = f'"{key}":{first},"{key}":{last}'
                yield _text(event).replace(f'"{key}":{there[key]}', twice)
            del there[key]
            yield _text(event)
    yield from (_text(_whole(category))[:-1] + f',"args":{value}}}' for value in VALUES)
    yield from (_text(_whole(category) | {"args": {}}).replace("{}", value) for value in VALUES)


@pytest.mark.parametrize("category", CATEGORIES[0])
def test_each_oddity_alone_is_read_as_the_decoder_reads_it(tmp_path, category):
    path = tmp_path / "t.json"
    path.write_text(f"[{', '.join(_variants(category))}]")
    tables, *_ = assert_alike(path)
    assert sum(len(table[0]) for table in tables) > 200 or category in CATEGORIES[0][-2:]


@pytest.mark.parametrize(
    "text",
    [
        "[{}, {},]", "[{} {}]", "[{}, {}}", "[{}, {}]]", "[{}, {}", "[{}, {},", "[{},, {}]",
        "[,{}]",
        '[{}, {"a" 1}]', '[{}, {"a": 1,}]', '[{}, {"a": 1 "b": 2}]', "[{}, {,}]", "[{}, {1: 2}]",
        '[{}, {"a": 01}, {}]', '[{}, {"a": 1.}]', '[{}, {"a": .5}]', '[{}, {"a": 1e}]',
        '[{}, {"a": +1}]', '[{}, {"a": -}]', '[{}, {"a": nul}]', '[{}, {"a": True}]',
        '[{}, {"a": "\\x"}]', '[{}, {"a": "\\u12g4"}]', '[{}, {"a": "\\u12"}]', '[{}, {"a": [1}]',
        '[{}, {"a": {"b": [}]}]', '[{}, {"a": [1,]}]', '[{}, {"a": "b}]', '[{}, "a" "b"]',
        *(f'[{{}}, {{"a": "x{chr(code)}y", "b": "{"z" * 40}"}}]' for code in range(32)),
        *(f'[{{}}, {{"a": "{"z" * 40}{chr(code)}"}}]' for code in (0, 15, 16, 30, 31)),
    ],
)  # fmt: skip
def test_each_error_alone_is_told_as_the_decoder_tells_it(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    told = assert_alike(path)
    assert isinstance(told, str) or told[2]


def _plain(count):
    kernel = (
        '{{"ph": "X", "cat": "kernel", "name": "k{0}", "pid": 0, "tid": 7, "ts": {0}.5, "dur": 2, '
        '"args": {{"device": 0, "stream": 7, "correlation": {0}}}}}'
    )
    call = kernel.replace("kernel", "cuda_runtime").replace("k{0}", "cudaLaunchKernel")
    step = kernel.replace("kernel", "user_annotation").replace("k{0}", "ProfilerStep#{0}")
    other = kernel.replace("kernel", "cpu_op")
    return [each.format(i) for i in range(1, count) for each in (call, kernel, step, other)]


def test_plain_events_are_not_left_to_the_decoder():
    text = f"[{', '.join(_plain(500))}]".encode()
    scanner = events.scanner()
    assert scanner is not None
    passed = scanner.scan(text, 1, 0)
    assert (passed.count, passed.end, passed.odd) == (4 * 499, len(text) - 1, [])
    tables, names = scanner.take()
    assert [len(rows) for rows in tables] == [499, 499, 0, 499]
    assert tables[events.OPS]["place"].tolist() == list(range(1, 4 * 499, 4))
    assert [names[i] for i in tables[events.OPS]["name"]] == [f"k{i}" for i in range(1, 500)]


def test_rows_of_both_ways_are_in_the_order_of_the_file(tmp_path):
    path = tmp_path / "t.json"
    listed = _plain(6000)
    for i in range(0, len(listed), 11):
        listed[i] = listed[i].replace('"name": "', '"name": "\\t')
    path.write_text(f"[{','.join(listed)}]")
    (ops, calls, _), (pid, _, ranges, _), problems, _ = assert_alike(path)
    assert ops[6] == calls[4] == list(range(1, 6000))
    assert [one.start_ns for one in ranges] == [1000 * i + 500 for i in range(1, 6000)]
    assert (pid, problems) == (0, [])


@pytest.mark.parametrize(
    ("count", "letters"), [(40_000, 1), (2500, 9000)], ids=["many names", "long names"]
)
def test_more_names_than_have_room_are_read(tmp_path, count, letters):
    path = tmp_path / "t.json"
    events_of_it = (
        f'{{"ph":"X","cat":"kernel","name":"{"n" * letters}{i}","ts":1,"dur":1}}'
        for i in range(count)
    )
    path.write_text(f"[{','.join(events_of_it)}]")
    (ops, _, _), *_ = assert_alike(path)
    assert ops[5] == [f"{'n' * letters}{i}" for i in range(count)]


@pytest.mark.parametrize("depth", [10, 60, 63, 64, 65, 66, 90])
def test_however_deeply_values_are_nested_there_is_one_answer(tmp_path, depth):
    path = tmp_path / "t.json"
    deep = "[{" + '"a":[{' * (depth // 2) + "}]" * (depth // 2) + "}]"
    kernel = '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{"x":' + deep + "}}"
    path.write_text(f"[{kernel}, {deep}, {kernel}]")
    (ops, _, _), _, problems, _ = assert_alike(path)
    assert len(ops[0]) == 2
    assert problems == [("elements that are no events at traceEvents[1]", 1)]


def test_without_the_compiled_part_the_decoder_reads_alone(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text(f"[{','.join(_plain(3))}]")
    expected = assert_alike(path)
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "none.so")
    native.library.cache_clear()
    try:
        assert events.scanner() is None
        with pytest.raises(OSError, match="does not load"):
            native.EventScanner([], [])
        assert outcome(path, 192 << 10, events.scanner) == expected
    finally:
        native.library.cache_clear()


def test_hostile_bytes_are_not_read_beyond_their_end(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path / "hostile"
    flags = ["-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run(
        [compiler, *flags, f"-I{SOURCES}", "-o", program, HERE / "scan_hostile.c",
         SOURCES / "names.c"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "cannot find" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    documents = []
    for seed in range(40):
        documents.append(tmp_path / f"{seed}.json")
        text = Documents(seed).document()
        documents[-1].write_bytes(text[text.index(b"[") + 1 :])
    ran = subprocess.run(
        [program, "7", "20000", *documents], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
