"""What the other callbacks of a ``fit`` watch: a metric, and in which direction.

They are found in Keras's own list of callbacks, which calls this hook.  No property of
a program's own objects is read.

Thread safety: the training's thread.  Errors: none of its own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import Any, NamedTuple

from tdbg.capture.session import Session
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["CallbackWatch", "callers"]

_KINDS = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
# Methods that read the metric; a subclass with one of its own may read another.
_READING = ("on_epoch_end", "get_monitor_value")
# Settings by which a callback keeps the best weights.
_KEEPING = ("save_best_only", "restore_best_weights")
# Epochs that show whether a metric is there, and where it goes.
_ENOUGH_EPOCHS = 3
_MOST_FRAMES = 16
_VALIDATION = "val_"


class _Watcher(NamedTuple):
    """A callback that watches a metric.

    Attributes:
        name: Its class.
        kind: The class of Keras that it is of.
        monitor: The name of the metric.
        mode: Which way the metric is to go: ``"min"``, ``"max"`` or ``"auto"``.
        keeps_best: Whether it keeps the best weights, and no others.
    """

    name: str
    kind: str
    monitor: str
    mode: str
    keeps_best: bool


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
        self._watchers = list(_watchers_in(_beside(hook)))
        for each in self._watchers:
            if each.keeps_best and each.monitor.startswith(_VALIDATION):
                self._observe(Fault.BEST_KEPT, each, {}, {})
        self._logs: Mapping[str, Any] | None = None
        self._n_epochs = 0
        self._first: dict[str, float] = {}
        self._seen: set[_Watcher] = set()

    def epoch_ended(self, logs: Mapping[str, Any]) -> None:
        """Keep the metrics of an epoch."""
        self._logs = logs if self._watchers else None

    def epoch_begins(self, model: Any) -> None:
        """Look at the metrics of the last epoch, if there was one."""
        logs, self._logs = self._logs, None
        if logs is None:
            return
        self._n_epochs += 1
        for each in list(self._watchers):
            value = _number(logs.get(each.monitor))
            if value is None:
                self._look_for(each, logs, model)
            else:
                self._seen.add(each)
                self._look_at(each, value, model)

    def _look_for(self, each: _Watcher, logs: Mapping[str, Any], model: Any) -> None:
        if each.monitor in logs or each in self._seen:
            return
        if self._n_epochs == _ENOUGH_EPOCHS and not (
            each.monitor.startswith(_VALIDATION) and _is_validated_later(model)
        ):
            names = ", ".join(sorted(map(str, logs)))
            self._observe(Fault.WATCHES_NOTHING, each, {}, {"metrics": names})

    def _look_at(self, each: _Watcher, value: float, model: Any) -> None:
        rises = _rises(each.monitor.removeprefix(_VALIDATION), model)
        if rises is None or each.mode != ("min" if rises else "max"):
            return
        first = self._first.setdefault(each.monitor, value)
        has_moved = value > first if rises else value < first
        if has_moved and self._n_epochs >= _ENOUGH_EPOCHS:
            numbers = {
                "first": first,
                "latest": value,
                "epochs": float(self._n_epochs),
            }
            self._observe(Fault.WATCHES_WRONG_WAY, each, numbers, {"mode": each.mode})
            self._watchers.remove(each)

    def _observe(
        self,
        fault: Fault,
        each: _Watcher,
        numbers: dict[str, float],
        words: dict[str, str],
    ) -> None:
        self._session.observe(
            Observation(
                fault,
                max(0, self._session.latest_step(TRAIN)[0]),
                (each.name,),
                numbers,
                {**words, "class": each.kind, "monitor": each.monitor},
            )
        )


def _beside(hook: Any) -> Sequence[Any]:
    """Return the callbacks of the ``fit`` that calls this, the hook among them."""
    kind = import_module("keras").callbacks.CallbackList
    for names, _, _ in callers():
        caller = names.get("self")
        if issubclass(type(caller), kind):
            found = vars(caller).get("callbacks")
            if isinstance(found, list) and any(each is hook for each in found):
                return found
    return ()


def callers() -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yield variables, module and name of what calls this, the nearest first."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        module = str(frame.f_globals.get("__name__"))
        yield frame.f_locals, module, frame.f_code.co_name
        frame = frame.f_back


def _watchers_in(callbacks: Sequence[Any]) -> Iterator[_Watcher]:
    """Yield the callbacks of Keras that watch a metric, and do something by it."""
    of_keras = import_module("keras").callbacks
    for each in callbacks:
        kind = next((k for k in _KINDS if _is_a(type(each), getattr(of_keras, k))), "")
        settings = vars(each) if kind else {}
        monitor = settings.get("monitor")
        if isinstance(monitor, str) and settings.get("save_best_only", True):
            name, mode = type(each).__name__, str(settings.get("mode", ""))
            keeps = (settings.get(one) for one in _KEEPING)
            yield _Watcher(name, kind, monitor, mode, any(map(bool, keeps)))


def _is_a(one: type, kind: type) -> bool:
    """Return whether a class is one of Keras, or reads the metric as that does."""
    return issubclass(one, kind) and all(
        getattr(one, name, None) is getattr(kind, name, None) for name in _READING
    )


def _is_validated_later(model: Any) -> bool:
    """Return whether the ``fit`` of a model validates, if not after each epoch."""
    for names, _, _ in callers():
        if names.get("self") is model and "validation_freq" in names:
            frequency = names["validation_freq"]
            is_each = isinstance(frequency, int) and frequency == 1
            return names.get("validation_data") is not None and not is_each
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
