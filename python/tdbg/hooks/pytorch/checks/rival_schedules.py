"""Schedules of the learning rate that change nothing.

One belongs to an optimizer that never steps, while another one trains its parameters.
Of two schedules of one optimizer, the second computes the rate anew at each step.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
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
from tdbg.run.observations import Fault

__all__ = ["RivalSchedules"]

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
