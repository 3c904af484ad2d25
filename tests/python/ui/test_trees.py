"""Boosted trees have a screen of their own: what their report shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xgboost
from playwright.sync_api import Browser, expect

from browser import new_page
from dashboard import dashboard, page_address
from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.drawing.markup import elements_of, tag
from tdbg.modes import ModeKeys
from tdbg.report.subject import Subject
from tdbg.report.trees.sections import of_trees
from tdbg.trial import create_trial
from tdbg.ui.documents import tree_sections
from tdbg.view import diagnosis_of_run

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of twelve rounds."""
    import tdbg.xgboost as tx

    path = tmp_path_factory.mktemp("runs") / "trees"
    rng = np.random.default_rng(0)
    values = rng.normal(size=(300, 3))
    labels = (values[:, 0] + values[:, 1] > 0).astype(int)
    train = xgboost.DMatrix(values[:200], labels[:200], feature_names=["a", "b", "c"])
    valid = xgboost.DMatrix(values[200:], labels[200:], feature_names=["a", "b", "c"])
    collections = ["trees", "labels", "predictions", "feature_importance"]
    with tx.Hook(path, include_collections=collections) as hook:
        xgboost.train(
            {"objective": "binary:logistic", "max_depth": 2, "nthread": 1},
            train,
            12,
            evals=[(train, "train"), (valid, "valid")],
            verbose_eval=False,
            callbacks=[hook],
        )
    return path


def test_the_sections_are_those_of_the_report(run: Path) -> None:
    trial = create_trial(run)
    found = tree_sections(trial)["sections"]
    with trial.no_refresh():
        expected = of_trees(Subject(trial, diagnosis_of_run(trial)))
    assert [each["title"] for each in found] == [each.title for each in expected]
    assert len(found) > 8
    assert all(each["content"] for each in found)


def test_other_runs_have_no_sections(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.save(0, "w", np.ones(2, np.float32), role=Role.WEIGHT)
        builder.end_step(0, ModeKeys.TRAIN)
    assert tree_sections(create_trial(tmp_path / "run")) == {"sections": []}


def test_markup_becomes_elements_and_texts() -> None:
    markup = tag("p", "a < b ", tag("b", HOSTILE), tag("br"), "c", title='"&')
    assert elements_of(markup) == [
        ["p", {"title": '"&'}, ["a < b ", ["b", {}, [HOSTILE]], ["br", {}, []], "c"]]
    ]


def test_the_screen_of_trees_shows_them_and_asks_for_no_gradients(
    browser: Browser, run: Path
) -> None:
    with (
        dashboard(run) as served,
        new_page(browser, page_address(served, "trees")) as watched,
    ):
        page = watched.page
        titles = page.locator(".drawn h2")
        expect(titles.first).to_have_text(
            "1 · Distribution of true labels of the dataset"
        )
        text = page.locator(".drawn-all").inner_text()
        for word in ("Feature importance", "Confusion matrix", "macro average"):
            assert word in text
        assert page.locator(".drawn svg").count() > 6
        expect(page.get_by_text("No gradients were captured")).to_have_count(0)
        expect(page.get_by_text("Every layer")).to_have_count(0)
