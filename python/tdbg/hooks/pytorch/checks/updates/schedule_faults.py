"""Faults of one schedule of the learning rate, by its counts.

A schedule has a length, a warm-up, or steps at which the rate falls, in its own steps.
They are compared with the steps of the optimizer, the forwards, the batches of an epoch
and the ranks.

Thread safety: values.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CyclicLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

from tdbg.hooks.pytorch.model.process_objects import longest_loader
from tdbg.run.observations import Fault
from tdbg.run.schedules import BATCH_SETTINGS, RateSchedule

__all__ = ["Followed", "Look", "early_faults", "is_surely_longer", "late_faults"]

# Where PyTorch's schedules hold their lengths.
_SETTINGS = ("total_steps", "T_max", "total_iters")
# What functions for LambdaLR call it, as those of transformers do.
_ARGUMENTS = ("num_training_steps", "total_steps", "max_steps")
_WARM_UPS = ("num_warmup_steps", "warmup_steps")
# Steps of a schedule for each step of the optimizer that are more than one.
_MORE_THAN_ONE = 1.5
# A schedule is over early if the optimizer makes at least so many steps afterwards,
# and this share of all.
_LEAST_AFTER, _SHARE_AFTER = 20, 0.1
# The batches of an epoch, at least, that differ clearly from one.
_LEAST_BATCHES = 4
# Epochs in which it is seen how a schedule steps.
_LEAST_EPOCHS = 2
# Whole epochs of a training that nobody has stopped early, and a warm-up so many times
# as long.
_WHOLE_EPOCHS, _MUCH_LONGER = 3, 3
# Steps of a training that is no mere trial, and of a warm-up that is not in epochs.
_LEAST_STEPS, _SURELY_BATCHES = 20, 100


class Look(NamedTuple):
    """How far a schedule had come.

    Attributes:
        steps: Of the schedule.
        n_steps: Of the training, that have begun.
        n_forwards: Of the training.
    """

    steps: int
    n_steps: int
    n_forwards: int


class Followed:
    """A schedule with a length, or with a warm-up, as it was last seen.

    Attributes:
        name: Its class.
        setting: What sets its length; empty: nothing.
        length: Number of its steps.
        warm_up: Steps of its warm-up; 0: none is known.
        falls: Whether the rate at its end is lower than at its beginning.
        first: When it was seen first.
        latest: When it was seen last.
        before: When it was last seen before its end.
        ended: When it was first seen at its end; None: it has not come there.
        n_batches: Of the longest loader; 0: there is none.
        is_unused: Whether it has made no step yet, and the rate is the one it has set.
        falls_at: Its steps at which the rate falls, or the first of regular ones.
    """

    def __init__(self, found: LRScheduler, now: Look) -> None:
        given = _given(found)
        lengths = {name: given[name] for name in given if _is_length(given[name])}
        self.name = type(found).__name__
        names = (*_SETTINGS, *_ARGUMENTS)
        self.setting = next((name for name in names if name in lengths), "")
        self.length = lengths.get(self.setting, 0)
        self.warm_up = next((lengths[each] for each in _WARM_UPS if each in lengths), 0)
        self.falls = isinstance(found, CosineAnnealingLR | LambdaLR | PolynomialLR)
        if isinstance(found, LinearLR):
            self.falls = found.end_factor < found.start_factor
        self.falls_at = _falls_of(found)
        self.is_unused = True
        self.first = self.latest = self.before = now
        self.ended: Look | None = None
        self.n_batches = 0
        self.see(now)

    def see(self, now: Look) -> None:
        """Note how far it has come."""
        self.latest = now
        if self.ended is not None or not self.length:
            return
        # OneCycleLR is at its end one step before it refuses to step.
        if now.steps < self.length - 1:
            self.before = now
        else:
            self.ended = now
            self.n_batches = self.n_batches or longest_loader()

    @property
    def is_whole(self) -> bool:
        """Whether it was seen from its beginning, which was the training's."""
        return self.first.n_steps <= 1 and self.first.steps == 0

    @property
    def steps_with_optimizer(self) -> bool:
        """Whether it steps once with each step of the optimizer."""
        n_steps = self.latest.n_steps
        # One step and none of the schedule show nothing.
        return n_steps > 1 and 0 <= n_steps - self.latest.steps <= 1

    def pace(self) -> float:
        """Return its steps for each step of the optimizer, or somewhat less."""
        ends = [self.before] if self.ended is None else [self.before, self.ended]
        paces = [
            (each.steps - self.first.steps) / (each.n_steps - self.first.n_steps)
            for each in ends
            if each.n_steps > self.first.n_steps
        ]
        return max(paces, default=0.0)

    def described(self, n_steps: int) -> RateSchedule:
        """Return it as it is written at the end."""
        latest = self.latest
        return RateSchedule(
            self.name, self.setting, self.length, latest.steps, latest.n_steps, n_steps
        )


def early_faults(each: Followed) -> Iterator[tuple[Fault, dict[str, float]]]:
    """Yield what is known while the training goes on."""
    if each.warm_up > each.length > 0:
        yield Fault.WARM_UP_TOO_LONG, {"warm_up": float(each.warm_up)}
    ended, latest, pace = each.ended, each.latest, each.pace()
    if ended is None or each.setting not in BATCH_SETTINGS or pace < _MORE_THAN_ONE:
        return
    after = latest.n_steps - ended.n_steps
    if after >= max(_LEAST_AFTER, _SHARE_AFTER * latest.n_steps):
        yield Fault.SCHEDULE_TOO_OFTEN, {"pace": pace}


def late_faults(
    each: Followed, n_steps: int, n_forwards: int, world: int
) -> Iterator[tuple[Fault, dict[str, float]]]:
    """Yield what the end of a training shows, by its counts."""
    length, batches = each.length, each.n_batches
    yield from _faults_of_warm_up(each, n_steps)
    yield from _faults_of_epochs(each, n_steps)
    pace = each.latest.steps / max(1, n_steps)
    if length == n_steps >= _LEAST_STEPS and pace >= _MORE_THAN_ONE:
        yield Fault.SCHEDULE_TOO_OFTEN, {"pace": pace}
    if length < 2 or not each.steps_with_optimizer:
        return
    is_epochs = batches >= _LEAST_BATCHES and n_steps == length * batches
    if is_epochs and each.falls:
        yield Fault.SCHEDULE_IN_EPOCHS, {"batches": float(batches)}
        return
    if length == n_forwards >= _MORE_THAN_ONE * n_steps:
        is_sure = batches > 0 and n_forwards % batches == 0
        numbers = {"forwards": float(n_forwards), "sure": float(is_sure)}
        yield Fault.SCHEDULE_IN_MICRO_BATCHES, numbers
    elif world > 1 and length == n_steps * world:
        is_sure = batches > 0 and n_steps % batches == 0
        numbers = {"ranks": float(world), "sure": float(is_sure)}
        yield Fault.SCHEDULE_FOR_ALL_RANKS, numbers


def _faults_of_epochs(
    each: Followed, n_steps: int
) -> Iterator[tuple[Fault, dict[str, float]]]:
    """Yield that a schedule counts batches or epochs, and is stepped with the other."""
    batches, steps = each.n_batches, each.latest.steps
    if batches < _LEAST_BATCHES:
        return
    # Its last steps may be unknown, if the program has dropped it.
    epochs, seen = n_steps // batches, each.latest.n_steps // batches
    if epochs < _LEAST_EPOCHS:
        return
    numbers = {"batches": float(batches), "epochs": float(epochs)}
    first = float(min(each.falls_at, default=0))
    is_by_epoch = seen >= _LEAST_EPOCHS and steps in {seen - 1, seen}
    is_whole = is_by_epoch and n_steps % batches == 0
    if is_whole and any(each.falls_at):
        # All lie behind the end, and would be at the ends of epochs.
        if all(
            steps < at <= n_steps and at % batches == 0 and at >= batches
            for at in each.falls_at
        ):
            yield Fault.SCHEDULE_IN_BATCHES, {**numbers, "at": first}
        return
    # A step more keeps OneCycleLR from refusing the last one.
    if is_whole and n_steps <= each.length <= n_steps + 1:
        yield Fault.SCHEDULE_IN_BATCHES, {**numbers, "at": float(n_steps)}
        return
    # All are over long before the end, and would be at different epochs.
    last = max(each.falls_at, default=n_steps)
    if each.steps_with_optimizer and last <= epochs and last < batches:
        yield Fault.DECAYS_IN_EPOCHS, {**numbers, "at": first}


def _faults_of_warm_up(
    each: Followed, n_steps: int
) -> Iterator[tuple[Fault, dict[str, float]]]:
    """Yield that the rate was still rising at the end of the training."""
    steps, warm_up = each.latest.steps, each.warm_up
    if n_steps < _LEAST_STEPS or not 1 < steps < warm_up or warm_up > each.length > 0:
        return
    # SlowSchedule reports schedules as long as the training.
    is_slow = 2 * steps <= min(warm_up, n_steps) and each.length != n_steps
    if n_steps < warm_up and each.steps_with_optimizer:
        sure = is_surely_longer(warm_up, n_steps, each.n_batches)
        yield Fault.WARM_UP_NOT_OVER, {"warm_up": float(warm_up), **sure}
    elif is_slow and n_steps >= warm_up >= _SURELY_BATCHES:
        yield Fault.WARM_UP_NOT_OVER, {"warm_up": float(warm_up), "sure": 1.0}


def is_surely_longer(warm_up: float, n_steps: int, batches: int) -> dict[str, float]:
    """Return whether a warm-up is longer than a training that was meant to end here.

    A trial is stopped early, and seldom after several whole epochs.
    """
    epochs = n_steps / batches if batches >= _LEAST_BATCHES else 0.0
    is_whole = epochs >= _WHOLE_EPOCHS and epochs == int(epochs)
    if is_whole and warm_up >= _MUCH_LONGER * n_steps:
        return {"sure": 1.0, "epochs": epochs}
    return {"sure": 0.0}


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _falls_of(found: LRScheduler) -> tuple[int, ...]:
    """Return the steps at which the rate falls, as far as the program gives some."""
    if isinstance(found, MultiStepLR):
        return tuple(int(each) for each in found.milestones)
    if isinstance(found, StepLR):
        return (int(found.step_size),) if found.gamma < 1 else ()
    if isinstance(found, CyclicLR):
        return (round(found.total_size * found.step_ratio),)
    return ()


def _given(found: LRScheduler) -> dict[str, Any]:
    """Return what a schedule was made with, as far as its lengths are concerned."""
    if not isinstance(found, LambdaLR):
        return {name: vars(found)[name] for name in _SETTINGS if name in vars(found)}
    given: dict[str, Any] = {}
    for function in found.lr_lambdas:
        while isinstance(function, functools.partial):
            given |= function.keywords
            function = function.func  # noqa: PLW2901
        with contextlib.suppress(Exception):
            given |= inspect.getclosurevars(function).nonlocals
    names = (*_ARGUMENTS, *_WARM_UPS)
    return {name: given[name] for name in names if name in given}
