"""Find the trainings of boosted trees in a program that does not use tdbg.

The search passes a hook to each call of ``train`` and ``cv`` of XGBoost and LightGBM,
which estimators call, too, and of ``fit`` of CatBoost's models, which its ``train``
calls.  If CatBoost takes no callback (on a GPU, and in ``cv``), the search records the
result of the call.  Each call has its own run.  A call to which the program passes a
hook stays as it is.  Rounds that a program makes with ``Booster.update`` are only
counted and reported.

Errors: none reach the script.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from tdbg.capture.process import at_exit
from tdbg.config.quantities import plural
from tdbg.launch import LAUNCH_VARIABLE, summary
from tdbg.launch.family import Place, family_of
from tdbg.launch.settings import open_hook

__all__ = ["FRAMEWORKS", "MOST_TRAININGS", "BoostingSearch", "begin", "data_of"]

FRAMEWORKS = ("xgboost", "lightgbm", "catboost")
MOST_TRAININGS = 32
"""Of one process: a search over parameters may train thousands of models."""

# Captured beside metrics, losses, and what the rules need.
_COLLECTIONS = ("feature_importance", "trees", "hyperparameters")
# What trains, by framework: functions of the package, and methods of its classes.
_ENTRIES = {
    "xgboost": ("train", "cv"),
    "lightgbm": ("train", "cv"),
    "catboost": (
        "CatBoost.fit",
        "CatBoostClassifier.fit",
        "CatBoostRanker.fit",
        "CatBoostRegressor.fit",
        "cv",
    ),
}
# What makes a round, of those of which a program calls it itself.
_ROUNDS = {"xgboost": ("update", "boost"), "lightgbm": ("update",)}
_CALLBACKS = "callbacks"
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}

_log = logging.getLogger("tdbg")


def begin(framework: str, *, is_first: bool) -> None:
    """Capture the trainings of a framework, which has just been imported.

    Args:
        framework: One of ``FRAMEWORKS``.
        is_first: Whether this is the program that was launched, and not a process that
            the program has started.
    """
    summary.end_quietly()
    settings = json.loads(os.environ[LAUNCH_VARIABLE])
    search = BoostingSearch(framework, settings, is_first=is_first)
    search.start()
    at_exit(search.print_summary)


class BoostingSearch:
    """Give a hook to each training of a framework.

    Args:
        framework: One of ``FRAMEWORKS``.
        settings: ``out_dir``, ``existing`` (of ``family``), ``rules``,
            ``include_collections``, ``save_interval``, ``statistics_interval``,
            ``budget``, ``profiler``; all but the first may be missing.
        is_first: As of ``begin``.

    Attributes:
        runs: The runs of the trainings so far.
    """

    def __init__(
        self, framework: str, settings: dict[str, Any], *, is_first: bool = True
    ) -> None:
        self._framework = framework
        self._settings = settings
        self._is_first = is_first
        self._facts = summary.Facts()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._inside = threading.local()  # Of a call that trains, or makes a round.
        self._n_by_hand = 0
        self.runs: list[summary.CapturedRun] = []

    def start(self) -> None:
        """Put hooks into the trainings from now on."""
        package = sys.modules[self._framework]
        prefix = f"{self._framework}."
        # Modules of the package have the functions by their own names.
        modules = [
            module
            for name, module in list(sys.modules.items())
            if module is package or name.startswith(prefix)
        ]
        for entry in _ENTRIES[self._framework]:
            class_name, _, name = entry.rpartition(".")
            owners = [getattr(package, class_name)] if class_name else modules
            original = getattr(owners[0] if class_name else package, name)
            wrapped = self._wrapped(original)
            for owner in owners:
                if getattr(owner, "__dict__", {}).get(name) is original:
                    self._replace(owner, name, original, wrapped)
        for name in _ROUNDS.get(self._framework, ()):
            original = getattr(package.Booster, name)
            self._replace(package.Booster, name, original, self._counted(original))

    def _replace(self, owner: Any, name: str, original: Any, by: Any) -> None:
        setattr(owner, name, by)
        self._replaced.append((owner, name, original))

    def stop(self) -> None:
        """Put the functions of the framework back."""
        for owner, name, original in self._replaced:
            setattr(owner, name, original)
        self._replaced.clear()

    def print_summary(self) -> None:
        """Print what was captured."""
        if self._n_by_hand:
            sys.stderr.write(
                f"tdbg: your program made {plural(self._n_by_hand, 'round')} with "
                f"Booster.update, which tdbg run cannot capture. Call "
                f"{self._framework}.train instead\n"
            )
        if self.runs:
            for line in summary.captured(self.runs, self._facts):
                sys.stderr.write(f"tdbg: {line}\n")
        elif self._is_first and not self._appeared():
            entries = sorted({x.rpartition(".")[2] for x in _ENTRIES[self._framework]})
            for line in summary.why_of_boosting(self._framework, entries[::-1]):
                sys.stderr.write(f"tdbg: {line}\n")

    def _appeared(self) -> list[Place]:
        return family_of(self._settings).appeared()

    # ---- a training ------------------------------------------------------------

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = _by_order(original)

        def trains(*args: Any, **kwargs: Any) -> Any:
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return original(*args, **kwargs)  # It says what is wrong.
            given = arguments.get(_CALLBACKS)
            if _CALLBACKS in kwargs or given is None:
                hook = self._make_hook(given or ())
                if hook is not None:
                    with hook:
                        takes_hook = _CALLBACKS in signature.parameters
                        if takes_hook and not _is_on_gpu(arguments):
                            kwargs[_CALLBACKS] = [hook, *(given or ())]
                        try:
                            result = original(*args, **kwargs)
                            if hook not in kwargs.get(_CALLBACKS, ()):
                                self._record(hook, arguments, result)
                            return result
                        finally:
                            self._note(hook)
            return original(*args, **kwargs)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._entered():
                return trains(*args, **kwargs)

        return call

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method that makes a round, to count the program's own rounds."""

        @functools.wraps(original)
        def makes_round(*args: Any, **kwargs: Any) -> Any:
            if not getattr(self._inside, "depth", 0):
                self._n_by_hand += 1
            with self._entered():
                return original(*args, **kwargs)

        return makes_round

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        inside = self._inside
        inside.depth = getattr(inside, "depth", 0) + 1
        try:
            yield
        finally:
            inside.depth -= 1

    def _record(self, hook: Any, arguments: Mapping[str, Any], result: Any) -> None:
        """Record the result of a training of CatBoost that took no hook."""
        try:
            if "self" in arguments:
                hook.record_model(result, data_of(arguments))
            else:
                hook.record_cv(result[0] if isinstance(result, tuple) else result)
        except Exception:
            _log.warning("tdbg run captures nothing from this training", exc_info=True)

    def _make_hook(self, callbacks: Iterable[Any]) -> Any | None:
        """Make the hook of a training; None if it has one or cannot have one."""
        try:
            face = import_module(f"tdbg.{self._framework}")
            if any(isinstance(each, face.Hook) for each in callbacks):
                return None
            if len(self.runs) >= MOST_TRAININGS:
                self._facts.n_left_out += 1
                return None
            return self._open(face)
        except Exception:
            _log.warning("tdbg run captures nothing from this training", exc_info=True)
            return None

    def _open(self, face: Any) -> Any:
        hook, path = open_hook(
            face.Hook, self._settings, _COLLECTIONS, is_first=self._is_first
        )
        self.runs.append(summary.CapturedRun(path, 0))
        return hook

    def _note(self, hook: Any) -> None:
        """Note the number of rounds of the training."""
        self.runs[-1] = summary.CapturedRun(self.runs[-1].path, hook.n_steps)


def _is_on_gpu(arguments: Mapping[str, Any]) -> bool:
    """Whether this is a ``fit`` of CatBoost on a GPU, where it refuses callbacks."""
    get_param = getattr(arguments.get("self"), "get_param", None)
    return get_param is not None and get_param("task_type") == "GPU"


def data_of(arguments: Mapping[str, Any]) -> Any:
    """Return the data that the model of a ``fit`` predicts: held back or training.

    Returns:
        A ``Pool``, or a pair of samples and labels; None: they are in a file.
    """
    held_back = arguments.get("eval_set")
    if isinstance(held_back, list) and held_back:
        held_back = held_back[-1]
    found = held_back or (arguments["X"], arguments.get("y"))
    if isinstance(found, tuple) and found[1] is None:
        found = found[0]  # A pool, which has the labels.
    return None if isinstance(found, str | os.PathLike) else found


def _by_order(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature in which all arguments may be positional.

    XGBoost takes those so, too, that it asks for by name, and warns.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = inspect.signature(function).parameters.values()
    return inspect.Signature(
        [each.replace(kind=kind) for each in parameters if each.kind not in _VARIADIC],
        __validate_parameters__=False,
    )
