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
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    LRScheduler,
    ReduceLROnPlateau,
)

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.updates.rival_schedules import (
    RisingRates,
    RivalSchedules,
    StrangeRates,
)
from tdbg.hooks.pytorch.checks.updates.schedule_faults import (
    Followed,
    Look,
    early_faults,
    is_surely_longer,
    late_faults,
)
from tdbg.hooks.pytorch.model.process_objects import (
    counting_schedules,
    has_schedule,
    longest_loader,
)
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation
from tdbg.run.schedules import RateSchedule

__all__ = ["Schedules"]

# Schedules one after the other that are no phases of a training, and the share of its
# length after which a schedule has ended.
_OFTEN, _NEARLY = 4, 0.8
# Metrics at each step that are no accident, and how often they have lowered the rate;
# an epoch has so many times the batches that are waited for.
_ENOUGH_AT_STEPS, _ENOUGH_REDUCTIONS, _WAITS = 20, 2, 2
# Steps of a training that is no mere trial.
_LEAST_STEPS = 20
# Steps of a schedule before the first step of the optimizer that show a resumption.
_RESUMED = 2
# Metrics that are numbers of epochs, that say which way they go, and those that are
# kept.
_ENOUGH_COUNTED = 5
_ENOUGH_METRICS, _MOST_METRICS = 6, 500
# The largest number of samples of which a metric can be seen to be a share; what a
# 32-bit float leaves open in one; and what decimals have as denominators.
_MOST_SAMPLES, _ROUNDING, _DECIMAL = 20_000, 1.2e-7, 10**6
# A loss falls to this share of where it began.
_FALLEN = 0.5


class Schedules:
    """The schedules of an optimizer.

    Args:
        session: Counts the steps of training, and writes what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._found: dict[weakref.ref[LRScheduler], Followed] = {}
        self._has_begun = False
        # Of an optimizer without a state: it, its schedule, and the steps of that.
        self._stateless: tuple[weakref.ref[Optimizer], str, int] | None = None
        self._rivals = RivalSchedules(self._tell)
        self._rates = StrangeRates(self._tell)
        self._rising = RisingRates()
        # How often a schedule took the place of its like, before this had ended.
        self._n_renewed = 0
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
            self._rates.look(optimizers)
            self._rising.look(optimizers, self._session.n_training_steps)
        if len(optimizers) != 1:
            # One that is gone has left what was last known of its schedules.
            if optimizers:
                self._found.clear()
            return
        (optimizer,) = optimizers
        if not has_schedule(optimizer):
            return
        now = functools.partial(
            Look,
            n_steps=self._session.n_training_steps,
            n_forwards=self._session.n_forwards,
        )
        is_new = self._optimizer is None or self._optimizer() is not optimizer
        if is_new or self._are_gone():
            new = {
                weakref.ref(each): Followed(each, now(int(each.last_epoch)))
                for each in counting_schedules(optimizer)
            }
            if is_new:
                self._optimizer, self._found = weakref.ref(optimizer), new
                self._n_renewed = 0
            elif new:
                before, self._found = [*self._found.values()], new
                self._compare_with_old(before)
        for reference, followed in self._found.items():
            found = reference()
            if found is not None:
                followed.see(now(int(found.last_epoch)))
                followed.is_unused &= _is_unused(found)
                followed.n_batches = max(followed.n_batches, longest_loader())
                self._tell_all(early_faults(followed), followed)

    def _are_gone(self) -> bool:
        """Return whether the program has made others in the place of the schedules."""
        is_gone = bool(self._found) and all(each() is None for each in self._found)
        return is_gone and self._n_renewed < _OFTEN

    def _compare_with_old(self, before: Sequence[Followed]) -> None:
        """See whether a schedule begins what its like has begun, and not ended."""
        if not before:
            return
        self._n_renewed += 1
        (old, *_), new = before, next(iter(self._found.values()), None)
        if new is None or len(before) > 1 or len(self._found) > 1:
            self._n_renewed = _OFTEN
            return
        is_alike = (old.name, old.length, old.warm_up) == (
            new.name, new.length, new.warm_up,
        )  # fmt: skip
        is_over = old.latest.steps >= _NEARLY * (old.length or math.inf)
        if not is_alike or is_over or old.first.steps > old.latest.steps:
            self._n_renewed = _OFTEN
        elif self._n_renewed == _OFTEN - 1:
            numbers = {"times": float(_OFTEN), "sure": float(old.length > 0)}
            self._tell_all(iter([(Fault.SCHEDULE_MADE_ANEW, numbers)]), old)

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
                self._tell_all(late_faults(each, *now, world), each)
        with contextlib.suppress(Exception):
            self._look_for_unused()
            self._rates.conclude()
            self._look_at_rise()

    def _look_at_rise(self) -> None:
        """Tell of a warm-up that is not over, and whose length no schedule says."""
        n_steps, every = self._session.n_training_steps, [*self._found.values()]
        numbers = self._rising.warm_up(n_steps)
        if not numbers or any(each.warm_up or each.length == n_steps for each in every):
            return
        numbers |= {"optimizer_steps": float(n_steps), "steps": float(n_steps)}
        sure = is_surely_longer(numbers["warm_up"], n_steps, longest_loader())
        name = every[0].name if every else "learning rate"
        self._tell(Fault.WARM_UP_NOT_OVER, name, {**numbers, **sure}, {})

    def _look_for_unused(self) -> None:
        """Look for schedules none of which has ever stepped, and one should have."""
        n_steps = self._session.n_training_steps
        every = [*self._found.values()]
        if not every or n_steps < _LEAST_STEPS or self._n_renewed:
            return
        # A function that has ended may have dropped its own.
        if not all(
            each.is_unused
            and each.is_whole
            and each.latest.n_steps >= _NEARLY * n_steps
            for each in every
        ):
            return
        each = every[0]
        rises = each.length > 0 and not each.falls
        is_over = n_steps >= each.length if rises else n_steps == each.length
        if is_over or (each.n_batches > 1 and n_steps >= 2 * each.n_batches):
            self._tell_all(iter([(Fault.SCHEDULE_NEVER_STEPS, {})]), each)

    def remove(self) -> None:
        """Watch no longer."""
        _unwatch(self)
        self._metrics.clear()

    def _tell_all(
        self, faults: Iterator[tuple[Fault, dict[str, float]]], followed: Followed
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
        is_old = _steps_of(optimizer) > 1 or _has_momentum(optimizer)
        rates = [group["lr"] for group in optimizer.param_groups]
        meant = list(found[-1].get_last_lr())
        if any(isinstance(each, torch.Tensor) for each in (*rates, *meant)):
            return
        if len(found) == 1 and rates != meant and is_old:
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
        self._look_at_pace(plateau, known)
        if known.are_counted() and not known.is_over:
            known.is_over = True
            numbers = {"first": known.values[0], "metrics": float(len(known.values))}
            name = type(plateau).__name__
            words = {"mode": plateau.mode}
            self._session.run(self._tell, Fault.PLATEAU_OF_EPOCHS, name, numbers, words)
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

    def _look_at_pace(self, plateau: ReduceLROnPlateau, known: _Metrics) -> None:
        """See whether a schedule is given a metric at each step, and waits for few."""
        n_steps, n = self._session.n_training_steps, len(known.values)
        if n == 1:
            known.since = n_steps
        is_each = n - 1 <= n_steps - known.since <= n
        batches = longest_loader()
        # More than two epochs of steps, and a patience of less than half of one.
        if not is_each or min(n, batches * _WAITS) < _ENOUGH_AT_STEPS:
            return
        if n <= _WAITS * batches or batches <= _WAITS * plateau.patience:
            return
        if known.n_reductions >= _ENOUGH_REDUCTIONS and not known.is_over:
            known.is_over = True
            self._session.run(
                self._tell,
                Fault.PLATEAU_AT_EACH_STEP,
                type(plateau).__name__,
                {
                    "metrics": float(n),
                    "reductions": float(known.n_reductions),
                    "patience": float(plateau.patience),
                    "batches": float(batches),
                },
                {},
            )


class _Metrics:
    """The metrics that a schedule was given.

    Attributes:
        values: They.
        n_reductions: How often the schedule has lowered the rate.
        is_over: Whether enough is known.
        since: The steps before the first of them.
    """

    def __init__(self) -> None:
        self.values: list[float] = []
        self.n_reductions = 0
        self.is_over = False
        self.since = 0
        self._rate = math.nan

    def add(self, value: float, rate: float, factor: float) -> None:
        """Note a metric, and the rate before it is judged."""
        self.values.append(value)
        if math.isclose(rate, self._rate * factor, rel_tol=1e-6):
            self.n_reductions += 1
        self._rate = rate
        is_useless = not math.isfinite(value)
        self.is_over = is_useless or len(self.values) >= _MOST_METRICS

    def are_counted(self) -> bool:
        """Return whether the metrics are numbers of epochs: each is one more."""
        first, n = self.values[0], len(self.values)
        is_number = first >= 0 and first.is_integer()
        return (
            n == _ENOUGH_COUNTED
            and is_number
            and all(value == first + i for i, value in enumerate(self.values))
        )

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


def _steps_of(optimizer: Optimizer) -> float:
    """Return the steps that the state of an optimizer knows of; 0: it counts none."""
    for state in optimizer.state.values():
        steps = state.get("step") if isinstance(state, Mapping) else None
        if steps is not None:
            return float(steps)
    return 0.0


def _is_unused(found: LRScheduler) -> bool:
    """Return whether a schedule of PyTorch has made no step, and the program none."""
    rates = [group["lr"] for group in found.optimizer.param_groups]
    is_known = type(found).__module__.startswith("torch.optim")
    return is_known and found.last_epoch == 0 and list(found.get_last_lr()) == rates


def _has_momentum(optimizer: Optimizer) -> bool:
    """Return whether the state of an optimizer that counts no steps has some."""
    first = next(iter(optimizer.state.values()), None)
    found = first.get("momentum_buffer") if isinstance(first, Mapping) else None
    return isinstance(found, torch.Tensor) and bool(found.detach().any())


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()


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
