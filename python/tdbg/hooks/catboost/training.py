"""Finds the training that calls a callback: its model, and its data.

CatBoost gives a callback the metrics only; the call of ``fit`` below it has the rest.
The object that CatBoost wraps callbacks in lives as long as that call, which tells when
the model is there.

Thread safety: the training's thread.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tdbg.hooks.trees.rounds import DataSet

__all__ = ["FitCall", "data_set_of", "find_training", "identity_of"]

# Frames between a callback and the training; callbacks may be wrapped.
_MOST_FRAMES = 24
_PACKAGE = "catboost.core"


@dataclass(slots=True, eq=False)
class FitCall:
    """A training under way.

    Attributes:
        call: What CatBoost has wrapped the callbacks of this training in.
        model: The model, which is not trained yet.
        before: Identity of the trained model that it is so far; empty: it is none.
        data_set: What the model predicts when it is trained; None: nothing is known.
        n_continued: Rounds of the model that this training goes on with.
        first_step: Number of the step of its first round that is seen.
        first_round: Number of that round in the model.
    """

    call: weakref.ref[Any]
    model: Any
    before: str
    data_set: DataSet | None
    n_continued: int
    first_step: int = 0
    first_round: int = 0


def find_training(ended: Callable[[FitCall], None]) -> FitCall | None:
    """Find the training that calls this; None where there is none to be found.

    Args:
        ended: Called when the training is over, in whichever way.
    """
    call: Any = None
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if frame.f_globals.get("__name__") == _PACKAGE:
            local = frame.f_locals
            if frame.f_code.co_name == "after_iteration":
                call = local.get("self")
            elif frame.f_code.co_name == "_train" and call is not None:
                training = _training_of(call, local)
                end = weakref.finalize(call, ended, training)
                end.atexit = False
                return training
        frame = frame.f_back
    return None


def _training_of(call: Any, arguments: Mapping[str, Any]) -> FitCall:
    model, continued = arguments["self"], arguments.get("init_model")
    return FitCall(
        call=weakref.ref(call),
        model=model,
        before=identity_of(model),
        data_set=data_set_of(arguments.get("train_pool"), arguments.get("test_pool")),
        n_continued=0 if continued is None else int(continued.tree_count_),
    )


def data_set_of(train: Any, others: Any) -> DataSet | None:
    """Return the data that a model predicts: the last of others, or those of training.

    Args:
        train: The ``catboost.Pool`` of training; None: it is not known.
        others: A pool of evaluation, a list of such, or None.
    """
    pools: Sequence[Any] = others if isinstance(others, list) else [others]
    held_back = [pool for pool in pools if pool is not None]
    if held_back:
        return DataSet(held_back[-1], is_training=False)
    return None if train is None else DataSet(train, is_training=True)


def identity_of(model: Any) -> str:
    """Return what tells a trained model apart from all others; empty: it is none."""
    if not model.is_fitted():
        return ""
    return str(model.get_metadata()["model_guid"])
