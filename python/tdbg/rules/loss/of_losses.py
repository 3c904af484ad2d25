"""What rules about losses have in common: what they see, and how they read it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tdbg.needs import Needs
from tdbg.rules._base import Rule
from tdbg.rules.window import Table, TensorInfo

__all__ = ["OfLosses", "losses_of", "median_of"]

Floats = NDArray[np.float64]


class OfLosses(Rule):
    """Base of rules about losses."""

    __slots__ = ()

    @property
    def needs(self) -> Needs | tuple[Needs, ...]:
        """The rows of losses, of training and evaluation, which hold their values."""
        return Needs(collections=frozenset({"losses"}))

    def selects(self, tensor: TensorInfo) -> bool:
        """Losses."""
        return tensor.role == "loss"


def losses_of(table: Table, i: int) -> Floats:
    """The losses in row *i*; NaN where one is not known, or is no number."""
    known = table.known[i] & (table.not_finite[i] == 0)
    return np.where(known, table["mean"][i], np.nan)


def median_of(losses: Floats) -> float:
    """The median of those that are numbers; NaN if none is."""
    finite = losses[np.isfinite(losses)]
    return float(np.median(finite)) if len(finite) else np.nan
