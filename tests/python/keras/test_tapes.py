"""TensorFlow: trainings that apply the gradients of tapes by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_programs import run_program
from tdbg.trial import create_trial

PARAMETERS = ("d1/kernel", "d1/bias", "d2/kernel", "d2/bias")


@pytest.fixture(scope="module")
def out(tmp_path_factory: Any) -> Path:
    made: Path = tmp_path_factory.mktemp("tapes")
    return made


@pytest.fixture(scope="module")
def report(out: Path) -> dict[str, Any]:
    return run_program("tapes", out)


@pytest.mark.parametrize("way", ["eager", "graph", "XLA"])
def test_a_training_with_a_hook_is_the_training_without(
    report: dict[str, Any], way: str
) -> None:
    plain, watched = report[way]["plain"], report[way]["watched"]
    for ours, theirs in zip(watched[0], plain[0], strict=True):
        assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert watched[2]["internal_errors"] == 0
    assert watched[3] is False  # Nothing is left on the optimizer.


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_what_is_recorded_is_what_the_optimizer_was_given(
    report: dict[str, Any], out: Path, way: str
) -> None:
    trial = create_trial(out / way)
    _, seen, _, _ = report[way]["watched"]
    assert trial.tensor("d1/kernel").steps() == list(range(12))
    for step, grads in enumerate(seen):
        for name, expected in zip(PARAMETERS, grads, strict=True):
            gradient = trial.tensor(f"gradient/{name}").value(step)
            assert gradient == pytest.approx(np.asarray(expected), abs=1e-7)
            if step:
                before = trial.tensor(name).value(step - 1)
                given = trial.tensor(f"gradient/{name}").value(step - 1)
                after = trial.tensor(name).value(step)
                assert after == pytest.approx(before - 0.1 * given, abs=1e-6)


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_updates_are_what_the_optimizer_made_of_gradients(
    report: dict[str, Any], out: Path, way: str
) -> None:
    assert report[way]
    trial = create_trial(out / way)
    update = trial.tensor("update/d1/kernel")
    assert update.steps() == list(range(12))
    for step in update.steps():
        gradient = trial.tensor("gradient/d1/kernel").value(step)
        assert update.value(step) == pytest.approx(-0.1 * gradient, abs=1e-6)


def test_what_xla_compiles_is_left_alone_and_that_is_said(
    report: dict[str, Any], out: Path
) -> None:
    assert create_trial(out / "XLA").tensor_names() == []
    assert [each for each in report["messages"] if "XLA" in each]
