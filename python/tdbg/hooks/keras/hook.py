"""``Hook``: the callback that users of Keras give to ``fit``, and ``evaluate``.

Keras is imported when a hook is made, and not before: what is imported first chooses
Keras's backend.
"""

from __future__ import annotations

import logging
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
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
from tdbg.hooks.keras.functions import FUNCTIONS, StepFunction
from tdbg.hooks.keras.mode import KerasMode
from tdbg.hooks.keras.model_info import KerasModel
from tdbg.hooks.keras.optimizers import inner_of
from tdbg.hooks.keras.replicas import strategy_problem
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.modes import EVAL, TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]

_log = logging.getLogger("tdbg")
_WATCHED = frozenset({"EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint"})
# Schedules that end after a number of steps, which is meant for all of the training.
_ENDING = frozenset({"CosineDecay", "PolynomialDecay"})
# Epochs that show whether a metric is there, and where it goes.
_ENOUGH_EPOCHS = 3
_MOST_FRAMES = 12
_VALIDATION = "val_"
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

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """``evaluate`` begins, or the validation in ``fit``."""
        self._keras_mode.of_function(EVAL)
        self._session.run(self._metrics_are_reset)

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """``evaluate`` ends."""
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


class CallbackWatch:
    """Follows the metrics that callbacks of one ``fit`` watch.

    The metrics of an epoch are read as the next one begins: another callback may have
    added some by then.

    Args:
        session: Receives what is seen.
        hook: The hook, which is one of the callbacks.
    """

    def __init__(self, session: Session, hook: Any) -> None:
        self._session = session
        self._callbacks = list(_watching(_beside(hook)))
        self._logs: Mapping[str, Any] | None = None
        self._n_epochs = 0
        self._first: dict[str, float] = {}
        self._seen: set[int] = set()

    def epoch_ended(self, logs: Mapping[str, Any]) -> None:
        """Keep the metrics of an epoch."""
        self._logs = logs if self._callbacks else None

    def epoch_begins(self, model: Any) -> None:
        """Look at the metrics of the last epoch, if there was one."""
        logs, self._logs = self._logs, None
        if logs is None:
            return
        self._n_epochs += 1
        for callback in self._callbacks:
            value = _number(logs.get(callback.monitor))
            if value is None:
                self._look_for(callback, logs)
            else:
                self._seen.add(id(callback))
                self._look_at(callback, value, model)

    def _look_for(self, callback: Any, logs: Mapping[str, Any]) -> None:
        if callback.monitor in logs or id(callback) in self._seen:
            return
        if self._n_epochs == _ENOUGH_EPOCHS and not _is_validated_later(callback):
            names = ", ".join(sorted(map(str, logs)))
            self._observe(Fault.WATCHES_NOTHING, callback, {}, {"metrics": names})

    def _look_at(self, callback: Any, value: float, model: Any) -> None:
        mode, name = str(getattr(callback, "mode", "")), str(callback.monitor)
        rises = _rises(name.removeprefix(_VALIDATION), model)
        if rises is None or mode != ("min" if rises else "max"):
            return
        first = self._first.setdefault(name, value)
        has_moved = value > first if rises else value < first
        if has_moved and self._n_epochs >= _ENOUGH_EPOCHS:
            numbers = {
                "first": first,
                "latest": value,
                "epochs": float(self._n_epochs),
            }
            self._observe(Fault.WATCHES_WRONG_WAY, callback, numbers, {"mode": mode})
            self._callbacks = [each for each in self._callbacks if each is not callback]

    def _observe(
        self,
        fault: Fault,
        callback: Any,
        numbers: dict[str, float],
        words: dict[str, str],
    ) -> None:
        name = type(callback).__name__
        self._session.observe(
            Observation(
                fault,
                max(0, self._session.latest_step(TRAIN)[0]),
                (name,),
                numbers,
                {**words, "class": name, "monitor": str(callback.monitor)},
            )
        )


def look_at_schedule(
    session: Session, optimizers: Sequence[Any], params: Mapping[str, Any]
) -> None:
    """Report a schedule whose length is the number of epochs: Keras counts steps.

    Args:
        session: Receives what is seen.
        optimizers: Of the model.
        params: What Keras tells callbacks of ``fit``.
    """
    epochs, steps = params.get("epochs"), params.get("steps")
    if not isinstance(epochs, int) or not isinstance(steps, int) or steps < 2:
        return
    for optimizer in map(inner_of, optimizers):
        schedule = getattr(optimizer, "_learning_rate", None)
        name, length = type(schedule).__name__, getattr(schedule, "decay_steps", None)
        if name not in _ENDING or getattr(schedule, "cycle", False):
            continue
        warm_up = getattr(schedule, "warmup_steps", 0)
        if length == epochs > 1 and not warm_up:
            session.observe(
                Observation(
                    Fault.SCHEDULE_IN_EPOCHS,
                    max(0, session.latest_step(TRAIN)[0]),
                    (name,),
                    {"length": float(length), "batches": float(steps)},
                    {"setting": "decay_steps", "counts": "steps"},
                )
            )


def _beside(hook: Any) -> Sequence[Any]:
    """Return the callbacks of the ``fit`` that calls this, the hook among them."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        found = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(found, list) and any(each is hook for each in found):
            return found
        frame = frame.f_back
    return ()


def _watching(callbacks: Sequence[Any]) -> Iterator[Any]:
    for each in callbacks:
        is_known = type(each).__name__ in _WATCHED
        saves_all = not getattr(each, "save_best_only", True)
        if is_known and not saves_all and isinstance(each.monitor, str):
            yield each


def _is_validated_later(callback: Any) -> bool:
    """Return whether ``fit`` validates, if not after each epoch."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if "validation_freq" in frame.f_locals and "validation_data" in frame.f_locals:
            frequency = frame.f_locals["validation_freq"]
            is_each = frequency == 1 or frame.f_locals["validation_data"] is None
            return callback.monitor.startswith(_VALIDATION) and not is_each
        frame = frame.f_back
    return False


def _rises(name: str, model: Any) -> bool | None:
    """Return whether a metric rises as a model gets better; None: unknown."""
    if name == "loss" or name.endswith("_loss"):
        return False
    for metric in _metrics_of(model):
        if metric.name == name:
            direction = getattr(metric, "_direction", None)
            return {"up": True, "down": False}.get(direction or "")
    return None


def _metrics_of(model: Any) -> Iterator[Any]:
    for metric in getattr(model, "metrics", ()):
        inner = getattr(metric, "metrics", None)
        if isinstance(inner, list):
            yield from inner
        yield metric


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
