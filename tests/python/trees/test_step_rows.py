"""Rows of rounds have as many samples as the data that the model is trained by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import catboost
import lightgbm
import pytest
import xgboost

import tdbg.catboost as tc
import tdbg.lightgbm as tl
import tdbg.xgboost as tx
from tdbg.modes import ModeKeys
from tdbg.trial import create_trial
from tree_runs import cancer

N_ROUNDS = 6


def xgboost_training(run_dir: Path) -> Any:
    data = cancer()
    hook = tx.Hook(run_dir)
    evals = [(data.valid(), "valid")]
    xgboost.train({"max_depth": 2}, data.train(), N_ROUNDS, evals=evals,
                  verbose_eval=False, callbacks=[hook])  # fmt: skip
    return hook


def lightgbm_training(run_dir: Path) -> Any:
    data = cancer()
    hook = tl.Hook(run_dir)
    matrix = lightgbm.Dataset(data.x, data.y)
    lightgbm.train({"verbosity": -1, "num_threads": 1}, matrix, N_ROUNDS,
                   valid_sets=[matrix.create_valid(data.valid_x, data.valid_y)],
                   callbacks=[hook])  # fmt: skip
    return hook


def catboost_training(run_dir: Path) -> Any:
    data = cancer()
    hook = tc.Hook(run_dir)
    model = catboost.CatBoostClassifier(
        iterations=N_ROUNDS, depth=2, thread_count=1, verbose=False,
        allow_writing_files=False,
    )  # fmt: skip
    valid = (data.valid_x, data.valid_y)
    model.fit(data.x, data.y, eval_set=valid, callbacks=[hook])
    return hook


@pytest.mark.parametrize(
    "training", [xgboost_training, lightgbm_training, catboost_training]
)
def test_a_round_has_the_rows_of_the_training_data(
    run_dir: Path, training: Any
) -> None:
    hook = training(run_dir)
    hook.close()
    rows = create_trial(run_dir).profile.steps(ModeKeys.TRAIN)
    assert list(rows["samples"]) == [len(cancer().x)] * N_ROUNDS


def test_folds_are_added_up(run_dir: Path) -> None:
    data = cancer()
    hook = tx.Hook(run_dir)
    xgboost.cv({"max_depth": 2}, data.train(), 3, nfold=4, callbacks=[hook])
    hook.close()
    rows = create_trial(run_dir).profile.steps(ModeKeys.TRAIN)
    assert list(rows["samples"]) == [3 * len(data.x)] * 3
