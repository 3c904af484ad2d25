"""ExplodingTensor and UnchangedTensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.modes import ModeKeys
from tdbg.rules import ExplodingTensor, UnchangedTensor
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo, ParameterFacts

NAN, INF = np.nan, np.inf


def one_step(rows: dict[str, object], **flags: bool) -> FakeRun:
    run = FakeRun(every=10)
    run.step(0, rows, **flags)
    return run


def test_nan_and_infinities_are_counted_and_only_the_first_tensor_is_reported():
    run = one_step(
        {
            "0_output_0": [1.0, 2.0],
            "7_output_0": [NAN, INF, -INF, 1.0],
            "1_output_0": [NAN, NAN, 1.0],
        }
    )
    (first,) = judge(run, ExplodingTensor())
    assert first.tensor == "7_output_0"
    assert first.severity is Severity.ERROR
    assert "1 NaN, 1 +Inf and 1 -Inf among 4 elements" in first.message
    assert first.message.endswith("It spread to 1_output_0.")
    assert first.value == 3


def test_weights_come_before_what_is_computed_from_them():
    run = FakeRun(every=10)
    run.step(0, {"0_output_0": [1.0], "0.weight": [1.0], "gradient/0.weight": [1.0]})
    run.step(10, {"0_output_0": [NAN], "0.weight": [NAN], "gradient/0.weight": [NAN]})
    (first,) = judge(run, ExplodingTensor())
    assert first.tensor == "0.weight"
    assert "The update of the previous step" in first.advice


def test_weights_that_are_not_finite_before_the_first_update_came_like_that():
    run = one_step({"0_output_0": [NAN], "0.weight": [NAN], "gradient/0.weight": [NAN]})
    (first,) = judge(run, ExplodingTensor())
    assert first.tensor == "0.weight"
    assert first.stage is Stage.SETUP
    assert "the checkpoint that you load" in first.advice


def test_a_loss_that_was_recorded_alone_is_not_said_to_be_at_fault():
    run = FakeRun()
    run.step(0, {"0_output_0": [1.0], "MSELoss_output_0": [1.0]})
    run.step(1, {"MSELoss_output_0": [NAN]})
    (finding,) = judge(run, ExplodingTensor())
    assert finding.tensor == "MSELoss_output_0"
    assert finding.advice.startswith("At this step the hook recorded only losses")
    together = one_step({"0_output_0": [1.0], "MSELoss_output_0": [NAN]})
    (finding,) = judge(together, ExplodingTensor())
    assert "it comes from the labels or from the loss itself" in finding.message
    assert finding.advice.startswith("Check the labels of this step for NaN")


def test_what_follows_in_later_steps_is_not_reported_again():
    run = FakeRun(every=10)
    run.step(0, {"0_output_0": [1.0], "1_output_0": [1.0], "0.weight": [1.0]})
    run.step(1, {"0_output_0": [1.0], "1_output_0": [NAN], "0.weight": [1.0]})
    for step in range(2, 6):
        run.step(step, {"0_output_0": [NAN], "1_output_0": [NAN], "0.weight": [NAN]})
    (finding,) = judge(run, ExplodingTensor())
    assert (finding.tensor, finding.step) == ("1_output_0", 1)


def test_after_a_recovery_the_next_one_is_reported():
    run = FakeRun(every=10)
    for step in range(12):
        value = NAN if step in (2, 8) else 1.0
        run.step(step, {"0_output_0": [value], "1_output_0": [value]})
    begin, end, again, _ = judge(run, ExplodingTensor())
    assert [f.phase for f in (begin, end, again)] == ["begin", "end", "begin"]
    assert (begin.step, end.step, again.step) == (2, 5, 8)


def test_the_worker_and_the_module_are_named():
    run = one_step({"layer.act_output_0": [NAN, 1.0]})
    run.n_workers = 2
    content = {"worker_0": [1.0], "worker_1": [NAN]}
    run.by_worker(0, "layer.act_output_0", content)
    run.known_facts = [ModelInfo(step=0, modules={"layer.act": "Tanh"})]
    (finding,) = judge(run, ExplodingTensor())
    assert (
        "This output of a Tanh is the first tensor that is not finite, on worker_1 of 2"
        in finding.message
    )


def test_scores_behind_a_mask_are_no_fault_and_do_not_take_the_blame():
    run = FakeRun(every=10)
    for step in range(4):
        rows = {"mask_output_0": [-INF, 0.0], "0_output_0": [NAN if step == 3 else 1.0]}
        run.step(step, rows)
    (finding,) = judge(run, ExplodingTensor())
    assert (finding.tensor, finding.step) == ("0_output_0", 3)


def test_a_new_minus_infinity_is_the_first_where_it_did_harm():
    run = FakeRun(every=10)
    run.step(0, {"log_output_0": [1.0], "NLLLoss_output_0": [1.0]})
    run.step(1, {"log_output_0": [-INF], "NLLLoss_output_0": [INF]})
    (finding,) = judge(run, ExplodingTensor())
    assert finding.tensor == "log_output_0"


def test_only_nan_ignores_infinities():
    run = one_step({"0_output_0": [INF], "1_output_0": [NAN]})
    (finding,) = judge(run, ExplodingTensor(only_nan=True))
    assert finding.tensor == "1_output_0"


def test_what_a_finite_loss_shows_to_be_handled_is_a_note():
    """Missing measurements that the model fills, and what comes true later."""
    run = FakeRun(every=10)
    for step in range(6):
        loss = NAN if step == 4 else 1.0
        rows = {"M_input_0": [NAN, 1.0], "0_output_0": [loss], "Loss_output_0": [loss]}
        run.step(step, rows | {"gradient/0.weight": [1.0]})
    note, error = judge(run, ExplodingTensor())
    assert (note.tensor, note.step, note.severity) == ("M_input_0", 0, Severity.INFO)
    assert note.message == (
        "This input is not finite: 1 NaN among 2 elements. The loss of this step "
        "is finite."
    )
    assert "replaces or masks" in note.advice
    assert (error.tensor, error.step, error.phase) == ("M_input_0", 4, "worse")
    assert error.severity is Severity.ERROR


@pytest.mark.parametrize("harm", ["gradient/0.weight", "0.weight"])
def test_a_finite_loss_excuses_no_gradient_and_no_weight(harm: str):
    rows = {"M_input_0": [NAN, 1.0], "Loss_output_0": [1.0], harm: [NAN]}
    (finding,) = judge(one_step(rows), ExplodingTensor())
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("mode", "severity"),
    [(ModeKeys.TRAIN, Severity.ERROR), (ModeKeys.EVAL, Severity.INFO)],
)
def test_in_training_a_finite_loss_excuses_nothing_without_a_gradient(
    mode: ModeKeys, severity: Severity
):
    run = FakeRun()
    run.step(0, {"M_input_0": [NAN, 1.0], "Loss_output_0": [1.0]}, mode=mode)
    (finding,) = judge(run, ExplodingTensor())
    assert finding.severity is severity


def test_masks_of_minus_infinity_as_inputs_are_no_fault():
    run = one_step({"a_input_0": [-INF, 0.0], "b_input_0": [INF], "a_output_0": [-INF]})
    (finding,) = judge(run, ExplodingTensor())
    assert finding.tensor == "b_input_0"
    assert finding.message.endswith("It spread to a_output_0.")


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
    (finding,) = judge(run, rule)
    assert finding.tensor == "mine"
    assert finding.message.endswith(
        "It spread to buffer/x. It was like that before the first update."
    )
    assert {each.collections for each in rule.needs} == {frozenset()}


def weights(
    run: FakeRun, step: int, value: float, gradient: float | None = 1.0
) -> None:
    rows: dict[str, object] = {"0.weight": [value, 1.0]}
    if gradient is not None:
        rows["gradient/0.weight"] = [gradient]
    run.step(step, rows)


def test_a_trained_weight_that_stays_the_same_is_a_warning():
    run = FakeRun(every=10)
    for step in range(5):
        weights(run, step, 0.5)
    (finding,) = judge(run, UnchangedTensor())
    assert finding.tensor == "0.weight"
    assert finding.severity is Severity.WARNING
    assert finding.step == 2
    assert "learning rate" in finding.advice


def test_the_smallest_change_is_a_change():
    run = FakeRun(every=10)
    value = np.float32(0.5)
    for step in range(9):
        weights(run, step, float(value))
        value = np.nextafter(value, np.float32(1))
    assert judge(run, UnchangedTensor()) == []
    assert len(judge(run, UnchangedTensor(rtol=1e-5))) == 1


@pytest.mark.parametrize(
    ("every", "update", "n_found"), [(10, 0.1, 0), (10, 0.0, 1), (1, 0.1, 1)]
)
def test_a_weight_that_goes_to_and_fro_is_not_held(
    every: int, update: float, n_found: int
) -> None:
    """As under an absolute loss at its minimum.  At the next step it has to differ."""
    run = FakeRun()
    for step in range(0, 15 * every, every):
        weights(run, step, 0.5)
        run.step(step, {"update/0.weight": [update]})
    assert len(judge(run, UnchangedTensor())) == n_found


def test_frozen_parameters_are_not_judged():
    run = FakeRun(every=10)
    for step in range(9):
        weights(run, step, 0.5, gradient=None)
    assert judge(run, UnchangedTensor()) == []


def test_parameters_that_no_optimizer_has_are_for_another_rule():
    run = FakeRun(every=10)
    for step in range(5):
        weights(run, step, 0.5)
    known = ParameterFacts(
        shape=(2,), dtype="float32", requires_grad=True, module="Linear"
    )
    run.known_facts = [ModelInfo(step=0, parameters={"0.weight": known}, complete=True)]
    assert judge(run, UnchangedTensor()) == []
    run.known_facts = [ModelInfo(step=0, parameters={"0.weight": known})]
    assert len(judge(run, UnchangedTensor())) == 1


@pytest.mark.parametrize(("its_own_steps", "n_found"), [(False, 0), (True, 1)])
def test_weights_stay_while_only_another_optimizer_steps(
    its_own_steps: bool, n_found: int
):
    """As while a temperature is fitted to a model that has been trained."""
    run = FakeRun(every=10)
    for step in range(9):
        weights(run, step, 0.5)
        run.step(step, {"scalar/optimizer_2/group_0/lr": [0.1]})
        if its_own_steps or step == 0:
            run.step(step, {"scalar/optimizer/group_0/lr": [0.1]})
    known = ParameterFacts(
        shape=(2,), dtype="float32", requires_grad=True, module="Linear", optimizer=0
    )
    run.known_facts = [ModelInfo(step=0, parameters={"0.weight": known}, complete=True)]
    assert len(judge(run, UnchangedTensor())) == n_found


def untrained(n_steps: int, **parameter: Any) -> FakeRun:
    """Two weights of an optimizer that steps; nothing has a gradient."""
    run = FakeRun()
    for step in range(n_steps):
        run.step(step, {"0.weight": [0.5], "1.weight": [0.25]})
    known = ParameterFacts(
        **{
            "shape": (1,),
            "dtype": "float32",
            "requires_grad": True,
            "module": "Linear",
            "optimizer": 0,
            **parameter,
        }
    )
    parameters = dict.fromkeys(("0.weight", "1.weight"), known)
    run.known_facts = [ModelInfo(step=0, parameters=parameters, complete=True)]
    return run


@pytest.mark.parametrize("cuts", [(), range(30), range(0, 30, 4)])
def test_where_nothing_has_a_gradient_nothing_moves(cuts: Iterable[int]):
    found = judge_in_parts(untrained(30), cuts, UnchangedTensor())
    assert [(f.tensor, f.step) for f in found] == [("0.weight", 9), ("1.weight", 9)]
    assert "no parameter has a gradient" in found[0].advice
    assert judge_in_parts(untrained(9), cuts, UnchangedTensor()) == []


@pytest.mark.parametrize("parameter", [{"requires_grad": False}, {"optimizer": None}])
def test_what_is_not_to_be_trained_need_not_move(parameter: dict[str, Any]):
    assert judge(untrained(30, **parameter), UnchangedTensor()) == []


def test_where_some_move_the_gradients_are_there_but_not_captured():
    run = untrained(30)
    for step in range(30):
        run.step(step, {"1.weight": [0.25 + step]})
    assert judge(run, UnchangedTensor()) == []


def test_where_gradients_end_nothing_moves_any_more():
    run = untrained(30)
    run.step(0, {"gradient/0.weight": [1.0]})
    found = judge(run, UnchangedTensor())
    assert {each.severity for each in found} == {Severity.WARNING}
    assert "no parameter has a gradient" in found[0].advice


def test_samples_drawn_in_training_mode_are_no_steps_of_an_optimizer():
    """Where an optimizer steps, its rate is recorded."""
    run = untrained(40)
    for step in range(10):
        rate = {"scalar/optimizer/group_0/lr": [0.1], "gradient/0.weight": [1.0]}
        run.step(step, {"0.weight": [0.5 + step], "1.weight": [step], **rate})
    for step in range(10, 40):
        run.step(step, {"0.weight": [99.0], "1.weight": [99.0]})
    assert judge(run, UnchangedTensor()) == []
    for step in range(10, 40):
        run.step(step, {"scalar/optimizer/group_0/lr": [0.1]})
    assert len(judge(run, UnchangedTensor())) == 2


def clamped(*, others_move: bool, values: list[float]) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(6):
        moved = 1.0 + step if others_move else 1.0
        rows = {"0.weight": values, "1.weight": [moved, 0.25]}
        run.step(step, {**rows, **{f"gradient/{n}.weight": [0.1] for n in range(2)}})
    return run


@pytest.mark.parametrize("values", [[0.1, -0.1, 0.1], [4.6052], [0.0, 0.0, 0.0]])
def test_a_weight_at_the_bounds_of_a_clamp_is_a_note_while_others_move(
    values: list[float],
):
    (note,) = judge(clamped(others_move=True, values=values), UnchangedTensor())
    assert note.severity is Severity.INFO
    assert "clamp" in note.message
    first, _ = judge(clamped(others_move=False, values=values), UnchangedTensor())
    assert first.severity is Severity.WARNING


def test_elements_between_the_bounds_should_move():
    run = clamped(others_move=True, values=[0.1, -0.1, 0.05])
    (finding,) = judge(run, UnchangedTensor())
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("late", "says"), [(0.0, "exactly zero"), (0.005, "below 1% of its first")]
)
def test_a_gradient_that_asks_for_no_change_makes_it_a_note(late: float, says: str):
    run = FakeRun(every=10)
    weights(run, 0, 0.25, gradient=1.0 if late else 0.0)
    for step in range(1, 6):
        weights(run, step, 0.5, gradient=late)
    (note,) = judge(run, UnchangedTensor())
    assert note.severity is Severity.INFO
    assert says in note.message


def test_in_evaluation_nothing_need_move():
    run = untrained(30)
    for step in range(30):
        run.step(step, mode=ModeKeys.EVAL)
    assert judge(run, UnchangedTensor()) == []


def test_a_skipped_step_explains_why_nothing_changed():
    run = FakeRun(every=10)
    for step, value in enumerate([1.0, 2.0, 2.0, 3.0, 3.0, 4.0]):
        weights(run, step, value)
    for step in (1, 3):
        run.step(step, skipped=True)
    assert judge(run, UnchangedTensor(num_steps=2)) == []


@pytest.mark.parametrize("flags", [{"complete": False}, {"lossless": False}])
def test_nothing_is_concluded_over_a_step_that_is_not_whole(flags: dict[str, bool]):
    run = FakeRun(every=10)
    for step in range(6):
        weights(run, step, 0.5)
    for step in (2, 5):
        run.step(step, **flags)
    assert judge(run, UnchangedTensor()) == []


def test_where_values_are_there_they_decide():
    run = FakeRun(every=10)
    for step in range(4):
        run.step(step, {"0.weight": [1.0, 2.0], "gradient/0.weight": [1.0]})
        swapped = [1.0, 2.0] if step % 2 else [2.0, 1.0]
        run.value(step, "0.weight", swapped)
    assert judge(run, UnchangedTensor(num_steps=2)) == []
    (finding,) = judge(run, UnchangedTensor(num_steps=3))
    assert finding.step == 2


def test_outputs_can_be_judged_without_gradients():
    run = FakeRun(every=10)
    for step in range(4):
        run.step(step, {"0_output_0": [1.0, NAN]})
    assert judge(run, UnchangedTensor()) == []
    assert len(judge(run, UnchangedTensor(collections=("outputs",)))) == 1
