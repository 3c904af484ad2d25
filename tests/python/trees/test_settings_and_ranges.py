"""Trees: settings that nobody reads, rankings without queries, and other ranges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import catboost  # type: ignore[import-untyped]
import lightgbm
import numpy as np
import pytest
import xgboost

import tdbg.catboost as tc
import tdbg.lightgbm as tl
import tdbg.xgboost as tx
from tdbg.rules import check
from tdbg.run.findings import Finding, Severity
from tree_runs import cancer

pytestmark = pytest.mark.filterwarnings("ignore:Failed to import numba")

X, Y, X_VALID, Y_VALID = cancer()
LUCK = np.random.default_rng(0)
ROWS = LUCK.normal(size=(400, 5))
PRICES = np.exp(ROWS[:, 0] + 9)
GRADES = np.clip(ROWS[:, 0] + 1.5, 0, 4).astype(int)
QUERIES = [20] * 15


def of_lightgbm(run_dir: Path, **settings: Any) -> None:
    train = lightgbm.Dataset(X, Y)
    given = {"objective": "binary", "verbose": -1, "num_threads": 1, **settings}
    valid = train.create_valid(X_VALID, Y_VALID)
    with tl.Hook(run_dir, rules=["TreeSettings", "TreeDepth"]) as hook:
        lightgbm.train(given, train, 3, valid_sets=[valid], callbacks=[hook])
    assert hook.counters()["internal_errors"] == 0


def of_classifier(run_dir: Path, **settings: Any) -> None:
    given = {"n_estimators": 3, "verbose": -1, "n_jobs": 1, **settings}
    with tl.Hook(run_dir, rules=["TreeSettings", "TreeDepth"]) as hook:
        model = lightgbm.LGBMClassifier(**given)
        model.fit(X, Y, eval_X=X_VALID, eval_y=Y_VALID, callbacks=[hook])


def ranked_by_lightgbm(run_dir: Path, group: list[int]) -> None:
    train = lightgbm.Dataset(ROWS[:300], GRADES[:300], group=group)
    given = {"objective": "lambdarank", "verbose": -1, "num_threads": 1}
    with tl.Hook(run_dir, rules=["TreeSettings", "TreeDepth"]) as hook:
        lightgbm.train(given, train, 3, valid_sets=[train], callbacks=[hook])


def of_xgboost(
    run_dir: Path,
    train: tuple[Any, Any],
    valid: tuple[Any, Any],
    objective: str,
    group: list[int] | None = None,
) -> None:
    data, other = xgboost.DMatrix(*train), xgboost.DMatrix(*valid)
    if group is not None:
        data.set_group(group)
    with tx.Hook(run_dir, rules=["TreeSettings", "TreeDepth"]) as hook:
        xgboost.train(
            {"objective": objective, "max_depth": 2, "nthread": 1},
            data,
            3,
            evals=[(other, "valid")],
            verbose_eval=False,
            callbacks=[hook],
        )
    assert hook.counters()["internal_errors"] == 0


def of_classes(run_dir: Path, x_valid: Any) -> None:
    of_xgboost(run_dir, (X, Y), (x_valid, Y_VALID), "binary:logistic")


def of_prices(run_dir: Path, train: Any, valid: Any) -> None:
    rows = (ROWS[:300], train[:300]), (ROWS[300:], valid[300:])
    of_xgboost(run_dir, *rows, "reg:squarederror")


def ranked(run_dir: Path, group: list[int] | None) -> None:
    rows = (ROWS[:300], GRADES[:300]), (ROWS[300:], GRADES[300:])
    of_xgboost(run_dir, *rows, "rank:ndcg", group)


def of_catboost(run_dir: Path, x_valid: Any) -> None:
    model = catboost.CatBoostClassifier(
        iterations=3, verbose=False, allow_writing_files=False, thread_count=1
    )
    with tc.Hook(run_dir, rules=["TreeSettings", "TreeDepth"]) as hook:
        model.fit(X, Y, eval_set=(x_valid, Y_VALID), callbacks=[hook])


def growing(x: Any) -> Any:
    """Let a few features grow with time, as dates and counts do."""
    later = x.copy()
    later[:, :2] += 1e4
    return later


FAULTY: dict[str, tuple[Callable[[Path], None], str]] = {
    "a name with a mistake": (
        lambda out: of_lightgbm(out, num_leafs=4),
        "num_leafs is no setting of this library",
    ),
    "an argument with a mistake": (
        lambda out: of_classifier(out, colsample_bytre=0.5),
        "the default of feature_fraction",
    ),
    "bagging that nobody asks for": (
        lambda out: of_lightgbm(out, bagging_fraction=0.5),
        "bagging_fraction=0.5 does nothing",
    ),
    "a subsample that nobody draws": (
        lambda out: of_classifier(out, subsample=0.5),
        "subsample=0.5 does nothing",
    ),
    "no queries": (lambda out: ranked(out, None), "the program gives no queries"),
    "rows that were not scaled": (
        lambda out: of_classes(out, 50.0 * X_VALID + 500.0),
        "features of the validation data 'valid' lie beyond",
    ),
    "rows that were not scaled, for CatBoost": (
        lambda out: of_catboost(out, 50.0 * X_VALID + 500.0),
        "features of the validation data 'eval_set' lie beyond",
    ),
    "prices, where training has their logarithms": (
        lambda out: of_prices(out, np.log1p(PRICES), PRICES),
        "100 of 100 labels of the validation data 'valid' lie beyond",
    ),
}
HEALTHY: dict[str, Callable[[Path], None]] = {
    "bagging": lambda out: of_lightgbm(out, bagging_fraction=0.5, bagging_freq=1),
    "all samples": lambda out: of_lightgbm(out, bagging_fraction=1.0),
    "one side by gradients": lambda out: of_lightgbm(
        out, data_sample_strategy="goss", bagging_fraction=0.5
    ),
    "aliases": lambda out: of_lightgbm(
        out, max_leaf=4, sub_feature=0.5, random_seed=1, eta=0.1, metrics=["auc"]
    ),
    "a name for somebody else": lambda out: of_lightgbm(out, my_experiment=7),
    "a classifier": lambda out: of_classifier(
        out,
        subsample=0.5,
        subsample_freq=1,
        class_weight="balanced",
        importance_type="gain",
        random_state=1,
        reg_alpha=0.1,
        min_child_samples=5,
    ),
    "queries": lambda out: ranked(out, QUERIES),
    "queries of LightGBM": lambda out: ranked_by_lightgbm(out, QUERIES),
    "rows alike": lambda out: of_classes(out, X_VALID),
    "rows that drift": lambda out: of_classes(out, 1.1 * X_VALID + 0.1),
    "two features that grow": lambda out: of_classes(out, growing(X_VALID)),
    "rows without values": lambda out: of_classes(out, np.full_like(X_VALID, np.nan)),
    "prices": lambda out: of_prices(out, PRICES, PRICES),
    "prices that rise": lambda out: of_prices(out, PRICES, 1.2 * PRICES),
    "numbers that grow": lambda out: of_prices(out, np.arange(400.0), np.arange(400.0)),
}


def findings(run_dir: Path) -> list[Finding]:
    return list(check(run_dir, ["TreeSettings"], record=False).findings)


@pytest.mark.parametrize("name", FAULTY)
def test_what_nobody_means_is_named(run_dir: Path, name: str) -> None:
    train, message = FAULTY[name]
    train(run_dir)
    (found,) = findings(run_dir)
    assert found.severity is Severity.WARNING
    assert message in found.message


@pytest.mark.parametrize("name", HEALTHY)
def test_what_may_be_meant_is_not_accused(run_dir: Path, name: str) -> None:
    HEALTHY[name](run_dir)
    assert findings(run_dir) == []


def test_one_query_that_the_program_gives_is_a_note(run_dir: Path) -> None:
    ranked_by_lightgbm(run_dir, [300])
    (found,) = findings(run_dir)
    assert found.severity is Severity.INFO
    assert "there is one query" in found.message
