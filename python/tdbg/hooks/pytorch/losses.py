"""Losses: modules that are hooked, and functions that are wrapped."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.compiler import is_compiling

from tdbg.capture.naming import tensors_in
from tdbg.capture.session import Session
from tdbg.collections import Role
from tdbg.hooks.pytorch.activations import Activations
from tdbg.hooks.pytorch.callbacks import Callback
from tdbg.hooks.pytorch.compiled import never_compiled, new_target, tell
from tdbg.hooks.pytorch.parking import Parking
from tdbg.hooks.pytorch.tensors import is_tensor
from tdbg.modes import ModeKeys

__all__ = ["LossTap", "loss_name"]


def loss_name(loss: Callable[..., Any]) -> str:
    """What a loss is called: by its function or class."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    name: str = getattr(loss, "__name__", None) or type(loss).__name__
    return "lambda" if name == "<lambda>" else name


_INPUT_ROLES = (Role.PREDICTION, Role.LABEL, Role.INPUT)


class _Before(Callback):
    __slots__ = ("_tap", "target")
    may_go = True

    def __init__(self, session: Session, tap: LossTap) -> None:
        super().__init__(session)
        self._tap = tap
        self.target = new_target(self)

    def __call__(self, _: Any, args: Any, kwargs: Any = None) -> None:
        # There are none where it was taken off during the call.
        if is_compiling():
            tell(self.target, (args, kwargs) if kwargs else args, None)
        else:
            self.called((args, kwargs), None)

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """Also by a compiled graph."""
        if not self.session.quiet.is_quiet:
            self.session.run(self._tap.inputs.take, given)


class _After(_Before):
    __slots__ = ()
    may_go = False

    def __call__(self, _: Any, __: Any, output: Any = None) -> None:
        if is_compiling():
            tell(self.target, None, output)
        else:
            self.session.run(self._tap.outputs.take, output)

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """Also by a compiled graph."""
        self.session.run(self._tap.outputs.take, answered)


never_compiled(_Before.__call__, _After.__call__)


class _Function:
    """Stands in for a loss that is no module: calls it, and captures.

    It has the attributes of what it stands for.  A copy, or what is unpickled, is
    that itself: a copied model is not captured, and needs no tdbg.
    """

    def __init__(self, tap: LossTap, function: Callable[..., Any]) -> None:
        self._tdbg_before = _Before(tap.session, tap)
        self._tdbg_after = _After(tap.session, tap)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function: Callable[..., Any] = self.__dict__["__wrapped__"]
        self._tdbg_before(None, args, kwargs)
        result = function(*args, **kwargs)
        self._tdbg_after(None, args, result)
        return result

    def __get__(self, instance: object, _: type | None = None) -> Any:
        """As the attribute of a class a function is a method."""
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


class _LossInputs(Activations):
    """What a loss is given: predictions, then labels, then anything else."""

    # How many tensors the first argument has, and the first two together.
    _ends: tuple[int, int] | None = None

    def take(self, value: Any, quick: Any = None) -> None:
        """Capture what a call was given, as positional and other arguments.

        A compiled graph gives only the tensors: then each is an argument.
        """
        if self._ends is None:
            self._ends = _argument_ends(value)
        super().take(value, quick)

    def role_of(self, index: int) -> Role:
        """By the argument in which the tensor of that index is."""
        first, second = self._ends or (1, 2)
        if index < first:
            return Role.PREDICTION
        return Role.LABEL if index < second else Role.INPUT


def _argument_ends(value: Any) -> tuple[int, int]:
    """How many tensors the first argument of a call has, and the first two."""
    if not (type(value) is tuple and len(value) == 2 and type(value[1]) is dict):
        return 1, 2
    args, kwargs = value
    sizes = [len(list(tensors_in(each, is_tensor))) for each in args[:2]]
    names = iter(kwargs.values())
    while len(sizes) < 2:
        each = next(names, None)
        sizes.append(0 if each is None else len(list(tensors_in(each, is_tensor))))
    return sizes[0], sizes[0] + sizes[1]


class LossTap:
    """Captures what a loss is given and what it answers.

    Args:
        session: Where they go.
        name: What their names begin with.
        mode: Says the present mode.
        kind: Its function or class.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        mode: Callable[[], ModeKeys],
        kind: str,
    ) -> None:
        self.session = session
        self._handles: list[Any] = []
        self._parking = Parking()
        session.quiet.on_change.append(self._parking.park)
        self._module: weakref.ref[nn.Module] | None = None
        self._has_inputs = False
        self.name = name
        self.kind = kind
        self.inputs = _LossInputs(session, mode, name, Role.INPUT)
        self.outputs = Activations(session, mode, name, Role.LOSS)

    def hook(self, module: nn.Module) -> None:
        """Capture at each call of a module."""
        self._module = weakref.ref(module)
        after = module.register_forward_hook(_After(self.session, self))
        self._handles.append(after)
        self.refresh()

    def refresh(self) -> None:
        """Capture inputs too, where the collections ask for it by now."""
        module = None if self._module is None else self._module()
        if self._has_inputs or module is None:
            return
        if any(map(self.session.policy.may_capture, _INPUT_ROLES)):
            self._has_inputs = True
            before = module.register_forward_pre_hook(
                _Before(self.session, self), with_kwargs=True
            )
            self._handles.append(before)
            self._parking.add(module, "_forward_pre_hooks", before.id)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What captures at each call of *function*, to be used in its place."""
        return (
            function if isinstance(function, _Function) else _Function(self, function)
        )

    def remove(self) -> None:
        """Take the hooks off; a wrapped function merely calls."""
        self._parking.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
