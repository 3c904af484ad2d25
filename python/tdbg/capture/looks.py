"""How often a rank looks whether something was asked of the training.

A look at what other ranks have posted costs about 0.1 ms, whatever a step costs.  So
fast steps are looked at seldom, so that looking costs some thousandths of the time at
most, and slow ones each.

Thread safety: none; the training's thread.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

__all__ = ["LOOK_SECONDS", "MAX_PERIOD", "Period"]

# From one look to the next, at most, where a step is shorter.
LOOK_SECONDS = 0.05
# Steps that may suddenly become slow are looked at this often all the same.
MAX_PERIOD = 32
# Steps whose median length counts; it is judged once in so many steps.
_SAMPLES = 8
# Lengths this near to a limit change nothing.
_SLACK = 1.25
# Judgements after a period was shortened in which none is lengthened.
_PATIENCE = 64


class Period:
    """Steps from one look to the next: a power of two that suits their length.

    Args:
        now: A clock, in seconds.

    Attributes:
        steps: The period in force; whoever changes it says so to all ranks.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.steps = 1
        self._now = now
        self._began: deque[float] = deque(maxlen=_SAMPLES + 1)
        self._n_new = 0
        self._patience = 0

    def step_begins(self) -> None:
        """A training step begins; to be told of each, once."""
        self._began.append(self._now())
        self._n_new += 1

    def better(self) -> int | None:
        """A period that suits the steps better; None where this one does."""
        if self._n_new <= _SAMPLES:
            return None
        self._n_new = 1
        self._patience = max(0, self._patience - 1)
        began = list(self._began)
        pairs = zip(began[1:], began[:-1], strict=True)
        length = max(statistics.median(b - a for b, a in pairs), 1e-9)
        if length * self.steps > LOOK_SECONDS * _SLACK and self.steps > 1:
            self._patience = _PATIENCE
            return _fitting(length)
        wanted = _fitting(length * _SLACK)
        return wanted if wanted > self.steps and not self._patience else None


def _fitting(length: float) -> int:
    """The largest period of steps of this length."""
    period = 1
    while 2 * period <= MAX_PERIOD and 2 * period * length <= LOOK_SECONDS:
        period *= 2
    return period
