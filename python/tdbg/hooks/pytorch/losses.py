"""Losses: modules that are hooked, and functions that are wrapped."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from tdbg.capture.session import Session
from tdbg.collections import Role
from tdbg.hooks.pytorch.activations import Activations
from tdbg.hooks.pytorch.callbacks import Callback
from tdbg.hooks.pytorch.parking import Parking
from tdbg.modes import ModeKeys

__all__ = ["LossTap"]


class _Before(Callback):
    __slots__ = ("_tap",)
    may_go = True

    def __init__(self, session: Session, tap: LossTap) -> None:
        super().__init__(session)
        self._tap = tap

    def __call__(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self.session.run(self._tap.inputs.take, (args, kwargs))


class _After(_Before):
    __slots__ = ()
    may_go = False

    def __call__(self, _: nn.Module, __: Any, output: Any) -> None:
        self.session.run(self._tap.outputs.take, output)


class LossTap:
    """Captures what a loss is given and what it answers.

    Args:
        session: Where they go.
        name: What their names begin with.
        mode: Says the present mode.
    """

    def __init__(
        self, session: Session, name: str, mode: Callable[[], ModeKeys]
    ) -> None:
        self._session = session
        self._handles: list[Any] = []
        self._parking = Parking()
        session.quiet.on_change.append(self._parking.park)
        self._module: weakref.ref[nn.Module] | None = None
        self._has_inputs = False
        self.name = name
        self.inputs = Activations(session, mode, name, Role.INPUT)
        self.outputs = Activations(session, mode, name, Role.LOSS)

    def hook(self, module: nn.Module) -> None:
        """Capture at each call of a module."""
        self._module = weakref.ref(module)
        after = module.register_forward_hook(_After(self._session, self))
        self._handles.append(after)
        self.refresh()

    def refresh(self) -> None:
        """Capture inputs too, where the collections ask for it by now."""
        module = None if self._module is None else self._module()
        if self._has_inputs or module is None:
            return
        if self._session.policy.may_capture(Role.INPUT):
            self._has_inputs = True
            before = module.register_forward_pre_hook(
                _Before(self._session, self), with_kwargs=True
            )
            self._handles.append(before)
            self._parking.add(module, "_forward_pre_hooks", before.id)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that captures at each call of *function*."""
        session = self._session

        @functools.wraps(function)
        def loss(*args: Any, **kwargs: Any) -> Any:
            if not session.quiet.is_quiet:
                session.run(self.inputs.take, (args, kwargs))
            result = function(*args, **kwargs)
            session.run(self.outputs.take, result)
            return result

        return loss

    def remove(self) -> None:
        """Take the hooks off; a wrapped function merely calls."""
        self._parking.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
