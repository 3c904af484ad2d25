"""ExplodingGradient: growth, and where squares overflow."""

from __future__ import annotations

import numpy as np
import pytest

from rules_by_the_book import spied
from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import ExplodingGradient
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo

ERROR = int(Severity.ERROR)


def norms(*layers: list[float]) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(len(layers[0])):
        rows = {
            f"gradient/{i}": [values[step]]
            for i, values in enumerate(layers)
            if values[step] >= 0 or np.isnan(values[step])
        }
        run.step(step, rows)
    return run


def severities(run: FakeRun, i: int = 0) -> list[int | None]:
    found = spied(run, ExplodingGradient())
    steps = sorted(run.steps)
    return [found.get((ModeKeys.TRAIN, f"gradient/{i}", step)) for step in steps]


@pytest.mark.parametrize(
    ("norm", "expected"), [(0.99e18, 0), (1e18, 0), (1.01e18, ERROR), (1e30, ERROR)]
)
def test_the_limit_is_where_squares_leave_float32(norm: float, expected: int):
    assert severities(norms([norm])) == [expected]
    assert severities(norms([5e17, norm])) == [0, expected]


@pytest.mark.parametrize("before", [[], [5e17], [5e17] * 9, [1e16] + [5e17] * 9])
def test_what_overflows_without_having_grown_is_said_to_overflow(before: list[float]):
    """Sabotaged: told as growth, by a factor that is far below the threshold."""
    (finding,) = judge(norms([*before, 2e18]), ExplodingGradient())
    assert (finding.step, finding.severity) == (len(before), Severity.ERROR)
    assert "2e18, and the square of that overflows float32" in finding.message
    assert (finding.value, finding.threshold) == (2e18, 1e18)
    assert "Lower the learning rate or the scale" in finding.advice


def test_what_overflows_because_it_has_grown_is_told_as_growth():
    (finding,) = judge(norms([1e10] * 9 + [2e18]), ExplodingGradient())
    assert finding.severity is Severity.ERROR
    assert finding.value == pytest.approx(2e8)
    assert finding.value > finding.threshold == 100.0
    assert "times its median over the last 20 recorded steps (1e10)" in finding.message


@pytest.mark.parametrize(
    "flags", [{"complete": False}, {"lossless": False}, {"skipped": True}]
)
def test_of_a_step_that_is_not_whole_or_was_skipped_nothing_is_said(
    flags: dict[str, bool],
):
    run = norms([1.0, 2e18, 2e18])
    run.step(1, **flags)
    assert severities(run) == [0, None, ERROR]


def test_one_gradient_is_told_and_others_that_overflow_are_neither_well_nor_ill():
    run = norms([1.0, 2e18], [1.0, 3e18], [1.0, 1.0])
    assert [severities(run, i) for i in range(3)] == [[0, ERROR], [0, None], [0, 0]]


def test_what_overflows_comes_before_what_has_grown_more():
    run = norms([1e14] * 9 + [2e18], [1e12] * 9 + [9e17])
    (finding,) = judge(run, ExplodingGradient())
    assert (finding.tensor, finding.severity) == ("gradient/0", Severity.ERROR)
    # Without the overflow it is the one that has grown most.
    run = norms([1e14] * 9 + [8e17], [1e12] * 9 + [9e17])
    (finding,) = judge(run, ExplodingGradient())
    assert finding.tensor == "gradient/1"


@pytest.mark.parametrize(
    ("of_the_other", "expected"), [(1.9e18, ERROR), (2.1e18, None)]
)
def test_what_has_exploded_must_carry_the_norm(
    of_the_other: float, expected: int | None
):
    """Half of the squared norm at least is of what has grown or overflows; here both
    are about 1e18, and only the first has grown enough.
    """
    run = norms([1e10] * 9 + [2e17], [of_the_other / 200] * 9 + [of_the_other / 10])
    assert severities(run)[-1] == expected


@pytest.mark.parametrize(("norm", "expected"), [(1.5, ERROR), (1.35, None)])
def test_norms_are_added_as_squares(norm: float, expected: int | None):
    """Beside two of 1 the half is at the root of 2."""
    others = [0.05] * 9 + [1.0]
    run = norms([1e-6] * 9 + [norm], others, others)
    assert severities(run)[-1] == expected


@pytest.mark.parametrize(("of_the_other", "expected"), [(10.0, 0), (0.01, ERROR)])
def test_a_head_may_wake_up_while_another_one_falls_asleep(
    of_the_other: float, expected: int
):
    """The step is no longer than before, unless the other gradients were small, too."""
    run = norms([1e-4] * 9 + [13.0], [of_the_other] * 8 + [0.0, 0.0])
    assert (severities(run)[-1] or 0) == expected


@pytest.mark.parametrize(
    ("norm", "severity"),
    [(2e4, Severity.WARNING), (2e6, Severity.ERROR)],
)
def test_an_error_is_one_beside_the_first_rows_too(norm: float, severity: Severity):
    """They were a hundred times larger than the last."""
    run = norms([100.0] * 20 + [1.0] * 30 + [norm])
    (finding,) = judge(run, ExplodingGradient())
    assert (finding.step, finding.severity) == (50, severity)


# ---- growth ----------------------------------------------------------------------


def test_growth_by_orders_of_magnitude_is_reported_before_it_is_nan():
    (finding,) = judge(norms([1.0] * 9 + [150.0, 1e3]), ExplodingGradient())
    assert (finding.step, finding.severity) == (9, Severity.WARNING)
    assert "150 times" not in finding.advice
    assert "max_norm=2" in finding.advice
    begin, worse = judge(norms([1.0] * 9 + [150.0, 2e4]), ExplodingGradient())
    assert (begin.phase, worse.phase) == ("begin", "worse")
    assert worse.severity is Severity.ERROR


@pytest.mark.parametrize("values", [[1.0, 1.1e4], [1.0, 0.1, 1.1e4]])
def test_gross_growth_needs_no_median(values: list[float]) -> None:
    (finding,) = judge(norms(values), ExplodingGradient())
    assert finding.severity is Severity.WARNING
    assert finding.step == len(values) - 1
    assert "its maximum over the few recorded steps before (1)" in finding.message


@pytest.mark.parametrize(
    "values",
    [
        [1.0] * 9 + [99.0],
        [1.0, 1.0, 9e3],
        [0.0, 1e5],
        [*(0.7 ** np.arange(30)), 1.0, 8.0],
        [0.0] * 9 + [1.0],
        list(np.geomspace(1e-3, 1e3, 200)),
        [10.0 ** (i % 5) for i in range(30)] + [1e5],
    ],
)
def test_these_are_no_explosions(values: list[float]):
    assert judge(norms(values), ExplodingGradient()) == []


def test_only_the_gradient_that_grew_most_is_reported_if_it_carries_the_norm():
    calm = [1.0] * 10
    (finding,) = judge(
        norms([*calm[:9], 200.0], [*calm[:9], 900.0]), ExplodingGradient()
    )
    assert finding.tensor == "gradient/1"
    assert "Both gradients" in finding.message
    small = norms([1e-4] * 9 + [1e-1], calm)
    assert judge(small, ExplodingGradient()) == []


@pytest.mark.parametrize(
    ("total", "severity"), [(10.0, Severity.INFO), (10.13, Severity.WARNING)]
)
def test_growth_up_to_the_norm_that_all_are_clipped_to_is_information(
    total: float, severity: Severity
):
    """Targets of a Q-network grow as rewards come in; it clips at 10, by default."""
    last = [0.8 * total, 0.6 * total]
    run = norms([0.03] * 30 + last[:1], [0.02] * 30 + last[1:])
    (finding,) = judge(run, ExplodingGradient())
    assert finding.severity is severity
    assert ("the program clips the norm" in finding.advice) == (total == 10.0)


def test_a_gradient_that_comes_back_from_next_to_nothing_has_not_exploded():
    """As of an autoencoder of saturated units, which learned after all."""
    vanished = [1e-4, 1e-3, 1e-4, *[1e-8] * 29]
    assert severities(norms([*vanished, 9e-4])) == [0] * 33
    assert severities(norms([*vanished, 2e-3]))[-1] == ERROR


@pytest.mark.parametrize(
    ("name", "largest", "is_named"),
    [
        ("Model_input_0", 255.0, True),
        ("Model_input_0", 9.9, False),
        ("MSELoss_input_1", -255.0, True),
    ],
)
def test_a_batch_unlike_those_before_is_named_before_clipping(
    name: str, largest: float, is_named: bool
):
    run = norms([1.0] * 9 + [150.0])
    for step in range(10):
        run.step(step, {name: [0.1, largest if step == 9 else 1.0]})
    (finding,) = judge(run, ExplodingGradient())
    assert finding.tensor == "gradient/0"
    first, then = finding.advice.split("Clip gradients", 1)
    assert (f"{name} reaches a magnitude of 255, 260 times" in first) == is_named
    assert ("Look for outliers" in then) != is_named


def test_data_that_a_model_has_made_are_no_reason_to_look_at_the_batch():
    run = norms([1.0] * 9 + [150.0])
    for step in range(10):
        run.step(step, {"Model_input_0": [255.0 if step == 9 else 1.0]})
    run.known_facts = [ModelInfo(step=0, made_inputs=("Model_input_0",))]
    (finding,) = judge(run, ExplodingGradient())
    assert finding.advice.startswith("Clip gradients")
