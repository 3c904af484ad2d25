"""Samples of steps whose batches only a graph sees.

Keras means the loss over an epoch and weights each batch by its samples.  The weight
that a step adds is thus their number, as long as the step is Keras's own.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

import weakref
from typing import Any

from tdbg.capture.session import Session
from tdbg.modes import EVAL, TRAIN, ModeKeys

__all__ = ["CountedSamples"]

_STEPS = {TRAIN: "train_step", EVAL: "test_step"}
_OWN = "keras.src.backend."
# Beyond it, a float32 does not count each sample.
_MOST = 1 << 24


class CountedSamples:
    """Adds the samples of steps to their rows.

    Args:
        session: Has the clock of the steps.
        model: The model.
        may_count: Whether only a graph sees the batches, on one replica.

    Attributes:
        is_single: Whether the execution under way is one step.
    """

    def __init__(self, session: Session, model: Any, *, may_count: bool) -> None:
        self._clock = session.clock
        self._model = weakref.ref(model)
        self._may_count = may_count
        self.is_single = True

    def note(self, metric: Any, mode: ModeKeys, before: float, after: float) -> None:
        """Note the weights in the mean of a loss before a step and after it."""
        model = self._model()
        if not (self._may_count and self.is_single) or model is None:
            return
        if metric is not getattr(model, "_loss_tracker", None) or after >= _MOST:
            return
        name = _STEPS.get(mode, "")
        step = getattr(type(model), name, None)
        is_own = str(getattr(step, "__module__", "")).startswith(_OWN)
        if is_own and name not in vars(model):
            self._clock.add_samples(round(after - before if after > before else after))
