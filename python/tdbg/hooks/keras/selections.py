"""What a step captures of things that have names, remembered by the step's plan.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from tdbg.capture.schedule import StepPlan
from tdbg.capture.tensor_entry import TensorEntry

__all__ = ["SelectedTensors", "Selections"]

_Thing = TypeVar("_Thing")

# So many plans are remembered: more than a schedule has.
_MAX_STEP_PLANS = 64


class SelectedTensors(NamedTuple, Generic[_Thing]):
    """What a step captures.

    Attributes:
        entries: The names.
        things: What has them.
        flags: What is captured of each.
    """

    entries: tuple[TensorEntry, ...]
    things: tuple[_Thing, ...]
    flags: tuple[int, ...]


class Selections(Generic[_Thing]):
    """Selects from one list of things with names, of which a step captures some."""

    def __init__(self) -> None:
        self._named: Sequence[tuple[TensorEntry, _Thing]] = ()
        self._known: dict[StepPlan, SelectedTensors[_Thing]] = {}

    def refresh(self) -> None:
        """Forget what is captured: collections have changed."""
        self._known.clear()

    def of(
        self, plan: StepPlan, named: Sequence[tuple[TensorEntry, _Thing]]
    ) -> SelectedTensors[_Thing]:
        """Return what a step of this plan captures.

        Args:
            plan: The plan.
            named: The list; another object whenever something else is in it.
        """
        if named is not self._named:
            self._named = named
            self._known.clear()
        found = self._known.get(plan)
        if found is None:
            if len(self._known) >= _MAX_STEP_PLANS:
                self._known.clear()
            of_entry = plan.of_entry
            chosen = [
                (entry, thing, flags)
                for entry, thing in named
                if (flags := of_entry(entry))
            ]
            found = self._known[plan] = SelectedTensors(
                tuple(entry for entry, _, _ in chosen),
                tuple(thing for _, thing, _ in chosen),
                tuple(flags for _, _, flags in chosen),
            )
        return found
