"""Why a tensor is not finite, as far as the rows of its step and of those before say.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.quantities import number
from tdbg.rules.builtin.loss.loss_series import losses_of
from tdbg.rules.rule import ROLES
from tdbg.rules.window import Advice, Description, Table, Window
from tdbg.run.findings import Stage

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["GRADIENT_ROLES", "PAST", "STATE_ROLES", "explained"]

STATE_ROLES = {"weight", "bias", "buffer", "optimizer_state"}
GRADIENT_ROLES = {
    "gradient",
    "gradient_unclipped",
    "gradient_local",
    "output_gradient",
}
# Losses before the step, the least number of them that show how the training went, and
# the rise of the last one that is none.
PAST, LEAST_PAST = 10, 5
RISEN = 2.0


def explained(
    window: Window, table: Table, i: int, j: int, found: Description
) -> Description:
    """Return the description of the first tensor that is not finite, with a cause.

    Args:
        window: Knows where steps stand in the training.
        table: The training, with ``PAST`` earlier rows.
        i: Row of the first tensor that is not finite.
        j: Column of the step.
        found: What is wrong.
    """
    role = table.roles[i]
    message, stage = "", None
    advice: Advice
    if role == "input" and _is_finite_model_input(table, j):
        advice = (
            "What the model got is finite, so the model itself makes it, before this "
            "module. Look for a division by zero there, such as by the deviation of a "
            "column that is constant (add a small number), and for log or sqrt."
        )
    elif role in ROLES["inputs"]:
        advice = (
            "The data already contains it: check loading and normalization, and leave "
            "out or repair these samples."
        )
        # The model does not make its own input.
        stage = Stage.SETUP if role == "model_input" else None
    elif _is_short_ctc(table, i, j):
        message = (
            " Outputs are finite, so at least one target is longer than its input."
        )
        advice = (
            "CTC needs an input step for each symbol of a target, and one more between "
            "two equal symbols. Leave out the samples that are too short, or reduce "
            "the time axis less. zero_infinity=True only hides them."
        )
        stage = Stage.SETUP
    elif _is_batch_of_one(table, j):
        message = " The batch of this step has a single sample."
        advice = (
            "A standard deviation over one sample is NaN (std() and var() divide by "
            "n - 1). Leave out the last batch (drop_last=True), or do not normalize "
            "over the batch."
        )
        stage = Stage.SETUP
    else:
        # The hook records losses at every step, other tensors less often.
        present = np.flatnonzero(table.present[:, j])
        is_alone = all(table.roles[k] == "loss" for k in present)
        advice = _by_role(role, is_alone=is_alone)
        calm = _calm_loss(table, j)
        if calm is not None:
            loss, step = calm
            when = window.training_step(step)
            message = f" The loss was normal until step {when:,} ({number(loss)})."
            advice = partial(_of_one_batch, is_alone=is_alone)
    return replace(found, message=found.message + message, advice=advice, stage=stage)


def _by_role(role: str, *, is_alone: bool) -> Advice:
    """Return the advice where nothing but the role of the tensor is known."""
    if is_alone:
        return lambda words: (
            f"{_ALONE} Usually the learning rate is too high: lower it or clip "
            f"gradients ({words.clipping}). Otherwise, look for NaN in the data, and "
            "in the loss for log, a division at zero, and labels out of range."
        )
    if role in STATE_ROLES:
        return lambda words: (
            "The update of the previous step caused it. Lower the learning rate or "
            f"clip gradients ({words.clipping}), then go back to the last checkpoint "
            "before this step."
        )
    if role in GRADIENT_ROLES:
        return lambda words: (
            "The forward pass was finite, but its gradient is not. Lower the learning "
            f"rate or clip gradients ({words.clipping}), and look for sqrt, log or a "
            "division at zero."
        )
    if role == "loss":
        return (
            "The inputs of the loss are finite, or not captured. Look in the loss for "
            "log or a division at zero, and for labels that are out of range or all "
            "ignored. Compute the loss in float32."
        )
    return (
        "Lower the learning rate, warm it up, or clip gradients. Look for log, exp or "
        "a division that overflows. In float16, use a loss scale or bfloat16. Then go "
        "back to the last checkpoint before this step."
    )


_ALONE = (
    "At this step the hook recorded only losses. Set SaveConfig(statistics_interval=1) "
    "to find the first tensor."
)


def _of_one_batch(words: Vocabulary, *, is_alone: bool) -> str:
    advice = (
        "A learning rate that is too high makes the loss rise first, so look at the "
        f"data of this step: NaN in inputs or labels ({words.finite_check}), and "
        "labels that are out of range or all ignored. Then look for sqrt, log or a "
        "division at zero."
    )
    return f"{advice} {_ALONE}" if is_alone else advice


def _calm_loss(table: Table, j: int) -> tuple[float, int] | None:
    """Return the last loss before a column, with its step, if losses did not rise.

    None if they did, or if there are too few to tell.
    """
    calm = None
    for i, role in enumerate(table.roles):
        rows = np.flatnonzero(table.known[i, :j])[-PAST:]
        if role != "loss" or not len(rows):
            continue
        sizes = np.abs(losses_of(table, i)[rows])
        if len(rows) < LEAST_PAST or not np.isfinite(sizes).all():
            return None
        if sizes[-1] > RISEN * np.median(sizes):
            return None
        if calm is None:
            calm = float(losses_of(table, i)[rows[-1]]), int(table.steps[rows[-1]])
    return calm


def _is_finite_model_input(table: Table, j: int) -> bool:
    """Return whether the model's inputs are known at a step, and all finite."""
    inputs = np.array([role == "model_input" for role in table.roles])
    known = inputs & table.known[:, j]
    return bool(known.any() and (table.not_finite[known, j] == 0).all())


def _is_short_ctc(table: Table, i: int, j: int) -> bool:
    """Return whether a CTC loss is infinite although its outputs are finite.

    By its definition it is then the likelihood of a target that no path spells.
    """
    name = table.names[i]
    if table.roles[i] != "loss" or "ctc" not in name.lower():
        return False
    given = f"{name.rpartition('_output_')[0]}_input_0"
    if given not in table.names or not table["positive_infinity"][i, j] > 0:
        return False
    k = table.names.index(given)
    return bool(table.known[k, j] and table.not_finite[k, j] == 0)


def _is_batch_of_one(table: Table, j: int) -> bool:
    """Return whether the model got a single sample, and finite, unlike at first."""
    for i, role in enumerate(table.roles):
        shape = table.shapes[i]
        if role == "model_input" and table.known[i, j] and len(shape) > 1:
            is_one = table["count"][i, j] == math.prod(shape[1:]) < math.prod(shape)
            return bool(is_one and table.not_finite[i, j] == 0)
    return False
