"""Gradients as they were before they were clipped.

Between the backward and the optimizer's step a training may change its gradients
without notice.  So, if you ask for unclipped gradients, tdbg watches each parameter's
accumulation and copies the gradients when a backward is over.  It captures the copies
when the optimizer steps.  A further backward in the same step replaces them.

Thread safety: backward passes call from autograd's threads, one at a time.

Errors: none of its own; a gradient for whose copy there is no memory is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.autograd import Variable
from torch.compiler import is_compiling

from tdbg.capture.naming import unclipped_gradient_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.capture.steps import Step
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.capture.updates import DerivedEntries
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.parameters_and_gradients import (
    ParameterPlace,
    ParameterTable,
)
from tdbg.hooks.pytorch.device.tensors import TYPES, gradient_of

__all__ = ["UnclippedGradients"]


class UnclippedGradients:
    """Keep copies of gradients from the end of a backward to the optimizer's step.

    Args:
        session: Where they go.
        tables: The parameters of the registered modules; grows.
    """

    def __init__(self, session: Session, tables: Sequence[ParameterTable]) -> None:
        self._session = session
        self._tables = tables
        self._entries: DerivedEntries[ParameterPlace] = DerivedEntries(
            session, Role.GRADIENT_UNCLIPPED, unclipped_gradient_name
        )
        # The parameters that are watched, by identity, and their hooks.
        self._handles: dict[int, Any] = {}
        # The training step whose entry was read last, and whether it captures any.
        self._step: Step | None = None
        self._captures_any = False
        self._is_queued = False
        self._copies: dict[TensorEntry, torch.Tensor] = {}

    @property
    def has_copies(self) -> bool:
        """Whether copies wait for an optimizer."""
        return bool(self._copies)

    def refresh(self) -> None:
        """Decide anew what is captured: collections have changed."""
        self._entries.refresh()
        self._step = None
        self.watch()

    def prepare(self, step_plan: StepPlan) -> None:
        """Watch new parameters, if the step that begins captures any."""
        if self._captures_some(step_plan):
            self.watch()

    def watch(self) -> None:
        """Watch the parameters of which something is captured, and no others."""
        found = set()
        for table in self._tables:
            for tracked, _ in self._entries.of(table):
                parameter = tracked.parameter()
                if parameter is None or not parameter.requires_grad:
                    continue
                if not parameter.is_leaf:
                    continue
                found.add(id(parameter))
                if id(parameter) not in self._handles:
                    register: Any = parameter.register_post_accumulate_grad_hook
                    handle = register(_mark(weakref.ref(self)))
                    self._handles[id(parameter)] = handle
                    # The number may be another parameter's when this one is gone.
                    gone = weakref.finalize(
                        parameter, self._handles.pop, id(parameter), None
                    )
                    gone.atexit = False
        for identity in self._handles.keys() - found:
            self._handles.pop(identity).remove()

    def take(
        self,
        context: StepContext,
        *,
        scale: Any = 1.0,
        only: AbstractSet[int] | None = None,
    ) -> None:
        """Capture the copies: an optimizer is about to step.

        Args:
            context: The step.
            scale: Undoes the scale of the loss, as in ``Recorder.take``.
            only: Ids of the optimizer's parameters; None takes all.
        """
        if not self._copies:
            self.prepare(
                context.step_plan
            )  # Earlier gradients belong to the next step.
            return
        entries, tensors, requested = [], [], []
        for table in self._tables:
            for tracked, entry, flags in self._entries.requested(
                table, context.step_plan
            ):
                parameter = tracked.parameter()
                if parameter is None or (
                    only is not None and id(parameter) not in only
                ):
                    continue
                copy = self._copies.pop(entry, None)
                has_none = gradient_of(parameter) is None
                if copy is None or has_none or entry in context.done:
                    continue
                entries.append(entry)
                tensors.append(copy)
                requested.append(flags)
        if entries:
            context.done.update(entries)
            self._session.take(context, entries, tensors, requested, scale=scale)

    def forget(self) -> None:
        """Free the copies: no optimizer will step."""
        self._copies.clear()

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._copies.clear()

    # ---- called by autograd ------------------------------------------------------

    def mark(self) -> None:
        """Note that a backward has added to a gradient."""
        step = self._session.training
        if step is not self._step:
            self._session.run(self._step_changed, step)
        if self._captures_any and not self._is_queued and not is_compiling():
            self._is_queued = True
            self._session.run(_at_the_end, self._backward_ends)

    def _step_changed(self, step: Step | None) -> None:
        """Read the entry of a step at its first gradient."""
        self._step = step
        self._is_queued = False
        context: StepContext | None = None if step is None else step.context
        self._copies.clear()
        self._captures_any = (
            context is not None
            and context.takes
            and self._captures_some(context.step_plan)
        )

    def _captures_some(self, step_plan: StepPlan) -> bool:
        return any(self._entries.requested(table, step_plan) for table in self._tables)

    def _backward_ends(self) -> None:
        # Calls that were queued meanwhile come first: DistributedDataParallel
        # reduces gradients over ranks by such a call.
        self._session.run(_at_the_end, self._copy_all)

    def _copy_all(self) -> None:
        self._is_queued = False
        self._session.run(self._copy)

    def _copy(self) -> None:
        """Copy the gradients: a backward is over."""
        step = self._step
        context: StepContext | None = None if step is None else step.context
        if context is None or not context.takes:
            return
        for table in self._tables:
            for tracked, entry, _ in self._entries.requested(table, context.step_plan):
                parameter = tracked.parameter()
                if parameter is None or not parameter.requires_grad:
                    continue  # A frozen one holds a gradient of an earlier backward.
                gradient = gradient_of(parameter)
                if gradient is not None and entry not in context.done:
                    self._keep(context, entry, gradient.detach())
        if not self._session.optimizers:
            self.take(context)  # No optimizer will.

    def _keep(
        self, context: StepContext, entry: TensorEntry, gradient: torch.Tensor
    ) -> None:
        before = self._copies.get(entry)
        try:
            with torch.no_grad():
                if before is not None and _are_alike(before, gradient):
                    before.copy_(gradient)
                else:
                    self._copies[entry] = gradient.clone()
        except (RuntimeError, NotImplementedError):
            self._copies.pop(entry, None)
            self._session.refuse(context, entry.name, "it cannot be copied")


def _mark(owner: weakref.ref[UnclippedGradients]) -> Callable[[torch.Tensor], None]:
    def mark(_: torch.Tensor) -> None:
        me = owner()
        if me is not None:
            me.mark()

    return mark


def _at_the_end(function: Callable[[], None]) -> None:
    """Call *function* when the backward under way is over."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(function)


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether the memory of one can hold the elements of the other."""
    return (
        type(one) in TYPES
        and one.layout is torch.strided
        and other.layout is torch.strided
        and one.shape == other.shape
        and one.dtype is other.dtype
        and one.device == other.device
    )
