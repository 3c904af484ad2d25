"""Which tensors are captured at which step, and what of them.

Implements docs/steps.md, "Two schedules".  Collections, the hook's own
configuration and the needs of rules meet here; what comes out is, for a step,
one set of flags per profile, and each tensor belongs to a profile.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable, Mapping
from typing import Any

from tdbg.capture.naming import Naming
from tdbg.capture.needed import ACTIVATIONS, Needed
from tdbg.capture.schedule import Schedule, Span, Timing
from tdbg.capture.wants import (
    HISTOGRAM,
    ROWS,
    SMALL_VALUES,
    VALUES,
    StepWants,
    Throttle,
)
from tdbg.collections import Collection, CollectionKeys, CollectionRegistry, Role
from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.modes import ModeKeys
from tdbg.needs import Needs

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
_EVALUATION = frozenset({ModeKeys.EVAL, ModeKeys.PREDICT})

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
        rules: What is told of these rules.
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
        rules: Iterable[Mapping[str, Any]] = (),
        save_histogram: bool = False,
        naming: Naming | None = None,
    ) -> None:
        self.registry = registry
        self.rules = tuple(rules)
        self.naming = naming or Naming()
        self.save_histogram = save_histogram
        self._is_silent = False
        self._measures = False
        self.throttle = Throttle()
        self.save_config = save_config or SaveConfig()
        self.reduction_config = reduction_config or ReductionConfig(
            save_raw_tensor=True
        )
        self._own_needs = tuple(needs)
        self.needed = Needed(self._own_needs, registry)
        self.profiles: list[tuple[str, ...]] = []
        self._schedules: dict[ModeKeys, dict[str, Schedule]] = {}
        self._periods: dict[ModeKeys, int] = {}
        self._wants: dict[tuple[int, ...], StepWants] = {}
        self._timings: dict[ModeKeys, tuple[list[Timing], list[int]]] = {}
        # What is wanted where this is due.
        self._due: dict[tuple[int, ...], StepWants] = {}
        # What was asked for last, by mode; nothing is decided again within it.
        self._spans: dict[ModeKeys, Span] = {}
        self.revision = registry.revision

    def silence(self) -> None:
        """Capture nothing, for good: this rank is not one of those that write."""
        self._is_silent = True
        self._own_needs = ()
        self.needed = Needed((), self.registry)
        self._forget()

    def need(self, needs: Iterable[Needs], *, instead: bool = False) -> None:
        """From the next ``refresh`` on, capture what these say as well.

        Args:
            needs: They; those of an earlier call are forgotten.
            instead: Of what the hook's own rules need.
        """
        if not self._is_silent:
            own = () if instead else self._own_needs
            self.needed = Needed((*own, *needs), self.registry)
            self.registry.changes.count += 1

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
                    item.period
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
        self._timings.clear()
        self._due.clear()

    def membership(self, name: str, role: Role) -> list[str]:
        """Names of all collections that this tensor belongs to."""
        return [item.name for item in self.registry if item.has(name, role)]

    def profile(
        self, name: str, role: Role, classes: AbstractCollection[str] = ()
    ) -> int:
        """Number of the profile of a tensor.

        Args:
            name: Its name.
            role: Its role.
            classes: Names of the classes of the module that it is of.
        """
        names = [item.name for item in self.registry.captured() if item.has(name, role)]
        names += self.needed.names_of(name, role, classes)
        # Where the tensor has none, nothing comes of it.
        names += self.needed.units_of(role, classes)
        return self._profile_of(names, role)

    def units_profile(self, role: Role, classes: AbstractCollection[str]) -> int:
        """The same of the summary of its units; of none, that of nothing."""
        return self._profile_of(self.needed.units_of(role, classes), role)

    def may_capture(
        self, role: Role, classes: AbstractCollection[str] | None = None
    ) -> bool:
        """Whether a tensor of that role may be wanted at some step.

        Args:
            role: The role.
            classes: Names of the classes of the module that it is of; None: any.
        """
        return not self._is_silent and (
            self.needed.may_hold(role, classes)
            or any(item.may_hold(role) for item in self.registry.captured())
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
        timings, places = self._timings_of(mode)
        key = (mode._value_, *[each.due(mode_step) for each in timings])
        found = self._due.get(key)
        if found is None:
            schedules = self._schedules_of(mode).values()
            wanted = [
                item.wants_when(key[1 + place])
                for item, place in zip(schedules, places, strict=True)
            ]
            found = self._due[key] = self._intern_wants(mode, tuple(wanted))
        return found

    def reduces(self, mode: ModeKeys, mode_step: int) -> bool:
        """Whether the hook, whatever its collections do, takes statistics there."""
        config = self.save_config.of(mode)
        return config.should_reduce(mode_step) or (
            self._measures and mode_step == 0 and not config.is_empty
        )

    def _find_span(self, mode: ModeKeys, mode_step: int) -> Span:
        timings, _ = self._timings_of(mode)
        end = min((each.steady_until(mode_step) for each in timings), default=math.inf)
        if self._measures and mode_step == 0:
            end = 1
        return Span(mode_step, end, self._find_wants(mode, mode_step))

    def _schedules_of(self, mode: ModeKeys) -> dict[str, Schedule]:
        if mode not in self._schedules:
            self._schedules[mode] = self._compile(mode)
        return self._schedules[mode]

    def _timings_of(self, mode: ModeKeys) -> tuple[list[Timing], list[int]]:
        """The different timings of a mode, and which of them each schedule has."""
        found = self._timings.get(mode)
        if found is None:
            every = [item.timing for item in self._schedules_of(mode).values()]
            timings = list(dict.fromkeys(every))
            found = timings, [timings.index(each) for each in every]
            self._timings[mode] = found
        return found

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
            "rules": [dict(rule) for rule in self.rules],
            "needs": self.needed.as_json(),
        }

    def _profile_of(self, names: list[str], role: Role) -> int:
        if role in _TRAINING_ONLY:
            names = [_TRAINING + name for name in names]
        return self._intern(tuple(names))

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
        for name, schedule in self.needed.schedules(hook).items():
            schedules[name] = schedule.throttled(self.throttle)
        return schedules

    def _schedule(
        self, item: Collection, hook: SaveConfigMode, mode: ModeKeys
    ) -> Schedule:
        reduction = item.reduction_config or self.reduction_config
        saves_values = reduction.save_raw_tensor
        holds = bool(item.include_regex) or not ACTIVATIONS.isdisjoint(item.roles)
        config = hook if item.save_config is None else item.save_config.of(mode, hook)
        counts = self.save_histogram
        if item.save_histogram is not None:
            counts = item.save_histogram
        if item.name not in _EVERY_STEP:
            flags = ROWS | HISTOGRAM if counts else ROWS
            on_save = flags | VALUES if saves_values else 0
            return Schedule(config, on_save, flags, holds).throttled(self.throttle)
        flags = ROWS | HISTOGRAM if item.save_histogram else ROWS
        is_light = not item.include_regex and not item.tensor_names
        if item.save_config is not None:
            on_save = flags | VALUES
            return Schedule(config, on_save, flags, holds, is_light=is_light)
        # The statistics at every step; values of losses that are one number, too,
        # of larger ones (not reduced over the batch) as the hook says.
        config = dataclasses.replace(hook, statistics_interval=1)
        flags |= SMALL_VALUES
        on_save = flags | VALUES if saves_values else 0
        return Schedule(config, on_save, flags, holds, is_light=is_light)
