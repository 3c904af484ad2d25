"""``Hook``: the callback that users of Keras give to ``fit``, and ``evaluate``.

Keras is imported when a hook is made, and not before: what is imported first chooses
Keras's backend.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.modes import CurrentMode
from tdbg.capture.naming import UniqueNames
from tdbg.capture.session import Session
from tdbg.capture.step_clock import STEP_OF
from tdbg.config.options import is_disabled
from tdbg.hooks.framework import FrameworkHook
from tdbg.hooks.keras.adapter import KerasAdapter
from tdbg.hooks.keras.backend import Backend, backend_of_keras
from tdbg.hooks.keras.callbacks import CallbackWatch
from tdbg.hooks.keras.facts import EvaluationWatch, look_at_metrics
from tdbg.hooks.keras.functions import FUNCTIONS, StepFunction
from tdbg.hooks.keras.given import GivenData, arguments_of_fit
from tdbg.hooks.keras.mode import KerasMode
from tdbg.hooks.keras.model_info import KerasModel
from tdbg.hooks.keras.optimizers import look_at_schedule
from tdbg.hooks.keras.pipelines import look_at_pipeline
from tdbg.hooks.keras.replicas import strategy_problem
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.modes import EVAL, TRAIN

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]

_log = logging.getLogger("tdbg")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _is_default(method: _Function) -> _Function:
    """Mark a method of a callback that does nothing, as Keras marks its own.

    A callback with a method of its own for the end of batches would switch off
    asynchronous dispatch on the backends that have it.
    """
    method._is_default = True  # type: ignore[attr-defined]
    return method


class Hook(FrameworkHook):
    """A callback that captures trainings of Keras; losses unless told otherwise.

    Its arguments are those of ``HookBase``: docs/configuration.md.  A stop ends the
    training by ``TrainingStopped``, or with ``on_stop="flag"`` by
    ``model.stop_training``; nothing else reaches it.

    Example::

        hook = tdbg.keras.Hook("runs/digits", include_collections=["gradients"])
        model.fit(x, y, callbacks=[hook])

    Attributes:
        model: The model of the latest ``fit``, ``evaluate`` or ``predict``.
        params: What Keras tells callbacks.
    """

    def _make_adapter(self) -> FrameworkAdapter:
        self._backend: Backend | None = None
        if getattr(self, "_is_copy", False) or is_disabled():
            return KerasAdapter(None)
        self._backend = backend_of_keras()
        return KerasAdapter(self._backend)

    def _attach(self, session: Session) -> CurrentMode:
        session.forward_of = STEP_OF
        self.params: Mapping[str, Any] = {}
        self._model_ref: weakref.ref[Any] | None = None
        self._names = UniqueNames()
        self._watched: list[WatchedModel] = []
        self._functions: dict[int, list[StepFunction]] = {}
        self._model_info = ModelInfoWriter(session, KerasModel(self._watched))
        self._keras_mode = KerasMode(session)
        self._callbacks: CallbackWatch | None = None
        self._evaluations = EvaluationWatch(session)
        self._given: GivenData | None = None
        if self._backend is not None:
            self._given = GivenData(session, self._backend)
        session.listen(change=_refreshing(self._watched))
        return self._keras_mode

    def _detach(self) -> None:
        self._session.run(self._model_info.conclude)
        for functions in self._functions.values():
            for function in functions:
                function.remove()

    # ---- a callback of Keras -----------------------------------------------------

    @property
    def model(self) -> Any:
        """The model of the latest ``fit``, ``evaluate`` or ``predict``, or None."""
        return None if self._model_ref is None else self._model_ref()

    def set_model(self, model: Any) -> None:
        """Capture this model from now on; Keras calls it at the beginning of ``fit``.

        Call it yourself before ``train_on_batch``, which knows no callbacks.
        """
        self._model_ref = weakref.ref(model)
        self._session.run(self._watch, model)

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Keep what Keras tells callbacks."""
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """``fit`` begins."""
        self._keras_mode.of_function(TRAIN)
        watched = self._watched_of(self.model)
        if watched is not None:
            self._session.run(watched.first_steps.fit_begins)
        self._callbacks = self._session.run(CallbackWatch, self._session, self)
        if self._given is not None:
            self._session.run(self._given.fit_begins, self.model)
            self._session.run(look_at_pipeline, self._session, arguments_of_fit())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """An epoch begins: Keras has reset its metrics."""
        self._session.run(self._metrics_are_reset)
        if self._callbacks is not None:
            self._session.run(self._callbacks.epoch_begins, self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the metrics of the epoch, those of its validation too."""
        self._keras_mode.of_function(TRAIN)
        self._session.run(self._record_epoch, dict(logs or {}))
        if self._callbacks is not None and logs:
            self._session.run(self._callbacks.epoch_ended, logs)
        watched = self._watched_of(self.model)
        if watched is not None and not epoch:
            optimizers = watched.optimizers()
            self._session.run(look_at_schedule, self._session, optimizers, self.params)
            self._session.run(self._look_at_metrics, watched)

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """``evaluate`` begins, or the validation in ``fit``."""
        self._keras_mode.of_function(EVAL)
        self._session.run(self._metrics_are_reset)
        watched = self._watched_of(self.model)
        if watched is not None:
            self._session.run(self._evaluations.begins, watched.model, watched.backend)

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """``evaluate`` ends."""
        watched = self._watched_of(self.model)
        if watched is not None:
            self._session.run(
                self._evaluations.ended, watched.model, watched.backend, watched.paths
            )
        self._keras_mode.of_function(TRAIN)

    @_is_default
    def on_train_end(self, logs: Any = None) -> None:
        """Do nothing: further calls of ``fit`` belong to the same run."""

    @_is_default
    def on_predict_begin(self, logs: Any = None) -> None:
        """Do nothing."""

    @_is_default
    def on_predict_end(self, logs: Any = None) -> None:
        """Do nothing."""

    @_is_default
    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Do nothing: the hook watches the model's functions."""

    on_batch_end = on_train_batch_begin = on_train_batch_end = on_batch_begin
    on_test_batch_begin = on_test_batch_end = on_batch_begin
    on_predict_batch_begin = on_predict_batch_end = on_batch_begin

    # ---- inside ------------------------------------------------------------------

    def _watch(self, model: Any) -> None:
        if self._backend is None:
            return
        problem = strategy_problem(model)
        if problem is not None:
            _log.warning("%s; tdbg captures nothing from it", problem)
            return
        functions = self._functions.get(id(model))
        if functions is None or self._watched_of(model) is None:
            functions = self._functions[id(model)] = self._begin_to_watch(model)
        watched = self._watched_of(model)
        if watched is not None:
            watched.look(model)
        for function in functions:
            function.install()

    def _watched_of(self, model: Any) -> WatchedModel | None:
        return next((each for each in self._watched if each.model is model), None)

    def _begin_to_watch(self, model: Any) -> list[StepFunction]:
        session, backend = self._session, self._backend
        if backend is None:
            return []
        root = self._names.take(type(model).__name__)
        prefix = f"{root}/" if self._watched else ""
        watched = WatchedModel(
            session, backend, model, root, prefix, id(session), self._model_info
        )
        self._watched.append(watched)
        session.optimizer_found(id(session))
        watched.look(model)
        return [
            StepFunction(watched, attribute, self._keras_mode)
            for attribute in FUNCTIONS
        ]

    def _look_at_metrics(self, watched: WatchedModel) -> None:
        losses = watched.losses.functions(watched.model)
        labels = arguments_of_fit().get("y")
        look_at_metrics(self._session, watched.model, losses, labels)

    def _metrics_are_reset(self) -> None:
        watched = self._watched_of(self.model)
        if watched is not None:
            watched.loss_records.metrics_are_reset()

    def _record_epoch(self, logs: Mapping[str, Any]) -> None:
        watched = self._watched_of(self.model)
        prefix = "" if watched is None else watched.prefix
        for name, value in logs.items():
            number = self._adapter.read_number(value)
            self._session.record_scalar(TRAIN, f"{prefix}epoch/{name}", number)


def _refreshing(watched: list[WatchedModel]) -> Callable[[], None]:
    """Return what makes models forget what is captured of them."""

    def refresh() -> None:
        for each in watched:
            each.refresh()

    return refresh


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
