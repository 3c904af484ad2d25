"""Hooks on a module: its forwards, and the inputs and outputs of all in it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import nn
from torch.compiler import is_compiling

from tdbg.capture.session import Session
from tdbg.collections import Role
from tdbg.hooks.pytorch.activations import Activations, take_both
from tdbg.hooks.pytorch.callbacks import Callback, is_in_backward
from tdbg.hooks.pytorch.parameters import ParameterTable
from tdbg.hooks.pytorch.parking import Parking
from tdbg.hooks.pytorch.paths import named_modules
from tdbg.modes import GLOBAL, TRAIN, ModeKeys

__all__ = ["ModuleTap", "is_tapped_by"]

# Their units are dead when no output is above zero.
_WITH_UNITS = (nn.ReLU, nn.ReLU6, nn.Threshold)

_TRAINING = frozenset({TRAIN, GLOBAL})

_ModeOf = Callable[[], ModeKeys]


class _Quick(Callback):
    """A hook that asks the core first, which takes what is simple by itself."""

    __slots__ = ("_quick", "_take")

    def __init__(self, session: Session, activations: Activations) -> None:
        super().__init__(session)
        self._quick = activations.quick()
        self._take = _take_nothing if self._quick is None else self._quick.take


class _Input(_Quick):
    __slots__ = ("_activations",)

    def __init__(self, session: Session, activations: Activations) -> None:
        super().__init__(session, activations)
        self._activations = activations

    def __call__(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        # What is compiled skips all of it: nothing to guard, nothing to compile anew.
        if is_compiling() or not self.session.takes_activations:
            return
        if not self._take(args, kwargs, None):
            value = (args, kwargs) if kwargs else args
            self.session.run(self._activations.take, value, self._quick)


class _Output(_Input):
    __slots__ = ()

    def __call__(self, _: nn.Module, __: Any, output: Any) -> None:
        if is_compiling() or not self.session.takes_activations:
            return
        if not self._take(None, None, output):
            self.session.run(self._activations.take, output, self._quick)


class _Both(_Quick):
    __slots__ = ("_inputs", "_outputs")

    def __init__(
        self, session: Session, inputs: Activations, outputs: Activations
    ) -> None:
        super().__init__(session, inputs)
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        session = self.session
        if is_compiling() or not session.takes_activations:
            return
        if not self._take(args, kwargs, output):
            inputs, outputs = self._inputs, self._outputs
            session.run(
                take_both, session, inputs, outputs, args, kwargs, output, self._quick
            )


def _take_nothing(_: Any, __: Any, ___: Any) -> bool:
    return False


class _Begin(Callback):
    __slots__ = ("tap",)

    def __init__(self, session: Session, tap: ModuleTap) -> None:
        super().__init__(session)
        self.tap = tap

    def __call__(self, module: nn.Module, _: Any) -> None:
        if not is_compiling():
            self.session.run(self.tap.begin, module)


class _End(_Begin):
    __slots__ = ()

    def __call__(self, *_: Any) -> None:
        if not is_compiling():
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
        self._parking = Parking()
        session.quiet.on_change.append(self._parking.park)
        self._has_inputs = self._has_outputs = False
        # The exception under way at the beginning of each call that goes on.
        self._calls: list[BaseException | None] = []
        before = session.policy.naming.before_parameters(name, prefix)
        self.parameters = ParameterTable(session, module, before)
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
        roles = []
        if not self._has_inputs and policy.may_capture(Role.INPUT):
            self._has_inputs = True
            roles.append(Role.INPUT)
        if not self._has_outputs and (
            policy.may_capture(Role.OUTPUT) or policy.needs.unit_summaries
        ):
            self._has_outputs = True
            roles.append(Role.OUTPUT)
        if roles:
            self._hook_inside(module, roles)
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
        is_training = mode in _TRAINING
        if is_training:
            self._before_training()
        context = session.forward_begins(id(self), mode)
        self._calls.append(sys.exception())
        if context is None or not context.takes:
            return
        # Without an optimizer nobody says when the weights are about to change.
        if not is_training or not session.machine.has_optimizer:
            self.parameters.capture(context, gradients=False)
        else:
            self.parameters.begin_values(context)

    def end(self) -> None:
        """Its call is over, perhaps by an exception."""
        if not self._calls:
            return  # It never began: a stop was asked for, or a recomputation.
        before = self._calls.pop()
        error = sys.exception()
        self._session.forward_ends(error is not None and error is not before)

    def remove(self) -> None:
        """Take all hooks off."""
        self._parking.close()
        for handle in (*self._handles, self._end_handle):
            handle.remove()
        self.parameters.fence(is_last=True)

    def _hook_inside(self, root: nn.Module, roles: list[Role]) -> None:
        paths: dict[nn.Module, list[str]] = {}
        for path, module in named_modules(root):
            paths.setdefault(module, []).append(
                self._prefix + path if path else self._name
            )
        for module, (path, *aliases) in paths.items():
            captured = {
                role: Activations(
                    self._session,
                    self._mode,
                    path,
                    role,
                    tuple(aliases),
                    with_units=role is Role.OUTPUT and isinstance(module, _WITH_UNITS),
                )
                for role in roles
            }
            self._hook_one(module, captured)

    def _hook_one(self, module: nn.Module, captured: dict[Role, Activations]) -> None:
        session, inputs = self._session, captured.get(Role.INPUT)
        outputs = captured.get(Role.OUTPUT)
        if inputs is not None and outputs is not None and _leaves_inputs_alone(module):
            both = _Both(session, inputs, outputs)
            handle = module.register_forward_hook(both, with_kwargs=True)
            self._keep(module, "_forward_hooks", handle)
            return
        if inputs is not None:
            before = _Input(session, inputs)
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
            self._keep(module, "_forward_pre_hooks", handle)
        if outputs is not None:
            after = _Output(session, outputs)
            handle = module.register_forward_hook(after)
            self._keep(module, "_forward_hooks", handle)

    def _keep(self, module: nn.Module, name: str, handle: Any) -> None:
        self._handles.append(handle)
        self._parking.add(module, name, handle.id)


def _leaves_inputs_alone(module: nn.Module) -> bool:
    """Whether its inputs are the same after its forward, so that one hook is enough.

    Of PyTorch's own modules without others inside, those that can work in place
    say so by an attribute.
    """
    return (
        type(module).__module__.startswith("torch.nn.modules.")
        and "forward" not in vars(module)
        and not module._modules
        and not hasattr(module, "inplace")
    )


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
