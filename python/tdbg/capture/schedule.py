"""How one collection is captured in one mode."""

from __future__ import annotations

from typing import NamedTuple

from tdbg.capture.wants import ROWS, VALUES, StepWants
from tdbg.config import SaveConfigMode

__all__ = ["Schedule", "Span"]


class Schedule(NamedTuple):
    """What is wanted of its tensors, step by step.

    Attributes:
        config: When.
        saves_values: Whether values are saved, not only statistics.
        flags: Wanted beside the statistics.
        may_hold_activations: Whether inputs or outputs of modules may be among them.
        is_light: Whether it is of what comes by itself: losses and scalars.
    """

    config: SaveConfigMode
    saves_values: bool
    flags: int
    may_hold_activations: bool
    is_light: bool = False

    def wants(self, mode_step: int) -> int:
        """What is wanted at this step."""
        config = self.config
        if self.saves_values and config.should_save(mode_step):
            return ROWS | VALUES | self.flags
        return ROWS | self.flags if config.should_reduce(mode_step) else 0

    def wants_ever(self) -> int:
        """What is wanted at any step."""
        if self.config.is_empty:
            return 0
        return ROWS | (VALUES if self.saves_values else 0) | self.flags


class Span(NamedTuple):
    """Steps of a mode, from *first* to before *end*, that want the same."""

    first: int
    end: float
    wants: StepWants
