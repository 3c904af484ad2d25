"""What a model is given in the first steps, as a few numbers that ranks compare.

Thread safety: the training's thread.  Errors: none; what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tdbg.hooks.pytorch.device.bits import first_sum, has_bits
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.model.call_context import is_in_transform, is_traced
from tdbg.hooks.pytorch.model.module_tree import IS_REPLICA

__all__ = ["INPUTS_LOOK", "FirstInputs"]

# The look that has the inputs of the steps before, and the elements that are read.
INPUTS_LOOK, _MOST_OF_INPUT = 16, 1 << 18


class FirstInputs:
    """Sums of the bits of what a model is given in the first steps: a few numbers.

    One of the checks of ``FirstBatches``.

    Attributes:
        is_open: Whether it must still hear of calls and steps.
    """

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self._n = 0
        self._sums: dict[int, torch.Tensor] = {}

    def note_call(self, model: nn.Module, _: str, args: Any, kwargs: Any) -> None:
        """Note the first call of a registered module in a step of training."""
        is_training = model.training and torch.is_grad_enabled()
        if not is_training or self._n in self._sums or IS_REPLICA in vars(model):
            return
        if is_in_transform() or is_traced() or is_recording():
            return
        with contextlib.suppress(Exception), torch.no_grad():
            for each in pytree.tree_leaves((args, dict(kwargs or {}))):
                if has_bits(each) and each.dim() > 0:
                    self._sums[self._n] = first_sum(each.flatten()[:_MOST_OF_INPUT])
                    break

    def note_loss(self, _: Any) -> None:
        """Ignore what a loss is given."""

    def step_ends(self) -> None:
        """Note that an optimizer has stepped."""
        self._n += 1
        self.is_open &= self._n < INPUTS_LOOK

    def take(self) -> dict[int, torch.Tensor]:
        """Return the sums by step, which are on one device; look at no more inputs."""
        self.remove()
        sums, self._sums = self._sums, {}
        devices = {each.device for each in sums.values()}
        return sums if len(devices) == 1 else {}

    def remove(self) -> None:
        """Look at no more inputs."""
        self.is_open = False
