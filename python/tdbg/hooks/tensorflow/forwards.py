"""Forwards of a loop: what models and losses are given and return.

``call`` of each layer is replaced on the instance by one that knows which call is the
outermost.  While that lasts, and only where something of it is captured, or a graph is
traced, the taps of all layers are set (``hooks/keras/taps.py``).

Eagerly tensors are captured when the outermost call returns.  In a graph they are held
until the graph computes a loss, or applies gradients: there a report is put into the
graph (``reports.py``).  A graph that does neither, such as one that exports a model, is
left as it is.

Thread safety: forwards belong to threads, as the replicas of a strategy are traced in
threads of their own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tdbg.capture.naming import MAX_CALLS, activation_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.step_clock import FORWARD_OF
from tdbg.config.collections import Role
from tdbg.hooks.keras.losses import LossFunction, labels_as_given
from tdbg.hooks.keras.replicas import (
    n_replicas,
    replica_number,
    warn_of_eager_replicas,
)
from tdbg.hooks.keras.tracing import Patches, Taps
from tdbg.hooks.keras.variables import layers_of
from tdbg.hooks.keras.watched import WatchedModel
from tdbg.hooks.tensorflow.given_losses import Show, arguments_of
from tdbg.hooks.tensorflow.reports import Reports
from tdbg.hooks.tensorflow.steps import ALL, NOTHING, LoopMode, LoopSteps, level_of
from tdbg.modes import TRAIN, ModeKeys

__all__ = ["Collector", "Forward", "Forwards"]


class Forward:
    """Calls of models, up to the use of what they return.

    Attributes:
        taps: Hold the tensors; count the calls.
        mode: Its mode.
        context: Its step; None in a graph, which has a step whenever it runs.
        level: How much is captured.
        is_used: Whether a loss was computed of it, or gradients applied.
        has_batch: Whether it is known what it was given first.
        n_samples: A tensor of how many samples that has; None: in no graph.
        called: The layers that were called from outside, by their ids.
        told: In a graph: there when what was reported of it has been taken.
    """

    def __init__(
        self,
        taps: Taps,
        graph: Any,
        mode: ModeKeys,
        context: StepContext | None,
        level: int,
    ) -> None:
        self.taps = taps
        self._graph = None if graph is None else weakref.ref(graph)
        self.mode = mode
        self.context = context
        self.level = level
        self.is_used = self.has_batch = False
        self.n_samples: Any = None
        self.called: set[int] = set()
        self.told: list[Any] = []

    @property
    def is_in_graph(self) -> bool:
        """Whether a graph is traced."""
        return self._graph is not None

    def is_of(self, graph: Any) -> bool:
        """Whether it is of this graph; None: of none."""
        own = None if self._graph is None else self._graph()
        return own is graph and (graph is None) is (self._graph is None)

    def drain(self) -> dict[str, Any]:
        """Return what the taps hold, and forget it; calls are counted on."""
        held, self.taps.tensors = self.taps.tensors, {}
        return held


class Collector:
    """What is collected of the trace of one function, instead of reports.

    Args:
        make_taps: Makes taps; None: nothing is collected.

    Attributes:
        applied: The ids of what watches the optimizers that were given gradients.
    """

    def __init__(self, make_taps: Callable[[], Taps] | None) -> None:
        self.make_taps = make_taps
        self.applied: set[int] = set()
        self._forwards: dict[int, list[Forward]] = {}
        self._gradients: dict[int, Taps] = {}

    def add(self, replica: int, forward: Forward) -> None:
        """Collect a forward of a replica."""
        self._forwards.setdefault(replica, []).append(forward)

    def gradients(self, replica: int) -> Taps | None:
        """The taps of the gradients of a replica; None: nothing is collected."""
        if self.make_taps is not None and replica not in self._gradients:
            self._gradients[replica] = self.make_taps()
        return self._gradients.get(replica)

    def held_forwards(self) -> list[list[dict[str, Any]]]:
        """The tensors of each forward, of each replica."""
        of_replicas = [self._forwards[each] for each in sorted(self._forwards)]
        return [
            [each.drain() for each in replicas]
            for replicas in zip(*of_replicas, strict=False)
        ]

    def held_gradients(self) -> list[dict[str, Any]]:
        """The gradients of each replica."""
        held = [self._gradients[each].tensors for each in sorted(self._gradients)]
        return held or [{}]


class _State(threading.local):
    """What is under way in a thread.

    Attributes:
        depth: Whether a call of a watched layer or loss is under way.
        has_new: Whether a layer was called that had never been called before.
        forward: The forward under way.
    """

    depth = 0
    has_new = False
    forward: Forward | None = None


class Forwards:
    """Watches the calls of layers and losses.

    Args:
        steps: Receives forwards.
        mode: Is told, and tells, modes.
        reports: Puts reports into graphs.

    Attributes:
        collector: Where a function with two variants is traced.
    """

    def __init__(self, steps: LoopSteps, mode: LoopMode, reports: Reports) -> None:
        self._steps = steps
        self._session = steps.session
        self._mode = mode
        self._reports = reports
        self._tf: Any = import_module("tensorflow")
        self._state = _State()
        self._entered: weakref.WeakSet[Any] = weakref.WeakSet()
        self.collector: Collector | None = None

    # ---- layers ------------------------------------------------------------------

    def enter_layers(self, watched: WatchedModel, patches: Patches) -> None:
        """Watch the calls of a model and of its layers, those that are new."""
        for layer in (watched.model, *layers_of(watched.model)):
            if layer not in self._entered:
                self._entered.add(layer)
                patches.wrap(layer, "call", self._entrance(watched, layer, patches))

    def _entrance(
        self, watched: WatchedModel, layer: Any, patches: Patches
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        name, ref = layer.name, weakref.ref(layer)
        is_new = True

        def make(call: Callable[..., Any]) -> Callable[..., Any]:
            def entered(*args: Any, **kwargs: Any) -> Any:
                nonlocal is_new
                if is_new:
                    # It was built before: it has made its layers and variables.
                    is_new = False
                    self._state.has_new = True
                    watched.variables.may_differ()
                if self._state.depth or not self._session.is_live:
                    return call(*args, **kwargs)
                return self._outermost(watched, ref(), call, args, kwargs, patches)

            entered.__qualname__ = f"{name}.call"
            return entered

        return make

    def _outermost(
        self,
        watched: WatchedModel,
        layer: Any,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        patches: Patches,
    ) -> Any:
        session, state = self._session, self._state
        forward = session.run(self._begin, id(layer), kwargs.get("training"))
        phase = self._enter(forward, args, kwargs)
        state.depth = 1
        try:
            if forward is None or forward.level < ALL:
                return call(*args, **kwargs)
            with forward.taps.patched(watched.install_layers()):
                # What is set now, and not what was when this call was looked up.
                result = layer.call(*args, **kwargs)
        except BaseException:
            if forward is not None and not forward.is_in_graph:
                forward.drain()
            raise
        finally:
            state.depth = 0
            if phase >= 0:
                session.clock.leave(phase)
        if not forward.is_in_graph:
            session.run(self._take, forward)
        if state.has_new:
            state.has_new = False
            session.run(self.enter_layers, watched, patches)
        return result

    def _enter(
        self, forward: Forward | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        """Begin the phase of a call that is computed at once; return it, or -1."""
        clock = self._session.clock
        if forward is None or not clock.is_on:
            return -1
        is_first, forward.has_batch = not forward.has_batch, True
        if forward.is_in_graph:
            if is_first and forward.mode is TRAIN and self.collector is None:
                forward.n_samples = self._session.run(self._samples_of, args, kwargs)
            return -1
        phase = FORWARD_OF[forward.mode]
        clock.enter(phase)
        # The row of an evaluation has ended when its forward began.
        if is_first and forward.mode is TRAIN:
            clock.add_batch(args, kwargs)
        return phase

    def _samples_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor of the samples that a call is given in a graph; None: unknown."""
        tf = self._tf
        for each in tf.nest.flatten([*args, *kwargs.values()]):
            if tf.is_tensor(each) and hasattr(each, "graph") and each.shape.rank:
                return tf.shape(each, tf.int64)[0]
        return None

    def _begin(self, layer: int, training: Any) -> Forward | None:
        """The forward that an outermost call belongs to; None: nothing is captured."""
        mode = self._mode.of_call(training, self._graph())
        forward = self._present(mode)
        goes_on = forward is not None and not forward.is_used
        if forward is None or not goes_on or self._is_over(forward, layer):
            forward = self._new(mode)
        if forward is not None:
            forward.called.add(layer)
        return forward

    def _is_over(self, forward: Forward, layer: int) -> bool:
        """Whether a further call of a layer is another step."""
        return forward.mode is not TRAIN and layer in forward.called

    def _present(self, mode: ModeKeys) -> Forward | None:
        """The forward under way, if a call of this mode may belong to it."""
        forward = self._state.forward
        if forward is None or forward.mode is not mode:
            return None
        if not forward.is_of(self._graph()):
            return None
        context = forward.context
        return forward if context is None or context.step.is_open else None

    def _new(self, mode: ModeKeys) -> Forward | None:
        graph, collector = self._graph(), self.collector
        if collector is not None and (collector.make_taps is None or graph is None):
            return None
        context, level = None, ALL
        if graph is None and n_replicas(self._tf) > 1:
            warn_of_eager_replicas()
            return None
        if graph is None:
            context = self._steps.begin_forward(mode)
            level = level_of(context)
        elif collector is None and not self._reports.may_report():
            return None
        make_taps = self._reports.make_taps
        if collector is not None and collector.make_taps is not None:
            make_taps = collector.make_taps
        forward = Forward(make_taps(), graph, mode, context, level)
        self._state.forward = forward
        if collector is not None:
            collector.add(replica_number(self._tf), forward)
        return forward

    def forget(self) -> None:
        """End the forward of this thread."""
        self._state.forward = None

    def _graph(self) -> Any:
        """The graph that is traced; None: calls are made eagerly."""
        tf = self._tf
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def _take(self, forward: Forward) -> None:
        self._steps.take(forward.context, [forward.drain()])

    # ---- losses ------------------------------------------------------------------

    def show_loss(self, watched: WatchedModel, function: LossFunction) -> Show:
        """Return what calls a loss, and captures what that is given and returns."""

        def show(
            loss: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            state, session = self._state, self._session
            if state.depth or not session.is_live:
                return loss(*args, **kwargs)
            state.depth = 1  # Losses inside of it are not the loss.
            is_eager = self._tf.executing_eagerly()
            if is_eager:
                session.clock.loss_begins()
            try:
                result = loss(*args, **kwargs)
            finally:
                state.depth = 0
                if is_eager:
                    session.clock.loss_ends()
            session.run(self._computed, watched, function, args, kwargs, result)
            return result

        return show

    def _computed(
        self,
        watched: WatchedModel,
        function: LossFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        state = self._state
        forward = state.forward
        if forward is None or self._present(forward.mode) is None:
            forward = self._new(self._mode.of_call(graph=self._graph()))
        if forward is None:
            return
        forward.is_used = True
        if forward.level > NOTHING:
            given = arguments_of(args, kwargs)
            if forward.level < ALL:
                given = None
            self._hold_loss(watched, function, forward.taps, given, result)
        if not forward.is_in_graph:
            self._take(forward)
        elif self.collector is None:
            told = self._reports.report_forward(forward.mode, forward.drain())
            forward.told.append(told)

    def _hold_loss(
        self,
        watched: WatchedModel,
        function: LossFunction,
        taps: Taps,
        given: tuple[Any, Any] | None,
        result: Any,
    ) -> None:
        call = taps.count_call(function.name)
        if call >= MAX_CALLS:
            return
        found = [("output", 0, result, Role.LOSS)]
        if given is not None:
            labels, predictions = given
            watched.losses.see_prediction(function, predictions)
            labels = labels_as_given(function, labels, watched.backend.operations)
            found.append(("input", 0, predictions, Role.PREDICTION))
            found.append(("input", 1, labels, Role.LABEL))
        for direction, index, tensor, role in found:
            name = activation_name(function.name, direction, index, call)
            key = watched.key(name, role)
            if key is not None:
                taps.hold(key, tensor)

    # ---- optimizers --------------------------------------------------------------

    def applied(self) -> tuple[dict[str, Any], list[Any], Any]:
        """Gradients are about to be applied.

        Returns:
            What the forward still holds, what to wait for, and a tensor of how many
            samples it has, or None.
        """
        forward = self._state.forward
        if forward is None or not forward.is_of(self._graph()):
            return {}, [], None
        forward.is_used = True
        n_samples, forward.n_samples = forward.n_samples, None
        return forward.drain(), forward.told, n_samples
