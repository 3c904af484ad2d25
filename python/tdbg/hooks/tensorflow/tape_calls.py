"""Calls of TensorFlow that are phases of a loop: gradients, and graphs.

``GradientTape.gradient`` is the backward pass where a loop runs eagerly.  A call of a
``tf.function`` is a training step as a whole if steps of training end in it, and
evaluation if there are only steps of evaluation in it; which it is shows in its first
calls.  Both are replaced on their classes while a loop is watched: no tape and no graph
is changed.

Thread safety: any thread may call; the clock takes no time but the training's.

Errors: none but those of the functions.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tdbg.capture.session import Session
from tdbg.capture.step_clock import BACKWARD, COMPUTE, EVALUATION
from tdbg.modes import EVAL
from tdbg.profiler.patches import LibraryPatches

__all__ = ["TapeCalls"]

# Steps may end in one call of many only: gradients are added up.
_MOST_LOOKS = 64


class TapeCalls:
    """Measures these calls by the clock of a session.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._clock = session.clock
        self._patches = LibraryPatches()
        self._phases: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        if not session.clock.is_on:
            return
        tf: Any = import_module("tensorflow")
        self._is_eager: Callable[[], bool] = tf.executing_eagerly
        me = weakref.ref(self)
        with contextlib.suppress(Exception):
            put = self._patches.put
            graph = type(tf.function(lambda: None))
            gradient, call = TapeCalls.gradient, TapeCalls.graph
            put(tf.GradientTape, "gradient", lambda f: _timed(me, f, gradient))
            put(graph, "__call__", lambda f: _timed(me, f, call))
        weakref.finalize(self, self._patches.undo).atexit = False

    def close(self) -> None:
        """Measure no longer."""
        self._patches.undo()

    def gradient(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute gradients."""
        return self._in_phase(BACKWARD, function, args, kwargs)

    def graph(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a graph."""
        phase = self._phases.get(args[0], -1)
        if phase < -_MOST_LOOKS:
            return function(*args, **kwargs)
        if phase < 0:
            return self._look(phase, function, args, kwargs)
        return self._in_phase(phase, function, args, kwargs)

    def _in_phase(
        self, phase: int, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call a function in a phase, unless it is traced: that is another one."""
        if not self._is_eager():
            return function(*args, **kwargs)
        clock = self._clock
        clock.enter(phase)
        try:
            return function(*args, **kwargs)
        finally:
            clock.leave(phase)

    def _look(
        self, before: int, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call a graph, and look at which steps there are in it, if it is still new.

        Args:
            before: Less than 0, by how often that was done.
            function: What calls it.
            args: Its arguments.
            kwargs: Its named ones.
        """
        session = self._session
        n_trained, n_evaluated = session.clock.n_steps, session.next_step(EVAL)
        result = function(*args, **kwargs)
        phase = before - 1
        if session.clock.n_steps > n_trained:
            phase = COMPUTE
        elif session.next_step(EVAL) > n_evaluated:
            phase = EVALUATION
        self._phases[args[0]] = phase
        return result


def _timed(
    calls: weakref.ref[TapeCalls],
    function: Callable[..., Any],
    call: Callable[[TapeCalls, Callable[..., Any], Any, Any], Any],
) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        found = calls()
        if found is None:
            return function(*args, **kwargs)
        return call(found, function, args, kwargs)

    return timed
