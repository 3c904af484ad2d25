"""Find out in the first steps whether the program clears its gradients.

A gradient that is never cleared is the sum of all gradients since the beginning.
Clearing usually leaves a parameter without a gradient, and the next gradient is another
tensor: the second step shows this, and it costs nothing afterwards.  If the tensor is
the same, the program may have set it to zero.  Then the smallest parameter is watched
for some steps: if it was cleared, its gradient is zero before a backward pass adds to
it.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.utils.weak import TensorWeakRef

from tdbg.hooks.pytorch.device.tensors import gradient_of, is_recording

__all__ = ["KeptGradients", "UpdatesByHand"]

# Steps from the first on with kept gradients that prove it.
ENOUGH = 4
# Steps that are looked at, at most.
_MOST_STEPS = 10
# Forwards without an optimizer that are looked at, at most: steps may have several.
_MOST_FORWARDS = 100
# Elements of a parameter that is watched, at most.
_MOST_ELEMENTS = 65_536


class KeptGradients:
    """Watch the first steps of one optimizer, or of updates by hand.

    Each evaluation of an optimizer's closure counts as a step: the closure must clear
    the gradients of the evaluation before.

    Args:
        found: Called once, when the gradients are not cleared.

    Attributes:
        is_over: Whether everything was found out.
    """

    def __init__(self, found: Callable[[], None]) -> None:
        self.is_over = False
        self._found = found
        self._n_steps = 0
        self._n_kept = 0
        # Gradients after the first step, with their parameters.
        self._gradients: list[tuple[weakref.ref[Any], TensorWeakRef]] = []
        self._parameter: torch.Tensor | None = None
        self._handle: Any = None
        # Of the step under way: whether gradients have arrived, and met others.
        self._has_met: bool | None = None

    def step_begins(self) -> None:
        """Note that the optimizer is about to use the gradients."""
        if self.is_over or self._n_steps == 0 or is_compiling() or is_recording():
            return
        with contextlib.suppress(Exception):
            if self._parameter is None:
                self._choose()
            elif self._has_met:
                self._n_kept += 1
                if self._n_kept >= ENOUGH:
                    self.remove()
                    self._found()

    def step_ends(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that the optimizer of these parameters has stepped."""
        if self.is_over or is_compiling() or is_recording():
            return
        self._n_steps += 1
        with contextlib.suppress(Exception):
            if self._n_steps > _MOST_STEPS:
                self.remove()
            elif self._n_steps == 1:
                self._gradients = [
                    (weakref.ref(parameter), TensorWeakRef(parameter.grad))
                    for parameter in parameters
                    if parameter.grad is not None
                ]
            self._has_met = None

    def remove(self) -> None:
        """Watch no longer."""
        self.is_over = True
        self._gradients.clear()
        self._parameter = None
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _choose(self) -> None:
        """Choose a parameter whose gradient is the tensor that it was a step before."""
        kept = [
            parameter
            for found, gradient in self._gradients
            if (parameter := found()) is not None
            and parameter.grad is not None
            and gradient() is parameter.grad
            and _is_plain(parameter)
        ]
        self._gradients.clear()
        if not kept:
            self.remove()
            return
        self._parameter = min(kept, key=torch.Tensor.numel)
        # The parameter must not keep this training alive.
        arrives = weakref.WeakMethod(self._arrives)

        def arrived(_: torch.Tensor) -> None:
            report = arrives()
            if report is not None:
                report()

        self._handle = self._parameter.register_hook(arrived)

    def _arrives(self) -> None:
        """Note that a backward pass is about to add to the gradient."""
        with contextlib.suppress(Exception):
            if self._parameter is None or is_recording():
                return
            before = self._parameter.grad
            self._has_met = before is not None and bool(before.detach().any())
            if not self._has_met:
                self.remove()  # It was cleared.


class UpdatesByHand:
    """Find the steps of a training that has no optimizer, and watch the first ones.

    If a parameter with a gradient changes from one forward to the next, the program
    has updated it in between.

    Args:
        parameters: Returns the parameters of the model.
        found: Called once, when the gradients are not cleared.
    """

    def __init__(
        self,
        parameters: Callable[[], Iterable[torch.Tensor]],
        found: Callable[[], None],
    ) -> None:
        self._parameters = parameters
        self._kept = KeptGradients(found)
        self._n_forwards = 0
        self._watched: weakref.ref[Any] | None = None
        self._sample: torch.Tensor | None = None

    def forward_begins(self) -> None:
        """Note that a forward in training begins."""
        if self._kept.is_over or is_compiling() or is_recording():
            return
        with contextlib.suppress(Exception):
            self._n_forwards += 1
            if self._n_forwards > _MOST_FORWARDS:
                self.remove()
            elif self._has_changed():
                self._kept.step_begins()
                self._kept.step_ends(self._parameters())

    def remove(self) -> None:
        """Watch no longer."""
        self._kept.remove()
        self._watched = self._sample = None

    def _has_changed(self) -> bool:
        parameter = None if self._watched is None else self._watched()
        if parameter is None:
            plain = [each for each in self._parameters() if _is_plain(each)]
            if not plain:
                if self._n_forwards > _MOST_STEPS:
                    self.remove()  # All were cleared.
                return False
            parameter = min(plain, key=torch.Tensor.numel)
            self._watched = weakref.ref(parameter)
        sample = parameter.detach().flatten().clone()
        before, self._sample = self._sample, sample
        return before is not None and not torch.equal(before, sample)


def _is_plain(parameter: torch.Tensor) -> bool:
    """Return whether the gradient of a tensor comes from backward passes alone."""
    gradient = gradient_of(parameter)
    return (
        type(parameter) in {torch.Tensor, torch.nn.Parameter}
        and type(gradient) is torch.Tensor
        and gradient.layout is torch.strided
        and gradient.numel() <= _MOST_ELEMENTS
        and bool(gradient.detach().any())
    )
