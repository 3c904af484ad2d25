"""Data for trainings of boosted trees, and how tests read their runs.

The data are those of scikit-learn's wheel: nothing is fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xgboost
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

import tdbg
from tdbg.config import SaveConfig
from tdbg.modes import ModeKeys

EVERY_ROUND = SaveConfig(save_interval=1, statistics_interval=1)


class Split(NamedTuple):
    """Data of training and of validation."""

    x: np.ndarray
    y: np.ndarray
    valid_x: np.ndarray
    valid_y: np.ndarray

    def train(self, **options: Any) -> xgboost.DMatrix:
        return xgboost.DMatrix(self.x, self.y, **options)

    def valid(self, **options: Any) -> xgboost.DMatrix:
        return xgboost.DMatrix(self.valid_x, self.valid_y, **options)


def split(x: np.ndarray, y: np.ndarray, n_train: int, seed: int = 0) -> Split:
    """Shuffle data and divide them."""
    order = np.random.default_rng(seed).permutation(len(x))
    first, second = order[:n_train], order[n_train:]
    return Split(x[first], y[first], x[second], y[second])


def cancer() -> Split:
    """Two classes, 30 features."""
    return split(*load_breast_cancer(return_X_y=True), 400)


def digits() -> Split:
    """Ten classes, 64 features."""
    return split(*load_digits(return_X_y=True), 600)


def diabetes() -> Split:
    """Numbers, 10 features."""
    return split(*load_diabetes(return_X_y=True), 300)


class Run:
    """A run of boosted trees, as tests read it."""

    def __init__(self, run_dir: Path) -> None:
        self.trial = tdbg.create_trial(run_dir)

    def value(self, name: str, step: int, mode: ModeKeys = ModeKeys.TRAIN) -> Any:
        return self.trial.tensor(name).value(step, mode=mode)

    def steps(self, name: str, mode: ModeKeys = ModeKeys.TRAIN) -> list[int]:
        return list(self.trial.tensor(name).steps(mode=mode))

    def values(self, name: str, mode: ModeKeys = ModeKeys.TRAIN) -> list[float]:
        return [float(self.value(name, step, mode)) for step in self.steps(name, mode)]

    def names(self, collection: str) -> list[str]:
        return list(self.trial.tensor_names(collection=collection))
