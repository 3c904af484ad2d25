"""Waiting for results: JAX computes a step after the call has returned.

The time of a step is where the program first waits for what the step computes:
``block_until_ready``, ``device_get``, ``float(loss)``, ``np.asarray``.  All of these
come by few functions, which are replaced while a session measures.

Thread safety: any thread may wait; the clock takes no time but the training's.

Errors: none but those of the functions.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax

from tdbg.capture.session import Session
from tdbg.profiler.patches import LibraryPatches

__all__ = ["Waits"]


class Waits:
    """Gives the time in which a program waits for results to the latest step's phase.

    Args:
        session: Has the clock.

    Attributes:
        phase: That of the latest step: a training step, or evaluation; -1: there has
            been none.
    """

    def __init__(self, session: Session) -> None:
        self.phase = -1
        self._clock = session.clock
        self._patches = LibraryPatches()
        if not session.clock.is_on:
            return
        array = type(jax.numpy.zeros(()))
        me = weakref.ref(self)
        with contextlib.suppress(Exception):
            xla = import_module("jax._src.lib").xla_client
            put = self._patches.put
            put(array, "block_until_ready", lambda f: _of_one(me, f))
            put(array, "_value", lambda f: _of_property(me, f))
            put(xla, "batched_block_until_ready", lambda f: _of_many(me, f))
        session.listen(close=self.end, rest=self.end)
        weakref.finalize(self, self._patches.undo).atexit = False

    def end(self) -> None:
        """Measure no longer."""
        self.phase = -1
        self._patches.undo()

    def wait(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call a function that waits."""
        clock, phase = self._clock, self.phase
        clock.enter(phase)
        try:
            return function(*args)
        finally:
            clock.leave(phase)


def _of_one(
    waits: weakref.ref[Waits], function: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def wait(array: Any) -> Any:
        found = waits()
        if found is None or found.phase < 0 or _is_there(array):
            return function(array)
        return found.wait(function, (array,))

    return wait


def _of_property(waits: weakref.ref[Waits], value: Any) -> property:
    return property(_of_one(waits, value.fget))


def _of_many(
    waits: weakref.ref[Waits], function: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def wait(arrays: Any) -> Any:
        found = waits()
        if found is None or found.phase < 0:
            return function(arrays)
        return found.wait(function, (arrays,))

    return wait


def _is_there(array: Any) -> bool:
    """Return whether a result is computed; True if nobody can wait for it."""
    try:
        return bool(array.is_ready())
    except Exception:
        return True  # It was deleted: the function says so.
