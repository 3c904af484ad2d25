"""Losses: what a block that computes one is given, and what it returns.

What a loss returns is captured when the next forward begins, and not when the loss is
called: the program would wait for the forward before it begins the backward. By then
most programs have read the loss, and there is nothing left to wait for.

Thread safety: the training's thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from tdbg.capture.activations import CallPlans, Choice
from tdbg.capture.naming import tensors_in
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.config.kinds import InputHandling, Kind
from tdbg.hooks.mxnet.activations import HeldCalls
from tdbg.hooks.mxnet.arrays import is_tensor, wait_for
from tdbg.hooks.mxnet.calls import see
from tdbg.hooks.mxnet.kinds import class_name, input_handling_of, kind_of
from tdbg.hooks.mxnet.mode import GluonMode
from tdbg.hooks.mxnet.taps import is_symbolic
from tdbg.modes import TRAINING

__all__ = ["LateLosses", "WatchedLoss"]


class _LossInputs(CallPlans):
    """What a loss is given: predictions, then labels, then anything else.

    Attributes:
        are_classes: Whether labels are numbers of classes, which MXNet has as floats
            and rules as integers.
    """

    are_classes = False
    # How many tensors the first argument has, and the second one.
    _sizes: tuple[int, int] | None = None

    def look(self, args: tuple[Any, ...]) -> None:
        """Look at the arguments of a call: those of the first one count."""
        if self._sizes is None:
            first, second, *_ = (*map(_n_tensors, args), 0, 0)
            self._sizes = first, second

    def choose(
        self, value: Any, call: int, context: StepContext
    ) -> tuple[Choice, tuple[Any, ...]]:
        """Select tensors as ``CallPlans`` does.  REQUIRES: they have been computed."""
        choice, tensors = super().choose(value, call, context)
        if self.are_classes:
            pairs = zip(choice.entries, tensors, strict=True)
            tensors = tuple(
                _integers(tensor) if entry.role is Role.LABEL else tensor
                for entry, tensor in pairs
            )
        return choice, tensors

    def role_of(self, index: int) -> Role:
        """Return the role by the argument that holds the tensor of that index."""
        first, second = self._sizes or (1, 1)
        if index < first:
            return Role.PREDICTION
        return Role.LABEL if index < first + second else Role.INPUT


class WatchedLoss:
    """Captures the inputs and the outputs of a loss.

    Args:
        session: Where they go.
        loss: The block.
        name: What their names begin with.
        mode: Knows the present mode.

    Attributes:
        name: As it was given.
        class_name: Its class.
        kind: Its kind; None: of none.
        input_handling: What it does to its inputs first; None: nothing.
    """

    def __init__(self, session: Session, loss: Any, name: str, mode: GluonMode) -> None:
        self._session = session
        self._mode = mode
        self._ref = weakref.ref(loss)
        self.name = name
        self.class_name = class_name(loss)
        self.kind: Kind | None = kind_of(loss)
        self.input_handling: InputHandling | None = input_handling_of(loss)
        self._inputs = _LossInputs(session, name, Role.INPUT, is_tensor)
        # Where classes are not numbers they are a row of probabilities each.
        self._inputs.are_classes = bool(getattr(loss, "_sparse_label", False))
        self._outputs = CallPlans(session, name, Role.LOSS, is_tensor)
        # Calls of the latest step, until they are captured.
        self._late: HeldCalls | None = None
        self._takes_inputs = False
        # Whether what is held is captured at once: no trainer will step.
        self._is_due = False
        self.refresh()
        self._seen = see(loss, "forward", self)

    @property
    def loss(self) -> Any:
        """The block, or None if it has been released."""
        return self._ref()

    def refresh(self) -> None:
        """Decide again whether to capture inputs: collections have changed."""
        roles = (Role.PREDICTION, Role.LABEL, Role.INPUT)
        self._takes_inputs = any(map(self._session.may_capture, roles))

    def remove(self) -> None:
        """Take everything off the loss."""
        self._seen.remove()
        self._late = None

    def wait_for_late(self) -> None:
        """Wait for the arrays of the latest step, as ``wait_for`` does."""
        if self._late is not None:
            wait_for(self._late.arrays())

    def take_late(self) -> None:
        """Capture the arrays of the latest step."""
        late, self._late = self._late, None
        if late is not None:
            late.take()

    # ---- a call of the loss --------------------------------------------------------

    def begins(self, args: tuple[Any, ...]) -> None:
        """Note that the loss is about to be called."""

    def ends(self, args: tuple[Any, ...], result: Any) -> None:
        """Hold the inputs and outputs of the loss, which has returned."""
        if is_symbolic(args):
            return
        if self._late is not None and not self._late.context.step.is_open:
            self._take_now()
        self._session.run(self._hold, args, result)
        if self._is_due:
            self._is_due = False
            self._take_now()

    def fails(self) -> None:
        """Note that the call has raised."""

    def _take_now(self) -> None:
        self.wait_for_late()
        self._session.run(self.take_late)

    def _hold(self, args: tuple[Any, ...], result: Any) -> None:
        session, mode = self._session, self._mode.of_call()
        key = self._outputs.key
        context = session.forward_context or session.module_called(mode, key)
        if context is None:
            return
        late = self._late
        if late is None or late.context is not context:
            late = self._late = HeldCalls(session, context)
        if self._takes_inputs and not context.step_plan.is_light:
            self._inputs.look(args)
            late.hold(self._inputs, args)
        late.hold(self._outputs, result)
        self._is_due = mode not in TRAINING or not session.optimizers


class LateLosses:
    """What is held of all losses.

    Args:
        losses: The losses; grows.
    """

    def __init__(self, losses: Sequence[WatchedLoss]) -> None:
        self._losses = losses

    def wait(self) -> None:
        """Wait for all held arrays, as ``wait_for`` does."""
        for loss in self._losses:
            loss.wait_for_late()

    def take(self) -> None:
        """Capture all held arrays."""
        for loss in self._losses:
            loss.take_late()


def _integers(labels: Any) -> Any:
    """Labels that are whole numbers, however their array has them."""
    array = labels.asnumpy() if hasattr(labels, "asnumpy") else labels
    return array.astype(np.int64) if array.dtype.kind == "f" else array


def _n_tensors(value: Any) -> int:
    return len(list(tensors_in(value, is_tensor)))
