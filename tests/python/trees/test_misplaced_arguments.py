"""Trees: settings of XGBoost that only the function that trains reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xgboost

import tdbg.xgboost as tx
from tdbg.rules import check
from tdbg.run.findings import Finding, Severity
from tree_runs import cancer

pytestmark = pytest.mark.filterwarnings("ignore:Failed to import numba")

BINARY = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3}


def trained(run_dir: Path, more: dict[str, Any], **arguments: Any) -> list[Finding]:
    x, y, x_valid, y_valid = cancer()
    data, valid = xgboost.DMatrix(x, y), xgboost.DMatrix(x_valid, y_valid)
    hook = tx.Hook(run_dir)
    xgboost.train(
        {**BINARY, "verbosity": 0, **more},
        data,
        evals=[(data, "train"), (valid, "valid")],
        verbose_eval=False,
        callbacks=[*arguments.pop("callbacks", []), hook],
        **arguments,
    )
    hook.close()
    assert hook.counters()["internal_errors"] == 0
    return list(check(run_dir, ["TreeSettings"], record=False).findings)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"n_estimators": 80}, "n_estimators=80 is among the parameters"),
        ({"num_rounds": 50}, "the training has 10 rounds"),
        ({"early_stopping_rounds": 3}, "the training runs all rounds"),
    ],
)
def test_an_argument_among_the_parameters_is_a_warning(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (finding,) = trained(tmp_path / "run", more)
    assert finding.severity is Severity.WARNING
    assert said in finding.message
    assert finding.advice.startswith("Pass it to train itself")


@pytest.mark.parametrize(
    ("more", "arguments"),
    [
        ({"n_estimators": 12}, {"num_boost_round": 12}),
        ({"early_stopping_rounds": 3}, {"early_stopping_rounds": 3}),
        (
            {"early_stopping_rounds": 3},
            {"callbacks": [xgboost.callback.EarlyStopping(rounds=3)]},
        ),
        ({}, {}),
    ],
)
def test_one_that_train_is_given_too_is_not_accused(
    more: dict[str, Any], arguments: dict[str, Any], tmp_path: Path
) -> None:
    assert trained(tmp_path / "run", more, **arguments) == []


def test_an_estimator_passes_its_own_on(tmp_path: Path) -> None:
    x, y, *valid = cancer()
    hook = tx.Hook(tmp_path / "run")
    model = xgboost.XGBClassifier(
        n_estimators=15, early_stopping_rounds=5, callbacks=[hook]
    )
    model.fit(x, y, eval_set=[tuple(valid)], verbose=False)
    hook.close()
    assert check(tmp_path / "run", ["TreeSettings"], record=False).findings == ()
