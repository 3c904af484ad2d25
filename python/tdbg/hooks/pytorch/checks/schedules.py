"""Learning-rate schedules of PyTorch: how long they are, and how often they step.

Nobody registers a schedule.  PyTorch marks the ``step`` of an optimizer that has one;
only then are the objects of the process searched, once.  Schedules are looked at now
and then, since a function that trains may drop its own before the training is closed.
Each counts its own steps, so nothing happens in one.

``ReduceLROnPlateau`` compares each metric that it is given with the best one.  This
comparison is wrapped while anybody watches.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    PolynomialLR,
    ReduceLROnPlateau,
)

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.rival_schedules import RivalSchedules
from tdbg.hooks.pytorch.model.process_objects import (
    counting_schedules,
    has_schedule,
    longest_loader,
)
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation
from tdbg.run.schedules import BATCH_SETTINGS, RateSchedule

__all__ = ["Schedules"]

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
# Steps of a training that is no mere trial, and of a warm-up that is not in epochs.
_LEAST_STEPS, _SURELY_BATCHES = 20, 100
# Steps of a schedule before the first step of the optimizer that show a resumption.
_RESUMED = 2
# Metrics that say which way they go, and those that are kept.
_ENOUGH_METRICS, _MOST_METRICS = 6, 500
# The largest number of samples of which a metric can be seen to be a share; what a
# 32-bit float leaves open in one; and what decimals have as denominators.
_MOST_SAMPLES, _ROUNDING, _DECIMAL = 20_000, 1.2e-7, 10**6
# A loss falls to this share of where it began.
_FALLEN = 0.5


class _Look(NamedTuple):
    """How far a schedule had come.

    Attributes:
        steps: Of the schedule.
        n_steps: Of the training, that have begun.
        n_forwards: Of the training.
    """

    steps: int
    n_steps: int
    n_forwards: int


class _Followed:
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
    """

    def __init__(self, found: LRScheduler, now: _Look) -> None:
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
        self.first = self.latest = self.before = now
        self.ended: _Look | None = None
        self.n_batches = 0
        self.see(now)

    def see(self, now: _Look) -> None:
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
        return 0 <= self.latest.n_steps - self.latest.steps <= 1

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


class Schedules:
    """The schedules of an optimizer.

    Args:
        session: Counts the steps of training, and writes what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._found: dict[weakref.ref[LRScheduler], _Followed] = {}
        self._has_begun = False
        # Of an optimizer without a state: it, its schedule, and the steps of that.
        self._stateless: tuple[weakref.ref[Optimizer], str, int] | None = None
        self._rivals = RivalSchedules(self._tell)
        # Optimizers whose rates may wait for a metric.
        self._watched: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._metrics: weakref.WeakKeyDictionary[Any, _Metrics] = (
            weakref.WeakKeyDictionary()
        )

    # ---- how far they have come -------------------------------------------------

    def look(self, optimizers: Sequence[Optimizer]) -> None:
        """Note how far the schedules have come; of several optimizers, nothing.

        Steps of training are counted, which are those of an optimizer that is alone.
        """
        self._watch_metrics(optimizers)
        self._look_at_state()
        with contextlib.suppress(Exception):
            self._rivals.look(optimizers)
        if len(optimizers) != 1:
            # One that is gone has left what was last known of its schedules.
            if optimizers:
                self._found.clear()
            return
        (optimizer,) = optimizers
        if not has_schedule(optimizer):
            return
        now = functools.partial(
            _Look,
            n_steps=self._session.n_training_steps,
            n_forwards=self._session.n_forwards,
        )
        if self._optimizer is None or self._optimizer() is not optimizer:
            self._optimizer = weakref.ref(optimizer)
            self._found = {
                weakref.ref(each): _Followed(each, now(int(each.last_epoch)))
                for each in counting_schedules(optimizer)
            }
        for reference, followed in self._found.items():
            found = reference()
            if found is not None:
                followed.see(now(int(found.last_epoch)))
                self._tell_all(_early_faults(followed), followed)

    def known(self) -> tuple[RateSchedule, ...]:
        """Return those that have a length, as they were last seen."""
        n_steps = self._session.n_training_steps
        return tuple(
            each.described(n_steps) for each in self._found.values() if each.length
        )

    def conclude(self) -> None:
        """Say what the end of the training shows."""
        world = distributed.get_world_size() if _is_distributed() else 1
        now = (self._session.n_training_steps, self._session.n_forwards)
        for each in self._found.values():
            each.n_batches = each.n_batches or longest_loader()
            if each.is_whole:
                self._tell_all(_late_faults(each, *now, world), each)

    def remove(self) -> None:
        """Watch no longer."""
        _unwatch(self)
        self._metrics.clear()

    def _tell_all(
        self, faults: Iterator[tuple[Fault, dict[str, float]]], followed: _Followed
    ) -> None:
        for fault, numbers in faults:
            known = {
                "length": float(followed.length),
                "steps": float(followed.latest.steps),
                "optimizer_steps": float(followed.latest.n_steps),
            }
            words = {"setting": followed.setting}
            self._tell(fault, followed.name, {**known, **numbers}, words)

    def _tell(
        self,
        fault: Fault,
        name: str,
        numbers: Mapping[str, float],
        words: Mapping[str, str],
    ) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        self._session.observe(Observation(fault, step, (name,), numbers, words))

    # ---- where they begin -------------------------------------------------------

    def step_begins(self, optimizer: Optimizer) -> None:
        """Note that an optimizer is about to step for the first time.

        Only the first one in a training shows whether that is a resumed one.
        """
        if self._has_begun:
            return
        self._has_begun = True
        if not has_schedule(optimizer):
            return
        found = counting_schedules(optimizer)
        if not optimizer.state:
            # Steps that a scaler has skipped are steps of the schedule.
            least = self._session.n_forwards + _RESUMED
            for each in found:
                if each.last_epoch >= least:
                    name, steps = type(each).__name__, int(each.last_epoch)
                    self._stateless = weakref.ref(optimizer), name, steps
            return
        if not found or any(each.last_epoch != 0 for each in found):
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        meant = list(found[-1].get_last_lr())
        if any(isinstance(each, torch.Tensor) for each in (*rates, *meant)):
            return
        if len(found) == 1 and rates != meant and _steps_of(optimizer) > 1:
            self._tell(
                Fault.SCHEDULE_BEGINS_ANEW,
                type(found[0]).__name__,
                {
                    "steps": _steps_of(optimizer),
                    "rate": float(rates[0]),
                    "meant": float(meant[0]),
                },
                {"optimizer": type(optimizer).__name__},
            )

    def _look_at_state(self) -> None:
        """See whether an optimizer that had no state keeps one at all."""
        if self._stateless is None:
            return
        (reference, name, steps), self._stateless = self._stateless, None
        optimizer = reference()
        if optimizer is not None and optimizer.state:
            self._tell(
                Fault.OPTIMIZER_BEGINS_ANEW,
                name,
                {"steps": float(steps)},
                {"optimizer": type(optimizer).__name__},
            )

    # ---- what they wait for -----------------------------------------------------

    def _watch_metrics(self, optimizers: Sequence[Optimizer]) -> None:
        new = [each for each in optimizers if each not in self._watched]
        for each in new:
            self._watched.add(each)
        if new:
            _watch(self)

    def compares(self, plateau: ReduceLROnPlateau, metric: float) -> None:
        """Note a metric that a schedule is about to compare with the best one."""
        if plateau.optimizer not in self._watched:
            return
        known = self._metrics.setdefault(plateau, _Metrics())
        rate = plateau.optimizer.param_groups[0]["lr"]
        if known.is_over or isinstance(rate, torch.Tensor):
            return
        known.add(float(metric), float(rate), float(plateau.factor))
        if known.goes_wrong(plateau.mode):
            known.is_over = True
            self._session.run(
                self._tell,
                Fault.PLATEAU_WRONG_WAY,
                type(plateau).__name__,
                {
                    "first": known.values[0],
                    "latest": known.values[-1],
                    "metrics": float(len(known.values)),
                    "reductions": float(known.n_reductions),
                },
                {"mode": plateau.mode},
            )


class _Metrics:
    """The metrics that a schedule was given.

    Attributes:
        values: They.
        n_reductions: How often the schedule has lowered the rate.
        is_over: Whether enough is known.
    """

    def __init__(self) -> None:
        self.values: list[float] = []
        self.n_reductions = 0
        self.is_over = False
        self._rate = math.nan

    def add(self, value: float, rate: float, factor: float) -> None:
        """Note a metric, and the rate before it is judged."""
        self.values.append(value)
        if math.isclose(rate, self._rate * factor, rel_tol=1e-6):
            self.n_reductions += 1
        self._rate = rate
        is_useless = not math.isfinite(value)
        self.is_over = is_useless or len(self.values) >= _MOST_METRICS

    def goes_wrong(self, mode: str) -> bool:
        """Return whether the metric gets better in the direction that counts as worse.

        It must have been best at the beginning, and set new records of the other kind
        at most of its values.  Where it is to fall, and rises, only shares of a number
        of samples are no loss that overfits; where it is to rise, and falls, they may
        be the accuracy of a model that gets worse.
        """
        values = self.values
        if not self.n_reductions or len(values) < _ENOUGH_METRICS or self.is_over:
            return False
        signed = values if mode == "min" else [-each for each in values]
        highest = list(np.maximum.accumulate(signed))
        n_records = sum(one < two for one, two in itertools.pairwise(highest))
        if 2 * n_records < len(values) or min(signed) < min(signed[:2]):
            return False
        if mode == "min":
            return _are_shares(values)
        has_fallen = min(values) > 0 and values[-1] <= _FALLEN * values[0]
        return has_fallen and not _are_shares(values)


def _are_shares(values: Sequence[float]) -> bool:
    """Return whether values are shares of one number of samples, or percentages.

    Example:
        >>> _are_shares([n / 297 for n in (40, 130, 201, 233, 250, 260)])
        True
        >>> _are_shares([0.1234, 0.2345, 0.3456, 0.4567, 0.5678, 0.6789])
        False
    """
    shares = np.unique(np.asarray(values, dtype=np.float64))
    if shares.max() > 1:
        shares = shares / 100
    if len(shares) < _ENOUGH_METRICS - 1 or shares.min() < 0 or shares.max() > 1:
        return False
    samples = np.arange(1, _MOST_SAMPLES + 1)[:, np.newaxis]
    counts = shares * samples
    fits = np.abs(counts - np.rint(counts)).max(axis=1) <= _ROUNDING * samples[:, 0]
    # Numbers that somebody has rounded fit a power of ten.
    return bool(fits.any()) and bool(_DECIMAL % int(samples[fits.argmax(), 0]))


# ---- faults of one schedule ---------------------------------------------------------


def _early_faults(each: _Followed) -> Iterator[tuple[Fault, dict[str, float]]]:
    """Yield what is known while the training goes on."""
    if each.warm_up > each.length > 0:
        yield Fault.WARM_UP_TOO_LONG, {"warm_up": float(each.warm_up)}
    ended, latest, pace = each.ended, each.latest, each.pace()
    if ended is None or each.setting not in BATCH_SETTINGS or pace < _MORE_THAN_ONE:
        return
    after = latest.n_steps - ended.n_steps
    if after >= max(_LEAST_AFTER, _SHARE_AFTER * latest.n_steps):
        yield Fault.SCHEDULE_TOO_OFTEN, {"pace": pace}


def _late_faults(
    each: _Followed, n_steps: int, n_forwards: int, world: int
) -> Iterator[tuple[Fault, dict[str, float]]]:
    """Yield what the end of a training shows, by its counts."""
    length, batches = each.length, each.n_batches
    yield from _faults_of_warm_up(each, n_steps)
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


def _faults_of_warm_up(
    each: _Followed, n_steps: int
) -> Iterator[tuple[Fault, dict[str, float]]]:
    """Yield that the rate was still rising at the end of the training."""
    steps, warm_up = each.latest.steps, each.warm_up
    if n_steps < _LEAST_STEPS or not 1 < steps < warm_up or warm_up > each.length > 0:
        return
    # SlowSchedule reports schedules as long as the training.
    is_slow = 2 * steps <= min(warm_up, n_steps) and each.length != n_steps
    if n_steps < warm_up and each.steps_with_optimizer:
        yield Fault.WARM_UP_NOT_OVER, {"warm_up": float(warm_up), "sure": 0.0}
    elif is_slow and n_steps >= warm_up >= _SURELY_BATCHES:
        yield Fault.WARM_UP_NOT_OVER, {"warm_up": float(warm_up), "sure": 1.0}


def _steps_of(optimizer: Optimizer) -> float:
    """Return the steps that the state of an optimizer knows of; 0: it counts none."""
    for state in optimizer.state.values():
        steps = state.get("step") if isinstance(state, Mapping) else None
        if steps is not None:
            return float(steps)
    return 0.0


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


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


# ---- metrics ------------------------------------------------------------------------

# What compares a metric with the best one; nobody is promised that it stays.
_COMPARISON = "_is_better"
_ORIGINAL = "_tdbg_original"
# While there are any, the method is wrapped.
_watchers: weakref.WeakSet[Schedules] = weakref.WeakSet()


def _watch(watcher: Schedules) -> None:
    _watchers.add(watcher)
    original = getattr(ReduceLROnPlateau, _COMPARISON, None)
    if original is not None and not hasattr(original, _ORIGINAL):
        wrapped = _wrap(original)
        setattr(wrapped, _ORIGINAL, original)
        setattr(ReduceLROnPlateau, _COMPARISON, wrapped)


def _unwatch(watcher: Schedules) -> None:
    _watchers.discard(watcher)
    original = getattr(getattr(ReduceLROnPlateau, _COMPARISON, None), _ORIGINAL, None)
    if original is not None and not _watchers:
        setattr(ReduceLROnPlateau, _COMPARISON, original)


def _wrap(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def is_better(plateau: ReduceLROnPlateau, metric: float, best: float) -> bool:
        for each in list(_watchers):
            # Nothing reaches the training.
            with contextlib.suppress(Exception):
                each.compares(plateau, metric)
        return original(plateau, metric, best)

    return is_better
