"""The present mode of a training: what was said, or else what its first root says.

Implements docs/steps.md, "A step".

Thread safety: the training's thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import nn

from tdbg.capture.steps import StepMachine
from tdbg.modes import EVAL, TRAIN, ModeKeys

__all__ = ["CurrentMode"]


class CurrentMode:
    """Says the present mode.

    Args:
        machine: Knows whether optimizers use what is computed in evaluation mode.
        roots: The registered modules; grows.
        on_change: Called when the module turns out to be trained in evaluation mode,
            or no longer to be.

    Attributes:
        said: By the user; None: ``model.training`` of the first root is followed.
    """

    def __init__(
        self,
        machine: StepMachine,
        roots: Sequence[weakref.ref[nn.Module]],
        on_change: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._roots = roots
        self._on_change = on_change
        self.said: ModeKeys | None = None

    def now(self) -> ModeKeys:
        """The mode that a forward would have now."""
        if self.said is not None:
            return self.said
        machine = self._machine
        for root in self._roots:
            module = root()
            if module is None:
                continue
            if module.training:
                if machine.trains_in_evaluation:
                    self._forget()
                return TRAIN
            if not torch.is_grad_enabled():
                return EVAL
            # What a closure computes its optimizer is about to use.
            if machine.is_in_closure and not machine.trains_in_evaluation:
                machine.trains_in_evaluation = True
                self._on_change()
            return TRAIN if machine.trains_in_evaluation else EVAL
        return TRAIN

    def say(self, mode: ModeKeys | None) -> None:
        """The user says the mode; None: follow the model again."""
        self.said = mode
        if self._machine.trains_in_evaluation:
            self._forget()

    def may_train(self) -> bool:
        """Whether a forward in evaluation could be one of training nevertheless."""
        return self.said is None and torch.is_grad_enabled()

    def _forget(self) -> None:
        self._machine.trains_in_evaluation = False
        self._on_change()
