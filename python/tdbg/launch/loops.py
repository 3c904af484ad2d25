"""Find loops with tapes in a program that does not use tdbg, with Keras on TensorFlow.

A loop trains a model that it calls outside of ``fit`` while a tape records.  From that
call on the search watches the model with the losses and optimizers that follow.  For
this it replaces calls of models and losses, and ``apply`` of optimizers, on the classes
of Keras.  An optimizer that was made and has not stepped yet is awaited: calls before
its first step are micro-batches.  Models that train together are called in the first
steps: one that is called later begins another training, with a run of its own.

Errors: none reach the script except ``TrainingStopped``.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tdbg.hooks.tensorflow.reports import is_compiled_by_xla
from tdbg.hooks.tensorflow.steps import tape_check
from tdbg.launch import summary
from tdbg.launch.settings import open_hook

__all__ = ["LoopSearch"]

MOST_TRAININGS = 32
"""Of one process: it may train many little models."""

# After so many steps all models of a training have been called.
_SETTLED = 2

_log = logging.getLogger("tdbg")


class LoopSearch:
    """Watch the models of loops.

    Args:
        settings: As of ``FitSearch``.
        is_first: Whether this is the program that was launched.
        is_inside: Whether ``fit`` or one of its kind is under way.

    Attributes:
        hook: The hook; None until a model is trained.
        runs: The runs of the trainings so far.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        is_first: bool,
        is_inside: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._is_first = is_first
        self._is_inside = is_inside
        self._is_recording = tape_check()
        self._has_failed = False
        self._depth = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        # Optimizers that have not stepped.
        self._new: weakref.WeakSet[Any] = weakref.WeakSet()
        self._losses: dict[int, Any] = {}
        self._replaced: list[tuple[Any, str, Any]] = []
        self.hook: Any = None
        self.runs: list[summary.CapturedRun] = []

    def start(self) -> None:
        """Watch models from now on."""
        keras = sys.modules["keras"]
        self._replace(keras.Model, "__call__", self._model_called)
        self._replace(keras.losses.Loss, "__call__", self._loss_called)
        self._replace(keras.optimizers.Optimizer, "__init__", self._made)
        self._replace(keras.optimizers.Optimizer, "apply", self._applied)

    def stop(self) -> None:
        """Put the methods of Keras back, and end the run."""
        while self._replaced:
            owner, name, original = self._replaced.pop()
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self.close()

    def close(self) -> None:
        """End the run."""
        if self.hook is not None:
            self.runs[-1] = summary.CapturedRun(self.runs[-1].path, self.hook.n_steps)
            self.hook.close()
            self.hook = None

    def _replace(self, owner: Any, name: str, see: Callable[..., None]) -> None:
        """Make a method call *see* with its arguments first."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or self._has_failed or self._is_inside():
                return original(instance, *args, **kwargs)
            before = type(instance), vars(instance).get(name)
            try:
                see(instance, *args, **kwargs)
            except Exception:
                self._has_failed = True
                _log.warning(
                    "tdbg run captures nothing more from this loop", exc_info=True
                )
            if before != (type(instance), vars(instance).get(name)):
                return getattr(instance, name)(*args, **kwargs)  # It is watched now.
            self._depth += 1
            try:
                return original(instance, *args, **kwargs)
            finally:
                self._depth -= 1

        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, method)

    # ---- what is called ------------------------------------------------------------

    def _model_called(self, model: Any, *_: Any, **__: Any) -> None:
        if model in self._known or not self._is_recording():
            return
        if self.hook is not None and self.hook.n_steps >= _SETTLED:
            if len(self.runs) >= MOST_TRAININGS:
                return  # It stays with the latest run.
            self.close()
            self._known, self._losses = weakref.WeakSet(), {}
        self._known.add(model)
        if self.hook is None:
            self._open()
        if self.hook is not None:
            self.hook.register(model)

    def _loss_called(self, loss: Any, *_: Any, **__: Any) -> None:
        if self.hook is not None and id(loss) not in self._losses:
            self._losses[id(loss)] = loss  # Kept, as its id is.
            self.hook.register_loss(loss)

    def _made(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self._new.add(optimizer)

    def _applied(self, optimizer: Any, _: Any, variables: Any = None) -> None:
        self._new.discard(optimizer)
        is_list = variables is None or isinstance(variables, list | tuple)
        if self.hook is None or optimizer in self._known or not is_list:
            return
        self._known.add(optimizer)
        given = optimizer.trainable_variables if variables is None else variables
        model = self.hook.model_with(given)
        if model is not None:
            self.hook.register_optimizer(optimizer, model=model)

    def _open(self) -> None:
        """Open the run, if this loop can be captured."""
        face = import_module("tdbg.tensorflow")
        own = face.get_hook()
        if own is not None and not own.is_closed:
            self._has_failed = True  # The program watches its loop itself.
            return
        if is_compiled_by_xla():
            _log.warning(
                "a loop is compiled by XLA (jit_compile=True), which cannot call "
                "Python, so tdbg run cannot capture it; see docs/tensorflow.md"
            )
            return
        self.hook, path = open_hook(
            face.Hook, self._settings, (), is_first=self._is_first
        )
        self.runs.append(summary.CapturedRun(path, 0))
        if self._new:
            self.hook.await_optimizer()
