"""Values of a stretch of steps, found at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.trial import TensorHandle, create_trial


@pytest.fixture
def trained(run_dir: Path) -> TensorHandle:
    """A weight at steps 0, 2, 4, 6, 8, and a scalar at every step."""
    with RunBuilder(run_dir) as run:
        for step in range(10):
            if step % 2 == 0:
                run.save(step, "fc.weight", np.full(3, step, np.float32))
            run.scalar(step, "scalar/lr", 0.1 * step)
            run.end_step(step)
    return create_trial(run_dir).tensor("fc.weight")


def test_they_are_those_that_are_found_one_by_one(trained: TensorHandle) -> None:
    found = trained.values_between(2, 7)
    assert list(found) == [2, 4, 6]
    assert len(found) == 3
    for step, value in found.items():
        np.testing.assert_array_equal(value, trained.value(step))
        assert not value.flags.writeable


def test_the_end_is_left_out_and_what_is_not_there_is_no_key(
    trained: TensorHandle,
) -> None:
    found = trained.values_between(2, 6)
    assert [step in found for step in (0, 2, 3, 4, 6)] == [0, 1, 0, 1, 0]
    with pytest.raises(KeyError):
        found[6]
    assert dict(trained.values_between(4, 4)) == {}
    assert dict(trained.values_between(100, 200)) == {}


@pytest.mark.usefixtures("trained")
def test_scalars_have_them_too(run_dir: Path) -> None:
    rates = create_trial(run_dir).tensor("scalar/lr").values_between(3, 5)
    assert {s: float(v) for s, v in rates.items()} == pytest.approx({3: 0.3, 4: 0.4})
