"""Each rule finds its fault in a training of XGBoost made for it, and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from sklearn.datasets import load_breast_cancer, load_digits, make_friedman1

import tdbg.xgboost as tx
from tdbg.rules import Report, check, default_rules
from tdbg.run.findings import Finding, Severity, Stage
from tdbg.view import diagnosis_of_report
from tree_runs import Run, Split, cancer, diabetes, digits, split

BINARY = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.1}
TEN = {"objective": "multi:softprob", "num_class": 10, "max_depth": 3, "eta": 0.3}
NUMBERS = {"objective": "reg:squarederror", "max_depth": 2, "eta": 0.05}


def judged(
    run_dir: Path, parameters: dict[str, Any], data: Split, n_rounds: int
) -> Report:
    """Train with all default rules in the hook, and judge the run by them."""
    train, valid = data.train(), data.valid()
    with tx.Hook(run_dir, rules=default_rules()) as hook:
        xgboost.train(
            parameters,
            train,
            n_rounds,
            evals=[(train, "train"), (valid, "valid")],
            verbose_eval=False,
            callbacks=[hook],
        )
        assert hook.counters()["internal_errors"] == 0
    return check(run_dir, default_rules())


def found(report: Report) -> dict[str, str]:
    """Map each rule with a warning to its first message."""
    result: dict[str, str] = {}
    for finding in report.findings:
        result.setdefault(finding.rule, finding.message)
    return result


HEALTHY: dict[str, tuple[dict[str, Any], Any, int]] = {
    "two classes": (BINARY, cancer, 60),
    "ten classes": (TEN, digits, 40),
    "numbers": (NUMBERS, diabetes, 40),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_all_rules_are_silent_on_a_healthy_training(run_dir: Path, name: str) -> None:
    parameters, make, n_rounds = HEALTHY[name]
    assert found(judged(run_dir, parameters, make(), n_rounds)) == {}


def leaking(wrong: float) -> Split:
    """A feature that is the label itself but for a share of it, with some noise."""
    x, y = load_breast_cancer(return_X_y=True)
    random = np.random.default_rng(1)
    answer = np.where(random.random(len(y)) < wrong, 1 - y, y)
    leak = answer + 0.01 * random.normal(size=len(y))
    return split(np.column_stack([x, leak]), y, 400)


@pytest.mark.parametrize("wrong", [0.0, 0.02])
def test_feature_importance_finds_a_label_among_the_features(
    run_dir: Path, wrong: float
) -> None:
    messages = found(judged(run_dir, BINARY, leaking(wrong), 50))
    assert messages["FeatureImportance"].startswith("f30, one of 31 features, has ")


def test_tree_depth_finds_trees_that_learn_samples_by_heart(run_dir: Path) -> None:
    data = split(*make_friedman1(1200, 10, noise=3.0, random_state=0), 900)
    deep = {"objective": "reg:squarederror", "max_depth": 16, "eta": 0.3}
    messages = found(judged(run_dir, deep, data, 25))
    assert "levels deep" in messages["TreeDepth"]
    assert messages.keys() <= {"TreeDepth", "Overfit", "Overtraining"}


def mislabelled() -> Split:
    """Every fifth label is wrong, and there are few."""
    data = split(*load_breast_cancer(return_X_y=True), 120)
    random = np.random.default_rng(0)
    wrong = random.random(len(data.y)) < 0.2
    return data._replace(y=np.where(wrong, 1 - data.y, data.y))


def test_overfit_and_overtraining_find_what_is_learned_by_heart(run_dir: Path) -> None:
    greedy = {"objective": "binary:logistic", "max_depth": 8, "eta": 0.5}
    messages = found(judged(run_dir, greedy, mislabelled(), 120))
    assert "validation" in messages["Overfit"]
    assert "The validation loss has not improved" in messages["Overtraining"]
    assert messages.keys() == {"Overfit", "Overtraining"}


def test_class_imbalance_finds_a_rare_class(run_dir: Path) -> None:
    x, y = load_digits(return_X_y=True)
    kept = (y != 7) | (np.random.default_rng(0).random(len(y)) < 0.06)
    messages = found(judged(run_dir, TEN, split(x[kept], y[kept], 1000), 20))
    assert "of class 7" in messages["ClassImbalance"]


def test_confusion_finds_two_classes_whose_labels_are_mixed_up(run_dir: Path) -> None:
    x, y = load_digits(return_X_y=True)
    mixed = np.isin(y, (3, 8))
    y = y.copy()
    y[mixed] = np.random.default_rng(0).choice([3, 8], int(mixed.sum()))
    # By training data they are told apart: trees learn them by heart.
    messages = found(judged(run_dir, TEN, split(x, y, 1000), 70))
    assert "class 3 for 8" in messages["Confusion"]


def test_what_early_stopping_waits_for_is_no_fault(run_dir: Path) -> None:
    data = mislabelled()
    train = xgboost.DMatrix(data.x, data.y)
    valid = xgboost.DMatrix(data.valid_x, data.valid_y)
    with tx.Hook(run_dir, rules=["Overfit", "Overtraining"]) as hook:
        xgboost.train(
            {"objective": "binary:logistic", "max_depth": 8, "eta": 0.5},
            train,
            120,
            evals=[(train, "train"), (valid, "valid")],
            early_stopping_rounds=30,
            verbose_eval=False,
            callbacks=[hook],
        )
    findings = check(run_dir, ["Overfit", "Overtraining"], record=False).findings
    assert {each.rule for each in findings} == {"Overfit", "Overtraining"}
    assert {each.severity for each in findings} == {Severity.INFO}


def test_loss_not_decreasing_finds_a_rate_at_which_nothing_is_learned(
    run_dir: Path,
) -> None:
    messages = found(judged(run_dir, BINARY | {"eta": 1e-6}, cancer(), 70))
    assert (
        "its median over 25 recorded steps fell by" in (messages["LossNotDecreasing"])
    )


def test_underfitting_finds_a_model_that_may_not_split(run_dir: Path) -> None:
    random = np.random.default_rng(0)
    data = split(random.normal(size=(600, 20)), random.integers(0, 2, 600), 300)
    stiff = {"objective": "binary:logistic", "eta": 0.1, "min_child_weight": 80}
    messages = found(judged(run_dir, stiff, data, 210))
    assert "its loss is flat" in messages["Underfitting"]


@pytest.mark.parametrize("is_copy", [True, False])
def test_validation_on_a_copy_of_the_training_data_is_found(
    run_dir: Path, is_copy: bool
) -> None:
    data = cancer()
    if is_copy:
        data = data._replace(valid_x=data.x.copy(), valid_y=data.y.copy())
    report = judged(run_dir, BINARY, data, 30)
    expected = {"valid-logloss"} if is_copy else set()
    assert {finding.tensor for finding in report.findings} == expected
    for finding in report.findings:
        assert finding.message.startswith("The validation loss equals the training")
        assert (finding.rule, finding.stage) == ("Overfit", Stage.SETUP)


def test_equal_losses_that_never_change_are_no_proof(run_dir: Path) -> None:
    # Training and validation have no error left at all: that is a good model.
    x = np.random.default_rng(0).normal(size=(600, 3))
    data = split(x, x[:, 0] > 0, 300)
    exact = BINARY | {"eval_metric": "error"}
    assert "Overfit" not in found(judged(run_dir, exact, data, 30))


# Faults that keep all trees from splitting, and what the advice must name.
WITHOUT_SPLIT: dict[str, tuple[dict[str, Any], Any, str]] = {
    "weights": (BINARY | {"min_child_weight": 1e4}, cancer, "min_child_weight"),
    "alpha": (BINARY | {"alpha": 1e5}, cancer, "alpha"),
    "base of two classes": (BINARY | {"base_score": 0.9999}, cancer, "base_score"),
    "base of numbers": (NUMBERS | {"base_score": -1e5}, diabetes, "base_score"),
}


@pytest.mark.parametrize("name", WITHOUT_SPLIT)
def test_trees_without_a_split_get_advice_that_names_the_cause(
    run_dir: Path, name: str
) -> None:
    parameters, make, cause = WITHOUT_SPLIT[name]
    report = judged(run_dir, parameters, make(), 20)
    (finding,) = [each for each in report.findings if each.rule == "TreeDepth"]
    assert finding.message.startswith("No tree has a split")
    assert cause in finding.advice
    # The advice is the fix.
    fixed = {key: value for key, value in parameters.items() if key != cause}
    healthy = judged(run_dir.with_name("fixed"), fixed, make(), 20)
    assert "TreeDepth" not in found(healthy)


def test_trees_that_stop_splitting_when_all_is_learned_are_healthy(
    run_dir: Path,
) -> None:
    stopping = BINARY | {"gamma": 5.0, "eta": 0.5}
    report = judged(run_dir, stopping, cancer(), 45)
    nodes = Run(run_dir).value("trees/Node", 40)
    assert len(nodes) == 1
    assert "TreeDepth" not in found(report)


def test_a_base_score_that_xgboost_refuses_is_no_error_of_tdbg(
    run_dir: Path,
) -> None:
    with tx.Hook(run_dir) as hook:
        with pytest.raises(xgboost.core.XGBoostError, match="base_score"):
            xgboost.train(
                BINARY | {"base_score": 2.0}, cancer().train(), 3, callbacks=[hook]
            )
        assert hook.counters()["internal_errors"] == 0


COUNTS = {"objective": "count:poisson", "max_depth": 3, "eta": 0.1}
Pick = Callable[[xgboost.DMatrix, xgboost.DMatrix], list[Any]]


def both(train: xgboost.DMatrix, valid: xgboost.DMatrix) -> list[Any]:
    return [(train, "train"), (valid, "valid")]


def train_only(train: xgboost.DMatrix, _: xgboost.DMatrix) -> list[Any]:
    return [(train, "train")]


def train_last(train: xgboost.DMatrix, valid: xgboost.DMatrix) -> list[Any]:
    return [(valid, "valid"), (train, "train")]


def copied(_: xgboost.DMatrix, __: xgboost.DMatrix) -> list[Any]:
    return [(diabetes().train(), "valid")]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A training of numbers; by default, it is healthy."""

    parameters: Mapping[str, Any]
    evals: Pick = both
    patience: int | None = None
    n_rounds: int = 40

    def report(self, run_dir: Path) -> list[Finding]:
        data = diabetes()
        train, valid = data.train(), data.valid()
        rules = ["TreeSettings", "TreeDepth", "LossNotDecreasing", "ExplodingTensor"]
        rules += ["FeatureImportance"]
        with tx.Hook(run_dir, rules=rules) as hook:
            xgboost.train(
                dict(self.parameters),
                train,
                self.n_rounds,
                evals=self.evals(train, valid),
                early_stopping_rounds=self.patience,
                verbose_eval=False,
                callbacks=[hook],
            )
            assert hook.counters()["internal_errors"] == 0
        report = check(run_dir, rules, record=False)
        problems = diagnosis_of_report(report).problems
        worst = [each.worst for each in problems]
        return [each for each in worst if each.severity > Severity.INFO]


FAULTY = {
    "early stopping by the training data alone": (
        Settings(parameters=NUMBERS, evals=train_only, patience=5),
        ("'train', which is the training data", "Hold data back"),
    ),
    "early stopping by the training data, given last": (
        Settings(parameters=NUMBERS, evals=train_last, patience=5),
        ("'train', which is the training data", "the last set"),
    ),
    "early stopping by a copy of the training data": (
        Settings(parameters=NUMBERS, evals=copied, patience=5),
        ("'valid', which is the training data", "Hold data back"),
    ),
    "a penalty far above the number of samples": (
        Settings(parameters={**NUMBERS, "lambda": 1e6}, n_rounds=100),
        ("of what the penalty (1e6) leaves of a leaf", "Lower lambda"),
    ),
    "a learning rate far too low": (
        Settings(parameters={**NUMBERS, "eta": 1e-6}, n_rounds=100),
        ("each takes 0.0001% of a full step", "Raise learning_rate"),
    ),
    "a first prediction far from all labels": (
        Settings(parameters={**NUMBERS, "base_score": 1e5}),
        ("all labels lie between 31 and 346", "Leave base_score out"),
    ),
    "a first prediction that has no logarithm": (
        Settings(parameters={**COUNTS, "base_score": 0.0}, n_rounds=60),
        ("from which this objective cannot start", "Leave base_score out"),
    ),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_settings_that_cannot_work_are_the_cause_of_all_else(
    run_dir: Path, fault: str
) -> None:
    settings, (message, advice) = FAULTY[fault]
    first, *others = settings.report(run_dir)
    assert (first.rule, first.cause) == ("TreeSettings", None)
    assert message in first.message
    assert advice in first.advice
    assert [each.rule for each in others if each.cause is None] == []


SOUND = {
    "early stopping by other data": Settings(parameters=NUMBERS, patience=5),
    "the training data without early stopping": Settings(
        parameters=NUMBERS, evals=train_only
    ),
    "a usual penalty": Settings(parameters={**NUMBERS, "lambda": 100.0}),
    "a first prediction among the labels": Settings(
        parameters={**NUMBERS, "base_score": 200.0}
    ),
    "counts": Settings(parameters=COUNTS),
    "trees that stop to split once they have learned": Settings(
        parameters={**NUMBERS, "eta": 0.3, "gamma": 1e5}, n_rounds=150
    ),
    "a few rounds of a low rate": Settings(
        parameters={**NUMBERS, "eta": 0.01}, n_rounds=5
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_settings_that_can_work_are_not_accused(run_dir: Path, name: str) -> None:
    assert SOUND[name].report(run_dir) == []
