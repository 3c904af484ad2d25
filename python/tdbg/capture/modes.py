"""The present mode of a training: the user's choice, or the mode of the model.

Implements docs/steps.md, "A step".

Thread safety: the training's thread.
"""

from __future__ import annotations

from tdbg.capture.session import Session
from tdbg.modes import TRAIN, ModeKeys

__all__ = ["CurrentMode"]


class CurrentMode:
    """The mode that a forward would have now.

    This class has the mode that the user set, or else that of the latest call, which a
    framework's class notes. One whose models have modes overrides ``now``, and
    ``may_train`` if gradients can be switched off.

    Args:
        session: The session; its step machine notes whether optimizers use gradients
            that are computed in evaluation mode.

    Attributes:
        said: The mode that the user set; None: follow the mode of the model.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._machine = session.machine
        self.said: ModeKeys | None = None
        self._called = TRAIN

    def now(self) -> ModeKeys:
        """The mode that a forward would have now."""
        return self._called if self.said is None else self.said

    def say(self, mode: ModeKeys | None) -> None:
        """Set the mode from now on; None: follow the mode of the model."""
        self.said = mode
        if self._machine.trains_in_evaluation:
            self._trains_in_training()

    def may_train(self) -> bool:
        """Whether gradients of a forward in evaluation could still be used."""
        return self.said is None

    def _trains_in_evaluation(self) -> None:
        """The model is in evaluation mode and its gradients are used."""
        self._machine.trains_in_evaluation = True
        self._session.eval_training_changed()

    def _trains_in_training(self) -> None:
        """The model is in training mode again."""
        self._machine.trains_in_evaluation = False
        self._session.eval_training_changed()
