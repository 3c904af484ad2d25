"""Which tensors are captured at which step, and what of them.

Implements docs/steps.md, "Two schedules".  Collections, the hook's own
configuration and the needs of rules meet here; what comes out is, for a step,
one set of flags per profile, and each tensor belongs to a profile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from tdbg.collections import (
    BUILT_IN,
    Collection,
    CollectionKeys,
    CollectionRegistry,
    Role,
)
from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.modes import ModeKeys
from tdbg.needs import Needs, merge_needs

__all__ = ["ROWS", "SMALL_VALUES", "VALUES", "Policy", "StepWants"]

# What is wanted of a tensor at a step.
ROWS = 1
VALUES = 2
SMALL_VALUES = 4  # Its value, if it is a single number.

# Saved at every step unless configured themselves, and never reduced.
_EVERY_STEP = frozenset({CollectionKeys.LOSSES.value, CollectionKeys.SCALARS.value})
# Their collection is meant for training only.
_TRAINING_ONLY = frozenset({Role.GRADIENT, Role.GRADIENT_UNCLIPPED, Role.UPDATE})
_ACTIVATIONS = frozenset({Role.INPUT, Role.OUTPUT})
_EVALUATION = frozenset({ModeKeys.EVAL, ModeKeys.PREDICT})

_NEEDS = "\0needs"  # Stands among the names of collections; none is like it.
_UNITS = "\0units"
_TRAINING = "\0training "  # Before a name: of it, what is for training only.


class _Schedule(NamedTuple):
    """How one collection is captured in one mode."""

    config: SaveConfigMode
    saves_values: bool
    flags: int  # Wanted beside the statistics.
    may_hold_activations: bool

    def wants(self, mode_step: int) -> int:
        config = self.config
        if self.saves_values and config.should_save(mode_step):
            return ROWS | VALUES | self.flags
        return ROWS | self.flags if config.should_reduce(mode_step) else 0


class StepWants:
    """What is wanted at a step.

    Attributes:
        is_active: Whether anything may be.
        takes_activations: Whether inputs or outputs of modules may be.
        by_profile: What of the tensors of each profile; grows with the profiles.
    """

    __slots__ = ("_flags", "_policy", "by_profile", "is_active", "takes_activations")

    def __init__(
        self, policy: Policy, flags: dict[str, int], takes_activations: bool
    ) -> None:
        self._policy = policy
        self._flags = flags
        self.is_active = any(flags.values())
        self.takes_activations = takes_activations
        self.by_profile: list[int] = []

    def of(self, profile: int) -> int:
        """What is wanted of the tensors of a profile."""
        if profile < len(self.by_profile):
            return self.by_profile[profile]
        names_by_profile = self._policy.profiles
        while len(self.by_profile) <= profile:
            wanted = 0
            for name in names_by_profile[len(self.by_profile)]:
                wanted |= self._flags.get(name, 0)
            self.by_profile.append(wanted)
        return self.by_profile[profile]


class Policy:
    """What one hook captures.

    Attributes:
        profiles: For each profile, what its tensors belong to.

    Args:
        registry: Its collections.
        save_config: Its schedules, for collections without their own.
        reduction_config: What is saved, likewise; None saves raw values.
        needs: What its rules need.
    """

    def __init__(
        self,
        registry: CollectionRegistry,
        save_config: SaveConfig | None = None,
        reduction_config: ReductionConfig | None = None,
        needs: Iterable[Needs] = (),
    ) -> None:
        self.registry = registry
        self.save_config = save_config or SaveConfig()
        self.reduction_config = reduction_config or ReductionConfig(
            save_raw_tensor=True
        )
        every = list(needs)
        self.needs = merge_needs(every)
        self._needed_roles = frozenset(
            role
            for need in every
            if need.statistics or need.raw
            for name in need.collections
            for role in BUILT_IN[name]
        )
        self.profiles: list[tuple[str, ...]] = []
        self._schedules: dict[ModeKeys, dict[str, _Schedule]] = {}
        self._wants: dict[tuple[int, ...], StepWants] = {}
        self._revision = registry.revision
        self.units_profile = self._intern(
            (_UNITS,) if self.needs.unit_summaries else ()
        )

    def refresh(self) -> bool:
        """Whether collections have changed since the last call."""
        revision = self.registry.revision
        if revision == self._revision:
            return False
        self._revision = revision
        self._schedules.clear()
        self._wants.clear()
        return True

    def membership(self, name: str, role: Role) -> list[str]:
        """Names of all collections that this tensor belongs to."""
        return [item.name for item in self.registry if item.has(name, role)]

    def profile(self, name: str, role: Role) -> int:
        """Number of the tensor's profile."""
        names = [item.name for item in self.registry.captured() if item.has(name, role)]
        if role in self._needed_roles:
            names.append(_NEEDS)
        if role in _TRAINING_ONLY:
            names = [_TRAINING + name for name in names]
        return self._intern(tuple(names))

    def may_capture(self, role: Role) -> bool:
        """Whether any tensor of that role may be wanted at some step."""
        if role in self._needed_roles:
            return True
        return any(
            role in item.roles or item.include_regex
            for item in self.registry.captured()
        )

    def wants(self, mode: ModeKeys, mode_step: int) -> StepWants:
        """What is wanted at this step."""
        schedules = self._schedules.get(mode)
        if schedules is None:
            schedules = self._schedules[mode] = self._compile(mode)
        key = (mode.value, *(item.wants(mode_step) for item in schedules.values()))
        found = self._wants.get(key)
        if found is None:
            flags = dict(zip(schedules, key[1:], strict=True))
            takes_activations = any(
                flags[name] and item.may_hold_activations
                for name, item in schedules.items()
            )
            if mode not in _EVALUATION:
                flags |= {_TRAINING + name: flag for name, flag in flags.items()}
            found = self._wants[key] = StepWants(self, flags, takes_activations)
        return found

    def as_json(self) -> dict[str, Any]:
        """As it stands in the configuration event."""
        return {
            "include_collections": [item.name for item in self.registry.captured()],
            "save_config": self.save_config.as_json(),
            "reduction_config": self.reduction_config.as_json(),
            "needs": {
                **dataclasses.asdict(self.needs),
                "collections": sorted(self.needs.collections),
            },
        }

    def _intern(self, names: tuple[str, ...]) -> int:
        if names not in self.profiles:
            self.profiles.append(names)
        return self.profiles.index(names)

    def _compile(self, mode: ModeKeys) -> dict[str, _Schedule]:
        hook = self.save_config.of(mode)
        schedules = {}
        for item in self.registry.captured():
            schedules[item.name] = self._schedule(item, hook, mode)
        interval = self.needs.interval or hook.statistics_interval
        needed = dataclasses.replace(
            hook, statistics_interval=min(interval, hook.statistics_interval)
        )
        if self._needed_roles:
            holds = not _ACTIVATIONS.isdisjoint(self._needed_roles)
            schedules[_NEEDS] = _Schedule(needed, self.needs.raw, 0, holds)
        if self.needs.unit_summaries:
            schedules[_UNITS] = _Schedule(needed, False, 0, True)
        return schedules

    def _schedule(
        self, item: Collection, hook: SaveConfigMode, mode: ModeKeys
    ) -> _Schedule:
        reduction = item.reduction_config or self.reduction_config
        saves_values = reduction.save_raw_tensor
        holds = bool(item.include_regex) or not _ACTIVATIONS.isdisjoint(item.roles)
        config = hook if item.save_config is None else item.save_config.of(mode, hook)
        if item.name not in _EVERY_STEP:
            return _Schedule(config, saves_values, 0, holds)
        if item.save_config is not None:
            return _Schedule(config, True, 0, holds)
        # The statistics at every step; values of losses that are one number, too,
        # of larger ones (not reduced over the batch) as the hook says.
        config = dataclasses.replace(hook, statistics_interval=1)
        return _Schedule(config, saves_values, SMALL_VALUES, holds)
