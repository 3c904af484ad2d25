"""DeadRelu, judged from unit summaries."""

from __future__ import annotations

import pytest

from rules_fake import FakeRun, judge
from tdbg.errors import ConfigurationError
from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules import DeadRelu


def run_with(
    n_dead: int,
    *,
    n_steps: int = 6,
    count: int = 64,
    n_units: int = 10,
    **flags: object,
) -> FakeRun:
    """Steps with a layer of so many dead units; the others are active by half."""
    run = FakeRun(every=10)
    for step in range(n_steps):
        active = [0] * n_dead + [count // 2] * (n_units - n_dead)
        run.units(step, "1_output_0", active, count)
        run.step(step, **flags)
    return run


@pytest.mark.parametrize(
    ("n_dead", "n_units", "severity"),
    [
        (0, 10, None),
        (5, 10, None),
        # So many are dead by chance alone: in 5 to 39 of 100 networks.
        (8, 10, None),
        (14, 20, None),
        (7, 12, None),
        (38, 64, None),
        (4, 4, Severity.ERROR),
        (15, 20, Severity.WARNING),
        (40, 64, Severity.WARNING),
        (9, 10, Severity.ERROR),
        (10, 10, Severity.ERROR),
    ],
)
def test_the_share_of_dead_units_decides(
    n_dead: int, n_units: int, severity: Severity | None
):
    findings = judge(run_with(n_dead, n_units=n_units), DeadRelu())
    assert [finding.severity for finding in findings] == (
        [severity] if severity else []
    )


def test_the_finding_says_how_many_of_how_many_over_how_long():
    (finding,) = judge(run_with(9), DeadRelu())
    assert finding.tensor == "1_output_0"
    assert finding.step == 2
    assert "9 of 10 units (90 %)" in finding.message
    assert "last 3 recorded steps" in finding.message
    assert (finding.value, finding.threshold) == (90.0, 50.0)


def test_small_batches_are_taken_together_until_they_say_enough():
    assert judge(run_with(10, count=8, n_steps=12), DeadRelu()) == []
    (finding,) = judge(run_with(10, count=8, n_steps=13), DeadRelu())
    assert finding.step == 12
    assert judge(run_with(10, count=4, n_steps=50), DeadRelu()) == []


def test_a_unit_that_is_active_now_and_then_lives():
    run = FakeRun(every=10)
    for step in range(6):
        run.units(step, "1_output_0", [4 if step % 2 else 0] * 10, 64)
        run.step(step)
    assert judge(run, DeadRelu()) == []


def test_it_becomes_an_error_when_the_rest_die():
    run = FakeRun(every=10)
    for step in range(12):
        n_dead = 15 if step < 6 else 20
        run.units(step, "1_output_0", [0] * n_dead + [9] * (20 - n_dead), 64)
        run.step(step)
    begin, worse = judge(run, DeadRelu())
    assert (begin.phase, begin.severity) == ("begin", Severity.WARNING)
    assert (worse.phase, worse.severity) == ("worse", Severity.ERROR)
    assert worse.first_step == begin.step


@pytest.mark.parametrize("flags", [{"complete": False}, {"lossless": False}])
def test_steps_that_are_not_whole_are_not_judged(flags: dict[str, bool]):
    assert judge(run_with(10, **flags), DeadRelu()) == []


def test_evaluation_is_not_judged():
    assert judge(run_with(10, mode=ModeKeys.EVAL), DeadRelu()) == []


def test_names_choose():
    assert judge(run_with(10), DeadRelu(tensor_regex="^2")) == []
    assert len(judge(run_with(10), DeadRelu(tensor_regex="^1"))) == 1


def test_it_asks_for_unit_summaries_and_no_statistics():
    always, beginning = DeadRelu().needs
    assert always.unit_summaries
    assert not always.statistics
    assert (always.interval, beginning.interval) == (None, 1)


@pytest.mark.parametrize(
    "parameters",
    [
        {"threshold_inactivity": 0.0},
        {"threshold_layer": 101.0},
        {"error_layer": 10.0},
        {"min_steps": 0},
        {"max_steps": 1},
        {"tensor_regex": "["},
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, object]):
    with pytest.raises(ConfigurationError, match=f"DeadRelu.{next(iter(parameters))}"):
        DeadRelu(**parameters)
