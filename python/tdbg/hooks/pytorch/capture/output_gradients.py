"""Gradients of the outputs of modules, captured where backward computes them.

In the forward of a step that captures them, each output tensor that requires a gradient
gets a hook.  Unlike a module's own backward hooks, such a hook wraps nothing, so the
computation stays as it is, in-place operations included.  A gradient belongs to the
output as the module returned it, even if the program changes it in place afterwards.

Thread safety: PyTorch calls hooks in the backward of a device from its own threads.

Errors: none into the backward; a tensor that takes no hook is refused and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from tdbg.capture.naming import gradient_name
from tdbg.capture.recorder import StepContext, TensorEntry
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.activations import Activations
from tdbg.hooks.pytorch.model.call_context import is_in_backward
from tdbg.hooks.pytorch.model.callbacks import Callback
from tdbg.modes import ModeKeys

__all__ = ["GradientHooks", "OutputGradient"]

_Tensor = torch.Tensor


class _GradientCapture:
    """The hook of one tensor: takes the first gradient that reaches it."""

    __slots__ = (
        "call",
        "context",
        "entry",
        "flags",
        "is_done",
        "micro_batch",
        "session",
    )

    def __init__(
        self,
        session: Session,
        context: StepContext,
        entry: TensorEntry,
        flags: int,
        call: int,
    ) -> None:
        self.session = session
        self.context = context
        self.entry = entry
        self.flags = flags
        self.call = call
        self.micro_batch = context.step.micro_batch
        self.is_done = False

    def __call__(self, gradient: Any) -> None:
        # A second backward of the graph, or one after the step, is not part of it.
        if not self.is_done and gradient is not None and self.context.step.is_open:
            self.is_done = True
            self.session.run(self._take, gradient)

    def _take(self, gradient: _Tensor) -> None:
        self.session.take(
            self.context,
            (self.entry,),
            (gradient,),
            (self.flags,),
            self.call,
            self.micro_batch,
        )


class GradientHooks:
    """The hooks on tensors, so that none stays behind.

    Nothing is kept alive: a hook goes with its tensor, or is taken off when a later
    step sets hooks, or at the end.
    """

    def __init__(self) -> None:
        self._set: list[tuple[StepContext, Any]] = []
        self._latest: tuple[StepContext | None, int] = (None, 0)

    def add(self, tensor: _Tensor, take: _GradientCapture) -> None:
        """Set a hook.

        Raises:
            RuntimeError: If the tensor takes none.
        """
        latest = (take.context, take.micro_batch)
        if latest != self._latest:
            self._latest = latest
            self._sweep()
        handle: Any = tensor.register_hook(take)  # type: ignore[no-untyped-call]
        self._set.append((take.context, handle))

    def remove(self) -> None:
        """Take off the hooks that are left."""
        for _, handle in self._set:
            handle.remove()
        self._set.clear()

    def _sweep(self) -> None:
        """Forget hooks of tensors that are gone, and take off those of ended steps."""
        kept = []
        for entry in self._set:
            context, handle = entry
            if handle.hooks_dict_ref() is None:
                continue
            if context.step.is_open:
                kept.append(entry)
            else:
                handle.remove()
        self._set = kept


class OutputGradient(Callback):
    """The forward hook of one module: hooks the tensors that it returns.

    Args:
        session: Where gradients go.
        mode: Returns the present mode.
        paths: The module's paths; all but the first are aliases.
        classes: Names of the classes of the module.
        hooks: Keeps the hooks that are set.
    """

    __slots__ = ("_hooked_at", "_hooks", "_names", "_path")

    def __init__(
        self,
        session: Session,
        mode: Callable[[], ModeKeys],
        paths: tuple[str, ...],
        classes: frozenset[str],
        hooks: GradientHooks,
    ) -> None:
        super().__init__(session)
        self._hooks = hooks
        path, *aliases = (gradient_name(each) for each in paths)
        self._path = path
        role = Role.OUTPUT_GRADIENT
        self._names = Activations(session, mode, path, role, tuple(aliases), classes)
        self._hooked_at = -1  # Number of the step in which tensors were hooked last.

    def __call__(self, _: Any, __: Any, output: Any) -> None:
        """Hook the output of the module."""
        session = self.session
        if is_compiling() or not session.takes_activations:
            return
        session.run(self._again if is_in_backward() else self._watch, output)

    def _watch(self, output: Any) -> None:
        context = self._names.context()
        if context is not None:
            self._hook(context, output, self._names.count_call(context))

    def _again(self, output: Any) -> None:
        """Hook the output of a checkpointed forward that is computed again.

        If the first forward had gradients, its hooks are the right ones.  If not, the
        coming backward goes through these tensors.
        """
        step = self.session.training
        context: StepContext | None = None if step is None else step.context
        if context is None or not context.takes:
            return
        if self._hooked_at == context.step.number:
            return
        n_calls = self._names.calls_so_far(context)
        if n_calls == 1:
            self._hook(context, output, 0)
        elif n_calls:  # This may be any of these calls.
            why = "a checkpointed module is called several times in a forward"
            self.session.refuse(context, self._path, why)

    def _hook(self, context: StepContext, output: Any, call: int) -> None:
        names, step_plan = self._names, context.step_plan
        tensors: tuple[Any, ...]
        if type(output) is _Tensor and call == 0:
            choice, tensors = names.single(step_plan), (output,)
        else:
            choice, tensors = names.choose(output, call, context)
        if not choice.entries:
            return
        for entry, requested, tensor in zip(
            choice.entries, choice.requested, tensors, strict=True
        ):
            if not tensor.requires_grad:
                continue
            take = _GradientCapture(self.session, context, entry, requested, call)
            try:
                self._hooks.add(tensor, take)
            except (RuntimeError, NotImplementedError, TypeError):
                why = "PyTorch does not take a hook on this tensor"
                self.session.refuse(context, entry.name, why)
            else:
                self._hooked_at = context.step.number
