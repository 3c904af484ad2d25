"""Steps that are only counted: at most losses are captured, and they go like the last.

The events of a step (a forward begins, it ends, an optimizer begins, it ends) mean as
much work as the rest of tdbg does between two steps that are captured.  Where the next
steps have losses at most, hooks of the core stand in for those of Python.  As long as
the events are those of the last step that was seen, in the same order, they are counted
and nothing else is done.  The loss of a step that is to have it is noted where it is
computed.  Whatever else happens ends that.  Then the session is told how many steps
there were, what was noted is recorded, and the events of the step under way are made up
for.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from tdbg.capture.listeners import Listeners
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.capture.schedule import NEVER, StepPlan
from tdbg.capture.steps import Step, StepMachine
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.capture.writer import NullWriter
from tdbg.modes import TRAIN

if TYPE_CHECKING:
    from tdbg._core import StepCounter
    from tdbg.capture.events import StepWriter
    from tdbg.capture.requests import Obedience

__all__ = ["CountedSteps", "StepEvent"]

# Steps that are seen, at most, before counting is tried again after it was of no use.
_MOST_PATIENCE = 256
# No step that begins later is only counted: requests are to be heard, a step a second
# is to be recorded, and what is noted is to be read.  The step that is seen, and cold
# caches after it, cost up to a millisecond: 0.4 % of this.
_LONGEST_NS = 250_000_000


class StepEvent:
    """An event that steps of a training have, as whoever reports it knows it.

    Args:
        repeat: A method that reports the event; what it is of is not kept alive.
        may_be_last: As the attribute.

    Attributes:
        may_be_last: Whether a step that is counted may end with it.
    """

    __slots__ = ("_repeat", "may_be_last")

    def __init__(
        self, repeat: Callable[[], None], *, may_be_last: bool = False
    ) -> None:
        self._repeat = weakref.WeakMethod(repeat)
        self.may_be_last = may_be_last

    def repeat(self) -> None:
        """Report the event: its step turned out not to be only counted."""
        repeat = self._repeat()
        if repeat is not None:
            repeat()


class _Note(NamedTuple):
    """A loss of a step that was counted.

    Attributes:
        n: How many steps had been counted before.
        key: Names the calls of the loss in ``StepContext.calls``.
        entry: Its name.
        flags: What to capture of it.
        value: The number.
    """

    n: int
    key: object
    entry: TensorEntry
    flags: int
    value: float


class _NothingCounted:
    """Stands where there is no counter of the core."""

    is_on = is_over = is_noted = is_quiet = False
    n = index = duration_ns = depth = n_events = 0


class CountedSteps:
    """Counts steps of a training that repeat the last one.

    Args:
        recorder: Of the session.
        step_writer: Is told what was counted.
        obedience: Says whether requests are being obeyed.
        listeners: Are told that it begins, or was of no use.

    Attributes:
        counter: The core's, which hooks of the core tell of events.
        events: Those of the step that is being seen, in order; whoever reports an
            event adds it, whoever begins a step clears them.
        may_count: Whether whoever registers hooks can have them count; None: never.
        step_plan: What is captured of the steps whose losses are noted.
    """

    def __init__(
        self,
        recorder: Recorder,
        step_writer: StepWriter,
        obedience: Obedience,
        listeners: Listeners,
    ) -> None:
        # Who writes nothing does without the core, and sees every step.
        self._can_count = type(recorder.writer) is not NullWriter
        self.counter: StepCounter = (
            import_module("tdbg._core").StepCounter()
            if self._can_count
            else cast("StepCounter", _NothingCounted())
        )
        self.events: list[StepEvent] = []
        self.may_count: Callable[[], bool] | None = None
        self._listeners = listeners
        self.step_plan: StepPlan | None = None
        self._recorder = recorder
        self._policy = recorder.policy
        self._step_writer = step_writer
        self._obedience = obedience
        self._pattern: tuple[StepEvent, ...] = ()
        self._patience = self._n_wait = 0
        self._notes: list[_Note] = []
        # Those of the step that was under way when the counting ended.
        self._begun: Sequence[_Note] = ()

    @property
    def counter_of_core(self) -> StepCounter | None:
        """``counter``, if it ever counts."""
        return self.counter if self._can_count else None

    @property
    def n_begun(self) -> int:
        """Steps that were counted, with the one under way."""
        counter = self.counter
        return counter.n + (counter.index > 0)

    def begin(self, machine: StepMachine, step: Step, now_ns: int) -> bool:
        """Count the next steps without seeing them, if they are to have losses at most.

        REQUIRES: nothing else is requested of the next step of the same mode.

        Args:
            machine: That of the session.
            step: The step that an optimizer has just ended.
            now_ns: The time (``time.perf_counter_ns``).

        Returns:
            Whether they will be only counted.
        """
        if machine.trains_in_evaluation:
            return False  # Who goes in and out of that at every step means it.
        if step.mode is not TRAIN or machine.evaluation is not None or machine.depth:
            return False
        if not self.events or not self.events[-1].may_be_last:
            return False  # An optimizer that was skipped, say.
        # Ranks are to obey what they agreed on at the same step.
        if not self._can_count or self.may_count is None:
            return False
        if not self._obedience.is_alone:
            return False
        if self._n_wait:
            self._n_wait -= 1
            return False
        quiet = self._policy.quiet(TRAIN, step.mode_step + 1)
        most = quiet.end - step.mode_step - 1
        first, every = quiet.noted(step.mode_step + 1)
        if step.micro_batches > 1 and every:
            # Whoever notes a loss does not know which of them it is of.
            most, every = min(most, first), NEVER
        if most <= 0 or not self.may_count():
            return False
        # While requests are being obeyed each forward asks for them.
        if not self._obedience.next_poll_ns:
            return False
        until_ns = now_ns + _LONGEST_NS
        self._pattern, self.step_plan = tuple(self.events), quiet.step_plan
        self.counter.begin(self._pattern, int(min(most, NEVER)), until_ns, first, every)
        for callback in self._listeners.counting:
            callback()
        return True

    def note(self, key: object, entry: TensorEntry, flags: int, value: float) -> bool:
        """Note a loss of the step under way; False: it has had one of that name.

        REQUIRES: ``counter.is_noted``.

        Args:
            key: Names the calls of the loss in ``StepContext.calls``.
            entry: The name of the loss.
            flags: What to capture of it, as ``step_plan`` says.
            value: The loss.
        """
        n = self.counter.n
        for each in reversed(self._notes):
            if each.n != n:
                break
            if each.entry is entry:
                return False
        self._notes.append(_Note(n, key, entry, flags, value))
        return True

    def end(self, machine: StepMachine, now_ns: int) -> tuple[StepEvent, ...]:
        """Count no longer; return the events so far of the step under way."""
        is_over = self.counter.is_over
        n_steps, duration_ns, n_events = self.counter.end()
        # Steps that never repeat each other are not tried again and again.
        if n_steps or is_over:
            self._patience = 0
        else:
            self._patience = min(max(1, 2 * self._patience), _MOST_PATIENCE)
            for callback in self._listeners.counting_failed:
                callback()
        self._n_wait = self._patience
        self.events.clear()
        notes, self._notes = self._notes, []
        self._begun = [each for each in notes if each.n >= n_steps]
        if n_steps:
            step = machine.count(n_steps)
            step_plan = self._policy.step_plan(step.mode, step.mode_step)
            spent_ns = self._step_writer.meter.spent_ns
            context = StepContext(step, step_plan, now_ns, spent_ns)
            step.context = context
            mean_ns = duration_ns // n_steps
            has_data = self._record(step, n_steps, notes, now_ns, mean_ns)
            context.has_data = has_data
            self._step_writer.steps_counted(
                step, n_steps, duration_ns, has_data=has_data
            )
        return self._pattern[:n_events]

    def record_begun(self, machine: StepMachine) -> None:
        """Record what was noted of the step under way, whose events are made up for."""
        begun, self._begun = self._begun, ()
        step = machine.training
        context: StepContext | None = None if step is None else step.context
        if begun and context is not None:
            numbers = np.array([each.value for each in begun], np.float32)
            entries = [each.entry for each in begun]
            flags = [each.flags for each in begun]
            self._recorder.take_numbers(context, entries, numbers, flags)
            for each in begun:
                context.count_call(each.key)

    def _record(
        self,
        last: Step,
        n_steps: int,
        notes: Sequence[_Note],
        now_ns: int,
        duration_ns: int,
    ) -> bool:
        """Record what was noted of steps that are over; whether the last has any."""
        latest = -1
        by_step = itertools.groupby(notes, operator.attrgetter("n"))
        for n, found in by_step:
            if n >= n_steps:
                break
            latest, each = n, list(found)
            number = last.number - n_steps + 1 + n
            self._recorder.take_step_numbers(
                number,
                [note.entry for note in each],
                np.array([note.value for note in each], np.float32),
                [note.flags for note in each],
            )
            self._step_writer.counted_step_has_data(
                number,
                last.mode,
                last.mode_step - n_steps + 1 + n,
                now_ns,
                duration_ns,
            )
        return latest == n_steps - 1
