"""A run of CatBoost holds its metrics, and what is recorded of the trained model."""

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
from tree_runs import Run, cancer

EVAL = ModeKeys.EVAL


def fit(hook: tc.Hook | None, n_rounds: int = 8, **options: Any) -> Any:
    data = cancer()
    model = catboost.CatBoostClassifier(
        iterations=n_rounds,
        depth=3,
        thread_count=1,
        random_seed=1,
        allow_writing_files=False,
        verbose=False,
        **options,
    )
    callbacks = {} if hook is None else {"callbacks": [hook]}
    return model.fit(data.x, data.y, eval_set=(data.valid_x, data.valid_y), **callbacks)


def test_metrics_are_those_of_catboost_and_the_model_stays_as_it_is(
    run_dir: Path,
) -> None:
    plain = fit(None, eval_metric="AUC")
    with tc.Hook(run_dir) as hook:
        model = fit(hook, eval_metric="AUC")
        assert hook.counters()["internal_errors"] == 0
    results = model.get_evals_result()
    run = Run(run_dir)
    assert run.values("learn-Logloss") == results["learn"]["Logloss"]
    valid = results["validation"]
    assert run.values("validation-Logloss", EVAL) == valid["Logloss"]
    assert run.values("validation-AUC", EVAL) == valid["AUC"]
    assert run.names("losses") == ["learn-Logloss", "validation-Logloss"]
    data = cancer()
    assert (model.predict_proba(data.x) == plain.predict_proba(data.x)).all()


def test_importance_and_contributions_are_recorded_of_the_trained_model(
    run_dir: Path,
) -> None:
    data = cancer()
    pool = catboost.Pool(data.valid_x, data.valid_y)
    with tc.Hook(run_dir, shap_rows=50) as hook:
        model = fit(hook)
        hook.record_model(model, pool)
        assert hook.counters()["internal_errors"] == 0
    run = Run(run_dir)
    importance = [
        float(run.value(f"feature_importance/prediction_values_change/{i}", 7))
        for i in range(30)
    ]
    np.testing.assert_allclose(importance, model.get_feature_importance())
    whole = model.get_feature_importance(pool, type="ShapValues")
    captured = run.value("full_shap/27", 7)
    assert captured.shape == (50,)
    assert np.isclose(captured[:, None], whole[None, :, 27]).any(axis=1).all()
    assert len(run.names("average_shap")) == 31


def test_a_request_to_stop_ends_the_training(run_dir: Path) -> None:
    with tc.Hook(run_dir) as hook:
        request_stop(run_dir, reason="seen enough")
        model = fit(hook, 50, use_best_model=False)
    assert model.tree_count_ <= 2
    assert "seen enough" in str(hook.stop_reason)


def test_what_needs_a_model_is_refused_once(run_dir: Path) -> None:
    with tc.Hook(run_dir, include_collections=["trees"]) as hook:
        fit(hook, 25)
        assert hook.counters()["internal_errors"] == 0
        assert 1 <= hook.counters()["refused_tensors"] <= 2


def test_rules_find_what_is_learned_by_heart(run_dir: Path) -> None:
    data = cancer()
    wrong = np.random.default_rng(0).random(100) < 0.2
    label = np.where(wrong, 1 - data.y[:100], data.y[:100])
    model = catboost.CatBoostClassifier(
        iterations=80,
        depth=8,
        learning_rate=0.5,
        thread_count=1,
        random_seed=1,
        allow_writing_files=False,
        verbose=False,
    )
    with tc.Hook(run_dir, rules=default_rules()) as hook:
        model.fit(
            data.x[:100],
            label,
            eval_set=(data.valid_x, data.valid_y),
            callbacks=[hook],
        )
    rules = {each.rule for each in check(run_dir, default_rules()).findings}
    assert "Overfit" in rules


@pytest.mark.parametrize("n_rounds", [40])
def test_a_healthy_training_has_no_findings(run_dir: Path, n_rounds: int) -> None:
    with tc.Hook(run_dir, rules=default_rules()) as hook:
        fit(hook, n_rounds, learning_rate=0.1)
    assert check(run_dir, default_rules()).findings == ()
