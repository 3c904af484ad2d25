"""``tdbg run`` captures trainings of boosted trees in scripts that know no tdbg.

The scripts have the shape of the demos of XGBoost (guide-python: callbacks,
sklearn_examples, custom_softmax, continuation), of LightGBM (simple_example,
sklearn_example, advanced_example) and of CatBoost (its tutorial in Python).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import catboost
import pytest

import tdbg.catboost as tc
from tdbg.launch.boosting import data_of
from tdbg.modes import ModeKeys
from tree_runs import Run, cancer

EVAL = ModeKeys.EVAL

XGBOOST = """
import numpy as np
import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

class Monitor(xgb.callback.TrainingCallback):
    def __init__(self):
        self.losses = []

    def after_iteration(self, model, epoch, evals_log):
        self.losses.append(evals_log["Train"]["logloss"][-1])
        return False

X, y = load_breast_cancer(return_X_y=True)
X_train, X_valid, y_train, y_valid = train_test_split(X, y, random_state=0)
D_train, D_valid = xgb.DMatrix(X_train, y_train), xgb.DMatrix(X_valid, y_valid)
monitor = Monitor()
booster = xgb.train(
    {"objective": "binary:logistic"},
    D_train,
    evals=[(D_train, "Train"), (D_valid, "Valid")],
    num_boost_round=12,
    callbacks=[monitor],
    verbose_eval=False,
)
xgb.train(
    {"objective": "binary:logistic"}, D_train, num_boost_round=3, xgb_model=booster
)
model = xgb.XGBRegressor(n_estimators=4).fit(X_train, y_train)
print(len(monitor.losses), booster.num_boosted_rounds(), model.callbacks)
"""

LIGHTGBM = """
import lightgbm as lgb
from sklearn.datasets import load_breast_cancer

X, y = load_breast_cancer(return_X_y=True)
train = lgb.Dataset(X[:400], y[:400])
valid = lgb.Dataset(X[400:], y[400:], reference=train)
params = {"objective": "binary", "metric": ["auc", "binary_logloss"], "verbose": -1}
booster = lgb.train(
    params, train, num_boost_round=12, valid_sets=valid,
    callbacks=[lgb.early_stopping(stopping_rounds=5, verbose=False)],
)
lgb.train(params, lgb.Dataset(X, y), 2, init_model=booster)
model = lgb.LGBMClassifier(n_estimators=3, verbose=-1)
model.fit(X[:400], y[:400], callbacks=[lgb.log_evaluation(0)])
print("trained")
"""

CATBOOST = """
import numpy as np
from catboost import CatBoostClassifier, CatBoostRanker, Pool, cv, train
from sklearn.datasets import load_breast_cancer

X, y = load_breast_cancer(return_X_y=True)
train_pool, valid_pool = Pool(X[:400], y[:400]), Pool(X[400:], y[400:])
quiet = dict(logging_level="Silent", allow_writing_files=False, thread_count=1)
model = CatBoostClassifier(iterations=12, **quiet)
model.fit(train_pool, eval_set=valid_pool, use_best_model=False)
booster = train(train_pool, dict(loss_function="Logloss", iterations=3, **quiet))
scores = cv(train_pool, dict(loss_function="Logloss", iterations=4, **quiet))
ranker = CatBoostRanker(iterations=2, loss_function="PairLogit", **quiet)
ranker.fit(X[:400], y[:400], group_id=np.repeat(range(40), 10))
print(model.tree_count_, booster.tree_count_, len(scores), ranker.tree_count_)
try:
    CatBoostClassifier(task_type="GPU", **quiet).fit(train_pool)
except Exception as error:
    print("callbacks" in str(error))
"""


def tdbg_run(run_dir: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tdbg", "run", "--out", str(run_dir), "--", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "demo.py"
    path.write_text(text)
    return str(path)


def test_a_script_of_xgboost_is_captured_as_it_stands(
    run_dir: Path, tmp_path: Path
) -> None:
    result = tdbg_run(run_dir, sys.executable, script(tmp_path, XGBOOST))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "12 12 None\n"
    assert "tdbg: captured 3 trainings, each in its own run:" in result.stderr
    run = Run(run_dir)
    assert run.steps("Train-logloss") == list(range(12))
    assert run.steps("Valid-logloss", EVAL) == list(range(12))
    assert run.steps("trees/Node") == [0, 10]
    assert "feature_importance/total_gain/f3" in run.names("feature_importance")
    continued = Run(run_dir.with_name("run-2"))
    assert continued.trial.steps(mode=ModeKeys.TRAIN) == [12, 13, 14]
    estimator = Run(run_dir.with_name("run-3"))
    assert estimator.trial.steps(mode=ModeKeys.TRAIN) == [0, 1, 2, 3]


def test_a_script_of_lightgbm_is_captured_as_it_stands(
    run_dir: Path, tmp_path: Path
) -> None:
    result = tdbg_run(run_dir, sys.executable, script(tmp_path, LIGHTGBM))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "trained\n"
    assert "tdbg: captured 3 trainings, each in its own run:" in result.stderr
    run = Run(run_dir)
    assert run.steps("valid_0-binary_logloss", EVAL) == list(range(12))
    assert run.steps("trees/Node") == [0, 10]


def test_a_script_of_catboost_is_captured_as_it_stands(
    run_dir: Path, tmp_path: Path
) -> None:
    result = tdbg_run(run_dir, sys.executable, script(tmp_path, CATBOOST))
    assert result.returncode == 0, result.stderr
    # On a GPU no callback is given, so the error is that of a machine without one.
    assert result.stdout.splitlines()[-2:] == ["12 3 4 2", "False"]
    assert "tdbg: captured 5 trainings, each in its own run:" in result.stderr
    run = Run(run_dir)
    assert run.steps("learn-Logloss") == list(range(12))
    assert run.steps("validation-Logloss", EVAL) == list(range(12))
    assert run.steps("trees/Node", ModeKeys.PREDICT) == [0, 10, 11]
    assert "feature_importance/total_gain/3" in run.names("feature_importance")
    trained = Run(run_dir.with_name("run-2"))
    assert trained.steps("learn-Logloss") == [0, 1, 2]
    folds = Run(run_dir.with_name("run-3"))
    assert folds.steps("test-Logloss", EVAL) == [0, 1, 2, 3]
    ranked = Run(run_dir.with_name("run-4"))
    assert ranked.steps("trees/Node", ModeKeys.PREDICT) == [0, 1]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"X": "x", "y": "y"}, 400),
        ({"X": "pool"}, 400),
        ({"X": "x", "y": "y", "eval_set": ("valid_x", "valid_y")}, 169),
        ({"X": "pool", "eval_set": ["pool", ("valid_x", "valid_y")]}, 169),
    ],
)
def test_what_a_model_trained_on_a_gpu_predicts_is_found_in_its_arguments(
    run_dir: Path, given: dict[str, Any], size: int
) -> None:
    data = cancer()
    values = {**data._asdict(), "pool": catboost.Pool(data.x, data.y)}

    def value(name: Any) -> Any:
        if isinstance(name, str):
            return values[name]
        return type(name)(value(each) for each in name)

    model = catboost.CatBoostClassifier(
        iterations=2, verbose=False, allow_writing_files=False, thread_count=1
    ).fit(data.x, data.y)
    with tc.Hook(run_dir, include_collections=["labels"]) as hook:
        found = data_of({name: value(each) for name, each in given.items()})
        hook.record_model(model, found)
        assert hook.counters()["internal_errors"] == 0
    assert Run(run_dir).value("labels", 0, ModeKeys.PREDICT).shape == (size,)


def test_data_in_files_are_not_predicted() -> None:
    assert data_of({"X": "train.tsv", "eval_set": Path("valid.tsv")}) is None


def test_arguments_that_xgboost_takes_by_order_with_a_warning_are_no_hindrance(
    run_dir: Path, tmp_path: Path
) -> None:
    text = """
import xgboost
from sklearn.datasets import load_diabetes
X, y = load_diabetes(return_X_y=True)
data, results = xgboost.DMatrix(X, y), {}
xgboost.train({}, data, 3, [(data, "seen")], evals_result=results, verbose_eval=False)
print(len(results["seen"]["rmse"]))
"""
    result = tdbg_run(run_dir, sys.executable, script(tmp_path, text))
    assert result.returncode == 0, result.stderr
    assert "FutureWarning: Pass `evals` as keyword args" in result.stderr
    assert result.stdout == "3\n"
    assert Run(run_dir).steps("seen-rmse") == [0, 1, 2]


def test_a_script_with_a_hook_of_its_own_stays_as_it_is(
    run_dir: Path, tmp_path: Path
) -> None:
    own = run_dir.with_name("own")
    text = f"""
import tdbg.xgboost as tx
import xgboost
from sklearn.datasets import load_diabetes
X, y = load_diabetes(return_X_y=True)
with tx.Hook({str(own)!r}) as hook:
    xgboost.train({{}}, xgboost.DMatrix(X, y), 2, callbacks=[hook])
"""
    result = tdbg_run(run_dir, sys.executable, script(tmp_path, text))
    assert result.returncode == 0, result.stderr
    assert own.is_dir()
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "import xgboost",
            "the program imported xgboost, but never called train or cv",
        ),
        (
            "import lightgbm",
            "the program imported lightgbm, but never called train or cv",
        ),
    ],
)
def test_a_script_that_trains_nothing_is_told_so(
    run_dir: Path, text: str, expected: str
) -> None:
    result = tdbg_run(run_dir, sys.executable, "-c", text)
    assert f"tdbg: nothing was captured: {expected}" in result.stderr
    assert not run_dir.exists()


def test_a_call_that_is_wrong_raises_what_it_raises_without_tdbg(
    run_dir: Path,
) -> None:
    code = "import xgboost\ntry: xgboost.train()\nexcept TypeError as e: print(e)"
    result = tdbg_run(run_dir, sys.executable, "-c", code)
    assert "missing" in result.stdout
    assert not run_dir.exists()


@pytest.mark.parametrize("framework", ["xgboost", "lightgbm"])
def test_rounds_that_a_script_makes_itself_are_told(
    run_dir: Path, framework: str
) -> None:
    """Those within ``train`` are not; the model stays what it is."""
    data = "X, y = make_classification(200, random_state=0)\n"
    text = {
        "xgboost": "import xgboost as xgb\nfrom sklearn.datasets import *\n"
        + data
        + "D = xgb.DMatrix(X, y)\nxgb.train({}, D, 3)\n"
        "booster = xgb.Booster({'objective': 'binary:logistic'}, [D])\n"
        "for i in range(5): booster.update(D, i)\n"
        "print(booster.num_boosted_rounds())\n",
        "lightgbm": "import lightgbm as lgb\nfrom sklearn.datasets import *\n"
        + data
        + "D = lgb.Dataset(X, y)\nlgb.train({'verbose': -1}, D, 3)\n"
        "booster = lgb.Booster({'objective': 'binary', 'verbose': -1}, D)\n"
        "for _ in range(5): booster.update()\n"
        "print(booster.current_iteration())\n",
    }
    done = tdbg_run(run_dir, sys.executable, "-c", text[framework])
    assert done.stdout.split() == ["5"]
    assert "your program made 5 rounds with Booster.update" in done.stderr
    assert "captured 3 steps" in done.stderr
