"""Keras on each backend: what is captured is what the training computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_programs import run_program
from tdbg.modes import ModeKeys
from tdbg.trial import Trial, create_trial

EVAL, PREDICT = ModeKeys.EVAL, ModeKeys.PREDICT
TRAIN = ModeKeys.TRAIN
RATE = 0.1
PARAMETERS = ("d1/kernel", "d1/bias", "d2/kernel", "d2/bias")
LOSS = "SparseCategoricalCrossentropy"


class Ran:
    """A program that has run.

    Attributes:
        report: What it reported.
    """

    def __init__(self, out: Path, backend: str) -> None:
        self.report = run_program("values", out, backend)
        self._out = out

    def trial(self, name: str) -> Trial:
        """The run of this name."""
        return create_trial(self._out / name)


@pytest.fixture(
    scope="module",
    params=["tensorflow", "torch", pytest.param("jax", marks=pytest.mark.nightly)],
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("values"), request.param)


def test_a_hook_that_captures_only_losses_changes_no_bit(ran: Ran) -> None:
    assert ran.report["losses"] == ran.report["plain"]


def test_what_is_captured_inside_of_a_step_changes_nothing_that_matters(
    ran: Ran,
) -> None:
    for name, values in ran.report["plain"].items():
        assert ran.report["modes"][name] == pytest.approx(values, rel=1e-5), name


def test_only_what_captures_is_traced_and_seldom(ran: Ran) -> None:
    assert set(ran.report["traces of losses"].values()) == {0}
    # One more trace makes the state, and one is of the smaller last batch.
    assert 1 <= ran.report["traces"]["train_function"] <= 3
    assert 1 <= ran.report["traces"]["test_function"] <= 3


def test_nothing_is_left_on_a_model_after_the_hook(ran: Ran) -> None:
    assert ran.report["left"] == []
    assert "StepFunction" not in ran.report["functions"]
    assert ran.report["counters"]["internal_errors"] == 0


def test_fit_evaluate_and_predict_are_the_modes(ran: Ran) -> None:
    trial = ran.trial("modes")
    # Per epoch 56 samples of training and 14 of validation, in batches of 16.
    loss = trial.tensor(f"{LOSS}_output_0")
    assert loss.steps(mode=TRAIN) == list(range(12))
    assert loss.steps(mode=EVAL) == list(range(3 + 2))
    assert loss.steps(mode=PREDICT) == []
    output = trial.tensor("Sequential_output_0")
    assert output.steps(mode=TRAIN) == [0, 4, 8]
    assert output.steps(mode=EVAL) == [0, 4]
    assert output.steps(mode=PREDICT) == [0]
    for name in ("gradient/d1/kernel", "update/d2/bias", "optimizer/momentum/bn/beta"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 4, 8]
        assert trial.tensor(name).steps(mode=EVAL) == []
    assert trial.tensor("d1/kernel").steps(mode=PREDICT) == [0]


def test_predictions_of_a_model_without_state_are_captured(ran: Ran) -> None:
    assert ran.report["errors of predictions"] == 0
    assert ran.trial("predictions").tensor("d1_output_0").steps(mode=PREDICT) == [0, 1]


def test_tensors_have_names_relative_to_the_model(ran: Ran) -> None:
    trial = ran.trial("modes")
    layers = {"d1_input_0", "d1_relu_output_0", "bn_output_0", "drop_output_0"}
    assert layers <= set(trial.tensor_names())
    roles = {
        "weights": {"d1/kernel", "d2/kernel", "bn/gamma"},
        "biases": {"d1/bias", "d2/bias", "bn/beta"},
        "buffers": {"buffer/bn/moving_mean", "buffer/bn/moving_variance"},
        "losses": {f"{LOSS}_output_0"},
        "predictions": {f"{LOSS}_input_0"},
        "labels": {f"{LOSS}_input_1"},
        "model_inputs": {"Sequential_input_0"},
    }
    for collection, names in roles.items():
        assert set(trial.tensor_names(collection=collection)) == names, collection
    assert {"scalar/accuracy", "scalar/loss", "scalar/epoch/val_accuracy"} <= set(
        trial.tensor_names(collection="scalars")
    )
    # Where a layer ends by a function, its output goes by the layer's name as well.
    assert trial.tensor("d1_output_0").name == "d1_relu_output_0"


def test_what_keras_logs_is_recorded_where_statistics_are_due(ran: Ran) -> None:
    trial = ran.trial("losses")  # Nothing but losses is captured.
    steps = trial.steps(mode=TRAIN)
    assert len(steps) > 10
    expected = [step for step in range(len(steps)) if step % 10 == 0]
    for name in ("scalar/loss", "scalar/accuracy"):
        assert trial.tensor(name).steps(mode=TRAIN) == expected


def test_numbers_of_an_epoch_are_those_that_keras_remembers(ran: Ran) -> None:
    trial = ran.trial("modes")
    for name, values in ran.report["modes"].items():
        tensor = trial.tensor(f"scalar/epoch/{name}")
        found = [float(tensor.value(step)) for step in tensor.steps()]
        assert found == pytest.approx(values), name


def test_a_step_is_what_computing_it_by_hand_gives(ran: Ran) -> None:
    trial = ran.trial("values")
    assert trial.tensor("d1/kernel").steps() == list(range(6))
    assert ran.report["refused"] == 0

    def value(name: str, step: int) -> Any:
        return np.asarray(trial.tensor(name).value(step), np.float64)

    for step in range(6):
        k1, b1, k2, b2 = (value(name, step) for name in PARAMETERS)
        x, y = value("Sequential_input_0", step), value(f"{LOSS}_input_1", step)
        before = x @ k1 + b1
        hidden = np.maximum(before, 0)
        scores = hidden @ k2 + b2
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        rows, labels = np.arange(len(x)), y.astype(int).ravel()
        assert value("d1_relu_output_0", step) == pytest.approx(hidden, abs=1e-5)
        assert value("d2_output_0", step) == pytest.approx(scores, abs=1e-5)
        assert value(f"{LOSS}_input_0", step) == pytest.approx(scores, abs=1e-5)
        loss = -np.log(odds[rows, labels]).mean()
        assert float(value(f"{LOSS}_output_0", step)) == pytest.approx(loss, rel=1e-5)
        odds[rows, labels] -= 1
        of_scores = odds / len(x)
        of_hidden = of_scores @ k2.T * (before > 0)
        expected = (x.T @ of_hidden, of_hidden.sum(0), hidden.T @ of_scores)
        for name, gradient in zip(
            PARAMETERS, (*expected, of_scores.sum(0)), strict=True
        ):
            found = value(f"gradient/{name}", step)
            assert found == pytest.approx(gradient, abs=1e-6), (name, step)
            update = value(f"update/{name}", step)
            assert update == pytest.approx(-RATE * gradient, abs=1e-6)
            if step < 5:
                following = value(name, step + 1)
                assert following == pytest.approx(value(name, step) + update, abs=1e-6)
        assert float(value("scalar/optimizer/group_0/lr", step)) == pytest.approx(RATE)


def test_the_state_of_an_optimizer_is_that_after_its_step(ran: Ran) -> None:
    trial = ran.trial("adam")
    for state in ("momentum", "velocity"):
        for name in PARAMETERS:
            found = trial.tensor(f"optimizer/{state}/{name}").value(2)
            (expected,) = (
                values
                for path, values in ran.report["state"].items()
                if path.endswith(f"{name.replace('/', '_')}_{state}")
            )
            assert found == pytest.approx(np.asarray(expected), rel=1e-6)


def test_the_losses_between_captured_steps_are_those_of_their_batches(ran: Ran) -> None:
    """The tracker of Keras only has their mean, so they are differences there."""
    every, losses = ran.trial("modes"), ran.trial("losses")
    for mode in (TRAIN, EVAL):
        steps = losses.tensor(f"{LOSS}_output_0").steps(mode=mode)
        assert len(steps) >= 3
        for step in steps:
            found = [
                float(each.tensor(f"{LOSS}_output_0").value(step, mode=mode))
                for each in (every, losses)
            ]
            assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_losses_of_some_steps_only_are_those_of_their_batches(ran: Ran) -> None:
    some, losses = ran.trial("some losses"), ran.trial("losses")
    assert ran.report["some losses"] == ran.report["plain"]
    assert some.tensor(f"{LOSS}_output_0").steps(mode=TRAIN) == [0, 4, 8]
    for step in (0, 4, 8):
        found, expected = (
            float(each.tensor(f"{LOSS}_output_0").value(step, mode=TRAIN))
            for each in (some, losses)
        )
        assert found == pytest.approx(expected, rel=1e-5)
