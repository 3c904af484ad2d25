"""Calls of a module's ``forward()`` by the program itself, which no hook reports.

Programs often call layers like this that train each by itself (``self.forward(x)`` in a
method that trains), and so does a library whose base class has its own ``__call__``.
Once a module is made visible, such a call goes through the ``__call__`` of PyTorch's
modules, as PyTorch's documentation asks; hooks then see it.

Thread safety: modules are made visible by the training's thread; calls of any thread.

Errors: none.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import class_name

__all__ = ["DirectCalls", "direct_caller", "make_visible", "name_in_model"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks")


def _codes(function: Callable[..., Any]) -> set[types.CodeType]:
    code = function.__code__
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return {code, *inner}


# What calls `forward` for a module that is called.
_CALLERS = _codes(nn.Module._call_impl) | _codes(nn.Module._slow_forward)


class DirectCalls(Inert):
    """Stand in for ``forward`` of a module, and call the module instead.

    A copy of the module has its own ``forward`` in its place.

    Args:
        module: The module.
    """

    __slots__ = ("__weakref__", "_module")

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; or its own ``forward``, where it is being called."""
        module = self._of()
        is_called = sys._getframe(1).f_code in _CALLERS
        if is_called or _has_hooks_of_others(module):
            return type(module).forward(module, *args, **kwargs)
        # Not `__call__` of its class: it may be what calls `forward`, past all hooks.
        return nn.Module.__call__(module, *args, **kwargs)

    @property
    def module(self) -> nn.Module | None:
        """The module; None: it does not exist any longer."""
        return self._module()

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The module's own ``forward``: its signature is looked up."""
        module = self._of()
        return types.MethodType(type(module).forward, module)

    def remove(self) -> None:
        """Let the module have its own ``forward`` again."""
        module = self._module()
        if module is not None and vars(module).get("forward") is self:
            del module.__dict__["forward"]

    def _of(self) -> nn.Module:
        module = self._module()
        if module is None:
            msg = "the module of this forward() no longer exists"
            raise ReferenceError(msg)
        return module

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        module = self._of()
        copied = memo.get(id(module), module)
        return types.MethodType(type(copied).forward, copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._of(), "forward")


def make_visible(module: nn.Module) -> DirectCalls | None:
    """Make direct calls of a module's ``forward()`` calls of the module.

    Also those that a ``__call__`` of its class makes in the place of PyTorch's.

    Returns:
        What takes it back; None if it cannot be done: the module is scripted or
        compiled, has no ``forward`` of its own or another one than its class, or hooks
        of the program that these calls do not reach today.
    """
    kind = type(module)
    if (
        isinstance(module, torch.jit.ScriptModule)
        or kind.forward is nn.Module.forward
        or "forward" in vars(module)
        or _has_hooks_of_others(module)
    ):
        return None
    calls = DirectCalls(module)
    module.__dict__["forward"] = calls
    return calls


def direct_caller(module: nn.Module) -> nn.Module | None:
    """Return the outermost module whose ``forward()`` the program has called.

    To be called while *module*, which is a part of it, is being called.
    """
    found = None
    for frame, model in _models_around(module):
        if frame.f_code.co_name == "forward":
            caller = frame.f_back
            is_called = caller is not None and caller.f_code in _CALLERS
            found = None if is_called else model
    return found


def name_in_model(layer: nn.Module) -> str | None:
    """Return the name of a layer that a method of its model calls, like ``PPO.fc1``.

    To be called while the layer is being called.

    Returns:
        None: It is no single layer, or no method of such a model calls it.
    """
    if next(layer.children(), None) is not None:
        return None
    models = [model for _, model in _models_around(layer)]
    if not models:
        return None
    path = next(path for path, each in models[-1].named_modules() if each is layer)
    return f"{class_name(models[-1])}.{path}"


def _models_around(
    module: nn.Module,
) -> Iterator[tuple[types.FrameType, nn.Module]]:
    """Yield the methods under way of models around a module, the inner first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if (
            isinstance(first, nn.Module)
            and first is not module
            and any(each is module for each in first.modules())
        ):
            yield frame, first
        frame = frame.f_back


def _has_hooks_of_others(module: nn.Module) -> bool:
    return any(
        not isinstance(hook, Inert)
        for name in _HOOKS
        for hook in getattr(module, name).values()
    )
