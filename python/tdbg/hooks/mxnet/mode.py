"""The present mode of a training with Gluon: that of the latest forward.

Thread safety: the training's thread.
"""

from __future__ import annotations

from mxnet import autograd

from tdbg.capture.modes import CurrentMode
from tdbg.modes import EVAL, TRAIN, ModeKeys

__all__ = ["GluonMode"]


class GluonMode(CurrentMode):
    """The mode that the user set, or else training inside of ``autograd.record``."""

    def of_call(self) -> ModeKeys:
        """Return the mode of a call that begins."""
        trains = autograd.is_recording() or autograd.is_training()
        self._called = TRAIN if trains else EVAL
        return self.now()
