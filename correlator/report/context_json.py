# SPDX-License-Identifier: Apache-2.0
"""The host meanwhile as plain values, in full: what text leaves out for being of no matter too."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucorrelate.correlator.report.context_values import (
        Context,
        ContextLevel,
        ContextNumber,
        ContextQuota,
        HostReport,
    )

Json = dict[str, Any]


def context_to_dict(context: Context | None) -> Json | None:
    """The host in a window; ``None`` where it was not read."""
    if context is None:
        return None
    return {
        "start_ns": context.start_ns,
        "end_ns": context.end_ns,
        "numbers": [_number(one) for one in context.numbers],
        "changes": [
            {
                "t_ns": one.t_ns,
                "since_ns": one.since_ns,
                "subject": one.subject,
                "who": one.who or None,
                "concerns": one.concerns,
                "what": one.what,
                "before": one.before or None,
                "after": one.after or None,
            }
            for one in context.changes
        ],
        "states": [
            {
                "t_ns": one.t_ns,
                "subject": one.subject,
                "who": one.who or None,
                "concerns": one.concerns,
                "what": one.what,
                "value": one.value,
                "note": one.note or None,
            }
            for one in context.states
        ],
        "levels": [_level(one) for one in context.levels],
        "quotas": [_quota(one) for one in context.quotas],
        "missing": list(context.missing),
    }


def _number(one: ContextNumber) -> Json:
    return {
        "metric": one.metric,
        "subject": one.subject,
        "who": one.who or None,
        "concerns": one.concerns,
        "unit": one.unit or None,
        "nature": one.nature,
        "meaning": one.meaning or None,
        "before": one.before,
        "after": one.after,
        "since_ns": one.since_ns,
        "until_ns": one.until_ns,
        "note": one.note or None,
        "least_ppm": one.least_ppm,
    }


def _level(one: ContextLevel) -> Json:
    return {
        "metric": one.metric,
        "subject": one.subject,
        "unit": one.unit or None,
        "nature": one.nature,
        "meaning": one.meaning or None,
        "least": one.least,
        "mean": one.mean,
        "most": one.most,
        "readings": one.readings,
    }


def _quota(one: ContextQuota) -> Json:
    return {
        "cgroup": one.cgroup or None,
        "path_ns": one.path_ns,
        "counted_ns": one.counted_ns,
        "since_ns": one.since_ns,
        "until_ns": one.until_ns,
        "periods": one.periods,
        "throttled_periods": one.throttled_periods,
        "quota_ns": one.quota_ns,
        "period_ns": one.period_ns,
        "contradicts": one.contradicts,
    }


def host_to_dict(host: HostReport | None) -> Json | None:
    """The host during a whole recording; ``None`` where it was not read."""
    if host is None:
        return None
    return {
        "context": context_to_dict(host.context),
        "memory": [asdict(one) for one in host.memory],
        "kills": [asdict(one) for one in host.kills],
        "unseen": list(host.unseen),
        "roles": [
            asdict(one) | {"role": one.role or None, "role_by": one.role_by or None}
            for one in host.roles
        ],
    }
