"""Find the trainings with Keras in a program that does not use tdbg.

``loops`` finds loops with tapes.

The search passes a hook to ``fit``, ``evaluate``, ``predict`` and ``train_on_batch`` of
models.  A fitted model has its own run with all its calls.  Models that are trained
batch by batch, like adversaries, share a run.  A call to which the program passes a
hook stays as it is.  The search for trainings in PyTorch skips the inside of such calls
(``taken``), but not a loop of the program around a Keras model.

Errors: none reach the script except ``TrainingStopped``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tdbg.capture.process import at_exit
from tdbg.launch import LAUNCH_VARIABLE, summary
from tdbg.launch.family import Place, family_of
from tdbg.launch.settings import open_hook
from tdbg.launch.taken import is_taken, taken

if TYPE_CHECKING:
    from tdbg.launch.loops import LoopSearch

__all__ = ["MOST_TRAININGS", "FitSearch", "begin"]

MOST_TRAININGS = 32
"""Of one process: a search over parameters may fit thousands of models."""

_WITH_CALLBACKS = ("fit", "evaluate", "predict")
_BY_BATCH = ("train_on_batch", "test_on_batch")

_log = logging.getLogger("tdbg")


def begin(*, is_first: bool) -> None:
    """Capture the trainings of Keras, which has just been imported.

    Args:
        is_first: Whether this is the program that was launched, and not a process that
            the program has started.
    """
    summary.end_quietly()
    search = FitSearch(json.loads(os.environ[LAUNCH_VARIABLE]), is_first=is_first)
    search.start()
    at_exit(search.print_summary)


class FitSearch:
    """Give hooks to the models of Keras.

    Args:
        settings: ``out_dir``, ``existing`` (of ``family``), ``rules``,
            ``include_collections``, ``save_interval``, ``statistics_interval``,
            ``budget``, ``profiler``; all but the first may be missing.
        is_first: As of ``begin``.

    Attributes:
        hook: The hook of the present training; None until a model is trained.
        runs: The runs of the trainings so far.
    """

    def __init__(self, settings: dict[str, Any], *, is_first: bool = True) -> None:
        self._settings = settings
        self._is_first = is_first
        self._has_failed = False
        self._facts = summary.Facts()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._loops: LoopSearch | None = None
        # Calls under way, of any thread: replicas are traced in threads of their own.
        self._n_inside = 0
        self.hook: Any = None
        self.runs: list[summary.CapturedRun] = []

    def start(self) -> None:
        """Give hooks to models from now on."""
        # The class that has them depends on the backend.
        classes = sys.modules["keras"].Model.__mro__
        for name in (*_WITH_CALLBACKS, *_BY_BATCH):
            owner = next(each for each in classes if name in vars(each))
            original = vars(owner)[name]
            make = self._with_callbacks if name in _WITH_CALLBACKS else self._by_batch
            setattr(owner, name, make(original))
            self._replaced.append((owner, name, original))
        if sys.modules["keras"].backend.backend() == "tensorflow":
            from tdbg.launch.loops import LoopSearch

            self._loops = LoopSearch(
                self._settings,
                is_first=self._is_first,
                is_inside=lambda: self._n_inside > 0,
            )
            self._loops.start()

    def stop(self) -> None:
        """Put the methods of Keras back, and end the run."""
        for owner, name, original in self._replaced:
            setattr(owner, name, original)
        self._replaced.clear()
        self._close()
        if self._loops is not None:
            self._loops.stop()

    def print_summary(self) -> None:
        """Print what was captured, or why nothing was."""
        self._close()
        runs = list(self.runs)
        if self._loops is not None:
            self._loops.close()
            runs += self._loops.runs
        if runs:
            for line in summary.captured(runs, self._facts):
                sys.stderr.write(f"tdbg: {line}\n")
        elif self._is_first and not self._has_failed and not self._appeared():
            for line in summary.why_of_keras():
                sys.stderr.write(f"tdbg: {line}\n")

    def _appeared(self) -> list[Place]:
        """Return the runs of all searches and processes of this launch."""
        return family_of(self._settings).appeared()

    # ---- a call ----------------------------------------------------------------

    def _with_callbacks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)
        is_fit = original.__name__ == "fit"

        @functools.wraps(original)
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            if is_taken():  # The validation in `fit` has its callbacks.
                return original(model, *args, **kwargs)
            try:
                given = signature.bind(model, *args, **kwargs)
            except TypeError:
                return original(model, *args, **kwargs)  # It says what is wrong.
            callbacks = given.arguments.get("callbacks")
            hook = self._hook_of(model, callbacks, begins=is_fit)
            if hook is not None:
                own = [] if callbacks is None else callbacks
                own = list(own) if isinstance(own, list | tuple) else [own]
                given.arguments["callbacks"] = [hook, *own]
            with self._inside():
                return original(*given.args, **given.kwargs)

        return call

    def _by_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        trains = original.__name__ == "train_on_batch"

        @functools.wraps(original)
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            hook = None
            if not is_taken() and (trains or self.hook is not None):
                hook = self.hook or self._hook_of(model, (), begins=True)
            if hook is not None and hook.model is not model:
                hook.set_model(model)
            with self._inside():
                return original(model, *args, **kwargs)

        return call

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Keep other searches from capturing what the call does."""
        self._n_inside += 1
        try:
            with taken():
                yield
        finally:
            self._n_inside -= 1

    def _hook_of(self, model: Any, callbacks: Any, *, begins: bool) -> Any | None:
        """Return the hook of a call; None if the program has one or none is possible.

        Args:
            model: The model that is called.
            callbacks: Those that the program gives.
            begins: Whether the call begins a training, if this is another model.
        """
        try:
            face = import_module("tdbg.keras")
            given = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
            if any(isinstance(each, face.Hook) for each in given) or self._has_failed:
                return None
            if self.hook is not None and self.hook.model is model:
                return self.hook
            if begins and len(self.runs) >= MOST_TRAININGS:
                self._facts.n_left_out += 1
            elif begins:
                self._close()
                self.hook, path = open_hook(
                    face.Hook, self._settings, (), is_first=self._is_first
                )
                self.runs.append(summary.CapturedRun(path, 0))
                return self.hook
        except Exception:
            self._has_failed = True
            _log.warning("tdbg run captures nothing from this training", exc_info=True)
        return None

    def _close(self) -> None:
        """End the present run."""
        if self.hook is not None:
            self.runs[-1] = summary.CapturedRun(self.runs[-1].path, self.hook.n_steps)
            self.hook.close()
            self.hook = None
