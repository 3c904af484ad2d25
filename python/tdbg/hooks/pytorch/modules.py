"""Hooks on a module: its forwards, and the inputs and outputs of all in it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from tdbg.capture.naming import MAX_CALLS, activation_name, tensors_in
from tdbg.capture.recorder import TensorPlan
from tdbg.capture.session import Session
from tdbg.collections import Role
from tdbg.hooks.pytorch.callbacks import Callback, is_in_backward
from tdbg.hooks.pytorch.parameters import ParameterTable
from tdbg.hooks.pytorch.tensors import describe, is_tensor
from tdbg.modes import ModeKeys

__all__ = ["Activations", "ModuleTap", "is_tapped_by"]

# Their units are dead when no output is above zero.
_WITH_UNITS = (nn.ReLU, nn.ReLU6, nn.Threshold)

_ModeOf = Callable[[], ModeKeys]


class Activations:
    """Captures the inputs or the outputs of one module or loss.

    Args:
        session: Where they go.
        mode: Says the present mode.
        path: What their names begin with.
        role: What they are.
        aliases: Further paths of the same module.
        with_units: Whether units are counted where a rule wants it.
    """

    def __init__(
        self,
        session: Session,
        mode: _ModeOf,
        path: str,
        role: Role,
        aliases: tuple[str, ...] = (),
        with_units: bool = False,
    ) -> None:
        self._session = session
        self._mode = mode
        self._path = path
        self._role = role
        self._direction = "input" if role is Role.INPUT else "output"
        self._aliases = aliases
        self._with_units = with_units
        self._plans: dict[tuple[int, int], TensorPlan] = {}

    def take(self, value: Any) -> None:
        """Capture the tensors in *value*, as they are now."""
        if is_in_backward():
            return
        session = self._session
        context = session.forward_context or session.module_called(self._mode())
        if context is None:
            return
        call = context.count_call(self)
        if call >= MAX_CALLS:
            return
        recorder, plans, wants = session.recorder, self._plans, context.wants
        for index, tensor in enumerate(tensors_in(value, is_tensor)):
            plan = plans.get((index, call)) or self._plan(index, call)
            if not wants.of(plan.profile) and plan.units is None:
                continue
            ref = describe(tensor)
            if ref is None:
                recorder.refuse(context)
            else:
                recorder.capture(context, plan, ref, call)

    def _plan(self, index: int, call: int) -> TensorPlan:
        name, *aliases = (
            activation_name(path, self._direction, index, call)
            for path in (self._path, *self._aliases)
        )
        plan = self._session.recorder.plan(name, self._role, tuple(aliases))
        if self._with_units:
            self._session.recorder.plan_units(plan)
        self._plans[(index, call)] = plan
        return plan


class _Input(Callback):
    __slots__ = ("_activations",)

    def __init__(self, session: Session, activations: Activations) -> None:
        super().__init__(session)
        self._activations = activations

    def __call__(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        if self.session.takes_activations and not torch.compiler.is_compiling():
            self.session.run(self._activations.take, (args, kwargs) if kwargs else args)


class _Output(_Input):
    __slots__ = ()

    def __call__(self, _: nn.Module, __: Any, output: Any) -> None:
        if self.session.takes_activations and not torch.compiler.is_compiling():
            self.session.run(self._activations.take, output)


class _Begin(Callback):
    __slots__ = ("tap",)

    def __init__(self, session: Session, tap: ModuleTap) -> None:
        super().__init__(session)
        self.tap = tap

    def __call__(self, module: nn.Module, _: Any) -> None:
        if not torch.compiler.is_compiling():
            self.session.run(self.tap.begin, module)


class _End(_Begin):
    __slots__ = ()

    def __call__(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.session.run(self.tap.end)


class ModuleTap:
    """A registered module: says when it is called, and captures what is in it.

    Args:
        session: Where events and tensors go.
        module: The root; not kept alive.
        name: What the names of its own inputs and outputs begin with.
        prefix: Goes before all names inside it.
        mode: Says the present mode.
        before_training: Called before a forward in training begins.
    """

    def __init__(
        self,
        session: Session,
        module: nn.Module,
        name: str,
        prefix: str,
        mode: _ModeOf,
        before_training: Callable[[], None],
    ) -> None:
        self._session = session
        self._module = weakref.ref(module)
        self._name = name
        self._prefix = prefix
        self._mode = mode
        self._before_training = before_training
        self._handles: list[Any] = []
        self._has_inputs = self._has_outputs = False
        # The exception under way at the beginning of each call that goes on.
        self._calls: list[BaseException | None] = []
        self.parameters = ParameterTable(session, module, prefix)
        begin = module.register_forward_pre_hook(_Begin(session, self), prepend=True)
        self._handles.append(begin)
        self._end_handle: Any = None
        self.refresh()

    @property
    def module(self) -> nn.Module | None:
        """The root, if it lives."""
        return self._module()

    def refresh(self) -> None:
        """Hook the modules inside, where the collections ask for it by now."""
        policy = self._session.policy
        module = self._module()
        if module is None:
            return
        self.parameters.refresh()
        if not self._has_inputs and policy.may_capture(Role.INPUT):
            self._has_inputs = True
            self._hook_inside(module, Role.INPUT)
        if not self._has_outputs and (
            policy.may_capture(Role.OUTPUT) or policy.needs.unit_summaries
        ):
            self._has_outputs = True
            self._hook_inside(module, Role.OUTPUT)
        # Last of all, so that the root's own output is still inside its forward.
        if self._end_handle is not None:
            self._end_handle.remove()
        self._end_handle = module.register_forward_hook(
            _End(self._session, self), always_call=True
        )

    def begin(self, module: nn.Module) -> None:
        """The root is about to be called."""
        if is_in_backward():
            return
        session = self._session
        if self._calls and _calls_on_stack(module) < 2:
            # An exception that is no Exception (an interrupt) ended that call.
            self._calls.clear()
            session.forward_lost()
        mode = self._mode()
        is_training = mode in {ModeKeys.TRAIN, ModeKeys.GLOBAL}
        if is_training:
            self._before_training()
        context = session.forward_begins(id(self), mode)
        self._calls.append(sys.exception())
        if context is None or not context.takes:
            return
        # Without an optimizer nobody says when the weights are about to change.
        if not is_training or not session.machine.has_optimizer:
            self.parameters.capture(context, gradients=False)

    def end(self) -> None:
        """Its call is over, perhaps by an exception."""
        if not self._calls:
            return  # It never began: a stop was asked for, or a recomputation.
        before = self._calls.pop()
        error = sys.exception()
        self._session.forward_ends(error is not None and error is not before)

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in (*self._handles, self._end_handle):
            handle.remove()

    def _hook_inside(self, root: nn.Module, role: Role) -> None:
        paths: dict[nn.Module, list[str]] = {}
        for path, module in root.named_modules(remove_duplicate=False):
            paths.setdefault(module, []).append(
                self._prefix + path if path else self._name
            )
        for module, (path, *aliases) in paths.items():
            activations = Activations(
                self._session,
                self._mode,
                path,
                role,
                tuple(aliases),
                with_units=role is Role.OUTPUT and isinstance(module, _WITH_UNITS),
            )
            if role is Role.INPUT:
                handle = module.register_forward_pre_hook(
                    _Input(self._session, activations), with_kwargs=True
                )
            else:
                handle = module.register_forward_hook(
                    _Output(self._session, activations)
                )
            self._handles.append(handle)


def is_tapped_by(module: nn.Module) -> Session | None:
    """The session that has this module registered, if any."""
    for callback in module._forward_pre_hooks.values():
        if isinstance(callback, _Begin):
            return callback.session
    return None


def _calls_on_stack(module: nn.Module) -> int:
    """How many calls of the module are under way, by the frames of the thread."""
    code = nn.Module._call_impl.__code__
    count = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is module:
            count += 1
        frame = frame.f_back
    return count
