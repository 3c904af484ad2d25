"""``WatchedModel``: one model of Keras, and what is captured of its steps.

Thread safety: the training's thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tdbg.capture.light_steps import LightSteps
from tdbg.capture.model_info import ModelInfoWriter
from tdbg.capture.naming import optimizer_state_name, update_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.capture.updates import DerivedEntries, Updates
from tdbg.config.collections import Role
from tdbg.hooks.keras.backend import Answer, Backend, State, number_in
from tdbg.hooks.keras.first_steps import FirstSteps
from tdbg.hooks.keras.losses import (
    Losses,
    LossRecords,
    ReplicaTracker,
    Tracker,
    reader_of,
)
from tdbg.hooks.keras.names import Paths
from tdbg.hooks.keras.optimizers import (
    SKIPPED,
    LearningRates,
    Optimizers,
    Rates,
    TrainingOptimizers,
    accumulates_over,
    inner_of,
    states_of,
)
from tdbg.hooks.keras.replicas import n_replicas_of
from tdbg.hooks.keras.samples import CountedSamples
from tdbg.hooks.keras.selections import Selections
from tdbg.hooks.keras.taps import ModelTaps
from tdbg.hooks.keras.tracing import Patches, Taps
from tdbg.hooks.keras.variables import Parameter, Variables, captures
from tdbg.modes import TRAINING, ModeKeys

__all__ = ["Stepping", "WatchedModel"]


class Before(NamedTuple):
    """What is known of an execution before it begins.

    Attributes:
        ends_step: Whether the optimizer will step.
        iterations: How often it was given gradients before; None: one step follows.
        rates: The learning rates, where they are recorded.
    """

    ends_step: bool = True
    iterations: int | None = None
    rates: Rates = ()


class _States(NamedTuple):
    """The states of an optimizer that any step captures.

    Attributes:
        size: How many variables the optimizer had when they were looked up.
        named: Their names, and the variables.
        selected: What steps capture of them.
    """

    size: int
    named: list[tuple[TensorEntry, Any]]
    selected: Selections[Any]


_NO_STATES = _States(0, [], Selections())


class Stepping(NamedTuple):
    """The step of an optimizer.

    Attributes:
        key: Names the optimizer.
        optimizer: The optimizer; None: those of the model, together.
        variables: Those that it changes, by their ids; None: all.
    """

    key: Hashable
    optimizer: Any = None
    variables: frozenset[int] | None = None


class WatchedModel:
    """Captures the steps of one model.

    Args:
        session: Receives the tensors.
        backend: The backend of Keras.
        model: The model.
        root: What the names of the model's own inputs and outputs begin with.
        prefix: What comes before all its other names.
        key: Names the optimizer that ends a step.
        model_info: Writes what is known of the model.

    Attributes:
        losses: Its losses.
        loss_records: Records those that no tap has seen.
        samples: Counts the samples of steps by them.
        variables: Its variables.
        model_info: Writes what is known of it.
        rates: Its learning rates.
        first_steps: Looks at what its first steps show.
        revision: Grows when a trace with taps is to be made anew.
    """

    def __init__(
        self,
        session: Session,
        backend: Backend,
        model: Any,
        root: str,
        prefix: str,
        key: Hashable,
        model_info: ModelInfoWriter,
    ) -> None:
        self.session = session
        self.backend = backend
        self.root = root
        self.prefix = prefix
        self._ref = weakref.ref(model)
        self._key = key
        self.model_info = model_info
        self._optimizers = TrainingOptimizers()
        self.paths = Paths(model.name, prefix)
        self.variables = Variables(session, model, self.paths)
        self.first_steps = FirstSteps(
            session, backend, self.variables, self.paths, self.optimizers
        )
        n_replicas = n_replicas_of(model)
        session.replicas.expect(n_replicas)
        follow = ReplicaTracker if n_replicas > 1 else Tracker
        self.losses = Losses(prefix, backend, follow)
        may_count = not backend.shows_batches and n_replicas == 1
        self.samples = CountedSamples(session, model, may_count=may_count)
        self.loss_records = LossRecords(session, backend, self.losses, self.samples)
        self._taps = ModelTaps(
            session,
            self.paths,
            root,
            self.variables,
            self.losses,
            Optimizers(backend.operations),
            n_replicas,
        )
        self._of_updates: DerivedEntries[Parameter]
        self._of_updates = DerivedEntries(session, Role.UPDATE, update_name)
        self._updates = Updates(session, self._copy, self._difference)
        self._of_weights: Selections[Any] = Selections()
        self._of_buffers: Selections[Any] = Selections()
        # By the optimizer; of all by that of None.
        self._states: dict[int, _States] = {}
        self._captures_states: bool | None = None
        self.rates = LearningRates(session, backend, self.optimizers)
        self._after: State | None = None
        self.revision = 0

    @property
    def model(self) -> Any:
        """The model; None: it does not live any longer."""
        return self._ref()

    def optimizers(self) -> list[Any]:
        """The optimizers that train the model, and live."""
        return self._optimizers.of(self.model)

    def train_by(self, optimizer: Any) -> None:
        """Know an optimizer that trains the model, which does not have it."""
        self._optimizers.add(optimizer)
        self._states.clear()

    def look(self, model: Any) -> None:
        """Look for losses and optimizers: the model may have been compiled anew."""
        self.losses.look(model)
        self._optimizers.look()
        self.variables.may_differ()

    def refresh(self) -> None:
        """Forget what is captured: collections have changed."""
        self.revision += 1
        self.look(self.model)
        self._taps.refresh()
        self._of_weights.refresh()
        self._of_buffers.refresh()
        self._of_updates.refresh()
        self._states.clear()
        self._captures_states = None
        self.rates.refresh()

    # ---- taps ------------------------------------------------------------------

    def install(self) -> Callable[[Patches, Taps], None]:
        """Return what sets the taps of a step."""
        return self._taps.install(self.model)

    def make_taps(self) -> Taps:
        """Make the taps of one trace, in which layers may make variables."""
        self.variables.may_differ()
        return Taps(self.backend, self.session.run)

    @property
    def is_eager(self) -> bool:
        """Whether steps are run without being compiled: a trace is the step itself."""
        return bool(getattr(self.model, "run_eagerly", False))

    # ---- tensors that are at hand ------------------------------------------------

    def hold_gradients(
        self, optimizer: Any, grads: list[Any], variables: list[Any], taps: Taps
    ) -> None:
        """Hold what an optimizer is given, as far as any step captures it."""
        self._taps.hold_gradients(optimizer, grads, variables, taps)

    def install_layers(self) -> Callable[[Patches, Taps], None]:
        """Return what sets the taps of the model and its layers only."""
        return self._taps.install_layers(self.model)

    def key(self, name: str, role: Role) -> str | None:
        """The key of a tensor of the model, if any step captures it."""
        return self._taps.key(name, role)

    def take(self, context: StepContext, replicas: Sequence[Mapping[str, Any]]) -> None:
        """Capture gradients that were held, of a step that the optimizer ends."""
        self._taps.take_gradients(context, replicas)

    def take_forward(
        self, context: StepContext, replicas: Sequence[Mapping[str, Any]]
    ) -> None:
        """Capture what was held of a forward."""
        self._taps.take_forward(context, replicas)

    # ---- steps without taps ----------------------------------------------------

    def is_due_within(self, mode: ModeKeys, n_steps: int) -> bool:
        """Return whether any of the next steps is due."""
        self.session.obey(mode)
        session, first = self.session, self.session.next_step(mode)
        plans = (session.step_plan(mode, first + i) for i in range(n_steps))
        return any(plan.is_active and not plan.is_light for plan in plans)

    def before_plain(self, mode: ModeKeys, args: tuple[Any, ...]) -> Before:
        """An execution without taps is about to begin."""
        state = self.backend.state_before(self.model, args)
        ends_step = self.ends_step(mode, state)
        self.loss_records.step_begins(mode, state, has_taps=False)
        iterations = None
        if mode in TRAINING and self._runs_several:
            iterations = self._iterations(state)
        return Before(ends_step, iterations, self.rates.due(mode, state))

    def after_plain(
        self,
        mode: ModeKeys,
        result: Any,
        before: Before | None,
        start_ns: int,
        n_steps: int = 1,
    ) -> None:
        """An execution without taps is over; report its steps.

        Args:
            mode: Their mode.
            result: What the function returned.
            before: What ``before_plain`` returned.
            start_ns: When the execution began.
            n_steps: How many steps it was to have: at the end of the data it has fewer.
        """
        before = before or Before()
        self.variables.may_differ()  # The step may have been traced.
        self.losses.look_again(self.model)
        state = self.backend.state_after(self.model, result)
        self.samples.is_single = n_steps == 1
        if n_steps > 1 and before.iterations is not None:
            n_steps = max(1, self._iterations(state) - before.iterations)
        for i in range(n_steps):
            context = self.begin(mode, state, start_ns=start_ns, rates=before.rates)
            is_last = i == n_steps - 1
            self.end(
                context if is_last else None,
                mode,
                Answer(result, {}),
                state,
                before.ends_step,
            )

    def begin_light_steps(self) -> LightSteps | None:
        """Begin to count steps without taps; None: there is more to tell of the next.

        Where steps are computed asynchronously, reading their losses would wait.
        """
        model, session = self.model, self.session
        if n_replicas_of(model) > 1 or self.first_steps.wants_steps:
            return None
        optimizers = self.optimizers()
        if len(optimizers) != 1 or accumulates_over(inner_of(optimizers[0])) > 1:
            return None
        if self.losses.are_logged:
            return None
        plan = session.next_plan(ModeKeys.TRAIN)
        entries = [
            session.entry(self.losses.name_of(model, tracker), Role.LOSS)
            for tracker in self.losses.trackers
        ]
        captured = [each for each in entries if plan.of_entry(each)]
        read = None
        if captured:
            if self.backend.as_async or len(captured) != len(entries):
                return None
            named = list(zip(entries, self.losses.trackers, strict=True))
            state = self.backend.state_after(model, None)
            self.loss_records.step_begins(ModeKeys.TRAIN, state, has_taps=False)
            number = functools.partial(number_in, self.backend)
            read = reader_of(named, state.read, number, self.samples)
        else:
            for tracker in self.losses.trackers:
                tracker.begin(None)
        return LightSteps.begin(
            session,
            id(self),
            self._key,
            ModeKeys.TRAIN,
            read=read,
            ended=self.model_info.steps_ended,
        )

    @property
    def _runs_several(self) -> bool:
        return int(getattr(self.model, "steps_per_execution", 1) or 1) > 1

    def _iterations(self, state: State) -> int:
        """How often gradients were given to the optimizer."""
        optimizer = inner_of(self._optimizers.stepping(self.model))
        (iterations,) = state.read([optimizer._iterations])
        return int(number_in(self.backend, iterations))

    # ---- a step ----------------------------------------------------------------

    def is_due(self, mode: ModeKeys) -> bool:
        """Whether the next step captures more than losses and numbers.

        What requests ask for is done before.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        self.session.obey(mode)
        step = self.session.training
        if mode in TRAINING and step is not None and step.context is not None:
            plan = step.context.step_plan  # A further micro-batch.
        else:
            plan = self.session.next_plan(mode)
        return bool(plan.is_active and not plan.is_light)

    def ends_step(self, mode: ModeKeys, state: State) -> bool:
        """Whether the optimizer will step, and not only add up gradients."""
        if mode not in TRAINING:
            return False
        n = accumulates_over(inner_of(self._optimizers.stepping(self.model)))
        return n < 2 or (self._iterations(state) + 1) % n == 0

    def begin(
        self,
        mode: ModeKeys,
        state: State,
        *,
        start_ns: int | None = None,
        rates: Rates | None = None,
    ) -> StepContext | None:
        """A step begins; nothing of it has been captured.

        Args:
            mode: The mode of the step.
            state: The variables before it.
            start_ns: When it began, if it is over already.
            rates: The learning rates that it used; None: those of now.
        """
        if rates is None:
            rates = self.rates.due(mode, state)
        context = self.session.forward_begins(id(self), mode, has_obeyed=True)
        if mode in TRAINING:
            self.model_info.forward_begins(has_optimizer=True, has_gradients=True)
        if context is None:
            return None
        if start_ns is not None and not context.step.micro_batch:
            context.start_ns = start_ns
        is_first = not context.step.micro_batch
        for name, rate in rates:
            self.session.record_number(context, name, rate)
        if start_ns is None and mode is not ModeKeys.PREDICT:
            self.loss_records.step_begins(mode, state, has_taps=True)
        if context.takes and is_first and start_ns is None:
            self.capture_variables(context, mode, state)
            if mode in TRAINING:
                self.expect_updates(context, state, Stepping(self._key))
        return context

    def begin_tapped(
        self, mode: ModeKeys, state: State
    ) -> tuple[StepContext | None, bool]:
        """A step with taps begins; return it, and whether the optimizer will step."""
        ends_step = self.ends_step(mode, state)
        return self.begin(mode, state), ends_step

    def capture_variables(
        self, context: StepContext, mode: ModeKeys, state: State
    ) -> None:
        """Capture the variables as they are before the step."""
        self.variables.know(self.model)
        self._take(context, self._of_weights, self.variables.weights, state)
        if mode not in TRAINING:
            self._take(context, self._of_buffers, self.variables.buffers, state)

    def expect_updates(
        self, context: StepContext, state: State, stepping: Stepping
    ) -> None:
        """Copy what an optimizer is about to change, if updates are captured."""
        derived = [
            each
            for each in self._of_updates.requested(self.variables, context.step_plan)
            if stepping.variables is None
            or id(each.tracked.variable) in stepping.variables
        ]
        if derived:
            before = state.read([each.tracked.variable for each in derived])
            self._updates.prepare(
                stepping.key,
                context,
                [
                    (each.entry, _Held(each.tracked.variable, value), each.requested)
                    for each, value in zip(derived, before, strict=True)
                ],
            )
            self._updates.begin(stepping.key, context)

    def end(
        self,
        context: StepContext | None,
        mode: ModeKeys,
        answer: Answer,
        state: State,
        ends_step: bool,
    ) -> None:
        """A step is over.

        Args:
            context: The step.
            mode: Its mode.
            answer: What its function has returned.
            state: The variables as it has left them.
            ends_step: Whether the optimizer has stepped.
        """
        session = self.session
        try:
            if context is not None:
                if mode is not ModeKeys.PREDICT:
                    self.loss_records.step_ended(
                        self.model,
                        context,
                        answer.tensors,
                        state,
                        self.backend.logs_of(answer.result),
                    )
                self._record_logs(context, answer.result)
                self._taps.take(context, answer.replicas, ends_step=ends_step)
        finally:
            session.forward_ends()
            if ends_step and mode in TRAINING:
                session.optimizer_begins(self._key, lambda: mode)
                self.end_training(context, answer, state, Stepping(self._key))

    def end_training(
        self,
        context: StepContext | None,
        answer: Answer,
        state: State,
        stepping: Stepping,
    ) -> None:
        """The optimizer, which has begun its step, has made it."""
        skipped = answer.tensors.get(SKIPPED)
        is_skipped = skipped is not None and bool(number_in(self.backend, skipped))
        try:
            if context is not None and context.takes:
                self._take(context, self._of_buffers, self.variables.buffers, state)
                if not is_skipped:
                    self._after = state
                    self._updates.end(stepping.key, context)
                    states = self._states_of(stepping.optimizer)
                    self._take(context, states.selected, states.named, state)
            self.session.run(self.first_steps.step_ended, self.model, state)
            self.model_info.optimizer_stepped()
        finally:
            self._after = None
            self._updates.forget(stepping.key)
            self.session.optimizer_ends(stepping.key, is_skipped)

    def captures_after(self, context: StepContext | None, stepping: Stepping) -> bool:
        """Whether a step captures anything once its optimizer has stepped."""
        if context is None or not context.takes:
            return False
        plan, buffers = context.step_plan, self.variables.buffers
        return bool(
            self._updates.has_begun(stepping.key)
            or (buffers and self._of_buffers.of(plan, buffers).entries)
            or self._states_of(stepping.optimizer) is not _NO_STATES
        )

    # ---- tensors ---------------------------------------------------------------

    def _take(
        self,
        context: StepContext,
        selections: Selections[Any],
        variables: list[tuple[TensorEntry, Any]],
        state: State,
    ) -> None:
        """Capture those variables that are due."""
        if not variables:
            return
        entries, found, flags = selections.of(context.step_plan, variables)
        if entries:
            self.session.take(context, entries, state.read(found), flags)

    def _states_of(self, optimizer: Any) -> _States:
        """The states of an optimizer, or of all (None), looked up if they grew."""
        if self._captures_states is None:
            self._captures_states = self.session.may_capture(Role.OPTIMIZER_STATE)
        if not self._captures_states:
            return _NO_STATES
        optimizers = self.optimizers() if optimizer is None else [optimizer]
        size = sum(len(inner_of(each).variables) for each in optimizers)
        known = self._states.get(id(optimizer))
        if known is None or known.size != size:
            found = list(self._find_states(optimizers))
            known = self._states[id(optimizer)] = _States(size, found, Selections())
        return known

    def _find_states(
        self, optimizers: Sequence[Any]
    ) -> Iterator[tuple[TensorEntry, Any]]:
        parameters = {
            each.variable.path.replace("/", "_"): each.weight.name
            for each in self.variables.tracked_parameters()
        }
        for optimizer in optimizers:
            for parameter, state, variable in states_of(optimizer, parameters):
                name = optimizer_state_name(state, parameter)
                if captures(self.session, name, Role.OPTIMIZER_STATE, frozenset()):
                    yield self.session.entry(name, Role.OPTIMIZER_STATE), variable

    def _copy(self, held: _Held) -> Any:
        array, held.before = self.backend.array(held.before), None
        return None if array is None else np.array(array)

    def _difference(self, held: _Held, before: Any) -> Any:
        if self._after is None:
            return None
        (value,) = self._after.read([held.variable])
        after = self.backend.array(value)
        return None if after is None else np.subtract(after, before, out=before)

    # ---- numbers ---------------------------------------------------------------

    def _record_logs(self, context: StepContext, result: Any) -> None:
        """Record the numbers that Keras logs, where statistics are due."""
        step = context.step
        if not self.session.scalars_due(step.mode, step.mode_step):
            return
        for name, value in self.backend.logs_of(result).items():
            number = number_in(self.backend, value)
            self.session.record_number(context, f"{self.prefix}{name}", number)


class _Held:
    """A parameter of which the update is captured.

    Attributes:
        variable: The parameter.
        before: Its value before the step, until that is copied.
    """

    __slots__ = ("before", "variable")

    def __init__(self, variable: Any, before: Any) -> None:
        self.variable = variable
        self.before = before
