# SPDX-License-Identifier: Apache-2.0
"""What the engine counts itself: vLLM's Prometheus metrics.

Names are those of vLLM 0.11 to 0.33. Totals since the engine's start say nothing about a
request: only what changed between two looks is of use. Parsing is pure and never raises.

The text is read here rather than by ``prometheus_client`` (whose parser the tests compare
with): of 600 lines 25 are wanted, and passing over the others takes a twentieth of the time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from gpucorrelate.probes.host.reading import Family, Metric, Reading

PPM = 1_000_000

_MOST_VALUES = 4096
_MOST = 2**63 - 1
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]{0,63})="((?:[^"\\\n]|\\.){0,1000})"\s*(?:,\s*|$)')
_SPLIT = re.compile(r"[A-Za-z0-9_]{1,40}")


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


_OF = Family("engine.")
_level, _total = _OF.level, _OF.total

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
    "count",
    "Requests thrown out of the batch for want of KV cache, once for each time. Their tokens are "
    "computed again, which the engine does not count.",
)
PREFIX_QUERIES = _total(
    "prefix_cache.queries", "count", "Prompt tokens looked up in the prefix cache."
)
PREFIX_HITS = _total(
    "prefix_cache.hits", "count", "Prompt tokens found in the prefix cache: not computed again."
)
EXTERNAL_QUERIES = _total(
    "external_prefix_cache.queries",
    "count",
    "Prompt tokens looked up in a cache shared by engines.",
)
EXTERNAL_HITS = _total(
    "external_prefix_cache.hits", "count", "Prompt tokens found in a cache shared by engines."
)
PROMPT_TOKENS = _total(
    "prompt_tokens",
    "count",
    "Prompt tokens of requests whose prefill is done, cached ones included: not the work done.",
)
PROMPT_BY_SOURCE = _total(
    "prompt_tokens.by_source",
    "count",
    "Prompt tokens by where they came from; local_compute is work.",
)
GENERATION_TOKENS = _total("generation_tokens", "count", "Tokens generated, for all requests.")
DRAFTS = _total("spec_decode.drafts", "count", "Times that tokens were guessed ahead.")
DRAFT_TOKENS = _total("spec_decode.draft_tokens", "count", "Tokens guessed ahead.")
ACCEPTED_TOKENS = _total(
    "spec_decode.accepted_tokens", "count", "Tokens guessed ahead that the model agreed with."
)
ACCEPTED_AT = _total(
    "spec_decode.accepted_tokens.at",
    "count",
    "Guesses the model agreed with, by how far ahead (from 0).",
)
FINISHED = _total("requests.finished", "count", "Requests that ended, by reason.")

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
NAMES = tuple(name for series in SERIES for name in series.names)
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
        problems: Lines that could not be understood, at most three.
    """

    values: tuple[EngineValue, ...] = ()
    problems: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def _split_metric(metric: Metric, value: str) -> Metric:
    return Metric(f"{metric.name}.{value}", metric.unit, metric.nature, metric.meaning)


def parse_metrics(text: str) -> EngineMetrics:
    """The numbers in a text of Prometheus, version 0.0.4, or of OpenMetrics."""
    found: dict[tuple[str, str], tuple[int, Metric, int]] = {}
    problems: list[str] = []
    for line in text.split("\n"):
        # Most lines are comments, histograms and other processes' numbers: drop those fast.
        if not line.startswith("vllm:"):
            continue
        name = line[: min(_end(line, "{"), _end(line, " "))]
        known = _BY_NAME.get(name)
        if known is None:
            continue
        parsed = _parse_line(line, len(name))
        if isinstance(parsed, str):
            problems.append(f"{name}: {parsed}")
            continue
        labels, number = parsed
        if len(found) < _MOST_VALUES:
            problems += _add(found, *known, labels, number)
    values = tuple(
        EngineValue(metric, engine, value) for (_, engine), (_, metric, value) in found.items()
    )
    return EngineMetrics(values, tuple(problems[:3]))


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
