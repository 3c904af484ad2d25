"""AllZero and TensorVariance: outputs of zeros, of one value, or the same for all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.rules import (
    AllZero,
    TensorVariance,
)
from tdbg.rules.builtin.tensors.variance import spread_of
from tdbg.run.model_info import ModelInfo, ParameterFacts


def repeated(n_steps: int = 5, **rows: object) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(n_steps):
        run.step(step, rows)
    return run


ZERO, RAMP = np.zeros(8), np.arange(8.0)


def test_an_output_of_zeros_is_reported_at_the_third_step():
    (finding,) = judge(repeated(a_output_0=ZERO, b_output_0=RAMP), AllZero())
    assert (finding.tensor, finding.step) == ("a_output_0", 2)
    assert "other tensor" not in finding.message
    assert finding.value == 100


def test_masks_scalars_and_states_are_left_out_unless_named():
    run = repeated(
        m_output_0=ZERO, s_output_0=[0.0], Model_input_0=RAMP, Model_input_1=ZERO
    )
    run.tensor_of("m_output_0").dtype = "bool"
    assert judge(run, AllZero()) == []
    assert len(judge(run, AllZero(tensor_regex="^m_"))) == 1
    assert len(judge(run, AllZero(min_count=1))) == 1
    assert len(judge(repeated(Model_input_0=ZERO), AllZero())) == 1


def test_a_further_output_may_be_zero_where_the_first_is_not():
    """A bias of positions that a layer hands on, a state, a mask of floats."""
    assert judge(repeated(a_output_0=RAMP, a_output_1=ZERO), AllZero()) == []
    both = judge(repeated(a_output_0=ZERO, a_output_1=ZERO), AllZero())
    assert [each.tensor for each in both] == ["a_output_0", "a_output_1"]
    assert len(judge(repeated(b_output_0=RAMP, a_output_1=ZERO), AllZero())) == 1


def test_an_initial_state_may_be_the_first_input():
    assert judge(repeated(Model_input_0=ZERO, Model_input_1=RAMP), AllZero()) == []
    assert judge(repeated(Model_input_0=ZERO, Model_input_1=ZERO), AllZero())
    assert judge(repeated(Model_input_0=ZERO, Other_input_0=RAMP), AllZero())


def test_the_first_steps_in_time_may_give_nothing_yet():
    """Neurons that collect their input before they spike."""
    calls = {"a_output_0": ZERO, "a_output_0@2": ZERO, "a_output_0@3": RAMP}
    run = repeated(**calls)
    assert judge(run, AllZero()) == []
    assert len(judge(run, AllZero(tensor_regex="^a_"))) == 2
    assert len(judge(repeated(**{**calls, "a_output_0@3": ZERO}), AllZero())) == 3
    # Called in several places it is several layers.
    run.known_facts = [ModelInfo(step=0, modules={"": "Net", "a": "ReLU"})]
    assert len(judge(run, AllZero())) == 2


@pytest.mark.parametrize(
    ("spread", "n_findings"), [(0.0, 1), (0.9e-4, 1), (1.1e-4, 0), (1.0, 0)]
)
def test_a_spread_of_next_to_nothing_is_reported(spread: float, n_findings: int):
    run = repeated(a_output_0=100 * (1 + spread * np.array([1, -1] * 4)))
    found = judge(run, TensorVariance())
    assert len(found) == n_findings
    assert all("All elements are close to 100" in f.message for f in found)


def test_zeros_are_not_for_the_variance_unless_a_bound_is_given():
    assert judge(repeated(a_output_0=ZERO), TensorVariance()) == []
    assert len(judge(repeated(a_output_0=ZERO), TensorVariance(min_threshold=0.1))) == 1


def test_a_further_output_may_be_one_number_where_the_first_varies():
    """The log-determinant of a linear layer of a flow is the same for all samples."""
    same = np.full(8, 0.004)
    run = repeated(a_output_0=RAMP, a_output_1=same)
    assert judge(run, TensorVariance()) == []
    assert len(judge(run, TensorVariance(tensor_regex="^a_"))) == 1
    both = judge(repeated(a_output_0=same, a_output_1=same), TensorVariance())
    assert [each.tensor for each in both] == ["a_output_0", "a_output_1"]
    assert len(judge(repeated(b_output_0=RAMP, a_output_1=same), TensorVariance())) == 1


def test_bounds_decide_where_they_are_given():
    run = repeated(a_output_0=RAMP)  # Its variance is 5.25.
    assert judge(run, TensorVariance(min_threshold=5.2, max_threshold=5.3)) == []
    (small,) = judge(run, TensorVariance(min_threshold=5.3))
    (large,) = judge(run, TensorVariance(max_threshold=5.2))
    assert (small.threshold, large.threshold) == (5.3, 5.2)
    assert small.value == large.value == 5.25


# ---- predictions that become the same for all samples ----------------------------


GIVEN = "CosineSimilarityLoss_input_0"


def embedded(spreads: Callable[[int], float], n_steps: int, every: int = 1) -> FakeRun:
    """Predictions around one direction, at each step as far apart as is said."""
    random = np.random.default_rng(0)
    run = FakeRun()
    common = random.standard_normal(16)
    for step in range(n_steps):
        values = common + spreads(step) * random.standard_normal((32, 16))
        values = values.astype(np.float32)
        run.step(step, {} if step % every else {GIVEN: values})
        if step % every == 0:
            run.value(step, GIVEN, values)
    return run


def collapses(step: int) -> float:
    return 3.0 * 0.7**step


def test_directions_that_have_nothing_to_do_with_each_other_spread_by_one():
    random = np.random.default_rng(1)
    assert spread_of(random.standard_normal((64, 256))) == pytest.approx(1.0, abs=0.05)
    assert spread_of(np.tile(random.standard_normal(8), (20, 1))) == pytest.approx(0)


@pytest.mark.parametrize(
    "values",
    [
        np.ones(64),
        np.ones((7, 4)),
        np.ones((64, 1)),
        np.ones((64, 4), dtype=np.int64),
        np.zeros((64, 4)),
        np.full((64, 4), np.nan),
    ],
)
def test_of_some_values_nothing_can_be_said(values: np.ndarray):
    assert spread_of(values) is None


def test_an_embedding_that_collapses_is_a_warning():
    run = embedded(collapses, 60)
    (finding,) = judge(run, TensorVariance())
    below = next(k for k in range(60) if collapses(k) < 0.01)
    assert abs(finding.step - (below + 9)) <= 1
    assert finding.tensor == GIVEN
    assert finding.value < finding.threshold == 0.01
    assert "the same answer for all samples: at 3 steps in a row" in finding.message
    assert finding.advice.startswith("In self-supervised learning, stop the gradient")
    run.known_facts = [ModelInfo(step=0, kinds={"CosineSimilarityLoss": "mse"})]
    (finding,) = judge(run, TensorVariance())
    assert finding.advice.startswith("In a supervised model, look for dead")
    assert judge(run, TensorVariance(collapsed=None)) == []


@pytest.mark.parametrize("recovers_at", [45, 300])
def test_a_regression_may_answer_with_the_mean_at_first(recovers_at: int):
    run = embedded(lambda step: 0.001 if 10 <= step < recovers_at else 1.0, 80)
    run.known_facts = [ModelInfo(step=0, kinds={"CosineSimilarityLoss": "mse"})]
    found = judge(run, TensorVariance())
    assert [finding.step for finding in found] == ([] if recovers_at < 80 else [49])


def test_three_steps_are_enough_where_few_are_kept():
    run = embedded(lambda step: 1.0 if step < 20 else 0.001, 60, every=10)
    (finding,) = judge(run, TensorVariance())
    assert finding.step == 40


def test_what_was_the_same_but_for_rounding_from_the_beginning_is_a_warning():
    run = embedded(lambda _: 1e-8, 20)
    (finding,) = judge(run, TensorVariance())
    assert finding.step == 9
    assert finding.threshold == 1e-6
    assert "over the batch" in finding.advice


def test_the_first_answers_to_a_sequence_need_not_depend_on_it_yet():
    """A loss at each step in time, before anything has arrived at the output."""
    run, later = embedded(lambda _: 1e-8, 20), embedded(lambda _: 0.5, 20)
    called_again = run.tensor_of(f"{GIVEN}@2")
    called_again.role = "prediction"
    for step, values in later.tensor_of(GIVEN).values.items():
        called_again.values[step] = values
        called_again.rows[step] = later.tensor_of(GIVEN).rows[step]
    assert judge(run, TensorVariance()) == []


@pytest.mark.parametrize(
    "spreads",
    [
        lambda step: 0.05 * 1.02**step,  # as a deep network begins
        lambda _: 0.005,  # as it was from the beginning
        lambda step: 0.0 if step < 8 else 0.005,  # a head that begins at zero
        lambda step: 0.06 if 10 < step < 40 else 1.0,  # only frequencies are known
        lambda step: 0.001 if step % 3 else 1.0,
    ],
)
def test_what_is_healthy_is_silent(spreads: Callable[[int], float]):
    assert judge(embedded(spreads, 80), TensorVariance()) == []


def test_the_cut_into_windows_changes_nothing():
    run = embedded(lambda step: collapses(step) if step < 50 else 1.0, 80)
    whole = judge(run, TensorVariance())
    assert [finding.phase for finding in whole] == ["begin", "end"]
    assert judge_in_parts(run, range(80), TensorVariance()) == whole


def test_of_large_outputs_a_part_is_enough():
    random = np.random.default_rng(0)
    assert spread_of(random.normal(size=(16, 100_000))) == pytest.approx(1.0, abs=0.05)
    alike = np.broadcast_to(random.normal(size=100_000), (16, 100_000))
    assert spread_of(alike) == pytest.approx(0.0, abs=1e-9)


def test_who_looks_for_it_has_the_values_of_predictions_kept():
    def kept(rule: TensorVariance) -> set[str]:
        return {name for need in rule.needs if need.raw for name in need.collections}

    assert kept(TensorVariance()) == {"predictions"}
    assert kept(TensorVariance(collapsed=None)) == set()


@pytest.mark.parametrize(
    ("module", "n_rows", "n_findings"),
    [("Embedding", 1, 0), ("Embedding", 2, 2), ("Linear", 1, 2)],
)
def test_embeddings_of_a_single_row_give_the_same_for_all_samples(
    module: str, n_rows: int, n_findings: int
):
    """And so does what is made of nothing else."""
    ones = np.full(8, 1.1)
    run = repeated(**{"e_output_0": ones, "e.0_output_0": ones})
    weight = ParameterFacts(
        shape=(n_rows, 1), dtype="float32", requires_grad=True, module=module
    )
    run.known_facts = [ModelInfo(step=0, parameters={"e.0.weight": weight})]
    assert len(judge(run, TensorVariance())) == n_findings
