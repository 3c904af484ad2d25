"""What a report says of time: sections, findings, and what was not measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tdbg
from profiles import HEALTHY, LOADER_BOUND, Plan, profiled_run, tables_of
from report_runs import Page
from run_builder import RunBuilder, simple_run
from tdbg import report
from tdbg.cost import Pricing
from tdbg.rules import check
from tdbg.view.time import NO_PROFILE, span_text, time_of

SECTIONS = [
    "Findings",
    "Where the time went",
    "Data loading",
    "Cores and GPUs",
    "Memory and energy",
    "Ranks beside each other",
    "Cost of profiling, and what is missing",
    "The run",
    "Rules that ran",
    "How to reproduce",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "run"
    slow = {100: 900.0}
    plans = [
        Plan(
            LOADER_BOUND, 800, 0, slow=slow, fetch_ms=160.0, lateness_ms=0.0, n_gpus=1
        ),
        Plan(LOADER_BOUND, 800, 1, lateness_ms=20.0, n_cores=0),
    ]
    profiled_run(path, plans)
    return path


@pytest.fixture(scope="module")
def text(run: Path) -> str:
    return report.render(tdbg.create_trial(run), profile=True)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_a_profile_has_the_sections_about_time_alone(page: Page) -> None:
    assert page.titles == SECTIONS


def test_the_whole_report_has_them_too(run: Path) -> None:
    titles = Page(report.render(tdbg.create_trial(run))).titles
    assert set(SECTIONS) <= set(titles)
    assert "Losses and rates" in titles


def test_a_profile_is_small_and_has_no_script(text: str, page: Page) -> None:
    assert len(text) < 500_000
    assert page.root.all("script") == []
    assert re.findall(r'(?:src|href)="(?!#|data:image/png)', text) == []


def test_an_hour_of_100000_steps_is_as_small(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan(n_steps=100_000, n_cores=8, n_gpus=2)])
    trial = tdbg.create_trial(tmp_path / "run")
    judged = check(tmp_path / "run", ["DataLoaderBound"], record=False)
    text = report.render(trial, judged=judged, profile=True)
    assert len(text) < 500_000
    assert "100,000 steps" in text


def test_the_first_sentence_says_where_the_time_went(page: Page) -> None:
    said = [each.text for each in page.root.all("p", "sentence")]
    assert any(re.match("6[67] % data wait, ", each) for each in said)


def test_a_slow_step_is_named_with_its_phase(text: str) -> None:
    assert "900 ms more in other code" in text


def test_cores_and_gpus_are_one_picture_in_which_what_was_not_recorded_is_hatched(
    page: Page,
) -> None:
    images = [each.attributes["href"] for each in page.root.all("image")]
    assert all(each.startswith("data:image/png;base64,") for each in images)
    assert "not recorded" in page.root.text


def test_the_rank_that_the_others_wait_for_comes_first(text: str) -> None:
    assert re.search(r"<th[^>]*>worker_1</th><td[^>]*>20 ms</td>", text)


def test_energy_that_nothing_counts_is_said_and_not_guessed(tmp_path: Path) -> None:
    profiled_run(tmp_path / "run", [Plan()])
    text = report.render(tdbg.create_trial(tmp_path / "run"), profile=True)
    assert "Energy: unknown, because neither the GPUs" in text


def test_a_run_without_a_profile_says_so_in_one_line(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    page = Page(report.render(tdbg.create_trial(tmp_path / "run"), profile=True))
    assert "Where the time went" in page.titles
    assert "Data loading" not in page.titles
    assert NO_PROFILE in page.root.text


def test_the_same_run_gives_the_same_bytes(run: Path, text: str) -> None:
    assert report.render(tdbg.create_trial(run), profile=True) == text


def test_two_runs_are_compared_by_whole_steps(tmp_path: Path) -> None:
    """Not by their records alone, which leave out what comes before: the data."""
    for name, phases in (("slow", LOADER_BOUND), ("fast", HEALTHY)):
        profiled_run(tmp_path / name, [Plan(phases)])
    trials = [tdbg.create_trial(tmp_path / name) for name in ("slow", "fast")]
    text = report.comparison(*trials)
    assert "A step of fast is 66 % shorter than one of slow." in text
    assert "slow: 90 ms, fast: 30.6 ms" in text


@pytest.mark.parametrize(("steps", "says"), [(200, True), (600, False)])
def test_rules_about_time_do_not_call_a_short_run_sound(
    tmp_path: Path, steps: int, says: bool
) -> None:
    """A loader-bound run of 18 s has no finding, since that takes three bad bins."""
    profiled_run(tmp_path / "run", [Plan(LOADER_BOUND, steps)])
    judged = check(tmp_path / "run", ["DataLoaderBound"], record=False)
    (status,) = judged.statuses
    assert ("too short to judge" in status.message) is says
    assert bool(judged.findings) is not says


def test_the_time_in_steps_is_the_same_in_all_sections(run: Path) -> None:
    trial = tdbg.create_trial(run)
    text = report.render(trial)
    whole = time_of(trial).whole
    assert whole is not None
    tiles = dict(re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", text))
    assert tiles["Time in steps"] == span_text(whole.total_ns / 2)


# --- Cost, and what is missing --------------------------------------------------


def test_a_report_with_a_price_says_what_each_part_of_the_time_cost(run: Path) -> None:
    trial = tdbg.create_trial(run)
    text = report.render(trial, profile=True, pricing=Pricing(3.6))
    page = Page(text)
    assert "Cost" in page.titles
    assert "part of the time" in text
    assert "at 3.60 an hour" in text


def test_a_report_without_a_price_says_nothing_of_cost(page: Page) -> None:
    assert "Cost" not in page.titles


def test_a_price_of_a_run_without_steps_is_answered(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    trial = tdbg.create_trial(tmp_path / "run")
    text = report.render(trial, profile=True, pricing=Pricing(1.0))
    assert "no step of training" in text


def test_what_was_not_recorded_is_listed(tmp_path: Path) -> None:
    tables = tables_of(Plan())
    tables["loader"]["fetch_ns"] = -1
    with RunBuilder(tmp_path / "run") as built:
        built.end_step(0)
        built.samples("step", tables["step"])
        built.samples("loader", tables["loader"])
    page = Page(report.render(tdbg.create_trial(tmp_path / "run"), profile=True))
    listed = [each.text for each in page.root.all("li")]
    assert "Loader 0: how long fetches take was not measured." in listed


def test_the_banner_says_where_the_time_went_even_if_no_rule_does(text: str) -> None:
    banner = text.partition("<nav")[0]
    assert re.search("6[67] % data wait, ", banner)
    assert "healthy" not in banner
