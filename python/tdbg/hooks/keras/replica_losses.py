"""The losses of the replicas of a model, of steps in which nothing is tapped.

A metric under ``tf.distribute`` has numbers of its own on each replica, which Keras
adds up when it reads them.  By how much they grow in a step is the loss of one
replica's share of the batch.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.hooks.keras.losses import Tracker
from tdbg.hooks.keras.replicas import numbers_of_replicas

__all__ = ["ReplicaTracker"]

# The sum of the losses in a metric, and that of their weights.
_Numbers = tuple[float, float]


class ReplicaTracker(Tracker):
    """Follows a metric that means a loss, on each replica."""

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self._of_replicas: Sequence[_Numbers | None] = [None] * len(self._read())

    def begin(self, before: _Numbers | None) -> None:
        """As ``Tracker``; of the replicas' shares of the numbers, those of now."""
        super().begin(before)
        n = len(self._of_replicas)
        if before is None or not any(before):
            self._of_replicas = [before] * n
        else:
            self._of_replicas = self._read()

    def record(
        self, session: Session, context: StepContext, entry: TensorEntry | None
    ) -> None:
        """Record the loss of each replica in the step that is over.

        Args:
            session: Receives the losses.
            context: The step.
            entry: The name of the loss; None: the loss was recorded already.
        """
        before, self._of_replicas = self._of_replicas, self._read()
        if entry is None:
            return
        flags = (context.step_plan.of_entry(entry),)
        micro_batch = context.step.micro_batch
        for replica, now in enumerate(self._of_replicas):
            loss = _grown(before[replica], now)
            if loss is not None:
                tensors = (np.asarray(loss, np.float32),)
                session.replicas.take(
                    replica, context, (entry,), tensors, flags, micro_batch
                )

    def _read(self) -> list[Any]:
        read = map(numbers_of_replicas, (self.metric.total, self.metric.count))
        return list(zip(*read, strict=True))


def _grown(before: _Numbers | None, now: _Numbers) -> float | None:
    """The mean of the losses in between; None: there were none, or nobody knows."""
    if before is None or np.array_equal(before, now, equal_nan=True):
        return None  # An empty share leaves them as they are.
    if now[1] <= before[1]:  # They were reset.
        before = (0.0, 0.0)
    added = now[1] - before[1]
    return (now[0] - before[0]) / added if added > 0 else None
