"""Contributions of features to predictions (SHAP): which rows, and their means.

S. Lundberg, G. Erion, S. Lee: Consistent individualized feature attribution for tree
ensembles, 2018 (arXiv:1802.03888).

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["BIAS", "average", "columns", "sample_rows"]

#: The name of what no feature contributes.
BIAS = "bias"


def sample_rows(n_rows: int, n_sampled: int) -> NDArray[np.int64] | None:
    """Return which rows are explained, ascending: always the same ones of as many.

    They are those with the least hashes of their numbers (the finalizer of
    splitmix64, S. Vigna), so that they are spread over data that are sorted.

    Returns:
        None where all of them are.
    """
    if n_rows <= n_sampled:
        return None
    hashes = np.arange(1, n_rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
    hashes ^= hashes >> np.uint64(31)
    chosen = np.argpartition(hashes, n_sampled)[:n_sampled]
    return np.sort(chosen).astype(np.int64)


def average(contributions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean size of the contribution of each column.

    The size, because contributions of both signs would cancel; over samples and, of
    several outputs, over these as well.

    Args:
        contributions: Samples x columns, or samples x outputs x columns.
    """
    size = np.abs(contributions)
    return np.asarray(size.reshape(-1, contributions.shape[-1]).mean(axis=0))


def columns(
    contributions: NDArray[np.float64], names: Sequence[str]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield each column with its name; the last one is ``bias``."""
    for i, name in enumerate((*names, BIAS)):
        yield name, contributions[..., i]
