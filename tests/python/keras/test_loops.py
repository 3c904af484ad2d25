"""Loops with tapes: what is captured of them, however they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_programs import run_program
from tdbg.modes import EVAL, TRAIN
from tdbg.trial import Trial, create_trial

LOSS = "SparseCategoricalCrossentropy"
WAYS = ("eager", "graph", "function", "XLA")
TAPES = ("eager", "graph")


class Ran:
    """A program that has run."""

    def __init__(self, out: Path) -> None:
        self.report = run_program("loops", out)
        self._out = out

    def trial(self, name: str) -> Trial:
        """The run of this name."""
        return create_trial(self._out / name)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("loops"))


def test_tdbg_meets_no_error_of_its_own(ran: Ran) -> None:
    counted = {k: v["counters"] for k, v in ran.report.items() if "counters" in v}
    assert len(counted) == 17
    for name, counters in counted.items():
        assert counters["internal_errors"] == 0, name
        assert counters["repeated_rows"] == 0, name
        assert counters["refused_tensors"] == 0, name


@pytest.mark.parametrize("way", WAYS)
def test_a_training_with_a_hook_is_the_training_without(ran: Ran, way: str) -> None:
    plain, watched = ran.report["plain"], ran.report[way]
    for what in ("losses", "evaluated"):
        assert watched[what] == pytest.approx(plain[what], rel=1e-5), what
    for ours, theirs in zip(watched["weights"], plain["weights"], strict=True):
        assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert watched["left"] == []
    assert watched["loss is"]


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_of_each_step_is_recorded_by_mode(ran: Ran, way: str) -> None:
    name = f"{LOSS}_output_0" if way in TAPES else "loss_output_0"
    loss = ran.trial(way).tensor(name)
    for mode, expected in ((TRAIN, "losses"), (EVAL, "evaluated")):
        found = [float(loss.value(step, mode=mode)) for step in loss.steps(mode=mode)]
        assert found == pytest.approx(ran.report[way][expected], rel=1e-6)


@pytest.mark.parametrize("way", WAYS[1:])
def test_every_way_captures_what_an_eager_loop_does(ran: Ran, way: str) -> None:
    eager, other = ran.trial("eager"), ran.trial(way)
    names = {each for each in eager.tensor_names() if each != f"{LOSS}_output_0"}
    assert names <= set(other.tensor_names())
    assert {f"{LOSS}_input_0", f"{LOSS}_input_1", "d1_relu_output_0"} <= names
    assert {"update/d1/kernel", "optimizer/momentum/d2/bias"} <= names
    for name in names:
        ours, theirs = other.tensor(name), eager.tensor(name)
        assert ours.steps(mode=TRAIN) == theirs.steps(mode=TRAIN), name
        assert ours.steps(mode=EVAL) == theirs.steps(mode=EVAL), name
        for step in theirs.steps(mode=TRAIN)[:3]:
            found = ours.value(step, mode=TRAIN)
            expected = theirs.value(step, mode=TRAIN)
            assert np.allclose(found, expected, rtol=1e-3, atol=1e-5), name


def test_the_first_step_is_captured_though_collections_have_changed(ran: Ran) -> None:
    trial = ran.trial("changes")
    for name in ("d1/kernel", "gradient/d1/kernel", "d2_output_0"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 3], name
    assert trial.tensor(f"{LOSS}_output_0").steps(mode=TRAIN) == list(range(5))


def test_a_function_is_compiled_anew_when_other_tensors_are_captured(ran: Ran) -> None:
    assert ran.report["changes within"]["n_traces"] == 2
    trial = ran.trial("changes within")
    losses = trial.tensor_names(collection="losses")
    names = set(trial.tensor_names(collection="late")) - set(losses)
    assert {step for name in names for step in trial.tensor(name).steps()} == {2, 3}


def test_labels_are_numbers_and_predictions_what_the_model_returned(ran: Ran) -> None:
    trial = ran.trial("graph")
    labels = trial.tensor(f"{LOSS}_input_1").value(0)
    assert labels.dtype.kind == "i"
    assert set(labels.tolist()) <= {0, 1, 2}
    predictions = trial.tensor(f"{LOSS}_input_0").value(0)
    assert np.array_equal(predictions, trial.tensor("Sequential_output_0").value(0))
    assert trial.model_info()[-1].kinds[LOSS] == "cross_entropy"


@pytest.mark.parametrize("way", TAPES)
def test_two_models_with_persistent_and_nested_tapes_are_one_step(
    ran: Ran, way: str
) -> None:
    trial, report = ran.trial(f"players {way}"), ran.report[f"players {way}"]
    assert report["steps"] == 4
    critic = {"c1_output_0", "c1_output_0@2", "gradient/c1/kernel"}
    generator = {"Sequential_2/g1_output_0", "gradient/Sequential_2/g1/kernel"}
    losses = {f"BinaryCrossentropy_output_0{each}" for each in ("", "@2", "@3")}
    for name in critic | generator | losses:
        assert trial.tensor(name).steps() == list(range(4)), name
    rates = {each for each in trial.tensor_names() if each.endswith("/lr")}
    assert len(rates) == 2
    given = ran.report["players eager"]["given"]
    names = ("c1/kernel", "c1/bias", "Sequential_2/g1/kernel", "Sequential_2/g1/bias")
    for step in range(4):
        for name, expected in zip(names, given[4 * step : 4 * step + 4], strict=True):
            found = trial.tensor(f"gradient/{name}").value(step)
            assert found == pytest.approx(np.asarray(expected), abs=1e-6), name


@pytest.mark.parametrize("way", TAPES)
def test_gradients_in_structures_are_those_of_the_optimizer(ran: Ran, way: str) -> None:
    trial = ran.trial(f"structures {way}")
    for step in range(4):
        gradient = trial.tensor("gradient/d2/kernel").value(step)
        update = trial.tensor("update/d2/kernel").value(step)
        assert update == pytest.approx(-0.1 * gradient, abs=1e-6)
    # A function that was wrapped shows what it is given, by its own name.
    assert trial.tensor("compute_loss_input_0").value(0).shape == (16, 3)
    assert trial.tensor("compute_loss_output_0").steps() == list(range(4))


@pytest.mark.parametrize("way", TAPES)
def test_a_sparse_gradient_counts_the_rows_that_were_used(ran: Ran, way: str) -> None:
    assert ran.report[f"sparse {way}"]["sparse"] == [True, True]
    gradient = ran.trial(f"sparse {way}").tensor("gradient/table/embeddings")
    assert gradient.stats(0).count == 50 * 4
    assert gradient.stats(0).zero >= 37 * 4
    value = gradient.value(0)
    assert value.shape == (50, 4)
    assert set(np.flatnonzero(value.any(axis=1))) == set(range(13))
    units = ran.trial(f"sparse {way}").tensor("unit/gradient/table/embeddings").value(0)
    assert set(np.flatnonzero(units[0])) == set(range(13))


@pytest.mark.parametrize("way", TAPES)
def test_gradients_added_up_by_hand_have_micro_batches(ran: Ran, way: str) -> None:
    trial = ran.trial(f"parts {way}")
    assert ran.report[f"parts {way}"]["steps"] == 2
    assert trial.tensor("gradient/d1/kernel").steps() == [0, 1]
    # Layers that are called one by one, three times in a step.
    assert trial.tensor("d1_relu_output_0").stats(0).count == 3 * 16 * 16
    assert trial.tensor(f"{LOSS}_output_0").stats(0).count == 3


@pytest.mark.parametrize("way", TAPES)
def test_a_call_that_no_tape_records_is_evaluation_though_its_flag_says_training(
    ran: Ran, way: str
) -> None:
    trial, report = ran.trial(f"measured {way}"), ran.report[f"measured {way}"]
    assert report["steps"] == 4
    given, losses, after = zip(*report["returned"], strict=True)
    loss, output = (
        trial.tensor(f"{each}_output_0") for each in (LOSS, "Sequential")
    )  # fmt: skip
    assert f"{LOSS}_output_0@2" not in trial.tensor_names()
    for mode, expected in ((TRAIN, losses), (EVAL, after)):
        assert loss.steps(mode=mode) == output.steps(mode=mode) == list(range(4))
        found = [float(loss.value(step, mode=mode)) for step in range(4)]
        assert found == pytest.approx(expected, rel=1e-5)
    for step, expected in enumerate(given):
        assert output.value(step, mode=TRAIN) == pytest.approx(
            np.asarray(expected), abs=1e-6
        )


def test_no_error_of_tdbg_reaches_the_training(ran: Ran) -> None:
    faults = ran.report["faults"]
    assert len(faults) == 51
    expected = faults["_captured eager"][0]  # Which is not called there.
    for place, (losses, _) in faults.items():
        assert losses == pytest.approx(expected, rel=1e-5), place
    met = {place for place, (_, n_errors) in faults.items() if n_errors}
    assert {"_begin eager", "_take eager", "_end eager", "_end graph"} <= met
    assert {"report_forward graph", "_gradients_came graph", "take function"} <= met


def test_a_watched_model_is_saved_copied_and_exported_as_any(ran: Ran) -> None:
    report = ran.report["life"]
    assert report["same"] == dict.fromkeys(
        ("loaded", "cloned", "copied", "pickled"), True
    )
    assert report["calls Python"] is False
    assert report["loss"] is report["compiled loss"] is True


def test_what_can_never_work_is_refused(ran: Ran) -> None:
    assert set(ran.report["refused"].values()) == {"ConfigurationError"}


def test_a_stop_ends_a_loop_and_says_why(ran: Ran) -> None:
    assert ran.report["stopped eager"] == "enough"
    assert "TrainingStopped: enough" in ran.report["stopped graph"]


def test_steps_that_have_only_their_loss_are_told_many_at_once(ran: Ran) -> None:
    trial, report = ran.trial("rarely"), ran.report["rarely"]
    loss = trial.tensor("loss_output_0")
    assert report["errors"] == [20]
    # The step with the error was a forward that the next one goes on with.
    assert loss.steps(mode=TRAIN) == list(range(23))
    found = [loss.stats(step, mode=TRAIN).mean for step in range(23)]
    assert found == pytest.approx(report["losses"], rel=1e-6)
    assert trial.tensor("gradient/d1/kernel").steps(mode=TRAIN) == [0, 16]
    assert trial.steps(mode=EVAL) == [0]
    assert len(report["told"]) < 16
