"""Plans: a captured tensor's name with all that follows from it."""

from __future__ import annotations

from typing import Any

from tdbg.capture.tensors import Part
from tdbg.capture.units import UnitQuestion
from tdbg.collections import Role

__all__ = ["TensorPlan"]


class TensorPlan:
    """A captured name.

    Attributes:
        profile: By which the policy says what is wanted of it.
        slot: What the taker knows of it.
        parts: The same of its parts, where the tensor is distributed.
        collections: Names of those that it belongs to; None: not asked yet.
        classes: Of the module that it is of; names.
        units: The plan of the summary of its units; None: they are not counted.
        question: What is counted of them.
        has_units: Whether they can be counted at all.
        raw_limit: Bytes of a value that is kept where only small enough ones are.
        too_large: Of the largest one that was not; 0: there was none.
        ids: Definitions given out so far, by element type, shape and part.
    """

    __slots__ = (
        "aliases",
        "classes",
        "collections",
        "has_units",
        "ids",
        "name",
        "parts",
        "profile",
        "question",
        "raw_limit",
        "role",
        "slot",
        "too_large",
        "units",
    )

    def __init__(
        self,
        name: str,
        role: Role,
        profile: int,
        aliases: tuple[str, ...] = (),
        slot: Any = None,
        classes: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.role = role
        self.profile = profile
        self.aliases = aliases
        self.collections: list[str] | None = None
        self.ids: dict[tuple[str, tuple[int, ...], Part | None], int] = {}
        self.classes = classes
        self.units: TensorPlan | None = None
        self.question = UnitQuestion()
        self.has_units = False
        self.raw_limit = 0
        self.too_large = 0
        self.slot = slot
        self.parts: dict[Part, Any] = {}

    def limit_raw(self, n_bytes: int) -> None:
        """Keep values of at most so many bytes where only small enough ones are."""
        self.raw_limit = n_bytes
        for slot in (self.slot, *self.parts.values()):
            if slot is not None:
                slot.raw_limit = n_bytes

    def keeps(self, n_bytes: int) -> bool:
        """Whether a value of so many bytes is kept there; remembered if it is not."""
        if n_bytes <= self.raw_limit:
            return True
        self.too_large = max(self.too_large, n_bytes)
        return False

    def largest_left_out(self) -> int:
        """Bytes of the largest value that was not kept; 0: there was none."""
        slots = (self.slot, *self.parts.values())
        of_slots = (0 if slot is None else slot.too_large for slot in slots)
        return max(self.too_large, *of_slots)
