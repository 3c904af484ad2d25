"""Clipping of gradients in PyTorch, which belongs to the optimizer's step.

What ``clip_grad_norm_`` calls is replaced while a session is open, so that it does not
matter how a program has imported it.

Thread safety: any thread may clip; the clock takes no time but the training's.

Errors: none but those of the functions.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from tdbg.capture.session import Session
from tdbg.capture.step_clock import OPTIMIZER
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler.part import ProfilerPart
from tdbg.profiler.patches import LibraryPatches

__all__ = ["Clipping", "start"]

_MODULE: Final = "torch.nn.utils.clip_grad"
#: ``clip_grad_norm_`` computes a norm, and scales; neither is known by other programs.
FUNCTIONS: Final = ("_get_total_norm", "_clip_grads_with_norm_", "clip_grad_value_")


def start(session: Session, settings: ProfilerConfig) -> ProfilerPart:  # noqa: ARG001
    """Measure clipping until the part is closed."""
    return Clipping(session)


class Clipping:
    """Measures the clipping of a session."""

    def __init__(self, session: Session) -> None:
        self.clock = session.clock
        self._patches = LibraryPatches()
        module = sys.modules.get(_MODULE)
        torch: Any = sys.modules.get("torch")
        if module is None or torch is None:
            return
        me = weakref.ref(self)

        def replace(function: Callable[..., Any]) -> Callable[..., Any]:
            return _timed(me, function, torch.compiler.is_compiling)

        for name in FUNCTIONS:
            with contextlib.suppress(AttributeError):
                self._patches.put(module, name, replace)
        with contextlib.suppress(AttributeError):
            self._patches.put(torch.nn.utils, FUNCTIONS[-1], replace)

    def close(self) -> None:
        """Measure no longer."""
        self._patches.undo()

    forked = close


def _timed(
    clipping: weakref.ref[Clipping],
    function: Callable[..., Any],
    is_compiling: Callable[[], bool],
) -> Callable[..., Any]:
    def clip(*args: Any, **kwargs: Any) -> Any:
        # A compiler that traces this sees nothing of tdbg.
        found = None if is_compiling() else clipping()
        if found is None:
            return function(*args, **kwargs)
        clock = found.clock
        clock.enter(OPTIMIZER)
        try:
            return function(*args, **kwargs)
        finally:
            clock.leave(OPTIMIZER)

    return clip
