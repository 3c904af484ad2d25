"""Which tensors are captured at which step, and what of them.

Implements docs/steps.md, "Two schedules".  Collections, the hook's own
configuration and the needs of rules meet here; what comes out is, for a step,
one set of flags per profile, and each tensor belongs to a profile.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tdbg.capture.naming import Naming
from tdbg.capture.schedule import Schedule, Span
from tdbg.capture.wants import (
    HISTOGRAM,
    SMALL_VALUES,
    StepWants,
    Throttle,
)
from tdbg.collections import (
    BUILT_IN,
    Collection,
    CollectionKeys,
    CollectionRegistry,
    Role,
)
from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.modes import ModeKeys
from tdbg.needs import Needs, every_need

__all__ = ["Policy"]

# Saved at every step unless configured themselves, and never reduced.
_EVERY_STEP = frozenset({CollectionKeys.LOSSES.value, CollectionKeys.SCALARS.value})
# Their collection is meant for training only.
_TRAINING_ONLY = frozenset(
    {
        Role.GRADIENT,
        Role.GRADIENT_UNCLIPPED,
        Role.UPDATE,
        Role.OPTIMIZER_STATE,
    }
)
# Those that hooks inside modules take.
_ACTIVATIONS = frozenset(
    {
        Role.INPUT,
        Role.PREDICTION,
        Role.LABEL,
        Role.MODEL_INPUT,
        Role.OUTPUT,
        Role.OUTPUT_GRADIENT,
    }
)
_EVALUATION = frozenset({ModeKeys.EVAL, ModeKeys.PREDICT})

# These stand among the names of collections; none is like them.
_NEEDS = "\0needs"
_HISTOGRAMS = "\0histograms"
_UNITS = "\0units"
_TRAINING = "\0training "  # Before a name: of it, what is for training only.


class Policy:
    """What one hook captures.

    Attributes:
        profiles: For each profile, what its tensors belong to.
        revision: Of the registry, at the last ``refresh``.

    Args:
        registry: Its collections.
        save_config: Its schedules, for collections without their own.
        reduction_config: What is saved, likewise; None saves raw values.
        needs: What its rules need.
        save_histogram: Whether collections that do not say have histograms.
        naming: What tensors are called.
    """

    def __init__(
        self,
        registry: CollectionRegistry,
        save_config: SaveConfig | None = None,
        reduction_config: ReductionConfig | None = None,
        needs: Iterable[Needs | Iterable[Needs]] = (),
        *,
        save_histogram: bool = False,
        naming: Naming | None = None,
    ) -> None:
        self.registry = registry
        self.naming = naming or Naming()
        self.save_histogram = save_histogram
        self._is_silent = False
        self._measures = False
        self.throttle = Throttle()
        self.save_config = save_config or SaveConfig()
        self.reduction_config = reduction_config or ReductionConfig(
            save_raw_tensor=True
        )
        every = [each for need in needs for each in every_need(need)]
        self.needs = _merged(every)
        self._needed_roles = _roles(
            need for need in every if need.statistics or need.raw
        )
        self._histogram_roles = _roles(need for need in every if need.histogram)
        self.profiles: list[tuple[str, ...]] = []
        self._schedules: dict[ModeKeys, dict[str, Schedule]] = {}
        self._periods: dict[ModeKeys, int] = {}
        self._wants: dict[tuple[int, ...], StepWants] = {}
        # What was asked for last, by mode; nothing is decided again within it.
        self._spans: dict[ModeKeys, Span] = {}
        self.revision = registry.revision
        self.units_profile = self._intern(
            (_UNITS,) if self.needs.unit_summaries else ()
        )

    def silence(self) -> None:
        """Capture nothing, for good: this rank is not one of those that write."""
        self._is_silent = True
        self.needs = _merged(())
        self._needed_roles = self._histogram_roles = frozenset()
        self.units_profile = self._intern(())
        self._forget()

    def measure(self) -> None:
        """Want at the first step of each mode what any step wants: for a dry run."""
        self._measures = True

    def set_throttle(self, throttle: Throttle) -> None:
        """Leave this out from the next step on."""
        self.throttle = throttle
        self._forget()

    def differ(self, one: Throttle, other: Throttle) -> bool:
        """Whether these two leave out different things of what is captured."""
        kept, found = self.throttle, []
        try:
            for throttle in (one, other):
                self.throttle = throttle
                found.append([self._compile(mode) for mode in ModeKeys])
        finally:
            self.throttle = kept
        return found[0] != found[1]

    def period(self, mode: ModeKeys) -> int:
        """Steps in which everything that is scheduled comes once."""
        period = self._periods.get(mode)
        if period is None:
            period = self._periods[mode] = max(
                (
                    max(
                        item.config.statistics_interval,
                        item.config.save_interval if item.saves_values else 1,
                    )
                    for name, item in self._schedules_of(mode).items()
                    if name not in _EVERY_STEP
                ),
                default=1,
            )
        return period

    def refresh(self) -> bool:
        """Whether collections have changed since the last call."""
        revision = self.registry.revision
        if revision == self.revision:
            return False
        self.revision = revision
        self._forget()
        return True

    def _forget(self) -> None:
        self._schedules.clear()
        self._periods.clear()
        self._wants.clear()
        self._spans.clear()

    def membership(self, name: str, role: Role) -> list[str]:
        """Names of all collections that this tensor belongs to."""
        return [item.name for item in self.registry if item.has(name, role)]

    def profile(self, name: str, role: Role) -> int:
        """Number of the tensor's profile."""
        names = [item.name for item in self.registry.captured() if item.has(name, role)]
        if role in self._needed_roles:
            names.append(_NEEDS)
        if role in self._histogram_roles:
            names.append(_HISTOGRAMS)
        if role in _TRAINING_ONLY:
            names = [_TRAINING + name for name in names]
        return self._intern(tuple(names))

    def may_capture(self, role: Role) -> bool:
        """Whether any tensor of that role may be wanted at some step."""
        if role in self._needed_roles or role in self._histogram_roles:
            return True
        return not self._is_silent and any(
            item.may_hold(role) for item in self.registry.captured()
        )

    def captures(self, name: str, role: Role) -> bool:
        """Whether this tensor may be wanted at some step."""
        return not self._is_silent and bool(self.profiles[self.profile(name, role)])

    def wants(self, mode: ModeKeys, mode_step: int) -> StepWants:
        """What is wanted at this step."""
        span = self._spans.get(mode)
        if span is None or not span.first <= mode_step < span.end:
            span = self._spans[mode] = self._find_span(mode, mode_step)
        return span.wants

    def scheduled(self, mode: ModeKeys, mode_step: int) -> StepWants:
        """What is wanted at this step where nothing is measured."""
        wanted = [item.wants(mode_step) for item in self._schedules_of(mode).values()]
        return self._intern_wants(mode, tuple(wanted))

    def reduces(self, mode: ModeKeys, mode_step: int) -> bool:
        """Whether the hook, whatever its collections do, takes statistics there."""
        config = self.save_config.of(mode)
        return config.should_reduce(mode_step) or (
            self._measures and mode_step == 0 and not config.is_empty
        )

    def _find_span(self, mode: ModeKeys, mode_step: int) -> Span:
        configs = {item.config for item in self._schedules_of(mode).values()}
        ends = [config.steady_until(mode_step) for config in configs]
        end = min((end for end in ends if end is not None), default=math.inf)
        if self._measures and mode_step == 0:
            end = 1
        return Span(mode_step, end, self._find_wants(mode, mode_step))

    def _schedules_of(self, mode: ModeKeys) -> dict[str, Schedule]:
        if mode not in self._schedules:
            self._schedules[mode] = self._compile(mode)
        return self._schedules[mode]

    def _find_wants(self, mode: ModeKeys, mode_step: int) -> StepWants:
        if not self._measures or mode_step != 0:
            return self.scheduled(mode, mode_step)
        schedules = self._schedules_of(mode).values()
        return self._intern_wants(mode, tuple(item.wants_ever() for item in schedules))

    def _intern_wants(self, mode: ModeKeys, wanted: tuple[int, ...]) -> StepWants:
        schedules = self._schedules_of(mode)
        key = (mode._value_, *wanted)
        found = self._wants.get(key)
        if found is None:
            flags = dict(zip(schedules, wanted, strict=True))
            takes_activations = any(
                flags[name] and item.may_hold_activations
                for name, item in schedules.items()
            )
            is_light = not any(
                flags[name] and not item.is_light for name, item in schedules.items()
            )
            if mode not in _EVALUATION:
                flags |= {_TRAINING + name: flag for name, flag in flags.items()}
            found = self._wants[key] = StepWants(
                self.profiles, flags, takes_activations, is_light=is_light
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """As it stands in the configuration event."""
        return {
            "include_collections": [item.name for item in self.registry.captured()],
            "save_config": self.save_config.as_json(),
            "reduction_config": self.reduction_config.as_json(),
            "save_histogram": self.save_histogram,
            "naming": self.naming.name,
            "needs": {
                **dataclasses.asdict(self.needs),
                "collections": sorted(self.needs.collections),
                "modules": sorted(self.needs.modules),
            },
        }

    def _intern(self, names: tuple[str, ...]) -> int:
        if names not in self.profiles:
            self.profiles.append(names)
        return self.profiles.index(names)

    def _compile(self, mode: ModeKeys) -> dict[str, Schedule]:
        hook = self.save_config.of(mode)
        schedules: dict[str, Schedule] = {}
        if self._is_silent:
            return schedules
        for item in self.registry.captured():
            schedules[item.name] = self._schedule(item, hook, mode)
        interval = self.needs.interval or hook.statistics_interval
        needed = dataclasses.replace(
            hook, statistics_interval=min(interval, hook.statistics_interval)
        )
        if self._needed_roles:
            holds = not _ACTIVATIONS.isdisjoint(self._needed_roles)
            schedules[_NEEDS] = self._throttled(
                Schedule(needed, self.needs.raw, 0, holds)
            )
        if self._histogram_roles:
            holds = not _ACTIVATIONS.isdisjoint(self._histogram_roles)
            schedules[_HISTOGRAMS] = self._throttled(
                Schedule(needed, False, HISTOGRAM, holds)
            )
        if self.needs.unit_summaries:
            schedules[_UNITS] = self._throttled(Schedule(needed, False, 0, True))
        return schedules

    def _schedule(
        self, item: Collection, hook: SaveConfigMode, mode: ModeKeys
    ) -> Schedule:
        reduction = item.reduction_config or self.reduction_config
        saves_values = reduction.save_raw_tensor
        holds = bool(item.include_regex) or not _ACTIVATIONS.isdisjoint(item.roles)
        config = hook if item.save_config is None else item.save_config.of(mode, hook)
        counts = self.save_histogram
        if item.save_histogram is not None:
            counts = item.save_histogram
        if item.name not in _EVERY_STEP:
            flags = HISTOGRAM if counts else 0
            return self._throttled(Schedule(config, saves_values, flags, holds))
        flags = HISTOGRAM if item.save_histogram else 0
        is_light = not item.include_regex and not item.tensor_names
        if item.save_config is not None:
            return Schedule(config, True, flags, holds, is_light)
        # The statistics at every step; values of losses that are one number, too,
        # of larger ones (not reduced over the batch) as the hook says.
        config = dataclasses.replace(hook, statistics_interval=1)
        return Schedule(config, saves_values, SMALL_VALUES | flags, holds, is_light)

    def _throttled(self, item: Schedule) -> Schedule:
        throttle, config, flags = self.throttle, item.config, item.flags
        if not throttle.histograms:
            flags &= ~HISTOGRAM
        saves_values = item.saves_values and throttle.values
        factor = throttle.activations if item.may_hold_activations else throttle.others
        if factor > 1:
            # Where values are due, statistics are: both intervals grow.
            interval = config.statistics_interval
            if item.saves_values:
                interval = min(interval, config.save_interval)
            config = dataclasses.replace(
                config,
                statistics_interval=interval * factor,
                save_interval=config.save_interval * factor,
            )
        return item._replace(config=config, saves_values=saves_values, flags=flags)


def _merged(every: Sequence[Needs]) -> Needs:
    """What serves all of them."""
    intervals = [need.interval for need in every if need.interval is not None]
    return Needs(
        collections=frozenset().union(*(need.collections for need in every)),
        statistics=any(need.statistics for need in every),
        unit_summaries=any(need.unit_summaries for need in every),
        histogram=any(need.histogram for need in every),
        raw=any(need.raw for need in every),
        interval=min(intervals) if intervals else None,
    )


def _roles(needs: Iterable[Needs]) -> frozenset[Role]:
    return frozenset(
        role for need in needs for name in need.collections for role in BUILT_IN[name]
    )
