# SPDX-License-Identifier: Apache-2.0
"""What the host did meanwhile, as text: of a request or a step, and of a whole recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucorrelate.correlator import context_rules as rules
from gpucorrelate.correlator.report import units
from gpucorrelate.correlator.report.page import BAD
from gpucorrelate.probes.wire.roles import ROLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpucorrelate.correlator.report.context_values import (
        Context,
        ContextChange,
        ContextLevel,
        ContextNumber,
        ContextQuota,
        ContextState,
        HostReport,
        KillPhase,
        RoleShare,
    )
    from gpucorrelate.correlator.report.page import Page

#: Threads of one role that are named, and roles of a whole recording.
_NAMED, _ROLES = 3, 6
_PERCENT = 10_000  # millionths
#: A driver averages over up to this long; what is shorter is not seen in its figures.
_DRIVER_NS = 1_000_000_000
#: States come behind what was lost, and before mere changes.
_STATE_RANK, _BLOCKED_RANK, _CHANGE_RANK = 100, 101, 102
_PRESSURE = (("cpu", "a CPU"), ("memory", "memory"), ("io", "a disk"))

#: Rank, what it is, of whom with figures.
_Said = tuple[int, str, list[str]]


def context(page: Page, found: Context | None) -> None:
    """What of the host meanwhile is worth a word; silent without any."""
    if found is None:
        return
    quotas(page, found.quotas)
    gpus(page, found)
    notes(page, found, found.window_ns)
    roles(page, found)


def threads(page: Page, found: Sequence[RoleShare]) -> None:
    """CPU time of threads by what they are there for."""
    said = []
    for one in found[: max(_ROLES, page.options.top)]:
        count = f"{one.threads} threads" if one.threads > 1 else ""
        guess = f"guessed by {one.role_by}" if one.role_by in ("name", "behaviour") else ""
        more = ", ".join(filter(None, (count, guess)))
        name = (one.role or "no known role") + (f" ({more})" if more else "")
        said.append(f"{name} {units.share(one.cpu_ns, one.length_ns)}")
    if len(found) > len(said):
        said.append(f"{len(found) - len(said)} more roles (--top)")
    if said:
        page.worded("threads", f"of one CPU: {', '.join(said)}")


def roles(page: Page, found: Context) -> None:
    """What threads seem to be there for of which their own process does not say it."""
    said: dict[str, list[str]] = {}
    for one in found.states:
        if one.what == ROLE and one.concerns:
            said.setdefault(one.value, []).append(one.who or one.subject)
    parts = []
    for role, whose in said.items():
        names = sorted(set(whose))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        parts.append(f"{role}: {', '.join(names[:_NAMED])}{more}")
    if parts:
        page.worded("roles", "; ".join(sorted(parts)))


def notes(page: Page, found: Context, window_ns: int, but: Sequence[str] = ()) -> None:
    """Numbers, states and changes that are worth a word, as many as the page shows.

    Args:
        page: Where to write.
        found: The host.
        window_ns: Length of the window, for readings that speak of more.
        but: Metrics and states that are told elsewhere.
    """
    groups: dict[str, _Said] = {}
    for rank, what, whose in (
        *_numbers(found.numbers, window_ns, (rules.THROTTLED, *but)),
        *_states(found.states, but),
        *_changes(found.changes),
    ):
        groups.setdefault(what, (rank, what, []))[2].append(whose)
    ordered = sorted(groups.values(), key=lambda said: said[0])
    top = page.options.top
    lines = []
    for _, what, all_of_it in ordered[:top]:
        more = [f"{len(all_of_it) - top:,} more"] if len(all_of_it) > top else []
        lines.append(f"{what}: {', '.join([*all_of_it[:top], *more])}")
    if len(ordered) > top:
        lines.append(f"{units.plural(len(ordered) - top, 'more kind')} (--top)")
    if lines:
        page.worded("context", "; ".join(lines))


def _numbers(
    numbers: Iterable[ContextNumber], window_ns: int, but: Sequence[str]
) -> Iterator[tuple[int, str, str]]:
    """Numbers worth a word, of one kind the largest growth first."""
    found = [one for one in numbers if one.note and one.concerns and one.metric not in but]
    for one in sorted(found, key=lambda one: (one.rank, -one.grown, one.subject)):
        least = one.least_ppm
        what = one.note
        if least is not None:
            what += f" (shown from {least / _PERCENT:g}% on)"
        # A grave one is told of even if it may have been at another time; then that is said.
        around = " around it" if one.length_ns > 2 * window_ns else ""
        length = units.duration(one.length_ns)
        if one.unit == "ns":
            amount = f"{units.share(one.grown, one.length_ns)} of {length}{around}"
        else:
            amount = f"{one.grown:,} in {length}{around}"
        yield one.rank, what, f"{one.who or one.subject} {amount}"


def _states(states: Iterable[ContextState], but: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    for one in states:
        if one.note and one.concerns and one.what not in but:
            yield _STATE_RANK, one.note, f"{one.who or one.subject} ({one.value})"


def _changes(changes: Iterable[ContextChange]) -> Iterator[tuple[int, str, str]]:
    looks: dict[tuple[str, str], int] = {}
    moves: dict[tuple[str, str, str, str], None] = {}
    for one in changes:
        if not one.concerns:
            continue
        who = one.who or one.subject
        if one.what == rules.BLOCKED:
            looks[one.after, who] = looks.get((one.after, who), 0) + 1
        else:
            # A process moves in several hierarchies at once.
            what = "cgroup" if one.what.startswith("cgroup of ") else one.what
            moves[what, one.before, one.after, who] = None
    for (where, who), count in looks.items():
        doing = "page I/O" if rules.is_page_wait(where) else "the kernel"
        what = f"seen blocked in {doing} ({where})"
        yield _BLOCKED_RANK, what, f"{who} at {units.plural(count, 'look')}"
    for what, before, after, who in moves:
        yield _CHANGE_RANK, f"{what} {before or 'none'} became {after or 'none'}", who


def quotas(page: Page, found: Sequence[ContextQuota], *, of_path: bool = True) -> None:
    """Time out of CPU quota: of the path, beside what the kernel counted."""
    for one in found[: page.options.top]:
        said = f"cgroup {one.cgroup}" if one.cgroup else "a cgroup that is not known"
        if one.quota_ns is not None and one.period_ns is not None:
            said += (
                f" (has {units.duration(one.quota_ns)} of CPU time "
                f"in each {units.duration(one.period_ns)})"
            )
        said += ": "
        if of_path:
            said += f"{units.duration(one.path_ns)} of the path; "
        page.worded("CPU quota", said + _counted(one), style=BAD if one.contradicts else "")
    if len(found) > page.options.top:
        page.worded("", f"and {len(found) - page.options.top} more cgroups out of quota")


def _counted(one: ContextQuota) -> str:
    if one.counted_ns is None:
        return "what the kernel counted was not read"
    text = f"the kernel counted {units.duration(one.counted_ns)} out of quota"
    text += f" in {units.duration(one.length_ns)} for all of it, CPUs summed"
    if one.periods and one.throttled_periods is not None:
        text += f", in {one.throttled_periods:,} of {units.plural(one.periods, 'period')}"
    if one.contradicts:
        text += "; THE PATH SHOWS MORE than that, so one of the two is wrong"
    return text


def gpus(page: Page, found: Context) -> None:
    """What GPUs' own counters say, with what they mean."""
    by_metric: dict[str, list[ContextLevel]] = {}
    for one in found.levels:
        if one.subject.startswith("gpu:") and " pid:" not in one.subject:
            by_metric.setdefault(one.metric, []).append(one)
    count = len({one.subject for levels in by_metric.values() for one in levels})
    if not count:
        return
    parts = [
        *_utilisation(by_metric, short=found.window_ns < _DRIVER_NS),
        *_gpu_memory(by_metric),
        *_gpu_clock(by_metric),
    ]
    if parts:
        who = f"{count} GPUs" if count > 1 else "1 GPU"
        page.worded("GPU", f"{who}: {'; '.join(parts)}")


def _utilisation(by_metric: dict[str, list[ContextLevel]], *, short: bool) -> Iterator[str]:
    run = by_metric.get("gpu.utilization.gpu")
    if run:
        text = f"a kernel ran {_means(run)}% of the time, which is not how much of a GPU was used"
        if short:
            text += " (the driver averages over up to 1 s)"
        yield text
    memory = by_metric.get("gpu.utilization.memory")
    if memory:
        yield f"its memory was accessed {_means(memory)}% of the time, however fast"


def _gpu_memory(by_metric: dict[str, list[ContextLevel]]) -> Iterator[str]:
    used, total = (by_metric.get(f"gpu.memory.{key}") for key in ("used", "total"))
    if used:
        most = max(one.most for one in used)
        of = f" of {units.size(max(one.most for one in total))}" if total else ""
        yield f"{units.size(most)}{of} allocated at most, KV cache free or not"


def _gpu_clock(by_metric: dict[str, list[ContextLevel]]) -> Iterator[str]:
    clock, highest = by_metric.get("gpu.clocks.sm"), by_metric.get("gpu.clocks.max.sm")
    if clock:
        of = f" of {max(one.most for one in highest):,}" if highest else ""
        yield f"SM clock {_means(clock)}{of} MHz"
    power = by_metric.get("gpu.power.draw")
    if power:
        yield f"{_means(power, 1000)} W"


def _means(levels: Sequence[ContextLevel], scale: int = 1) -> str:
    """``97``, or ``91 to 97`` over several GPUs."""
    means = [one.mean // scale for one in levels]
    low, high = min(means), max(means)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def host(page: Page, report: HostReport) -> None:
    """What the host did during a whole recording."""
    found = report.context
    page.heading("the host meanwhile", f"{units.duration(found.window_ns)}")
    quotas(page, found.quotas, of_path=False)
    if not found.quotas:
        page.worded("CPU quota", _no_quota(found))
    page.worded("pressure", _pressure(found) or "not read")
    page.worded("faults", _faults(found))
    page.worded("NUMA", _numa(found))
    gpus(page, found)
    _memory(page, report)
    told = [f"{resource}.pressure.some.total" for resource, _ in _PRESSURE]
    told += ["process.major_faults", "numa.miss", rules.APART, rules.BOUND]
    notes(page, found, found.window_ns, told)
    threads(page, report.roles)


def _no_quota(found: Context) -> str:
    read = any(one.metric.startswith("cpu.stat.") for one in found.numbers)
    return "no cgroup of the engine ran out of it" if read else "not read"


def _pressure(found: Context) -> str:
    """Shares of the time in which tasks stood still; what did not grow is not among numbers."""
    grown = {one.metric: one for one in found.numbers if one.subject == "host"}
    if not any("pressure" in metric for metric in grown):
        return ""
    said = []
    for resource, what in _PRESSURE:
        one = grown.get(f"{resource}.pressure.some.total")
        said.append(f"{what} {units.share(one.grown, one.length_ns) if one else '0'}")
    return f"time in which a task stood still for want of {', '.join(said)}"


def _faults(found: Context) -> str:
    said = []
    for kind, what in (("major", "waited for a disk"), ("minor", "needed none")):
        rows = [
            one for one in found.numbers if one.metric == f"process.{kind}_faults" and one.concerns
        ]
        rows.sort(key=lambda one: -one.grown)
        whose = ", ".join(f"{one.who or one.subject} {one.grown:,}" for one in rows[:3])
        said.append(f"{units.total((one, one.grown) for one in rows):,} {what}"
                    f"{f' ({whose})' if whose else ''}")  # fmt: skip
    return "; ".join(said)


def _numa(found: Context) -> str:
    apart = [one for one in found.states if one.what == rules.APART and one.concerns]
    bound = [one for one in found.states if one.what == rules.BOUND and one.concerns and one.note]
    missed = sum(one.grown for one in found.numbers if one.metric == "numa.miss")
    said = [f"{one.who or one.subject} on different nodes: {one.value}" for one in apart]
    said += [f"{one.who or one.subject} may use {one.value} only" for one in bound]
    if missed:
        said.append(f"{missed:,} pages put on another node than wanted")
    return "; ".join(said) or "nothing found on different nodes"


def _memory(page: Page, report: HostReport) -> None:
    """The most memory seen by phase, where phases differ in it; and kills, with the phase."""
    rows: dict[tuple[str, str], list[str]] = {}
    for one in report.memory:
        if one.metric != "memory.current":
            rows.setdefault((one.metric, one.who), []).append(
                f"{one.phase} {units.size(one.most_bytes)}"
            )
    said = [
        f"{who} {', '.join(phases)}" for (_, who), phases in list(rows.items())[: page.options.top]
    ]
    if said:
        page.worded("GPU memory", f"most seen by phase: {'; '.join(said)}")
    for kill in report.kills:
        page.worded("OUT OF MEM", _killed(kill), style=BAD)


def _killed(kill: KillPhase) -> str:
    phases = f"in {' and '.join(kill.phases)} steps" if kill.phases else "outside all steps"
    return (
        f"{kill.who}: "
        f"{units.plural(kill.count, 'process', 'processes')} killed between "
        f"{units.instant(kill.since_ns)} s and {units.instant(kill.until_ns)} s, {phases}"
    )
