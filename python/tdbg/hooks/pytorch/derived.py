"""What else belongs to a parameter, under a name made of the parameter's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tdbg.capture.plans import TensorPlan
from tdbg.capture.recorder import Recorder
from tdbg.capture.wants import StepWants
from tdbg.collections import Role
from tdbg.hooks.pytorch.parameters import Entry, ParameterTable

__all__ = ["Derived", "DerivedPlans"]

# Sets of wants that are remembered: more than a schedule has.
_MAX_WANTS = 64


class Derived(NamedTuple):
    """A parameter, the plan of what belongs to it, and what is wanted of that."""

    entry: Entry
    plan: TensorPlan
    wanted: int


class _Known(NamedTuple):
    entries: list[Entry]  # For which the rest holds.
    plans: list[tuple[Entry, TensorPlan]]
    by_wants: dict[StepWants, list[Derived]]


class DerivedPlans:
    """Plans of one role for the parameters of modules, made where they are captured.

    Args:
        recorder: Makes them.
        role: What they are plans of.
        name_of: Makes their names of those of parameters.
    """

    def __init__(
        self, recorder: Recorder, role: Role, name_of: Callable[[str], str]
    ) -> None:
        self._recorder = recorder
        self._role = role
        self._name_of = name_of
        self._known: dict[ParameterTable, _Known] = {}

    def refresh(self) -> None:
        """Think again after a change of collections."""
        self._known.clear()

    def of(self, table: ParameterTable) -> list[tuple[Entry, TensorPlan]]:
        """The parameters of which any step wants it."""
        return self._know(table).plans

    def wanted(self, table: ParameterTable, wants: StepWants) -> list[Derived]:
        """The parameters of which a step wants it."""
        known = self._know(table)
        found = known.by_wants.get(wants)
        if found is None:
            if len(known.by_wants) > _MAX_WANTS:
                known.by_wants.clear()
            found = known.by_wants[wants] = [
                Derived(entry, plan, flags)
                for entry, plan in known.plans
                if (flags := wants.of_plan(plan))
            ]
        return found

    def _know(self, table: ParameterTable) -> _Known:
        entries = table.entries()
        known = self._known.get(table)
        if known is None or known.entries is not entries:
            known = self._known[table] = _Known(entries, self._plans(entries), {})
        return known

    def _plans(self, entries: list[Entry]) -> list[tuple[Entry, TensorPlan]]:
        recorder, role, name_of = self._recorder, self._role, self._name_of
        captures = recorder.policy.captures
        found = []
        for entry in entries:
            weight = entry.weight
            name = name_of(weight.name)
            if captures(name, role):
                aliases = tuple(name_of(alias) for alias in weight.aliases)
                found.append((entry, recorder.plan(name, role, aliases)))
        return found
