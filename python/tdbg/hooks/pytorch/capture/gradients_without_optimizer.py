"""Gradients of a training that has no optimizer of PyTorch.

They are captured as they arise: when a backward pass has added to the gradient of a
parameter, or when a function has returned gradients.

Thread safety: backward passes call from autograd's threads, one at a time.

Errors: none of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.hooks.pytorch.capture.parameters_and_gradients import ParameterTable
from tdbg.hooks.pytorch.device.tensors import gradient_of
from tdbg.hooks.pytorch.functions.gradient_calls import (
    GradientCall,
    GradientCalls,
)
from tdbg.hooks.pytorch.model.call_context import is_in_transform
from tdbg.hooks.pytorch.model.mode import TorchMode
from tdbg.hooks.pytorch.model.module_tree import is_fully_sharded
from tdbg.modes import ModeKeys

__all__ = ["AccumulatedGradients", "ReturnedGradients"]


class AccumulatedGradients:
    """Capture each gradient when the first backward of the step has added to it.

    Args:
        session: Where they go.
        table: The parameters of the module.
    """

    def __init__(self, session: Session, table: ParameterTable) -> None:
        self._session = session
        self.table = table
        self._handles: Any = WeakIdKeyDictionary()

    def watch(self, step_plan: StepPlan) -> None:
        """Watch further parameters, if the step that begins captures gradients."""
        root = self.table.module
        if root is None or is_fully_sharded(root):
            return  # Now it holds parameters other than those that get gradients.
        for parameter, entry in self.table.parameters():
            if not step_plan.of_entry(entry) or parameter in self._handles:
                continue
            if parameter.requires_grad and parameter.is_leaf:
                register: Any = parameter.register_post_accumulate_grad_hook
                self._handles[parameter] = register(self._hook(entry))

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def _hook(self, entry: TensorEntry) -> Any:
        session = self._session

        def take(parameter: torch.Tensor) -> None:
            session.run(self._take, entry, parameter)

        return take

    def _take(self, entry: TensorEntry, parameter: torch.Tensor) -> None:
        session = self._session
        if session.optimizers:
            return
        context = session.module_called(ModeKeys.TRAIN)
        gradient = gradient_of(parameter)
        if context is None or gradient is None or entry in context.done:
            return
        context.done.add(entry)
        requested = context.step_plan.of_entry(entry)
        if requested:
            micro_batch = context.step.micro_batch
            session.take(
                context, (entry,), (gradient,), (requested,), micro_batch=micro_batch
            )


class ReturnedGradients:
    """Capture gradients of parameters that a function returns.

    The parameters are those of the modules now or at their latest forward:
    ``torch.func.functional_call`` lends a module others for the time of a call.

    Args:
        session: Where they go.
        tables: The parameters of the registered modules; grows.
        mode: Learns that transforms train the model.
        loss: Called with the differentiated number, before its gradients are captured.
    """

    def __init__(
        self,
        session: Session,
        tables: Sequence[ParameterTable],
        mode: TorchMode,
        loss: Callable[[torch.Tensor], None],
    ) -> None:
        self._session = session
        self._tables = tables
        self._mode = mode
        self._loss = loss
        # The parameters that modules were given for their latest call, by identity.
        self._lent: dict[int, tuple[weakref.ref[torch.Tensor], TensorEntry]] = {}
        self._calls = GradientCalls(lambda call: session.run(self._returned, call))

    def forward_begins(self) -> None:
        """Remember parameters that modules were lent for a call."""
        self._lent = {
            id(parameter): (weakref.ref(parameter), entry)
            for parameter, entry in self._parameters()
            if not isinstance(parameter, torch.nn.Parameter)
        }

    def remove(self) -> None:
        """Watch no longer."""
        self._calls.remove()
        self._lent.clear()

    def _parameters(self) -> Iterator[tuple[torch.Tensor, TensorEntry]]:
        for table in self._tables:
            yield from table.parameters()

    def _returned(self, call: GradientCall) -> None:
        names = {id(parameter): entry for parameter, entry in self._parameters()}
        for identity, (parameter, entry) in self._lent.items():
            if parameter() is not None:
                names[identity] = entry
        found = [
            (names[id(parameter)], gradient)
            for parameter, gradient in zip(call.inputs, call.gradients, strict=True)
            if gradient is not None and id(parameter) in names
        ]
        session = self._session
        if not found or (session.optimizers and call.is_kept):
            return  # Not of parameters, or for a penalty before a backward pass.
        self._loss(call.root)
        if session.optimizers:
            return  # Captured when the optimizer steps.
        self._mode.is_functional |= is_in_transform()
        context = session.module_called(ModeKeys.TRAIN)
        if context is None:
            return
        requests = [
            (entry, gradient, flags)
            for entry, gradient in found
            if entry not in context.done
            and (flags := context.step_plan.of_entry(entry))
        ]
        if requests:
            entries, gradients, requested = zip(*requests, strict=True)
            context.done.update(entries)
            session.take(
                context,
                entries,
                gradients,
                requested,
                micro_batch=context.step.micro_batch,
            )
