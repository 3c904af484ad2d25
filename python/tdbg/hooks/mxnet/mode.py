"""The present mode of a training with Gluon: that of the latest forward.

Thread safety: the training's thread.
"""

from __future__ import annotations

from mxnet import autograd

from tdbg.capture.modes import CurrentMode
from tdbg.capture.session import Session
from tdbg.modes import EVAL, TRAIN, ModeKeys

__all__ = ["GluonMode"]


class GluonMode(CurrentMode):
    """The mode that the user set, or else training inside of ``autograd.record``.

    Args:
        session: As for ``CurrentMode``.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._called = TRAIN

    def now(self) -> ModeKeys:
        """The mode of what is recorded now: outside of calls that of the latest."""
        return self._called if self.said is None else self.said

    def of_call(self) -> ModeKeys:
        """The mode of a call that begins."""
        trains = autograd.is_recording() or autograd.is_training()
        self._called = TRAIN if trains else EVAL
        return self.now()
