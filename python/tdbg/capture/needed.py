"""What rules need, each need by itself, beside what the hook captures.

Implements docs/steps.md, "What rules need".  A need is a collection of its own, with
schedules of its own: that labels are wanted raw makes nothing else raw.

Thread safety: the training's thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable
from typing import Any

from tdbg.capture.schedule import Schedule
from tdbg.capture.wants import HISTOGRAM, LIMITED_VALUES, ROWS
from tdbg.collections import BUILT_IN, CollectionRegistry, Role
from tdbg.config import SaveConfigMode
from tdbg.needs import Needs, every_need

__all__ = ["ACTIVATIONS", "Needed"]

# Those that hooks on modules take.
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
# Their units are counted where a need names no classes of modules.
_WITH_UNITS = frozenset({"ReLU", "ReLU6", "Threshold"})
# Of which units can be counted at all.
_HAVE_UNITS = frozenset({Role.OUTPUT, Role.GRADIENT})


class _Item:
    """One need, and what it means for a tensor."""

    def __init__(self, number: int, needs: Needs, registry: CollectionRegistry) -> None:
        # They stand among the names of collections; none is like them.
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
        """Whether this tensor, of a module of these classes, is needed."""
        modules = self.needs.modules
        if modules and modules.isdisjoint(classes):
            return False
        return role in self.roles or self._is_put_there(name)

    def _is_put_there(self, name: str) -> bool:
        """Whether it is in one of the collections by its name."""
        known = {item.name: item for item in self._registry}
        return any(
            each in known and name in known[each].tensor_names
            for each in self.needs.collections
        )

    def counts_units(self, role: Role, classes: AbstractCollection[str]) -> bool:
        """Whether units of such a tensor are."""
        if role not in _HAVE_UNITS or not self.needs.unit_summaries:
            return False
        modules = self.needs.modules
        if not modules:
            modules = _WITH_UNITS if role is Role.OUTPUT else frozenset()
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
        """When it is wanted, beside the hook's own schedules."""
        needs = self.needs
        config = hook
        if needs.interval is not None:
            config = dataclasses.replace(
                hook,
                save_interval=needs.interval,
                statistics_interval=needs.interval,
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


class Needed:
    """All needs of the rules of a hook.

    Args:
        needs: They; of equal ones only one counts.
        registry: The collections of the hook.

    Attributes:
        needs: They.
        has_limits: Whether values are wanted that are not too large.
    """

    def __init__(
        self,
        needs: Iterable[Needs | Iterable[Needs]],
        registry: CollectionRegistry,
    ) -> None:
        self.needs = tuple(
            dict.fromkeys(each for item in needs for each in every_need(item))
        )
        self._items = [_Item(i, each, registry) for i, each in enumerate(self.needs)]
        self.has_limits = any(each.raw for each in self.needs)

    def names_of(
        self, name: str, role: Role, classes: AbstractCollection[str]
    ) -> list[str]:
        """What stands for the needs that want this tensor itself."""
        if role is Role.UNIT_SUMMARY:
            return []
        return [
            item.name
            for item in self._items
            if item.takes_tensors and item.has(name, role, classes)
        ]

    def units_of(self, role: Role, classes: AbstractCollection[str]) -> list[str]:
        """What stands for the needs that want its units counted."""
        return [
            item.units_name for item in self._items if item.counts_units(role, classes)
        ]

    def raw_limit(self, name: str, role: Role, classes: AbstractCollection[str]) -> int:
        """Bytes that a value of this tensor may have to be kept for them."""
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

    def schedules(self, hook: SaveConfigMode) -> dict[str, Schedule]:
        """By the names that stand for them."""
        found: dict[str, Schedule] = {}
        for item in self._items:
            schedule = item.schedule(hook)
            if item.takes_tensors:
                found[item.name] = schedule
            if item.needs.unit_summaries:
                found[item.units_name] = schedule.of_units
        return found

    def as_json(self) -> list[dict[str, Any]]:
        """As it stands in the configuration event."""
        return [
            {
                **dataclasses.asdict(each),
                "collections": sorted(each.collections),
                "modules": sorted(each.modules),
            }
            for each in self.needs
        ]
