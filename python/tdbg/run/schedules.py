"""RateSchedule: a learning-rate schedule, as far as a training came in it.

Thread safety: values that never change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdbg.run.json_values import is_integer

__all__ = ["BATCH_SETTINGS", "RateSchedule"]

#: Settings that are in steps of the optimizer, as their documentation says.
BATCH_SETTINGS = frozenset({"total_steps", "num_training_steps", "max_steps"})


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A learning-rate schedule with a fixed length.

    Attributes:
        name: Its class, such as ``CosineAnnealingLR``.
        setting: The argument that sets its length, such as ``T_max``.
        length: Number of its steps.
        steps: Steps that it had made when the hook last looked.
        seen_at: Training steps made by then.
        optimizer_steps: Training steps made at the end.
    """

    name: str
    setting: str
    length: int
    steps: int
    seen_at: int
    optimizer_steps: int

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RateSchedule | None:
        """Return the schedule that ``to_json`` wrote, or None if it is malformed."""
        name, setting = document.get("name"), document.get("setting")
        length, steps = document.get("length"), document.get("steps")
        seen_at, made = document.get("seen_at"), document.get("optimizer_steps")
        if not (isinstance(name, str) and isinstance(setting, str)):
            return None
        if not (is_integer(length) and is_integer(steps)):
            return None
        if not (is_integer(seen_at) and is_integer(made)):
            return None
        return cls(name, setting, length, steps, seen_at, made)
