"""The steps of a loop, which nobody announces: they follow from calls.

A forward begins with the outermost call of a model or of a layer of it, and goes on
until what it returned has been used: a call of the model after a loss was computed
begins another one, which is a further micro-batch unless an optimizer has stepped.

Thread safety: the training's thread, and threads of TensorFlow, one at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from tdbg.capture.light_steps import LightSteps, Numbers
from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.modes import CurrentMode
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.hooks.keras.backend import Backend, State
from tdbg.modes import EVAL, TRAIN, ModeKeys

__all__ = [
    "ALL",
    "LOSSES",
    "NOTHING",
    "LoopMode",
    "LoopSteps",
    "level_of",
    "tape_check",
]


# The key of an optimizer that is yet to be registered, and how many forwards at most
# come before it steps: gradients may be added up over so many micro-batches.
_AWAITED = "awaited"
_MOST_AWAITED = 64


class LoopMode(CurrentMode):
    """The mode that the user set, or that a call shows.

    Args:
        session: As for ``CurrentMode``.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._is_recording = tape_check()
        self._has_tape = False
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    def of_call(self, training: Any = None, graph: Any = None) -> ModeKeys:
        """The mode of a call: whether a tape records, and what its flag says.

        A flag of True counts without a tape only where tapes have recorded no call:
        gradients may be made by hand, and a graph may be traced before its tape begins.
        Otherwise the call computes a metric.

        Args:
            training: What the model was given as ``training``; None: nothing.
            graph: The graph that is traced; None: the call is eager.
        """
        if self._is_recording():
            self._has_tape = True
            if graph is not None:
                self._graphs.add(graph)
            is_training = training is not False
        else:
            has_tape = self._has_tape if graph is None else graph in self._graphs
            is_training = training is True and not has_tape
        self._called = TRAIN if is_training else EVAL
        return self.now()

    def trains(self) -> None:
        """An optimizer steps."""
        self._called = TRAIN


class LoopModel(Protocol):
    """The part of a watched model that steps need."""

    backend: Backend
    model_info: ModelInfoWriter

    @property
    def model(self) -> Any:
        """The model of Keras."""

    @property
    def revision(self) -> int:
        """Number that grows when traces with taps are to be made anew."""

    def capture_variables(
        self, context: StepContext, mode: ModeKeys, state: State
    ) -> None:
        """Capture the variables as they are before the step."""

    def take_forward(
        self, context: StepContext, replicas: Sequence[Mapping[str, Any]]
    ) -> None:
        """Capture what was held of a forward."""


class LoopSteps:
    """Tells the session of forwards and of steps.

    Args:
        session: Receives the events.
        models: The models that are watched; grows.

    Attributes:
        session: As given.
    """

    def __init__(self, session: Session, models: Sequence[LoopModel]) -> None:
        self.session = session
        self._models = models
        self._captured: dict[int, int] = {}
        self._n_awaited = 0
        # The optimizers that each graph applies, in their order.
        self._of_graphs: weakref.WeakKeyDictionary[Any, list[Hashable]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def revision(self) -> int:
        """Number that grows when traces with taps are to be made anew."""
        return sum(each.revision for each in self._models)

    def begin_forward(self, mode: ModeKeys) -> StepContext | None:
        """A forward begins."""
        session = self.session
        if self._n_awaited and mode is TRAIN:
            self._n_awaited -= 1
            if not self._n_awaited:
                session.optimizer_gone(_AWAITED)
        context = session.forward_begins(id(self), mode, has_obeyed=True)
        session.forward_ends()
        if context is not None and mode is TRAIN:
            self._forward_began()
        return context

    def _forward_began(self) -> None:
        for each in self._models:
            each.model_info.forward_begins(has_optimizer=True, has_gradients=True)
            break

    def begin_light(
        self, optimizer: Hashable, read: Callable[[Any], Numbers] | None
    ) -> LightSteps | None:
        """Begin to count training steps; None: the session is to be told each.

        Args:
            optimizer: The key of the optimizer that ends them.
            read: As of ``LightSteps``.
        """
        ended = self._models[0].model_info.steps_ended
        return LightSteps.begin(
            self.session, id(self), optimizer, TRAIN, read=read, ended=ended
        )

    def obey(self, mode: ModeKeys) -> None:
        """Do what requests ask for, between two steps.

        Not where a forward begins, which is within a call of Keras: that would put a
        text of its own before the reason of a stop.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        self.session.obey(mode)

    def training(self) -> StepContext | None:
        """The step that is under way; one begins if none is."""
        step = self.session.training
        if step is None:
            return self.begin_forward(TRAIN)
        context: StepContext | None = step.context
        return context

    def await_optimizer(self) -> None:
        """Let no forward end a step before an optimizer is found, within bounds.

        A program has an optimizer that is registered when it steps first.  If none
        steps for many forwards, the program trains without it.
        """
        self._n_awaited = _MOST_AWAITED + 1
        self.session.optimizer_found(_AWAITED)

    def optimizer_found(self, optimizer: Hashable, *, defines_step: bool) -> None:
        """An optimizer is registered; see ``StepMachine.optimizer_found``."""
        self.session.optimizer_found(optimizer, defines_step=defines_step)
        if self._n_awaited:
            self._n_awaited = 0
            self.session.optimizer_gone(_AWAITED)

    def optimizer_begins(
        self, optimizer: Hashable, *, begins_step: bool
    ) -> StepContext | None:
        """The step of which an optimizer makes a part.

        Args:
            optimizer: Its key.
            begins_step: Whether it is the first one of its step; otherwise it may come
                after the one that ended the step.
        """
        session = self.session
        if begins_step and session.training is None:
            self.begin_forward(TRAIN)
        was_open = session.training is not None
        context = session.optimizer_begins(optimizer, lambda: TRAIN)
        if not was_open and session.training is not None:
            self._forward_began()
        return context

    def applied_in(self, graph: Any, optimizer: Hashable) -> bool:
        """A graph is traced in which an optimizer applies gradients.

        What several optimizers do in one call of a graph is one step.

        Returns:
            Whether the optimizer is the first one of its step.
        """
        optimizers = self._of_graphs.setdefault(graph, [])
        if optimizer in optimizers:
            optimizers.clear()  # The graph makes several steps.
        optimizers.append(optimizer)
        if len(optimizers) > 1:
            self.session.optimizer_comes_last(optimizer)
        return len(optimizers) == 1

    def level(self, mode: ModeKeys) -> int:
        """How much the step under way, or else the next one, captures.

        Returns:
            ``NOTHING``, ``LOSSES`` or ``ALL``.
        """
        session = self.session
        step = session.training
        if mode is not TRAIN or step is None:
            return _level(session.next_plan(mode))
        if step.context is None:  # It begins now, and collections have changed.
            return _level(session.step_plan(mode, step.mode_step))
        return level_of(step.context)

    def capture_variables(self, context: StepContext, model: LoopModel) -> None:
        """Capture the variables of a model, once in a step."""
        if self._captured.get(id(model)) != context.step.number:
            self._captured[id(model)] = context.step.number
            state = model.backend.state_before(model.model, ())
            model.capture_variables(context, TRAIN, state)

    def take(
        self, context: StepContext | None, replicas: Sequence[Mapping[str, Any]]
    ) -> None:
        """Capture what a forward has shown, of each replica by its worker."""
        if context is None or not context.takes:
            return
        for model in self._models:
            model.take_forward(context, replicas)


NOTHING, LOSSES, ALL = range(3)


def level_of(context: StepContext | None) -> int:
    """How much a step captures: ``NOTHING``, ``LOSSES`` or ``ALL``."""
    if context is None or not context.takes:
        return NOTHING
    return _level(context.step_plan)


def _level(plan: Any) -> int:
    if not plan.is_active:
        return NOTHING
    return LOSSES if plan.is_light else ALL


def tape_check() -> Callable[[], bool]:
    """Return what says whether a tape records; true where TensorFlow cannot say."""
    try:
        record: Any = import_module("tensorflow.python.eager.record")
        check: Callable[[], bool] = record.could_possibly_record
        return check
    except (ImportError, AttributeError):
        return lambda: True
