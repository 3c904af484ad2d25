"""The present mode of a training with Keras: that of the function which runs."""

from __future__ import annotations

from tdbg.capture.modes import CurrentMode
from tdbg.capture.session import Session
from tdbg.modes import TRAIN, ModeKeys

__all__ = ["KerasMode"]


class KerasMode(CurrentMode):
    """The mode that the user set, or that of the function that was called last.

    Args:
        session: As for ``CurrentMode``.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._called = TRAIN

    def now(self) -> ModeKeys:
        """The mode of what is recorded now."""
        return self._called if self.said is None else self.said

    def is_called(self, mode: ModeKeys) -> bool:
        """Whether the latest function was of this mode, and nobody has set another."""
        return self.said is None and self._called is mode

    def of_function(self, mode: ModeKeys) -> ModeKeys:
        """Note that a function of this mode is called; return the mode of its step."""
        self._called = mode
        return self.now()
