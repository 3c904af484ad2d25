"""The hooks before and after the step of one optimizer, compiled or not.

Thread safety: the training's thread.

Errors: none but ``TrainingStopped``, as of all hooks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import compiler
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.probes.probe_batch import FirstBatches
from tdbg.hooks.pytorch.compile.graph_calls import new_target, report_call
from tdbg.hooks.pytorch.compile.tracing import never_compiled

__all__ = ["StepBegins", "StepEnds"]

_Tell = Callable[..., Any]


class StepBegins:
    """The hook before the step of one optimizer.

    Args:
        optimizer: The optimizer; not kept alive.
        key: The key of the optimizer.
        session: Runs *tell_begin*.
        tell_begin: Called with key, optimizer and the arguments of the step.

    Attributes:
        session: As it was given.
    """

    def __init__(
        self, optimizer: Optimizer, key: int, session: Session, tell_begin: _Tell
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._key = key
        self.session = session
        self._report = tell_begin
        self.target = new_target(self)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Report that the optimizer is about to step; leave a call while traced."""
        if not (is_dynamo_compiling() or compiler._is_compiling_flag):
            return self.session.run(self._report, self._key, optimizer, args, kwargs)
        held = [each for group in optimizer.param_groups for each in group["params"]]
        gradients = [each.grad for each in held if each.grad is not None]
        report_call(self.target, held, gradients)
        return None

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """Report that a compiled step is about to update."""
        optimizer = self._optimizer()
        if optimizer is not None:
            self.session.run(self._report, self._key, optimizer, (), {})


class StepEnds:
    """The hook after the step of one optimizer.

    Args:
        optimizer: The optimizer; not kept alive.
        key: The key of the optimizer.
        session: Runs *tell_end*; a compiled step ends before its next event.
        tell_end: Called with key and optimizer.
        batches: Hears of each step that is over and no part of a graph.

    Attributes:
        session: As it was given.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        key: int,
        session: Session,
        tell_end: _Tell,
        batches: FirstBatches,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._key = key
        self.session = session
        self._report = tell_end
        self._batches = batches
        self.target = new_target(self)

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        """Report that the optimizer has stepped; leave a call while traced."""
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            report_call(self.target, None, None)
        else:
            self.session.run(self._report, self._key, optimizer)
            if self._batches.is_open:
                self._batches.step_ends()

    def called(self, given: Any, answered: Any) -> None:  # noqa: ARG002
        """Note that a compiled step is over, but for writes at the graph's end."""
        self.session.before_next_event(self._end)

    def _end(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            self.session.run(self._report, self._key, optimizer)


never_compiled(StepBegins.__call__, StepEnds.__call__)
