"""Tensors of boosted trees that nobody captures cost nothing but their names."""

from __future__ import annotations

from pathlib import Path

import xgboost

import tdbg.xgboost as tx
from tdbg.config import CollectionConfig
from tree_runs import EVERY_ROUND, Run, cancer

ONE = "feature_importance/total_gain/f27"


def train(
    hook: tx.Hook, n_rounds: int = 3, *others: xgboost.callback.TrainingCallback
) -> None:
    data = cancer()
    xgboost.train(
        {"objective": "binary:logistic", "max_depth": 2, "nthread": 1},
        data.train(),
        n_rounds,
        callbacks=[hook, *others],
    )


def entries(hook: tx.Hook, prefix: str) -> int:
    names = [name for name, _ in hook._session.recorder.entries]
    return sum(name.startswith(prefix) for name in names)


def test_importances_that_nobody_captures_have_no_entries_but_one(
    run_dir: Path,
) -> None:
    with tx.Hook(run_dir) as hook:
        train(hook)
        assert entries(hook, "feature_importance/") == 1
        assert entries(hook, "full_shap/") == 1


def test_importances_that_are_captured_have_one_each(run_dir: Path) -> None:
    with tx.Hook(run_dir, include_collections=["feature_importance"]) as hook:
        train(hook)
        assert entries(hook, "feature_importance/") == 5 * 30
    assert len(Run(run_dir).names("feature_importance")) == 5 * 30


class Asks(xgboost.callback.TrainingCallback):
    """Asks for a further importance after the second round."""

    def __init__(self, hook: tx.Hook) -> None:
        self._hook = hook

    def after_iteration(self, model: object, epoch: int, evals_log: object) -> bool:
        del model, evals_log
        if epoch == 1:
            self._hook.get_collection("metrics").include("total_gain/f27$")
        return False


def test_a_collection_of_ones_own_has_the_importances_that_it_finds(
    run_dir: Path,
) -> None:
    own = CollectionConfig("own", {"include_regex": "total_gain/f27$"})
    with tx.Hook(run_dir, collections=[own], save_config=EVERY_ROUND) as hook:
        train(hook)
    run = Run(run_dir)
    assert run.names("own") == [ONE]
    assert run.steps(ONE) == [0, 1, 2]


def test_an_importance_that_is_asked_for_meanwhile_is_captured_from_then_on(
    run_dir: Path,
) -> None:
    with tx.Hook(run_dir, save_config=EVERY_ROUND) as hook:
        train(hook, 4, Asks(hook))
    run = Run(run_dir)
    assert run.steps(ONE) == [2, 3]
    assert [n for n in run.trial.tensor_names() if "feature_importance" in n] == [ONE]
