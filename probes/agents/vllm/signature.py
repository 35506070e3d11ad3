# SPDX-License-Identifier: Apache-2.0
"""What a hook needs of what it wraps, and whether a given callable is that.

The shape of a callable is compared in one place whether it came from a living function or
from source text, so that the check at run time and the check of a release's sources agree.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Shape:
    """Parameters of a callable after ``self``, in order, and whether it is a coroutine."""

    parameters: tuple[str, ...]
    coroutine: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class Need:
    """What a hook relies on.

    Attributes:
        module: Where the class lives.
        owner: Class name.
        name: Method name.
        leading: Names its first parameters after ``self`` must have, in order; they are what
            the hook reads. Others may come and go: hooks pass everything on.
        coroutine: Whether it must be a coroutine function.
        optional: Whether a release may lack it.
    """

    module: str
    owner: str
    name: str
    leading: tuple[str, ...] = ()
    coroutine: bool = False
    optional: bool = False

    @property
    def label(self) -> str:
        """``Class.method``, for messages."""
        return f"{self.owner}.{self.name}"


def shape_of(function: Callable[..., object], *, bound: bool = False) -> Shape:
    """Shape of a function as found in a class, or of a bound method.

    Raises:
        ValueError: it has no signature (built in).
        TypeError: it is not callable.
    """
    plain = inspect.unwrap(function)
    parameters = list(inspect.signature(plain).parameters.values())
    if not bound or (inspect.isfunction(plain) and inspect.ismethod(function)):
        parameters = parameters[1:] if not inspect.ismethod(plain) else parameters
    named = tuple(
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return Shape(named, inspect.iscoroutinefunction(plain), variadic)


def complaint(need: Need, shape: Shape | None) -> str:
    """Why a shape does not serve; empty when it does. None stands for: it is not there."""
    if shape is None:
        return "" if need.optional else f"{need.label} is missing"
    found = shape.parameters[: len(need.leading)]
    if found != need.leading:
        return f"{need.label} takes {found or 'nothing'}, expected {need.leading}"
    if shape.coroutine != need.coroutine:
        kind = "a coroutine" if shape.coroutine else "not a coroutine"
        return f"{need.label} is {kind}"
    return ""
