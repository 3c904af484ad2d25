"""Units: the channels of an activation, the rows of an embedding.

Thread safety: values.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["UnitQuestion"]

_INFINITY = float("inf")


class UnitQuestion(NamedTuple):
    """What is counted of the units of a tensor: docs/statistics.md, "Unit summaries".

    Attributes:
        low: What is less is beyond.
        high: What is more is beyond.
        of_rows: Of the gradient of an embedding: its rows are the units, and active
            is what is not zero.
    """

    low: float = -_INFINITY
    high: float = _INFINITY
    of_rows: bool = False

    def axis(self, n_dimensions: int) -> int:
        """The dimension that numbers the units; REQUIRES: there is one."""
        return 0 if self.of_rows else min(1, n_dimensions - 1)
