"""Keras: losses of steps of one's own, and of single outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keras_programs import run_program


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_what_a_step_calls_its_loss_is_a_loss(tmp_path: Path, backend: str) -> None:
    report = run_program("own_steps", tmp_path, backend)
    own = report["own"]
    np.testing.assert_allclose(own["losses"], own["seen"], rtol=1e-6)
    for name in ("d_output_0", "gradient/d/kernel", "loss_output_0"):
        assert own["steps"][name] == list(range(8)), name
    parts = report["several"]
    assert set(parts) == {"a_loss_output_0", "b_loss_output_0", "loss_output_0"}
    added = np.add(parts["a_loss_output_0"], parts["b_loss_output_0"])
    np.testing.assert_allclose(parts["loss_output_0"], added, rtol=1e-5)
    assert len(added) == 8
    assert report["told of loops"] == []


def test_layers_that_are_frozen_without_compiling_train_as_without_a_hook(
    tmp_path: Path,
) -> None:
    """Keras goes on with the step that it has traced, and so does what is captured."""
    for name, (expected, found, errors) in run_program("frozen", tmp_path).items():
        assert found == pytest.approx(expected, rel=1e-6), name
        assert errors == 0, name
