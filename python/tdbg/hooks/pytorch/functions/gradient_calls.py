"""Gradients that a function returns: ``torch.autograd.grad``, and what calls it.

``torch.func.grad``, ``vjp`` and similar functions call it with the tensors that they
have wrapped.  No backward pass begins then, and no parameter gets a gradient: only the
function's result has it.

Thread safety: the training's thread watches; any thread may call.

Errors: none into the program; errors of watchers are logged and lost.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tdbg.hooks.pytorch.functions.diverted import (
    DivertedCode,
    FunctionCall,
    Listener,
    code_of,
)
from tdbg.run.profile_tables import Phase

__all__ = ["GradientCall", "GradientCalls"]

_log = logging.getLogger("tdbg")


class GradientCall(NamedTuple):
    """A call that has returned gradients of a single number.

    Attributes:
        root: The number, with its graph; inside ``vmap`` one for each sample.
        inputs: The tensors by which the number was differentiated.
        gradients: One for each of *inputs*; None if the number does not depend on it.
        is_kept: Whether the gradients have a graph of their own.
    """

    root: torch.Tensor
    inputs: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]
    is_kept: bool


class GradientCalls:
    """Watch for functions that return gradients of a single number.

    Args:
        report: Called with each call, after it has returned.
    """

    def __init__(self, report: Callable[[GradientCall], None]) -> None:
        self.report = report
        _diverted.add(self)

    def remove(self) -> None:
        """Watch no longer."""
        _diverted.discard(self)


class _Diverted(Listener):
    """Diverts ``torch.autograd.grad`` while anybody watches."""

    sees_all = True  # It is given ``model.parameters()``.
    # An adjoint method makes hundreds of calls there: parts of that pass.
    skips_backward = True

    def __init__(self) -> None:
        self._watchers: weakref.WeakSet[GradientCalls] = weakref.WeakSet()
        self._code: DivertedCode | None = None

    def add(self, watcher: GradientCalls) -> None:
        self._watchers.add(watcher)
        self.is_on = True
        if self._code is None:
            self._code = code_of(torch.autograd, "grad", self, Phase.BACKWARD)
        if self._code is not None:
            self._code.function.__code__ = self._code.codes[True]

    def discard(self, watcher: GradientCalls) -> None:
        self._watchers.discard(watcher)
        if not self._watchers:
            self.is_on = False
            if self._code is not None:
                self._code.remove()
                self._code = None

    def called(self, call: FunctionCall) -> None:
        """Report a call to all watchers."""
        try:
            found = _gradients_of(call)
            if found is not None:
                for watcher in list(self._watchers):
                    watcher.report(found)
        except Exception:
            _log.debug("gradients were not seen", exc_info=True)


_diverted = _Diverted()


def _gradients_of(call: FunctionCall) -> GradientCall | None:
    """Return the gradients of a call; None if they are not of a single number."""
    given = dict(zip(("outputs", "inputs"), call.args, strict=False)) | call.kwargs
    root: Any = given.get("outputs")
    inputs: Any = given.get("inputs")
    if isinstance(root, Sequence) and len(root) == 1:
        root = root[0]
    if not isinstance(root, torch.Tensor) or root.numel() != 1:
        return None
    if given.get("is_grads_batched"):
        return None
    gradients = call.result
    if isinstance(inputs, Mapping):
        gradients = [gradients[key] for key in inputs]
        inputs = list(inputs.values())
    elif isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    is_kept = bool(given.get("create_graph"))
    return GradientCall(root, tuple(inputs), tuple(gradients), is_kept)
