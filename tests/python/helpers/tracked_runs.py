"""Runs to forward to trackers: a sick training, with evaluation and a learning rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from run_builder import RunBuilder
from tdbg.config import Role
from tdbg.modes import ModeKeys

__all__ = ["add_steps", "sick_run", "wall_of"]

WALL_NS = 1_700_000_000_000_000_000


def wall_of(step: int) -> float:
    """When a step ended, in seconds since 1970."""
    return (WALL_NS + step * 1_000_000_000) / 1e9


def add_steps(run: RunBuilder, first: int, last: int) -> None:
    """Steps from *first* to before *last*; each fourth is one of evaluation.

    From step 8 on, the gradient of ``fc.weight`` is not finite.
    """
    for step in range(first, last):
        mode = ModeKeys.EVAL if step % 4 == 3 else ModeKeys.TRAIN
        gradient = np.full((4, 3), np.nan if step >= 8 else 0.5, np.float32)
        loss = np.array(1.0 / (step + 1), np.float32)
        run.save(step, "loss_output_0", loss, role=Role.LOSS)
        if mode is ModeKeys.TRAIN:
            run.save(step, "gradient/fc.weight", gradient, what="statistics")
            run.scalar(step, "scalar/lr", 0.1, wall_ns=WALL_NS + step)
        run.end_step(step, mode, wall_ns=WALL_NS + step * 1_000_000_000)


def sick_run(path: Path, n_steps: int = 16) -> Path:
    """A run that has ended."""
    with RunBuilder(path) as run:
        add_steps(run, 0, n_steps)
    return path
