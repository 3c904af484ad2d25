"""Learning-rate schedules of PyTorch: how long they are, and how often they step.

Nobody registers a schedule.  PyTorch marks the ``step`` of an optimizer that has one;
only then are the objects of the process searched, once.  Schedules are looked at now
and then, since a function that trains may drop its own before the training is closed.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.model.process_objects import schedules_of
from tdbg.run.schedules import RateSchedule

__all__ = ["Schedules"]

# Where PyTorch's schedules hold their lengths.
_SETTINGS = ("total_steps", "T_max", "total_iters")
# What functions for LambdaLR call it, as those of transformers do.
_ARGUMENTS = ("num_training_steps", "total_steps", "max_steps")


class Schedules:
    """The schedules of an optimizer.

    Args:
        session: Counts the steps of training.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._found: dict[weakref.ref[LRScheduler], RateSchedule | None] = {}

    def look(self, optimizers: Sequence[Optimizer]) -> None:
        """Note how far the schedules have come; of several optimizers, nothing.

        Steps of training are counted, which are those of an optimizer that is alone.
        """
        if len(optimizers) != 1:
            # One that is gone has left what was last known of its schedules.
            if optimizers:
                self._found.clear()
            return
        (optimizer,) = optimizers
        if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            return
        if self._optimizer is None or self._optimizer() is not optimizer:
            self._optimizer = weakref.ref(optimizer)
            self._found = {weakref.ref(each): None for each in schedules_of(optimizer)}
        for reference in self._found:
            found = reference()
            if found is not None:
                self._found[reference] = _schedule(
                    found, self._session.n_training_steps
                )

    def known(self) -> tuple[RateSchedule, ...]:
        """Return those that have a length, as they were last seen."""
        n_steps = self._session.n_training_steps
        return tuple(
            dataclasses.replace(each, optimizer_steps=n_steps)
            for each in self._found.values()
            if each is not None
        )


def _schedule(found: LRScheduler, n_steps: int) -> RateSchedule | None:
    """Describe a schedule; None: it has no length that is known."""
    for setting, length in _lengths(found).items():
        if isinstance(length, int) and length > 0:
            steps = int(found.last_epoch)
            return RateSchedule(
                type(found).__name__, setting, length, steps, n_steps, n_steps
            )
    return None


def _lengths(found: LRScheduler) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if isinstance(found, LambdaLR):
        for function in found.lr_lambdas:
            while isinstance(function, functools.partial):
                given |= function.keywords
                function = function.func  # noqa: PLW2901
            with contextlib.suppress(Exception):
                given |= inspect.getclosurevars(function).nonlocals
        return {name: given[name] for name in _ARGUMENTS if name in given}
    return {name: vars(found)[name] for name in _SETTINGS if name in vars(found)}
