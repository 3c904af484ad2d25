"""ExplodingTensor and UnchangedTensor."""

from __future__ import annotations

import numpy as np
import pytest

from rules_fake import FakeRun, judge
from tdbg.errors import ConfigurationError
from tdbg.findings import Severity
from tdbg.rules import ExplodingTensor, UnchangedTensor

NAN, INF = np.nan, np.inf


def one_step(rows: dict[str, object], **flags: bool) -> FakeRun:
    run = FakeRun()
    run.step(0, rows, **flags)
    return run


def test_nan_and_infinities_are_counted_and_the_first_tensor_is_named():
    run = one_step(
        {
            "0_output_0": [1.0, 2.0],
            "7_output_0": [NAN, INF, -INF, 1.0],
            "1_output_0": [NAN, NAN, 1.0],
        }
    )
    first, second = judge(run, ExplodingTensor())
    assert first.tensor == "7_output_0"
    assert first.severity is Severity.ERROR
    assert "1 NaN, 1 +Inf and 1 -Inf among 4 elements" in first.message
    assert first.value == 3
    assert second.tensor == "1_output_0"
    assert "7_output_0 comes first" in second.message


def test_only_nan_ignores_infinities():
    run = one_step({"0_output_0": [INF], "1_output_0": [NAN]})
    (finding,) = judge(run, ExplodingTensor(only_nan=True))
    assert finding.tensor == "1_output_0"


def test_masks_of_minus_infinity_as_inputs_are_no_fault():
    run = one_step({"a_input_0": [-INF, 0.0], "b_input_0": [INF], "a_output_0": [-INF]})
    findings = judge(run, ExplodingTensor())
    assert [finding.tensor for finding in findings] == ["b_input_0", "a_output_0"]


def test_gradients_of_a_step_that_the_scaler_skipped_are_no_fault():
    rows = {"gradient/0.weight": [INF], "0.weight": [1.0]}
    assert judge(one_step(rows, skipped=True), ExplodingTensor()) == []
    assert len(judge(one_step(rows), ExplodingTensor())) == 1


def test_a_weight_that_is_nan_is_found_although_the_scaler_skips_every_step():
    rows = {"gradient/0.weight": [NAN], "0.weight": [NAN]}
    (finding,) = judge(one_step(rows, skipped=True), ExplodingTensor())
    assert finding.tensor == "0.weight"


@pytest.mark.parametrize("flags", [{"complete": False}, {"lossless": False}])
def test_steps_that_are_not_whole_are_not_judged(flags: dict[str, bool]):
    assert judge(one_step({"0.weight": [NAN]}, **flags), ExplodingTensor()) == []


def test_collections_and_expressions_choose():
    run = one_step({"0.weight": [NAN], "mine": [NAN], "buffer/x": [NAN]})
    run.custom = {"odd": ["buffer/x"]}
    rule = ExplodingTensor(collections=("odd",), tensor_regex="^mine$")
    assert {finding.tensor for finding in judge(run, rule)} == {"mine", "buffer/x"}
    assert rule.needs.collections == frozenset()


@pytest.mark.parametrize(
    "parameters", [{"collections": "weights"}, {"tensor_regex": "("}]
)
def test_bad_choices_are_refused(parameters: dict[str, object]):
    with pytest.raises(ConfigurationError, match="ExplodingTensor"):
        ExplodingTensor(**parameters)


def weights(
    run: FakeRun, step: int, value: float, gradient: float | None = 1.0
) -> None:
    rows: dict[str, object] = {"0.weight": [value, 1.0]}
    if gradient is not None:
        rows["gradient/0.weight"] = [gradient]
    run.step(step, rows)


def test_a_trained_weight_that_stays_the_same_is_a_warning():
    run = FakeRun()
    for step in range(5):
        weights(run, step, 0.5)
    (finding,) = judge(run, UnchangedTensor())
    assert finding.tensor == "0.weight"
    assert finding.severity is Severity.WARNING
    assert finding.step == 2
    assert "learning rate" in finding.advice


def test_the_smallest_change_is_a_change():
    run = FakeRun()
    value = np.float32(0.5)
    for step in range(9):
        weights(run, step, float(value))
        value = np.nextafter(value, np.float32(1))
    assert judge(run, UnchangedTensor()) == []
    assert len(judge(run, UnchangedTensor(rtol=1e-5))) == 1


def test_frozen_parameters_are_not_judged():
    run = FakeRun()
    for step in range(9):
        weights(run, step, 0.5, gradient=None)
    assert judge(run, UnchangedTensor()) == []


def test_a_skipped_step_explains_why_nothing_changed():
    run = FakeRun()
    for step, value in enumerate([1.0, 2.0, 2.0, 3.0, 3.0, 4.0]):
        weights(run, step, value)
    for step in (1, 3):
        run.step(step, skipped=True)
    assert judge(run, UnchangedTensor(num_steps=2)) == []


@pytest.mark.parametrize("flags", [{"complete": False}, {"lossless": False}])
def test_nothing_is_concluded_over_a_step_that_is_not_whole(flags: dict[str, bool]):
    run = FakeRun()
    for step in range(6):
        weights(run, step, 0.5)
    for step in (2, 5):
        run.step(step, **flags)
    assert judge(run, UnchangedTensor()) == []


def test_where_values_are_there_they_decide():
    run = FakeRun()
    for step in range(4):
        run.step(step, {"0.weight": [1.0, 2.0], "gradient/0.weight": [1.0]})
        swapped = [1.0, 2.0] if step % 2 else [2.0, 1.0]
        run.tensor_of("0.weight").values[step] = np.array(swapped)
    assert judge(run, UnchangedTensor(num_steps=2)) == []
    (finding,) = judge(run, UnchangedTensor(num_steps=3))
    assert finding.step == 2


def test_outputs_can_be_judged_without_gradients():
    run = FakeRun()
    for step in range(4):
        run.step(step, {"0_output_0": [1.0, NAN]})
    assert judge(run, UnchangedTensor()) == []
    assert len(judge(run, UnchangedTensor(collections=("outputs",)))) == 1


@pytest.mark.parametrize(
    "parameters", [{"num_steps": 1}, {"rtol": -1.0}, {"atol": "x"}]
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, object]):
    with pytest.raises(
        ConfigurationError, match=f"UnchangedTensor.{next(iter(parameters))}"
    ):
        UnchangedTensor(**parameters)
