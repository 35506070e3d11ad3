# SPDX-License-Identifier: Apache-2.0
"""Putting hooks in place, after checking that what they wrap is what they were written for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gpucorrelate.probes.agents.vllm.contract import FIELDS, LOST, NEEDS
from gpucorrelate.probes.agents.vllm.signature import Need, Shape, complaint, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from gpucorrelate.probes.agents.agent import Part

#: Marks a hook, so that nothing is wrapped twice.
MARK = "_gpucorrelate_hook"

Method = "Callable[..., Any]"


def method_of(owner: type, name: str) -> Callable[..., Any] | None:
    """A method as defined in the class itself, plain or static."""
    found = owner.__dict__.get(name)
    if isinstance(found, staticmethod | classmethod):
        return None
    return found if callable(found) else None


def shape_in(owner: type | None, name: str) -> Shape | None:
    """Shape of a class's own method; None when it has none of that name."""
    method = method_of(owner, name) if owner is not None else None
    if method is None:
        return None
    try:
        return shape_of(method)
    except (TypeError, ValueError):
        return None


def unmet(module: ModuleType, needs: Iterable[Need]) -> list[str]:
    """What a module lacks of the needs that concern it."""
    found: list[str] = []
    for need in needs:
        if need.module == module.__name__:
            owner = getattr(module, need.owner, None)
            why = complaint(need, shape_in(owner, need.name))
            if why:
                found.append(why)
    return found


def missing_fields(part: str, module: ModuleType) -> list[str]:
    """Attributes that a class of the module should declare and does not.

    Only classes that list their fields (dataclasses, msgspec structs) can be asked without an
    instance; for others the hook's own fault count decides.
    """
    found: list[str] = []
    for fields in FIELDS.get(part, ()):
        if fields.module != module.__name__:
            continue
        owner = getattr(module, fields.owner, None)
        declared = getattr(owner, "__dataclass_fields__", None)
        if declared is None:
            declared = getattr(owner, "__struct_fields__", None)
        if owner is None:
            found.append(f"{fields.owner} is missing")
        elif declared is not None:
            lacking = [name for name in fields.names if name not in declared]
            if lacking:
                found.append(f"{fields.owner} lacks {', '.join(lacking)}")
    return found


def checked(part: Part, module: ModuleType, needs: Iterable[Need] | None = None) -> bool:
    """Whether a module serves a part; refuses the part, with the reason, when it does not."""
    wanted = NEEDS[part.name] if needs is None else needs
    problems = unmet(module, wanted) + missing_fields(part.name, module)
    if problems:
        part.refuse(f"{module.__name__}: {'; '.join(problems)}; {LOST[part.name]}")
        return False
    return True


def wrap(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Replace a class's own method by what ``make`` makes of it; once, and only if it is there."""
    original = method_of(owner, name)
    if original is None:
        return False
    if getattr(original, MARK, False):
        return True
    hook = functools.update_wrapper(make(original), original)
    setattr(hook, MARK, True)
    setattr(owner, name, hook)
    return True
