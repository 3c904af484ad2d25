"""What the rules of a hook need of the capture: of which tensors, and when.

Thread safety: values; the thread of the training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable
from typing import Any

from tdbg.capture.schedule import (
    HISTOGRAM,
    LIMITED_VALUES,
    ROWS,
    Schedule,
    Throttle,
)
from tdbg.config.collections import BUILT_IN, CollectionRegistry, Role
from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs, every_need
from tdbg.config.schedules import Default, SaveConfigMode

__all__ = ["ACTIVATIONS", "RuleNeeds"]


ACTIVATIONS = frozenset(
    {
        Role.INPUT,
        Role.PREDICTION,
        Role.LABEL,
        Role.MODEL_INPUT,
        Role.OUTPUT,
        Role.OUTPUT_GRADIENT,
    }
)
"""The roles of tensors that hooks on modules capture."""
# The modules whose units are counted if a need names no modules.
_WITH_UNITS = frozenset({Kind.RELU})
# The roles of tensors that have units.
_HAVE_UNITS = frozenset({Role.OUTPUT, Role.GRADIENT})


_NO_THROTTLE = Throttle()


class _NeedSchedule:
    """One need of a rule: which tensors it concerns, and when."""

    def __init__(self, number: int, needs: Needs, registry: CollectionRegistry) -> None:
        # Used beside the names of collections, none of which begins like this.
        self.name = f"\0need {number}"
        self.units_name = f"\0units {number}"
        self.needs = needs
        self.roles = frozenset(
            role for name in needs.collections for role in BUILT_IN[name]
        )
        self._registry = registry
        self._takes = ROWS * needs.statistics | HISTOGRAM * needs.histogram
        self.takes_tensors = bool(self._takes or needs.raw)

    def has(self, name: str, role: Role, classes: AbstractCollection[str]) -> bool:
        """Whether a tensor is needed that belongs to a module of these classes.

        Here and below the kind of the module is one of its *classes*.
        """
        modules = self.needs.modules
        if modules and modules.isdisjoint(classes):
            return False
        return role in self.roles or self._is_member(name)

    def _is_member(self, name: str) -> bool:
        """Whether one of the collections names the tensor."""
        known = {item.name: item for item in self._registry}
        return any(
            each in known and name in known[each].tensor_names
            for each in self.needs.collections
        )

    def counts_units(self, role: Role, classes: AbstractCollection[str]) -> bool:
        """Whether the units of such a tensor are to be counted."""
        if role not in _HAVE_UNITS or not self.needs.unit_summaries:
            return False
        modules = self.needs.modules
        if not modules and role is Role.OUTPUT:
            modules = _WITH_UNITS
        return role in self.roles and not modules.isdisjoint(classes)

    def may_hold(self, role: Role, classes: AbstractCollection[str] | None) -> bool:
        """Whether a tensor of that role may be needed; None: of any module."""
        if role not in self.roles:
            return False
        if classes is None:
            return True
        modules = self.needs.modules
        if self.takes_tensors and (not modules or not modules.isdisjoint(classes)):
            return True
        return self.counts_units(role, classes)

    def schedule(self, hook: SaveConfigMode) -> Schedule:
        """Return when the need is captured; *hook* is the hook's own schedule."""
        needs = self.needs
        config = hook
        if needs.interval is not None:
            config = dataclasses.replace(
                hook,
                save_interval=Default(needs.interval),
                statistics_interval=Default(needs.interval),
                save_steps=frozenset(),
            )
        return Schedule(
            config,
            self._takes | LIMITED_VALUES if needs.raw else 0,
            self._takes,
            not ACTIVATIONS.isdisjoint(self.roles),
            needs.first_steps,
            is_beginning=needs.interval == 1 and needs.first_steps is not None,
        )


class RuleNeeds:
    """The needs of all rules of a hook.

    Args:
        needs: The needs, which may repeat.
        registry: The collections of the hook.

    Attributes:
        needs: The needs, each once.
    """

    def __init__(
        self,
        needs: Iterable[Needs | Iterable[Needs]],
        registry: CollectionRegistry,
    ) -> None:
        self.needs = tuple(
            dict.fromkeys(each for item in needs for each in every_need(item))
        )
        self._items = [
            _NeedSchedule(i, each, registry) for i, each in enumerate(self.needs)
        ]

    def names_of(
        self, name: str, role: Role, classes: AbstractCollection[str]
    ) -> list[str]:
        """Return the names of the schedules by which this tensor is captured."""
        if role is Role.UNIT_SUMMARY:
            return []
        return [
            item.name
            for item in self._items
            if item.takes_tensors and item.has(name, role, classes)
        ]

    def units_of(self, role: Role, classes: AbstractCollection[str]) -> list[str]:
        """Return the names of the schedules by which its units are counted."""
        return [
            item.units_name for item in self._items if item.counts_units(role, classes)
        ]

    def raw_limit(self, name: str, role: Role, classes: AbstractCollection[str]) -> int:
        """Return the largest value, in bytes, that rules need of this tensor."""
        return max(
            (
                item.needs.raw_limit
                for item in self._items
                if item.needs.raw and item.has(name, role, classes)
            ),
            default=0,
        )

    def may_hold(
        self, role: Role, classes: AbstractCollection[str] | None = None
    ) -> bool:
        """Whether a tensor of that role may be needed; None: of any module."""
        return any(item.may_hold(role, classes) for item in self._items)

    def schedules(
        self,
        hook: SaveConfigMode,
        throttle: Throttle = _NO_THROTTLE,
        asked: AbstractCollection[Needs] = (),
    ) -> dict[str, Schedule]:
        """Return all schedules, by name.

        Args:
            hook: The hook's own schedule.
            throttle: What a budget leaves out.
            asked: Needs of requests, of which it leaves out nothing.
        """
        found: dict[str, Schedule] = {}
        for item in self._items:
            schedule = item.schedule(hook)
            if item.needs not in asked:
                schedule = schedule.throttled(throttle)
            if item.takes_tensors:
                found[item.name] = schedule
            if item.needs.unit_summaries:
                found[item.units_name] = schedule.of_units
        return found

    def as_json(self) -> list[dict[str, Any]]:
        """Return what the configuration event has of it."""
        return [each.to_json() for each in self.needs]
