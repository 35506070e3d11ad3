# SPDX-License-Identifier: Apache-2.0
"""Making way for PyTorch's profiler: CUPTI serves one tool at a time, the user's comes first."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from gpucorrelate.probes.agents.cupti.recorder import Recorder

#: All of PyTorch's profilers begin and end here, ``torch.profiler.profile`` as well.
MODULE = "torch.autograd.profiler"
_BEGINS, _ENDS = "_prepare_trace", "__exit__"
_MARK = "_gpucorrelate_way"


def callbacks(recorder: Recorder) -> Mapping[str, Callable[[ModuleType], None]]:
    """What to do when a profiler's module is imported."""
    return {MODULE: functools.partial(install, recorder)}


def install(recorder: Recorder, module: ModuleType) -> None:
    """Have the recorder's window be shut while a profile is made.

    A release that has neither method is left alone: then whoever comes second is refused by
    CUPTI, and the recorder says so when that is us.
    """
    owner = getattr(module, "profile", None)
    begins = getattr(owner, "__dict__", {}).get(_BEGINS)
    ends = getattr(owner, "__dict__", {}).get(_ENDS)
    if owner is None or not callable(begins) or not callable(ends) or hasattr(begins, _MARK):
        return

    @functools.wraps(begins)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - somebody else's
        if not getattr(self, _MARK, False):
            setattr(self, _MARK, True)
            recorder.make_way()
        return begins(self, *args, **kwargs)

    @functools.wraps(ends)
    def leave(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        try:
            return ends(self, *args, **kwargs)
        finally:
            if getattr(self, _MARK, False):
                setattr(self, _MARK, False)
                recorder.way_is_free()

    setattr(prepare, _MARK, True)
    setattr(owner, _BEGINS, prepare)
    setattr(owner, _ENDS, leave)
