"""Schedules: what is captured of the tensors of a collection, by the step.

Implements docs/steps.md, "Two schedules".

Thread safety: values; and ``IdleState``, which the training's thread owns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tdbg.config.schedules import Default, SaveConfigMode

if TYPE_CHECKING:
    from tdbg.capture.tensor_entry import TensorEntry

__all__ = [
    "HISTOGRAM",
    "LIMITED_VALUES",
    "NEVER",
    "ROWS",
    "SMALL_VALUES",
    "UNITS",
    "VALUES",
    "IdleState",
    "Quiet",
    "Schedule",
    "Span",
    "StepPlan",
    "Throttle",
    "Timing",
]


# What to capture of a tensor at a step: flags that can be combined, the same as in
# cpp/python_capture/capture_flags.h.
ROWS = 1  # Its statistics.
VALUES = 2
SMALL_VALUES = 4  # Its value, if it has one element.
HISTOGRAM = 8
UNITS = 16  # Its unit summary.
LIMITED_VALUES = 32  # Its values, if they do not exceed the limit of its entry.


class Throttle(NamedTuple):
    """What a budget leaves out of the capture.

    Attributes:
        beginning: Whether rules get every step of the beginning.
        histograms: Whether histograms are captured.
        values: Whether raw values are captured; if not, their statistics are.
        activations: Multiplies the intervals of collections that may hold inputs
            or outputs of modules.
        others: Multiplies the intervals of all other collections, but losses and
            scalars.
        steps: Of so many steps of training one has its losses and the numbers of
            optimizers; where nothing else is due, the others are only counted.
        keeps_written: Whether intervals that the user wrote stay as they are.
    """

    beginning: bool = True
    histograms: bool = True
    values: bool = True
    activations: int = 1
    others: int = 1
    steps: int = 1
    keeps_written: bool = False

    def text(self, interval: int) -> str:
        """Describe what is left out; empty if nothing is.

        Args:
            interval: How often statistics are due where nothing is left out.

        Example:
            >>> Throttle(activations=4, others=4).text(Default(10))
            'statistics every 40 steps instead of 10'
        """
        parts, is_default = [], isinstance(interval, Default)
        if not self.beginning:
            parts.append("the beginning no more often than the rest")
        if not self.histograms:
            parts.append("no histograms")
        if not self.values:
            parts.append("no raw values")
        factors = (self.activations, self.others)
        every, others = (f"every {factor * interval} steps" for factor in factors)
        if factors != (1, 1) and self.keeps_written and not is_default:
            what = f"what rules need {max(factors)} times as rarely"
            parts.append(f"{what}, your own schedules as you wrote them")
        elif factors != (1, 1):
            if self.others != 1:
                parts.append(f"statistics {others} instead of {interval}")
            if every != others:
                parts.append(f"statistics of activations {every}")
        if self.steps > 1:
            parts.append(f"losses every {self.steps} steps")
        return ", ".join(parts)


class StepPlan:
    """What is captured at a step: flags for each capture class, and so each tensor.

    Steps at which the same is captured share one object.

    Args:
        capture_classes: For each capture class, the names that have flags.
        flags: What to capture, by such a name.
        takes_activations: As the attribute.
        is_light: As the attribute.

    Attributes:
        is_active: Whether anything may be captured.
        takes_activations: Whether inputs or outputs of modules may be captured.
        is_light: Whether only losses and scalars are captured, which come to tdbg by
            themselves; then hooks need not look for tensors.
        by_class: The flags of each capture class so far; grows as classes are added.
    """

    __slots__ = (
        "_by_entry",
        "_capture_classes",
        "_flags",
        "by_class",
        "is_active",
        "is_light",
        "takes_activations",
    )

    def __init__(
        self,
        capture_classes: list[tuple[str, ...]],
        flags: dict[str, int],
        takes_activations: bool,
        *,
        is_light: bool = False,
    ) -> None:
        self._capture_classes = capture_classes
        self._flags = flags
        self._by_entry: dict[TensorEntry, int] = {}
        self.is_active = any(flags.values())
        self.takes_activations = takes_activations
        self.is_light = is_light
        self.by_class: list[int] = []

    def only(self, mask: int) -> StepPlan:
        """Return the plan restricted to the flags of *mask*."""
        flags = {name: each & mask for name, each in self._flags.items()}
        return StepPlan(self._capture_classes, flags, self.takes_activations)

    def overlaps(self, other: StepPlan) -> bool:
        """Whether the plan has flags for a tensor that *other* had flags for."""
        return any(
            self.of_entry(entry) for entry, flags in other._by_entry.items() if flags
        )

    def of_entry(self, entry: TensorEntry) -> int:
        """Return what to capture of a tensor."""
        flags = self._by_entry.get(entry)
        if flags is None:
            flags = self._by_entry[entry] = self.of(entry.capture_class)
        return flags

    def of(self, capture_class: int) -> int:
        """Return what to capture of the tensors of a capture class."""
        if capture_class < len(self.by_class):
            return self.by_class[capture_class]
        while len(self.by_class) <= capture_class:
            flags = 0
            for name in self._capture_classes[len(self.by_class)]:
                flags |= self._flags.get(name, 0)
            self.by_class.append(flags)
        return self.by_class[capture_class]


NOTHING_DUE, STATISTICS_DUE, VALUES_DUE = range(3)


class Timing(NamedTuple):
    """At which steps something is due; many schedules share one timing.

    Attributes:
        config: The steps.
        first_steps: The step of the mode from which on nothing is due; None: no end.
    """

    config: SaveConfigMode
    first_steps: int | None = None

    def due(self, mode_step: int) -> int:
        """Return what is due at a step."""
        config, last = self
        if last is not None and mode_step >= last:
            return NOTHING_DUE
        if config.should_save(mode_step):
            return VALUES_DUE
        return STATISTICS_DUE if config.should_reduce(mode_step) else NOTHING_DUE

    def is_each(self, interval: int) -> bool:
        """Whether it is due at each step that this divides, and with values."""
        config, last = self
        return (
            last is None
            and not config.save_steps
            and config.start_step == 0
            and config.end_step is None
            and config.statistics_interval == interval
        )

    @property
    def saves_between(self) -> bool:
        """Whether values are due where the interval of statistics says nothing."""
        return self.config.save_interval % self.config.statistics_interval != 0

    @property
    def of_values(self) -> Timing:
        """When values are due."""
        interval = self.config.save_interval
        config = dataclasses.replace(self.config, statistics_interval=interval)
        return self._replace(config=config)

    def steady_until(self, mode_step: int) -> float:
        """Return the step until which the same is due as at this one."""
        config, last = self
        if last is not None and mode_step >= last:
            return math.inf
        end = config.steady_until(mode_step)
        known = math.inf if end is None else end
        return known if last is None else min(known, last)


class Schedule(NamedTuple):
    """How one collection is captured in one mode.

    Attributes:
        config: The steps at which it is captured.
        on_save: What to capture where values are due; 0: the same as ``on_reduce``.
        on_reduce: What to capture where statistics are due.
        may_hold_activations: Whether inputs or outputs of modules may be in it.
        first_steps: The step of the mode from which on nothing is captured; None: no
            end.
        is_light: Whether it holds only losses or scalars, which come by themselves.
        is_beginning: Whether a rule needs it at every step of the beginning.
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
        """When anything is captured."""
        return Timing(self.config, self.first_steps)

    def flags_when(self, due: int) -> int:
        """Return what to capture where its timing says that *due* is due."""
        if due == VALUES_DUE and self.on_save:
            return self.on_save
        return self.on_reduce if due else 0

    def all_flags(self) -> int:
        """Return everything that is captured at some step."""
        return 0 if self.config.is_empty else self.on_save | self.on_reduce

    @property
    def period(self) -> int:
        """Number of steps in which everything that is scheduled comes once."""
        config = self.config
        saves = config.save_interval if self.on_save else 1
        return max(config.statistics_interval, saves)

    def throttled(self, throttle: Throttle) -> Schedule:
        """Return the schedule without what a budget leaves out."""
        config, on_save, on_reduce = self.config, self.on_save, self.on_reduce
        if self.is_beginning and not throttle.beginning:
            on_save = on_reduce = 0
        if not throttle.histograms:
            on_save &= ~HISTOGRAM
            on_reduce &= ~HISTOGRAM
        factor = throttle.activations if self.may_hold_activations else throttle.others
        if factor > 1:
            keeps, interval = throttle.keeps_written, config.statistics_interval
            if self.on_save and not (keeps and config.asks_for_values):
                # Where values are due, statistics are: both intervals grow.
                interval = min(interval, config.save_interval)
            config = dataclasses.replace(config, statistics_interval=interval)
            config = config.times(factor, keeps_written=keeps)
        if not throttle.values and on_save & (VALUES | LIMITED_VALUES):
            # Their statistics are captured instead.
            on_save &= ~(VALUES | LIMITED_VALUES)
            on_save |= ROWS
        return self._replace(config=config, on_save=on_save, on_reduce=on_reduce)

    @property
    def of_units(self) -> Schedule:
        """The schedule of the unit summaries: they come with anything that comes."""
        on_save = UNITS if self.on_save else 0
        return self._replace(on_save=on_save, on_reduce=UNITS)


class Span(NamedTuple):
    """Steps of a mode, from *first* to before *end*, that share a step plan."""

    first: int
    end: float
    step_plan: StepPlan


NEVER = 1 << 62
"""More steps than any training has."""


class Quiet(NamedTuple):
    """Steps of a mode of which nothing is captured but losses.

    Attributes:
        first: The first of them.
        end: The step after the last one.
        every: The losses of each step that this divides are captured; 0: no step's;
            NEVER: none's, and numbers of optimizers are not either.
        step_plan: What is captured of these steps.
    """

    first: int
    end: float
    every: int
    step_plan: StepPlan

    def noted(self, mode_step: int) -> tuple[int, int]:
        """Return how many steps after this one have losses, and every how many."""
        return (-mode_step % self.every, self.every) if self.every else (0, 0)


class IdleState:
    """Whether no input or output of a module is captured for now; notifies of changes.

    Attributes:
        is_idle: Whether none is captured.
        on_change: Called with the new state.
    """

    __slots__ = ("is_idle", "on_change")

    def __init__(self) -> None:
        self.is_idle = False
        self.on_change: list[Callable[[bool], None]] = []

    def set(self, is_idle: bool) -> None:
        """Set the state; call back if it is another than before."""
        if self.is_idle is not is_idle:
            self.is_idle = is_idle
            for callback in self.on_change:
                callback(is_idle)
