"""``Hook.function``: a function for ``tf.function`` in two variants.

The plain one is what ``tf.function`` makes of the function, and nothing is put into its
graph.  The one with taps returns what is captured beside what the function returns.
Both may be compiled by XLA.

Thread safety: the training's thread.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from tdbg.capture.light_steps import LightSteps, Numbers
from tdbg.capture.recorder import StepContext
from tdbg.capture.step_clock import STEP_OF
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.compiled.batches import UNKNOWN, SamplesOf, Witness, samples_in
from tdbg.hooks.compiled.step import CompiledFunction
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

__all__ = ["FunctionStep", "Loop"]

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


class FunctionStep(CompiledFunction[Callable[..., Any]]):
    """A function that ``tf.function`` compiles; calling it is a step.

    Args:
        function: The function of the user.
        mode: The mode of its steps; None: TRAIN, or what the user has set.
        loop: The parts of the hook.
        options: Arguments for ``tf.function``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mode: ModeKeys | None,
        loop: Loop,
        options: Mapping[str, Any],
    ) -> None:
        self._tf: Any = import_module("tensorflow")
        plain = self._tf.function(function, **options)
        super().__init__(loop.steps.session, function, plain, mode, options)
        self._run_plain = self._run_apart
        self._loop = loop
        self._applied: frozenset[int] = frozenset()
        self._has_looked = False

    def _trains(self) -> bool:
        return (self._mode or self._loop.mode.said or TRAIN) is TRAIN

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session, steps = self._session, self._loop.steps
        if not session.is_live:
            return self.plain(*args, **kwargs)
        mode = self._mode or self._loop.mode.said or TRAIN
        session.run(steps.obey, mode)
        context = session.run(steps.begin_forward, mode)
        steppings: dict[int, Stepping] = {}
        if mode is TRAIN and context is not None:
            steppings = session.run(self._begin, context) or {}
        captured: Callable[..., Any] | None = None
        if level_of(context) == ALL:
            captured = self._tapped.of(steps.revision, self._compile)
        clock, phase = session.clock, STEP_OF[mode]
        clock.enter(phase)
        try:
            if captured is None:
                result, held = self._run_apart(*args, **kwargs), _Held()
            else:
                result, held = self._run_tapped(captured, args, kwargs)
            session.run(self._find_batch, args, kwargs)
            self._note_samples(args, kwargs)
        finally:
            clock.leave(phase)
        session.run(self._end, context, mode, result, held, steppings)
        if captured is None and steppings:
            self._light = session.run(self._begin_light, steppings, result)
        return result

    def _find_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Know where the batch is: variables do not come by arguments."""
        if self._has_looked:
            return
        self._has_looked = True
        self._samples_of = _samples_of(self._tf, args, kwargs)

    def _light_step_failed(self, error: BaseException, args: tuple[Any, ...]) -> None:
        del error, args
        self._session.run(self._loop.steps.begin_forward, TRAIN)

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
        steps, session = self._loop.steps, self._session
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
            session.capture(context, entry, loss)
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

    def _run_apart(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plain variant, of whose calls nothing is captured."""
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

    def _loss_of(self, result: Any) -> Any:
        """The first number with a fraction that the function returns, or None."""
        tf = self._tf
        for each in tf.nest.flatten(result):
            is_number = isinstance(each, tf.Tensor) and each.shape.rank == 0
            if is_number and each.dtype.is_floating:
                return each
        return None

    def _run_tapped(
        self,
        captured: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, _Held]:
        """Call the variant with taps; the plain one where it cannot be traced."""

        def with_taps() -> tuple[Any, _Held]:
            result, forwards, gradients = captured(*args, **kwargs)
            return result, _Held(forwards, gradients)

        def is_own(error: Exception) -> bool:
            return self._tapped.has_worked or isinstance(error, self._tf.errors.OpError)

        return self._tapped.run(
            with_taps,
            lambda: (self._run_apart(*args, **kwargs), _Held()),
            is_own,
            compiles=not self._tf.config.functions_run_eagerly(),
        )

    # ---- the variant with taps -----------------------------------------------------

    def _compile(self) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self._tf.function(
            self._captured, **self._options
        )
        return compiled

    def _captured(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function with taps; ``tf.function`` traces this."""
        self._tapped.n_traces += 1
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


def _samples_of(
    tf: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> SamplesOf | None:
    """Return what reads the samples of a call; None: arguments do not tell them."""
    arrays: list[tuple[Sequence[Any], Sequence[Any]]] = []
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    for place, value in given.items():
        for way, leaf in _leaves(value, (place,)):
            if isinstance(leaf, tf.Tensor | np.ndarray) and len(leaf.shape):
                arrays.append((way, tuple(leaf.shape)))
    if samples_in([shape for _, shape in arrays]) == UNKNOWN:
        return None
    return Witness(arrays[0][0])


def _leaves(value: Any, way: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield what is in nested tuples, lists and dictionaries, and the way there."""
    members: Iterable[tuple[Any, Any]]
    if isinstance(value, tuple | list):
        members = enumerate(value)
    elif isinstance(value, Mapping):
        members = value.items()
    else:
        yield way, value
        return
    for key, each in members:
        yield from _leaves(each, (*way, operator.itemgetter(key)))


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
