"""Keras on each backend: steps, names and values in whatever a training does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_programs import run_program
from tdbg.trial import Trial, create_trial

LOSS = "SparseCategoricalCrossentropy"


class Ran:
    """A program that has run."""

    def __init__(self, out: Path, backend: str) -> None:
        self.report = run_program("situations", out, backend)
        self.backend = backend
        self._out = out

    def trial(self, name: str) -> Trial:
        """The run of this name."""
        return create_trial(self._out / name)


@pytest.fixture(
    scope="module",
    params=["tensorflow", "torch", pytest.param("jax", marks=pytest.mark.nightly)],
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("situations"), request.param)


def test_tdbg_meets_no_error_of_its_own(ran: Ran) -> None:
    for name, found in ran.report.items():
        if "counters" in found:
            assert found["counters"]["internal_errors"] == 0, name


@pytest.mark.parametrize("way", ["compiled by XLA", "eager", "several"])
def test_the_training_is_the_same_however_it_is_run(ran: Ran, way: str) -> None:
    if way == "several" and way not in ran.report:
        assert ran.backend == "torch"  # Which refuses several steps an execution.
        return
    plain, captured = ran.report[way]["result"]
    assert plain or (ran.backend, way) == ("torch", "compiled by XLA")
    for name in plain:
        assert captured[name] == pytest.approx(plain[name], rel=1e-5), name
    assert ran.report[way]["steps"] == 15
    trial = ran.trial(way)
    every = 6 if way == "several" else 1
    expected = list(range(0, 15, every))
    assert trial.tensor("gradient/d1/kernel").steps() == expected
    assert trial.tensor("d1_relu_output_0").steps() == expected


def test_a_smaller_last_batch_has_a_shape_of_its_own(ran: Ran) -> None:
    output = ran.trial("eager").tensor("d2_output_0")
    assert [output.value(step).shape for step in (3, 4, 5)] == [
        (16, 3),
        (6, 3),
        (16, 3),
    ]


def test_executions_of_several_steps_are_told_apart_where_they_are_captured(
    ran: Ran,
) -> None:
    if ran.backend == "torch":
        return
    # Five batches an epoch are executions of three and of two.
    loss = ran.trial("several").tensor(f"{LOSS}_output_0")
    alone = ran.trial("eager").tensor(f"{LOSS}_output_0")
    assert set(loss.steps()) >= {0, 6, 12}
    for step in (0, 6, 12):
        assert float(loss.value(step)) == pytest.approx(
            float(alone.value(step)), rel=1e-4
        )


def test_a_step_whose_gradients_overflow_is_skipped(ran: Ran) -> None:
    trial = ran.trial("overflow")
    gradient = trial.tensor("gradient/d1/kernel")
    update = trial.tensor("update/d1/kernel")
    assert gradient.steps() == list(range(8))
    updated = update.steps()
    assert 2 <= len(updated) < 8
    for step in updated:
        found, expected = update.value(step), -0.1 * gradient.value(step)
        assert found == pytest.approx(expected, abs=1e-6)
    skipped = set(range(8)) - set(updated)
    for step in skipped:
        assert not np.isfinite(gradient.value(step)).all()
    table = trial.step_table()
    assert set(table["step"][table["skipped"]].tolist()) == skipped


def test_accumulated_batches_are_micro_batches_of_one_step(ran: Ran) -> None:
    trial = ran.trial("accumulated")
    assert ran.report["accumulated"]["steps"] == 3  # The last one was not finished.
    gradient = trial.tensor("gradient/d1/kernel")
    assert gradient.steps() == [0, 1]
    for step in gradient.steps():
        update = trial.tensor("update/d1/kernel").value(step)
        assert update == pytest.approx(-0.1 * gradient.value(step), abs=1e-6)
    assert trial.tensor("d1_relu_output_0").stats(0).count == 4 * 16 * 16


def test_gradients_are_as_the_optimizer_clips_them(ran: Ran) -> None:
    trial = ran.trial("clipped")
    names = ("d1/kernel", "d1/bias", "d2/kernel", "d2/bias")
    for step in range(3):
        clipped = [trial.tensor(f"gradient/{each}").value(step) for each in names]
        norm = np.sqrt(sum(float((each**2).sum()) for each in clipped))
        assert norm == pytest.approx(0.01, rel=1e-4)
        whole = trial.tensor("gradient_unclipped/d1/kernel").value(step)
        assert clipped[0] / whole == pytest.approx(
            np.full_like(whole, (clipped[0] / whole).flat[0]), rel=1e-3
        )


def test_tensors_have_the_element_types_that_the_training_has(ran: Ran) -> None:
    trial = ran.trial("bfloat16")
    assert trial.tensor("d1_relu_output_0").value(0).dtype.name == "bfloat16"
    assert trial.tensor("d1/kernel").value(0).dtype.name == "float32"


def test_a_frozen_layer_has_no_gradient_and_is_known_as_frozen(ran: Ran) -> None:
    trial = ran.trial("frozen")
    assert "gradient/d1/kernel" not in trial.tensor_names()
    assert trial.tensor("gradient/d2/kernel").steps() == list(range(5))
    known = trial.model_info()[-1].parameters
    assert {name: each.requires_grad for name, each in known.items()} == {
        "d1/kernel": False,
        "d1/bias": False,
        "d2/kernel": True,
        "d2/bias": True,
    }


def test_collections_may_grow_while_the_training_goes_on(ran: Ran) -> None:
    trial = ran.trial("later")
    assert trial.tensor("d1_relu_output_0").steps() == list(range(5, 10))
    assert "d2_output_0" not in trial.tensor_names()  # Nobody captures weights.


def test_what_regularization_adds_is_in_the_loss(ran: Ran) -> None:
    trial = ran.trial("regularized")
    loss = trial.tensor("loss_output_0")
    sizes = [16, 16, 16, 16, 6]
    mean = np.average([float(loss.value(step)) for step in range(5)], weights=sizes)
    assert mean == pytest.approx(ran.report["regularized"]["result"][0], rel=1e-5)
    assert f"{LOSS}_output_0" not in trial.tensor_names()


def test_a_layer_that_is_called_twice_has_two_outputs(ran: Ran) -> None:
    trial = ran.trial("subclassed")
    names = set(trial.tensor_names())
    expected = {"shared_tanh_output_0", "shared_tanh_output_0@2", "Encoder_output_0"}
    assert expected <= names
    assert any(name.endswith("out/kernel") for name in names)
    assert trial.tensor("gradient/shared/kernel").steps() == list(range(5))


def test_the_gradient_of_an_embedding_counts_the_rows_that_were_used(ran: Ran) -> None:
    trial = ran.trial("embedding")
    row = trial.tensor("gradient/table/embeddings").stats(0)
    assert row.count == 50 * 4
    assert row.zero >= 37 * 4
    units = trial.tensor("unit/gradient/table/embeddings").value(0)
    assert units.shape == (3, 50)
    assert (units[0] > 0).sum() == 13
    assert set(np.flatnonzero(units[0])) == set(range(13))


def test_units_of_images_are_channels_which_come_last(ran: Ran) -> None:
    trial = ran.trial("channels")
    output = trial.tensor("conv_relu_output_0").value(0)
    assert output.shape == (16, 2, 2, 5)
    units = trial.tensor("unit/conv_relu_output_0").value(0)
    assert units[0].tolist() == (output > 0).sum(axis=(0, 1, 2)).tolist()
    assert units[2].tolist() == [16 * 4] * 5
    facts = trial.model_info()[-1]
    kernel = facts.parameters["conv/kernel"]
    assert (kernel.n_units, kernel.n_inputs) == (5, 18)
    assert facts.kind_of("conv_relu_output_0") == "relu"
    assert facts.kind_of_class("Conv2D") == "conv"
    assert facts.kinds["MeanSquaredError"] == "mse"


def test_two_optimizers_in_one_step_are_one_step(ran: Ran) -> None:
    if ran.backend != "tensorflow":
        return  # Such a step is written for one backend.
    trial = ran.trial("two players")
    assert ran.report["two players"]["steps"] == 8
    for name in ("gradient/generator/g1/kernel", "gradient/critic/c1/kernel"):
        found = [each for each in trial.tensor_names() if each.endswith(name[9:])]
        assert name in found
        assert trial.tensor(name).steps() == list(range(8))
    losses = trial.tensor("critic_loss_output_0")
    assert losses.steps() == list(range(8))
    mean = np.mean([float(losses.value(step)) for step in range(4)])
    assert mean == pytest.approx(ran.report["two players"]["result"][0], rel=1e-5)
    assert set(trial.model_info()[-1].optimizers) == {"Adam", "SGD"}
    # The critic is called three times, and its loss is computed of each.
    calls = {f"BinaryCrossentropy_input_0{call}" for call in ("", "@2", "@3")}
    assert calls <= set(trial.tensor_names())
