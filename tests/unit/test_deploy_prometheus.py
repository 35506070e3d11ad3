# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the rules in ``deploy``: every metric and label in them is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucorrelate.daemon.live import Done, LiveUpdate
from gpucorrelate.daemon.metrics_text import Requests, ServedCounts, encode
from gpucorrelate.daemon.request_sums import Counting
from tests.unit.test_live import at_once
from tests.unit.test_request_sums import OPEN, counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.daemon_kit import Yard

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy/grafana/gpucorrelate.json"
RULES = ROOT / "deploy/prometheus/rules.yml"
SCRAPE = ROOT / "deploy/prometheus/scrape.yml"
#: Labels that Prometheus adds, and those of the rules' own results.
_ADDED = {"job", "instance", "le"}
_NAME = re.compile(r"\b(?:model(?:_category)?:)?gpucorrelate_[a-z0-9_]+(?::\w+)?")


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every sample's name and the labels that it may have, of a daemon that counts requests."""
    from tests.truth.synthetic.check import simulate
    from tests.truth.synthetic.options import Options
    from tests.unit.daemon_kit import Yard as Made

    recording = simulate(Options(requests=6))[1]
    reports = tuple(at_once(recording).values())
    counting = Counting()
    done = tuple(Done(r.request_id, r.internal_id, r.arrival_ns, r.end_ns) for r in reports)
    counting.take(LiveUpdate("s", 1, "tiny", done=done, finished=reports))
    with Made() as yard:
        status = yard.daemon().start().client.status()
    requests = Requests(counted(counting), 1, exemplars=True)
    found: dict[str, set[str]] = {}
    for accept in ("text/plain", OPEN):
        text = encode(status, ServedCounts(), accept, requests)[0].decode()
        if accept != "text/plain":
            assert "request_id=" in text
            continue
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                found.setdefault(one.name, set()).update(one.labels)
    return found


def panels() -> Iterator[dict[str, Any]]:
    yield from json.loads(DASHBOARD.read_text("utf-8"))["panels"]


def dashboard_queries() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    variables = json.loads(DASHBOARD.read_text("utf-8"))["templating"]["list"]
    return found + [one["definition"] for one in variables if one["type"] == "query"]


def rules() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="the extra 'docs' is not installed")
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check(query: str, exposed: dict[str, set[str]]) -> None:
    names = _NAME.findall(query)
    assert names, query
    for name in names:
        assert name in exposed, f"{name}, in {query}"
        for labels in re.findall(re.escape(name) + r"\{([^}]*)\}", query):
            for label in re.findall(r"(\w+)\s*[=!]~?", labels):
                assert label in exposed[name] | _ADDED, f"{label} of {name}, in {query}"
    known = set().union(*(exposed[name] for name in names)) | _ADDED
    for labels in re.findall(r"\b(?:by|on|ignoring) \(([^)]*)\)", query):
        assert set(labels.replace(" ", "").split(",")) <= known, query


def test_every_metric_of_the_dashboard_is_one_that_there_is(exposed: dict[str, set[str]]) -> None:
    queries = dashboard_queries()
    assert len(queries) > 20
    for query in queries:
        check(query, exposed)


def test_a_metric_or_label_that_is_none_is_found(exposed: dict[str, set[str]]) -> None:
    for wrong in (
        "gpucorrelate_lost_totals",
        'gpucorrelate_lost_total{hops="x"}',
        "sum by (phase) (gpucorrelate_lost_total)",
    ):
        with pytest.raises(AssertionError):
            check(wrong, exposed)


def test_the_dashboard_is_whole() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    assert board["uid"] == "gpucorrelate"
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
    variables = {one["name"] for one in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text("utf-8")))
    assert used - {"__rate_interval", "__all"} <= variables


def test_every_metric_of_the_rules_is_one_that_there_is(exposed: dict[str, set[str]]) -> None:
    known = dict(exposed)
    for rule in rules():
        if "record" in rule:
            known[rule["record"]] = {"model", "category"}
    for rule in rules():
        check(rule["expr"], known)
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}
            assert {"summary", "description"} <= set(rule["annotations"])


_PROMTOOL = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")


def promtool(*args: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(
        ["promtool", *args], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@_PROMTOOL
def test_prometheus_takes_the_rules_and_the_scrape_config() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", "--syntax-only", str(SCRAPE))


@_PROMTOOL
def test_the_alerts_come_when_they_should_and_not_before(tmp_path: Path) -> None:
    """Series made up for it; Prometheus itself says which alerts there are."""
    (rule,) = (one for one in rules() if one.get("alert") == "RequestsWaitForACpu")
    why = rule["annotations"]["description"]
    (tmp_path / "test.yml").write_text(f"""
rule_files: ["{RULES}"]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: gpucorrelate_request_path_seconds_sum{{model="a",category="cpu"}}
        values: "0+6x30"
      - series: gpucorrelate_request_path_seconds_sum{{model="a",category="preempted"}}
        values: "0+4x30"
      - series: gpucorrelate_request_path_seconds_sum{{model="b",category="cpu"}}
        values: "0+9x30"
      - series: gpucorrelate_request_path_seconds_sum{{model="b",category="preempted"}}
        values: "0+1x30"
      - series: gpucorrelate_lost_total{{hop="bpf.ring"}}
        values: "0x10 5x20"
      - series: gpucorrelate_turn_age_seconds
        values: "0x30"
    alert_rule_test:
      - {{alertname: RequestsWaitForACpu, eval_time: 5m, exp_alerts: []}}
      - alertname: RequestsWaitForACpu
        eval_time: 25m
        exp_alerts:
          - exp_labels: {{severity: warning, model: a}}
            exp_annotations:
              summary: "a: 40% of requests' time no CPU was free for them"
              description: {json.dumps(why)}
      - {{alertname: TraceStandsStill, eval_time: 25m, exp_alerts: []}}
      - {{alertname: TraceLost, eval_time: 5m, exp_alerts: []}}
""")
    promtool("test", "rules", str(tmp_path / "test.yml"))


@_PROMTOOL
def test_a_real_scrape_is_what_prometheus_takes(yard: Yard) -> None:
    import socket

    from tests.unit.test_daemon_metrics import get, served

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    served(yard, port)
    found = subprocess.run(
        ["promtool", "check", "metrics"], input=get(port)[1], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
