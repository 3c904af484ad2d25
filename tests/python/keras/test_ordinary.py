"""Keras: what is said of a loss is what that loss of that backend computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_programs import run_program

# What TensorFlow's cross-entropies mend, and others do not.
MENDED = {"softmax", "sigmoid"}
# Losses of one's own that broadcast, as the graph of TensorFlow shows.
READ = {"a class", "a name"}


@pytest.mark.parametrize(
    "backend",
    [
        "tensorflow",
        pytest.param("torch", marks=pytest.mark.nightly),
        pytest.param("jax", marks=pytest.mark.nightly),
    ],
)
def test_a_loss_is_accused_only_of_what_it_computes(
    tmp_path: Path, backend: str
) -> None:
    report = run_program("ordinary", tmp_path, backend)
    accused = {name: text for name, text in report.items() if text}
    expected = {"scaled", "three ranks", "scores", "a score"} | (
        READ if backend == "tensorflow" else MENDED
    )
    assert set(accused) == expected
    assert "broadcast to (32, 1, 32)" in accused["three ranks"][0]
    assert "cannot fall below" in accused["scaled"][0]
    for name in ("scores", "a score"):
        assert "takes probabilities, but the last layer ends" in accused[name][0]
