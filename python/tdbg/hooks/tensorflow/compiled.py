"""``Hook.function``: a function for ``tf.function`` in two variants.

The plain one is what ``tf.function`` makes of the function, and nothing is put into its
graph; the other returns what is captured beside what the function returns, and is made
when the first step is captured.  Both may be compiled by XLA.

Thread safety: the training's thread.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from tdbg.capture.light_steps import LightSteps, Numbers
from tdbg.capture.recorder import StepContext
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.keras.backend import Answer
from tdbg.hooks.keras.optimizers import accumulates_over, inner_of
from tdbg.hooks.keras.watched import Stepping
from tdbg.hooks.tensorflow.forwards import Collector, Forwards
from tdbg.hooks.tensorflow.optimizers import OptimizerSteps
from tdbg.hooks.tensorflow.reports import Reports
from tdbg.hooks.tensorflow.steps import (
    ALL,
    NOTHING,
    LoopMode,
    LoopSteps,
    level_of,
)
from tdbg.modes import TRAIN, ModeKeys

__all__ = ["CompiledStep", "Loop"]

_log = logging.getLogger("tdbg")
_LOSS = "loss_output_0"
_TAPPED_LOSS = f"{int(Role.LOSS)} "


class Loop(NamedTuple):
    """The parts of a hook.

    Attributes:
        steps: The steps.
        mode: The present mode.
        reports: Make taps.
        forwards: Watch calls.
        optimizers: Those that are registered; grows.
    """

    steps: LoopSteps
    mode: LoopMode
    reports: Reports
    forwards: Forwards
    optimizers: Sequence[OptimizerSteps]


class CompiledStep:
    """A function with two variants; calling it is a step.

    Args:
        function: The function.
        mode: Of its steps; None: TRAIN, or what the user has set.
        loop: The parts of the hook.
        options: Arguments for ``tf.function``.

    Attributes:
        plain: The function as ``tf.function`` makes it.
        n_traces: How often the variant with taps was traced.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mode: ModeKeys | None,
        loop: Loop,
        options: Mapping[str, Any],
    ) -> None:
        functools.update_wrapper(self, function)
        self._tf: Any = import_module("tensorflow")
        self._function = function
        self._mode = mode
        self._loop = loop
        self._options = dict(options)
        self.plain = self._tf.function(function, **options)
        self._tapped: Callable[..., Any] | None = None
        self._applied: frozenset[int] = frozenset()
        self._has_worked = self._is_refused = False
        # While nothing but losses is captured: the steps since the last event.
        self._light: LightSteps | None = None
        self.n_traces = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        session, steps = self._loop.steps.session, self._loop.steps
        mode = self._mode or self._loop.mode.said or TRAIN
        light = self._light
        if light is not None:
            if mode is TRAIN and light.goes_on():
                return self._run_light(light, args, kwargs)
            self._light = None
        if not session.is_live:
            return self.plain(*args, **kwargs)
        session.run(steps.obey, mode)
        context = session.run(steps.begin_forward, mode)
        steppings: dict[int, Stepping] = {}
        if mode is TRAIN and context is not None:
            steppings = session.run(self._begin, context) or {}
        is_plain = level_of(context) < ALL or self._is_refused
        if is_plain:
            result, held = self._run_plain(args, kwargs), _Held()
        else:
            result, held = self._run_tapped(args, kwargs)
        session.run(self._end, context, mode, result, held, steppings)
        if is_plain and steppings:
            self._light = session.run(self._begin_light, steppings, result)
        return result

    def __getattr__(self, name: str) -> Any:
        """What ``tf.function`` gives a function: that of the plain variant."""
        if name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    # ---- a call ------------------------------------------------------------------

    def _begin(self, context: StepContext) -> dict[int, Stepping]:
        """Capture what there is before the step."""
        steps, begun = self._loop.steps, {}
        for each in self._loop.optimizers:
            watched = each.watched
            state = watched.backend.state_before(watched.model, ())
            if not watched.ends_step(TRAIN, state):
                continue  # It will only add up gradients.
            stepping = begun[id(each)] = each.stepping()
            if id(each) in self._applied or not self._applied:
                watched.rates.record(context, state, stepping.optimizer, each.number)
                if level_of(context) == ALL:
                    steps.capture_variables(context, watched)
                    watched.expect_updates(context, state, stepping)
        return begun

    def _end(
        self,
        context: StepContext | None,
        mode: ModeKeys,
        result: Any,
        held: _Held,
        steppings: Mapping[int, Stepping],
    ) -> None:
        steps, session = self._loop.steps, self._loop.steps.session
        loss = None if level_of(context) == NOTHING else self._loss_of(result)
        for number, replicas in enumerate(held.forwards):
            if number and mode is TRAIN:
                context = steps.begin_forward(mode)
            shown = replicas
            if loss is not None:
                shown = [_without_losses(each) for each in replicas]
            steps.take(context, shown)
        if loss is not None and context is not None:
            entry = session.entry(_LOSS, Role.LOSS)
            session.recorder.capture(context, entry, loss)
        if mode is not TRAIN:
            return
        for each in self._loop.optimizers:
            stepping = steppings.get(id(each))
            if stepping is None or id(each) not in self._applied:
                continue
            watched = each.watched
            if context is not None and level_of(context) == ALL:
                watched.take(context, held.gradients)
            state = watched.backend.state_after(watched.model, None)
            session.optimizer_begins(stepping.key, lambda: TRAIN)
            answer = Answer(result, held.gradients[0])
            watched.end_training(context, answer, state, stepping)
        self._loop.reports.refresh()

    def _run_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._collecting(Collector(None)):
            return self.plain(*args, **kwargs)

    def _begin_light(
        self, steppings: Mapping[int, Stepping], result: Any
    ) -> LightSteps | None:
        """Begin to count steps like this one; None: there is more to tell of the next.

        Args:
            steppings: The steps of optimizers that this one has made.
            result: What it returned.
        """
        optimizers, steps = self._loop.optimizers, self._loop.steps
        if len(optimizers) != 1 or self._applied != {id(optimizers[0])}:
            return None
        stepping = steppings.get(id(optimizers[0]))
        if stepping is None or accumulates_over(inner_of(stepping.optimizer)) > 1:
            return None
        read, session = None, steps.session
        if self._loss_of(result) is not None:
            entry = session.entry(_LOSS, Role.LOSS)
            if session.next_plan(TRAIN).of_entry(entry):
                read = functools.partial(self._numbers_of, entry)
        return steps.begin_light(stepping.key, read)

    def _numbers_of(self, loss: TensorEntry, result: Any) -> Numbers:
        value = self._loss_of(result)
        return () if value is None else ((loss, value),)

    def _run_light(
        self, light: LightSteps, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a step of which nothing but the loss is captured, as the one before."""
        try:
            result = self._run_plain(args, kwargs)
        except BaseException:
            self._light, steps = None, self._loop.steps
            steps.session.run(steps.begin_forward, TRAIN)
            raise
        light.add(result)
        return result

    def _loss_of(self, result: Any) -> Any:
        """The first number with a fraction that the function returns, or None."""
        tf = self._tf
        for each in tf.nest.flatten(result):
            is_number = isinstance(each, tf.Tensor) and each.shape.rank == 0
            if is_number and each.dtype.is_floating:
                return each
        return None

    def _run_tapped(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, _Held]:
        """Call the variant with taps; the plain one where it cannot be traced."""
        if self._tapped is None:
            self._tapped = self._tf.function(self._captured, **self._options)
        start_ns, n_traces = time.perf_counter_ns(), self.n_traces
        try:
            result, forwards, gradients = self._tapped(*args, **kwargs)
        except Exception as error:
            if self._has_worked or isinstance(error, self._tf.errors.OpError):
                raise
            self._refuse(error)
            return self._run_plain(args, kwargs), _Held()
        self._has_worked = True
        if self.n_traces > n_traces:
            session = self._loop.steps.session
            session.meter.spend_once(time.perf_counter_ns() - start_ns)
        return result, _Held(forwards, gradients)

    def _refuse(self, error: Exception) -> None:
        self._is_refused, self._tapped = True, None
        with contextlib.suppress(Exception):
            _log.warning(
                "the function %s cannot be traced with what tdbg captures inside of "
                "it, and runs without: %s: %s",
                getattr(self, "__name__", "of the training"),
                type(error).__name__,
                error,
            )

    # ---- the variant with taps -----------------------------------------------------

    def _captured(self, *args: Any, **kwargs: Any) -> Any:
        """The function, as it is traced with taps."""
        self.n_traces += 1
        collector = Collector(self._loop.reports.taps_maker())
        with self._collecting(collector):
            result = self._function(*args, **kwargs)
        return result, collector.held_forwards(), collector.held_gradients()

    @contextlib.contextmanager
    def _collecting(self, collector: Collector) -> Iterator[None]:
        forwards = self._loop.forwards
        before, forwards.collector = forwards.collector, collector
        forwards.forget()
        try:
            yield
        finally:
            forwards.collector = before
            forwards.forget()
            if collector.applied:
                self._applied = frozenset(collector.applied)


class _Held(NamedTuple):
    """What a call has returned beside the result.

    Attributes:
        forwards: The tensors of each forward, of each replica.
        gradients: Those of each replica.
    """

    forwards: Sequence[Sequence[Mapping[str, Any]]] = ()
    gradients: Sequence[Mapping[str, Any]] = ({},)


def _without_losses(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {k: t for k, t in tensors.items() if not k.startswith(_TAPPED_LOSS)}
