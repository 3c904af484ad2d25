"""Losses whose inputs are wrong: their values, axes or shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import REGRESSIONS, Kind
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

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["broadcast_shape", "wrong_axis", "wrong_inputs"]


def broadcast_shape(
    outputs: tuple[int, ...], targets: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the broadcast shape, if it has more elements than either; else None.

    Example:
        >>> broadcast_shape((32, 1), (32,))
        (32, 32)
        >>> broadcast_shape((32, 1), (32, 1)), broadcast_shape((32, 8), (32, 1))
        (None, None)
    """
    try:
        both = np.broadcast_shapes(outputs, targets)
    except ValueError:
        return None
    larger = max(math.prod(outputs), math.prod(targets))
    return both if math.prod(both) > larger else None


# How far a sum may be from one: numbers in half precision are rounded.
NORMALIZED_WITHIN = 0.01
# How far the sum over the classes must be from one, to be wrong.
OFF = 0.1


def wrong_axis(logarithms: NDArray[np.generic]) -> int | None:
    """Return the wrong axis over which probabilities add up to one, or None.

    None also if they add up to one over the classes as well, and if the axes have the
    same size.  With as many samples as classes either may be meant: a loss on pairs
    compares them in both directions.

    Example:
        >>> scores = np.log([[0.2, 0.9, 0.5], [0.8, 0.1, 0.5]])
        >>> wrong_axis(scores), wrong_axis(scores.T), wrong_axis(scores[0])
        (0, None, None)
    """
    if logarithms.ndim < 2 or 1 in logarithms.shape:
        return None
    # Values above the logarithm of one are reported elsewhere.
    given = np.minimum(logarithms.astype(np.float64), 1.0)
    probabilities = np.exp(given)
    if np.abs(probabilities.sum(axis=1) - 1.0).max(initial=0.0) <= OFF:
        return None
    for axis in range(logarithms.ndim):
        sums = probabilities.sum(axis=axis)
        is_one = sums.size and np.abs(sums - 1.0).max() <= NORMALIZED_WITHIN
        if is_one and logarithms.shape[axis] != logarithms.shape[1]:
            return axis
    return None


# Least rows in a row, and numbers in each: few scores may be within 0 and 1 by chance.
PATIENCE = 3
LEAST = 32
# Relative distance that the mean probability of n classes may have from 1 / n.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class _Given:
    """The result of a check: the steps at which the input of a loss is wrong.

    Steps in ``certain`` are findings at once; others must last.
    """

    known: Bools
    is_wrong: Bools
    describe: Callable[[int], Description]
    certain: Mapping[int, Description] = field(default_factory=dict)


def wrong_inputs(table: Table, model_info: ModelInfo | None) -> Iterator[Evaluation]:
    """Judge the inputs of the losses of a known kind.

    Softmax of probabilities is nearly even, and sigmoid of them above one half, so the
    loss cannot come below a floor however well the model does.  A logarithm of a
    probability is not above zero: a loss that is given scores in its place falls
    without end as they grow, and probabilities are not pushed to one as hard as they
    should be.  After a softmax over the samples it is these that compete, not the
    classes.  Shapes that are broadcast to more elements than either has hold each
    output against all targets.
    """
    labels = {
        name: i for i, name in enumerate(table.names) if table.roles[i] == "label"
    }
    for i, name in enumerate(table.names):
        if table.roles[i] != "prediction":
            continue
        label = labels.get(name.replace("_input_0", "_input_1"))
        kind = kind_of(model_info, name)
        if kind == Kind.CROSS_ENTROPY and label is not None:
            yield _judge(table, i, _of_classes(table, i, label))
        elif kind in REGRESSIONS and label is not None:
            yield _judge(table, i, _of_elements(table, i, label))
        elif kind == Kind.BCE_WITH_LOGITS:
            yield _judge(table, i, _of_bits(table, i))
        elif kind == Kind.NLL:
            yield _judge(table, i, _of_logarithms(table, i, over_classes=True))
        elif kind == Kind.KL_DIV:
            # It compares distributions over any axis.
            yield _judge(table, i, _of_logarithms(table, i, over_classes=False))


def _of_classes(table: Table, i: int, label: int) -> _Given:
    known = table.known[i] & table.known[label] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    with np.errstate(divide="ignore", invalid="ignore"):
        # Labels are class numbers, or a probability for each class.
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
    # Scores may end up in this range, for example those of a critic; outputs of a
    # sigmoid are in it from the beginning.
    began = known & (table.ordinal[i] <= FIRST)
    is_squashed &= ~np.logical_or.accumulate(began & ~is_squashed)
    return _Given(known, is_squashed, lambda j: _squashed(table, i, j, 1))


def _of_elements(table: Table, i: int, label: int) -> _Given:
    # Shapes come from the code and do not change: the first batch is enough.
    first = table.known[i] & (table.ordinal[i] == 1)
    certain: dict[int, Description] = {}
    for j in np.flatnonzero(first[table.start :]) + table.start:
        step = int(table.steps[j])
        outputs = table.value(table.names[i], step)
        targets = table.value(table.names[label], step)
        if outputs is None or targets is None:
            first[j] = False
            continue
        both = broadcast_shape(outputs.shape, targets.shape)
        if both is not None:
            certain[int(j)] = _compared(outputs.shape, targets.shape, both)
    return _Given(first, np.zeros_like(first), nothing_to_describe, certain)


def _of_logarithms(table: Table, i: int, *, over_classes: bool) -> _Given:
    known = table.known[i] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    is_wrong = known & (table["max"][i] > ROUNDING)
    certain: dict[int, Description] = {}
    if over_classes:
        kept = np.isin(table.steps, table.value_steps(table.names[i]))
        for j in np.flatnonzero(known & ~is_wrong & kept).tolist():
            found = _over_wrong_axis(table, i, j) if j >= table.start else None
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
    what = f"softmax, of {classes} classes" if classes > 1 else "sigmoid"
    # The loss of a model that is right and certain.
    floor = (
        math.log(math.e + classes - 1) - 1 if classes > 1 else math.log1p(1 / math.e)
    )
    return Description(
        message=(
            f"{_numbers(table, i, j)} are what a {what} gives; the loss takes it once "
            f"more and cannot come below {floor:.3g}"
        ),
        value=float(floor),
        threshold=0.0,
        advice=(
            "give the loss what comes before the softmax or sigmoid, which it "
            "does itself (torch.nn.CrossEntropyLoss, BCEWithLogitsLoss)"
        ),
    )


def _compared(
    outputs: tuple[int, ...], targets: tuple[int, ...], both: tuple[int, ...]
) -> Description:
    return Description(
        message=(
            f"outputs of shape {outputs} and targets of shape {targets} are broadcast "
            f"to {both}: each output is compared with the targets of all samples, and "
            "the best that the model can answer is their mean"
        ),
        value=float(np.prod(both)),
        threshold=float(max(np.prod(outputs), np.prod(targets))),
        advice=(
            "give both the same shape: targets.unsqueeze(1), or outputs.squeeze(1); "
            "to assert outputs.shape == targets.shape before the loss keeps it so"
        ),
    )


def _no_logarithms(table: Table, i: int, j: int) -> Description:
    most = float(table["max"][i, j])
    are = "probabilities" if most <= 1.0 and table["min"][i, j] >= 0.0 else "scores"
    return Description(
        message=(
            f"{_numbers(table, i, j)} are {are} and no logarithms of probabilities, "
            "which are not above zero: the loss does not measure a likelihood"
        ),
        value=most,
        threshold=0.0,
        advice=(
            "give scores to torch.nn.CrossEntropyLoss, or put a log_softmax over the "
            "classes before this loss"
        ),
    )


def _over_samples(
    table: Table, i: int, j: int, samples: int, classes: int
) -> Description:
    return Description(
        message=(
            f"{_numbers(table, i, j)} are what a softmax over the {samples} samples "
            f"of a batch gives: those of a class add up to 1, and those of a sample "
            f"to {classes / samples:.3g} on average; so the samples compete, and not "
            f"the {classes} classes"
        ),
        value=classes / samples,
        threshold=1.0,
        advice=(
            "leave the softmax out: this loss takes one over the classes itself "
            "(torch.nn.CrossEntropyLoss)"
        ),
    )


def _over_wrong_axis(table: Table, i: int, j: int) -> Description | None:
    values = table.value(table.names[i], int(table.steps[j]))
    axis = None if values is None else wrong_axis(values)
    if values is None or axis is None:
        return None
    over = f"the {values.shape[axis]} samples of the batch"
    if axis:
        over = f"axis {axis}, of {values.shape[axis]},"
    sums = float(np.exp(values.astype(np.float64)).sum(axis=1).mean())
    return Description(
        message=(
            f"the probabilities of which this loss is given logarithms add up to 1 "
            f"over {over} and not over the {values.shape[1]} classes: there they add "
            f"up to {sums:.3g} on average; so it is not the classes that compete"
        ),
        value=sums,
        threshold=1.0,
        advice=(
            "take the log_softmax over the axis of the classes, which is the second "
            "(dim=1; without a dim another one may be taken), or give the scores to "
            "torch.nn.CrossEntropyLoss"
        ),
    )


def _numbers(table: Table, i: int, j: int) -> str:
    return (
        f"{table['count'][i, j]:.0f} numbers within {table['min'][i, j]:.3g} and "
        f"{table['max'][i, j]:.3g}, for {PATIENCE} recorded steps in a row,"
    )
