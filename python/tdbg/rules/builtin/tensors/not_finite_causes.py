"""Why a tensor is not finite, as far as the rows of its step and of those before say.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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


class _Why(NamedTuple):
    """Why a tensor is not finite.

    Attributes:
        advice: What to do.
        message: What shows it, as further sentences.
        stage: The stage of the finding; None: the rule's own.
    """

    advice: Advice
    message: str = ""
    stage: Stage | None = None


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
    surely = (
        _in_batch_of_one(table, i, j)
        or _in_half_precision(table, i, j)
        or _in_data(table, i, j)
        or _in_short_ctc(table, i, j)
        or _before_training(table, i, j)
        or _in_loss(table, i, j)
        or _in_backward(table, i, j)
    )
    why = surely or _since_role(window, table, i, j)
    return replace(
        found,
        message=found.message + why.message,
        advice=why.advice,
        stage=why.stage,
    )


def _in_batch_of_one(table: Table, i: int, j: int) -> _Why | None:
    if table.roles[i] == "model_input" or not _is_batch_of_one(table, j):
        return None
    return _Why(
        "A standard deviation over one sample is NaN (std() and var() divide by "
        "n - 1). Leave out the last batch (drop_last=True), or do not normalize "
        "over the batch.",
        " The batch of this step has a single sample.",
        Stage.SETUP,
    )


def _in_data(table: Table, i: int, j: int) -> _Why | None:
    role = table.roles[i]
    if role == "input" and _are_finite(table, j, {"model_input"}):
        return _Why(
            "What the model got is finite, so the model itself makes it, before this "
            "module. Look for a division by zero there, such as by the deviation of a "
            "column that is constant (add a small number), and for log or sqrt."
        )
    if role == "prediction":
        return _Why(_of_prediction(table, j))
    if role not in ROLES["inputs"]:
        return None
    # The model makes neither its own input nor the labels.
    is_given = role in {"model_input", "label"}
    return _Why(
        "The data already contains it: check loading and normalization, and leave "
        "out or repair these samples.",
        stage=Stage.SETUP if is_given else None,
    )


def _of_prediction(table: Table, j: int) -> str:
    where = "The data are not what the loss is given here: the model makes it."
    if _are_finite(table, j, {"output"}):
        where = (
            "What the model returned is finite, so the program makes it between the "
            "model and the loss."
        )
    return (
        f"{where} Look for a division by zero, such as by a norm or a deviation, for "
        "log or sqrt at zero, and for exp or a power that overflows."
    )


def _in_short_ctc(table: Table, i: int, j: int) -> _Why | None:
    if not _is_short_ctc(table, i, j):
        return None
    return _Why(
        "CTC needs an input step for each symbol of a target, and one more between "
        "two equal symbols. Leave out the samples that are too short, or reduce "
        "the time axis less. zero_infinity=True only hides them.",
        " Outputs are finite, so at least one target is longer than its input.",
        Stage.SETUP,
    )


def _before_training(table: Table, i: int, j: int) -> _Why | None:
    """Explain weights that are not finite before anything has changed them."""
    is_first = table.steps[j] == 0 and table.ordinal[i, j] == 1
    if not is_first or table.roles[i] not in STATE_ROLES:
        return None
    return _Why(
        "No update has changed the model yet, so its initial values contain it. Check "
        "the checkpoint that you load, since the training that wrote it may already "
        "have failed, and go back to an earlier one; or check the initialization.",
        " It was like that before the first update.",
        Stage.SETUP,
    )


def _in_half_precision(table: Table, i: int, j: int) -> _Why | None:
    """Explain infinities of float16, which ends at 65,504."""
    n_inf = table["positive_infinity"][i, j] + table["negative_infinity"][i, j]
    is_given = table.roles[i] in {"model_input", "label"}
    if table.dtypes[i] != "float16" or not n_inf or is_given:
        return None
    if table.roles[i] in STATE_ROLES:
        return _Why(
            lambda words: (
                "An optimizer needs weights in float32: in float16, small updates are "
                "lost, and the small number that Adam adds before it divides (1e-8) is "
                f"zero. Keep them in float32 and use {words.mixed_precision}."
            ),
            " It has float16, whose largest number is 65,504.",
            Stage.SETUP,
        )
    return _Why(
        lambda words: (
            "Use bfloat16, which has the range of float32, or compute this part in "
            "float32. A loss scale does not help: it is the forward pass that "
            f"overflows. See {words.mixed_precision}."
        ),
        " It has float16, whose largest number is 65,504.",
    )


def _in_loss(table: Table, i: int, j: int) -> _Why | None:
    """Explain a loss of which everything that goes into it is known to be finite."""
    given = {"model_input", "label", "prediction", "output"}
    is_known = _are_finite(table, j, {"output", "prediction"})
    if table.roles[i] != "loss" or not (is_known and _are_finite(table, j, given)):
        return None
    look = (
        "ook in the loss for a division by zero (a mask or sample weights that are all "
        "zero, labels that are all ignored), for log or sqrt at zero, and for exp that "
        "overflows. Compute the loss in float32."
    )
    if _are_finite(table, j, {"label"}):
        return _Why(
            f"L{look}",
            " What the model got and returned is finite, so the loss itself makes it.",
        )
    return _Why(
        lambda words: (
            f"Check the labels of this step for NaN ({words.finite_check}). If they "
            f"are finite, l{look}"
        ),
        " What the model got and returned is finite, so it comes from the labels or "
        "from the loss itself.",
    )


def _in_backward(table: Table, i: int, j: int) -> _Why | None:
    """Explain NaN in gradients of a loss that is finite, and did not rise."""
    is_new = table.roles[i] in GRADIENT_ROLES and table["nan"][i, j] > 0
    if not (is_new and _are_finite(table, j, {"loss"}) and _calm_loss(table, j)):
        return None
    return _Why(
        "Look for a function whose slope is infinite at zero: sqrt, norm, a power "
        "below 1. Add a small number inside it, as in sqrt(x + 1e-8); a condition "
        "behind it (where) still passes NaN back. Look also for a division by zero "
        "after this loss, such as by the sum of a mask.",
        " The loss is finite and did not rise, so the backward pass makes it, or what "
        "the program computes after this loss.",
    )


def _since_role(window: Window, table: Table, i: int, j: int) -> _Why:
    # The hook records losses at every step, other tensors less often.
    present = np.flatnonzero(table.present[:, j])
    is_alone = all(table.roles[k] == "loss" for k in present)
    calm = _calm_loss(table, j)
    if calm is None:
        return _Why(_by_role(table.roles[i], is_alone=is_alone))
    loss, step = calm
    when = window.training_step(step)
    return _Why(
        partial(_of_one_batch, is_alone=is_alone),
        f" The loss was normal until step {when:,} ({number(loss)}).",
    )


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


def _are_finite(table: Table, j: int, roles: Collection[str]) -> bool:
    """Return whether tensors of these roles are known at a step, and all finite."""
    chosen = np.array([role in roles for role in table.roles])
    known = chosen & table.known[:, j]
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
