"""The samples of a step of Gluon: those of its forwards, if the trainer says so.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdbg._core import StepClock

__all__ = ["Batches"]


class Batches:
    """Adds the samples of each step to its row.

    A trainer divides gradients by what ``step`` is given: the samples of all devices,
    or 1 where the loss is a mean already.  Where it is given something else, such as a
    number of words, nobody knows how many samples there are.

    Args:
        clock: The clock of the steps.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        # Of the forwards since the last step; None: unknown.
        self._n: int | None = 0

    def forward_begins(self, args: tuple[Any, ...]) -> None:
        """Note what a model is called with in training."""
        n: int | None = None
        with contextlib.suppress(AttributeError, IndexError, TypeError):
            n = int(args[0].shape[0])
        self._n = None if n is None or self._n is None else self._n + n

    def trainer_steps(self, trainer: Any) -> None:
        """Note that a trainer uses the gradients of these forwards."""
        n, self._n = self._n, 0
        if n and _divisor_of(trainer) in {1, n}:
            self._clock.add_samples(n)


def _divisor_of(trainer: Any) -> int:
    """Return by what a trainer divides its gradients; 0: by no whole number."""
    scale, rescale = float(trainer._scale), float(trainer._optimizer.rescale_grad)
    divisor = scale / rescale if rescale > 0 else 0.0
    whole = round(divisor)
    return whole if abs(divisor - whole) <= 1e-6 * divisor else 0
