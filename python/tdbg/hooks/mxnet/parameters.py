"""The parameters of a block and their gradients.

Thread safety: the training's thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tdbg.capture.adapter import UnitSummarySpec
from tdbg.capture.naming import buffer_name, gradient_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.config.kinds import Kind
from tdbg.hooks.mxnet.kinds import classes_and_kind, role_of_parameter
from tdbg.hooks.mxnet.names import BlockNames, parameters_of

__all__ = [
    "ParameterBatch",
    "Parameters",
    "WatchedParameter",
    "gradient_of",
    "value_of",
]

# Blocks that come later are noticed after so many captures at the latest.
_SEARCH_INTERVAL = 100
_ROWS = UnitSummarySpec(rows_are_units=True)


def value_of(parameter: Any) -> Any | None:
    """Return the value of a parameter; None: it is not initialized yet.

    On several devices all values are the same: it is the first one's.
    """
    arrays = parameter._data
    return arrays[0] if arrays else None


def gradient_of(parameter: Any, *, is_reduced: bool, only_fresh: bool) -> Any | None:
    """Return the gradient that an optimizer is about to use; None: there is none.

    Args:
        parameter: The parameter.
        is_reduced: Whether the gradients of all devices have been added up already.
        only_fresh: Whether a gradient counts only if a backward pass has written it
            since the last step.
    """
    arrays = parameter._grad
    if not arrays or parameter.grad_req == "null":
        return None
    if only_fresh and not parameter._data[0]._fresh_grad:
        return None
    if is_reduced or len(arrays) == 1:
        return arrays[0]
    total = arrays[0].copy()
    for each in arrays[1:]:
        total += each.copyto(total.ctx)
    return total


@dataclass(frozen=True, eq=False)
class WatchedParameter:
    """A parameter that is trained, or could be.

    Attributes:
        weight: Its entry.
        gradient: That of its gradient.
        ref: The parameter of Gluon.
        owner: The block that has it.
    """

    weight: TensorEntry
    gradient: TensorEntry
    ref: weakref.ref[Any]
    owner: weakref.ref[Any]


class Parameters:
    """The parameters and the buffers of one root.

    Args:
        session: Makes the entries, and takes the tensors.
        root: The block.
        names: Names the blocks.
    """

    def __init__(self, session: Session, root: Any, names: BlockNames) -> None:
        self._session = session
        self._countdown = 0
        self._root = weakref.ref(root)
        self._names = names
        self._known: list[int] = []
        self._tracked: list[WatchedParameter] = []
        self._buffers: list[tuple[TensorEntry, weakref.ref[Any]]] = []
        self._look()

    def tracked_parameters(self) -> list[WatchedParameter]:
        """Return all parameters, as a new list whenever they may have changed."""
        return self._tracked

    def look(self) -> None:
        """Look, now and then, for parameters that are new, or gone."""
        self._countdown -= 1
        if self._countdown < 0:
            self._countdown = _SEARCH_INTERVAL
            self._look()

    def _look(self) -> None:
        root = self._root()
        if root is None:
            return
        found: dict[int, tuple[Any, Any]] = {}
        for _, block in self._names.walk(root):
            for parameter in parameters_of(block):
                found.setdefault(id(parameter), (parameter, block))
        if list(found) == self._known:
            return
        self._known = list(found)
        tracked: list[WatchedParameter] = []
        self._buffers = []
        for parameter, block in found.values():
            ref, classes = weakref.ref(parameter), classes_and_kind(block)
            if parameter._differentiable:
                tracked.append(self._track(parameter.name, ref, block, classes))
            else:
                name = buffer_name(parameter.name)
                entry = self._session.entry(name, Role.BUFFER, (), classes)
                self._buffers.append((entry, ref))
        self._tracked = tracked

    def _track(
        self, name: str, ref: weakref.ref[Any], block: Any, classes: frozenset[str]
    ) -> WatchedParameter:
        entry, units = self._session.entry, None
        if Kind.EMBEDDING in classes:
            units = _ROWS
        return WatchedParameter(
            entry(name, role_of_parameter(name), (), classes),
            entry(gradient_name(name), Role.GRADIENT, (), classes, units),
            ref,
            weakref.ref(block),
        )

    def select(
        self, context: StepContext, only: Callable[[Any], bool] | None = None
    ) -> ParameterBatch:
        """Return the parameters that the step captures and does not have yet.

        Args:
            context: The step.
            only: Says of a parameter whether it may be captured; None: all may.
        """
        batch = ParameterBatch(context)
        for each in self._tracked:
            parameter = each.ref()
            if parameter is not None and (only is None or only(parameter)):
                batch.add(each.weight, value_of(parameter))
        return batch

    def select_gradients(
        self,
        context: StepContext,
        held: AbstractSet[int],
        scale: float,
        *,
        is_reduced: bool,
        only_fresh: bool,
    ) -> ParameterBatch:
        """Return the gradients that an optimizer is about to use.

        Args:
            context: The step.
            held: Ids of the parameters that the optimizer has.
            scale: By which it multiplies them.
            is_reduced: As of ``gradient_of``.
            only_fresh: As of ``gradient_of``.
        """
        batch = ParameterBatch(context, scale)
        for each in self._tracked:
            parameter = each.ref()
            if parameter is None or id(parameter) not in held:
                continue
            if batch.requests(each.gradient):
                array = gradient_of(
                    parameter, is_reduced=is_reduced, only_fresh=only_fresh
                )
                batch.add(each.gradient, array)
        return batch

    def select_buffers(self, context: StepContext) -> ParameterBatch:
        """Return what the model keeps beside its parameters, as running means."""
        batch = ParameterBatch(context)
        for entry, ref in self._buffers:
            parameter = ref()
            if parameter is not None:
                batch.add(entry, value_of(parameter))
        return batch


class ParameterBatch:
    """Tensors of a step that are captured in one call, once they are there.

    Args:
        context: The step.
        scale: Multiplies them.

    Attributes:
        arrays: The tensors.
    """

    def __init__(self, context: StepContext, scale: float = 1.0) -> None:
        self._context = context
        self._scale = scale
        self._entries: list[TensorEntry] = []
        self._flags: list[int] = []
        self.arrays: list[Any] = []

    def requests(self, entry: TensorEntry) -> int:
        """Return what to capture of a tensor; 0 for nothing, or if the step has it."""
        if entry in self._context.done:
            return 0
        return self._context.step_plan.of_entry(entry)

    def add(self, entry: TensorEntry, array: Any | None) -> None:
        """Add a tensor, if there is one and the step captures it."""
        flags = 0 if array is None else self.requests(entry)
        if flags:
            self._entries.append(entry)
            self.arrays.append(array)
            self._flags.append(flags)

    def take(self, session: Session) -> None:
        """Capture the tensors."""
        if self._entries:
            self._context.done.update(self._entries)
            session.take(
                self._context,
                self._entries,
                self.arrays,
                self._flags,
                scale=self._scale,
            )
