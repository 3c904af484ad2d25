"""Plans: a captured tensor's name with all that follows from it."""

from __future__ import annotations

from typing import Any

from tdbg.capture.tensors import Part
from tdbg.collections import Role

__all__ = ["TensorPlan"]


class TensorPlan:
    """A captured name.

    Attributes:
        profile: By which the policy says what is wanted of it.
        slot: What the taker knows of it.
        parts: The same of its parts, where the tensor is distributed.
        collections: Names of those that it belongs to; None: not asked yet.
        ids: Definitions given out so far, by element type, shape and part.
    """

    __slots__ = (
        "aliases",
        "collections",
        "ids",
        "name",
        "parts",
        "profile",
        "role",
        "slot",
        "units",
    )

    def __init__(
        self,
        name: str,
        role: Role,
        profile: int,
        aliases: tuple[str, ...] = (),
        slot: Any = None,
    ) -> None:
        self.name = name
        self.role = role
        self.profile = profile
        self.aliases = aliases
        self.collections: list[str] | None = None
        self.ids: dict[tuple[str, tuple[int, ...], Part | None], int] = {}
        self.units: TensorPlan | None = None
        self.slot = slot
        self.parts: dict[Part, Any] = {}
