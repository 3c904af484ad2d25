"""``LossRecords``: the losses of a model's steps that no tap has seen.

Such a loss is how much the total of its tracker has grown in the step.  The total
before a step is that after the step before; only where nobody has read that, it is read
before the step.

Thread safety: the training's thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.hooks.keras.backend import Backend, State, number_in
from tdbg.hooks.keras.losses import Losses, Tracker
from tdbg.hooks.keras.replica_losses import ReplicaTracker
from tdbg.hooks.keras.tracing import tap_key
from tdbg.modes import ModeKeys

__all__ = ["LossRecords"]


class LossRecords:
    """Records the losses of the steps of one model.

    Where steps are computed asynchronously a loss is recorded with the step after it,
    which has begun by then: no step is waited for.

    Args:
        session: Receives them.
        backend: Reads numbers.
        losses: The losses of the model.
    """

    def __init__(self, session: Session, backend: Backend, losses: Losses) -> None:
        self._session = session
        self._backend = backend
        self._losses = losses
        # What is to be done when numbers have been computed.
        self._late: list[Callable[[], None]] = []

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
            numbers = state.read([tracker.metric.total, tracker.metric.count])
            self._when_computed(numbers, functools.partial(self._note, tracker))

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
        self.record_late()
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
                numbers = state.read([tracker.metric.total, tracker.metric.count])
                record = functools.partial(self._record, context, tracker, entry)
                self._when_computed(numbers, record)

    @property
    def has_late(self) -> bool:
        """Whether the losses of the step before are yet to be recorded."""
        return bool(self._late)

    def record_late(self) -> None:
        """Record the losses of the step before."""
        late, self._late = self._late, []
        for each in late:
            each()

    def metrics_are_reset(self) -> None:
        """Keras has reset its metrics."""
        self.record_late()
        for tracker in self._losses.trackers:
            tracker.begin((0.0, 0.0))

    def _when_computed(
        self, numbers: Sequence[Any], use: Callable[[Sequence[Any]], None]
    ) -> None:
        if self._backend.is_async:
            copies = self._backend.copies(numbers)
            self._late.append(functools.partial(use, copies))
        else:
            use(numbers)

    def _note(self, tracker: Tracker, numbers: Sequence[Any]) -> None:
        total, count = (number_in(self._backend, each) for each in numbers)
        tracker.begin((total, count))

    def _record(
        self,
        context: StepContext,
        tracker: Tracker,
        entry: TensorEntry,
        numbers: Sequence[Any],
    ) -> None:
        loss = tracker.grown(*(number_in(self._backend, each) for each in numbers))
        if loss is not None:
            array = np.asarray(loss, np.float32)
            self._session.recorder.capture(context, entry, array)
