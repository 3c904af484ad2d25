"""``watch``: captures trainings that apply the gradients of tapes by themselves.

All gradients of such a training come by one place, ``optimizer.apply`` (Keras calls it
for ``apply_gradients``, too), which is wrapped on the instance: no tape is touched, so
that further tapes, nested and persistent ones, cost and mean nothing.  A step ends
when the optimizer has stepped.

In a function that ``tf.function`` has traced, the step is reported by a call of Python
from the graph, which is given gradients and weights where the step is captured, and
nothing otherwise.  What XLA compiles cannot call Python: there nothing is captured,
and a warning says so.

Thread safety: the training's thread; graphs report from threads of TensorFlow, one
step after the other.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.hook_base import HookBase, RunExport
from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.modes import CurrentMode
from tdbg.capture.policy import Policy
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config import HookConfig
from tdbg.config.options import SessionOptions, is_disabled
from tdbg.errors import ConfigurationError
from tdbg.hooks.framework import make_export, make_policy
from tdbg.hooks.keras.adapter import KerasAdapter
from tdbg.hooks.keras.backend import Answer, Backend, backend_of_keras
from tdbg.hooks.keras.model_info import KerasModel
from tdbg.hooks.keras.tracing import Patches, Taps
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.modes import TRAIN

__all__ = ["Hook", "watch"]

_log = logging.getLogger("tdbg")


class Hook(HookBase):
    """Captures the steps of optimizers; its arguments are those of ``HookBase``.

    ``register`` says of which model.  ``watch`` does both.
    """

    def _make_adapter(self) -> FrameworkAdapter:
        self._backend: Backend | None = None
        if is_disabled():
            return KerasAdapter(None)
        self._backend = backend_of_keras()
        return KerasAdapter(self._backend)

    def _make_policy(self, config: HookConfig) -> Policy:
        return make_policy(config)

    def _make_export(
        self, config: HookConfig, options: SessionOptions
    ) -> RunExport | None:
        return make_export(config, options)

    def _attach(self, session: Session) -> CurrentMode:
        self._watched: list[WatchedModel] = []
        self._patches = Patches()
        self._model_info = ModelInfoWriter(session, KerasModel(self._watched))
        session.on_change.append(self._refresh)
        return CurrentMode(session)

    def _detach(self) -> None:
        self._session.run(self._model_info.conclude)
        self._patches.undo()

    def _refresh(self) -> None:
        for each in self._watched:
            each.refresh()

    def register(self, model: Any, optimizer: Any) -> None:
        """Capture the steps that an optimizer makes of a model of Keras.

        Call it before the first call of a function that ``tf.function`` compiles.

        Raises:
            ConfigurationError: If the backend of Keras is not TensorFlow, or these are
                no model and no optimizer.
        """
        if self._backend is None or not self._session.is_live:
            return
        if self._backend.name != "tensorflow":
            msg = f"watch needs Keras on TensorFlow, and it is on {self._backend.name}"
            raise ConfigurationError(msg)
        if not hasattr(model, "_flatten_layers") or not hasattr(optimizer, "apply"):
            msg = (
                "watch needs a model and an optimizer of Keras, not "
                f"{type(model).__name__} and {type(optimizer).__name__}"
            )
            raise ConfigurationError(msg)
        root = type(model).__name__
        watched = WatchedModel(
            self._session,
            self._backend,
            model,
            root,
            f"{root}/" if self._watched else "",
            id(optimizer),
            self._model_info,
            optimizer,
        )
        self._watched.append(watched)
        self._session.optimizer_found(id(optimizer))
        steps = _Steps(watched, optimizer, self._session)
        self._patches.wrap(optimizer, "apply", steps.wrap)


class _Steps:
    """Reports the steps of one optimizer.

    Args:
        watched: The model.
        optimizer: The optimizer.
        session: Receives the events.
    """

    def __init__(self, watched: WatchedModel, optimizer: Any, session: Session) -> None:
        self._watched = watched
        self._optimizer = weakref.ref(optimizer)
        self._session = session
        self._tf: Any = import_module("tensorflow")
        # Whether the next step captures tensors; asked by graphs.
        self._is_due = self._tf.Variable(True, trainable=False)
        self._context: StepContext | None = None
        self._has_warned = False

    def wrap(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in for ``optimizer.apply``."""

        def applied(grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
            if self._tf.executing_eagerly():
                return self._apply_eagerly(apply, grads, trainable_variables)
            if not self._session.is_live or not self._may_call_python():
                return apply(grads, trainable_variables)
            return self._apply_in_graph(apply, grads, trainable_variables)

        return applied

    # ---- eagerly ---------------------------------------------------------------

    def _apply_eagerly(
        self, apply: Callable[..., Any], grads: list[Any], variables: Any
    ) -> Any:
        session = self._session
        session.run(session.obey, TRAIN)
        tensors = session.run(self._hold, grads, variables) or {}
        session.run(self._begin)
        try:
            result = apply(grads, variables)
        except BaseException:
            session.run(session.forward_lost)
            raise
        session.run(self._end, tensors)
        return result

    def _hold(self, grads: list[Any], variables: Any) -> dict[str, Any]:
        """What is captured of the gradients, by key."""
        if not self._watched.is_due(TRAIN):
            return {}
        taps = Taps(self._watched.backend, self._session.run)
        optimizer: Any = self._optimizer()
        given = optimizer._trainable_variables if variables is None else variables
        self._watched.hold_gradients(optimizer, grads, given, taps)
        return taps.tensors

    def _begin(self) -> None:
        state = self._watched.backend.state_before(self._watched.model, ())
        self._context = self._watched.begin(TRAIN, state)

    def _end(self, tensors: dict[str, Any]) -> None:
        state = self._watched.backend.state_after(self._watched.model, None)
        answer = Answer({}, tensors)
        self._watched.end(self._context, TRAIN, answer, state, True)
        self._context = None

    # ---- in a graph --------------------------------------------------------------

    def _may_call_python(self) -> bool:
        """Whether the function that is traced may call Python: not under XLA."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            is_function = hasattr(owner, "python_function")
            if is_function and getattr(owner, "_jit_compile", None):
                self._warn("is compiled by XLA (jit_compile=True)")
                return False
            frame = frame.f_back
        return True

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the function that applies gradients %s: nothing of it is captured", why
            )

    def _apply_in_graph(
        self, apply: Callable[..., Any], grads: list[Any], variables: Any
    ) -> Any:
        tf, session = self._tf, self._session
        traced: dict[str, Any] = {}
        session.run(self._hold_in_graph, grads, variables, traced)
        keys = list(traced)

        def report(*arrays: Any) -> None:
            session.run(self._report, dict(zip(keys, arrays, strict=True)))

        def full() -> Any:
            return tf.numpy_function(report, list(traced.values()), [])

        def empty() -> Any:
            return tf.numpy_function(lambda: session.run(self._report, {}), [], [])

        branches = [functools.partial(_after, tf, each) for each in (full, empty)]
        told = tf.cond(self._is_due, *branches)
        with tf.control_dependencies([told]):
            return apply(grads, variables)

    def _hold_in_graph(
        self, grads: list[Any], variables: Any, traced: dict[str, Any]
    ) -> None:
        taps = Taps(self._watched.backend, self._session.run)
        optimizer: Any = self._optimizer()
        given = optimizer._trainable_variables if variables is None else variables
        self._watched.hold_gradients(optimizer, grads, given, taps)
        self._watched.hold_weights(taps)
        tensors = taps.tensors.items()
        traced |= {k: t for k, t in tensors if isinstance(t, self._tf.Tensor)}

    def _report(self, tensors: dict[str, Any]) -> None:
        """A graph is about to apply gradients."""
        session, watched = self._session, self._watched
        session.obey(TRAIN)
        context = session.forward_begins(id(watched), TRAIN, has_obeyed=True)
        if context is not None:
            watched.take(context, tensors)
        session.forward_ends()
        session.optimizer_begins(id(self._optimizer()), lambda: TRAIN)
        watched.model_info.optimizer_stepped()
        session.optimizer_ends(id(self._optimizer()))
        self._is_due.assign(watched.is_due(TRAIN))


def _after(tf: Any, call: Callable[[], Any]) -> Any:
    """Call Python, and return a tensor that is there when it is over."""
    with tf.control_dependencies([call()]):
        return tf.constant(True)


def watch(
    model: Any,
    optimizer: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> Hook:
    """Capture a training that applies the gradients of tapes.

        hook = tdbg.tensorflow.watch(model, optimizer, out="runs/tape")

    Args:
        model: The model of Keras; its variables and layers have names.
        optimizer: The optimizer of Keras that is given the gradients.
        out: The run directory.
        arguments: Those of ``Hook``, by default with weights, biases and gradients.

    Raises:
        ConfigurationError: If something asked for can never work.
        StorageError: If the run cannot be made or written.
    """
    if not arguments.keys() & {"include_collections", "save_all", "rules"}:
        arguments["include_collections"] = ["weights", "biases", "gradients"]
    hook = Hook(out, **arguments)
    hook.register(model, optimizer)
    return hook
