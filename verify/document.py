# SPDX-License-Identifier: Apache-2.0
"""A run as JSON: times in integer nanoseconds, shares not rounded, ``null`` for unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gpucorrelate
from gpucorrelate.verify import score as scores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucorrelate.verify.run import Report, Result
    from gpucorrelate.verify.score import Score

SCHEMA = "gpucorrelate.verify.v1"

#: What all must reach together, and each alone.
TARGETS: Mapping[str, float] = {
    "category_share": scores.CATEGORY_TARGET,
    "culprit_share": scores.CULPRIT_TARGET,
    "least_share": scores.LEAST_TARGET,
    "false_share": scores.FALSE_TARGET,
    "boundary_p95_ns": scores.BOUNDARY_TARGET_NS,
}


def document(report: Report) -> dict[str, Any]:
    """The whole run as one document."""
    return {
        "schema": SCHEMA,
        "version": gpucorrelate.__version__,
        "passed": report.passed,
        "targets": dict(TARGETS),
        "capabilities": [
            {"source": one.source, "state": one.state.name.lower(), "reason": one.reason}
            for one in report.capabilities
        ],
        "scenarios": [_scenario(result) for result in report.results if result.score is not None],
        "total": {**_score(report.total), "within_targets": report.total.within_targets},
        "not_played": [_not_played(result) for result in report.results if result.score is None],
    }


def _scenario(result: Result) -> dict[str, Any]:
    assert result.score is not None
    head = {"name": result.name, "cause": result.cause, "attributable": result.attributable}
    return {**head, **_score(result.score)}


def _not_played(result: Result) -> dict[str, Any]:
    reason = result.impossible or result.failed
    failed = bool(result.failed)
    return {"name": result.name, "cause": result.cause, "failed": failed, "reason": reason}


def _score(score: Score) -> dict[str, Any]:
    return {
        "operations": score.operations,
        "controls": score.controls,
        "injections": score.injections,
        "injected_ns": score.injected_ns,
        "category_share": score.category_share,
        "culprit_share": score.culprit_share,
        "unknown_share": score.unknown_share,
        "false_share": score.false_share,
        "limited_ns": score.limited_ns,
        "spill_share": score.spill_share,
        "boundary_median_ns": score.boundary_ns(0.5),
        "boundary_p95_ns": score.boundary_ns(0.95),
        "confusion": [
            {"expected": expected.split("|"), "found": str(found), "ns": length_ns}
            for expected, found, length_ns in score.confusion
        ],
    }
