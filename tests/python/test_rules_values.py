"""AllZero, TensorVariance, ExplodingGradient and PrecisionLoss."""

from __future__ import annotations

import numpy as np
import pytest

from rules_fake import FakeRun, judge
from tdbg.errors import ConfigurationError
from tdbg.findings import Severity
from tdbg.histogram import Histogram
from tdbg.rules import (
    AllZero,
    Engine,
    ExplodingGradient,
    PrecisionLoss,
    Rule,
    TensorVariance,
)
from tdbg.rules.gradients.precision import _least

FLAGS = [{"complete": False}, {"lossless": False}]


def repeated(n_steps: int = 5, **rows: object) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(n_steps):
        run.step(step, rows)
    return run


ZERO, RAMP = np.zeros(8), np.arange(8.0)


def test_an_output_of_zeros_is_reported_at_the_third_step():
    (finding,) = judge(repeated(a_output_0=ZERO, b_output_0=RAMP), AllZero())
    assert (finding.tensor, finding.step) == ("a_output_0", 2)
    assert "1 tensors are affected" in finding.advice
    assert finding.value == 100


def test_zero_for_the_first_two_steps_is_no_fault():
    run = FakeRun(every=10)
    for step in range(9):
        run.step(step, {"a_output_0": ZERO if step < 2 else RAMP})
    assert judge(run, AllZero()) == []


@pytest.mark.parametrize(("threshold", "n_findings"), [(50.0, 1), (51.0, 0)])
def test_the_share_of_zeros_decides(threshold: float, n_findings: int):
    run = repeated(a_output_0=np.repeat([0.0, 1.0], 4))
    assert len(judge(run, AllZero(threshold=threshold))) == n_findings


def test_masks_scalars_and_states_are_left_out_unless_named():
    run = repeated(
        m_output_0=ZERO, s_output_0=[0.0], Model_input_0=RAMP, Model_input_1=ZERO
    )
    run.tensor_of("m_output_0").dtype = "bool"
    assert judge(run, AllZero()) == []
    assert len(judge(run, AllZero(tensor_regex="^m_"))) == 1
    assert len(judge(run, AllZero(min_count=1))) == 1
    assert len(judge(repeated(Model_input_0=ZERO), AllZero())) == 1


@pytest.mark.parametrize(
    ("spread", "n_findings"), [(0.0, 1), (0.9e-4, 1), (1.1e-4, 0), (1.0, 0)]
)
def test_a_spread_of_next_to_nothing_is_reported(spread: float, n_findings: int):
    run = repeated(a_output_0=100 * (1 + spread * np.array([1, -1] * 4)))
    found = judge(run, TensorVariance())
    assert len(found) == n_findings
    assert all("all elements are close to 100" in f.message for f in found)


def test_zeros_are_not_for_the_variance_unless_a_bound_is_given():
    assert judge(repeated(a_output_0=ZERO), TensorVariance()) == []
    assert len(judge(repeated(a_output_0=ZERO), TensorVariance(min_threshold=0.1))) == 1


def test_bounds_decide_where_they_are_given():
    run = repeated(a_output_0=RAMP)  # Its variance is 5.25.
    assert judge(run, TensorVariance(min_threshold=5.2, max_threshold=5.3)) == []
    (small,) = judge(run, TensorVariance(min_threshold=5.3))
    (large,) = judge(run, TensorVariance(max_threshold=5.2))
    assert (small.threshold, large.threshold) == (5.3, 5.2)
    assert small.value == large.value == 5.25


@pytest.mark.parametrize("rule", [AllZero(), TensorVariance(min_threshold=1.0)])
@pytest.mark.parametrize("flags", FLAGS)
def test_steps_that_are_not_whole_are_not_judged(rule: Rule, flags: dict[str, bool]):
    run = FakeRun(every=10)
    for step in range(6):
        run.step(step, {"a_output_0": ZERO}, **flags)
    assert judge(run, rule) == []


def test_nan_has_no_variance():
    run = repeated(a_output_0=np.array([np.nan] + [1.0] * 8))
    assert judge(run, TensorVariance()) == []


# --- Gradients that explode --------------------------------------------------------


def norms(*layers: list[float], **flags: bool) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(len(layers[0])):
        rows = {f"gradient/{i}.weight": [v[step]] for i, v in enumerate(layers)}
        run.step(step, rows, **flags)
    return run


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
    assert "its highest of the few recorded steps before (1)" in finding.message


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


def test_a_square_beyond_float32_is_an_error_without_any_past():
    (finding,) = judge(norms([2e18]), ExplodingGradient())
    assert finding.severity is Severity.ERROR
    assert "overflows" in finding.message


def test_only_the_gradient_that_grew_most_is_reported_if_it_carries_the_norm():
    calm = [1.0] * 10
    (finding,) = judge(
        norms([*calm[:9], 200.0], [*calm[:9], 900.0]), ExplodingGradient()
    )
    assert finding.tensor == "gradient/1.weight"
    assert "2 of 2 gradients" in finding.message
    small = norms([1e-4] * 9 + [1e-1], calm)
    assert judge(small, ExplodingGradient()) == []


@pytest.mark.parametrize("flags", [*FLAGS, {"skipped": True}])
def test_explosions_of_steps_that_are_not_whole_are_not_judged(flags: dict[str, bool]):
    assert judge(norms([1.0] * 9 + [1e9], **flags), ExplodingGradient()) == []


def test_rows_with_nan_are_no_past():
    assert judge(norms([np.nan] * 9 + [1e3]), ExplodingGradient()) == []


# --- Narrow types ------------------------------------------------------------------


def narrow(kept: int, n_steps: int = 5, dtype: str = "bfloat16") -> FakeRun:
    """Steps at which so many of 100 elements changed."""
    run = FakeRun(every=10)
    update = np.repeat([1.0, 0.0], [kept, 100 - kept])
    for step in range(n_steps):
        run.step(
            step,
            {
                "a.weight": np.ones(100),
                "gradient/a.weight": np.ones(100),
                "update/a.weight": update,
            },
        )
    run.tensor_of("a.weight").dtype = dtype
    return run


@pytest.mark.parametrize(("kept", "n_findings"), [(10, 1), (11, 0)])
def test_updates_that_are_rounded_away_are_reported(kept: int, n_findings: int):
    found = judge(narrow(kept), PrecisionLoss())
    assert len(found) == n_findings
    assert all("rounded away in bfloat16" in f.message for f in found)
    assert judge(narrow(kept, dtype="float32"), PrecisionLoss()) == []


def gradients_of(values: np.ndarray, dtype: str, output: str = "float32") -> FakeRun:
    run = FakeRun(every=10)
    for step in range(3):
        run.step(step, {"gradient/a.weight": values, "a_output_0": [1.0]})
        run.histogram(step, "gradient/a.weight", values)
    run.tensor_of("gradient/a.weight").dtype = dtype
    run.tensor_of("a_output_0").dtype = output
    return run


QUANTUM = 2.0**-24
AT_THE_BRINK = QUANTUM * np.repeat([1.0, 3.0, 1000.0], [15, 15, 70])


@pytest.mark.parametrize(
    ("values", "n_findings"),
    [
        (AT_THE_BRINK, 1),
        (AT_THE_BRINK * 16, 0),
        (np.append(AT_THE_BRINK, QUANTUM / 8), 0),
        (np.append(AT_THE_BRINK, np.zeros(900)), 1),
        (np.zeros(9), 0),
    ],
)
def test_gradients_at_the_brink_of_their_type_are_reported(
    values: np.ndarray, n_findings: int
):
    assert len(judge(gradients_of(values, "float16"), PrecisionLoss())) == n_findings
    computed = gradients_of(values, "float32", output="float16")
    assert len(judge(computed, PrecisionLoss())) == n_findings


@pytest.mark.parametrize(("values", "n_reads"), [(QUANTUM * 64, 0), (QUANTUM * 2, 3)])
def test_no_histogram_is_read_where_rows_say_enough(values: float, n_reads: int):
    run = gradients_of(np.full(100, values), "float16")
    engine = Engine(run, PrecisionLoss())
    engine.poll()
    assert engine.judged() == {"PrecisionLoss": 3}
    assert run.tensor_of("gradient/a.weight").reads == n_reads
    # Zeros, and what is no number, say nothing about the rest.
    mixed = np.append(AT_THE_BRINK, [0.0])
    assert len(judge(gradients_of(mixed, "float16"), PrecisionLoss())) == 1
    nothing = Engine(gradients_of(np.full(9, np.nan), "float16"), PrecisionLoss())
    nothing.poll()
    assert nothing.judged() == {"PrecisionLoss": 0}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_types_of_long_range_lose_nothing(dtype: str):
    assert judge(gradients_of(AT_THE_BRINK, dtype), PrecisionLoss()) == []


@pytest.mark.parametrize(
    ("rule", "name", "value"),
    [
        (AllZero, "threshold", 0.0),
        (AllZero, "collections", "outputs"),
        (TensorVariance, "min_count", 1),
        (TensorVariance, "relative", 0.0),
        (ExplodingGradient, "factor", 1.0),
        (ExplodingGradient, "window", 1),
        (ExplodingGradient, "error_factor", 10.0),
        (PrecisionLoss, "threshold", 101.0),
        (PrecisionLoss, "patience", 0),
    ],
)
def test_parameters_out_of_range_are_refused(rule: type, name: str, value: object):
    with pytest.raises(ConfigurationError, match=f"{rule.__name__}.{name}"):
        rule(**{name: value})


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_least_magnitude_of_a_histogram_bounds_all_but_zeros(
    dtype: type[np.floating],
) -> None:
    random = np.random.default_rng(3)
    for scale in (1e-45, 1e-20, 1e-3, 1.0, 1e4):
        x = (scale * random.normal(size=200)).astype(dtype)
        x[:5] = [0.0, -0.0, np.nan, np.inf, -np.inf]
        magnitudes = np.abs(x[np.isfinite(x) & (x != 0)]).astype(np.float64)
        least = _least(Histogram.of(x))
        if not len(magnitudes):
            assert least == np.inf
        else:
            assert least <= magnitudes.min()
            # Of numbers that are normal in float32 it is within a bin.
            assert magnitudes.min() < 2.0**-126 or magnitudes.min() < 1.01 * least
    assert _least(Histogram.of(np.zeros(3, dtype))) == np.inf
