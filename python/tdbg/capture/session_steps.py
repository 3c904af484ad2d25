"""The part of a session that turns the events of a training into steps.

Thread safety: the training's thread; a call from another one is safe, though its
step may be that of either thread.

Errors: ``TrainingStopped``, from ``forward_begins`` and ``obey`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from tdbg.capture.adapter import DeviceArray
from tdbg.capture.counted_steps import CountedSteps, StepEvent
from tdbg.capture.events import StepWriter
from tdbg.capture.listeners import Listeners, call_all
from tdbg.capture.passed_steps import PassingSteps
from tdbg.capture.policy import Policy
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.capture.replicas import Replicas
from tdbg.capture.requests import Obedience
from tdbg.capture.schedule import IdleState, StepPlan
from tdbg.capture.session_tensors import SessionTensors
from tdbg.capture.step_clock import (
    EVALUATION,
    FORWARD_OF,
    OPTIMIZER,
    make_clock,
)
from tdbg.capture.steps import Counters, Step, StepChange, StepMachine
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.errors import TrainingStopped
from tdbg.modes import EVAL, TRAIN, TRAINING, ModeKeys
from tdbg.run.schema import StepFlag

if TYPE_CHECKING:
    from tdbg._core import StepCounter

__all__ = ["SessionSteps"]


class SessionSteps(SessionTensors):
    """The part of a session that takes events, and begins and ends steps.

    Args:
        policy: Says what is captured.
        recorder: Captures it.
        step_writer: Writes the ends of steps.
        obedience: Obeys requests, as forwards begin.

    Attributes:
        optimizers: The keys of the optimizers that are known; read-only.
        takes_activations: False while a forward is under way in which no input or
            output of any module is captured; saves the hooks the rest.
        forward_context: The step of the forward under way, if anything is captured
            in it.
        n_replicas: Copies of a root that are being called, in threads of their own;
            nothing inside them is captured.
        replicas: The workers of this process: one, or each of its replicas.
        is_called_in_steps: Whether steps call tdbg from inside, in another thread,
            before they are computed; compiled steps do not pass then.
        forward_of: What phase a forward is, by mode; ``STEP_OF`` where a step has no
            parts.
        compiles_own: Whether a compiler works for tdbg: that is no time of the
            training's compiler.
        idle: Reports when no input or output of a module will be captured for a
            while.
        listeners: Callbacks; ``Session.listen`` adds to them.
        clock: Measures the phases of steps once ``measure_steps`` was called; hooks
            enter and leave those that the session does not know.
        fingerprints: Records hashes of the samples (``tdbg.profiler.Fingerprints``);
            None: nothing does.
    """

    add_event: Callable[[StepEvent], None]
    """Adds an event to the step under way; counted steps repeat its events.

    Bound to ``CountedSteps.events.append``, because every step calls it four times.
    """

    def __init__(
        self,
        policy: Policy,
        recorder: Recorder,
        step_writer: StepWriter,
        obedience: Obedience,
    ) -> None:
        super().__init__(policy, recorder)
        self.machine = StepMachine()
        self.optimizers = self.machine.optimizers
        self.step_writer = step_writer
        self.meter = step_writer.meter
        self.obedience = obedience
        self.replicas = Replicas(recorder, step_writer)
        self.takes_activations = True
        self.forward_context: StepContext | None = None
        self.n_replicas = 0
        self.is_called_in_steps = self.compiles_own = False
        self.fingerprints: Any = None
        self.forward_of: Mapping[ModeKeys, int] = FORWARD_OF
        self._resumed_at: dict[ModeKeys, int] = {}
        self.idle = IdleState()
        self.listeners = Listeners()
        # Ends of what goes on: called once, before the next event.
        self.unfinished: list[Callable[[], None]] = []
        self.counted = CountedSteps(recorder, self.machine, obedience, self.listeners)
        self.add_event = self.counted.events.append
        self._counter = self.counted.counter
        self.clock = make_clock(has_core=self.step_counter is not None)
        # Time in the core, of calls that no Python has seen.
        self._core_ns = 0
        # The source of the steps that pass, until the next event.
        self._passing: PassingSteps | None = None
        # Whether at most losses are requested of the training step that comes next.
        self._is_next_light = False
        # When the call under way began: that is "now" until it ends.
        self._now_ns = 0

    def measure_steps(self) -> None:
        """Measure the phases of steps from now on; the first step begins now."""
        self.clock.start()
        if self.step_counter is not None:
            self.step_counter.measure_by(self.clock)

    # ---- the present step ----------------------------------------------------

    @property
    def training(self) -> Step | None:
        """The training step under way, or None."""
        return self.machine.training

    @property
    def depth(self) -> int:
        """Number of nested calls of roots under way."""
        return self.machine.depth or self._counter.depth

    @property
    def is_in_closure(self) -> bool:
        """Whether an optimizer is evaluating its closure."""
        return self.machine.is_in_closure

    def defines_step(self, key: Hashable) -> bool:
        """Whether the end of this optimizer's step is the end of a step."""
        return self.machine.defines_step(key)

    def next_step(self, mode: ModeKeys) -> int:
        """Return the number that the next step of *mode* will have in it."""
        return self.machine.following(mode)

    def next_plan(self, mode: ModeKeys) -> StepPlan:
        """Return what the next step of *mode* captures."""
        return self.policy.step_plan(mode, self.machine.following(mode))

    def next_steps(self) -> Counters:
        """Return the numbers that a training resumed from here continues with."""
        return self.machine.counters()

    def continue_from(self, counters: Counters) -> bool:
        """Continue from these numbers; False, and no change, if that would go back."""
        is_first = not any(self.machine.counters().modes.values())
        continues = self.machine.continue_from(counters)
        if continues and is_first:
            self._resumed_at = dict(counters.modes)
        return continues

    def steps_made(self) -> dict[str, list[int]]:
        """By mode, the number of the first step and that after the last one."""
        ends = self.machine.counters().modes
        firsts = {mode: self._resumed_at.get(mode, 0) for mode in ends}
        return {
            mode.name: [firsts[mode], end]
            for mode, end in ends.items()
            if firsts[mode] < end
        }

    def latest_step(self, mode: ModeKeys) -> tuple[int, int]:
        """The numbers of the step that began last: global, and in *mode*; -1: none."""
        number, in_mode = self.machine.latest(mode)
        n_passing = self._n_passing
        return number + n_passing, in_mode + (n_passing if mode is TRAIN else 0)

    @property
    def n_training_steps(self) -> int:
        """How many steps of training have begun, or were resumed from."""
        return self.machine.next_training()[0] + self._n_passing

    @property
    def n_forwards(self) -> int:
        """A number that grows with every forward in training."""
        return self.machine.n_forwards + self._n_passing

    @property
    def _n_passing(self) -> int:
        """Number of steps that have begun and that the machine does not know yet."""
        passing = self._passing
        return 0 if passing is None else passing.n_begun

    # ---- steps that pass -----------------------------------------------------

    def let_pass(self, passing: PassingSteps) -> None:
        """Let steps pass from now on, until the next event.

        REQUIRES: this is called in ``run``, between two steps; ``machine.may_pass``.
        """
        self._passing = passing

    @property
    def step_counter(self) -> StepCounter | None:
        """The core's counter of steps that need no Python; None: all are seen."""
        return self.counted.counter_of_core

    @property
    def is_noted(self) -> bool:
        """Whether the step under way is only counted, and its losses are noted."""
        return self._counter.is_noted

    @property
    def is_quiet(self) -> bool:
        """Whether the step under way is only counted, and no loss of it is noted."""
        return self._counter.is_quiet

    @property
    def n_counted_events(self) -> int:
        """Number of all events so far that were counted instead of observed."""
        return self._counter.n_events

    def count_if(self, may_count: Callable[[], bool]) -> None:
        """Count steps that need no Python where *may_count* says so."""
        self.counted.count_if(may_count)

    @property
    def noted_plan(self) -> StepPlan | None:
        """Return the plan of the step whose losses are noted."""
        return self.counted.step_plan

    def note_loss(
        self, key: object, entry: TensorEntry, flags: int, value: float
    ) -> bool:
        """Note a loss of the step under way; False: it has had one of that name.

        REQUIRES: ``is_noted``.

        Args:
            key: Names the calls of the loss in ``StepContext.calls``.
            entry: The name of the loss.
            flags: What to capture of it, as ``noted_plan`` says.
            value: The loss.
        """
        return self.counted.note(key, entry, flags, value)

    # ---- events of the training ----------------------------------------------

    def obey(self, mode: ModeKeys) -> None:
        """Take over changed collections and obey requests, as a forward does."""
        self._refresh()
        if self._now_ns >= self.obedience.next_poll_ns and not self.machine.depth:
            self._obey_requests(mode)

    def forward_begins(
        self, root: Hashable, mode: ModeKeys, *, has_obeyed: bool = False
    ) -> StepContext | None:
        """Note that a root is about to be called; return its step.

        *has_obeyed* says that ``obey`` was called for this forward, which may be over.

        Raises:
            TrainingStopped: If somebody has asked the training to stop.
        """
        if not has_obeyed:
            # As `obey`, in every step: without its calls.
            policy = self.policy
            if policy.registry.changes.count != policy.revision:
                self._refresh()
            if self._now_ns >= self.obedience.next_poll_ns and not self.machine.depth:
                self._obey_requests(mode)
        change = self.machine.forward_begins(root, mode)
        for ended in change.ended:
            self._end(ended)
        if self.machine.depth == 1:
            self.clock.enter(self.forward_of[mode])
        step = change.step
        if step is None:
            return None
        if change.began:
            self._begin(step)
        context: StepContext | None = step.context
        if context is not None:
            step_plan = context.step_plan
            takes = step_plan.is_active and not step.is_taken
            self.forward_context = context if takes else None
            if context.calls:
                context.calls = {}
            if takes and step_plan.takes_activations and not self.n_replicas:
                self.takes_activations = True
                self.idle.set(False)
                self.recorder.begin_forward(context)
            else:
                self.takes_activations = False
        return context

    def forward_ends(self, failed: bool = False) -> None:
        """Note that the call of a root is over."""
        change = self.machine.forward_ends(failed=failed)
        step, clock = change.step, self.clock
        if not self.machine.depth:
            evaluates = step is not None and step.mode not in TRAINING
            direct = self.recorder.direct
            if direct is not None and direct.spent_ns != self._core_ns:
                phase = EVALUATION if evaluates else self.forward_of[TRAIN]
                clock.spend_in(phase, direct.spent_ns - self._core_ns)
                self._core_ns = direct.spent_ns
            if evaluates:
                clock.leave(EVALUATION)
                clock.end_evaluation()
            else:
                clock.leave(self.forward_of[TRAIN])
        if change.ended:
            self._apply(change)
        if not self.machine.depth:
            if self.recorder.is_in_forward:
                self.recorder.end_forward()
            # Of a module that is called by itself.
            self.takes_activations = not self.n_replicas
            self.forward_context = None
        if step is not None and step.mode not in TRAINING and step.context is not None:
            step.context.extend(self._now_ns, self.meter.spent_ns)

    def forward_lost(self) -> None:
        """Note that an interrupt has ended the call of a root without an event."""
        self.clock.leave(self.forward_of[TRAIN])
        self.clock.leave(EVALUATION)
        self._apply(self.machine.forward_lost())

    def module_called(
        self, mode: ModeKeys, key: object | None = None
    ) -> StepContext | None:
        """Note the call of a module or a loss; return its step, if captured.

        Args:
            mode: The present mode.
            key: The key of its calls. In evaluation, outside the call of a root, the
                second call with the key that began a step begins another step.
        """
        machine, again = self.machine, False
        step = machine.training
        if step is None or machine.depth or mode not in TRAINING:
            step = machine.evaluation
            if step is not None and key is not None and not step.forwards:
                again = step.context is not None and key in step.context.calls
            change = machine.module_called(mode, again=again)
            if change.began:
                self._apply(change)
            step = change.step
        # Else it is that of every step of a training: it changes nothing.
        if step is None:
            return None
        context: StepContext | None = step.context
        if context is None or step.is_taken or not context.step_plan.is_active:
            return None
        context.last_ns = self._now_ns
        return context

    def optimizer_begins(
        self, key: Hashable, mode: Callable[[], ModeKeys], *, from_latest: bool = True
    ) -> StepContext | None:
        """Note that an optimizer is about to step; return the step that it ends.

        Args:
            key: The optimizer's.
            mode: Returns the present mode; called only where a step begins here.
            from_latest: Whether the gradients are those of the latest forward; not
                with a closure, which is yet to compute them.
        """
        machine, present = self.machine, TRAIN
        if machine.training is None:
            present = mode()
            if present is EVAL and from_latest:
                self._train_in_evaluation(key)
        change = machine.optimizer_begins(key, present)
        if change.began:
            self._apply(change)
        context: StepContext | None = None
        if change.step is not None:
            context = change.step.context
        self.clock.enter(OPTIMIZER)
        return context

    def optimizer_ends(
        self, key: Hashable, skipped: bool | DeviceArray = False
    ) -> None:
        """Note that an optimizer has stepped, or was skipped.

        Args:
            key: The key of the optimizer.
            skipped: Whether it was skipped; a device may say so later.
        """
        if not isinstance(skipped, bool):
            self.recorder.flag_later(self.machine.training, StepFlag.SKIPPED, skipped)
            skipped = False
        self.clock.leave(OPTIMIZER)
        for step in self.machine.optimizer_ends(key, skipped=skipped).ended:
            self._end(step)
            if self._is_next_light and self.counted.begin(step, key, self._now_ns):
                self._passing = self.counted
                self.takes_activations = False

    def optimizer_found(self, key: Hashable, *, defines_step: bool = False) -> None:
        """Note an optimizer of the model's parameters, which may never have stepped."""
        self.machine.optimizer_found(key, defines_step=defines_step)

    def optimizer_comes_last(self, key: Hashable) -> None:
        """Let the last optimizer of a step define it, unless the user chose one."""
        self.machine.optimizer_comes_last(key)

    def optimizer_gone(self, key: Hashable) -> None:
        """Forget an optimizer that no longer exists."""
        self.machine.optimizer_gone(key)

    def optimizers_stop(self) -> None:
        """End steps without an optimizer: none has stepped for long."""
        self.machine.optimizers_stop()

    def closure_begins(self) -> None:
        """Note that the optimizer that is stepping evaluates its closure."""
        self.machine.closure_begins()

    def closure_ends(self) -> None:
        """Note that the evaluation of the closure is over."""
        self.machine.closure_ends()

    def closure_fails(self) -> None:
        """Note that the closure raised, and that so will the optimizer's step."""
        self.machine.closure_fails()

    def eval_training_changed(self) -> None:
        """Report that training in evaluation mode has begun, or is over."""
        for callback in self.listeners.eval_training:
            callback()

    def steps_end(self) -> None:
        """End the open steps: the training is over, or pauses."""
        self._apply(self.machine.close())

    def given(self, mode: ModeKeys) -> StepContext | None:
        """Return the step that a value recorded by hand now belongs to."""
        return self._apply(self.machine.record_given(mode))

    @property
    def stop_reason(self) -> str | None:
        """Return who asked the training to stop, and why; None if nobody has."""
        return self.obedience.stop_reason

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked the training to stop."""
        return self.stop_reason is not None

    # ---- what they mean ------------------------------------------------------

    def _obey_requests(self, mode: ModeKeys) -> None:
        """Obey the requests to the training."""
        if self.obedience.obey(self.machine, mode):
            self._apply(self.machine.close())
            self.obedience.write_stopped()
            last, _ = self.machine.latest(mode)
            raise TrainingStopped(self.stop_reason or "", None if last < 0 else last)

    def _train_in_evaluation(self, key: Hashable) -> None:
        """Turn a step of evaluation into one of training, if the optimizer uses it."""
        step = self.machine.evaluation_trains(key)
        if step is None:
            return
        self.eval_training_changed()
        self.clock.forget_evaluation()
        if step.context is not None:
            step.context.step_plan = self.policy.step_plan(step.mode, step.mode_step)

    def _apply(self, change: StepChange) -> StepContext | None:
        for step in change.ended:
            self._end(step)
        step_now = change.step
        if step_now is None:
            return None
        if change.began:
            self._begin(step_now)
        context: StepContext | None = step_now.context
        return context

    def _begin(self, step: Step) -> None:
        self.counted.events.clear()
        policy = self.policy
        if policy.registry.changes.count != policy.revision:
            self._refresh()
        step_plan = policy.step_plan(step.mode, step.mode_step)
        if step_plan.takes_activations:
            self.idle.set(False)
        spent_ns, direct = self.meter.total_ns, self.recorder.direct
        if direct is not None:  # As ``meter.spent_ns``, without a call.
            spent_ns += direct.spent_ns
        step.context = StepContext(step, step_plan, self._now_ns, spent_ns)
        if self.listeners.border:
            call_all(self.listeners.border)

    def _end(self, step: Step) -> None:
        # Its row first: an interrupt may come between here and its record.
        mode, clock = step.mode, self.clock
        is_training = mode in TRAINING
        number = step.number, step.mode_step, mode._value_, step.micro_batches
        if not is_training:
            clock.keep_evaluation(*number)
        elif clock.end_step(*number):
            call_all(self.listeners.rows)
        context: StepContext | None = step.context
        if context is None:
            return  # An interrupt came between its beginning and this.
        spent_ns, direct = self.meter.total_ns, self.recorder.direct
        if direct is not None:  # As ``meter.spent_ns``, without a call.
            spent_ns += direct.spent_ns
        if is_training:  # It goes on until now; of the others the last forward ends it.
            context.last_ns, context.last_spent_ns = self._now_ns, spent_ns
        self.step_writer.step_ended(step, self._now_ns, spent_ns, context)
        if self.listeners.border:
            call_all(self.listeners.border)
        if is_training and not self.machine.depth:
            # Now, so that the next step may begin with any module.  A root that is
            # compiled says nothing, and would be compiled anew without its hooks.
            following = self.policy.step_plan(mode, step.mode_step + 1)
            self._is_next_light = following.is_light
            is_idle = bool(step.forwards) and not following.takes_activations
            if is_idle is not self.idle.is_idle:
                self.idle.set(is_idle)

    def _end_passing(self, passing: PassingSteps) -> None:
        """Account for the steps that have passed; observe what happens from now on."""
        passed = passing.end()
        self.takes_activations = not self.n_replicas
        if passed.n:
            now_ns, spent_ns = self._now_ns, self.meter.spent_ns
            last = self.machine.count(passed.n, passed.forwards)
            number = last.number, last.mode_step, TRAIN._value_, last.micro_batches
            if self.clock.number_steps(passed.n, *number):
                call_all(self.listeners.rows)
            step_plan = self.policy.step_plan(last.mode, last.mode_step)
            context = StepContext(last, step_plan, now_ns - passed.last_ns, spent_ns)
            last.context = context
            context.extend(now_ns, spent_ns)
            context.has_data = self.step_writer.steps_passed(last, passed, now_ns)
            self.step_writer.step_ended(last, now_ns, spent_ns, context)
            if self.listeners.border:
                call_all(self.listeners.border)
        # It may report events again, whose phases are known.
        self.clock.set_is_repeating(True)
        try:
            passing.resume(passed.n)
        finally:
            self.clock.set_is_repeating(False)

    def _refresh(self) -> None:
        policy = self.policy
        if policy.registry.changes.count != policy.revision and policy.refresh():
            self._collections_change()

    def _collections_change(self) -> None:
        self.step_writer.collections_change()
        self.replicas.refresh()
        for callback in self.listeners.change:
            callback()
