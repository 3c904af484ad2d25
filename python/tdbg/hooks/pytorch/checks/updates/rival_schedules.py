"""Schedules of the learning rate that change nothing.

One belongs to an optimizer that never steps, while another one trains its parameters.
Of two schedules of one optimizer, the second computes the rate anew at each step.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CyclicLR,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)

from tdbg.hooks.pytorch.model.process_objects import (
    has_schedule,
    held_ids,
    met,
)
from tdbg.hooks.pytorch.model.variables import namespaces
from tdbg.run.observations import Fault

__all__ = ["RisingRates", "RivalSchedules", "StrangeRates"]

# Looks at a rate that rises, of which every second one is dropped as there are more
# than the most; steps of a training that is no mere trial; shares of the training at
# whose ends it must have been looked at, of the rate that is not reached, and of the
# rise, by which a line may be missed.
_ENOUGH_RATES, _MOST_RATES, _LEAST_STEPS = 4, 200, 50
_EARLY, _STILL, _OFF = 0.25, 0.9, 0.01

# Looks at which two schedules have set different rates, and steps of a schedule that
# change no rate, at least.
_ENOUGH_LOOKS, _ENOUGH_STEPS, _LEAST_RIVALS = 3, 2, 2
# Schedules that compute the rate anew, whatever it was.
_ABSOLUTE = (CyclicLR, LambdaLR, OneCycleLR)

_Tell = Callable[[Fault, str, Mapping[str, float], Mapping[str, str]], None]


class RivalSchedules:
    """The schedules of several optimizers, and several schedules of one.

    Args:
        tell: Called with what is found out.
    """

    def __init__(self, tell: _Tell) -> None:
        self._tell = tell
        # What is known of schedules beside others.
        self._overwritten: weakref.WeakKeyDictionary[LRScheduler, _Lost] = (
            weakref.WeakKeyDictionary()
        )
        # Optimizers without a schedule: their first rates.
        self._constant: weakref.WeakKeyDictionary[Optimizer, list[float]] = (
            weakref.WeakKeyDictionary()
        )

    def look(self, optimizers: Sequence[Optimizer]) -> None:
        """Look at the rates of optimizers that train."""
        for each in optimizers:
            self._look_for_strange(each)
            self._look_for_overwritten(each)

    def _look_for_strange(self, optimizer: Optimizer) -> None:
        """Look for a schedule of another optimizer, with the same parameters."""
        if has_schedule(optimizer):
            return
        rates = _rates_of(optimizer)
        if self._constant.setdefault(optimizer, rates) != rates or not rates:
            return  # The program sets them itself.
        for each in met(LRScheduler):
            other = each.optimizer
            if (
                other is optimizer
                or not has_schedule(other)
                or getattr(other, "_opt_called", False)
                or isinstance(each, ReduceLROnPlateau)
                or each.last_epoch < _ENOUGH_STEPS
                or any(
                    one is two
                    for one in other.param_groups
                    for two in optimizer.param_groups
                )
            ):
                continue
            own = _rates_of(other)
            if own != rates and held_ids(other) == held_ids(optimizer):
                self._constant[optimizer] = []
                numbers = {"steps": float(each.last_epoch), "rate": rates[0]}
                numbers["meant"] = own[0] if own else 0.0
                words = {"optimizer": type(optimizer).__name__}
                name = type(each).__name__
                self._tell(Fault.SCHEDULE_OF_ANOTHER, name, numbers, words)
                return

    def _look_for_overwritten(self, optimizer: Optimizer) -> None:
        """Look for a schedule whose rates another one replaces at each step."""
        found = [each for each in met(LRScheduler) if each.optimizer is optimizer]
        if len(found) < _LEAST_RIVALS:
            return
        rates = _rates_of(optimizer)
        moved = {
            each: known
            for each in found
            if (known := self._overwritten.setdefault(each, _Lost())).moves(each)
        }
        last = [each for each in moved if _set_by(each) == rates]
        if not any(isinstance(each, _ABSOLUTE) for each in last):
            return
        for each, known in moved.items():
            is_other = _set_by(each) not in ([], rates)
            if not is_other or isinstance(each, ReduceLROnPlateau) or known.is_told:
                continue
            known.n_looks += 1
            if known.n_looks >= _ENOUGH_LOOKS:
                known.is_told = True
                numbers = {"meant": _set_by(each)[0], "rate": rates[0]}
                numbers["steps"] = float(each.last_epoch)
                words = {"by": type(last[0]).__name__}
                name = type(each).__name__
                self._tell(Fault.SCHEDULE_OVERWRITTEN, name, numbers, words)


class _Lost:
    """What is known of a schedule beside another one.

    Attributes:
        n_looks: Looks at which the rate was not the one that it had set.
        is_told: Whether that was reported.
    """

    def __init__(self) -> None:
        self.n_looks = 0
        self.is_told = False
        self._steps: int | None = None

    def moves(self, schedule: LRScheduler) -> bool:
        """Return whether it has stepped since the latest look."""
        steps, before = int(schedule.last_epoch), self._steps
        self._steps = steps
        return before is not None and steps > before


def _rates_of(optimizer: Optimizer) -> list[float]:
    """Return the rates of all groups; none if one lies in a tensor."""
    rates: list[Any] = [group.get("lr") for group in optimizer.param_groups]
    is_known = all(isinstance(each, float | int) for each in rates)
    return [float(each) for each in rates] if is_known else []


def _set_by(schedule: LRScheduler) -> list[float]:
    """Return the rates that a schedule has set at its latest step."""
    rates = getattr(schedule, "_last_lr", [])
    is_known = all(isinstance(each, float | int) for each in rates)
    return [float(each) for each in rates] if is_known else []


# ---- rates beside those of groups ----------------------------------------------------

# Values of a number that is no setting, and looks, at least.
_ENOUGH_VALUES, _ENOUGH_TIMES = 3, 3
# Rates that are no factors of a whole training; optimizers that are followed to its
# end: some programs make one for each client.
_LARGEST_RATE, _MOST_OPTIMIZERS = 0.3, 64
# What programs call a rate.
_NAME = re.compile(r"(^|_)(lr|learning_?rate|rate)$", re.IGNORECASE)
# What programs call the rate that they are at.
_VARIABLE = re.compile(r"_?(cur_|current_|new_)?(lr|learning_rate)$")
# Looks at variables, each so many times as far from the first as the one before.
_MOST_VARIABLES, _RARER = 40, 1.3
# What schedules and PyTorch keep in groups, and never change.
_KEPT = {"lr", "initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr", "target_lr"}


class _Seen:
    """The rates and settings that one optimizer had at looks.

    Attributes:
        rates: The rates of its groups at the first look.
        others: The values of other numbers at looks, by where they are.
        factors: What a function has made of the first rate, at looks.
        base: That first rate.
        schedule: The class of the schedule.
        is_over: Whether enough is known.
        n_looks: Looks so far.
        next_look: The look at which variables are looked at again.
        copies: The groups of the latest state that the program has asked for.
    """

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.n_looks, self.next_look = 0, 1.0
        self.others: dict[str, list[float]] = {}
        self.factors: list[float] = []
        self.base, self.schedule = 0.0, ""
        self.is_over = False
        self.copies: list[dict[str, Any]] = []
        # The rates in those before.
        self._copied: list[float] = []

    def note_state(self, state: Mapping[str, Any]) -> None:
        """Note that the program has asked for the state of the optimizer."""
        self._copied = [] if self.is_over else self._rates_of_copies()
        self.copies = [] if self.is_over else [*state.get("param_groups", ())]

    def copied_rates(self) -> Iterator[tuple[str, float]]:
        """Yield the rates that states have come to have, which are copies."""
        for rate in self._rates_of_copies():
            yield 'optimizer.state_dict()["param_groups"]', rate
        self._copied = []

    def _rates_of_copies(self) -> list[float]:
        rates = [each.get("lr") for each in self.copies[:1]]
        found = [float(each) for each in rates if isinstance(each, float | int)]
        return (self._copied + found)[-_ENOUGH_VALUES:]


class StrangeRates:
    """The rates of optimizers, and numbers beside them.

    Args:
        tell: Called with what is found out.
    """

    def __init__(self, tell: _Tell) -> None:
        self._tell = tell
        self._seen: weakref.WeakKeyDictionary[Optimizer, _Seen] = (
            weakref.WeakKeyDictionary()
        )
        # Those with factors, also of optimizers that are gone at the end.
        self._with_factors: deque[_Seen] = deque(maxlen=_MOST_OPTIMIZERS)
        self._handles: list[Any] = []

    def look(self, optimizers: Sequence[Optimizer]) -> None:
        """Look at the rates of optimizers that train."""
        for each in optimizers:
            rates: list[Any] = [group.get("lr") for group in each.param_groups]
            if not all(isinstance(rate, float | int) for rate in rates):
                continue
            seen = self._seen.get(each)
            if seen is None:
                seen = self._seen[each] = _Seen(rates)
                self._hear_of_states(each, seen)
            if seen.is_over:
                continue
            if has_schedule(each):
                self._look_at_factors(each, seen, rates)
            elif rates != seen.rates:
                seen.is_over = True  # The program knows where they are.
            else:
                self._look_elsewhere(each, seen)

    def _hear_of_states(self, optimizer: Optimizer, seen: _Seen) -> None:
        known = weakref.ref(seen)

        def taken(_: Optimizer, state: Mapping[str, Any]) -> None:
            if (seen := known()) is not None:
                # Nothing reaches the training.
                with contextlib.suppress(Exception):
                    seen.note_state(state)

        self._handles.append(optimizer.register_state_dict_post_hook(taken))

    def _variables(self, seen: _Seen) -> Iterator[tuple[str, float]]:
        """Yield variables that began as the rate, and are no optimizer's rate now."""
        found: dict[str, float] = {}
        for names in namespaces(sys._getframe(1)):
            for name, value in names.items():
                if type(value) is float and _VARIABLE.match(name):
                    found.setdefault(name, value)
        if not found:
            return
        rates = [rate for each in met(Optimizer) for rate in _rates_of(each)]
        for name, value in found.items():
            if name not in seen.others and value not in seen.rates:
                continue  # It is the rate of something else.
            if value in seen.rates or value not in rates:
                yield name, value

    def _look_elsewhere(self, optimizer: Optimizer, seen: _Seen) -> None:
        if not type(optimizer).__module__.startswith("torch.optim"):
            return  # Its own code may read other numbers.
        seen.n_looks += 1
        found = [*_others(optimizer)]
        if seen.copies:
            found += seen.copied_rates()
        if seen.next_look <= seen.n_looks < _MOST_VARIABLES:
            seen.next_look *= _RARER
            found += self._variables(seen)
        for place, value in found:
            values = seen.others.setdefault(place, [])
            if not values or values[-1] != value:
                values.append(value)
            if len(values) >= _ENOUGH_VALUES:
                seen.is_over = True
                numbers = {"rate": seen.rates[0], "first": values[0], "latest": value}
                words = {"place": place}
                name = type(optimizer).__name__
                self._tell(Fault.RATE_SET_ELSEWHERE, name, numbers, words)
                return

    def _look_at_factors(
        self, optimizer: Optimizer, seen: _Seen, rates: Sequence[float]
    ) -> None:
        """See whether the largest factor of a first rate is that rate itself."""
        found = [each for each in met(LambdaLR) if each.optimizer is optimizer]
        if len(found) != 1 or len(set(found[0].base_lrs)) != 1:
            return
        base = float(found[0].base_lrs[0])
        if not 0.0 < base <= _LARGEST_RATE:
            seen.is_over = True
            return
        if not seen.factors:
            self._with_factors.append(seen)
        seen.factors.append(rates[0] / base)
        seen.base, seen.schedule = base, type(found[0]).__name__

    def conclude(self) -> None:
        """Say what the largest factors are: training ends."""
        while self._handles:
            self._handles.pop().remove()
        for seen in self._with_factors:
            if seen.is_over or len(seen.factors) < _ENOUGH_TIMES:
                continue
            # On its way to a larger one it may have been any number.
            if math.isclose(max(seen.factors), seen.base, rel_tol=1e-6):
                numbers = {"base": seen.base, "rate": seen.base * seen.factors[-1]}
                self._tell(Fault.FACTOR_IS_RATE, seen.schedule, numbers, {})


class RisingRates:
    """Whether the rate of an optimizer rises from the beginning to the end.

    A warm-up that is longer than the training never comes to the rate that the
    optimizer was made with.  Who sets the rate, and how, does not matter.
    """

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._seen: list[tuple[int, float]] = []
        self._base = 0.0
        self._is_over = False

    def look(self, optimizers: Sequence[Optimizer], n_steps: int) -> None:
        """Note the rate of the only optimizer after some steps."""
        if self._is_over or not optimizers:
            return
        rate = optimizers[0].param_groups[0].get("lr")
        if len(optimizers) > 1 or not isinstance(rate, float | int):
            self._is_over = True
            return
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizers[0])
            group = optimizers[0].param_groups[0]
            base = group.get("initial_lr", optimizers[0].defaults.get("lr"))
            self._base = float(base) if isinstance(base, float | int) else 0.0
        if self._optimizer() is not optimizers[0] or rate > _STILL * self._base:
            self._is_over = True
            return
        if self._seen and n_steps <= self._seen[-1][0]:
            return
        if self._seen and rate <= self._seen[-1][1]:
            self._is_over = True
            return
        if len(self._seen) >= _MOST_RATES:
            del self._seen[1::2]
        self._seen.append((n_steps, float(rate)))

    def warm_up(self, n_steps: int) -> dict[str, float]:
        """Return the linear warm-up that a training has ended in, or nothing."""
        few = self._seen
        if self._is_over or len(few) < _ENOUGH_RATES or n_steps < _LEAST_STEPS:
            return {}
        (first, low), (last, high) = few[0], few[-1]
        if first > _EARLY * n_steps or last < (1 - _EARLY) * n_steps:
            return {}
        slope = (high - low) / (last - first)
        off = (abs(low + slope * (at - first) - rate) for at, rate in few)
        if max(off) > _OFF * (high - low):
            return {}
        length = round(last + (self._base - high) / slope)
        return {"rate": high, "base": self._base, "warm_up": float(length)}


def _others(optimizer: Any) -> Iterator[tuple[str, float]]:
    """Yield numbers that look like rates, and that no optimizer of PyTorch reads."""
    for name, value in vars(optimizer).items():
        if _NAME.search(name) and isinstance(value, float | int):
            yield f"optimizer.{name}", float(value)
    default = optimizer.defaults.get("lr")
    if isinstance(default, float | int):
        yield 'optimizer.defaults["lr"]', float(default)
    for group in optimizer.param_groups:
        for name, value in group.items():
            is_own = name in _KEPT or name in optimizer.defaults
            if not is_own and _NAME.search(name) and isinstance(value, float | int):
                yield f'group["{name}"]', float(value)
                return
