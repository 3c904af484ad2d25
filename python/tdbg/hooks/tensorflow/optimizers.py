"""Optimizers of loops: the gradients that they are given, and the ends of steps.

All gradients of a training come by one place, ``optimizer.apply`` (Keras calls it for
``apply_gradients``, too), which is replaced on the instance: no tape is touched, so
that further tapes, nested and persistent ones, cost and mean nothing.

Thread safety: the training's thread; graphs report from threads of TensorFlow, one
step after the other.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tdbg.capture.recorder import StepContext
from tdbg.hooks.keras.backend import Answer
from tdbg.hooks.keras.optimizers import SKIPPED, inner_of
from tdbg.hooks.keras.replicas import (
    n_replicas,
    replica_number,
    warn_of_eager_replicas,
)
from tdbg.hooks.keras.tracing import Taps
from tdbg.hooks.keras.watched import Stepping, WatchedModel
from tdbg.hooks.tensorflow.forwards import Forwards
from tdbg.hooks.tensorflow.reports import SAMPLES, Reports, Tensors
from tdbg.hooks.tensorflow.steps import ALL, LoopMode, LoopSteps, level_of
from tdbg.modes import TRAIN

__all__ = ["OptimizerSteps"]


class OptimizerSteps:
    """Reports the steps of one optimizer.

    Args:
        watched: The model.
        optimizer: The optimizer.
        steps: Receives them.
        mode: Is told when an optimizer steps.
        forwards: Hold what belongs to the step.
        reports: Puts reports into graphs.
        number: Counts the optimizers of the training.

    Attributes:
        watched: As given.
        number: As given.
    """

    def __init__(
        self,
        watched: WatchedModel,
        optimizer: Any,
        steps: LoopSteps,
        mode: LoopMode,
        forwards: Forwards,
        reports: Reports,
        number: int,
    ) -> None:
        self.number = number
        self.watched = watched
        self._optimizer = weakref.ref(optimizer)
        self._steps = steps
        self._session = steps.session
        self._mode = mode
        self._forwards = forwards
        self._reports = reports
        self._tf: Any = import_module("tensorflow")
        self._open: tuple[_Begun, Sequence[Tensors]] | None = None
        # The variables that it was given last, by their ids.
        self._given: list[int] = []

    def wrap(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in for ``optimizer.apply``."""

        def applied(grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
            if not self._session.is_live:
                return apply(grads, trainable_variables)
            collector = self._forwards.collector
            if collector is not None and not self._tf.executing_eagerly():
                taps = collector.gradients(replica_number(self._tf))
                if taps is not None:
                    given = grads, trainable_variables, taps
                    self._session.run(self._hold_gradients, *given)
                collector.applied.add(id(self))
                return apply(grads, trainable_variables)
            if self._tf.executing_eagerly() and n_replicas(self._tf) > 1:
                warn_of_eager_replicas()
                return apply(grads, trainable_variables)
            if self._tf.executing_eagerly():
                return self._apply_eagerly(apply, grads, trainable_variables)
            if not self._reports.may_report():
                return apply(grads, trainable_variables)
            return self._apply_in_graph(apply, grads, trainable_variables)

        return applied

    def _hold_gradients(self, grads: list[Any], variables: Any, taps: Taps) -> None:
        optimizer: Any = self._optimizer()
        given = optimizer._trainable_variables if variables is None else variables
        identities = [id(each) for each in given]
        if identities != self._given:
            self._given = identities
            self.watched.variables.may_differ()
        self.watched.variables.know(self.watched.model)
        self.watched.hold_gradients(optimizer, grads, given, taps)

    # ---- a step ----------------------------------------------------------------

    def _begin(self, variables: Any, *, begins_step: bool) -> _Begun | None:
        """The optimizer is about to step; None: it only adds up gradients."""
        self._mode.trains()
        watched = self.watched
        state = watched.backend.state_before(watched.model, ())
        if not watched.ends_step(TRAIN, state):
            return None
        stepping = self.stepping(variables)
        context = self._steps.optimizer_begins(stepping.key, begins_step=begins_step)
        if context is not None:
            watched.rates.record(context, state, stepping.optimizer, self.number)
        return _Begun(context, stepping)

    def stepping(self, variables: Any = None) -> Stepping:
        """The step of the optimizer.

        Args:
            variables: Those that it is given; None: those that it was given before.
        """
        optimizer: Any = self._optimizer()
        inner = inner_of(optimizer)
        if variables is None and inner.built:
            variables = inner._trainable_variables
        changed = None if variables is None else frozenset(map(id, variables))
        return Stepping(id(optimizer), optimizer, changed)

    def _capture(self, begun: _Begun, replicas: Sequence[Tensors]) -> None:
        """Capture gradients, and variables before the step changes them."""
        context, watched = begun.context, self.watched
        if context is not None and level_of(context) == ALL:
            self._steps.capture_variables(context, watched)
            state = watched.backend.state_before(watched.model, ())
            watched.expect_updates(context, state, begun.stepping)
            watched.take(context, replicas)

    def _end(self, begun: _Begun, replicas: Sequence[Tensors]) -> None:
        """The optimizer has stepped."""
        watched, stepping = self.watched, begun.stepping
        state = watched.backend.state_after(watched.model, None)
        answer = Answer({}, replicas[0])
        watched.end_training(begun.context, answer, state, stepping)
        try:
            self._steps.obey(TRAIN)
        finally:
            self._reports.refresh()

    # ---- eagerly ---------------------------------------------------------------

    def _apply_eagerly(
        self, apply: Callable[..., Any], grads: list[Any], variables: Any
    ) -> Any:
        session = self._session
        taps = self._reports.make_taps()
        begun = session.run(self._begin_eagerly, grads, variables, taps)
        result = apply(grads, variables)
        if begun is not None:
            session.run(self._end, begun, [taps.tensors])
        return result

    def _begin_eagerly(
        self, grads: list[Any], variables: Any, taps: Taps
    ) -> _Begun | None:
        self._forwards.applied()
        begun = self._begin(variables, begins_step=False)
        if begun is not None and level_of(begun.context) == ALL:
            self._hold_gradients(grads, variables, taps)
            self._capture(begun, [taps.tensors])
        return begun

    # ---- in a graph --------------------------------------------------------------

    def _apply_in_graph(
        self, apply: Callable[..., Any], grads: list[Any], variables: Any
    ) -> Any:
        tf, session = self._tf, self._session
        goes_on = session.run(self._report, grads, variables)
        if goes_on is None:
            return apply(grads, variables)
        with tf.control_dependencies([goes_on]):
            result = apply(grads, variables)
        session.run(self._report_end, goes_on, variables)
        return result

    def _report(self, grads: list[Any], variables: Any) -> Any:
        """Put a report into the graph; return a tensor that the update waits for."""
        graph = self._tf.compat.v1.get_default_graph()
        is_first = self._steps.applied_in(graph, self.stepping(variables).key)
        held, waits_for, n_samples = self._forwards.applied()
        taps = self._reports.make_taps()
        self._hold_gradients(grads, variables, taps)
        tensors = {**held, **taps.tensors}
        if n_samples is not None:
            tensors[SAMPLES] = n_samples
        take = functools.partial(
            self._gradients_came, variables, is_first, frozenset(held)
        )
        with self._tf.control_dependencies(waits_for):
            return self._reports.report_gradients(tensors, take, (id(self), "begins"))

    def _report_end(self, goes_on: Any, variables: Any) -> None:
        """Put a report into the graph of a step of which more is yet to be captured."""
        optimizer: Any = self._optimizer()
        given = optimizer._trainable_variables if variables is None else variables
        buffers = [each for _, each in self.watched.variables.buffers]
        changed = [*given, *inner_of(optimizer).variables, *buffers]
        key = (id(self), "ends")
        self._reports.report_updates(goes_on, changed, self._updated, key)

    def _gradients_came(
        self,
        variables: Any,
        is_first: bool,
        of_forward: frozenset[str],
        replicas: Sequence[Tensors],
        is_full: bool,
    ) -> bool:
        """A graph is about to apply gradients; return whether to report the update."""
        begun = self._begin(variables, begins_step=is_first)
        n_samples = [int(each[SAMPLES]) for each in replicas if SAMPLES in each]
        if begun is not None:
            self._session.clock.add_samples(sum(n_samples) if n_samples else -1)
            forward = [
                {k: t for k, t in each.items() if k in of_forward} for each in replicas
            ]
            self._steps.take(begun.context, forward)
            if is_full:
                self._capture(begun, replicas)
        skipped = [{k: each[k] for k in (SKIPPED,) if k in each} for each in replicas]
        self._open = None if begun is None else (begun, skipped)
        goes_on = is_full and (
            len(replicas) > 1
            or (begun is not None and self.watched.captures_after(*begun))
        )
        if not goes_on:
            self._updated()
        return goes_on

    def _updated(self) -> bool:
        """A graph has applied gradients."""
        begun, self._open = self._open, None
        if begun is not None:
            self._end(*begun)
        return True


class _Begun(NamedTuple):
    """A step of the optimizer that has begun.

    Attributes:
        context: The step of the training that it ends.
        stepping: The step of the optimizer.
    """

    context: StepContext | None
    stepping: Stepping
