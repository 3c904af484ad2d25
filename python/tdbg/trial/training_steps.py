"""Training steps: where the recorded steps of all modes stand in the training.

A recorded step has a global number, which counts evaluation, too.  The user's loop,
log lines and checkpoints count training alone, and so does everything that people
read.  This is the one place that derives that number.

Thread safety: functions over values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import EVALUATION, PREDICT, TRAINING, ModeKeys

__all__ = [
    "OF_ROUNDS",
    "edges_of",
    "is_training",
    "training_steps",
    "training_steps_at",
]

Steps = NDArray[np.int64]

# Frameworks of boosted trees: a round is not over until it has been evaluated.
OF_ROUNDS = frozenset({"xgboost", "lightgbm", "catboost"})


def is_training(modes: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return which steps train: those of mode TRAIN and GLOBAL."""
    found: NDArray[np.bool_] = np.zeros(len(modes), np.bool_)
    for mode in TRAINING:
        found |= modes == mode.value
    return found


def training_steps(
    steps: Steps, modes: NDArray[np.integer], mode_steps: Steps, *, in_rounds: bool
) -> Steps:
    """Return where recorded steps stand in the training.

    A step of training stands at its number among those, counted from 0.  One of
    evaluation or prediction stands at the number of training steps before it; in
    training by rounds, at the round that it belongs to.

    Args:
        steps: Global steps, ascending.  Shape (n,), like all.
        modes: The mode of each.
        mode_steps: The number of each in its mode.
        in_rounds: Whether a step of evaluation belongs to the training step before it.
    """
    trained = _begun(modes, mode_steps, TRAINING)
    evaluated = _begun(modes, mode_steps, EVALUATION)
    # Of training steps without a record, the global number still knows.
    before = np.maximum(trained, steps + 1 - evaluated)
    following = np.where(is_training(modes), trained - 1, np.iinfo(np.int64).max)
    limit = np.minimum.accumulate(following[::-1])[::-1]
    before = np.minimum(before, limit)
    if in_rounds:
        of_stage = modes == PREDICT.value
        before = np.where(of_stage, mode_steps, np.maximum(before - 1, 0))
    found: Steps = np.where(is_training(modes), trained - 1, before)
    return found


def training_steps_at(steps: Steps, table: Steps, training: Steps) -> Steps:
    """Return where any global steps stand, recorded or not; -1 stays -1.

    Args:
        steps: The steps to place.  Shape (m,).
        table: The recorded steps, ascending.  Shape (n,).
        training: Where these stand.
    """
    if not len(table):
        return steps.copy()
    at = np.searchsorted(table, steps, side="right") - 1
    at_or_first = np.maximum(at, 0)
    ahead = np.append(training[1:], np.iinfo(np.int64).max)[at_or_first]
    guess = training[at_or_first] + steps - table[at_or_first]
    is_known = table[at_or_first] == steps
    found = np.where(is_known, training[at_or_first], np.minimum(guess, ahead))
    found = np.maximum(found, np.minimum(steps, 0))
    return np.where(steps < 0, steps, found)


def edges_of(steps: Steps, places: Steps, marks: Steps) -> Steps:
    """Return the global steps that bound columns between marks of an axis.

    Args:
        steps: Recorded steps, ascending.  Shape (n,).
        places: Where they lie on the axis, never descending.  Shape (n,).
        marks: Bounds of the columns on the axis, ascending.  Shape (columns + 1,).

    Returns:
        int64 (columns + 1,), never descending: column ``j`` has the steps that lie at
        ``marks[j] <= place < marks[j + 1]``.
    """
    if not len(steps):
        return np.zeros(len(marks), np.int64)
    bounds = np.append(steps, steps[-1] + 1)
    return bounds[np.searchsorted(places, marks, side="left")]


def _begun(
    modes: NDArray[np.integer], mode_steps: Steps, counted: frozenset[ModeKeys]
) -> Steps:
    """Return how many steps of some modes had begun when each step had."""
    total = np.zeros(len(modes), np.int64)
    for mode in counted:
        of_mode = modes == mode.value
        if of_mode.any():
            begun = np.where(of_mode, mode_steps + 1, 0)
            total += np.where(of_mode, begun, np.maximum.accumulate(begun))
    return total
