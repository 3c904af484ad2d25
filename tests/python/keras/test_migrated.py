"""``smdebug.tensorflow``: what scripts for smdebug's KerasHook rely on.

After smdebug's own tests/tensorflow2 (test_keras.py, test_grad_tape.py), through the
compatibility face.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_programs import run_program
from tdbg.modes import EVAL, TRAIN
from tdbg.trial import Trial, create_trial

LOSS = "SparseCategoricalCrossentropy_output_0"


class Ran:
    """A program that has run."""

    def __init__(self, out: Path) -> None:
        self.report = run_program("migrated", out)
        self.out = out

    def trial(self, name: str) -> Trial:
        """The run of this name."""
        return create_trial(self.out / name)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("migrated"))


def test_by_default_losses_are_saved_every_500_steps(ran: Ran) -> None:
    trial = ran.trial("defaults")
    tensors = [n for n in trial.tensor_names() if not n.startswith("scalar/")]
    assert tensors == [LOSS]
    assert trial.tensor(LOSS).steps(mode=TRAIN) == [0]
    assert trial.tensor(LOSS).steps(mode=EVAL) == [0]


def test_collections_need_no_forked_tensorflow(ran: Ran) -> None:
    trial = ran.trial("all")
    found = {
        name: set(trial.tensor_names(collection=name))
        for name in ("weights", "biases", "gradients", "inputs", "outputs", "custom")
    }
    assert found["weights"] == {"d1/kernel", "d2/kernel"}
    assert found["biases"] == {"d1/bias", "d2/bias"}
    assert found["gradients"] == {
        f"gradient/{each}" for each in found["weights"] | found["biases"]
    }
    assert {"d1_input_0", "d2_input_0"} <= found["inputs"]
    assert {"d1_relu_output_0", "d2_output_0"} <= found["outputs"]
    assert found["custom"] == {"d1_relu_output_0"}
    for name in found["gradients"]:
        assert trial.tensor(name).steps(mode=TRAIN) == list(range(8))
        assert trial.tensor(name).steps(mode=EVAL) == []


def test_modes_have_schedules_of_their_own(ran: Ran) -> None:
    weight = ran.trial("by mode").tensor("d1/kernel")
    assert weight.steps(mode=TRAIN) == [0, 3, 6]
    assert weight.steps(mode=EVAL) == [0, 1]


def test_a_model_can_be_saved_with_a_hook(ran: Ran) -> None:
    for name in ("defaults", "all", "by mode"):
        assert (ran.out / f"{name}.keras").is_file()


def test_the_hook_of_the_process_is_found_until_it_is_forgotten(ran: Ran) -> None:
    assert ran.report["hook"] == {
        "is found": True,
        "is gone": True,
        "refused": "AttributeError",
        "bad names": "SMDebugTypeError",
    }


def test_a_wrapped_tape_shows_the_loss_variables_and_gradients(ran: Ran) -> None:
    trial, report = ran.trial("tape"), ran.report["tape"]
    losses = [float(trial.tensor("loss").value(step)) for step in range(4)]
    assert losses == pytest.approx(report["losses"])
    names = trial.tensor_names()
    (weight,) = [n for n in names if n.endswith("d1/kernel") and "grad" not in n]
    for step in range(3):
        before, after = (trial.tensor(weight).value(step + i) for i in (0, 1))
        gradient = trial.tensor(f"gradient/{weight}").value(step)
        assert after == pytest.approx(before - 0.1 * gradient, abs=1e-6)


@pytest.mark.parametrize("way", ["model", "graph"])
def test_a_registered_model_shows_its_layers_too(ran: Ran, way: str) -> None:
    trial, report = ran.trial(way), ran.report[way]
    assert report["counters"]["internal_errors"] == 0
    for name in ("d1/kernel", "gradient/d1/kernel", "d1_relu_output_0", LOSS):
        assert trial.tensor(name).steps() == list(range(4)), name
    losses = [float(trial.tensor(LOSS).value(step)) for step in range(4)]
    assert losses == pytest.approx(report["losses"], rel=1e-6)


@pytest.mark.parametrize("way", ["tape", "model", "graph"])
def test_numbers_are_recorded_by_hand(ran: Ran, way: str) -> None:
    trial = ran.trial(way)
    assert len(trial.tensor("scalar/accuracy").steps()) == 4
    assert float(trial.tensor("my_number").value(3)) == 3.0
