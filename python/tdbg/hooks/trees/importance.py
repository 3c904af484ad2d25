"""The importance of features, in the five kinds of XGBoost, as sums over trees.

A sum over the new trees is added to that of the old ones, so that a round costs the
same at the end of a training as at its beginning.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.trees.tables import TreeTable

__all__ = ["KINDS", "Importance"]

#: How often features are split by; the mean and the sum of the gain of these splits,
#: and of their cover: ``Booster.get_score(importance_type=...)``.
KINDS = ("weight", "gain", "cover", "total_gain", "total_cover")


class Importance:
    """The importance of the features in the trees that were added.

    Args:
        n_features: How many features there are.
    """

    def __init__(self, n_features: int) -> None:
        self._weight = np.zeros(n_features)
        self._gain = np.zeros(n_features)
        self._cover = np.zeros(n_features)

    def add(self, trees: TreeTable) -> None:
        """Add the splits of further trees."""
        rows = trees.is_split
        feature, n = trees.feature[rows], len(self._weight)
        self._weight += np.bincount(feature, minlength=n)
        self._gain += np.bincount(feature, trees.gain[rows], n)
        self._cover += np.bincount(feature, trees.cover[rows], n)

    def of_kind(self, kind: str) -> NDArray[np.float64]:
        """Return an importance of each feature; 0 of features that no tree uses."""
        total = {
            "weight": self._weight,
            "gain": self._gain,
            "cover": self._cover,
            "total_gain": self._gain,
            "total_cover": self._cover,
        }[kind]
        if kind in {"gain", "cover"}:
            return np.asarray(total / np.maximum(self._weight, 1.0))
        return total
