"""The nine collections of a run of XGBoost hold what XGBoost itself says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from xgboost.objective import TreeObjective

import tdbg.xgboost as tx
from tdbg.compare import differences, settings_of
from tdbg.hooks.trees.importance import KINDS
from tdbg.hooks.trees.tables import COLUMNS
from tdbg.modes import ModeKeys
from tdbg.report import comparison
from tdbg.trial import create_trial
from tdbg.ui.comparison import differing
from tree_runs import EVERY_ROUND, Run, cancer, diabetes, digits

EVAL = ModeKeys.EVAL
BINARY = {"objective": "binary:logistic", "max_depth": 3}
N_ROUNDS = 5
LAST = N_ROUNDS - 1


def categorical() -> xgboost.DMatrix:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "kind": pd.Categorical(random.integers(0, 8, 400)),
            "radius": random.normal(size=400),
            "delta": random.normal(size=400),
        }
    )
    label = (frame["kind"].cat.codes % 3 == 0) & (frame["radius"] > -0.5)
    return xgboost.DMatrix(frame, label.astype(int), enable_categorical=True)


def ranking() -> xgboost.DMatrix:
    data = diabetes()
    relevance = (data.y > 150).astype(int)
    return xgboost.DMatrix(data.x, relevance, qid=np.repeat(np.arange(30), 10))


def one_hot_digits() -> xgboost.DMatrix:
    data = digits()
    return xgboost.DMatrix(data.x, np.eye(10)[data.y])


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "binary": (BINARY, lambda: cancer().train()),
    "regression": ({"objective": "reg:squarederror"}, lambda: diabetes().train()),
    "softprob": (
        {"objective": "multi:softprob", "num_class": 10, "max_depth": 3},
        lambda: digits().train(),
    ),
    "poisson": (
        {"objective": "count:poisson"},
        lambda: xgboost.DMatrix(diabetes().x, np.round(diabetes().y / 30)),
    ),
    "dart": (BINARY | {"booster": "dart", "rate_drop": 0.5}, lambda: cancer().train()),
    "forest": (
        BINARY | {"num_parallel_tree": 3, "subsample": 0.5},
        lambda: xgboost.QuantileDMatrix(cancer().x, cancer().y),
    ),
    "categorical": (BINARY | {"max_cat_to_onehot": 1}, categorical),
    "ranking": ({"objective": "rank:ndcg"}, ranking),
    "pruned": (
        BINARY | {"tree_method": "exact", "gamma": 2.0},
        lambda: cancer().train(),
    ),
    "two quantiles": (
        {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9]},
        lambda: diabetes().train(),
    ),
}


def train(
    run_dir: Path, parameters: dict[str, Any], data: xgboost.DMatrix, **options: Any
) -> tuple[xgboost.Booster, Run, dict[str, int]]:
    hook = tx.Hook(
        run_dir,
        save_all=True,
        save_config=tx.SaveConfig(save_interval=2, statistics_interval=2),
        **options,
    )
    booster = xgboost.train(
        parameters, data, N_ROUNDS, evals=[(data, "train")], verbose_eval=False,
        callbacks=[hook],
    )  # fmt: skip
    counters = hook.counters()
    assert hook.close()
    assert counters["internal_errors"] == 0
    return booster, Run(run_dir), counters


@pytest.fixture(params=CASES)
def trained(
    request: pytest.FixtureRequest, run_dir: Path
) -> tuple[xgboost.Booster, Run, xgboost.DMatrix]:
    parameters, make = CASES[request.param]
    data = make()
    booster, run, counters = train(run_dir, parameters, data)
    assert counters["refused_tensors"] == counters["dropped"] == 0
    return booster, run, data


def names_of(booster: xgboost.Booster) -> list[str]:
    features = range(booster.num_features())
    return booster.feature_names or [f"f{i}" for i in features]


def test_everything_equals_what_xgboost_says_of_the_whole_model(
    trained: tuple[xgboost.Booster, Run, xgboost.DMatrix],
) -> None:
    booster, run, data = trained
    names = names_of(booster)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(
        run.value("predictions", LAST), booster.predict(data), **close
    )
    shap = booster.predict(data, pred_contribs=True)
    size = float(np.abs(shap).max())
    for i, name in enumerate([*names, "bias"]):
        column, mean = shap[..., i], np.abs(shap[..., i]).mean()
        captured = run.value(f"full_shap/{name}", LAST)
        np.testing.assert_allclose(captured, column, atol=1e-5 * size)
        captured = run.value(f"average_shap/{name}", LAST)
        np.testing.assert_allclose(captured, mean, atol=1e-5 * size)
    for kind in KINDS:
        score = booster.get_score(importance_type=kind)
        for name in names:
            captured = run.value(f"feature_importance/{kind}/{name}", LAST)
            assert float(captured) == pytest.approx(score.get(name, 0.0), rel=1e-5)
    assert_trees_equal(booster, run)


def assert_trees_equal(booster: xgboost.Booster, run: Run) -> None:
    table = {name: run.value(f"trees/{name}", LAST) for name in COLUMNS}
    frame = booster.trees_to_dataframe()
    n_trees = frame.Tree.max() + 1
    assert set(table["Tree"]) == set(range(n_trees * LAST // N_ROUNDS, n_trees))
    frame = frame[frame.Tree.isin(table["Tree"])].sort_values(["Tree", "Node"])
    order = np.lexsort((table["Node"], table["Tree"]))
    for name in ("Tree", "Node", "ID", "Feature"):
        assert table[name][order].tolist() == frame[name].tolist()
    for name in ("Gain", "Cover", "Split"):
        given = frame[name].to_numpy(dtype=float)
        np.testing.assert_allclose(table[name][order], given, rtol=1e-5)
    for name in ("Yes", "No", "Missing"):
        ids = frame[name].fillna("0--1").str.partition("-")[2]
        assert table[name][order].tolist() == ids.astype(int).tolist()
    for mine, given in zip(table["Category"][order], frame["Category"], strict=True):
        expected = [str(each) for each in given] if isinstance(given, list) else []
        assert sorted(filter(None, mine.split(","))) == sorted(expected)


def test_the_categories_of_a_split_are_captured(run_dir: Path) -> None:
    _, run, _ = train(run_dir, BINARY | {"max_cat_to_onehot": 1}, categorical())
    feature, category = (run.value(f"trees/{x}", 0) for x in ("Feature", "Category"))
    assert any(category[feature == "kind"])
    assert not any(category[feature != "kind"])


def test_a_linear_booster_has_coefficients_and_no_trees(run_dir: Path) -> None:
    data = cancer().train()
    booster, run, counters = train(
        run_dir, {"booster": "gblinear", "objective": "binary:logistic"}, data
    )
    score = booster.get_score(importance_type="weight")
    captured = {
        n: float(run.value(f"feature_importance/weight/{n}", LAST)) for n in score
    }
    assert captured == pytest.approx(score, rel=1e-6)
    shap = booster.predict(data, pred_contribs=True)
    np.testing.assert_allclose(run.value("full_shap/f3", LAST), shap[:, 3])
    np.testing.assert_allclose(
        run.value("predictions", LAST), booster.predict(data), rtol=1e-5
    )
    assert run.names("trees") == []
    assert counters["refused_tensors"] == 1


def test_what_vector_leaves_do_not_support_is_refused_once(run_dir: Path) -> None:
    parameters = {"tree_method": "hist", "multi_strategy": "multi_output_tree"}
    data = one_hot_digits()
    booster, run, counters = train(run_dir, parameters, data)
    assert counters["refused_tensors"] == 1  # SHAP, though three steps ask for it.
    np.testing.assert_allclose(
        run.value("predictions", LAST), booster.predict(data), atol=1e-5
    )
    assert run.value("labels", LAST).shape == (600, 10)
    n_nodes = len(run.value("trees/Node", LAST))
    assert n_nodes == sum(dump.count("\n") for dump in booster[LAST:].get_dump())


@pytest.mark.filterwarnings("ignore:.*specified the `updater`:UserWarning")
def test_an_update_of_a_model_has_predictions_of_the_whole(run_dir: Path) -> None:
    data = cancer()
    first = xgboost.train(BINARY, data.train(), N_ROUNDS)
    update = {"process_type": "update", "updater": "refresh", "refresh_leaf": True}
    hook = tx.Hook(run_dir, save_all=True, save_config=EVERY_ROUND)
    valid = data.valid()
    booster = xgboost.train(
        BINARY | update, valid, N_ROUNDS, xgb_model=first, callbacks=[hook]
    )
    # XGBoost slices no model of which some trees are yet to be updated.
    assert hook.counters()["refused_tensors"] == 3
    run = Run(run_dir)
    np.testing.assert_allclose(
        run.value("predictions", LAST), booster.predict(valid), rtol=1e-5
    )


def test_contributions_are_of_a_sample_of_rows_that_is_always_the_same(
    run_dir: Path,
) -> None:
    data = cancer().train()
    booster, run, _ = train(run_dir, BINARY, data, shap_rows=50)
    captured = run.value("full_shap/f22", LAST)
    assert captured.shape == (50,)
    whole = booster.predict(data, pred_contribs=True)[:, 22]
    assert np.isclose(captured[:, None], whole[None, :], atol=1e-6).any(axis=1).all()
    assert run.value("full_shap/f22", 0).shape == (50,)


def test_a_matrix_that_cannot_be_sliced_is_sampled_too(run_dir: Path) -> None:
    data = cancer()
    matrix = xgboost.QuantileDMatrix(data.x, data.y)
    booster, run, counters = train(run_dir, BINARY, matrix, shap_rows=50)
    assert counters["refused_tensors"] == 0
    whole = booster.predict(data.train(), pred_contribs=True)[:, 22]
    captured = run.value("full_shap/f22", LAST)
    assert np.isclose(captured[:, None], whole[None, :], atol=1e-5).any(axis=1).all()


def test_labels_and_predictions_of_both_data_sets_are_told_apart_by_mode(
    run_dir: Path,
) -> None:
    data = cancer()
    train_data, valid = data.train(), data.valid()
    hook = tx.Hook(
        run_dir, include_collections=["labels", "predictions"], save_config=EVERY_ROUND
    )
    booster = xgboost.train(
        BINARY, train_data, 3,
        evals=[(train_data, "train"), (valid, "valid")],
        verbose_eval=False, callbacks=[hook],
    )  # fmt: skip
    hook.close()
    run = Run(run_dir)
    assert run.value("labels", 2).tolist() == data.y.tolist()
    assert run.value("labels", 2).dtype == np.int64
    assert run.value("labels", 2, EVAL).tolist() == data.valid_y.tolist()
    np.testing.assert_allclose(
        run.value("predictions", 2, EVAL), booster.predict(valid), rtol=1e-5
    )


def logistic(margin: Any, data: Any) -> tuple[Any, Any]:
    """The objective of ``binary:logistic``, as a program would write it."""
    p = 1.0 / (1.0 + np.exp(-margin))
    return p - data.get_label(), p * (1.0 - p)


def quantile(margin: Any, data: Any) -> tuple[Any, Any]:
    """An objective that none of XGBoost's is like."""
    return np.where(margin > data.get_label(), 0.1, -0.9), np.ones_like(margin)


@pytest.mark.parametrize("objective", [logistic, quantile])
def test_gradients_of_an_objective_of_ones_own_are_what_it_has_returned(
    run_dir: Path, objective: Any
) -> None:
    seen: list[Any] = []

    def seeing(margin: Any, data: Any) -> tuple[Any, Any]:
        seen.append(objective(margin, data))
        return seen[-1]

    hook = tx.Hook(run_dir, include_collections=["gradients"], save_config=EVERY_ROUND)
    booster = xgboost.train(
        {"max_depth": 2}, cancer().train(), 4, obj=seeing, callbacks=[hook]
    )
    hook.close()
    run = Run(run_dir)
    for step, (gradient, hessian) in enumerate(seen):
        np.testing.assert_array_equal(run.value("gradient/margin", step), gradient)
        np.testing.assert_array_equal(run.value("hessian/margin", step), hessian)
    assert len(seen) == 4  # It is not called again.
    assert "update" not in vars(booster)


def test_an_objective_that_is_an_object_is_called_as_without_the_hook(
    run_dir: Path,
) -> None:
    rounds: list[int] = []

    class OfTwoGradients(TreeObjective):  # type: ignore[misc]
        def __call__(self, iteration: int, margin: Any, data: Any) -> tuple[Any, Any]:
            rounds.append(iteration)
            return logistic(margin, data)

        def split_grad(self, _: int, grad: Any, hess: Any) -> tuple[Any, Any]:
            return 2.0 * grad, hess

    def dump(*callbacks: Any) -> list[str]:
        data, own = cancer().train(), OfTwoGradients()
        return xgboost.train({}, data, 3, obj=own, callbacks=callbacks).get_dump()

    without = dump()
    hook = tx.Hook(run_dir, include_collections=["gradients"], save_config=EVERY_ROUND)
    assert dump(hook) == without
    hook.close()
    assert rounds == [0, 1, 2] * 2
    assert Run(run_dir).value("gradient/margin", 2) is not None


def test_gradients_are_those_that_the_trees_of_the_round_were_fit_to(
    run_dir: Path,
) -> None:
    data, seen = cancer().train(), []

    def seeing(margin: Any, data: Any) -> tuple[Any, Any]:
        seen.append(logistic(margin, data))
        return seen[-1]

    # The base of an objective of the program's own is a margin.
    xgboost.train({"max_depth": 3, "base_score": 0.0}, data, 3, obj=seeing)
    hook = tx.Hook(run_dir, include_collections=["gradients"], save_config=EVERY_ROUND)
    xgboost.train({**BINARY, "base_score": 0.5}, data, 3, callbacks=[hook])
    hook.close()
    run = Run(run_dir)
    assert run.names("gradients") == ["gradient/margin", "hessian/margin"]
    for step, (gradient, hessian) in enumerate(seen):
        found = (run.value(f"{each}/margin", step) for each in ("gradient", "hessian"))
        for one, other in zip(found, (gradient, hessian), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_hyperparameters_are_the_ones_in_effect_and_recorded_when_they_change(
    run_dir: Path,
) -> None:
    hook = tx.Hook(
        run_dir, include_collections=["hyperparameters"], save_config=EVERY_ROUND
    )
    rates = xgboost.callback.LearningRateScheduler([0.5, 0.5, 0.25, 0.25])
    xgboost.train(BINARY, cancer().train(), 4, callbacks=[rates, hook])
    hook.close()
    run = Run(run_dir)
    assert float(run.value("hyperparameters/max_depth", 0)) == 3
    assert float(run.value("hyperparameters/reg_lambda", 0)) == 1  # By default.
    assert run.value("hyperparameters/objective", 0) == "binary:logistic"
    assert run.steps("hyperparameters/max_depth") == [0]
    assert run.values("hyperparameters/learning_rate") == [0.5, 0.25]


def test_seeds_that_no_float_tells_apart_are_told_apart(tmp_path: Path) -> None:
    seeds = (2**53, 2**53 + 1)
    trials = []
    for seed in seeds:
        path = tmp_path / str(seed)
        with tx.Hook(path, include_collections=["hyperparameters"]) as hook:
            own = "hyperparameters/own"
            hook.save_tensor(own, np.array(seed), "hyperparameters")
            xgboost.train(
                {**BINARY, "seed": seed}, cancer().train(), 1, callbacks=[hook]
            )
        trials.append(create_trial(path))
    told = dict(differences([settings_of(trial) for trial in trials]))
    assert told["hyperparameters.own"] == seeds
    assert told["hyperparameters.seed"] == (float(seeds[0]), str(seeds[1]))
    shown = {row["name"]: row["values"] for row in differing(trials)["settings"]}
    assert shown["hyperparameters.own"] == [str(seed) for seed in seeds]
    assert "9,007,199,254,740,993" in comparison(*trials)


def test_metrics_have_no_losses_among_what_is_maximized(run_dir: Path) -> None:
    data = cancer()
    train_data, valid = data.train(), data.valid()
    metrics = ["logloss", "auc", "error@0.7", "aucpr"]
    hook = tx.Hook(run_dir, maximize=["mine"])
    xgboost.train(
        BINARY | {"eval_metric": metrics}, train_data, 3,
        evals=[(train_data, "train"), (valid, "valid")], verbose_eval=False,
        custom_metric=lambda *_: [("mine", 1.0), ("my_error", 2.0)],
        callbacks=[hook],
    )  # fmt: skip
    hook.close()
    run = Run(run_dir)
    every = [*metrics, "mine", "my_error"]
    named = [f"{data}-{metric}" for data in ("train", "valid") for metric in every]
    assert sorted(run.names("metrics")) == sorted(named)
    kept = ("logloss", "error@0.7", "my_error")
    assert sorted(run.names("losses")) == sorted(n for n in named if n.endswith(kept))
