"""Losses: the inputs and outputs of modules with hooks, and of wrapped functions.

Thread safety: the training's thread.  Errors: none but ``TrainingStopped``.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import compiler, nn
from torch.compiler import is_dynamo_compiling

from tdbg.capture.naming import tensors_in
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.config.kinds import Kind
from tdbg.hooks.pytorch.capture.activations import Activations
from tdbg.hooks.pytorch.compile.graph_calls import new_target, report_call
from tdbg.hooks.pytorch.compile.removable_hooks import RemovableHooks
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.device.tensors import is_tensor
from tdbg.hooks.pytorch.functions.call_sites import CallSites
from tdbg.hooks.pytorch.model.callbacks import Callback
from tdbg.modes import ModeKeys

if TYPE_CHECKING:
    from tdbg.profiler import Fingerprints

__all__ = ["CapturedLoss", "is_call_of_function"]

_INPUT_ROLES = (Role.PREDICTION, Role.LABEL, Role.INPUT)


class _Before(Callback):
    __slots__ = ("_capture", "target")

    def __init__(self, session: Session, capture: CapturedLoss) -> None:
        super().__init__(session)
        self._capture = capture
        self.target = new_target(self)

    def __call__(self, _: Any, args: Any, kwargs: Any = None) -> None:
        # There are no keywords if the hook was taken off during the call.
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, (args, kwargs) if kwargs else args, None)
        elif not self.session.idle.is_idle:
            self.session.run(self._take_at, sys._getframe(1), (args, kwargs))

    def _take_at(self, caller: types.FrameType, given: Any) -> None:
        self._capture.at(caller).inputs.take(given)

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """Capture the call of a loss in a compiled graph."""
        if not self.session.idle.is_idle:
            self.session.run(self._capture.inputs.take, given)


class _After(_Before):
    __slots__ = ()

    def __call__(self, _: Any, __: Any, output: Any = None) -> None:
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, None, output)
            return
        self.session.clock.loss_ends()
        if not self.session.is_quiet:
            self.session.run(self._take_at, sys._getframe(1), output)

    def _take_at(self, caller: types.FrameType, output: Any) -> None:
        capture = self._capture.at(caller)
        capture.outputs.take(output)
        if self._capture.saw is not None:
            self._capture.saw(capture, output)

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """Capture the call of a loss in a compiled graph."""
        if not self.session.is_quiet:
            self.session.run(self._capture.outputs.take, answered)


class _Begins(Callback):
    """Notes that a loss is being computed, which belongs to the forward."""

    __slots__ = ("_capture",)

    def __init__(self, session: Session, capture: CapturedLoss) -> None:
        super().__init__(session)
        self._capture = capture

    def __call__(self, _: Any, args: Any, kwargs: Any = None) -> None:
        if not (is_dynamo_compiling() or compiler._is_compiling_flag):
            session = self.session
            session.clock.loss_begins()
            prints: Fingerprints | None = session.fingerprints
            if prints is not None:
                prints.take_labels(self._capture, args, kwargs)


never_compiled(_Before.__call__, _After.__call__, _Begins.__call__)


class _Function:
    """Stand in for a loss that is no module: call it and capture.

    It has the attributes of the function.  Copies of it, pickled ones too, are the
    function itself: a copied model is not captured and needs no tdbg.
    """

    def __init__(self, capture: CapturedLoss, function: Callable[..., Any]) -> None:
        self._tdbg_before = _Before(capture.session, capture)
        self._tdbg_begins = _Begins(capture.session, capture)
        self._tdbg_after = _After(capture.session, capture)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function: Callable[..., Any] = self.__dict__["__wrapped__"]
        self._tdbg_before(None, args, kwargs)
        self._tdbg_begins(None, args, kwargs)
        result = function(*args, **kwargs)
        self._tdbg_after(None, args, result)
        return result

    def __get__(self, instance: object, _: type | None = None) -> Any:
        """Bind like a function, which is a method as the attribute of a class."""
        function = self.__dict__["__wrapped__"]
        if instance is None or not isinstance(function, types.FunctionType):
            return self
        return types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__" or "__wrapped__" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["__wrapped__"], name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__dict__["__wrapped__"], memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.__dict__["__wrapped__"],)


def is_call_of_function(frame: types.FrameType) -> bool:
    """Return whether the frame is a call of a registered function."""
    return frame.f_code is _Function.__call__.__code__


class _LossInputs(Activations):
    """The inputs of a loss: predictions, then labels, then anything else."""

    # The number of tensors in the first argument, and in the first two.
    _ends: tuple[int, int] | None = None
    # Called with the arguments of each call.
    saw: Callable[[Any], None] | None = None

    def take(self, value: Any, quick: Any = None, mode: ModeKeys | None = None) -> None:
        """Capture the arguments of a call, positional and others.

        A compiled graph passes tensors only; each then counts as an argument.
        """
        if self._ends is None:
            self._ends = _argument_ends(value)
        if self.saw is not None:
            self.saw(value)
        super().take(value, quick, mode)

    def role_of(self, index: int) -> Role:
        """Return the role of a tensor by the argument that it is in."""
        first, second = self._ends or (1, 2)
        if index < first:
            return Role.PREDICTION
        return Role.LABEL if index < second else Role.INPUT


def _argument_ends(value: Any) -> tuple[int, int]:
    """Return the number of tensors in the first argument, and in the first two."""
    if not (type(value) is tuple and len(value) == 2 and type(value[1]) is dict):
        return 1, 2
    args, kwargs = value
    sizes = [len(list(tensors_in(each, is_tensor))) for each in args[:2]]
    names = iter(kwargs.values())
    while len(sizes) < 2:
        each = next(names, None)
        sizes.append(0 if each is None else len(list(tensors_in(each, is_tensor))))
    return sizes[0], sizes[0] + sizes[1]


class CapturedLoss:
    """A loss whose inputs and outputs are captured.

    Args:
        session: Where they go.
        name: The beginning of their names.
        mode: Returns the present mode.
        class_name: The name of the loss's function or class.
        kind: The kind of the loss; None: it has none.
        another: Makes the capture of the same loss for calls from another place of the
            program; None: all places share this one.

    Attributes:
        saw: Called with the capture of the place and each result; None: nobody asks.
        is_begun: Whether a backward pass has begun at it, or may have.
        n_idle: How often one has begun elsewhere since it was computed.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        mode: Callable[[], ModeKeys],
        class_name: str,
        kind: Kind | None,
        another: Callable[[], CapturedLoss] | None = None,
    ) -> None:
        self.session = session
        self._another = another
        self.saw: Callable[[CapturedLoss, Any], None] | None = None
        self.is_begun, self.n_idle = False, 0
        self._others: list[CapturedLoss] = []
        self._sites = CallSites(mode)
        self._handles: list[Any] = []
        self._removable = RemovableHooks()
        session.idle.on_change.append(self._removable.set_idle)
        self._module: weakref.ref[nn.Module] | None = None
        self._before: _Before | None = None
        self.name = name
        self.class_name = class_name
        self.kind = kind
        self.inputs = _LossInputs(session, mode, name, Role.INPUT)
        self.outputs = Activations(session, mode, name, Role.LOSS)

    def hook(self, module: nn.Module) -> None:
        """Capture at each call of a module."""
        self._module = weakref.ref(module)
        begins = module.register_forward_pre_hook(
            _Begins(self.session, self), with_kwargs=True
        )
        after = module.register_forward_hook(_After(self.session, self))
        self._handles += [begins, after]
        self.refresh()

    @property
    def module(self) -> nn.Module | None:
        """The module, if the loss is one and still lives."""
        return None if self._module is None else self._module()

    @property
    def is_gone(self) -> bool:
        """Whether the loss was a module that no longer lives."""
        return self._module is not None and self._module() is None

    def at(self, caller: types.FrameType) -> CapturedLoss:
        """Return the capture for the place that is calling."""
        number = 0 if self._another is None else self._sites.number(caller)
        while self._another is not None and number > len(self._others):
            self._others.append(self._another())
        return self._others[number - 1] if number else self

    def refresh(self) -> None:
        """Capture inputs too, if the collections ask for it by now."""
        module = self.module
        if self._before is not None or module is None:
            return
        if any(map(self.session.may_capture, _INPUT_ROLES)):
            self._before = _Before(self.session, self)
            handle = module.register_forward_pre_hook(self._before, with_kwargs=True)
            self._handles.append(handle)
            self._removable.add(module, "_forward_pre_hooks", handle.id)

    def begin_late(self, args: Any, kwargs: Any) -> None:
        """Capture the inputs of a call that began before the module had hooks."""
        if self._before is not None:
            self._before(None, args, kwargs)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that captures at each call of *function*, in its place."""
        return (
            function if isinstance(function, _Function) else _Function(self, function)
        )

    def remove(self) -> None:
        """Take the hooks off; a wrapped function merely calls."""
        self._removable.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
