"""Sizes of weights, gradients and updates at one step, and what sets the updates'.

Thread safety: values that never change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tdbg.rules.columns import GRADIENT, UPDATE
from tdbg.rules.window import Bools, Floats, Table

__all__ = ["UpdateSizes"]

# Weights with a smaller root mean square are near zero on purpose, and their updates
# may exceed them.
NEAR_ZERO = 1e-3
# Updates that are further apart than this do not have one size.
ONE_SIZE = 100.0


@dataclass(frozen=True, slots=True)
class UpdateSizes:
    """L2 norms at one step, an element for each parameter that all three exist for.

    Attributes:
        weights: Norms of the parameters.
        gradients: Norms of their gradients, as the optimizer got them.
        updates: Norms of their updates.
        counts: Numbers of their elements.
        is_weight: Which parameters are weights, and not biases.
    """

    weights: Floats
    gradients: Floats
    updates: Floats
    counts: Floats
    is_weight: Bools

    @classmethod
    def at(cls, table: Table, j: int) -> UpdateSizes:
        """Return the sizes at a column of a table that holds all three."""
        index = {name: i for i, name in enumerate(table.names)}
        rows = np.array(
            [
                (i, index[GRADIENT + name], index[UPDATE + name])
                for name, i in index.items()
                if GRADIENT + name in index and UPDATE + name in index
            ],
            dtype=np.intp,
        ).reshape(-1, 3)
        good = (table.known[rows, j] & (table.not_finite[rows, j] == 0)).all(axis=1)
        norms = table["l2"][rows, j]
        chosen = good & (norms[:, 1:] > 0).all(axis=1)
        weights, gradients, updates = norms[chosen].T
        parameters = rows[chosen, 0]
        is_weight = np.array([table.roles[i] == "weight" for i in parameters], bool)
        counts = table["count"][parameters, j]
        return cls(weights, gradients, updates, counts, is_weight)

    @property
    def follow_gradients(self) -> bool:
        """Whether updates are as large as their gradients make them, as SGD's are.

        Adam and the like give the updates of all parameters one size instead.  Beside
        weight decay, tiny gradients show in no update, but the large ones still do.
        False with fewer than two parameters, which show neither.
        """
        if len(self.updates) < 2:
            return False
        roots = self.updates / np.sqrt(self.counts)
        spread = _spread(roots)
        return spread > ONE_SIZE or _spread(self.updates / self.gradients) < spread

    @property
    def largest_ratio(self) -> float:
        """The largest update for the size of its weight; NaN if there is none.

        Leaves out biases, and weights that are near zero on purpose.
        """
        large = self.weights / np.sqrt(self.counts) >= NEAR_ZERO
        large &= self.is_weight
        ratios = self.updates[large] / self.weights[large]
        return float(ratios.max()) if len(ratios) else math.nan

    @property
    def middle_gradient(self) -> float:
        """The median gradient for the size of its weight; NaN if there is none."""
        with np.errstate(divide="ignore"):
            ratios = self.gradients / self.weights
        return float(np.median(ratios)) if len(ratios) else math.nan


def _spread(sizes: Floats) -> float:
    return float(sizes.max() / sizes.min())
