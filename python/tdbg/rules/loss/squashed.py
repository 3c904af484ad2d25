"""Losses that expect scores and are given what a softmax or sigmoid made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.rules.window import HEALTHY, UNKNOWN, Description, Floats, Judgement, Table

__all__ = ["squashed"]


# Losses of PyTorch, by how their inputs' names begin.
OF_CLASSES = ("CrossEntropyLoss", "cross_entropy")
OF_BITS = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
# Recorded steps in a row, and numbers in each: scores are within 0 and 1 by chance.
PATIENCE = 3
LEAST = 32
# How far the mean of probabilities of n classes may be from 1 / n, of it.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class _Given:
    """What a loss was given: at which columns it is squashed, and the classes then."""

    known: NDArray[np.bool_]
    is_squashed: NDArray[np.bool_]
    classes: Floats


def squashed(table: Table) -> Iterator[Judgement]:
    """Judge what each cross-entropy of training was given.

    Softmax of probabilities is nearly even, and sigmoid of them above one half, so the
    loss cannot come below a floor however well the model does.
    """
    labels = {
        name: i for i, name in enumerate(table.names) if table.roles[i] == "label"
    }
    for i, name in enumerate(table.names):
        if table.roles[i] != "prediction":
            continue
        if name.startswith(OF_CLASSES):
            label = labels.get(name.replace("_input_0", "_input_1"))
            if label is not None:
                yield _judge(table, i, _of_classes(table, i, label))
        elif name.startswith(OF_BITS):
            yield _judge(table, i, _of_bits(table, i))


def _of_classes(table: Table, i: int, label: int) -> _Given:
    known = table.known[i] & table.known[label] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    with np.errstate(divide="ignore", invalid="ignore"):
        # Labels are numbers of classes, or a probability for each.
        classes = table["count"][i] / table["count"][label]
        classes = np.where(classes == 1.0, 1.0 / table["mean"][label], classes)
        off = np.abs(table["mean"][i] * classes - 1.0)
    within = (table["min"][i] >= 0.0) & (table["max"][i] <= 1.0 + ROUNDING)
    is_squashed = known & within & (off <= ROUNDING) & (classes > 1.5)
    return _Given(known, is_squashed, np.round(classes))


def _of_bits(table: Table, i: int) -> _Given:
    known = table.known[i] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    # Zeros are of a ReLU, or of a layer that begins so.
    is_squashed = known & (table["min"][i] > 0.0) & (table["max"][i] <= 1.0)
    return _Given(known, is_squashed, np.ones(len(table.steps)))


def _judge(table: Table, i: int, given: _Given) -> Judgement:
    one = table.select([i])
    lasting = one.lasts(
        given.is_squashed[np.newaxis, :], given.known[np.newaxis, :], rows=PATIENCE
    )[0]
    levels = np.where(given.known & ~given.is_squashed, HEALTHY, UNKNOWN)
    levels[lasting] = Severity.WARNING

    def describe(j: int) -> Description:
        column = j + table.start
        classes = int(given.classes[column])
        what = f"softmax, of {classes} classes" if classes > 1 else "sigmoid"
        # Of a model that is right and sure.
        floor = (
            np.log(np.e + classes - 1.0) - 1.0 if classes > 1 else np.log1p(1 / np.e)
        )
        return Description(
            message=(
                f"{table['count'][i, column]:.0f} numbers within "
                f"{table['min'][i, column]:.3g} and {table['max'][i, column]:.3g}, for "
                f"{PATIENCE} recorded steps in a row, are what a {what} gives; the "
                "loss takes it once more and cannot come below "
                f"{floor:.3g}"
            ),
            value=float(floor),
            threshold=0.0,
            advice=(
                "give the loss what comes before the softmax or sigmoid, which it "
                "does itself (torch.nn.CrossEntropyLoss, BCEWithLogitsLoss)"
            ),
        )

    return table.judge_one(table.names[i], levels[table.start :], describe)
