"""What the hook of trees asks a framework's model after a round of boosting."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.trees.tables import TreeTable

__all__ = [
    "DataSet",
    "Score",
    "TreeModel",
    "are_telling",
    "arguments_of_training",
    "is_maximized",
    "loss_of",
]

Floats = NDArray[np.float64]

# Frames between a callback and the training that calls it; callbacks may be wrapped.
_MOST_FRAMES = 24
# Of labels: so many are looked at, and an order that takes fewer bytes is regular.
_LOOKED_AT = 1 << 16
_REGULAR_BYTES = 64
#: What the names of metrics that grow as a model gets better begin with: those of
#: ``xgboost.callback.EarlyStopping``, and what people call their own.
_MAXIMIZED = (
    "auc",
    "aucpr",
    "pre",
    "map",
    "ndcg",
    "acc",
    "balanced_acc",
    "f1",
    "recall",
    "r2",
    "kappa",
    "mcc",
    "score",
)
#: The same, of names that this word ends: ``top5_accuracy``, ``val_f1``.
_MAXIMIZED_ENDS = ("accuracy", "auc", "f1", "score", "recall", "precision")


def is_maximized(metric: str) -> bool:
    """Return whether a metric grows as a model gets better, by its name.

    Example:
        >>> is_maximized("ndcg@5"), is_maximized("prerror"), is_maximized("mlogloss")
        (True, False, False)
    """
    word = metric.lower().partition("@")[0].rstrip("-")
    if word in _MAXIMIZED or word.endswith(_MAXIMIZED_ENDS):
        return True
    return any(word.startswith((f"{each}_", f"{each}-")) for each in _MAXIMIZED) or (
        word in {"precision", "accuracy"}
    )


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a data set after a round.

    Attributes:
        data_set: Name of the data set.
        metric: Name of the metric.
        value: Its value; of cross-validation the mean over the folds.
        is_training: Whether the model is trained by this data set.
        is_loss: Whether it falls as the model gets better.
        deviation: Standard deviation over the folds; None: there are none.
    """

    data_set: str
    metric: str
    value: float
    is_training: bool
    is_loss: bool
    deviation: float | None = None

    @property
    def name(self) -> str:
        """``train-logloss``, the name of its tensor."""
        return f"{self.data_set}-{self.metric}"


def loss_of(score: Score, scores: Sequence[Score]) -> str | None:
    """Return the training loss that a loss of evaluation is compared with.

    Returns:
        Its name; None where the same metric of the training data is not known.
    """
    if score.is_training or not score.is_loss:
        return None
    same = (
        each.name for each in scores if each.is_training and each.metric == score.metric
    )
    return next(same, None)


def arguments_of_training(module: str, *functions: str) -> Mapping[str, Any]:
    """Return the variables of the training that calls this; {}: there is none.

    Args:
        module: The module of its function.
        functions: Names that the function may have.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        name = frame.f_code.co_name
        if name in functions and frame.f_globals.get("__name__") == module:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def are_telling(labels: NDArray[Any]) -> bool:
    """Return whether two data sets with these labels, in this order, are the same.

    They may be two where the order is regular, as of labels that are sorted.

    Example:
        >>> are_telling(np.random.default_rng(0).random(400) < 0.5)
        True
        >>> are_telling(np.arange(400) < 200), are_telling(np.arange(400) % 3)
        (False, False)
    """
    labels = np.asarray(labels).ravel()[:_LOOKED_AT]
    ranks = np.unique(labels, return_inverse=True)[1]
    order = zlib.compress(np.diff(ranks).astype("<i4").tobytes())
    return len(order) > _REGULAR_BYTES + len(labels) // 100


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """A data set in the framework's own form.

    Attributes:
        data: The framework's object.
        is_training: Whether the model is trained by it.
    """

    data: Any
    is_training: bool


class TreeModel(Protocol):
    """A model that grows by rounds, as it is after the latest one.

    Errors: a method raises where the model cannot say it: the caller counts that.

    Attributes:
        name: Name of the model's class.
    """

    name: str

    @property
    def n_rounds(self) -> int:
        """Number of rounds of the model."""

    def feature_names(self) -> Sequence[str]:
        """Return the names of the features, by index."""

    def hyperparameters(self) -> Mapping[str, float | str]:
        """Return the parameters that are in effect, by name."""

    def trees(self) -> TreeTable:
        """Return the trees of the latest round."""

    def importance(self) -> Mapping[str, Floats]:
        """Return the importance of each feature by kind.

        Of a linear model with several outputs: features x outputs.
        """

    def labels(self, data_set: DataSet) -> NDArray[Any]:
        """Return the labels of a data set: class numbers where they are that."""

    def predictions(self, data_set: DataSet) -> Floats:
        """Return what the model predicts for a data set."""

    def derivatives(self, data_set: DataSet) -> tuple[Floats, Floats] | None:
        """Return gradient and hessian at a data set; None: of an unknown objective."""

    def contributions(self, data_set: DataSet, n_rows: int) -> Floats:
        """Return the contributions of the features, and of none, to predictions.

        Args:
            data_set: What is predicted.
            n_rows: So many of its rows at most.
        """
