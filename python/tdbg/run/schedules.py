"""What is known of a learning-rate schedule at the end of a training.

Thread safety: values that never change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdbg.run.json_values import is_integer

__all__ = ["RateSchedule"]


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A schedule that has an end.

    Attributes:
        name: Its class, such as ``CosineAnnealingLR``.
        setting: What holds its length, such as ``T_max``.
        length: After how many of its steps it ends.
        steps: How many steps it was last seen to have made.
        seen_at: How many steps of training there were by then.
        optimizer_steps: How many steps of training there were at the end.
    """

    name: str
    setting: str
    length: int
    steps: int
    seen_at: int
    optimizer_steps: int

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RateSchedule | None:
        """The schedule that ``to_json`` made this of; None if it is none."""
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
