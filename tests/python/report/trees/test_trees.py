"""The report of boosted trees: the nine sections by name, whatever made the run."""

from __future__ import annotations

from pathlib import Path

import catboost
import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

import tdbg
import tdbg.catboost as tc
import tdbg.lightgbm as tl
import tdbg.xgboost as tx
from report_runs import Page
from run_builder import RunBuilder
from tdbg import report
from tdbg.compat.smdebug.core.save_config import SaveConfig
from tdbg.compat.smdebug.xgboost import Hook as SmdebugHook
from tdbg.config import CollectionConfig, Role
from tdbg.drawing.scales import number
from tdbg.modes import ModeKeys
from tdbg.report.trees.evaluation import (
    PredictionKind,
    area_below,
    classes_of,
    confusion_of,
    kind_of,
    label_bins,
    measures_of,
    roc_of,
)
from tree_runs import Run, Split, cancer, diabetes, digits

COLLECTIONS = [
    "labels",
    "predictions",
    "feature_importance",
    "trees",
    "hyperparameters",
]
CATBOOST = {
    "iterations": 11,
    "thread_count": 1,
    "allow_writing_files": False,
    "verbose": False,
}
LABELS = "1 · Distribution of true labels of the dataset"
LOSS = "2 · Loss versus step graph"
IMPORTANCE = "3 · Feature importance"
CONFUSION = "4 · Confusion matrix"
EVALUATION = "5 · Evaluation of the confusion matrix"
DIAGONAL = "6 · Accuracy rate of each diagonal element over iteration"
ROC = "7 · Receiver operating characteristic curve"
RESIDUALS = "8 · Distribution of residuals at the last saved step"
ERRORS = "9 · Absolute validation error per label bin over iteration"


def trained(path: Path, data: Split, parameters: dict[str, object]) -> Path:
    train, valid = data.train(), data.valid()
    with tx.Hook(path, include_collections=COLLECTIONS) as hook:
        xgboost.train(
            {"max_depth": 3, "nthread": 1, **parameters},
            train,
            21,
            evals=[(train, "train"), (valid, "valid")],
            verbose_eval=False,
            callbacks=[hook],
        )
    return path


def rendered(path: Path) -> Page:
    return Page(report.render(tdbg.create_trial(path)))


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "cancer"
    metrics = ["logloss", "auc"]
    return trained(
        path, cancer(), {"objective": "binary:logistic", "eval_metric": metrics}
    )


@pytest.fixture(scope="module")
def page(binary: Path) -> Page:
    return rendered(binary)


def test_two_classes_have_the_first_seven_sections_and_the_extras(page: Page) -> None:
    expected = [LABELS, LOSS, IMPORTANCE, CONFUSION, EVALUATION, DIAGONAL, ROC]
    extras = ["Metrics of every evaluation set", "Trees", "Hyperparameters"]
    assert page.titles[2:12] == [*expected, *extras]


def test_many_classes_have_no_curve(tmp_path: Path) -> None:
    path = tmp_path / "digits"
    trained(path, digits(), {"objective": "multi:softprob", "num_class": 10})
    found = rendered(path)
    assert [t for t in found.titles if t[0].isdigit()] == [
        *(LABELS, LOSS, IMPORTANCE, CONFUSION, EVALUATION, DIAGONAL)
    ]
    for matrix in found.section("confusion").all("svg"):
        assert len(matrix.all("rect", "cell")) == 100


def test_numbers_have_residuals_and_errors_by_label(tmp_path: Path) -> None:
    path = trained(tmp_path / "run", diabetes(), {"objective": "reg:squarederror"})
    found = rendered(path)
    assert [t for t in found.titles if t[0].isdigit()] == [
        *(LABELS, LOSS, IMPORTANCE, RESIDUALS, ERRORS)
    ]
    run = Run(path)
    residuals = run.value("labels", 20, ModeKeys.EVAL) - run.value(
        "predictions", 20, ModeKeys.EVAL
    )
    (table,) = found.section("residuals").all("table")
    last = table.all("tbody")[0].all("tr")[1]
    assert last.all("th")[0].text == "validation, round 20"
    told = [cell.text for cell in last.all("td")]
    assert told[0] == str(len(residuals))
    assert float(told[2]) == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=0.01)
    charts = found.section("errors").all("svg")
    assert [len(each.all("path", "line")) for each in charts] == [6, 6]


def test_lightgbm_has_the_same_sections(tmp_path: Path) -> None:
    data = cancer()
    train = lightgbm.Dataset(data.x, data.y)
    valid = train.create_valid(data.valid_x, data.valid_y)
    with tl.Hook(tmp_path / "run", include_collections=COLLECTIONS) as hook:
        lightgbm.train(
            {"objective": "binary", "verbosity": -1, "num_threads": 1},
            train,
            11,
            valid_sets=[train, valid],
            valid_names=["train", "valid"],
            callbacks=[hook],
        )
    titles = rendered(tmp_path / "run").titles
    assert [t for t in titles if t[0].isdigit()] == [
        *(LABELS, LOSS, IMPORTANCE, CONFUSION, EVALUATION, DIAGONAL, ROC)
    ]


def test_catboost_has_the_same_sections_and_the_depths_of_its_trees(
    tmp_path: Path,
) -> None:
    data = cancer()
    with tc.Hook(tmp_path / "run", include_collections=COLLECTIONS) as hook:
        catboost.CatBoostClassifier(depth=3, **CATBOOST).fit(
            data.x, data.y, eval_set=(data.valid_x, data.valid_y), callbacks=[hook]
        )
    found = rendered(tmp_path / "run")
    assert [t for t in found.titles if t[0].isdigit()] == [
        *(LABELS, LOSS, IMPORTANCE, CONFUSION, EVALUATION, DIAGONAL, ROC)
    ]
    assert "levels of the deepest tree" in found.section("trees").text


def test_rankings_of_catboost_are_no_classes(tmp_path: Path) -> None:
    data = cancer()
    group = np.repeat(range(40), 10)
    with tc.Hook(tmp_path / "run", include_collections=COLLECTIONS) as hook:
        catboost.CatBoostRanker(loss_function="PairLogit", **CATBOOST).fit(
            data.x, data.y, group_id=group, callbacks=[hook]
        )
    found = rendered(tmp_path / "run")
    assert CONFUSION not in found.titles
    assert "PairLogit" in found.section("predictions").text


def test_a_run_of_the_hook_of_smdebug_has_the_sections(tmp_path: Path) -> None:
    data = cancer()
    train, valid = data.train(), data.valid()
    hook = SmdebugHook(
        out_dir=str(tmp_path / "run"),
        include_collections=COLLECTIONS,
        train_data=train,
        validation_data=valid,
        save_config=SaveConfig(save_interval=5),
    )
    xgboost.train(
        {"objective": "binary:logistic", "nthread": 1},
        train,
        11,
        evals=[(train, "train"), (valid, "validation")],
        verbose_eval=False,
        callbacks=[hook],
    )
    hook.close()
    found = rendered(tmp_path / "run")
    assert [t for t in found.titles if t[0].isdigit()] == [
        *(LABELS, LOSS, IMPORTANCE, CONFUSION, EVALUATION, DIAGONAL, ROC)
    ]
    assert "Trained for 11 rounds" in found.verdict
    assert f"{len(data.valid_y)} samples of saved data" in found.section("labels").text


def test_measures_are_those_of_scikit_learn(binary: Path, page: Page) -> None:
    run = Run(binary)
    y = run.value("labels", 20, ModeKeys.EVAL)
    p = run.value("predictions", 20, ModeKeys.EVAL)
    expected = precision_recall_fscore_support(y, p > 0.5)
    table = page.section("evaluation").all("table")[1]
    assert f"accuracy {np.mean(y == (p > 0.5)):.3f}" in table.text
    rows = table.all("tbody")[0].all("tr")
    for k in range(2):
        told = [cell.text for cell in rows[k].all("td")]
        assert told == [
            *(f"{part[k]:.3f}" for part in expected[:3]),
            str(expected[3][k]),
        ]
    macro = [cell.text for cell in rows[2].all("td")][:3]
    assert macro == [f"{np.mean(part):.3f}" for part in expected[:3]]
    legend = page.section("roc").all("li")[1].text
    assert legend == f"validation, round 20: area {roc_auc_score(y, p):.4f}"


def test_both_data_sets_are_in_every_section_of_predictions(page: Page) -> None:
    for anchor in ("labels", "confusion", "evaluation", "diagonal", "roc"):
        text = page.section(anchor).text.lower()
        assert "training" in text
        assert "validation" in text


def test_importance_is_drawn_by_weight_gain_and_coverage(page: Page) -> None:
    headings = [each.text for each in page.section("importance").all("h3")]
    assert headings == ["Weight", "Gain", "Coverage", "total_cover", "total_gain"]


def test_the_verdict_counts_rounds(page: Page) -> None:
    assert "Trained for 21 rounds" in page.verdict


def test_overfitting_is_told_from_underfitting(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = Split(
        random.normal(size=(80, 5)),
        random.normal(size=80),
        random.normal(size=(80, 5)),
        random.normal(size=80),
    )
    over = trained(tmp_path / "over", noise, {"objective": "reg:squarederror"})
    under = trained(
        tmp_path / "under", cancer(), {"objective": "binary:logistic", "eta": 0.01}
    )
    told = [
        rendered(each).section("loss").all("p", "advice")[0].text
        for each in (over, under)
    ]
    assert told[0].startswith("Overfitting: valid-rmse was best at round ")
    assert told[1].startswith("Underfitting, so far: valid-logloss still falls")


# Rounds, the interval of the training loss, and the learning rate.
THINNED = (60, 7, 0.05)
# More rounds than a chart has columns.
LONG = (1300, 1, 0.011)


@pytest.mark.parametrize(("n", "interval", "rate"), [THINNED, LONG])
def test_losses_are_compared_by_round_each_as_it_was_recorded(
    tmp_path: Path, n: int, interval: int, rate: float
) -> None:
    x = np.random.default_rng(3).normal(size=(160, 6))
    y = x[:, 0] + x[:, 5]
    train, valid = (
        xgboost.DMatrix(x[part, :5], y[part]) for part in (slice(80), slice(80, None))
    )
    settings = {"train.save_interval": interval, "train.statistics_interval": interval}
    settings |= {"eval.save_interval": 1, "eval.statistics_interval": 1}
    thinned = [CollectionConfig(name, settings) for name in ("losses", "metrics")]
    found: dict[str, dict[str, list[float]]] = {}
    with tx.Hook(tmp_path / "run", collections=thinned, budget="off") as hook:
        xgboost.train(
            {"nthread": 1, "eta": rate},
            train,
            n,
            evals=[(train, "train"), (valid, "valid")],
            verbose_eval=False,
            callbacks=[hook],
            evals_result=found,
        )
    held_back, trained = found["valid"]["rmse"], found["train"]["rmse"]
    best = int(np.argmin(held_back))
    # Nothing of it is at the index of the other loss, or of a column of the chart.
    assert best > n / interval if interval > 1 else best % 3
    newest = (n - 1) // interval * interval
    when = "" if newest == n - 1 else f" at round {newest}"
    (advice,) = rendered(tmp_path / "run").section("loss").all("p", "advice")
    assert advice.text.startswith(
        f"Overfitting: valid-rmse was best at round {best:,} "
        f"({number(held_back[best])}) and has risen since, while train-rmse kept "
        f"falling; at the end valid-rmse is {number(held_back[-1])}, train-rmse "
        f"{number(trained[newest])}{when}. Stop there"
    )


def test_trees_without_labels_name_the_setting(tmp_path: Path) -> None:
    train = cancer().train()
    with tx.Hook(tmp_path / "run", include_collections=["trees"]) as hook:
        xgboost.train(
            {"nthread": 1},
            train,
            3,
            evals=[(train, "train")],
            verbose_eval=False,
            callbacks=[hook],
        )
    text = rendered(tmp_path / "run").section("predictions").text
    assert 'Hook(include_collections=["labels", "predictions"])' in text


def test_rankings_are_no_classes(tmp_path: Path) -> None:
    data = cancer()
    train = data.train()
    train.set_group([100] * 4)
    with tx.Hook(tmp_path / "run", include_collections=COLLECTIONS) as hook:
        xgboost.train(
            {"objective": "rank:ndcg", "nthread": 1},
            train,
            3,
            evals=[(train, "train")],
            verbose_eval=False,
            callbacks=[hook],
        )
    found = rendered(tmp_path / "run")
    assert CONFUSION not in found.titles
    assert "rank:ndcg" in found.section("predictions").text


def test_any_training_with_labels_and_predictions_has_their_sections(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    with RunBuilder(tmp_path / "run") as run:
        for step in range(3):
            labels = random.integers(0, 4, 50)
            logits = random.normal(size=(50, 4)).astype(np.float32)
            logits[np.arange(50), labels] += 2.0 * step
            run.save(step, "loss_input_1", labels, role=Role.LABEL)
            run.save(step, "loss_input_0", logits, role=Role.PREDICTION)
            run.save(step, "fc.weight", logits)
            run.end_step(step)
    found = rendered(tmp_path / "run")
    assert "Confusion matrix" in found.titles
    assert "Layer map" in found.titles
    assert "accuracy 0.9" in found.section("evaluation").text


# --- Arithmetic -------------------------------------------------------------------

Y = np.array([0, 1, 1, 0, 2])


@pytest.mark.parametrize(
    ("labels", "predictions", "kind"),
    [
        (Y, np.zeros((5, 3)), PredictionKind.MULTICLASS),
        (Y, np.zeros((5, 2)), None),
        (Y > 0, np.zeros((5, 2)), PredictionKind.BINARY),
        (np.array([0, 1, 1]), np.array([0.2, 0.4, 0.9]), PredictionKind.BINARY),
        (
            np.array([0.0, 1.0, 1.0]),
            np.array([[-2.0], [0.4], [9.0]]),
            PredictionKind.BINARY,
        ),
        (Y, np.array([0, 1, 2, 0, 2]), PredictionKind.MULTICLASS),
        (Y, np.array([0.1, 1, 2, 0, 2]), PredictionKind.REGRESSION),
        (np.array([0.5, -1.0]), np.array([1.0, 2.0]), PredictionKind.REGRESSION),
        (np.array([0.5, np.nan]), np.array([1.0, 2.0]), None),
        (np.zeros((5, 2)), np.zeros((5, 2)), None),
        (Y, np.zeros((4, 3)), None),
        (Y, np.zeros((5, 3, 7)), None),
        (np.array(["a", "b"]), np.zeros(2), None),
        (np.empty(0), np.empty(0), None),
    ],
)
def test_the_kind_of_a_prediction_follows_from_both(
    labels: np.ndarray, predictions: np.ndarray, kind: PredictionKind | None
) -> None:
    assert kind_of(labels, predictions) is kind


def test_margins_are_compared_with_zero_and_probabilities_with_a_half() -> None:
    margins, shares = np.array([-0.4, 0.4, 2.0]), np.array([0.2, 0.4, 0.9])
    assert classes_of(PredictionKind.BINARY, margins).tolist() == [0, 1, 1]
    assert classes_of(PredictionKind.BINARY, shares).tolist() == [0, 0, 1]


def test_a_class_nobody_predicts_or_has_divides_by_nothing() -> None:
    found = measures_of(confusion_of(np.array([0, 0, 1]), np.array([0, 1, 1]), 3))
    assert found.precision.tolist() == [1.0, 0.5, 0.0]
    assert found.recall.tolist() == [0.5, 1.0, 0.0]
    assert found.f1.tolist() == pytest.approx([2 / 3, 2 / 3, 0.0])


def test_equal_scores_are_one_point_of_the_curve() -> None:
    curve = roc_of(np.array([1, 0, 1, 0]), np.ones(4))
    assert curve is not None
    assert [each.tolist() for each in curve] == [[0.0, 1.0], [0.0, 1.0]]
    assert area_below(*curve) == 0.5


def test_scores_that_are_nan_are_left_out_of_the_curve() -> None:
    curve = roc_of(np.array([1, 0, 1]), np.array([0.9, 0.1, np.nan]))
    assert curve is not None
    assert area_below(*curve) == 1.0


def test_one_class_alone_has_no_curve() -> None:
    assert roc_of(np.array([1, 1]), np.array([0.1, 0.9])) is None


def test_labels_that_are_all_alike_have_one_bin() -> None:
    assert label_bins([np.full(9, 3.0)], 6).tolist() == [2.5, 3.5]
