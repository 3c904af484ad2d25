"""What labels and predictions say of a model: confusion, its measures, ROC, residuals.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Measures",
    "PredictionKind",
    "area_below",
    "classes_of",
    "confusion_of",
    "kind_of",
    "measures_of",
    "roc_of",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Labels with more classes than that are numbers rather than classes.
MOST_CLASSES = 1000


class PredictionKind(enum.Enum):
    """The kind of prediction."""

    BINARY = "binary classification"
    MULTICLASS = "multiclass classification"
    REGRESSION = "regression"


@dataclass(frozen=True, slots=True)
class Measures:
    """How well each class is recognized (each 0 where it is not defined).

    Attributes:
        precision: Of what was predicted to be of the class, the share that is.
        recall: Of the class, the share that was predicted to be.
        f1: Their harmonic mean.
        support: How many samples the class has.
    """

    precision: Floats
    recall: Floats
    f1: Floats
    support: Ints


def kind_of(
    labels: NDArray[np.generic], predictions: NDArray[np.generic]
) -> PredictionKind | None:
    """What kind of prediction this is; None if it is none that is known.

    Labels of one number a sample, and predictions of as many samples: a row of scores a
    sample is of classes; one number a sample is that of a class where all labels are 0
    and 1, or where all predictions are labels.
    """
    if not _are_numbers(labels, predictions):
        return None
    is_whole = bool(np.all(labels == np.round(labels.astype(np.float64))))
    is_class = is_whole and bool(labels.min() >= 0 and labels.max() < MOST_CLASSES)
    if predictions.ndim == 2 and predictions.shape[1] > 1:
        if not is_class or labels.max() >= predictions.shape[1]:
            return None
        return (
            PredictionKind.BINARY
            if predictions.shape[1] == 2
            else PredictionKind.MULTICLASS
        )
    if predictions.ndim > 2:
        return None
    values = predictions.reshape(len(labels)).astype(np.float64)
    if is_class and labels.max() <= 1:
        return PredictionKind.BINARY
    if is_class and np.isin(values, np.unique(labels)).all():
        return PredictionKind.MULTICLASS
    return PredictionKind.REGRESSION


def _are_numbers(labels: NDArray[np.generic], predictions: NDArray[np.generic]) -> bool:
    """Whether there is a finite label for each prediction, and at least one."""
    if labels.dtype.kind not in "biuf" or predictions.dtype.kind not in "biuf":
        return False
    if labels.ndim != 1 or not len(labels) or len(predictions) != len(labels):
        return False
    return bool(np.isfinite(labels.astype(np.float64)).all())


def classes_of(kind: PredictionKind, predictions: NDArray[np.generic]) -> Ints:
    """The predicted class of each sample.

    Of two classes with one number a sample: above 0.5 where all are probabilities, else
    above 0, as margins are.
    """
    if predictions.ndim == 2 and predictions.shape[1] > 1:
        scores = np.where(np.isnan(predictions), -np.inf, predictions)
        return np.asarray(scores.argmax(axis=1), np.int64)
    values = predictions.ravel().astype(np.float64)
    if kind is PredictionKind.BINARY:
        return np.asarray(values > _threshold(values), np.int64)
    return np.nan_to_num(values, nan=0.0).astype(np.int64)


def _threshold(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    is_share = len(finite) > 0 and finite.min() >= 0 and finite.max() <= 1
    return 0.5 if is_share else 0.0


def scores_of(predictions: NDArray[np.generic]) -> Floats:
    """Return a score for each sample that grows with the belief in class 1."""
    values = predictions.astype(np.float64)
    if values.ndim == 2 and values.shape[1] == 2:
        return np.asarray(values[:, 1] - values[:, 0])
    return values.ravel()


def confusion_of(labels: Ints, predicted: Ints, n: int) -> Ints:
    """How many samples of each class (row) were taken for which one (column)."""
    inside = (predicted >= 0) & (predicted < n)
    at = labels[inside].astype(np.int64) * n + predicted[inside]
    return np.bincount(at, minlength=n * n).reshape(n, n).astype(np.int64)


def measures_of(confusion: Ints) -> Measures:
    """Precision, recall and F1 of each class."""
    right = np.diagonal(confusion).astype(np.float64)
    predicted, support = confusion.sum(axis=0), confusion.sum(axis=1)
    precision = right / np.maximum(predicted, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(predicted + support, 1)
    return Measures(precision, recall, f1, support)


def roc_of(labels: Ints, scores: Floats) -> tuple[Floats, Floats] | None:
    """Shares of false and of true positives at all thresholds; None of one class.

    Samples with equal scores are one point: between them there is no threshold.
    """
    known = np.isfinite(scores)
    labels, scores = labels[known], scores[known]
    positives = int(np.count_nonzero(labels == 1))
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    order = np.argsort(-scores, kind="stable")
    is_positive = labels[order] == 1
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    true = np.cumsum(is_positive)[ends] / positives
    false = np.cumsum(~is_positive)[ends] / negatives
    return np.append(0.0, false), np.append(0.0, true)


def area_below(x: Floats, y: Floats) -> float:
    """The area below a curve, by trapezoids."""
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


def label_bins(labels: Sequence[Floats], n: int) -> Floats:
    """Bounds of at most *n* bins that hold about as many labels each, ascending."""
    together = np.concatenate([np.asarray(each, np.float64) for each in labels])
    bounds = np.unique(np.quantile(together, np.linspace(0.0, 1.0, n + 1)))
    return bounds if len(bounds) > 1 else np.array([bounds[0] - 0.5, bounds[0] + 0.5])
