# SPDX-License-Identifier: Apache-2.0
"""What the engine counts itself: vLLM's Prometheus metrics, as differences between two looks.

Names are those of vLLM 0.11 to 0.33. Totals since the engine's start say nothing about a
request: only what changed between two looks is of use, and a restart in between makes a
difference unknown, never negative. Parsing is pure and never raises.

The text is read here rather than by ``prometheus_client`` (whose parser the tests compare
with): of 600 lines 25 are wanted, and passing over the others takes a twentieth of the time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from gpucorrelate.probes.host.reading import Metric, Reading
from gpucorrelate.probes.wire.schema import Nature

PPM = 1_000_000

_MOST_VALUES = 4096
_MOST = 2**63 - 1
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]{0,63})="((?:[^"\\\n]|\\.){0,1000})"\s*(?:,\s*|$)')
_SPLIT = re.compile(r"[A-Za-z0-9_]{1,40}")
#: When this process, or a counter of it, began: other after a restart.
_BORN = ("process_start_time_seconds", "vllm:generation_tokens_created")


@dataclass(frozen=True)
class Series:
    """A metric of the engine.

    Attributes:
        metric: What it is.
        names: Its names in the text, newest first; an older one counts only without a newer.
        split: Label whose values are counted apart; empty for none.
        scale: Factor to the metric's unit.
    """

    metric: Metric
    names: tuple[str, ...]
    split: str = ""
    scale: int = 1


def _level(name: str, unit: str, meaning: str) -> Metric:
    return Metric(f"engine.{name}", unit, Nature.LEVEL, meaning)


def _total(name: str, meaning: str) -> Metric:
    return Metric(f"engine.{name}", "count", Nature.TOTAL, meaning)


RUNNING = _level(
    "requests.running",
    "count",
    "Requests in the batch, by the engine's last step; what came and went between two looks is "
    "not seen.",
)
WAITING = _level(
    "requests.waiting",
    "count",
    "Requests that wait to be scheduled, preempted ones included, by the engine's last step.",
)
WAITING_FOR = _level(
    "requests.waiting_for",
    "count",
    "Requests that wait, by reason: capacity, or deferred (LoRA slots, KV transfer).",
)
KV_USAGE = _level(
    "kv_cache.usage",
    "ppm",
    "Share of KV cache blocks that requests hold. Blocks kept only for their prefix count as "
    "free. Near full, requests wait or are preempted.",
)
PREEMPTIONS = _total(
    "preemptions",
    "Requests thrown out of the batch for want of KV cache, once for each time. Their tokens are "
    "computed again, which the engine does not count.",
)
PREFIX_QUERIES = _total("prefix_cache.queries", "Prompt tokens looked up in the prefix cache.")
PREFIX_HITS = _total(
    "prefix_cache.hits", "Prompt tokens found in the prefix cache: not computed again."
)
EXTERNAL_QUERIES = _total(
    "external_prefix_cache.queries", "Prompt tokens looked up in a cache shared by engines."
)
EXTERNAL_HITS = _total(
    "external_prefix_cache.hits", "Prompt tokens found in a cache shared by engines."
)
PROMPT_TOKENS = _total(
    "prompt_tokens",
    "Prompt tokens of requests whose prefill is done, cached ones included: not the work done.",
)
PROMPT_BY_SOURCE = _total(
    "prompt_tokens.by_source", "Prompt tokens by where they came from; local_compute is work."
)
GENERATION_TOKENS = _total("generation_tokens", "Tokens generated, for all requests.")
DRAFTS = _total("spec_decode.drafts", "Times that tokens were guessed ahead.")
DRAFT_TOKENS = _total("spec_decode.draft_tokens", "Tokens guessed ahead.")
ACCEPTED_TOKENS = _total(
    "spec_decode.accepted_tokens", "Tokens guessed ahead that the model agreed with."
)
ACCEPTED_AT = _total(
    "spec_decode.accepted_tokens.at", "Guesses the model agreed with, by how far ahead (from 0)."
)
FINISHED = _total("requests.finished", "Requests that ended, by reason.")

SERIES: tuple[Series, ...] = (
    Series(RUNNING, ("vllm:num_requests_running",)),
    Series(WAITING, ("vllm:num_requests_waiting",)),
    Series(WAITING_FOR, ("vllm:num_requests_waiting_by_reason",), "reason"),
    # 0.11 has both names when it is asked to show what is going to be removed.
    Series(KV_USAGE, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), scale=PPM),
    Series(PREEMPTIONS, ("vllm:num_preemptions_total",)),
    Series(
        PREFIX_QUERIES,
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    ),
    Series(PREFIX_HITS, ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")),
    Series(EXTERNAL_QUERIES, ("vllm:external_prefix_cache_queries_total",)),
    Series(EXTERNAL_HITS, ("vllm:external_prefix_cache_hits_total",)),
    Series(PROMPT_TOKENS, ("vllm:prompt_tokens_total",)),
    Series(PROMPT_BY_SOURCE, ("vllm:prompt_tokens_by_source_total",), "source"),
    Series(GENERATION_TOKENS, ("vllm:generation_tokens_total",)),
    Series(DRAFTS, ("vllm:spec_decode_num_drafts_total",)),
    Series(DRAFT_TOKENS, ("vllm:spec_decode_num_draft_tokens_total",)),
    Series(ACCEPTED_TOKENS, ("vllm:spec_decode_num_accepted_tokens_total",)),
    Series(ACCEPTED_AT, ("vllm:spec_decode_num_accepted_tokens_per_pos_total",), "position"),
    Series(FINISHED, ("vllm:request_success_total",), "finished_reason"),
)
#: Names to ask for.
NAMES = (*(name for series in SERIES for name in series.names), *_BORN)
_BY_NAME = {name: (series, rank) for series in SERIES for rank, name in enumerate(series.names)}


@dataclass(frozen=True)
class EngineValue:
    """A number of one engine behind a server.

    Attributes:
        metric: What it is.
        engine: Its number; more than one with data parallelism.
        value: The number, in the metric's unit.
    """

    metric: Metric
    engine: str
    value: int


@dataclass(frozen=True)
class EngineMetrics:
    """A look at a server's metrics.

    Attributes:
        values: All that is known here, by metric and engine.
        born: When it was started, as far as it says; two looks that differ here are of two
            lives.
        problems: Lines that could not be understood, at most three.
    """

    values: tuple[EngineValue, ...] = ()
    born: float | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineChange:
    """What happened to one engine between two looks; None is unknown.

    Attributes:
        engine: Its number.
        restarted: It was started anew in between, so nothing is known of totals.
        preemptions: Requests thrown out of the batch.
        prompt_tokens: Prompt tokens whose prefill was done.
        generation_tokens: Tokens generated.
        prefix_queries: Prompt tokens looked up in the prefix cache.
        prefix_hits: Of those, found.
        draft_tokens: Tokens guessed ahead.
        accepted_tokens: Of those, accepted.
        running: Requests in the batch, at the first and the second look.
        waiting: Requests that wait, likewise.
        kv_usage_ppm: Share of the KV cache in use, likewise.
    """

    engine: str
    restarted: bool
    preemptions: int | None
    prompt_tokens: int | None
    generation_tokens: int | None
    prefix_queries: int | None
    prefix_hits: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    running: tuple[int | None, int | None]
    waiting: tuple[int | None, int | None]
    kv_usage_ppm: tuple[int | None, int | None]

    @property
    def prefix_hit_ppm(self) -> int | None:
        """Share of the prompt tokens looked up that were found."""
        return _share(self.prefix_hits, self.prefix_queries)

    @property
    def acceptance_ppm(self) -> int | None:
        """Share of the tokens guessed ahead that were accepted."""
        return _share(self.accepted_tokens, self.draft_tokens)


def _share(part: int | None, whole: int | None) -> int | None:
    # Two counters are not read at one instant, so a part may be ahead of its whole.
    if part is None or not whole or part > whole:
        return None
    return part * PPM // whole


@lru_cache(maxsize=256)
def _split_metric(metric: Metric, value: str) -> Metric:
    return Metric(f"{metric.name}.{value}", metric.unit, metric.nature, metric.meaning)


def parse_metrics(text: str) -> EngineMetrics:
    """The numbers in a text of Prometheus, version 0.0.4, or of OpenMetrics."""
    found: dict[tuple[str, str], tuple[int, Metric, int]] = {}
    born: dict[str, float] = {}
    problems: list[str] = []
    for line in text.split("\n"):
        # Most lines are comments, histograms and other processes' numbers: drop those fast.
        if not line.startswith(("vllm:", "process_start")):
            continue
        name = line[: min(_end(line, "{"), _end(line, " "))]
        known = _BY_NAME.get(name)
        if known is None and name not in _BORN:
            continue
        parsed = _parse_line(line, len(name))
        if isinstance(parsed, str):
            problems.append(f"{name}: {parsed}")
            continue
        labels, number = parsed
        if known is None:
            born[name] = max(number, born.get(name, 0.0))
        elif len(found) < _MOST_VALUES:
            problems += _add(found, *known, labels, number)
    values = tuple(
        EngineValue(metric, engine, value) for (_, engine), (_, metric, value) in found.items()
    )
    first = next((born[name] for name in _BORN if name in born), None)
    return EngineMetrics(values, first, tuple(problems[:3]))


def _end(line: str, mark: str) -> int:
    at = line.find(mark)
    return len(line) if at < 0 else at


def _parse_line(line: str, at: int) -> tuple[dict[str, str], float] | str:
    """Labels and number after a name; the reason where there are none."""
    labels: dict[str, str] = {}
    if line[at : at + 1] == "{":
        at += 1
        while (match := _LABEL.match(line, at, _label_end(line))) is not None:
            labels[match[1]] = match[2]
            at = match.end()
        if line[at : at + 1] != "}":
            return f"its labels cannot be read: {line[:80]!r}"
        at += 1
    words = line[at:].split()
    # A time may follow; it is the exporter's and not needed.
    if not words or len(words) > 2 or not _NUMBER.fullmatch(words[0]):
        return f"no number: {line[:80]!r}"
    return labels, float(words[0])


def _label_end(line: str) -> int:
    at = line.rfind("}")
    return at if at >= 0 else len(line)


def _add(
    found: dict[tuple[str, str], tuple[int, Metric, int]],
    series: Series,
    rank: int,
    labels: dict[str, str],
    number: float,
) -> tuple[str, ...]:
    scaled = number * series.scale
    if not math.isfinite(scaled) or abs(scaled) > _MOST:
        return (f"{series.names[rank]}: {number} is out of range",)
    value, metric = round(scaled), series.metric
    if series.split:
        part = labels.get(series.split, "")
        if not _SPLIT.fullmatch(part):
            return (f"{series.names[rank]}: {series.split}={part[:40]!r} is no name",)
        metric = _split_metric(metric, part)
    key = metric.name, labels.get("engine", "0")[:40]
    old = found.get(key)
    if old is not None and old[0] == rank:
        # Several models or API servers of one engine. Shares do not add up.
        value = max(old[2], value) if metric.unit == "ppm" else old[2] + value
    if old is None or rank <= old[0]:
        found[key] = rank, metric, value
    return ()


def engine_readings(name: str, metrics: EngineMetrics, t_ns: int) -> tuple[Reading, ...]:
    """The numbers as readings, of ``engine:<name>/<its number>``."""
    return tuple(
        Reading(item.metric, f"engine:{name}/{item.engine}", item.value, t_ns)
        for item in metrics.values
    )


def changes(before: EngineMetrics, after: EngineMetrics) -> tuple[EngineChange, ...]:
    """What happened to every engine that both looks know."""
    engines = {item.engine for item in before.values} & {item.engine for item in after.values}
    known = before.born is not None and after.born is not None
    restarted = known and before.born != after.born
    return tuple(_change(engine, before, after, restarted) for engine in sorted(engines))


def _change(
    engine: str,
    before: EngineMetrics,
    after: EngineMetrics,
    restarted: bool,  # noqa: FBT001 - private
) -> EngineChange:
    old = {item.metric.name: item.value for item in before.values if item.engine == engine}
    new = {item.metric.name: item.value for item in after.values if item.engine == engine}
    # Where nothing says when it was born, a counter that fell gives the restart away.
    fell = any(
        item.metric.nature is Nature.TOTAL and item.value < old.get(item.metric.name, 0)
        for item in after.values
        if item.engine == engine
    )

    def more(metric: Metric) -> int | None:
        first, last = old.get(metric.name), new.get(metric.name)
        if restarted or fell or first is None or last is None:
            return None
        return last - first

    def both(metric: Metric) -> tuple[int | None, int | None]:
        return old.get(metric.name), new.get(metric.name)

    return EngineChange(
        engine=engine,
        restarted=restarted or fell,
        preemptions=more(PREEMPTIONS),
        prompt_tokens=more(PROMPT_TOKENS),
        generation_tokens=more(GENERATION_TOKENS),
        prefix_queries=more(PREFIX_QUERIES),
        prefix_hits=more(PREFIX_HITS),
        draft_tokens=more(DRAFT_TOKENS),
        accepted_tokens=more(ACCEPTED_TOKENS),
        running=both(RUNNING),
        waiting=both(WAITING),
        kv_usage_ppm=both(KV_USAGE),
    )
