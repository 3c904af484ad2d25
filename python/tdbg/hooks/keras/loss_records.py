"""``LossRecords``: the losses of a model's steps that no tap has seen.

Such a loss is how much the total of its tracker has grown in the step.  The total
before a step is that after the step before; only where nobody has read that, it is read
before the step.

Thread safety: the training's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.keras.backend import Backend, State, number_in
from tdbg.hooks.keras.losses import Losses, Totals, Tracker, growth
from tdbg.hooks.keras.replica_losses import ReplicaTracker
from tdbg.hooks.keras.tracing import tap_key
from tdbg.modes import ModeKeys

__all__ = ["LossRecords"]


class LossRecords:
    """Records the losses of the steps of one model.

    Where steps are computed asynchronously a step that is over ends when its losses
    have been computed: nobody waits for them.

    Args:
        session: Receives them.
        backend: Reads numbers.
        losses: The losses of the model.
    """

    def __init__(self, session: Session, backend: Backend, losses: Losses) -> None:
        self._session = session
        self._backend = backend
        self._losses = losses

    def step_begins(self, mode: ModeKeys, state: State, *, has_taps: bool) -> None:
        """Know what trackers hold before a step, as far as its losses follow from it.

        Args:
            mode: The mode of the step.
            state: The variables before it.
            has_taps: Whether it is to be run with taps.
        """
        for tracker in self._losses.trackers:
            if tracker.is_known or (has_taps and mode in tracker.tapped_in):
                continue
            if not self._session.may_capture(Role.LOSS):
                return
            tracker.begin(self._totals(tracker, state))

    def step_ended(
        self,
        model: Any,
        context: StepContext,
        tensors: Mapping[str, Any],
        state: State,
    ) -> None:
        """Record the losses of a step that is over.

        Args:
            model: The model.
            context: The step.
            tensors: What taps hold of it.
            state: The variables as it has left them.
        """
        mode = context.step.mode
        for tracker in self._losses.trackers:
            entry = self._session.entry(self._losses.name_of(model, tracker), Role.LOSS)
            if tap_key(entry.name, Role.LOSS) in tensors:
                tracker.tapped_in.add(mode)
                tracker.begin(None)
                continue
            if not tracker.is_known:  # Taps were to see it, and did not.
                tracker.tapped_in.discard(mode)
            if not context.step_plan.of_entry(entry):
                tracker.begin(None)
            elif isinstance(tracker, ReplicaTracker):
                tracker.record(self._session, context, entry)
            else:
                before, after = tracker.before, self._totals(tracker, state)
                tracker.begin(after)
                self._record(context, entry, before, after)

    def metrics_are_reset(self) -> None:
        """Keras has reset its metrics."""
        for tracker in self._losses.trackers:
            tracker.begin((0.0, 0.0))

    def _totals(self, tracker: Tracker, state: State) -> Totals:
        """What a tracker holds; where it is yet computed, copies of that."""
        numbers = state.read([tracker.metric.total, tracker.metric.count])
        as_async = self._backend.as_async
        total, count = as_async.copies(numbers) if as_async else self._numbers(numbers)
        return total, count

    def _numbers(self, totals: Sequence[Any]) -> tuple[float, float]:
        total, count = (number_in(self._backend, each) for each in totals)
        return total, count

    def _record(
        self,
        context: StepContext,
        entry: TensorEntry,
        before: Totals | None,
        after: Totals,
    ) -> None:
        if before is None:
            return
        session = self._session
        flags = context.step_plan.of_entry(entry)
        micro_batch = context.step.micro_batch

        def deliver() -> None:
            loss = growth(self._numbers(before), self._numbers(after))
            if loss is not None:
                session.note_data(context)
                arrays = (np.asarray(loss, np.float32),)
                session.take(context, (entry,), arrays, (flags,), 0, micro_batch)

        as_async = self._backend.as_async
        if as_async is not None:
            session.note_data(context)  # Its record waits for the result.
            result = as_async.computed((*before, *after))
            session.expect(context, result, deliver)
        else:
            deliver()
