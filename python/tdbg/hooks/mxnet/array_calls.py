"""Calls of MXNet that are phases of a loop: backward passes, and waiting for results.

MXNet computes after its calls have returned.  The time of a step is where the program
first waits for what it computes: ``asnumpy``, ``wait_to_read``, ``waitall`` and what
calls these.  They are replaced while a session measures.

Thread safety: any thread may call; the clock takes no time but the training's.

Errors: none but those of the functions.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import mxnet
from mxnet.ndarray import NDArray

from tdbg.capture.session import Session
from tdbg.capture.step_clock import BACKWARD, COMPUTE
from tdbg.profiler.patches import LibraryPatches

__all__ = ["ArrayCalls"]


class ArrayCalls:
    """Measures these calls by the clock of a session, from its first step on.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self.clock = session.clock
        self._patches = LibraryPatches()
        if not session.clock.is_on:
            return
        me = weakref.ref(self)
        for owner, name, phase in (
            (NDArray, "backward", BACKWARD),
            (mxnet.autograd, "backward", BACKWARD),
            (NDArray, "asnumpy", COMPUTE),
            (NDArray, "wait_to_read", COMPUTE),
            (mxnet.ndarray, "waitall", COMPUTE),
        ):
            with contextlib.suppress(AttributeError):
                self._patches.put(owner, name, _in_phase(me, phase))
        session.listen(close=self._patches.undo, rest=self._patches.undo)
        weakref.finalize(self, self._patches.undo).atexit = False


def _in_phase(
    calls: weakref.ref[ArrayCalls], phase: int
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def replace(function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            found = calls()
            # Before the first step, it is no step that anybody waits for.
            if found is None or (phase == COMPUTE and not found.clock.n_steps):
                return function(*args, **kwargs)
            clock = found.clock
            clock.enter(phase)
            try:
                return function(*args, **kwargs)
            finally:
                clock.leave(phase)

        return timed

    return replace
