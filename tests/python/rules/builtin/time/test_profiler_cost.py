"""ProfilerCost: what tdbg itself takes, against what it has promised."""

from __future__ import annotations

from typing import Any

import pytest

from profile_fake import ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.rules import ProfilerCost, check
from tdbg.run.findings import Finding, Severity

AUTO = {"hook": {"budget": 0.05}, "profiler": {"budget": 0.01}}
NO_BUDGET: dict[str, Any] = {"hook": {"budget": None}, "profiler": {"budget": 0.01}}


def training(
    capture: float = 0.0,
    every: int = 0,
    at_once: float = 0.0,
    *,
    settings: Any = AUTO,
    seconds: float = 150,
) -> ProfiledTraining:
    """Steps of 0.1 s, with *capture* s more in each, and *at_once* in some."""
    made = ProfiledTraining(FakeRun())
    made.run.settings = settings
    some = {n: {"capture": at_once} for n in range(0, 3000, every)} if every else {}
    made.steps(seconds, {"backward": 0.1, "capture": capture}, extra=some)
    return made


def found(made: ProfiledTraining, **given: Any) -> list[Finding]:
    rule = ProfilerCost(**given)
    return [each for each in judge(made.run, rule) if each.phase == "begin"]


def test_steps_that_capture_more_than_the_budget_allows_are_found() -> None:
    (finding,) = found(training(0.002, 10, 0.4))
    assert finding.severity is Severity.WARNING
    assert "tdbg itself takes 30% of the time of a step" in finding.message
    assert "29% in the steps that capture most" in finding.message
    assert "its budgets allow 7%" in finding.message
    assert finding.advice.startswith("Raise statistics_interval and save_interval")


def test_a_cost_of_every_step_has_advice_of_its_own() -> None:
    (finding,) = found(training(0.02))
    assert "17% in every step" in finding.message
    assert "profiler=False" in finding.advice


def test_what_the_budgets_allow_is_fine() -> None:
    assert found(training(0.001, 10, 0.05)) == []


def test_windows_are_a_part() -> None:
    made = ProfiledTraining(FakeRun())
    made.run.settings = AUTO
    for _ in range(15):
        made.steps(10, {"backward": 0.1, "capture": 0.001})
        made.window({"aten::addmm": (5, 0.1)}, cost=2.5)
    (finding,) = found(made)
    assert "in windows of the profiler" in finding.message
    assert "shorter windows" in finding.advice


def test_a_hook_without_a_budget_promises_nothing() -> None:
    (finding,) = found(training(0.02, settings=NO_BUDGET))
    assert finding.severity is Severity.INFO
    assert "budgets allow" not in finding.message
    assert found(training(0.02, settings=NO_BUDGET), threshold=20.0) == []


def test_the_first_minute_does_not_count() -> None:
    report = check(training(0.05, seconds=58).run, [ProfilerCost()], record=False)
    assert report.findings == ()
    assert report.statuses[0].message == (
        "nothing to judge: the rule needs 10 s of training after the first minute"
    )


@pytest.mark.parametrize("budget", ["much", True, [1]])
def test_a_budget_that_is_none_promises_nothing(budget: Any) -> None:
    made = training(0.02, settings={"hook": {"budget": budget}, "profiler": "off"})
    (finding,) = found(made)
    assert finding.severity is Severity.INFO
