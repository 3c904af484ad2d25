"""Finds the data of a training: which were given to the hook, or to ``xgboost.train``.

A callback of XGBoost is given the model and the metrics, but no data; the call of
``xgboost.train`` that called it has them, under the public names of its arguments.

Thread safety: the training's thread.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tdbg.hooks.trees.rounds import DataSet
from tdbg.modes import EVAL, TRAIN, ModeKeys

__all__ = ["TrainingData", "data_of_folds", "find_data"]

# Frames between a callback and the call of `train`; callbacks may be wrapped.
_MOST_FRAMES = 24


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The data of one training.

    Attributes:
        sets: What the model predicts, by mode.
        trained_by: Names of the data sets of ``evals`` that the model is trained by;
            None where that is not known.
        features: Names of the features; empty where they are not known.
    """

    sets: Mapping[ModeKeys, DataSet] = field(default_factory=dict)
    trained_by: frozenset[str] | None = None
    features: Sequence[str] = ()

    def is_training(self, name: str, all_names: Sequence[str]) -> bool:
        """Return whether a data set of ``evals`` is what the model is trained by.

        Where that is not known, the sets with "train" in their name are, or else the
        first of several.
        """
        if self.trained_by is not None:
            return name in self.trained_by
        named = [each for each in all_names if "train" in each.lower()]
        return name in named if named else name == all_names[0]


def find_data(train_data: Any, validation_data: Any) -> TrainingData:
    """Find the data of the training that calls this.

    Args:
        train_data: What the hook was given; None: as ``train`` was.
        validation_data: Likewise; None: the last of ``evals`` that is not trained by.
    """
    arguments = _arguments_of_train()
    trained: frozenset[str] | None = None
    if arguments is not None:
        given = arguments.get("dtrain")
        evals = [each for each in arguments.get("evals") or () if len(each) == 2]
        trained = frozenset(str(name) for data, name in evals if data is given)
        others = [data for data, _ in evals if data is not given]
        train_data = given if train_data is None else train_data
        if validation_data is None and others:
            validation_data = others[-1]
    return _make(train_data, validation_data, trained)


def data_of_folds(folds: Sequence[Any]) -> TrainingData:
    """Return the data of a cross-validation: those of its first fold."""
    first = folds[0]
    return _make(first.dtrain, first.dtest, frozenset({"train"}))


def _make(
    train_data: Any, validation_data: Any, trained: frozenset[str] | None
) -> TrainingData:
    sets: dict[ModeKeys, DataSet] = {}
    features: Sequence[str] = ()
    if train_data is not None:
        sets[TRAIN] = DataSet(train_data, is_training=True)
        names = train_data.feature_names
        features = names or [f"f{i}" for i in range(train_data.num_col())]
    if validation_data is not None:
        sets[EVAL] = DataSet(validation_data, is_training=False)
    return TrainingData(sets, trained, list(features))


def _arguments_of_train() -> Mapping[str, Any] | None:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if code.co_name == "train" and module == "xgboost.training":
            return dict(frame.f_locals)
        frame = frame.f_back
    return None
