"""The present mode of a training with Keras: that of the function which runs."""

from __future__ import annotations

from tdbg.capture.modes import CurrentMode
from tdbg.modes import ModeKeys

__all__ = ["KerasMode"]


class KerasMode(CurrentMode):
    """The mode that the user set, or that of the function that was called last."""

    def is_called(self, mode: ModeKeys) -> bool:
        """Whether the latest function was of this mode, and nobody has set another."""
        return self.said is None and self._called is mode

    def of_function(self, mode: ModeKeys) -> ModeKeys:
        """Note that a function of this mode is called; return the mode of its step."""
        self._called = mode
        return self.now()
