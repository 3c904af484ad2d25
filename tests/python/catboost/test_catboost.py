"""A run of CatBoost holds its metrics, and the trained model round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pytest

import tdbg.catboost as tc
from tdbg.modes import ModeKeys
from tdbg.rules import check, default_rules
from tdbg.run.requests import request_stop
from tree_runs import EVERY_ROUND, Run, cancer, diabetes

TRAIN, EVAL, PREDICT = ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT
EVERYTHING = (
    "trees",
    "feature_importance",
    "average_shap",
    "full_shap",
    "labels",
    "predictions",
    "hyperparameters",
)
QUIET: dict[str, Any] = {
    "thread_count": 1,
    "random_seed": 1,
    "allow_writing_files": False,
    "verbose": False,
}


def classifier(n_rounds: int = 8, **options: Any) -> Any:
    return catboost.CatBoostClassifier(
        iterations=n_rounds, **{"depth": 3, **QUIET, **options}
    )


def fit(hook: tc.Hook | None, n_rounds: int = 8, **options: Any) -> Any:
    data = cancer()
    model = classifier(n_rounds, **options)
    callbacks = {} if hook is None else {"callbacks": [hook]}
    return model.fit(data.x, data.y, eval_set=(data.valid_x, data.valid_y), **callbacks)


def check_no_error(hook: tc.Hook) -> None:
    counters = hook.counters()
    assert (counters["internal_errors"], counters["refused_tensors"]) == (0, 0)


def test_metrics_are_those_of_catboost_and_the_model_stays_as_it_is(
    run_dir: Path,
) -> None:
    plain = fit(None, eval_metric="AUC")
    with tc.Hook(run_dir, include_collections=EVERYTHING) as hook:
        model = fit(hook, eval_metric="AUC")
        check_no_error(hook)
    results = model.get_evals_result()
    run = Run(run_dir)
    assert run.values("learn-Logloss") == results["learn"]["Logloss"]
    valid = results["validation"]
    assert run.values("validation-Logloss", EVAL) == valid["Logloss"]
    assert run.values("validation-AUC", EVAL) == valid["AUC"]
    assert run.names("losses") == ["learn-Logloss", "validation-Logloss"]
    data = cancer()
    assert (model.predict_proba(data.x) == plain.predict_proba(data.x)).all()
    assert (model.copy().predict_proba(data.x) == plain.predict_proba(data.x)).all()
    assert "tdbg" not in repr(model.__getstate__())
    assert model.get_all_params() == plain.get_all_params()


def test_the_trained_model_is_recorded_as_it_was_after_its_rounds(
    run_dir: Path,
) -> None:
    with tc.Hook(run_dir, include_collections=EVERYTHING, shap_rows=50) as hook:
        model = fit(hook, 25, use_best_model=False)
        check_no_error(hook)
    run, data = Run(run_dir), cancer()
    for name in ("trees/Node", "predictions", "feature_importance/weight/27"):
        assert run.steps(name, PREDICT) == [0, 10, 20, 24]
    for step in (0, 20, 24):
        found = run.value("predictions", step, PREDICT)
        expected = model.predict_proba(data.valid_x, ntree_end=step + 1)[:, 1]
        np.testing.assert_allclose(found, expected)
        np.testing.assert_array_equal(run.value("labels", step, PREDICT), data.valid_y)
        assert set(run.value("trees/Tree", step, PREDICT)) == {step}
    own = "feature_importance/prediction_values_change"
    importance = [float(run.value(f"{own}/{i}", 24, PREDICT)) for i in range(30)]
    np.testing.assert_allclose(importance, model.get_feature_importance())
    pool = catboost.Pool(data.valid_x)
    whole = model.get_feature_importance(pool, type="ShapValues")
    captured = run.value("full_shap/27", 24, PREDICT)
    assert captured.shape == (50,)
    assert np.isclose(captured[:, None], whole[None, :, 27]).any(axis=1).all()
    assert len(run.names("average_shap")) == 31
    assert float(run.value("hyperparameters/depth", 0, PREDICT)) == 3


def test_without_evaluation_data_those_of_training_are_predicted(run_dir: Path) -> None:
    data = cancer()
    with tc.Hook(run_dir, include_collections=["labels", "predictions"]) as hook:
        model = classifier().fit(data.x, data.y, callbacks=[hook])
        check_no_error(hook)
    run = Run(run_dir)
    found = run.value("predictions", 7, PREDICT)
    np.testing.assert_allclose(found, model.predict_proba(data.x)[:, 1])
    np.testing.assert_array_equal(run.value("labels", 7, PREDICT), data.y)


def test_a_metric_has_steps_where_catboost_has_computed_it(run_dir: Path) -> None:
    with tc.Hook(run_dir) as hook:
        model = fit(hook, 12, metric_period=5, use_best_model=False)
    run = Run(run_dir)
    results = model.get_evals_result()["learn"]["Logloss"]
    assert run.steps("learn-Logloss") == [0, 5, 10, 11]
    assert run.values("learn-Logloss") == results


@pytest.mark.parametrize(
    ("metric", "is_loss"),
    [("BrierScore", True), ("F1", False), ("NormalizedGini", False)],
)
def test_losses_are_the_metrics_that_catboost_minimizes(
    run_dir: Path, metric: str, is_loss: bool
) -> None:
    with tc.Hook(run_dir) as hook:
        fit(hook, 2, custom_metric=[metric])
    names = Run(run_dir).names("losses")
    assert any(metric in name for name in names) == is_loss


def test_a_request_to_stop_ends_the_training(run_dir: Path) -> None:
    with tc.Hook(run_dir, include_collections=["trees"]) as hook:
        request_stop(run_dir, reason="seen enough")
        model = fit(hook, 50, use_best_model=False)
    assert model.tree_count_ <= 2
    assert "seen enough" in str(hook.stop_reason)
    assert Run(run_dir).steps("trees/Node", PREDICT) == [0]


def test_a_continued_training_goes_on_with_the_numbers_of_rounds(run_dir: Path) -> None:
    data = cancer()
    first = classifier(4).fit(data.x, data.y)
    save = {"include_collections": ["trees"], "save_config": EVERY_ROUND}
    with tc.Hook(run_dir, **save) as hook:
        classifier(3).fit(data.x, data.y, init_model=first, callbacks=[hook])
        check_no_error(hook)
    run = Run(run_dir)
    assert run.steps("learn-Logloss") == [4, 5, 6]
    assert run.steps("trees/Node", PREDICT) == [4, 5, 6]
    assert set(run.value("trees/Tree", 4, PREDICT)) == {4}


def test_a_training_that_resumes_from_a_snapshot_goes_on_with_its_rounds(
    run_dir: Path, tmp_path: Path
) -> None:
    data = cancer()
    options = {"allow_writing_files": True, "train_dir": str(tmp_path / "info")}
    saved = {"save_snapshot": True, "snapshot_file": "saved", "snapshot_interval": 0}
    classifier(3, **options).fit(data.x, data.y, **saved)
    with tc.Hook(run_dir) as hook:
        model = classifier(5, **options)
        model.fit(data.x, data.y, callbacks=[hook], **saved)
    run = Run(run_dir)
    assert run.steps("learn-Logloss") == [3, 4]
    results = model.get_evals_result()["learn"]["Logloss"]
    assert run.values("learn-Logloss") == results[3:]


def test_several_trainings_with_one_hook_go_on_counting(run_dir: Path) -> None:
    save = {"include_collections": ["trees"], "save_config": EVERY_ROUND}
    with tc.Hook(run_dir, **save) as hook:
        fit(hook, 3, use_best_model=False)
        fit(hook, 2, use_best_model=False)
        check_no_error(hook)
    run = Run(run_dir)
    assert run.steps("learn-Logloss") == [0, 1, 2, 3, 4]
    assert run.steps("trees/Node", PREDICT) == [0, 1, 2, 3, 4]
    assert set(run.value("trees/Tree", 3, PREDICT)) == {0}


class Fails:
    """A callback that ends a training by an error."""

    def after_iteration(self, info: Any) -> bool:
        if info.iteration == 2:
            msg = "no further"
            raise RuntimeError(msg)
        return True


def test_of_a_training_that_raises_the_old_model_is_not_recorded(run_dir: Path) -> None:
    data = cancer()
    model = classifier(2).fit(data.x, data.y)
    with tc.Hook(run_dir, include_collections=["trees"]) as hook:
        with pytest.raises(catboost.CatBoostError, match="no further"):
            model.fit(data.x, data.y, callbacks=[hook, Fails()])
        check_no_error(hook)
    run = Run(run_dir)
    assert run.names("trees") == []
    assert run.steps("learn-Logloss") == [0, 1]


def test_a_model_that_the_hook_has_not_seen_trained_is_recorded_afterwards(
    run_dir: Path,
) -> None:
    data = cancer()
    model = fit(None, 12, use_best_model=False)
    with tc.Hook(run_dir, include_collections=EVERYTHING) as hook:
        hook.record_model(model, (data.valid_x, data.valid_y))
        check_no_error(hook)
        assert hook.n_steps == 12
    run = Run(run_dir)
    results = model.get_evals_result()
    assert run.values("learn-Logloss") == results["learn"]["Logloss"]
    assert run.values("validation-Logloss", EVAL) == results["validation"]["Logloss"]
    assert run.steps("trees/Node", PREDICT) == [0, 10, 11]
    found = run.value("predictions", 11, PREDICT)
    np.testing.assert_allclose(found, model.predict_proba(data.valid_x)[:, 1])


def test_a_model_whose_callback_the_hook_was_is_not_recorded_again(
    run_dir: Path,
) -> None:
    with tc.Hook(run_dir, include_collections=["trees"]) as hook:
        hook.record_model(fit(hook, 3, use_best_model=False))
        assert hook.n_steps == 3
    assert Run(run_dir).steps("trees/Node", PREDICT) == [0, 2]


def test_a_cross_validation_is_recorded_as_the_means_of_its_folds(
    run_dir: Path,
) -> None:
    data = cancer()
    parameters = {"loss_function": "Logloss", "iterations": 4, "depth": 2, **QUIET}
    results = catboost.cv(catboost.Pool(data.x, data.y), parameters, fold_count=3)
    with tc.Hook(run_dir) as hook:
        hook.record_cv(results)
        check_no_error(hook)
    run = Run(run_dir)
    assert run.values("train-Logloss") == list(results["train-Logloss-mean"])
    assert run.values("test-Logloss", EVAL) == list(results["test-Logloss-mean"])
    assert run.values("test-Logloss-std", EVAL) == list(results["test-Logloss-std"])
    assert run.names("losses") == ["test-Logloss", "train-Logloss"]


@pytest.mark.filterwarnings("ignore:Failed to import numba")
def test_an_objective_and_a_metric_of_ones_own_are_no_hindrance(run_dir: Path) -> None:
    class Objective:
        def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> Any:
            del weights
            return [(y - a, -1.0) for a, y in zip(approxes, targets, strict=True)]

    class Metric:
        def is_max_optimal(self) -> bool:
            return False

        def evaluate(self, approxes: Any, targets: Any, weights: Any) -> Any:
            del weights
            pairs = zip(approxes[0], targets, strict=True)
            return sum((a - y) ** 2 for a, y in pairs), len(targets)

        def get_final_error(self, error: float, weight: float) -> float:
            return error / weight

    data = diabetes()
    with tc.Hook(run_dir, include_collections=EVERYTHING) as hook:
        model = catboost.CatBoostRegressor(
            iterations=3,
            depth=2,
            loss_function=Objective(),
            eval_metric=Metric(),
            **QUIET,
        ).fit(data.x, data.y, callbacks=[hook])
        check_no_error(hook)
    run = Run(run_dir)
    assert run.names("losses") == ["learn-Metric"]
    expected = model.predict(data.x, prediction_type="RawFormulaVal")
    np.testing.assert_allclose(run.value("predictions", 2, PREDICT), expected)


def test_a_ranking_is_recorded_with_scores(run_dir: Path) -> None:
    data = diabetes()
    relevance = (data.y > 150).astype(int)
    with tc.Hook(run_dir, include_collections=EVERYTHING) as hook:
        ranker = catboost.CatBoostRanker(
            iterations=3, depth=2, loss_function="PairLogit", **QUIET
        )
        ranker.fit(
            data.x, relevance, group_id=np.repeat(range(30), 10), callbacks=[hook]
        )
        check_no_error(hook)
    run = Run(run_dir)
    assert run.value("labels", 2, PREDICT).dtype == np.float64
    np.testing.assert_allclose(
        run.value("predictions", 2, PREDICT), ranker.predict(data.x)
    )


def test_on_a_gpu_the_refusal_is_that_of_catboost(run_dir: Path) -> None:
    data = cancer()
    with (
        tc.Hook(run_dir) as hook,
        pytest.raises(catboost.CatBoostError, match="not supported for GPU"),
    ):
        classifier(2, task_type="GPU").fit(data.x, data.y, callbacks=[hook])


def rules_found(run_dir: Path) -> set[str]:
    return {each.rule for each in check(run_dir, default_rules()).findings}


def test_rules_find_what_is_learned_by_heart_by_trees_too_deep(run_dir: Path) -> None:
    data = cancer()
    wrong = np.random.default_rng(0).random(100) < 0.2
    label = np.where(wrong, 1 - data.y[:100], data.y[:100])
    model = classifier(60, depth=11, learning_rate=0.5)
    with tc.Hook(run_dir, rules=default_rules()) as hook:
        model.fit(
            data.x[:100],
            label,
            eval_set=(data.valid_x, data.valid_y),
            use_best_model=False,
            callbacks=[hook],
        )
    assert {"Overfit", "TreeDepth"} <= rules_found(run_dir)


def test_rules_find_a_feature_that_gives_the_answer_away(run_dir: Path) -> None:
    data = cancer()
    x = np.column_stack([data.x, data.y])
    with tc.Hook(run_dir, rules=default_rules()) as hook:
        classifier(40).fit(x, data.y, callbacks=[hook])
    assert "FeatureImportance" in rules_found(run_dir)


def test_rules_find_a_rare_class_that_is_never_recognized(run_dir: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 5))
    label = np.where(x[:, 0] > 0, 1, 0)
    label[rng.permutation(3000)[:60]] = 2  # Nothing tells them apart.
    with tc.Hook(run_dir, rules=default_rules()) as hook:
        classifier(80, loss_function="MultiClass").fit(x, label, callbacks=[hook])
    assert "ClassImbalance" in rules_found(run_dir)


def test_a_healthy_training_has_no_findings(run_dir: Path) -> None:
    with tc.Hook(run_dir, rules=default_rules()) as hook:
        fit(hook, 40, learning_rate=0.1)
    assert check(run_dir, default_rules()).findings == ()
