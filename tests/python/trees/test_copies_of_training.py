"""A data set of evaluation with the samples of training is the training's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

import tdbg
import tdbg.lightgbm as tl
import tdbg.xgboost as tx
from tdbg.modes import EVAL, TRAIN
from tdbg.rules import Overfit, check

Sets = list[tuple[np.ndarray, np.ndarray]]
N_TRAIN = 400


def xgboost_estimator(hook: Any, sets: Sets, depth: int) -> tuple[str, ...]:
    """XGBoost makes quantiles of what its estimators are given."""
    model = xgboost.XGBClassifier(n_estimators=60, max_depth=depth, callbacks=[hook])
    model.fit(*sets[0], eval_set=sets, verbose=False)
    return tuple(f"validation_{i}-logloss" for i in range(len(sets)))


def xgboost_train(hook: Any, sets: Sets, depth: int) -> tuple[str, ...]:
    xgboost.train(
        {"objective": "binary:logistic", "max_depth": depth},
        xgboost.DMatrix(*sets[0]),
        60,
        evals=[
            (xgboost.DMatrix(*each), name)
            for each, name in zip(sets, "ab", strict=True)
        ],
        verbose_eval=False,
        callbacks=[hook],
    )
    return "a-logloss", "b-logloss"


def lightgbm_train(hook: Any, sets: Sets, depth: int) -> tuple[str, ...]:
    data = lightgbm.Dataset(*sets[0])
    lightgbm.train(
        {
            "objective": "binary",
            "max_depth": depth,
            "min_data_in_leaf": 5,
            "verbose": -1,
        },
        data,
        60,
        valid_sets=[lightgbm.Dataset(*each, reference=data) for each in sets],
        valid_names=["a", "b"],
        callbacks=[hook],
    )
    return "a-binary_logloss", "b-binary_logloss"


def noise() -> Sets:
    """Labels that have nothing to do with the samples."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 20)), rng.integers(0, 2, 600)
    # Copies, as slices are whenever they are made.
    return [(x[:N_TRAIN].copy(), y[:N_TRAIN].copy()), (x[N_TRAIN:], y[N_TRAIN:])]


def learnable() -> Sets:
    (x, y), (valid_x, valid_y) = noise()
    y, valid_y = ((each[:, 0] > 0).astype(y.dtype) for each in (x, valid_x))
    return [(x, y), (valid_x, valid_y)]


def sorted_by_class() -> Sets:
    """Two data sets with the same labels, in order."""
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1], N_TRAIN // 2)
    return [(rng.normal(size=(N_TRAIN, 20)) + 4 * y[:, None], y) for _ in range(2)]


@pytest.mark.parametrize("train", [xgboost_estimator, xgboost_train, lightgbm_train])
@pytest.mark.parametrize(
    ("make", "depth", "modes", "findings"),
    [
        (noise, 6, (TRAIN, EVAL), ["Overfit"]),
        (learnable, 1, (TRAIN, EVAL), []),
        (sorted_by_class, 1, (None, EVAL), []),
    ],
    ids=["noise", "learnable", "sorted"],
)
def test_a_copy_of_the_training_data_is_what_validation_is_compared_with(
    train: Callable[[Any, Sets, int], tuple[str, ...]],
    make: Callable[[], Sets],
    depth: int,
    modes: tuple[Any, Any],
    findings: list[str],
    run_dir: Path,
) -> None:
    hook = (tl if train is lightgbm_train else tx).Hook(run_dir)
    with hook:
        names = train(hook, [*make()], depth)
    trial = tdbg.create_trial(run_dir)
    for name, mode in zip(names, modes, strict=True):
        for other in (TRAIN, EVAL):
            n = len(list(trial.tensor(name).steps(other)))
            assert mode is None or n == 60 * (other is mode), (name, other)
    found = {finding.rule for finding in check(run_dir, [Overfit()]).findings}
    assert sorted(found) == findings


def test_another_data_set_with_the_same_sorted_labels_is_evaluation(
    run_dir: Path,
) -> None:
    """Equal labels in a regular order do not show that the samples are the same."""
    (train, valid) = sorted_by_class()
    data, hook = lightgbm.Dataset(*train), tl.Hook(run_dir)
    lightgbm.train(
        {"objective": "binary", "max_depth": 1, "verbose": -1},
        data,
        5,
        valid_sets=[lightgbm.Dataset(*valid, reference=data)],
        callbacks=[hook],
    )
    hook.close()
    tensor = tdbg.create_trial(run_dir).tensor("valid_0-binary_logloss")
    assert len(list(tensor.steps(EVAL))) == 5
