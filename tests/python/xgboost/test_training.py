"""Whatever calls the hook, a step is a round, and the training stays as it was."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import tdbg.xgboost as tx
from tdbg.errors import ConfigurationError
from tdbg.hooks.xgboost.booster import XGBoostModel
from tdbg.modes import ModeKeys
from tdbg.run.requests import request_stop
from tree_runs import EVERY_ROUND, Run, cancer, diabetes

TRAIN, EVAL = ModeKeys.TRAIN, ModeKeys.EVAL
BINARY = {"objective": "binary:logistic", "max_depth": 3}


def train(hook: tx.Hook | None, n_rounds: int = 5, **options: Any) -> Any:
    """Train and return the booster and the history of its metrics."""
    data = cancer()
    matrix, valid = data.train(), data.valid()
    history: dict[str, Any] = {}
    options.setdefault("evals", [(matrix, "train"), (valid, "valid")])
    booster = xgboost.train(
        BINARY, matrix, n_rounds, verbose_eval=False, evals_result=history,
        callbacks=[] if hook is None else [hook], **options,
    )  # fmt: skip
    return booster, history


def test_the_training_is_bit_for_bit_what_it_is_without_the_hook(
    run_dir: Path,
) -> None:
    plain, plain_history = train(None)
    hook = tx.Hook(run_dir, save_all=True, save_config=EVERY_ROUND)
    hooked, history = train(hook)
    assert history == plain_history
    assert hooked.save_raw("ubj") == plain.save_raw("ubj")


def test_a_round_is_a_step_and_evaluation_a_step_of_its_own(run_dir: Path) -> None:
    hook = tx.Hook(run_dir)
    _, history = train(hook, 12)
    run = Run(run_dir)  # The hook is open still: readers see all of it.
    assert run.values("train-logloss") == history["train"]["logloss"]
    assert run.values("valid-logloss", EVAL) == history["valid"]["logloss"]
    assert run.steps("train-logloss") == list(range(12))
    assert run.steps("valid-logloss", EVAL) == list(range(12))
    assert run.steps("valid-logloss", TRAIN) == []
    assert run.names("trees") == []
    (info,) = run.trial.model_info()
    assert info.evaluates == {"valid-logloss": "train-logloss"}
    assert info.models == ("Booster",)
    hook.close()


def test_trees_are_captured_at_every_tenth_round_by_default(run_dir: Path) -> None:
    hook = tx.Hook(run_dir, include_collections=["trees", "feature_importance"])
    train(hook, 25)
    hook.close()
    run = Run(run_dir)
    assert run.steps("trees/Node") == [0, 10, 20]
    assert run.steps("feature_importance/weight/f3") == [0, 10, 20]
    assert len(run.steps("train-logloss")) == 25


def test_nothing_is_read_of_the_model_between_captures(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    for name in ("trees", "importance", "predictions"):
        method = getattr(XGBoostModel, name)

        def counted(
            self: Any, *given: Any, name: str = name, method: Any = method
        ) -> Any:
            read.append(name)
            return method(self, *given)

        monkeypatch.setattr(XGBoostModel, name, counted)
    hook = tx.Hook(run_dir, include_collections=["trees", "feature_importance"])
    train(hook, 20)
    assert read == ["trees", "importance"] * 2
    hook.close()


@pytest.mark.parametrize(
    ("evals", "trained", "evaluated"),
    [
        (["train", "valid"], ["train"], ["valid"]),
        (["valid"], [], ["valid"]),
        (["eval_train", "first"], ["eval_train"], ["first"]),
    ],
)
def test_data_sets_that_are_not_trained_by_are_evaluation(
    run_dir: Path, evals: list[str], trained: list[str], evaluated: list[str]
) -> None:
    data = cancer()
    matrix, valid = data.train(), data.valid()
    sets = [(matrix if "train" in name else valid, name) for name in evals]
    hook = tx.Hook(run_dir)
    xgboost.train(
        BINARY, matrix, 2, evals=sets, verbose_eval=False, callbacks=[hook]
    )  # fmt: skip
    hook.close()
    run = Run(run_dir)
    for name in trained:
        assert run.steps(f"{name}-logloss") == [0, 1]
    for name in evaluated:
        assert run.steps(f"{name}-logloss", EVAL) == [0, 1]
        assert run.steps(f"{name}-logloss") == []


def test_cross_validation_has_means_deviations_and_the_first_fold(
    run_dir: Path,
) -> None:
    hook = tx.Hook(
        run_dir,
        include_collections=["trees", "predictions", "average_shap"],
        save_config=EVERY_ROUND,
    )
    frame = xgboost.cv(BINARY, cancer().train(), 4, nfold=3, callbacks=[hook])
    hook.close()
    run = Run(run_dir)
    for data_set, mode in (("train", TRAIN), ("test", EVAL)):
        means = run.values(f"{data_set}-logloss", mode)
        assert means == pytest.approx(frame[f"{data_set}-logloss-mean"].tolist())
        deviations = run.values(f"{data_set}-logloss-std", mode)
        assert deviations == pytest.approx(frame[f"{data_set}-logloss-std"].tolist())
    assert "test-logloss-std" not in run.names("losses")
    assert run.value("predictions", 3).shape[0] in {266, 267}
    assert run.value("predictions", 3, EVAL).shape[0] in {133, 134}
    assert set(run.value("trees/Tree", 3)) == {3}
    assert run.steps("average_shap/bias") == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["classifier", "regressor", "ranker"])
def test_estimators_of_scikit_learn_take_the_hook(run_dir: Path, kind: str) -> None:
    hook = tx.Hook(run_dir, save_all=True, save_config=EVERY_ROUND)
    options = {"n_estimators": 3, "max_depth": 2, "callbacks": [hook]}
    data = cancer() if kind == "classifier" else diabetes()
    fit: dict[str, Any] = {"eval_set": [(data.x, data.y), (data.valid_x, data.valid_y)]}
    if kind == "classifier":
        model: Any = xgboost.XGBClassifier(**options)
    elif kind == "regressor":
        model = xgboost.XGBRegressor(**options)
    else:
        model = xgboost.XGBRanker(**options)
        fit = {"qid": np.repeat(np.arange(30), 10)}
        data = data._replace(y=(data.y > 150).astype(int))
    model.fit(data.x, data.y, **fit, **({} if kind == "ranker" else {"verbose": False}))
    counters = hook.counters()
    hook.close()
    assert counters["refused_tensors"] == counters["internal_errors"] == 0
    run = Run(run_dir)
    assert run.steps("trees/Node") == [0, 1, 2]
    metric = {"classifier": "logloss", "regressor": "rmse"}.get(kind)
    if metric:
        assert run.steps(f"validation_0-{metric}") == [0, 1, 2]
        assert run.steps(f"validation_1-{metric}", EVAL) == [0, 1, 2]
        shape = run.value("full_shap/bias", 2).shape
        assert shape == (len(data.valid_y),)


def test_a_clone_of_an_estimator_captures_into_the_same_run(run_dir: Path) -> None:
    hook = tx.Hook(run_dir)
    model = clone(xgboost.XGBClassifier(n_estimators=2, callbacks=[hook]))
    assert model.callbacks == [hook]
    assert copy.deepcopy(hook) is hook
    data = cancer()
    model.fit(data.x, data.y, eval_set=[(data.x, data.y)], verbose=False)
    assert Run(run_dir).steps("validation_0-logloss") == [0, 1]
    hook.close()


def test_a_search_goes_on_counting_steps_over_its_trainings(run_dir: Path) -> None:
    hook = tx.Hook(run_dir, include_collections=["trees"], save_config=EVERY_ROUND)
    model = xgboost.XGBClassifier(n_estimators=2, callbacks=[hook])
    search = GridSearchCV(model, {"max_depth": [1, 2]}, cv=2)
    data = cancer()
    search.fit(data.x, data.y)
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    assert Run(run_dir).steps("trees/Node") == list(range(10))


def test_a_pickled_hook_captures_nothing_and_hurts_no_training(run_dir: Path) -> None:
    hook = tx.Hook(run_dir, include_collections=["trees"], maximize=["mine"])
    model = xgboost.XGBClassifier(n_estimators=2, callbacks=[hook])
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301 - made here
    data = cancer()
    copied.fit(data.x, data.y)
    (other,) = copied.callbacks
    assert other is not hook
    assert other.counters()["offered"] == 0
    assert other._maximized == {"mine"}
    assert hook.n_steps == 0
    hook.close()


def test_a_training_that_is_continued_goes_on_with_its_rounds(run_dir: Path) -> None:
    first, _ = train(None, 4)
    hook = tx.Hook(run_dir, save_all=True, save_config=EVERY_ROUND)
    booster, history = train(hook, 3, xgb_model=first)
    run = Run(run_dir)
    assert run.steps("train-logloss") == [4, 5, 6]
    assert run.values("valid-logloss", EVAL) == history["valid"]["logloss"]
    assert run.steps("valid-logloss", EVAL) == [4, 5, 6]
    assert set(run.value("trees/Tree", 6)) == {6}
    data = cancer()
    np.testing.assert_allclose(
        run.value("predictions", 6), booster.predict(data.train()), rtol=1e-5
    )
    score = booster.get_score(importance_type="total_gain")
    for name, gain in score.items():
        captured = float(run.value(f"feature_importance/total_gain/{name}", 6))
        assert captured == pytest.approx(gain, rel=1e-5)
    train(hook, 2, xgb_model=booster)
    assert Run(run_dir).steps("train-logloss") == [4, 5, 6, 7, 8]
    hook.close()


def test_early_stopping_says_which_round_was_the_best(run_dir: Path) -> None:
    hook = tx.Hook(run_dir)
    stopping = xgboost.callback.EarlyStopping(
        rounds=2, data_name="valid", min_delta=0.2, save_best=True
    )
    data = cancer()
    matrix, valid = data.train(), data.valid()
    booster = xgboost.train(
        BINARY, matrix, 20, evals=[(valid, "valid")], verbose_eval=False,
        callbacks=[stopping, hook],
    )  # fmt: skip
    hook.close()
    run = Run(run_dir)
    assert run.values("scalar/best_iteration") == [booster.best_iteration]
    assert len(run.steps("valid-logloss", EVAL)) >= booster.num_boosted_rounds()


def test_a_request_to_stop_ends_the_training_and_keeps_its_model(
    run_dir: Path,
) -> None:
    class Asks(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            del model, evals_log
            if epoch == 3:
                request_stop(run_dir, reason="seen enough")
            return False

    hook = tx.Hook(run_dir)
    data = cancer().train()
    shallow = {"objective": "binary:logistic", "max_depth": 1}
    booster = xgboost.train(shallow, data, 100_000, callbacks=[Asks(), hook])
    assert 4 <= booster.num_boosted_rounds() < 100_000
    assert hook.stop_reason is not None
    assert "seen enough" in hook.stop_reason
    hook.close()


def test_a_stop_that_is_only_flagged_lets_the_training_go_on(run_dir: Path) -> None:
    hook = tx.Hook(run_dir, on_stop="flag")
    request_stop(run_dir, reason="enough")
    booster, _ = train(hook, 5)
    assert booster.num_boosted_rounds() == 5
    assert hook.should_stop
    hook.close()


def test_numbers_of_other_callbacks_belong_to_the_round(run_dir: Path) -> None:
    hook = tx.Hook(run_dir)

    class Own(xgboost.callback.TrainingCallback):
        def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            del model, evals_log
            hook.save_scalar("mine", 10.0 * epoch)
            hook.save_tensor("own", np.arange(3) + epoch, "custom")
            return False

    data = cancer().train()
    xgboost.train(BINARY, data, 3, callbacks=[hook, Own()])
    hook.close()
    run = Run(run_dir)
    assert run.values("scalar/mine") == [0.0, 10.0, 20.0]
    assert run.steps("scalar/mine") == [0, 1, 2]
    assert run.value("own", 0).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "name", ["trees", "importance", "hyperparameters", "predictions", "contributions"]
)
def test_a_model_that_cannot_answer_costs_one_refusal_and_nothing_else(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fails(*_: Any) -> Any:
        msg = "not supported"
        raise xgboost.core.XGBoostError(msg)

    monkeypatch.setattr(XGBoostModel, name, fails)
    plain, history = train(None)
    hook = tx.Hook(run_dir, save_all=True, save_config=EVERY_ROUND)
    booster, hooked_history = train(hook)
    counters = hook.counters()
    hook.close()
    assert booster.save_raw() == plain.save_raw()
    assert hooked_history == history
    # Predictions are asked for in both modes, and gradients follow from them.
    assert counters["refused_tensors"] == (2 if name == "predictions" else 1)
    assert counters["internal_errors"] == 0


@pytest.mark.parametrize(
    "method", ["_begin_training", "_begin", "_make_model", "_end", "_note_kept_rounds"]
)
def test_a_fault_of_the_hook_leaves_the_training_as_it_is(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fails(*_: Any) -> Any:
        msg = "a fault"
        raise RuntimeError(msg)

    plain, _ = train(None)
    hook = tx.Hook(run_dir, save_all=True)
    monkeypatch.setattr(tx.Hook, method, fails)
    booster, _ = train(hook)
    assert booster.save_raw() == plain.save_raw()
    assert hook.counters()["internal_errors"] >= 1
    hook.close()


def test_a_training_after_one_that_raised_begins_steps_of_its_own(
    run_dir: Path,
) -> None:
    hook = tx.Hook(run_dir)

    def fails(*_: Any) -> Any:
        msg = "the user's own"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="the user's own"):
        train(hook, 3, obj=fails)
    _, history = train(hook, 3)
    hook.close()
    run = Run(run_dir)
    assert run.values("train-logloss") == history["train"]["logloss"]


def test_without_data_the_hook_says_what_it_can(run_dir: Path) -> None:
    hook = tx.Hook(run_dir, save_all=True, save_config=EVERY_ROUND)
    matrix = cancer().train()
    booster = xgboost.Booster(BINARY, [matrix])
    hook.before_training(model=booster)  # As a loop of the user's own calls it.
    for i in range(2):
        hook.before_iteration(model=booster, epoch=i, evals_log={})
        booster.update(matrix, i)
        hook.after_iteration(model=booster, epoch=i, evals_log={})
    hook.after_training(model=booster)
    hook.close()
    run = Run(run_dir)
    assert run.steps("trees/Node") == [0, 1]
    assert run.steps("feature_importance/gain/f0") == [0, 1]
    assert run.names("labels") == []


def test_data_that_the_hook_is_given_are_used(run_dir: Path) -> None:
    data = cancer()
    hook = tx.Hook(
        run_dir, include_collections=["labels"], save_config=EVERY_ROUND,
        validation_data=data.valid(),
    )  # fmt: skip
    train(hook, 2, evals=[])
    hook.close()
    assert Run(run_dir).value("labels", 1, EVAL).tolist() == data.valid_y.tolist()


def test_a_disabled_hook_does_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDBG_DISABLED", "1")
    hook = tx.Hook(run_dir, save_all=True)
    booster, _ = train(hook)
    assert booster.num_boosted_rounds() == 5
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_data": [1]}, "train_data must be an xgboost.DMatrix, not list"),
        ({"validation_data": "x"}, "validation_data must be an xgboost.DMatrix"),
        ({"maximize": "auc"}, "maximize must be a list of names of metrics, not 'auc'"),
        ({"shap_rows": 0}, "shap_rows must be a whole number of at least 1, not 0"),
        ({"include_colections": []}, "include_collections"),
    ],
)
def test_settings_that_can_never_work_are_refused(
    run_dir: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tx.Hook(run_dir, **settings)


def test_the_hook_of_the_process_is_the_one_that_was_made_last(run_dir: Path) -> None:
    hook = tx.Hook(run_dir)
    assert tx.get_hook() is hook
    tx.del_hook()
    assert tx.get_hook() is None
    tx.set_hook(hook)
    assert tx.get_hook() is hook
    tx.del_hook()
    hook.close()


def test_what_is_not_supported_is_told_in_the_log(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = tx.Hook(run_dir, include_collections=["trees"], save_config=EVERY_ROUND)
    with caplog.at_level(logging.INFO, "tdbg"):
        xgboost.train({"booster": "gblinear"}, diabetes().train(), 3, callbacks=[hook])
    hook.close()
    told = [r.getMessage() for r in caplog.records if "not captured" in r.getMessage()]
    assert len(told) == 1
    assert "a linear booster (gblinear) has no trees" in told[0]
