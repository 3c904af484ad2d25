"""Steps that are only counted: at most losses are captured, and they go like the last.

The events of a step (a forward begins, it ends, an optimizer begins, it ends) mean as
much work as the rest of tdbg does between two steps that are captured.  Where the next
steps have losses at most, hooks of the core stand in for those of Python.  They count
the events as long as these are the events of the last observed step, in the same order,
and do nothing else.  A loss that is due is noted where it is computed.  Any other event
ends that: the session accounts for the steps (``PassedSteps``), and then the events of
the step under way are repeated.

Thread safety: the training's thread.

Errors: none.
"""

from __future__ import annotations

import itertools
import operator
import sys
import weakref
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.listeners import Listeners
from tdbg.capture.passed_steps import PassedNumbers, PassedSteps
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.capture.schedule import NEVER, StepPlan
from tdbg.capture.steps import Step, StepMachine
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.capture.writer import NullWriter
from tdbg.modes import TRAIN

if TYPE_CHECKING:
    from tdbg._core import StepCounter
    from tdbg.capture.requests import Obedience

__all__ = ["FELT_COUNTED_NS", "CountedSteps", "StepEvent"]

# Steps that are seen, at most, before counting is tried again after it was of no use.
_MOST_PATIENCE = 256
# No step that begins later is only counted: requests are to be heard, a step a second
# is to be recorded, and what is noted is to be read.  The step that is seen, and cold
# caches after it, cost up to a millisecond: 0.4 % of this.
_LONGEST_NS = 250_000_000
# What the training feels of each, although no clock is read (docs/overhead.md).
FELT_COUNTED_NS = 25_000


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

    is_noted = is_quiet = False
    depth = n_events = 0


class CountedSteps:
    """Steps of a training that repeat the last one, and pass (``PassingSteps``).

    Args:
        recorder: The recorder of the session.
        machine: The step machine of the session.
        obedience: Says whether requests are being obeyed.
        listeners: Their ``counting`` and ``counting_failed`` are called.

    Attributes:
        counter: The core's, to which hooks of the core report events.
        events: Those of the step that is being observed, in order; whoever reports an
            event adds it, whoever begins a step clears them.
        may_count: Returns whether the hooks of the core can count; None: they never
            can.
        step_plan: What is captured of the steps whose losses are noted.
    """

    def __init__(
        self,
        recorder: Recorder,
        machine: StepMachine,
        obedience: Obedience,
        listeners: Listeners,
    ) -> None:
        # A session that writes nothing does without the core, and observes every step.
        self._has_core = type(recorder.writer) is not NullWriter
        self.counter: StepCounter = (
            import_module("tdbg._core").StepCounter()
            if self._has_core
            else cast("StepCounter", _NothingCounted())
        )
        self.events: list[StepEvent] = []
        self.may_count: Callable[[], bool] | None = None
        self._listeners = listeners
        self.step_plan: StepPlan | None = None
        self._recorder = recorder
        self._policy = recorder.policy
        self._machine = machine
        self._obedience = obedience
        self._pattern: tuple[StepEvent, ...] = ()
        self._patience = self._n_wait = 0
        self._notes: list[_Note] = []
        # The events and the losses of the step that was under way at the end.
        self._begun: tuple[StepEvent, ...] = ()
        self._begun_notes: Sequence[_Note] = ()

    @property
    def counter_of_core(self) -> StepCounter | None:
        """``counter``, if it ever counts."""
        return self.counter if self._has_core else None

    @property
    def n(self) -> int:
        """Number of steps that were counted, and are over."""
        return self.counter.n

    @property
    def n_begun(self) -> int:
        """Number of steps that were counted, with the one under way."""
        counter = self.counter
        return counter.n + (counter.index > 0)

    @property
    def duration_ns(self) -> int:
        """Duration of the steps that are over."""
        return self.counter.duration_ns

    def count_if(self, may_count: Callable[[], bool]) -> None:
        """Count steps where *may_count* says so.

        Ranks are to obey what they agreed on at the same step: they count none.
        """
        if self._has_core and self._obedience.is_alone:
            self.may_count = may_count

    def begin(self, step: Step, optimizer: Hashable, now_ns: int) -> bool:
        """Count the next steps, if they are to have losses at most.

        REQUIRES: nothing else is requested of the next step of the same mode.

        Args:
            step: The step that has just ended.
            optimizer: The key of the optimizer that has ended it.
            now_ns: The time (``time.perf_counter_ns``).

        Returns:
            Whether they will only be counted.
        """
        if self.may_count is None or not self.events:
            return False
        if not self.events[-1].may_be_last:
            return False  # An optimizer that was skipped, say.
        if self._n_wait:
            self._n_wait -= 1
            return False
        if not self._machine.may_pass(step.mode, optimizer):
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

    def end(self) -> PassedSteps:
        """Count no longer; return the steps that are over."""
        is_over = self.counter.is_over
        n, duration_ns, n_events = self.counter.end()
        # Steps that never repeat each other are not tried again and again.
        if n or is_over:
            self._patience = 0
        else:
            self._patience = min(max(1, 2 * self._patience), _MOST_PATIENCE)
            for callback in self._listeners.counting_failed:
                callback()
        self._n_wait = self._patience
        self.events.clear()
        self._begun = self._pattern[:n_events]
        notes, self._notes = self._notes, []
        self._begun_notes = [each for each in notes if each.n >= n]
        mean_ns = duration_ns // max(n, 1)
        numbers = [
            PassedNumbers(n_before, mean_ns, *_columns(list(found)))
            for n_before, found in itertools.groupby(notes, operator.attrgetter("n"))
            if n_before < n
        ]
        return PassedSteps(n, duration_ns, mean_ns, numbers, FELT_COUNTED_NS)

    def resume(self, n: int) -> None:  # noqa: ARG002
        """Repeat the events of the step that is under way, and record its losses."""
        begun, self._begun = self._begun, ()
        obedience = self._obedience
        next_poll_ns, obedience.next_poll_ns = obedience.next_poll_ns, sys.maxsize
        try:
            for event in begun:  # A stop is obeyed by forwards, not here.
                event.repeat()
        finally:
            obedience.next_poll_ns = next_poll_ns
        notes, self._begun_notes = self._begun_notes, ()
        step = self._machine.training
        context: StepContext | None = None if step is None else step.context
        if notes and context is not None:
            self._recorder.take_numbers(context, *_columns(notes))
            for each in notes:
                context.count_call(each.key)


def _columns(
    notes: Sequence[_Note],
) -> tuple[list[TensorEntry], NDArray[Any], list[int]]:
    """Return the names, the numbers and what to capture of each."""
    numbers = np.array([each.value for each in notes], np.float32)
    return [each.entry for each in notes], numbers, [each.flags for each in notes]
