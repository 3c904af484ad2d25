"""Inputs and outputs of modules and losses, as their hooks get them.

Thread safety: the training's thread.  Errors: none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._C import _current_graph_task_id

from tdbg.capture.activations import CallPlans
from tdbg.capture.adapter import UnitSummarySpec
from tdbg.capture.naming import activation_name, tensors_in
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.device.tensors import is_tensor
from tdbg.hooks.pytorch.model.call_context import NOT_IN_BACKWARD
from tdbg.modes import ModeKeys

__all__ = [
    "OF_ROWS",
    "Activations",
    "ModelInputs",
    "take_both",
    "unit_range",
    "unit_range_of",
]


_Tensor = torch.Tensor
_NOTHING = (None, 0)  # An entry, and the flags of what is captured.


class Activations(CallPlans):
    """Capture the inputs or the outputs of one module or loss.

    Args:
        session: Where they go.
        mode: Returns the present mode.
        path: The beginning of the tensors' names.
        role: The role of the tensors.
        aliases: Further paths of the same module.
        classes: Names of the classes of the module.
        units: How to count units, if a rule needs it; None: they are not counted.
    """

    def __init__(
        self,
        session: Session,
        mode: Callable[[], ModeKeys],
        path: str,
        role: Role,
        aliases: tuple[str, ...] = (),
        classes: frozenset[str] = frozenset(),
        units: UnitSummarySpec | None = None,
    ) -> None:
        super().__init__(session, path, role, is_tensor, aliases, classes, units)
        self._mode = mode

    def quick(self) -> Any:
        """Return the core's capture of calls with single tensors, or None."""
        return self._session.make_call_capture(self.key, _current_graph_task_id)

    def take(self, value: Any, quick: Any = None, mode: ModeKeys | None = None) -> None:
        """Capture the tensors in *value*, as they are now.

        Args:
            value: The arguments or the result of the call.
            quick: The result of ``quick``, which learns how to capture a single tensor.
            mode: The mode of the call, if known; None: the present mode.
        """
        if _current_graph_task_id() != NOT_IN_BACKWARD:
            return  # A checkpointed forward is computed again.
        session = self._session
        context = session.forward_context or session.module_called(
            mode or self._mode(), self.key
        )
        if context is None:
            return
        calls, key = context.calls, self.key  # As `count_call`, without a call.
        call = calls.pop(key, 0)
        calls[key] = call + 1
        if type(value) is tuple and len(value) == 1:
            value = value[0]
        if type(value) is _Tensor and call == 0:
            choice = self._single.get(context.step_plan) or self.single(
                context.step_plan
            )
            tensors = (value,)
            if quick is not None:
                requested = choice.of_single()
                given, answered = (_NOTHING, requested)
                if self._is_input:
                    given, answered = requested, _NOTHING
                quick.prepare(context.step_plan, *given, *answered)
        else:
            choice, tensors = self.choose(value, call, context)
        if choice.entries:
            session.take(
                context,
                choice.entries,
                tensors,
                choice.requested,
                call,
                context.step.micro_batch,
                reuses=True,
            )

    def context(self) -> StepContext | None:
        """Return the step to which a call belongs now, if it captures anything."""
        if _current_graph_task_id() != NOT_IN_BACKWARD:
            return None  # A checkpointed forward is computed again.
        session = self._session
        return session.forward_context or session.module_called(self._mode(), self.key)


# Calls of a model whose inputs are examined for who made them.
_LOOKS = 16


class ModelInputs(Activations):
    """Capture the inputs of a model.

    Attributes:
        made: Names of inputs that another model made: in all of the first calls they
            were results of operations with a gradient.
    """

    _n_calls = 0
    made: frozenset[str] = frozenset()

    def take(self, value: Any, quick: Any = None, mode: ModeKeys | None = None) -> None:
        """Capture the inputs of a call, and see whether another model made them."""
        is_recomputed = _current_graph_task_id() != NOT_IN_BACKWARD
        is_open = self._n_calls == 0 or (self.made and self._n_calls < _LOOKS)
        if is_open and not is_recomputed:
            made = frozenset(
                activation_name(self._path, "input", index, 0)
                for index, tensor in enumerate(tensors_in(value, is_tensor))
                if _is_made(tensor)
            )
            self.made = self.made & made if self._n_calls else made
            self._n_calls += 1
            if self.made:
                quick = None  # The core is not to take the next call by itself.
        super().take(value, quick, mode)


def _is_made(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is the result of an operation with a gradient."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # A view that was changed where it must not be.
        return False


def take_both(
    session: Session,
    inputs: Activations,
    outputs: Activations,
    args: Any,
    kwargs: Any,
    output: Any,
    quick: Any = None,
) -> None:
    """Capture the arguments and the result of a call in one go."""
    context = inputs.context()
    if context is None:
        return
    call = inputs.count_call(context)
    step_plan = context.step_plan
    tensors: tuple[Any, ...]
    if (
        type(output) is _Tensor
        and not kwargs
        and len(args) == 1
        and type(args[0]) is _Tensor
        and call == 0
    ):
        given, answered = inputs.single(step_plan), outputs.single(step_plan)
        if quick is not None:
            quick.prepare(step_plan, *given.of_single(), *answered.of_single())
        tensors = ()
        if given.entries:
            tensors = args
        if answered.entries:
            tensors = (*tensors, output)
    else:
        value = (args, kwargs) if kwargs else args
        given, of_given = inputs.choose(value, call, context)
        answered, of_answered = outputs.choose(output, call, context)
        tensors = of_given + of_answered
    if tensors:
        choice = given + answered
        session.take(
            context,
            choice.entries,
            tensors,
            choice.requested,
            call,
            context.step.micro_batch,
            reuses=True,
        )


_ANY = UnitSummarySpec()
# For the gradient of an embedding.
OF_ROWS = UnitSummarySpec(rows_are_units=True)


def unit_range(module: nn.Module) -> UnitSummarySpec:
    """Return the range in which outputs of a module are not saturated.

    Example:
        >>> unit_range(nn.Tanh())
        UnitSummarySpec(low=-0.99, high=0.99, rows_are_units=False)
    """
    for kind, function in _FUNCTIONS.items():
        if isinstance(module, kind):
            return _RANGES[function]
    if isinstance(module, nn.Hardtanh):
        return _between(float(module.min_val), float(module.max_val))
    return _ANY


def unit_range_of(
    function: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> UnitSummarySpec:
    """Return the range for a function of ``torch.nn.functional``.

    Args:
        function: The name of the function.
        args: Its positional arguments after the input.
        kwargs: Its keyword arguments.
    """
    if function != "hardtanh":
        return _RANGES.get(function, _ANY)
    given = dict(zip(("min_val", "max_val"), args, strict=False)) | dict(kwargs or {})
    low, high = given.get("min_val", -1.0), given.get("max_val", 1.0)
    return _between(float(low), float(high))


def _between(low: float, high: float) -> UnitSummarySpec:
    """Return an open range: values at the clamps are saturated."""
    return UnitSummarySpec(
        math.nextafter(low, math.inf), math.nextafter(high, -math.inf)
    )


# Outside, the derivative is less than 0.02 of its maximum for tanh (1 - y^2), and less
# than 0.04 for the sigmoid (y (1 - y)).
_RANGES = {
    "tanh": UnitSummarySpec(-0.99, 0.99),
    "sigmoid": UnitSummarySpec(0.01, 0.99),
    "hardsigmoid": _between(0.0, 1.0),
    # At zero it is inactive like a ReLU, not saturated.
    "relu6": UnitSummarySpec(high=math.nextafter(6.0, 0.0)),
}
_FUNCTIONS = {
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.Hardsigmoid: "hardsigmoid",
    nn.ReLU6: "relu6",
}
