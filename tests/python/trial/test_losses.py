"""``Trial.losses``: the losses of training and evaluation, a series for each mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.trial import create_trial

LOSS = "MSELoss_output_0"


@pytest.fixture
def run_with_evaluation(run_dir: Path) -> Path:
    """Training steps 0, 1, 3, 4 and evaluation steps 2 and 5; step 3 has no loss."""
    with RunBuilder(run_dir) as run:
        for step in range(6):
            mode = ModeKeys.EVAL if step in (2, 5) else ModeKeys.TRAIN
            run.save(step, "fc.weight", np.ones(3, np.float32))
            if step != 3:
                first = np.nan if step == 4 else step
                loss = np.array([first, step + 1], np.float32)
                run.save(step, LOSS, loss, role=Role.LOSS)
            run.end_step(step, mode)
    return run_dir


def test_each_mode_has_a_series_with_its_steps_and_mean_values(
    run_with_evaluation: Path,
) -> None:
    training, evaluation = create_trial(run_with_evaluation).losses()
    assert (training.name, training.mode) == (LOSS, ModeKeys.TRAIN)
    assert training.steps.tolist() == [0, 1, 4]
    assert training.mode_steps.tolist() == [0, 1, 3]
    np.testing.assert_array_equal(training.values, [0.5, 1.5, np.nan])
    assert (evaluation.name, evaluation.mode) == (LOSS, ModeKeys.EVAL)
    assert evaluation.steps.tolist() == [2, 5]
    assert evaluation.mode_steps.tolist() == [0, 1]
    assert evaluation.values.tolist() == [2.5, 5.5]
    assert len(evaluation) == 2


def test_a_mode_alone_can_be_asked_for(run_with_evaluation: Path) -> None:
    trial = create_trial(run_with_evaluation)
    assert [each.mode for each in trial.losses("eval")] == [ModeKeys.EVAL]
    assert trial.losses(ModeKeys.PREDICT) == []


def test_a_run_without_losses_has_none(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.step(0, {"fc.weight": np.ones(3, np.float32)})
    assert create_trial(run_dir).losses() == []
