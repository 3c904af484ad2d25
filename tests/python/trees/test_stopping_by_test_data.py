"""Early stopping that goes by what the program calls its test data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import catboost  # type: ignore[import-untyped]
import lightgbm
import pytest
import xgboost

import tdbg.catboost as tc
import tdbg.lightgbm as tl
import tdbg.xgboost as tx
from tdbg.rules import check
from tdbg.run.findings import Severity
from tree_runs import cancer

pytestmark = pytest.mark.filterwarnings("ignore:Failed to import numba")

Hooked = Callable[[Any], None]
QUIET = {"verbose": -1, "num_threads": 1}
X_TRAIN, Y_TRAIN, X_TEST, Y_TEST = cancer()
X_VAL, Y_VAL = X_TEST.copy(), Y_TEST.copy()


def xgb_classifier(hook: Any, *, of_test: bool = True, stops: int | None = 3) -> None:
    X_test, X_val = X_TEST, X_VAL  # noqa: N806 - as programs write it
    model = xgboost.XGBClassifier(
        n_estimators=4, n_jobs=1, early_stopping_rounds=stops, callbacks=[hook]
    )
    given = [(X_TRAIN, Y_TRAIN), (X_test if of_test else X_val, Y_TEST)]
    model.fit(X_TRAIN, Y_TRAIN, eval_set=given, verbose=False)


def xgb_train(hook: Any, *, of_test: bool = True, stops: int | None = 3) -> None:
    dtrain = xgboost.DMatrix(X_TRAIN, Y_TRAIN)
    dtest, dval = (xgboost.DMatrix(x, Y_TEST) for x in (X_TEST, X_VAL))
    xgboost.train(
        {"objective": "binary:logistic", "nthread": 1},
        dtrain,
        4,
        evals=[(dtrain, "train"), (dtest if of_test else dval, "eval")],
        early_stopping_rounds=stops,
        callbacks=[hook],
        verbose_eval=False,
    )


def lgb_classifier(hook: Any, *, of_test: bool = True, stops: int | None = 3) -> None:
    x_test, x_valid = X_TEST, X_VAL
    stopping = [] if stops is None else [lightgbm.early_stopping(stops, verbose=False)]
    model = lightgbm.LGBMClassifier(n_estimators=4, verbose=-1, n_jobs=1)
    model.fit(
        X_TRAIN,
        Y_TRAIN,
        eval_X=(x_test if of_test else x_valid,),
        eval_y=(Y_TEST,),
        callbacks=[*stopping, hook],
    )


def lgb_train(hook: Any, *, of_test: bool = True, stops: int | None = 3) -> None:
    train = lightgbm.Dataset(X_TRAIN, Y_TRAIN)
    test_data, val_data = (train.create_valid(x, Y_TEST) for x in (X_TEST, X_VAL))
    stopping = [] if stops is None else [lightgbm.early_stopping(stops, verbose=False)]
    given = [test_data if of_test else val_data]
    settings = {"objective": "binary", **QUIET}
    lightgbm.train(settings, train, 4, given, callbacks=[*stopping, hook])


def cat_classifier(hook: Any, *, of_test: bool = True, stops: int | None = 3) -> None:
    X_test, X_val = X_TEST, X_VAL  # noqa: N806 - as programs write it
    model = catboost.CatBoostClassifier(
        iterations=4, thread_count=1, verbose=False, allow_writing_files=False
    )
    given = (X_test if of_test else X_val, Y_TEST)
    model.fit(
        X_TRAIN, Y_TRAIN, eval_set=given, early_stopping_rounds=stops, callbacks=[hook]
    )


def with_a_function(hook: Any) -> None:
    """A function of the program's own calls its argument validation."""
    X_test = X_TEST  # noqa: N806, F841 - as programs write it

    def fit(x_val: Any) -> None:
        model = xgboost.XGBClassifier(
            n_estimators=4, n_jobs=1, early_stopping_rounds=2, callbacks=[hook]
        )
        model.fit(X_TRAIN, Y_TRAIN, eval_set=[(x_val, Y_TEST)], verbose=False)

    fit(X_TEST)


HOOKS: dict[Any, Any] = {
    xgb_classifier: tx.Hook,
    xgb_train: tx.Hook,
    lgb_classifier: tl.Hook,
    lgb_train: tl.Hook,
    cat_classifier: tc.Hook,
    with_a_function: tx.Hook,
}


def said(run_dir: Path, train: Any, **how: Any) -> list[tuple[Severity, str]]:
    with HOOKS[train](run_dir, rules=["TreeSettings"]) as hook:
        train(hook, **how)
    assert hook.counters()["internal_errors"] == 0
    found = check(run_dir, ["TreeSettings"], record=False).findings
    return [(each.severity, each.message) for each in found]


PROGRAMS = [xgb_classifier, xgb_train, lgb_classifier, lgb_train, cat_classifier]


@pytest.mark.parametrize("train", PROGRAMS)
def test_early_stopping_by_test_data_is_a_note(run_dir: Path, train: Any) -> None:
    ((severity, message),) = said(run_dir, train)
    assert severity is Severity.INFO
    assert "which your program calls test data" in message


@pytest.mark.parametrize("train", PROGRAMS)
@pytest.mark.parametrize("how", [{"of_test": False}, {"stops": None}])
def test_validation_data_and_test_data_that_are_only_scored_are_not_named(
    run_dir: Path, train: Any, how: dict[str, Any]
) -> None:
    assert said(run_dir, train, **how) == []


def test_the_nearest_name_counts(run_dir: Path) -> None:
    assert said(run_dir, with_a_function) == []
