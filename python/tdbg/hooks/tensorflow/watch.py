"""``watch``: captures trainings that apply the gradients of tapes by themselves.

What models, their layers and losses are given and return is seen by replacing their
calls on the instances (``forwards.py``), gradients by replacing ``optimizer.apply``
(``optimizers.py``); no tape is touched.  In a function that ``tf.function`` has
traced, reports are put into the graph (``reports.py``).  ``Hook.function`` makes a
function with two variants instead, which XLA may compile (``compiled.py``).

Thread safety: the training's thread; graphs report from threads of TensorFlow, one
step after the other.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from importlib import import_module
from operator import itemgetter
from typing import Any

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.hook_base import HookBase, RunExport
from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.modes import CurrentMode
from tdbg.capture.naming import UniqueNames
from tdbg.capture.policy import Policy
from tdbg.capture.process_hook import ProcessHook
from tdbg.capture.session import Session
from tdbg.config import HookConfig
from tdbg.config.options import SessionOptions, is_disabled
from tdbg.errors import ConfigurationError
from tdbg.hooks.framework import make_export, make_policy
from tdbg.hooks.keras.adapter import KerasAdapter
from tdbg.hooks.keras.backend import Backend, backend_of_keras
from tdbg.hooks.keras.model_info import KerasModel
from tdbg.hooks.keras.replicas import strategy_problem
from tdbg.hooks.keras.tracing import Patches
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.hooks.tensorflow.compiled import CompiledStep, Loop
from tdbg.hooks.tensorflow.forwards import Forwards
from tdbg.hooks.tensorflow.given_losses import LossPatches, wrapped
from tdbg.hooks.tensorflow.optimizers import OptimizerSteps
from tdbg.hooks.tensorflow.reports import Reports
from tdbg.hooks.tensorflow.steps import LoopMode, LoopSteps
from tdbg.modes import ModeKeys

__all__ = ["Hook", "del_hook", "get_hook", "set_hook", "watch"]


class Hook(HookBase):
    """Captures loops with tapes; its arguments are those of ``HookBase``.

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

    def _remember(self) -> None:
        _process_hook.remember(self)

    def _attach(self, session: Session) -> CurrentMode:
        self._watched: list[WatchedModel] = []
        self._optimizers: list[OptimizerSteps] = []
        self._names = UniqueNames()
        self._patches = Patches()
        self._loss_patches = LossPatches()
        self._model_info = ModelInfoWriter(session, KerasModel(self._watched))
        self._steps = LoopSteps(session, self._watched)
        self._loop_mode = LoopMode(session)
        self._parts: tuple[Reports, Forwards] | None = None
        session.on_change.append(self._refresh)
        return self._loop_mode

    def _detach(self) -> None:
        self._session.run(self._model_info.conclude)
        self._loss_patches.undo()
        self._patches.undo()

    def _refresh(self) -> None:
        for each in self._watched:
            each.refresh()
        if self._parts is not None:
            self._parts[0].refresh()

    # ---- registration ----------------------------------------------------------

    def register(self, model: Any, optimizer: Any = None, *, loss: Any = None) -> None:
        """Capture a model of Keras, and the steps that an optimizer makes of it.

        Call it before the first call of a function that ``tf.function`` compiles.

        Args:
            model: The model; a training may have several.
            optimizer: The optimizer that is given the gradients; None: it is
                registered later (``register_optimizer``), or there is none.
            loss: As of ``register_loss``.

        Raises:
            ConfigurationError: If the backend of Keras is not TensorFlow, these are no
                model and no optimizer of Keras, or the model was made under a strategy
                of several processes.
        """
        if self._backend is None or not self._session.is_live:
            return
        if self._backend.name != "tensorflow":
            msg = f"watch needs Keras on TensorFlow, and it is on {self._backend.name}"
            raise ConfigurationError(msg)
        if not hasattr(model, "_flatten_layers"):
            msg = f"watch needs a model of Keras, not {type(model).__name__}"
            raise ConfigurationError(msg)
        problem = strategy_problem(model)
        if problem is not None:
            raise ConfigurationError(problem)
        if optimizer is not None:
            _check_optimizer(optimizer)
        root = self._names.take(type(model).__name__)
        watched = WatchedModel(
            self._session,
            self._backend,
            model,
            root,
            f"{root}/" if self._watched else "",
            id(model),
            self._model_info,
        )
        self._watched.append(watched)
        _, forwards = self._made_parts(self._backend)
        forwards.enter_layers(watched, self._patches)
        if optimizer is not None:
            self.register_optimizer(optimizer, model=model)
        if loss is not None:
            self.register_loss(loss, model=model)

    def register_optimizer(
        self, optimizer: Any, *, model: Any = None, defines_step: bool = False
    ) -> None:
        """Capture the steps that an optimizer makes.

        Args:
            optimizer: The optimizer of Keras.
            model: Which of the registered models it trains; None: the latest.
            defines_step: Whether a step of the training ends when this one has
                stepped; otherwise that is the first one that steps.

        Raises:
            ConfigurationError: If it is no optimizer, or the model is not registered.
        """
        if self._backend is None or not self._session.is_live:
            return
        _check_optimizer(optimizer)
        watched = self._watched_of(model)
        watched.train_by(optimizer)
        self._session.optimizer_found(id(optimizer), defines_step=defines_step)
        reports, forwards = self._made_parts(self._backend)
        steps = OptimizerSteps(
            watched,
            optimizer,
            self._steps,
            self._loop_mode,
            forwards,
            reports,
            len(self._optimizers),
        )
        self._optimizers.append(steps)
        self._patches.wrap(optimizer, "apply", steps.wrap)

    def register_loss(self, loss: Any, *, model: Any = None) -> None:
        """Capture what a loss object is given, and what it computes.

        Args:
            loss: A loss of Keras, or an object with ``__call__(labels, predictions)``.
            model: Which of the registered models it belongs to; None: the latest.

        Raises:
            ConfigurationError: If it is a function, which can only be wrapped, or the
                model is not registered.
        """
        if self._backend is None or not self._session.is_live:
            return
        if not hasattr(loss, "__dict__") or hasattr(loss, "__code__"):
            msg = (
                f"loss={getattr(loss, '__name__', loss)!r} is no object that can be "
                "watched: write `loss = hook.wrap_loss(loss)` after the hook is made"
            )
            raise ConfigurationError(msg)
        self._loss_patches.change(loss, self._show(loss, model))

    def wrap_loss(self, loss: Callable[..., Any], *, model: Any = None) -> Any:
        """Return a function that computes a loss, and is captured.

            loss_of = hook.wrap_loss(keras.losses.mean_squared_error)

        Args:
            loss: A function of labels and predictions, in this order.
            model: As of ``register_loss``.

        Raises:
            ConfigurationError: If it cannot be called, or the model is not registered.
        """
        given: object = loss
        if not callable(given):
            msg = f"wrap_loss needs a function of labels and predictions, not {given!r}"
            raise ConfigurationError(msg)
        if self._backend is None or not self._session.is_live:
            return loss
        return wrapped(loss, self._show(loss, model))

    def function(
        self,
        function: Callable[..., Any] | None = None,
        *,
        mode: ModeKeys | None = None,
        **options: Any,
    ) -> Any:
        """Compile a step as ``tf.function`` does, and capture it, under XLA, too.

            @hook.function(jit_compile=True)
            def step(x, y): ...

        Steps that capture nothing inside run the function as ``tf.function`` makes it.
        For the others it is compiled again, with what is captured as further outputs.
        The loss of each step is the first number with a fraction that is returned.

        Args:
            function: The function, of tensors; None: this is a decorator.
            mode: Of its steps, one for each call; None: TRAIN, or that of
                ``set_mode``.
            options: Arguments of ``tf.function``.

        Returns:
            The compiled function. Calling it raises TrainingStopped if somebody asked
            for a stop; ``plain`` is the function as compiled without tdbg.

        Raises:
            ConfigurationError: If the function cannot be called, or there is no model.
        """
        if function is None:
            return functools.partial(self.function, mode=mode, **options)
        given: object = function
        if not callable(given):
            msg = f"hook.function needs a function, not {given!r}"
            raise ConfigurationError(msg)
        if self._backend is None or not self._session.is_live:
            return import_module("tensorflow").function(function, **options)
        self._watched_of(None)
        reports, forwards = self._made_parts(self._backend)
        loop = Loop(self._steps, self._loop_mode, reports, forwards, self._optimizers)
        return CompiledStep(function, mode, loop, options)

    def model_with(self, variables: Iterable[Any]) -> Any:
        """The registered model that has most of these variables; None: none has any."""
        given = {id(each) for each in variables}
        counts = [
            (sum(id(each) in given for each in watched.model.variables), watched.model)
            for watched in self._watched
            if watched.model is not None
        ]
        most = max(counts, key=itemgetter(0), default=(0, None))
        return most[1] if most[0] else None

    def _show(self, loss: Any, model: Any) -> Any:
        watched = self._watched_of(model)
        function = watched.losses.add(watched.model, loss)
        return self._made_parts(watched.backend)[1].show_loss(watched, function)

    def _watched_of(self, model: Any) -> WatchedModel:
        """The registered model, or the latest one.

        Raises:
            ConfigurationError: If there is none.
        """
        found = [each for each in self._watched if model in (None, each.model)]
        if not found:
            msg = "register the model first: hook.register(model, optimizer)"
            raise ConfigurationError(msg)
        return found[-1]

    def _made_parts(self, backend: Backend) -> tuple[Reports, Forwards]:
        if self._parts is None:
            reports = Reports(self._steps, backend)
            self._parts = reports, Forwards(self._steps, self._loop_mode, reports)
        return self._parts


def _check_optimizer(optimizer: Any) -> None:
    """Raise ConfigurationError if it is no optimizer of Keras."""
    if not hasattr(optimizer, "apply") or not hasattr(optimizer, "update_step"):
        msg = f"watch needs an optimizer of Keras, not {type(optimizer).__name__}"
        raise ConfigurationError(msg)


def watch(
    model: Any,
    optimizer: Any,
    *,
    loss: Any = None,
    out: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> Hook:
    """Capture a training that applies the gradients of tapes.

        hook = tdbg.tensorflow.watch(model, optimizer, loss=loss, out="runs/tape")

    Args:
        model: The model of Keras; its variables and layers have names.
        optimizer: The optimizer of Keras that is given the gradients.
        loss: The loss object that is given labels and predictions; None: losses,
            labels and predictions are not captured. A function is wrapped by
            ``Hook.wrap_loss``.
        out: The run directory.
        arguments: Those of ``Hook``, by default with weights, biases and gradients.

    Raises:
        ConfigurationError: If something asked for can never work.
        StorageError: If the run cannot be made or written.
    """
    if not arguments.keys() & {"include_collections", "save_all", "rules"}:
        arguments["include_collections"] = ["weights", "biases", "gradients"]
    hook = Hook(out, **arguments)
    try:
        hook.register(model, optimizer, loss=loss)
    except ConfigurationError:
        hook.close()
        raise
    return hook


_process_hook = ProcessHook(Hook)
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
