"""The script of clicks: what is planted, what is counted, and a wrong answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from benchmarks._harness import WrongAnswer
from benchmarks.environments.create import FOLDER
from benchmarks.ui import clicks
from benchmarks.ui.answers import DASHBOARDS, QUESTIONS, load
from benchmarks.ui.answers._hand import Hand, names_of
from benchmarks.ui.answers._runs import LAYERS, RUNS, truth
from browser import browser

__all__ = ["browser"]


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def test_each_planted_answer_is_far_from_any_other() -> None:
    rows = {run.name: [*run.rows()] for run in RUNS}
    losses = sorted(row[-1]["loss"] for row in rows.values())
    norms = sorted(row[-1]["grad_norm"] for row in rows.values())
    assert losses[0] < 0.8 * losses[1]
    assert norms[-1] > 100 * norms[-2]
    assert [*truth()] == [*QUESTIONS]
    assert 1 < len(truth()["filter"].split()) < len(RUNS)
    # Neither the best run nor one that a rate singles out is the sick one.
    assert truth()["sick"] not in f"{truth()['best']} {truth()['filter']}"


def test_the_sick_run_is_like_the_others_until_one_layer_explodes() -> None:
    (sick,) = (run for run in RUNS if run.name == truth()["sick"])
    norms = np.array([[row[name] for name in LAYERS] for row in sick.rows()])
    assert (norms[-1] > 100 * norms[200]).sum() == 1


def test_a_dashboard_answers_each_question_or_says_why_not() -> None:
    for name in DASHBOARDS:
        found = load(name)
        assert set(found.ANSWERS) | set(found.WITHOUT) == set(QUESTIONS)
        assert not set(found.ANSWERS) & set(found.WITHOUT)
        if found.ENVIRONMENT:
            pins = (FOLDER / f"{found.ENVIRONMENT}.txt").read_text()
            assert all(f"\n{package}==" in pins for package in found.PACKAGES)


def test_a_hand_counts_clicks_keys_and_points(page: Page) -> None:
    page.set_content("<button>go</button><input><p>elsewhere</p>")
    hand = Hand(page)
    hand.click(page.locator("button"))
    hand.click(page.locator("input"))
    hand.type("lr<1")
    hand.press("Enter")
    hand.point((5, 5))
    assert page.locator("input").input_value() == "lr<1"
    assert (hand.clicks, hand.keys, hand.points) == (2, 5, 1)


@pytest.mark.parametrize(("top", "y"), [(True, 10), (False, 90)])
def test_a_hand_points_at_the_line_that_lies_apart(
    page: Page, top: bool, y: int
) -> None:
    page.set_content("<canvas width=200 height=100 style='margin:40px'></canvas>")
    page.evaluate(
        """() => {
          const g = document.querySelector('canvas').getContext('2d');
          g.fillStyle = '#ddd'; g.fillRect(0, 0, 200, 2); g.fillRect(0, 97, 200, 2);
          g.fillStyle = '#e22'; g.fillRect(50, 10, 3, 40); g.fillRect(0, 50, 190, 1);
          g.fillStyle = '#22e'; g.fillRect(0, 90, 190, 1);
          window.at = [];
          addEventListener('mousemove', (e) => { window.at = [e.x, e.y]; });
        }"""
    )
    hand = Hand(page)
    hand.point_at_line(page.locator("canvas"), top=top)
    box = page.locator("canvas").bounding_box()
    assert box
    x = 50 if top else 189
    got = page.evaluate("window.at")
    assert got == pytest.approx([box["x"] + x, box["y"] + y], abs=2)


def test_names_are_read_as_they_stand_below_each_other(page: Page) -> None:
    page.set_content(
        "<div style='display:flex;flex-direction:column-reverse'>"
        "<a>c</a><a>b</a><a style='display:none'>x</a><a>a</a></div>"
    )
    assert names_of(page.locator("a")) == "a b c"


def test_another_answer_on_the_screen_ends_the_benchmark(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "LONGEST_SECONDS", 0.1)
    with pytest.raises(WrongAnswer, match="best: 'run-1' on the screen"):
        clicks.until(Hand(page), lambda: "run-1", "run-2", "best")


def test_tdbg_answers_all_of_them(browser: Browser, tmp_path: Path) -> None:
    answers = clicks.answered(browser, "tdbg", tmp_path, rounds=1)
    assert set(answers) == set(QUESTIONS)
    assert all(isinstance(each, dict) for each in answers.values())
    table = clicks.table_of("best", {"tdbg": answers, "other": {"best": "it is deaf"}})
    assert [row[0] for row in table.rows] == ["tdbg", "other"]
    assert table.rows[1][1] == "no answer: it is deaf"
