"""Schedules: what is wanted of the tensors of a collection, by the step.

Implements docs/steps.md, "Two schedules".

Thread safety: values.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from tdbg.capture.wants import (
    HISTOGRAM,
    LIMITED_VALUES,
    ROWS,
    UNITS,
    VALUES,
    StepWants,
    Throttle,
)
from tdbg.config import SaveConfigMode

__all__ = ["Schedule", "Span", "Timing"]


NOTHING_DUE, STATISTICS_DUE, VALUES_DUE = range(3)


class Timing(NamedTuple):
    """At which steps something is due; many schedules have the same.

    Attributes:
        config: The steps.
        first_steps: Nothing is from this step of the mode on; None: always.
    """

    config: SaveConfigMode
    first_steps: int | None = None

    def due(self, mode_step: int) -> int:
        """What is due at this step."""
        config, last = self
        if last is not None and mode_step >= last:
            return NOTHING_DUE
        if config.should_save(mode_step):
            return VALUES_DUE
        return STATISTICS_DUE if config.should_reduce(mode_step) else NOTHING_DUE

    def steady_until(self, mode_step: int) -> float:
        """The step before which nothing else is due than at this one."""
        config, last = self
        if last is not None and mode_step >= last:
            return math.inf
        end = config.steady_until(mode_step)
        known = math.inf if end is None else end
        return known if last is None else min(known, last)


class Schedule(NamedTuple):
    """How one collection is captured in one mode.

    Attributes:
        config: At which steps.
        on_save: What is wanted where values are due; 0: as anywhere else.
        on_reduce: What is wanted where statistics are.
        may_hold_activations: Whether inputs or outputs of modules may be in it.
        first_steps: Nothing is wanted from this step of the mode on; None: always.
        is_light: Whether it is of what comes by itself: losses and scalars.
        is_beginning: Whether it is of every step of the beginning, for rules.
    """

    config: SaveConfigMode
    on_save: int
    on_reduce: int
    may_hold_activations: bool
    first_steps: int | None = None
    is_light: bool = False
    is_beginning: bool = False

    @property
    def timing(self) -> Timing:
        """When anything is wanted."""
        return Timing(self.config, self.first_steps)

    def wants_when(self, due: int) -> int:
        """What is wanted where its timing says that this is due."""
        if due == VALUES_DUE and self.on_save:
            return self.on_save
        return self.on_reduce if due else 0

    def wants_ever(self) -> int:
        """What is wanted at any step."""
        return 0 if self.config.is_empty else self.on_save | self.on_reduce

    @property
    def period(self) -> int:
        """Steps in which everything comes once."""
        config = self.config
        saves = config.save_interval if self.on_save else 1
        return max(config.statistics_interval, saves)

    def throttled(self, throttle: Throttle) -> Schedule:
        """It, without what a budget leaves out."""
        config, on_save, on_reduce = self.config, self.on_save, self.on_reduce
        if self.is_beginning and not throttle.beginning:
            on_save = on_reduce = 0
        if not throttle.histograms:
            on_save &= ~HISTOGRAM
            on_reduce &= ~HISTOGRAM
        factor = throttle.activations if self.may_hold_activations else throttle.others
        if factor > 1:
            # Where values are due, statistics are: both intervals grow.
            interval = config.statistics_interval
            if self.on_save:
                interval = min(interval, config.save_interval)
            config = dataclasses.replace(
                config,
                statistics_interval=interval * factor,
                save_interval=config.save_interval * factor,
            )
        if not throttle.values and on_save & (VALUES | LIMITED_VALUES):
            # In the place of values there are their statistics.
            on_save &= ~(VALUES | LIMITED_VALUES)
            on_save |= ROWS
        return self._replace(config=config, on_save=on_save, on_reduce=on_reduce)

    @property
    def of_units(self) -> Schedule:
        """When units are counted, where anything is wanted."""
        on_save = UNITS if self.on_save else 0
        return self._replace(on_save=on_save, on_reduce=UNITS)


class Span(NamedTuple):
    """Steps of a mode, from *first* to before *end*, that want the same."""

    first: int
    end: float
    wants: StepWants
