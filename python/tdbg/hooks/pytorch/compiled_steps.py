"""The step of an optimizer, where it is compiled too.

A compiled step is a graph like any other: an operator before the update calls the
hook, and reads the parameters and gradients that the update is about to use, so that
it cannot be moved behind it.  After the update nothing can be read inside the graph:
parameters may get their new values when the graph has ended.  So the end of such a
step is told before the next event of the training, whatever that is.

Thread safety: the training's thread.

Errors: none into the step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling
from torch.optim import Optimizer

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.compiled import never_compiled, new_target, tell

__all__ = ["StepBegins", "StepEnds"]

_Tell = Callable[..., Any]


class StepBegins:
    """The hook before the step of one optimizer.

    Args:
        optimizer: Not kept alive.
        key: Of the optimizer.
        session: What runs *tell_begin*.
        tell_begin: Called with key, optimizer and the arguments of the step.
    """

    def __init__(
        self, optimizer: Optimizer, key: int, session: Session, tell_begin: _Tell
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._key = key
        self._session = session
        self._tell = tell_begin
        self.target = new_target(self)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """It is about to step, or this is traced."""
        if not is_compiling():
            return self._session.run(self._tell, self._key, optimizer, args, kwargs)
        held = [each for group in optimizer.param_groups for each in group["params"]]
        gradients = [each.grad for each in held if each.grad is not None]
        tell(self.target, held, gradients)
        return None

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """A compiled step is about to update."""
        optimizer = self._optimizer()
        if optimizer is not None:
            self._session.run(self._tell, self._key, optimizer, (), {})


class StepEnds:
    """The hook after it.

    Args:
        optimizer: Not kept alive.
        key: Of the optimizer.
        session: What runs *tell_end*; a compiled step ends before its next event.
        tell_end: Called with key and optimizer.
    """

    def __init__(
        self, optimizer: Optimizer, key: int, session: Session, tell_end: _Tell
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._key = key
        self._session = session
        self._tell = tell_end
        self.target = new_target(self)

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        """It has stepped, or this is traced."""
        if is_compiling():
            tell(self.target, None, None)
        else:
            self._session.run(self._tell, self._key, optimizer)

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """A compiled step is over, but for what the end of the graph writes."""
        self._session.unfinished.append(self._end)

    def _end(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            self._session.run(self._tell, self._key, optimizer)


never_compiled(StepBegins.__call__, StepEnds.__call__)
