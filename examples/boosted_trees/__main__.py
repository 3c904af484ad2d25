"""Trains boosted trees on real data, well and in three wrong ways, and judges them.

    python -m examples.boosted_trees [--out runs/trees]

- *leak*: one feature is the label, but for 2 % of the samples.
- *deep*: trees of 16 levels.
- *by heart*: few samples with wrong labels among them, learned until nothing is left.

Needs XGBoost and scikit-learn, in whose wheel the data are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xgboost
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.metrics import roc_auc_score

import tdbg.xgboost as tx
from tdbg.rules import Report, check, default_rules

__all__ = ["EXPECTED", "Data", "cases", "main", "train_and_judge"]

#: The rules that must find each case, none in a healthy one.
EXPECTED: dict[str, set[str]] = {
    "healthy": set(),
    "leak": {"FeatureImportance"},
    "deep": {"TreeDepth"},
    "by heart": {"Overfit"},
}


class Data(NamedTuple):
    """Samples and labels of training and of validation."""

    x: np.ndarray
    y: np.ndarray
    valid_x: np.ndarray
    valid_y: np.ndarray


class Case(NamedTuple):
    """A training: its data, parameters and number of rounds."""

    data: Data
    parameters: Mapping[str, Any]
    n_rounds: int


def cases() -> dict[str, Case]:
    """All trainings by name."""
    x, y = load_breast_cancer(return_X_y=True)
    random = np.random.default_rng(1)
    binary = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.1}
    answer = np.where(random.random(len(y)) < 0.02, 1 - y, y)
    leak = answer + 0.01 * random.normal(size=len(y))
    few = split(x, y, 120)
    wrong = random.random(len(few.y)) < 0.2
    numbers = split(*load_diabetes(return_X_y=True), 300)
    return {
        "healthy": Case(split(x, y, 400), binary, 60),
        "leak": Case(split(np.column_stack([x, leak]), y, 400), binary, 60),
        "deep": Case(numbers, {"max_depth": 16, "min_child_weight": 0}, 30),
        "by heart": Case(
            few._replace(y=np.where(wrong, 1 - few.y, few.y)),
            binary | {"max_depth": 8, "eta": 0.5},
            100,
        ),
    }


def split(x: np.ndarray, y: np.ndarray, n_train: int) -> Data:
    """Shuffle the samples and divide them."""
    order = np.random.default_rng(0).permutation(len(x))
    train, valid = order[:n_train], order[n_train:]
    return Data(x[train], y[train], x[valid], y[valid])


def train_and_judge(case: Case, out: Path) -> tuple[xgboost.Booster, Report]:
    """Train with a hook that captures what all rules need; judge the run."""
    train = xgboost.DMatrix(case.data.x, case.data.y)
    valid = xgboost.DMatrix(case.data.valid_x, case.data.valid_y)
    with tx.Hook(out, rules=default_rules()) as hook:
        booster = xgboost.train(
            dict(case.parameters),
            train,
            case.n_rounds,
            evals=[(train, "train"), (valid, "valid")],
            verbose_eval=False,
            callbacks=[hook],
        )
    return booster, check(out, default_rules())


def quality(case: Case, booster: xgboost.Booster) -> str:
    """What is usually looked at: one number of the validation data."""
    prediction = booster.predict(xgboost.DMatrix(case.data.valid_x))
    if case.parameters.get("objective") == "binary:logistic":
        return f"AUC {roc_auc_score(case.data.valid_y, prediction):.3f}"
    error = float(np.sqrt(np.mean((prediction - case.data.valid_y) ** 2)))
    return f"error {error:.1f} of a deviation of {case.data.valid_y.std():.1f}"


def main(arguments: list[str] | None = None) -> int:
    """Train and judge all cases; 1 if a rule is silent that must find one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/trees"))
    out = parser.parse_args(arguments).out
    as_claimed = True
    for name, case in cases().items():
        booster, report = train_and_judge(case, out / name.replace(" ", "_"))
        print(f"{name}: {quality(case, booster)}")
        for finding in report.findings:
            print(f"  {finding.rule}: {finding.message}")
        found = {finding.rule for finding in report.findings}
        if not EXPECTED[name] <= found or (found and not EXPECTED[name]):
            as_claimed = False
            print("  [NOT SO]")
    return 0 if as_claimed else 1


if __name__ == "__main__":
    sys.exit(main())
