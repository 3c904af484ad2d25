"""Two runs in one report: both verdicts, and what differs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tdbg
from faces import save_thinned_losses
from report_runs import SPIKE, Page, planted_run
from run_builder import RunBuilder, simple_run
from tdbg import report
from tdbg.view import view_of


def compared(first: Path, second: Path) -> Page:
    trials = tdbg.create_trial(first), tdbg.create_trial(second)
    return Page(report.comparison(*trials))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("compare")
    planted_run(folder / "long")
    planted_run(folder / "short", SPIKE - 20)
    return folder / "long", folder / "short"


def test_each_run_has_its_verdict_and_a_column(runs: tuple[Path, Path]) -> None:
    page = compared(*runs)
    assert page.root.all("h1")[0].text == "long and short"
    banners = page.root.all("div", "verdict")
    assert [each.all("b")[0].text for each in banners] == ["long", "short"]
    (table,) = page.section("run").all("table")
    assert [each.text for each in table.all("th")[:3]] == ["fact", "long", "short"]


def test_what_only_one_has_is_in_its_column_alone(runs: tuple[Path, Path]) -> None:
    (table,) = compared(*runs).section("findings").all("table")
    rows = {row.all("th")[0].text: row for row in table.all("tbody")[0].all("tr")}
    long, short = (cell.text for cell in rows["LossSpike"].all("td"))
    assert f"since step {SPIKE}" in long
    assert short == "-"


def test_losses_and_layers_are_drawn_together(runs: tuple[Path, Path]) -> None:
    page = compared(*runs)
    (chart,) = page.section("losses").all("svg")
    assert "long: from" in chart.attributes["aria-label"]
    assert "short: from" in chart.attributes["aria-label"]
    gradients, weights = page.section("layers").all("svg")
    assert len(gradients.all("circle")) == len(weights.all("circle")) == 24


def test_the_last_loss_is_that_step_and_no_mean_of_a_column(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with RunBuilder(tmp_path / name) as run:
            save_thinned_losses(run)
    page = compared(tmp_path / "one", tmp_path / "two")
    (table,) = page.section("losses").all("table")
    rows = {row.all("th")[0].text: row for row in table.all("tbody")[0].all("tr")}
    loss = view_of(tdbg.create_trial(tmp_path / "one")).loss
    assert loss is not None
    assert loss.text == f"{3 / 1202:.4g}"
    told = [cell.text for cell in rows[f"{loss.name} (TRAIN)"].all("td")]
    assert told[1::2] == [loss.text, loss.text]
    # A worker has the same, where an evaluation comes last.
    alone = Page(report.render(tdbg.create_trial(tmp_path / "one")))
    assert alone.section("workers").all("table")[0].all("td")[-2].text == loss.text


def test_settings_that_are_the_same_are_not_listed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        simple_run(tmp_path / name)
    text = compared(tmp_path / "one", tmp_path / "two").section("settings").text
    assert "All recorded settings are the same." in text


def test_rates_that_differ_are_told(tmp_path: Path) -> None:
    for name, rate in (("slow", 0.01), ("fast", 0.1)):
        with RunBuilder(tmp_path / name) as run:
            for step in range(3):
                run.scalar(step, "scalar/optimizer/group_0/lr", rate)
                run.end_step(step)
    page = compared(tmp_path / "slow", tmp_path / "fast")
    (table,) = page.section("settings").all("table")
    assert "optimizer/group_0/lr0.010.1" in table.text


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        simple_run(tmp_path / folder / "run")
    page = compared(tmp_path / "a" / "run", tmp_path / "b" / "run")
    assert page.root.all("h1")[0].text == "run (1) and run (2)"


def test_an_empty_run_beside_another_has_a_report(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "empty").close()
    simple_run(tmp_path / "full")
    for names in (("empty", "full"), ("full", "empty"), ("empty", "empty")):
        page = compared(*(tmp_path / name for name in names))
        assert "nothing yetNothing was recorded." in page.text.replace(" ", " ")


def test_the_same_two_runs_give_the_same_bytes(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    files = [tmp_path / "a.html", tmp_path / "b.html"]
    for each in files:
        trials = [tdbg.create_trial(run) for run in runs]
        written = report.write_comparison(trials[0], trials[1], each)
        assert len(written.verdicts) == 2
    assert files[0].read_bytes() == files[1].read_bytes()


def test_layers_of_one_run_alone_have_one_dot(tmp_path: Path) -> None:
    for name in ("left", "right"):
        with RunBuilder(tmp_path / name) as run:
            for step in range(2):
                array = np.ones(3, np.float32)
                run.step(step, {f"{name}.weight": array, "both.weight": array})
    (weights,) = (
        compared(tmp_path / "left", tmp_path / "right").section("layers").all("svg")
    )
    assert len(weights.all("circle")) == 4


def test_where_two_runs_part_is_told_and_what_differs_first(tmp_path: Path) -> None:
    for name, factor in (("one", 1.0), ("other", 1.05)):
        with RunBuilder(tmp_path / name) as run:
            for step in range(40):
                value = 2.0 * (factor if step >= 17 else 1.0)
                run.step(step, {"early": np.full(2, value, np.float32)})
    page = compared(tmp_path / "one", tmp_path / "other")
    (table,) = page.section("divergence").all("table")
    rows = {
        row.all("th")[0].text: [cell.text for cell in row.all("td")]
        for row in table.all("tbody")[0].all("tr")
    }
    assert rows["at all"] == rows["by more than 1%"] == ["step 17", "early"]
    assert rows["by more than 10%"] == ["never", "-"]
    same = compared(tmp_path / "one", tmp_path / "one").section("divergence").text
    assert "They are the same throughout." in same
