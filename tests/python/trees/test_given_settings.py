"""What trees are given: weights, objectives and metrics that cannot be meant."""

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
from tree_runs import cancer, digits

pytestmark = pytest.mark.filterwarnings("ignore:Failed to import numba")

N_ROUNDS = 12
BINARY = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3}
TEN = {"objective": "multi:softprob", "num_class": 10, "max_depth": 3, "eta": 0.3}
OWN = {"max_depth": 3, "eta": 0.3, "base_score": 0.0}


def findings(run_dir: Path, hook: Any) -> list[Finding]:
    assert hook.counters()["internal_errors"] == 0
    return list(check(run_dir, ["TreeSettings"], record=False).findings)


def rare() -> tuple[Any, Any, Any, Any]:
    """Two classes, of which one has a sixth of the samples."""
    luck = np.random.default_rng(1)
    x = luck.normal(size=(900, 5))
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 1.2).astype(int)
    return x[:600], y[:600], x[600:], y[600:]


def ratio(y: Any) -> float:
    return float((y == 0).sum() / (y == 1).sum())


def evened(y: Any) -> Any:
    return np.where(y == 1, ratio(y), 1.0)


def leaking(rows: tuple[Any, Any, Any, Any], change: Any) -> tuple[Any, Any, Any, Any]:
    """Add a column that a function makes of the label."""
    x, y, x_valid, y_valid = rows
    return np.c_[x, change(y)], y, np.c_[x_valid, change(y_valid)], y_valid


def overlapping(
    rows: tuple[Any, Any, Any, Any], n: int = 60, n_new: int = 60
) -> tuple[Any, Any, Any, Any]:
    """Validate on rows of training, too."""
    x, y, x_valid, y_valid = rows
    return x, y, np.r_[x_valid[:n_new], x[:n]], np.r_[y_valid[:n_new], y[:n]]


def codes() -> tuple[Any, Any, Any, Any]:
    """Rows of few values, which repeat by nature."""
    luck = np.random.default_rng(2)
    x = luck.integers(0, 3, (900, 8)) / 2.0
    y = (x.sum(1) + luck.normal(size=900) > 8).astype(int)
    return x[:600], y[:600], x[600:], y[600:]


def divided() -> tuple[Any, Any, Any, Any]:
    """Two classes that a threshold of one feature divides."""
    luck = np.random.default_rng(3)
    y = luck.integers(0, 2, 300)
    x = np.c_[luck.normal(size=(300, 3)), 4.0 * y + luck.random(300)]
    return x[:200], y[:200], x[200:], y[200:]


def in_order(rows: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Sort all samples by their class before they are split."""
    x, y = np.r_[rows[0], rows[2]], np.r_[rows[1], rows[3]]
    order = np.argsort(y, kind="stable")
    n = len(rows[1])
    return x[order][:n], y[order][:n], x[order][n:], y[order][n:]


def swapped(rows: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    return rows[0], 1 - rows[1], rows[2], 1 - rows[3]


def sigmoid(margin: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-margin))


def my_f1(prediction: Any, data: Any) -> tuple[str, float]:
    y, found = data.get_label(), prediction > 0.5
    return "my_f1", float(2 * (found * y).sum() / max(1, found.sum() + y.sum()))


def brier_score(prediction: Any, data: Any) -> tuple[str, float]:
    return "brier_score", float(((prediction - data.get_label()) ** 2).mean())


def my_logloss(margin: Any, data: Any) -> tuple[str, float]:
    y, p = data.get_label(), np.clip(sigmoid(margin), 1e-6, 1 - 1e-6)
    return "my_logloss", float(-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean())


def logistic(
    sign: float = 1.0, hessian: Callable[[Any], Any] = lambda p: p * (1 - p)
) -> Any:
    def objective(margin: Any, data: Any) -> tuple[Any, Any]:
        p = sigmoid(margin)
        return sign * (p - data.get_label()), hessian(p)

    return objective


def some_zero(p: Any) -> Any:
    """Zero where a sample is masked, as programs do it."""
    return np.where(np.arange(len(p)) % 3 == 0, 0.0, p * (1 - p))


def of_xgboost(
    run_dir: Path,
    parameters: dict[str, Any],
    rows: tuple[Any, Any, Any, Any],
    weight: Any = None,
    **options: Any,
) -> list[Finding]:
    x, y, x_valid, y_valid = rows
    train, valid = (
        xgboost.DMatrix(x, y, weight=weight),
        xgboost.DMatrix(x_valid, y_valid),
    )
    with tx.Hook(run_dir, rules=["TreeSettings", "TreeDepth"]) as hook:
        xgboost.train(
            parameters,
            train,
            N_ROUNDS,
            evals=[(train, "train"), (valid, "valid")],
            verbose_eval=False,
            callbacks=[hook],
            **options,
        )
    return findings(run_dir, hook)


def of_lightgbm(
    run_dir: Path,
    parameters: dict[str, Any],
    rows: tuple[Any, Any, Any, Any],
    weight: Any = None,
    patience: int = 0,
    **options: Any,
) -> list[Finding]:
    x, y, x_valid, y_valid = rows
    train = lightgbm.Dataset(x, y, weight=weight)
    valid = lightgbm.Dataset(x_valid, y_valid, reference=train)
    with tl.Hook(run_dir, rules=["TreeSettings", "TreeDepth"]) as hook:
        callbacks: list[Any] = [hook]
        if patience:
            callbacks.append(lightgbm.early_stopping(patience, verbose=False))
        lightgbm.train(
            {"verbose": -1, "num_leaves": 7, "learning_rate": 0.3, **parameters},
            train,
            N_ROUNDS,
            valid_sets=[valid],
            callbacks=callbacks,
            **options,
        )
    return findings(run_dir, hook)


def of_catboost(
    run_dir: Path,
    rows: tuple[Any, Any, Any, Any],
    weight: Any = None,
    *,
    valid: str = "valid",
    **parameters: Any,
) -> list[Finding]:
    x, y, x_valid, y_valid = rows
    sets = {"valid": (x_valid, y_valid), "train": (x, y), "": None}
    model = catboost.CatBoostClassifier(
        **{"iterations": N_ROUNDS, "depth": 3, "learning_rate": 0.3, **parameters},
        allow_writing_files=False,
        thread_count=1,
    )
    with tc.Hook(run_dir, rules=["TreeSettings", "TreeDepth"]) as hook:
        model.fit(
            x,
            y,
            sample_weight=weight,
            eval_set=sets[valid],
            callbacks=[hook],
            verbose=False,
        )
    return findings(run_dir, hook)


def two() -> tuple[Any, Any, Any, Any]:
    data = cancer()
    return data.x, data.y, data.valid_x, data.valid_y


def ten() -> tuple[Any, Any, Any, Any]:
    data = digits()
    return data.x, data.y, data.valid_x, data.valid_y


class MyF1:
    """A metric of the program's own for CatBoost."""

    def __init__(self, rises: bool) -> None:
        self._rises = rises

    def is_max_optimal(self) -> bool:
        return self._rises

    def evaluate(self, approxes: Any, target: Any, weight: Any) -> tuple[float, float]:
        del weight
        found, y = np.array(approxes[0]) > 0, np.array(target) > 0.5
        return float(2 * (found & y).sum() / max(1, found.sum() + y.sum())), 1.0

    def get_final_error(self, error: float, weight: float) -> float:
        del weight
        return error


class MyAccuracy(MyF1):
    """Named so that it is known to rise."""


STOP: dict[str, Any] = {"early_stopping_rounds": 10}
AUC = {**BINARY, "eval_metric": "auc"}
QUIET = {**BINARY, "disable_default_eval_metric": 1}
MARGINS = {**OWN, "eval_metric": "logloss"}


def flagged(rises: bool) -> Any:
    return lambda prediction, data: (*my_f1(prediction, data), rises)


FAULTY: dict[str, tuple[Callable[[Path], list[Finding]], str, str]] = {
    "XGBoost stops in the wrong direction": (
        lambda at: of_xgboost(
            at, QUIET, rare(), custom_metric=my_f1, maximize=False, **STOP
        ),
        "waits for valid-my_f1 to fall, but this metric rises",
        "maximize=True",
    ),
    "XGBoost maximizes a loss": (
        lambda at: of_xgboost(at, BINARY, rare(), maximize=True, **STOP),
        "waits for valid-logloss to rise, but this metric falls",
        "maximize=False",
    ),
    "LightGBM stops in the wrong direction": (
        lambda at: of_lightgbm(
            at,
            {"objective": "binary", "metric": "None", "min_data_in_leaf": 3},
            rare(),
            patience=11,
            feval=flagged(False),
        ),
        "waits for valid_0-my_f1 to fall",
        "return True as the third value",
    ),
    "CatBoost stops in the wrong direction": (
        lambda at: of_catboost(at, rare(), eval_metric=MyAccuracy(False), **STOP),
        "waits for validation-MyAccuracy to fall",
        "is_max_optimal",
    ),
    "CatBoost stops by the training data": (
        lambda at: of_catboost(at, two(), valid="train", **STOP),
        "which is the training data",
        "eval_set",
    ),
    "CatBoost hardly moves": (
        lambda at: of_catboost(at, two(), learning_rate=1e-4, iterations=30),
        "The rounds hardly move the predictions",
        "Raise learning_rate",
    ),
    "XGBoost balances twice": (
        lambda at: of_xgboost(
            at,
            {**BINARY, "scale_pos_weight": ratio(rare()[1])},
            rare(),
            evened(rare()[1]),
        ),
        "balanced twice",
        "remove scale_pos_weight",
    ),
    "LightGBM balances twice": (
        lambda at: of_lightgbm(
            at,
            {"objective": "binary", "is_unbalance": True},
            rare(),
            evened(rare()[1]),
        ),
        "balanced twice",
        "remove is_unbalance",
    ),
    "CatBoost balances twice": (
        lambda at: of_catboost(
            at, rare(), evened(rare()[1]), scale_pos_weight=ratio(rare()[1])
        ),
        "balanced twice",
        "remove scale_pos_weight",
    ),
    "XGBoost's weight is upside down": (
        lambda at: of_xgboost(
            at, {**BINARY, "scale_pos_weight": 1 / ratio(rare()[1])}, rare()
        ),
        "The weights of the classes (scale_pos_weight) are upside down: class 0",
        "the number of samples of class 0 divided by that of class 1",
    ),
    "LightGBM's weight is upside down": (
        lambda at: of_lightgbm(
            at,
            {"objective": "binary", "scale_pos_weight": 1 / ratio(rare()[1])},
            rare(),
        ),
        "(scale_pos_weight) are upside down",
        "Turn the ratio around",
    ),
    "CatBoost's weights are upside down": (
        lambda at: of_catboost(
            at, rare(), class_weights=list(np.bincount(rare()[1]) / 600)
        ),
        "(class_weights) are upside down",
        "Turn the ratio around",
    ),
    "weights of samples are upside down": (
        lambda at: of_xgboost(
            at, BINARY, rare(), np.bincount(rare()[1])[rare()[1]] / 600
        ),
        "The weights of the classes are upside down",
        "divided by that of its class",
    ),
    "XGBoost has the label": (
        lambda at: of_xgboost(at, BINARY, leaking(two(), lambda y: y)),
        "f30 has the value of the label in all 400 training samples",
        "Remove f30",
    ),
    "XGBoost has the label in other units": (
        lambda at: of_xgboost(
            at,
            {"objective": "reg:squarederror"},
            leaking(ten(), lambda y: 32.0 + 1.8 * y),
        ),
        "f64 is the label times a factor, plus a constant, in all 600",
        "Remove f64",
    ),
    "LightGBM has the opposite of the label": (
        lambda at: of_lightgbm(
            at, {"objective": "binary"}, leaking(two(), lambda y: 1 - y)
        ),
        "Column_30 follows from the label alone",
        "Remove Column_30",
    ),
    "CatBoost has the label": (
        lambda at: of_catboost(at, leaking(two(), lambda y: y)),
        "The label is among the features: 30 has the value",
        "Remove 30",
    ),
    "XGBoost validates on rows of training": (
        lambda at: of_xgboost(at, BINARY, overlapping(two())),
        "60 of the 120 different rows of the validation data 'valid' (50%)",
        "Split first",
    ),
    "CatBoost validates on rows of training": (
        lambda at: of_catboost(at, overlapping(two())),
        "60 of the 120 different rows",
        "Split first",
    ),
    "classes that training lacks": (
        lambda at: of_xgboost(at, TEN, in_order(ten())),
        "belong to classes that the training data lack",
        "stratify=y",
    ),
    "LightGBM lacks classes": (
        lambda at: of_lightgbm(
            at, {"objective": "multiclass", "num_class": 10}, in_order(ten())
        ),
        "belong to classes that the training data lack",
        "stratify=y",
    ),
    "a class without weight": (
        lambda at: of_xgboost(at, TEN, ten(), np.where(ten()[1] == 3, 0.0, 1.0)),
        "Class 3 has no weight",
        "a weight of 0 removes a sample",
    ),
    "a hessian that is zero": (
        lambda at: of_xgboost(at, OWN, two(), obj=logistic(1.0, np.zeros_like)),
        "a hessian that is above 0 for no sample",
        "p * (1 - p)",
    ),
    "a hessian of the wrong sign": (
        lambda at: of_xgboost(
            at, OWN, two(), obj=logistic(1.0, lambda p: -p * (1 - p))
        ),
        "a hessian that is above 0 for no sample",
        "with its sign",
    ),
    "a gradient of the wrong sign": (
        lambda at: of_xgboost(at, OWN, two(), obj=logistic(-1.0)),
        "leads away from the labels",
        "prediction - label",
    ),
    "a metric of margins": (
        lambda at: of_xgboost(at, MARGINS, two(), obj=logistic()),
        "The metric logloss needs probabilities",
        "custom_metric",
    ),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_what_cannot_be_meant_is_named(run_dir: Path, fault: str) -> None:
    train, message, advice = FAULTY[fault]
    (finding,) = train(run_dir)
    assert finding.severity is Severity.WARNING
    assert message in finding.message
    assert advice in finding.advice


def test_early_stopping_without_data_is_a_note(run_dir: Path) -> None:
    """A last training on all data may keep the parameters of others."""
    (finding,) = of_catboost(run_dir, two(), valid="", **STOP)
    assert finding.severity is Severity.INFO
    assert "early_stopping_rounds is set, but" in finding.message


SOUND: dict[str, Callable[[Path], list[Finding]]] = {
    "XGBoost maximizes an F1 score": lambda at: of_xgboost(
        at, QUIET, rare(), custom_metric=my_f1, maximize=True, **STOP
    ),
    "XGBoost minimizes a score that falls": lambda at: of_xgboost(
        at, QUIET, rare(), custom_metric=brier_score, maximize=False, **STOP
    ),
    "XGBoost knows an area by its name": lambda at: of_xgboost(at, AUC, rare(), **STOP),
    "a metric of the wrong direction that stops nothing": lambda at: of_lightgbm(
        at,
        {"objective": "binary", "metric": "None"},
        rare(),
        feval=flagged(False),
    ),
    "LightGBM maximizes an F1 score": lambda at: of_lightgbm(
        at,
        {"objective": "binary", "metric": "None"},
        rare(),
        patience=8,
        feval=flagged(True),
    ),
    "CatBoost maximizes its metric": lambda at: of_catboost(
        at, rare(), eval_metric=MyAccuracy(True), **STOP
    ),
    "CatBoost stops by other data": lambda at: of_catboost(at, two(), **STOP),
    "CatBoost trains by all data": lambda at: of_catboost(at, two(), valid=""),
    "CatBoost shows the training data, and does not stop": lambda at: of_catboost(
        at, two(), valid="train"
    ),
    "a class is balanced by weights": lambda at: of_xgboost(
        at, BINARY, rare(), evened(rare()[1])
    ),
    "a class is balanced by a setting": lambda at: of_xgboost(
        at, {**BINARY, "scale_pos_weight": ratio(rare()[1])}, rare()
    ),
    "weights mean something else": lambda at: of_xgboost(
        at,
        {**BINARY, "scale_pos_weight": ratio(rare()[1])},
        rare(),
        np.linspace(0.5, 1.5, len(rare()[1])),
    ),
    "LightGBM balances, beside weights of its own": lambda at: of_lightgbm(
        at,
        {"objective": "binary", "is_unbalance": True},
        rare(),
        np.linspace(0.5, 1.5, len(rare()[1])),
    ),
    "CatBoost balances classes that weights made even": lambda at: of_catboost(
        at, rare(), evened(rare()[1]), auto_class_weights="Balanced"
    ),
    "some samples have no weight": lambda at: of_xgboost(
        at, TEN, ten(), (np.arange(len(ten()[1])) % 5 > 0).astype(float)
    ),
    "a class weighs little": lambda at: of_xgboost(
        at, TEN, ten(), np.where(ten()[1] == 3, 0.01, 1.0)
    ),
    "the frequent class weighs less": lambda at: of_xgboost(
        at,
        {**BINARY, "scale_pos_weight": ratio(1 - rare()[1])},
        swapped(rare()),
    ),
    "LightGBM's frequent class weighs less": lambda at: of_lightgbm(
        at,
        {"objective": "binary", "scale_pos_weight": ratio(1 - rare()[1])},
        swapped(rare()),
    ),
    "CatBoost's rare class weighs more": lambda at: of_catboost(
        at, rare(), class_weights=[1.0, ratio(rare()[1])]
    ),
    "classes that are not weighted": lambda at: of_catboost(at, rare()),
    "a feature that divides the classes": lambda at: of_xgboost(at, BINARY, divided()),
    "LightGBM's feature divides the classes": lambda at: of_lightgbm(
        at, {"objective": "binary"}, divided()
    ),
    "a feature that is nearly the label": lambda at: of_xgboost(
        at, BINARY, leaking(two(), lambda y: np.where(np.arange(len(y)) % 40, y, 1 - y))
    ),
    "CatBoost's feature is nearly the label": lambda at: of_catboost(
        at, leaking(two(), lambda y: y + 0.01 * np.sin(np.arange(len(y))))
    ),
    "rows that repeat by nature": lambda at: of_xgboost(at, BINARY, codes()),
    "a few rows of training among others": lambda at: of_xgboost(
        at, BINARY, overlapping(two(), 5, 100)
    ),
    "CatBoost shows rows of training only": lambda at: of_catboost(
        at, overlapping(two(), 80, 0)
    ),
    "numbers in order": lambda at: of_xgboost(
        at, {"objective": "reg:squarederror"}, in_order(ten())
    ),
    "numbers without weight": lambda at: of_xgboost(
        at,
        {"objective": "reg:squarederror"},
        ten(),
        np.where(ten()[1] == 3, 0.0, 1.0),
    ),
    "an objective of its own": lambda at: of_xgboost(at, OWN, two(), obj=logistic()),
    "a hessian that is zero in places": lambda at: of_xgboost(
        at, OWN, two(), obj=logistic(1.0, some_zero)
    ),
    "a hessian of ones": lambda at: of_xgboost(
        at, OWN, two(), obj=logistic(1.0, np.ones_like)
    ),
    "a metric that applies the sigmoid": lambda at: of_xgboost(
        at,
        {**OWN, "disable_default_eval_metric": 1},
        two(),
        obj=logistic(),
        custom_metric=my_logloss,
    ),
    "an area of margins": lambda at: of_xgboost(
        at, {**OWN, "eval_metric": "auc"}, two(), obj=logistic()
    ),
    "an objective whose predictions the metric transforms": lambda at: of_xgboost(
        at, {**BINARY, "eval_metric": "logloss"}, two(), obj=logistic()
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_may_be_meant_is_not_accused(run_dir: Path, name: str) -> None:
    assert SOUND[name](run_dir) == []
