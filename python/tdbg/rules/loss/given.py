"""Losses that are given something else than they expect: scores or logarithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.findings import Severity
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Bools,
    Description,
    Judgement,
    Table,
)

__all__ = ["unexpected"]


# Losses of PyTorch, by how their inputs' names begin.
OF_CLASSES = ("CrossEntropyLoss", "cross_entropy")
OF_BITS = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
OF_LOGARITHMS = ("NLLLoss", "nll_loss", "KLDivLoss", "kl_div")
# Recorded steps in a row, and numbers in each: scores are within 0 and 1 by chance.
PATIENCE = 3
LEAST = 32
# How far the mean of probabilities of n classes may be from 1 / n, of it.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class _Given:
    """What a loss was given: at which columns that is wrong, and how to say so."""

    known: Bools
    is_wrong: Bools
    describe: Callable[[int], Description]


def unexpected(table: Table) -> Iterator[Judgement]:
    """Judge what each cross-entropy and log-likelihood of training was given.

    Softmax of probabilities is nearly even, and sigmoid of them above one half, so the
    loss cannot come below a floor however well the model does.  A logarithm of a
    probability is not above zero: a loss that is given scores in its place falls
    without end as they grow, and probabilities are not pushed to one as hard as they
    should be.
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
        elif name.startswith(OF_LOGARITHMS):
            yield _judge(table, i, _of_logarithms(table, i))


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
    return _Given(
        known, is_squashed, lambda j: _squashed(table, i, j, round(classes[j]))
    )


def _of_bits(table: Table, i: int) -> _Given:
    known = table.known[i] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    # Zeros are of a ReLU, or of a layer that begins so.
    is_squashed = known & (table["min"][i] > 0.0) & (table["max"][i] <= 1.0)
    return _Given(known, is_squashed, lambda j: _squashed(table, i, j, 1))


def _of_logarithms(table: Table, i: int) -> _Given:
    known = table.known[i] & (table.not_finite[i] == 0)
    known &= table["count"][i] >= LEAST
    return _Given(
        known,
        known & (table["max"][i] > ROUNDING),
        lambda j: _no_logarithms(table, i, j),
    )


def _judge(table: Table, i: int, given: _Given) -> Judgement:
    one = table.select([i])
    lasting = one.lasts(
        given.is_wrong[np.newaxis, :], given.known[np.newaxis, :], rows=PATIENCE
    )[0]
    levels = np.where(given.known & ~given.is_wrong, HEALTHY, UNKNOWN)
    levels[lasting] = Severity.WARNING
    return table.judge_one(
        table.names[i],
        levels[table.start :],
        lambda j: given.describe(j + table.start),
    )


def _squashed(table: Table, i: int, j: int, classes: int) -> Description:
    what = f"softmax, of {classes} classes" if classes > 1 else "sigmoid"
    # Of a model that is right and sure.
    floor = np.log(np.e + classes - 1.0) - 1.0 if classes > 1 else np.log1p(1 / np.e)
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


def _numbers(table: Table, i: int, j: int) -> str:
    return (
        f"{table['count'][i, j]:.0f} numbers within {table['min'][i, j]:.3g} and "
        f"{table['max'][i, j]:.3g}, for {PATIENCE} recorded steps in a row,"
    )
