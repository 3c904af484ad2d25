"""A run of LightGBM holds what LightGBM says, and its training stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

import tdbg.lightgbm as tl
from tdbg.hooks.lightgbm.booster import LightGBMModel
from tdbg.modes import ModeKeys
from tdbg.rules import check, default_rules
from tdbg.run.requests import request_stop
from tree_runs import EVERY_ROUND, Run, Split, cancer, diabetes, digits, split

EVAL = ModeKeys.EVAL
QUIET = {"verbosity": -1, "num_threads": 1, "num_leaves": 8}
BINARY = {**QUIET, "objective": "binary"}
N_ROUNDS = 5
LAST = N_ROUNDS - 1
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "binary": (BINARY, cancer),
    "ten classes": ({**QUIET, "objective": "multiclass", "num_class": 10}, digits),
    "numbers": ({**QUIET, "objective": "regression"}, diabetes),
    "dart": ({**QUIET, "objective": "regression", "boosting": "dart"}, diabetes),
}


def train(
    parameters: dict[str, Any],
    data: Split,
    hook: tl.Hook | None,
    n_rounds: int = N_ROUNDS,
    **options: Any,
) -> tuple[lightgbm.Booster, dict[str, Any]]:
    """Train and return the booster and the history of its metrics."""
    matrix = lightgbm.Dataset(data.x, data.y)
    valid = matrix.create_valid(data.valid_x, data.valid_y)
    history: dict[str, Any] = {}
    callbacks: list[Any] = [lightgbm.record_evaluation(history)]
    booster = lightgbm.train(
        parameters,
        matrix,
        n_rounds,
        valid_sets=[matrix, valid],
        valid_names=["train", "valid"],
        callbacks=[*callbacks, *([] if hook is None else [hook])],
        **options,
    )
    return booster, history


@pytest.mark.parametrize("case", CASES)
def test_everything_equals_what_lightgbm_says_of_the_whole_model(
    run_dir: Path, case: str
) -> None:
    parameters, make = CASES[case]
    data = make()
    hook = tl.Hook(
        run_dir, save_all=True, save_config=EVERY_ROUND, shap_data=data.valid_x[:80]
    )
    booster, _ = train(parameters, data, hook)
    counters = hook.counters()
    hook.close()
    assert counters["refused_tensors"] == counters["internal_errors"] == 0
    run = Run(run_dir)
    np.testing.assert_allclose(
        run.value("predictions", LAST, EVAL), booster.predict(data.valid_x)
    )
    assert run.value("labels", LAST).tolist() == data.y.tolist()
    names = booster.feature_name()
    shap = booster.predict(data.valid_x[:80], pred_contrib=True)
    shap = np.asarray(shap).reshape(80, -1, len(names) + 1)
    for i, name in enumerate([*names, "bias"]):
        captured = run.value(f"full_shap/{name}", LAST).reshape(80, -1)
        np.testing.assert_allclose(captured, shap[..., i], atol=1e-9)
    for kind, theirs in (("weight", "split"), ("total_gain", "gain")):
        captured = [
            float(run.value(f"feature_importance/{kind}/{name}", LAST))
            for name in names
        ]
        given = booster.feature_importance(theirs)
        np.testing.assert_allclose(captured, given, rtol=1e-4, atol=1e-9)
    frame = booster.trees_to_dataframe()
    numbers = run.value("trees/Tree", LAST)
    frame = frame[frame.tree_index.isin(numbers)]
    assert len(frame) == len(numbers)
    for column, name in (("Cover", "count"), ("Split", "threshold")):
        captured, given = (
            run.value(f"trees/{column}", LAST),
            frame[name].to_numpy(float),
        )
        np.testing.assert_allclose(np.sort(captured), np.sort(given), rtol=1e-6)


def test_a_tree_is_numbered_level_by_level_and_its_children_are_found(
    run_dir: Path,
) -> None:
    hook = tl.Hook(run_dir, include_collections=["trees"], save_config=EVERY_ROUND)
    booster, _ = train(BINARY, cancer(), hook, 1)
    hook.close()
    run = Run(run_dir)
    node, yes, no, cover = (
        run.value(f"trees/{name}", 0) for name in ("Node", "Yes", "No", "Cover")
    )
    assert node.tolist() == list(range(len(node)))
    splits = yes >= 0
    assert sorted([*yes[splits], *no[splits]]) == list(range(1, len(node)))
    np.testing.assert_allclose(cover[splits], cover[yes[splits]] + cover[no[splits]])
    assert splits.sum() == booster.dump_model()["tree_info"][0]["num_leaves"] - 1


def test_categories_of_a_split_are_captured(run_dir: Path) -> None:
    random = np.random.default_rng(0)
    kind = pd.Categorical(random.integers(0, 6, 600))
    frame = pd.DataFrame({"kind": kind, "noise": random.normal(size=600)})
    label = np.isin(kind.codes, (1, 4)).astype(int)
    hook = tl.Hook(run_dir, include_collections=["trees"], save_config=EVERY_ROUND)
    matrix = lightgbm.Dataset(frame, label)
    booster = lightgbm.train(BINARY, matrix, 1, callbacks=[hook])
    hook.close()
    run = Run(run_dir)
    feature, category = (run.value(f"trees/{x}", 0) for x in ("Feature", "Category"))
    root = booster.dump_model()["tree_info"][0]["tree_structure"]
    assert category[0] == root["threshold"].replace("||", ",")
    assert feature[0] == "kind"


def test_the_training_is_what_it_is_without_the_hook(run_dir: Path) -> None:
    plain, plain_history = train(BINARY, cancer(), None)
    hook = tl.Hook(run_dir, save_all=True, save_config=EVERY_ROUND)
    booster, history = train(BINARY, cancer(), hook)
    assert history == plain_history
    assert booster.model_to_string() == plain.model_to_string()
    run = Run(run_dir)
    assert run.values("train-binary_logloss") == history["train"]["binary_logloss"]
    valid = run.values("valid-binary_logloss", EVAL)
    assert valid == history["valid"]["binary_logloss"]
    hook.close()


def test_lightgbm_says_what_is_maximized(run_dir: Path) -> None:
    hook = tl.Hook(run_dir)
    parameters = {**BINARY, "metric": ["auc", "average_precision", "binary_error"]}
    train(parameters, cancer(), hook)
    hook.close()
    run = Run(run_dir)
    assert run.names("losses") == ["train-binary_error", "valid-binary_error"]
    assert len(run.names("metrics")) == 6


def test_cross_validation_has_means_and_the_first_fold(run_dir: Path) -> None:
    data = cancer()
    hook = tl.Hook(run_dir, include_collections=["trees"], save_config=EVERY_ROUND)
    history = lightgbm.cv(
        BINARY,
        lightgbm.Dataset(data.x, data.y),
        4,
        nfold=3,
        eval_train_metric=True,
        callbacks=[hook],
    )
    hook.close()
    run = Run(run_dir)
    means = history["valid binary_logloss-mean"]
    assert run.values("valid-binary_logloss", EVAL) == means
    deviations = history["valid binary_logloss-stdv"]
    assert run.values("valid-binary_logloss-std", EVAL) == deviations
    assert run.steps("train-binary_logloss") == [0, 1, 2, 3]
    assert run.steps("trees/Node") == [0, 1, 2, 3]


def test_an_estimator_and_a_continued_training(run_dir: Path) -> None:
    data = cancer()
    hook = tl.Hook(run_dir, include_collections=["trees"], save_config=EVERY_ROUND)
    model = lightgbm.LGBMClassifier(n_estimators=3, num_leaves=4, verbosity=-1)
    model.fit(data.x, data.y, callbacks=[hook])
    train(BINARY, data, hook, 2, init_model=model.booster_)
    hook.close()
    assert Run(run_dir).steps("trees/Node") == [0, 1, 2, 3, 4]


def test_a_request_to_stop_ends_the_training_and_keeps_its_model(
    run_dir: Path,
) -> None:
    hook = tl.Hook(run_dir)
    request_stop(run_dir, reason="seen enough")
    booster, _ = train(BINARY, cancer(), hook, 50)
    assert booster.current_iteration() == 1
    assert "seen enough" in str(hook.stop_reason)
    hook.close()


def test_data_that_lightgbm_has_freed_are_refused_once(run_dir: Path) -> None:
    hook = tl.Hook(run_dir, include_collections=["full_shap"], save_config=EVERY_ROUND)
    train(BINARY, cancer(), hook)
    assert hook.counters()["refused_tensors"] == 1
    assert hook.counters()["internal_errors"] == 0
    hook.close()


@pytest.mark.parametrize("name", ["trees", "predictions", "importance"])
def test_a_fault_of_the_hook_leaves_the_training_as_it_is(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fails(*_: Any) -> Any:
        msg = "a fault"
        raise RuntimeError(msg)

    plain, _ = train(BINARY, cancer(), None)
    monkeypatch.setattr(LightGBMModel, name, fails)
    hook = tl.Hook(run_dir, save_all=True, save_config=EVERY_ROUND)
    booster, _ = train(BINARY, cancer(), hook)
    assert booster.model_to_string() == plain.model_to_string()
    hook.close()


def test_rules_find_a_leak_and_nothing_in_a_healthy_training(run_dir: Path) -> None:
    def warnings_of(where: Path, data: Split) -> set[str]:
        with tl.Hook(where, rules=default_rules()) as hook:
            train(BINARY, data, hook, 45)
        return {each.rule for each in check(where, default_rules()).findings}

    x, y = load_breast_cancer(return_X_y=True)
    noise = 0.01 * np.random.default_rng(1).normal(size=len(y))
    leaking = split(np.column_stack([x, y + noise]), y, 400)
    assert "FeatureImportance" in warnings_of(run_dir, leaking)
    assert warnings_of(run_dir.with_name("healthy"), cancer()) == set()


def test_a_training_that_is_learned_by_heart_is_found(run_dir: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    data = split(x, y, 120)
    wrong = np.random.default_rng(0).random(len(data.y)) < 0.2
    data = data._replace(y=np.where(wrong, 1 - data.y, data.y))
    greedy = {**BINARY, "num_leaves": 60, "min_data_in_leaf": 1, "learning_rate": 0.5}
    with tl.Hook(run_dir, rules=default_rules()) as hook:
        train(greedy, data, hook, 60)
    rules = {each.rule for each in check(run_dir, default_rules()).findings}
    assert "Overfit" in rules


def judged(run_dir: Path, parameters: dict[str, Any], data: Split) -> dict[str, str]:
    """Train 45 rounds, and map each rule with a finding to its first message."""
    with tl.Hook(run_dir, rules=default_rules()) as hook:
        train(parameters, data, hook, 45)
    findings = check(run_dir, default_rules()).findings
    return {each.rule: each.message for each in reversed(findings)}


@pytest.mark.parametrize(
    "setting",
    [
        {"min_data_in_leaf": 300},
        {"min_sum_hessian_in_leaf": 1e6},
        {"min_gain_to_split": 1e6},
        {"lambda_l1": 1e6},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_that_forbid_all_splits_are_found(
    run_dir: Path, setting: dict[str, float]
) -> None:
    found = judged(run_dir, {**BINARY, **setting}, cancer())
    assert found["TreeDepth"].startswith("No tree has a split")


def test_trees_that_stop_splitting_when_all_is_learned_are_healthy(
    run_dir: Path,
) -> None:
    stopping = {**BINARY, "min_gain_to_split": 30.0, "learning_rate": 0.5}
    booster, _ = train(stopping, cancer(), None, 45)
    assert 1 < booster.num_trees() < 45
    assert "TreeDepth" not in judged(run_dir, stopping, cancer())


def test_validation_on_a_copy_of_the_training_data_is_found(run_dir: Path) -> None:
    data = cancer()
    copy = data._replace(valid_x=data.x.copy(), valid_y=data.y.copy())
    found = judged(run_dir, BINARY, copy)
    assert found["Overfit"].startswith("The validation loss equals the training loss")


REGRESSION = {**QUIET, "objective": "regression", "learning_rate": 0.1}
ALONE = "train"
SETTINGS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "early stopping by the training data alone": (REGRESSION, ALONE, "Early stopping"),
    "early stopping by a copy of them": (REGRESSION, "copy", "Early stopping"),
    "early stopping by other data": (REGRESSION, "valid", None),
    "a large penalty": ({**REGRESSION, "lambda_l2": 1e7}, "valid", "The rounds hardly"),
    "a usual penalty": ({**REGRESSION, "lambda_l2": 100.0}, "valid", None),
    "no first prediction": (
        {**REGRESSION, "boost_from_average": False},
        "far",
        "The first prediction is 0, but all labels",
    ),
    "a first prediction": (REGRESSION, "far", None),
}


@pytest.mark.filterwarnings("ignore:Only training set found")
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_cannot_work_are_named(run_dir: Path, name: str) -> None:
    parameters, kind, expected = SETTINGS[name]
    data = diabetes()
    offset = 1e4 if kind == "far" else 0.0
    y = data.y + offset
    matrix = lightgbm.Dataset(data.x, y)
    other = matrix.create_valid(data.valid_x, data.valid_y + offset)
    if kind == "copy":
        other = matrix.create_valid(data.x.copy(), y.copy())
    with tl.Hook(run_dir, rules=["TreeSettings"]) as hook:
        lightgbm.train(
            parameters,
            matrix,
            40,
            valid_sets=[matrix if kind == ALONE else other],
            callbacks=[lightgbm.early_stopping(60, verbose=False), hook],
        )
        assert hook.counters()["internal_errors"] == 0
    trees = Run(run_dir).trial.model_info()[-1].trees
    assert trees.stops_by_validation == (kind not in {ALONE, "copy"})
    findings = check(run_dir, ["TreeSettings"], record=False).findings
    messages = [each.message for each in findings]
    assert [each.startswith(str(expected)) for each in messages] == (
        [True] if expected else []
    )
