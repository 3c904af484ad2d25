"""A compiled schedule: what the steps of one mode capture.

Implements docs/steps.md, "Two schedules".  ``Policy`` compiles one for each mode, and
again after every change of what it was compiled from.

Thread safety: none; the thread of the training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tdbg.capture.schedule import (
    NEVER,
    Quiet,
    Schedule,
    Span,
    StepPlan,
    Timing,
)
from tdbg.config.collections import CollectionKeys
from tdbg.config.schedules import SaveConfigMode

__all__ = ["EVERY_STEP", "ONLY_IN_TRAINING", "ModeSchedule"]

EVERY_STEP = frozenset({CollectionKeys.LOSSES.value, CollectionKeys.SCALARS.value})
"""Collections that are saved at every step, unless they have schedules of their own."""

ONLY_IN_TRAINING = "\0training "
"""Begins the name of a schedule that holds in training steps only."""

# After so many spans in which something might have been due and was not, look no
# further.
_MOST_SPANS = 8


class ModeSchedule:
    """What the steps of one mode capture.

    Args:
        schedules: The schedules, by the names of collections and of needs.
        scalars: When the numbers of optimizers are due.
        capture_classes: As of ``Policy``; grows.
        is_training: Whether the steps may have gradients.
        captures_scalars: Whether the numbers of optimizers may be captured.
        captures_first: Whether the first step captures everything: this is a dry run.
        every: Of so many steps one has its losses; the budget leaves out the others.

    Attributes:
        period: Number of steps in which everything scheduled comes once.
        beginning: Rules need all steps before this one.
        span: The steps that share the latest plan.
    """

    def __init__(
        self,
        schedules: Mapping[str, Schedule],
        scalars: SaveConfigMode,
        capture_classes: list[tuple[str, ...]],
        *,
        is_training: bool,
        captures_scalars: bool,
        captures_first: bool,
        every: int,
    ) -> None:
        self._schedules = schedules
        self._scalars = scalars
        self._capture_classes = capture_classes
        self._is_training = is_training
        self._captures_scalars = captures_scalars
        self._captures_first = captures_first
        self._every = every
        items = schedules.items()
        periods = (item.period for name, item in items if name not in EVERY_STEP)
        self.period = max(periods, default=1)
        ends = (item.first_steps or 0 for _, item in items if item.is_beginning)
        self.beginning = max(ends, default=0)
        # Each timing once, and which one each schedule has.
        timings = [item.timing for item in schedules.values()]
        self._timings = list(dict.fromkeys(timings))
        self._places = [self._timings.index(each) for each in timings]
        # The plans by what is due of each timing, and by the flags of each schedule.
        self._due: dict[tuple[int, ...], StepPlan] = {}
        self._plans: dict[tuple[int, ...], StepPlan] = {}
        self.span = self._find_span(0)
        self._quiet = Quiet(0, 0, 0, self.span.step_plan)

    def step_plan(self, mode_step: int) -> StepPlan:
        """Return what is captured at a step."""
        span = self.span
        if not span.first <= mode_step < span.end:
            span = self.span = self._find_span(mode_step)
        return span.step_plan

    def scheduled(self, mode_step: int) -> StepPlan:
        """Return what is captured at a step, unless this is a dry run."""
        due = tuple([each.due(mode_step) for each in self._timings])
        found = self._due.get(due)
        if found is None:
            flags = [
                item.flags_when(due[place])
                for item, place in zip(
                    self._schedules.values(), self._places, strict=True
                )
            ]
            found = self._due[due] = self._plan_of(tuple(flags))
        return found

    def quiet(self, mode_step: int) -> Quiet:
        """Return the steps from this one on that capture losses at most.

        The step before one that captures activations is not among them: as it ends,
        hooks are put back inside the modules.
        """
        found = self._quiet
        if not found.first <= mode_step < found.end:
            found = self._quiet = self._find_quiet(mode_step)
        return found

    def n_alike(self, mode_step: int, most: int) -> int:
        """Return how many steps from this one on capture the same, and losses at most.

        Args:
            mode_step: The number of the step in the mode.
            most: Count no more steps than these.
        """
        plan, scalars = self.step_plan(mode_step), Timing(self._scalars)
        # Hooks record what the framework logs there, even if it is in no collection.
        if (plan.is_active and not plan.is_light) or scalars.due(mode_step):
            return 0
        end = min(self.span.end, scalars.steady_until(mode_step))
        return int(min(end - mode_step, most))

    def scalars_due(self, mode_step: int) -> bool | None:
        """Whether all numbers of optimizers are due, or changed ones; None: none is."""
        config = self._scalars
        if config.should_reduce(mode_step) or (
            self._captures_first and mode_step == 0 and not config.is_empty
        ):
            return True
        end = config.end_step
        is_within = mode_step >= config.start_step and (end is None or mode_step < end)
        return False if is_within else None

    def _find_plan(self, mode_step: int) -> StepPlan:
        if not self._captures_first or mode_step != 0:
            return self.scheduled(mode_step)
        return self._plan_of(
            tuple(item.all_flags() for item in self._schedules.values())
        )

    def _plan_of(self, each_flags: tuple[int, ...]) -> StepPlan:
        found = self._plans.get(each_flags)
        if found is None:
            schedules = self._schedules
            flags = dict(zip(schedules, each_flags, strict=True))
            due = [item for name, item in schedules.items() if flags[name]]
            if self._is_training:
                flags |= {ONLY_IN_TRAINING + name: each for name, each in flags.items()}
            found = self._plans[each_flags] = StepPlan(
                self._capture_classes,
                flags,
                any(item.may_hold_activations for item in due),
                is_light=all(item.is_light for item in due),
            )
        return found

    def _find_span(self, mode_step: int) -> Span:
        end = _steady_until(self._timings, mode_step)
        if self._captures_first and mode_step == 0:
            end = 1
        return Span(mode_step, end, self._find_plan(mode_step))

    def _find_quiet(self, mode_step: int) -> Quiet:
        every, seen = self._losses_due()
        latest: float = math.inf
        if self._captures_scalars:
            seen.add(Timing(self._scalars))
            if mode_step < self._scalars.start_step:
                latest = self._scalars.start_step  # From then on those that change.
        end: float = mode_step
        for _ in range(_MOST_SPANS):
            if end == math.inf or any(each.due(int(end)) for each in seen):
                break
            end = _steady_until(seen, int(end))
        end = min(end, latest)
        plan = self._find_plan(mode_step + (-mode_step % (every or 1)))
        if mode_step < end < math.inf:
            end -= self._find_plan(int(end)).takes_activations
        return Quiet(mode_step, end, every, plan)

    def _losses_due(self) -> tuple[int, set[Timing]]:
        """Return how often losses can be noted, and when steps are to be seen."""
        noted: set[Timing] = set()
        seen: set[Timing] = set()
        for item in self._schedules.values():
            (noted if item.is_light else seen).add(item.timing)
        every = self._every
        if len(noted) == 1 and next(iter(noted)).is_each(every):
            # Where values are due there may be larger losses.
            seen.update(each.of_values for each in noted if each.saves_between)
            return every, seen
        return NEVER if every > 1 else 0, seen | noted


def _steady_until(timings: list[Timing] | set[Timing], mode_step: int) -> float:
    """Return the step until which the same is due as at this one."""
    return min((each.steady_until(mode_step) for each in timings), default=math.inf)
