"""Checks of the inputs of losses: their values, axes and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import REGRESSIONS, InputHandling, Kind
from tdbg.config.quantities import number, plural
from tdbg.rules.builtin.loss.loss_series import FIRST
from tdbg.rules.columns import kind_of
from tdbg.rules.table import min_span, nothing_to_describe, streak_spans
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Table,
)
from tdbg.run.findings import Severity, Stage
from tdbg.run.loss_facts import LossFact, LossFault

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = [
    "broadcast_shape",
    "ignored_labels",
    "metric_of_scores",
    "of_wrong_labels",
    "of_wrong_scores",
    "probabilities_are_scores",
    "softmax_for_bits",
    "wrong_axis",
    "wrong_inputs",
]


def broadcast_shape(
    outputs: tuple[int, ...],
    targets: tuple[int, ...],
    handling: str | None = None,
) -> tuple[int, ...] | None:
    """Return the broadcast shape, if it has more elements than either; else None.

    Args:
        outputs: The shape of what the model returned.
        targets: That of what it should have returned.
        handling: What the loss does to both first (``InputHandling``); None: nothing.

    Example:
        >>> broadcast_shape((32, 1), (32,))
        (32, 32)
        >>> broadcast_shape((32, 1), (32, 1)), broadcast_shape((32, 8), (32, 1))
        (None, None)
        >>> broadcast_shape((32, 1), (32,), InputHandling.ALIGN_RANKS)
    """
    if handling == InputHandling.RESHAPE_TARGETS:
        return None
    if handling == InputHandling.ALIGN_RANKS:
        outputs, targets = _aligned(outputs, targets), _aligned(targets, outputs)
    try:
        both = np.broadcast_shapes(outputs, targets)
    except ValueError:
        return None
    larger = max(math.prod(outputs), math.prod(targets))
    return both if math.prod(both) > larger else None


def _aligned(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its last 1 where the other has one dimension less."""
    is_longer = len(shape) == len(other) + 1 and shape[-1] == 1
    return shape[:-1] if is_longer else shape


# Largest distance of a sum from one: numbers in half precision are rounded.
NORMALIZED_WITHIN = 0.01
# Least distance from one at which a sum over the classes is wrong.
OFF = 0.1


def wrong_axis(logarithms: NDArray[np.generic], class_axis: int = 1) -> int | None:
    """Return the wrong axis over which probabilities add up to one, or None.

    Also None if they add up to one over the classes too, or if the axes have the same
    size: with as many samples as classes either axis may be right, since a loss on
    pairs compares them in both directions.

    Args:
        logarithms: The logarithms of the probabilities.
        class_axis: The dimension in which the loss has the classes.

    Example:
        >>> scores = np.log([[0.2, 0.9, 0.5], [0.8, 0.1, 0.5]])
        >>> wrong_axis(scores), wrong_axis(scores.T), wrong_axis(scores[0])
        (0, None, None)
    """
    if logarithms.ndim < 2 or 1 in logarithms.shape:
        return None
    # Another check reports values above the logarithm of one.
    given = np.minimum(logarithms.astype(np.float64), 1.0)
    probabilities = np.exp(given)
    if np.abs(probabilities.sum(axis=class_axis) - 1.0).max(initial=0.0) <= OFF:
        return None
    for axis in range(logarithms.ndim):
        sums = probabilities.sum(axis=axis)
        is_one = sums.size and np.abs(sums - 1.0).max() <= NORMALIZED_WITHIN
        if is_one and logarithms.shape[axis] != logarithms.shape[class_axis]:
            return axis
    return None


# Least number of consecutive rows, and of numbers in each: a few scores may lie between
# 0 and 1 by chance.
PATIENCE = 3
LEAST = 32
# The losses of probabilities.
_OF_PROBABILITIES = frozenset({Kind.BCE, Kind.CROSS_ENTROPY_OF_PROBABILITIES})
# Scores that are less apart make a loss of more than 4e-5, which no rounding hides.
UNSURE = 10.0
# Largest relative distance of the mean probability of n classes from 1 / n.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class _Given:
    """The steps at which a check finds the input of a loss wrong.

    Steps in ``certain`` are findings at once; others must last.
    """

    known: Bools
    is_wrong: Bools
    describe: Callable[[int], Description]
    certain: Mapping[int, Description] = field(default_factory=dict)


def wrong_inputs(table: Table, model_info: ModelInfo | None) -> Iterator[Evaluation]:
    """Judge the inputs of losses of a known kind.

    The softmax of probabilities is nearly even, and their sigmoid above one half, so
    the loss has a floor however good the model is.  The logarithm of a probability is
    never positive: a loss that gets scores instead falls without end as they grow, and
    one that gets probabilities does not push them to one hard enough.  Probabilities
    lie between 0 and 1: a loss clips scores to that range, or fails at them.  After a
    softmax over the samples, samples compete instead of classes.  If broadcasting
    yields more elements than outputs or targets have, it compares each output with all
    targets.
    """
    labels = {
        name: i for i, name in enumerate(table.names) if table.roles[i] == "label"
    }
    for i, name in enumerate(table.names):
        if table.roles[i] != "prediction":
            continue
        label = labels.get(name.replace("_input_0", "_input_1"))
        kind = kind_of(model_info, name)
        handling = model_info.input_handling_of(name) if model_info else None
        if handling == InputHandling.FIND_SCORES:
            continue  # It is given the right thing in a wrong form, and mends that.
        if kind == Kind.CROSS_ENTROPY and label is not None:
            yield _judge(table, i, _of_classes(table, i, label))
        elif kind in REGRESSIONS and label is not None:
            yield _judge(table, i, _of_elements(table, i, label, handling))
        elif kind == Kind.BCE_WITH_LOGITS:
            yield _judge(table, i, _of_bits(table, i))
        elif kind in _OF_PROBABILITIES:
            yield _judge(table, i, _of_probabilities(table, i, kind))
        elif kind == Kind.NLL:
            axis = -1 if handling == InputHandling.CLASSES_LAST else 1
            yield _judge(table, i, _of_logarithms(table, i, axis))
        elif kind == Kind.KL_DIV:
            # A KL divergence compares distributions over any axis.
            yield _judge(table, i, _of_logarithms(table, i, None))


def ignored_labels(table: Table, model_info: ModelInfo | None) -> Iterator[Evaluation]:
    """Judge whether a loss of class numbers ignores all labels of a batch.

    It does if all are the same number and that is below zero, as no class is, or the
    loss of finite outputs is NaN: a mean of nothing.  It also does if the loss is
    exactly zero, as a sum of nothing, although no output is far above the others.
    """
    index = {name: i for i, name in enumerate(table.names)}
    for i, name in enumerate(table.names):
        if table.roles[i] != "label" or "int" not in table.dtypes[i]:
            continue
        if kind_of(model_info, name) not in {Kind.CROSS_ENTROPY, Kind.NLL}:
            continue
        path = name.rpartition("_input_")[0]
        outputs, loss = index.get(f"{path}_input_0"), index.get(f"{path}_output_0")
        known = table.known[i]
        alike = known & (table["min"][i] == table["max"][i])
        ignored = alike & (table["max"][i] < 0)
        if outputs is not None and loss is not None:
            is_nan = table.known[loss] & (table["nan"][loss] > 0)
            is_finite = table.known[outputs] & (table.not_finite[outputs] == 0)
            is_zero = table.known[loss] & (table["l2"][loss] == 0)
            is_zero &= table["max"][outputs] - table["min"][outputs] < UNSURE
            handling = model_info.input_handling_of(name) if model_info else None
            # That of scores that are not captured may be zero.
            is_zero &= handling != InputHandling.FIND_SCORES
            ignored |= alike & (is_nan | is_zero) & is_finite
        severities = np.where(ignored, int(Severity.WARNING), OK)
        if loss is not None:
            is_spoiled = ignored & table.known[loss] & (table["nan"][loss] > 0)
            severities[is_spoiled] = Severity.ERROR
        severities[~known] = UNKNOWN
        yield _all_ignored(table, i, severities)


def _all_ignored(table: Table, i: int, severities: NDArray[np.integer]) -> Evaluation:
    def describe(j: int) -> Description:
        column = j + table.start
        n, label = int(table["count"][i, column]), table["max"][i, column]
        return Description(
            message=(
                f"The loss ignores all {n:,} labels of this batch: each is "
                f"{number(label)}. So the batch teaches nothing: a sum over its labels "
                "is zero, and a mean is NaN."
            ),
            value=float(n),
            threshold=float(n),
            advice=(
                "Check that the ignored index is no class. Find out why these samples "
                f"have no label but {number(label)}: a "
                "prompt that is as long as the maximal length leaves no answer after "
                "truncation. Raise that length, truncate the prompt instead of the "
                "answer, or leave the samples out."
            ),
            stage=Stage.SETUP,
        )

    return table.judge_one(table.names[i], severities[table.start :], describe)


def _of_classes(table: Table, i: int, label: int) -> _Given:
    known = table.known[i] & table.known[label] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    with np.errstate(divide="ignore", invalid="ignore"):
        # A label is a class number, or has a probability for each class.
        classes = table["count"][i] / table["count"][label]
        classes = np.where(classes == 1.0, 1.0 / table["mean"][label], classes)
        off = np.abs(table["mean"][i] * classes - 1.0)
        samples = table["count"][i] / classes
        off_samples = np.abs(table["mean"][i] * samples - 1.0)
    within = (table["min"][i] >= 0.0) & (table["max"][i] <= 1.0 + ROUNDING)
    within &= known & (classes > 1.5)
    is_squashed = within & (off <= ROUNDING)
    over_samples = within & (off_samples <= ROUNDING) & (samples > 1.5)

    def describe(j: int) -> Description:
        if is_squashed[j]:
            return _squashed(table, i, j, round(classes[j]))
        return _over_samples(table, i, j, round(samples[j]), round(classes[j]))

    return _Given(known, is_squashed | over_samples, describe)


def _of_bits(table: Table, i: int) -> _Given:
    known = table.known[i] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    # Zeros come from a ReLU, or from a layer that starts at zero.
    is_squashed = known & (table["min"][i] > 0.0) & (table["max"][i] <= 1.0)
    # Scores, such as a critic's, may end up in this range; outputs of a sigmoid are
    # in it from the beginning.
    began = known & (table.ordinal[i] <= FIRST)
    is_squashed &= ~np.logical_or.accumulate(began & ~is_squashed)
    return _Given(known, is_squashed, lambda j: _squashed(table, i, j, 1))


def _of_probabilities(table: Table, i: int, kind: str) -> _Given:
    known = table.known[i] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    # A cross-entropy divides its inputs by their sum first, so they may exceed one.
    highest = 1.0 + ROUNDING if kind == Kind.BCE else math.inf
    is_wrong = (table["min"][i] < -ROUNDING) | (table["max"][i] > highest)
    return _Given(known, known & is_wrong, lambda j: _no_probabilities(table, i, j))


def _of_elements(table: Table, i: int, label: int, handling: str | None) -> _Given:
    # Shapes follow from the code, so the first batch is enough.
    first = table.known[i] & (table.ordinal[i] == 1)
    certain: dict[int, Description] = {}
    for j in np.flatnonzero(first[table.start :]) + table.start:
        step = int(table.steps[j])
        outputs = table.value(table.names[i], step)
        targets = table.value(table.names[label], step)
        if outputs is None or targets is None:
            first[j] = False
            continue
        both = broadcast_shape(outputs.shape, targets.shape, handling)
        if both is not None:
            certain[int(j)] = _compared(outputs.shape, targets.shape, both)
    return _Given(first, np.zeros_like(first), nothing_to_describe, certain)


def _of_logarithms(table: Table, i: int, class_axis: int | None) -> _Given:
    known = table.known[i] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    is_wrong = known & (table["max"][i] > ROUNDING)
    certain: dict[int, Description] = {}
    if class_axis is not None:
        kept = np.isin(table.steps, table.value_steps(table.names[i]))
        for j in np.flatnonzero(known & ~is_wrong & kept).tolist():
            if j < table.start:
                continue
            found = _over_wrong_axis(table, i, j, class_axis)
            if found is not None:
                certain[j] = found
        known &= is_wrong | kept
    return _Given(known, is_wrong, lambda j: _no_logarithms(table, i, j), certain)


def _judge(table: Table, i: int, given: _Given) -> Evaluation:
    one = table.select([i])
    streak = one.streak(given.is_wrong[np.newaxis, :], given.known[np.newaxis, :])
    lasted = streak_spans(table.steps, streak)[0]
    lasting = (streak[0] >= PATIENCE) & (lasted >= min_span(PATIENCE))
    severities = np.where(given.known & ~given.is_wrong, OK, UNKNOWN)
    severities[lasting] = Severity.WARNING
    severities[list(given.certain)] = Severity.WARNING

    def describe(j: int) -> Description:
        column = j + table.start
        found, since = given.certain.get(column), None
        if found is None:
            found = given.describe(column)
            since = int(table.steps[column] - lasted[column]) + 1
        return replace(found, since=since, stage=Stage.SETUP)

    return table.judge_one(table.names[i], severities[table.start :], describe)


def _squashed(table: Table, i: int, j: int, classes: int) -> Description:
    function = f"softmax over {classes:,} classes" if classes > 1 else "sigmoid"
    # The loss of a model that is right and certain.
    floor = (
        math.log(math.e + classes - 1) - 1 if classes > 1 else math.log1p(1 / math.e)
    )
    return Description(
        message=(
            f"This loss gets the result of a {function} ({_numbers(table, i, j)}) and "
            f"applies it once more, so it cannot fall below {number(floor)}."
        ),
        value=float(floor),
        threshold=0.0,
        advice=lambda words: (
            "Give the loss the values from before the softmax or sigmoid. It applies "
            f"that itself ({words.logit_losses})."
        ),
    )


def _compared(
    outputs: tuple[int, ...], targets: tuple[int, ...], both: tuple[int, ...]
) -> Description:
    return Description(
        message=(
            f"Outputs of shape {outputs} and targets of shape {targets} broadcast to "
            f"{both}. The loss compares each output with the targets of all samples, "
            "so the model learns to predict their mean."
        ),
        value=float(np.prod(both)),
        threshold=float(max(np.prod(outputs), np.prod(targets))),
        advice=lambda words: (
            f"Give both the same shape: {words.same_shape}. Before the loss, assert "
            "outputs.shape == targets.shape."
        ),
    )


def _no_logarithms(table: Table, i: int, j: int) -> Description:
    most = float(table["max"][i, j])
    are = "probabilities" if most <= 1.0 and table["min"][i, j] >= 0.0 else "scores"
    return Description(
        message=(
            f"This loss needs logarithms of probabilities, which are never positive, "
            f"but gets {are} ({_numbers(table, i, j)}), so it does not measure a "
            "likelihood."
        ),
        value=most,
        threshold=0.0,
        advice=lambda words: (
            f"Give scores to {words.cross_entropy}, or apply log_softmax over the "
            "classes before this loss."
        ),
    )


def _no_probabilities(table: Table, i: int, j: int) -> Description:
    least, most = float(table["min"][i, j]), float(table["max"][i, j])
    return Description(
        message=(
            "This loss needs probabilities, which lie between 0 and 1, but gets "
            f"scores ({_numbers(table, i, j)}), so it does not measure a likelihood."
        ),
        value=least if least < 0.0 else most,
        threshold=0.0 if least < 0.0 else 1.0,
        advice=lambda words: (
            f"Use a loss that takes scores ({words.logit_losses}), or end the model "
            "with a softmax or sigmoid."
        ),
    )


def _over_samples(
    table: Table, i: int, j: int, samples: int, classes: int
) -> Description:
    return Description(
        message=(
            f"This loss gets the result of a softmax over the {samples:,} samples of a "
            f"batch instead of the {classes:,} classes ({_numbers(table, i, j)}): the "
            "numbers of a class add up to 1, those of a sample to "
            f"{number(classes / samples)} on average."
        ),
        value=classes / samples,
        threshold=1.0,
        advice=lambda words: (
            "Remove the softmax: this loss applies one over the classes itself "
            f"({words.cross_entropy})."
        ),
    )


def _over_wrong_axis(
    table: Table, i: int, j: int, class_axis: int
) -> Description | None:
    values = table.value(table.names[i], int(table.steps[j]))
    axis = None if values is None else wrong_axis(values, class_axis)
    if values is None or axis is None:
        return None
    over = f"the {values.shape[axis]:,} samples of the batch"
    if axis:
        over = f"axis {axis} (of size {values.shape[axis]:,})"
    sums = float(np.exp(values.astype(np.float64)).sum(axis=class_axis).mean())
    return Description(
        message=(
            f"The log_softmax before this loss is over the wrong axis: probabilities "
            f"add up to 1 over {over}, and to {number(sums)} on average over the "
            f"{values.shape[class_axis]:,} classes."
        ),
        value=sums,
        threshold=1.0,
        advice=lambda words: (
            f"Give the scores to {words.cross_entropy}, or apply log_softmax over the "
            f"axis of the classes: {words.class_axis}."
        ),
    )


def _numbers(table: Table, i: int, j: int) -> str:
    return (
        f"{table['count'][i, j]:,.0f} numbers from {number(table['min'][i, j])} to "
        f"{number(table['max'][i, j])}, at {PATIENCE} recorded steps in a row"
    )


def probabilities_are_scores(fact: LossFact) -> Description:
    """Describe a loss of probabilities that is given scores."""
    return Description(
        message=(
            f"{fact.operation} takes probabilities, but the last layer ends without a "
            "softmax or sigmoid, so it gets scores of any size. Keras clips them, and "
            "the loss falls although it measures no likelihood."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Set from_logits=True in the loss, or end the model with a softmax (two "
            "classes with one output: a sigmoid)."
        ),
    )


def softmax_for_bits(fact: LossFact) -> Description:
    """Describe a binary loss over the outputs of a softmax."""
    classes = fact.shapes[0][0] if fact.shapes and fact.shapes[0] else 0
    return Description(
        message=(
            f"{fact.operation} judges each of the {classes:,} outputs of a softmax by "
            "itself, as a yes or no, although only one of the classes can be right. "
            "The loss is a mean over mostly easy questions, and its gradient is small."
        ),
        value=float(classes),
        threshold=2.0,
        advice=(
            "Use CategoricalCrossentropy. If several classes can be right at once, "
            "keep the loss and end the model with a sigmoid."
        ),
    )


def metric_of_scores(fact: LossFact) -> Description:
    """Describe a metric that divides scores where probabilities are meant."""
    return Description(
        message=(
            f"The metric {fact.operation} is wrong: it divides the classes at 0.5, "
            "which is meant for probabilities, but the model outputs scores "
            "(from_logits=True), whose border is 0. Scores from 0 to 0.5 count for the "
            "wrong class."
        ),
        value=0.5,
        threshold=0.0,
        advice=(
            "Give the metric the border of scores: "
            "keras.metrics.BinaryAccuracy(threshold=0.0). Or end the model with a "
            "sigmoid and leave from_logits out."
        ),
    )


def of_wrong_scores(fact: LossFact) -> Description:
    """Say what an activation or dropout does to the scores of a loss."""
    last, _, loss = fact.operation.partition(" ")
    if fact.fault == LossFault.SCORES_DROPPED:
        message, advice = (
            (
                f"Dropout is the last operation before {fact.operation}, so random "
                "outputs become 0 and the others grow. The model cannot "
                "learn to give the right answer."
            ),
            "Apply dropout before the last layer: fc(dropout(h)).",
        )
    elif fact.fault == LossFault.EXPONENTIAL_TWICE:
        message, advice = (
            (
                f"The Poisson loss takes the exponential of the result of {last}, "
                "since it expects the logarithm of the rate (log_input=True). So no "
                "predicted rate is below 1."
            ),
            (
                f"Give the loss the output from before {last}, or pass log_input=False "
                "if you mean the rate itself."
            ),
        )
    else:
        message, advice = _of_bounded(last, loss, fact)
    return Description(message=message, value=1.0, threshold=0.0, advice=advice)


def _of_bounded(last: str, loss: str, fact: LossFact) -> tuple[str, str]:
    shape = fact.shapes[0] if fact.shapes else ()
    is_of_bits = loss.lower().startswith("binary")
    limit = (
        "no probability is below 0.5"
        if is_of_bits
        else "no class gets a score below 0, and has no gradient there"
    )
    if last != "relu":
        # The loss of a model that is right and certain.
        apart = 1.0 if last == "sigmoid" or is_of_bits else 2.0
        others = 1 if is_of_bits else math.prod(shape[len(shape) > 1 :][:1]) - 1
        floor = math.log1p(others * math.exp(-apart))
        limit = f"the loss cannot fall below {number(floor)}"
    return (
        (
            f"{loss} gets the result of a {last}, of shape {shape}, instead of scores "
            f"of any size, so {limit}."
        ),
        (
            f"Remove the {last} after the last layer: {loss} makes probabilities of "
            "scores itself. If you mean to bound the scores, multiply them by a scale."
        ),
    )


def of_wrong_labels(fact: LossFact) -> Description:
    """Say which labels are none that a loss is made for."""
    n_wrong, n_labels = fact.shapes[0] if fact.shapes else (0, 0)
    if fact.fault == LossFault.SYMBOL_IS_BLANK:
        message, advice = (
            (
                f"{n_wrong:,} of {plural(n_labels, 'symbol')} in the targets of "
                "ctc_loss are its blank, which stands for no symbol. The model learns "
                "to leave them out."
            ),
            (
                "Count the symbols from 1 (targets + 1, and one more class), or pass "
                "the number of another class: CTCLoss(blank=n_symbols)."
            ),
        )
    else:
        message, advice = (
            (
                f"{fact.operation} takes labels -1 and 1, and {n_wrong:,} of "
                f"{plural(n_labels, 'label')} are 0. Their loss is a constant, so the "
                "model learns nothing from them."
            ),
            "Turn labels 0 and 1 into signs: 2 * labels - 1.",
        )
    return Description(
        message=message, value=float(n_wrong), threshold=0.0, advice=advice
    )
