"""Find the trainings with Gluon in a program that does not use tdbg.

A new trainer shows which parameters it trains; the model is the outermost block that
has them. The search sees a loss at its first call. Trainers that are made before any of
them steps, like those of adversaries, share a run. A later trainer of another model
begins its own run. The search leaves a program with its own hook alone.

Errors: none reach the script except ``TrainingStopped``.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tdbg.capture.process import at_exit
from tdbg.launch import LAUNCH_VARIABLE, summary
from tdbg.launch.settings import open_hook

__all__ = ["MOST_TRAININGS", "GluonSearch", "begin"]

MOST_TRAININGS = 32
"""Of one process: a search over parameters may train thousands of models."""

# Captured beside the losses, and what the rules need.
_COLLECTIONS = ("weights", "biases", "gradients", "outputs", "scalars")

_log = logging.getLogger("tdbg")


def begin(*, is_first: bool) -> None:
    """Capture the trainings with Gluon: MXNet has just been imported.

    Args:
        is_first: Whether this is the program that was launched, and not a process that
            the program has started.
    """
    search = GluonSearch(json.loads(os.environ[LAUNCH_VARIABLE]), is_first=is_first)
    search.start()
    at_exit(search.print_summary)


class GluonSearch:
    """Give hooks to the models of Gluon.

    Args:
        settings: As of ``open_hook``.
        is_first: As of ``begin``.

    Attributes:
        hook: The hook of the present training; None until a trainer is made.
        runs: The runs of the trainings so far.
    """

    def __init__(self, settings: dict[str, Any], *, is_first: bool = True) -> None:
        self._settings = settings
        self._is_first = is_first
        self._is_idle = False
        self._facts = summary.Facts()
        self._losses: weakref.WeakSet[Any] = weakref.WeakSet()
        self._undo: list[Callable[[], None]] = []
        self.hook: Any = None
        self.runs: list[summary.CapturedRun] = []

    def start(self) -> None:
        """Watch trainers and losses from now on."""
        gluon = import_module("mxnet.gluon")
        make, call = gluon.Trainer.__init__, gluon.loss.Loss.__call__

        @functools.wraps(make)
        def made(trainer: Any, *args: Any, **kwargs: Any) -> None:
            make(trainer, *args, **kwargs)
            self._try(self._trainer_made, trainer)

        @functools.wraps(call)
        def called(loss: Any, *args: Any, **kwargs: Any) -> Any:
            if self.hook is not None and loss not in self._losses:
                self._try(self._loss_called, loss)
            return call(loss, *args, **kwargs)

        gluon.Trainer.__init__ = made
        self._undo.append(functools.partial(setattr, gluon.Trainer, "__init__", make))
        gluon.loss.Loss.__call__ = called
        self._undo.append(functools.partial(delattr, gluon.loss.Loss, "__call__"))

    def stop(self) -> None:
        """Put the methods of Gluon back, and end the run."""
        while self._undo:
            self._undo.pop()()
        self._close()

    def print_summary(self) -> None:
        """Print what was captured, or why nothing was."""
        self._close()
        if self.runs:
            for line in summary.captured(self.runs, self._facts):
                sys.stderr.write(f"tdbg: {line}\n")
        elif self._is_first and not self._is_idle:
            for line in summary.why_of_gluon():
                sys.stderr.write(f"tdbg: {line}\n")

    # ---- what the program makes ----------------------------------------------------

    def _try(self, function: Callable[[Any], None], given: Any) -> None:
        if self._is_idle:
            return
        try:
            function(given)
        except Exception:
            self._is_idle = True
            _log.warning("tdbg run captures nothing from this training", exc_info=True)

    def _trainer_made(self, trainer: Any) -> None:
        face = import_module("tdbg.mxnet")
        if face.get_hook() not in {None, self.hook}:
            self._is_idle = True  # The program has its own.
            return
        models = _models_of(trainer)
        if not models:
            return
        hook = self.hook
        if hook is not None and hook.n_steps and not all(map(hook.captures, models)):
            self._close()
        if self.hook is None:
            if len(self.runs) >= MOST_TRAININGS:
                self._facts.n_left_out += 1
                return
            self.hook, path = open_hook(
                face.Hook, self._settings, _COLLECTIONS, is_first=self._is_first
            )
            self.runs.append(summary.CapturedRun(path, 0))
        for model in models:
            self.hook.register_block(model)
        self.hook.register_trainer(trainer)

    def _loss_called(self, loss: Any) -> None:
        self._losses.add(loss)
        self.hook.register_loss(loss)

    def _close(self) -> None:
        """End the present run."""
        if self.hook is not None:
            self.runs[-1] = summary.CapturedRun(self.runs[-1].path, self.hook.n_steps)
            self.hook.close()
            self.hook = None
            self._losses.clear()


def _models_of(trainer: Any) -> list[Any]:
    """Return the outermost blocks that have parameters of a trainer."""
    gluon = import_module("mxnet.gluon")
    blocks = [each for each in gc.get_objects() if isinstance(each, gluon.Block)]
    inside = {id(child) for block in blocks for child in block._children.values()}
    trained = {id(parameter) for parameter in trainer._params}
    return [
        block
        for block in blocks
        if id(block) not in inside and not trained.isdisjoint(_parameters_of(block))
    ]


def _parameters_of(block: Any) -> set[int]:
    """Return the ids of the parameters of a block and of those inside it."""
    found = {id(parameter) for parameter in block._params._params.values()}
    for child in block._children.values():
        found |= _parameters_of(child)
    return found
