"""Decides when what is known of the model is written, and writes it.

It is written when the first step of training ends, and again when something has
changed since: an optimizer that was found later, a parameter that was unfrozen.  A
hook reports optimizers at once; the rest is looked for at some steps only, so that a
step costs nothing.

Thread safety: the training's thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple, Protocol

from tdbg.capture.session import Session
from tdbg.capture.steps import Step
from tdbg.modes import TRAIN
from tdbg.run.model_info import ModelInfo
from tdbg.run.schema import EventKind

__all__ = ["ModelInfoWriter", "ModelMarks", "ModelSource"]

# Steps of optimizers between two looks: so many parameters a step, within bounds.
_PARAMETERS_A_STEP = 3
_SOONEST, _LATEST = 10, 100
# Forwards in training without a step of an optimizer after which it has stopped; and
# how many times as many as ever before that are.  Episodes of a game grow that much.
# A pass over all data for another purpose is longer, and then the optimizer steps
# again: only when there are more of them than in all steps before is the step over.
_SURELY_STOPPED, _TIMES_USUAL = 200, 20
# At the end of a training so many are enough, if they are most of all: no step follows.
_STOPPED_AT_END = 50
# A model that changes so often between being trained in evaluation mode and not does
# so on purpose; and that is not to be written at every step.
_MOST_MODE_CHANGES = 64


class ModelMarks(NamedTuple):
    """What can be seen of a model in little time.

    Attributes:
        n_parameters: How many parameters it has.
        marks: Numbers that differ when the model info does.
    """

    n_parameters: int
    marks: tuple[int, ...]


class ModelSource(Protocol):
    """A framework's model, optimizers and losses, as its hook knows them."""

    def marks(self) -> ModelMarks:
        """Look at the model, fast."""

    def model_info(
        self, step: int, trained_in_evaluation: Collection[Hashable]
    ) -> ModelInfo:
        """Describe the model.

        Args:
            step: The global step from which the description holds.
            trained_in_evaluation: The roots, by the keys of their forwards, that this
                step trains in evaluation mode.
        """


class ModelInfoWriter:
    """Writes the model info of a session.

    Args:
        session: Where it is written.
        source: Describes the model.
        stands_still: Returns whether parameters are what they were when it was called
            first; None: nobody knows.
        new_optimizer: Asked before a model that has not trained is evaluated: is there
            an optimizer that has never stepped?  Returns the samples and batch size of
            a loader without a batch, nothing if there is none, or None: no optimizer.
        at_end: Adds to what was written what is known at the end only.
    """

    def __init__(
        self,
        session: Session,
        source: ModelSource,
        stands_still: Callable[[], bool] | None = None,
        new_optimizer: Callable[[], Sequence[int] | None] | None = None,
        at_end: Callable[[ModelInfo], ModelInfo] | None = None,
    ) -> None:
        self._session = session
        self._source = source
        self._stands_still = stands_still
        self._new_optimizer = new_optimizer
        self._at_end = at_end
        # What it returned.
        self._waiting: Sequence[int] | None = None
        self._countdown = 1
        # Training steps at the latest look, and from there to the next one.
        self._n_at_look, self._until_next = 0, 1
        self._n_forwards = 0
        # Forwards in training since an optimizer has stepped; the most before, and all.
        self._n_since_step = self._most_for_step = self._n_in_steps = 0
        self._has_stopped = False
        self._marks: tuple[int, ...] = ()
        self._written: ModelInfo | None = None
        self._n_mode_changes = 0
        session.listen(eval_training=self._mode_changed)

    def changed(self) -> None:
        """Write again when the next optimizer has stepped: something has changed."""
        self._countdown = 1
        self._marks = ()

    def evaluation_changed(self) -> None:
        """Write now, and at the next step of an optimizer: an evaluation shows it."""
        self.changed()
        self._update(self._session.machine.evaluation)
        self.changed()

    def evaluation_begins(self) -> None:
        """Write what is known, if nothing was written: it is evaluated first."""
        if self._written is None:
            if self._new_optimizer is not None:
                self._waiting = self._new_optimizer()
            self.evaluation_changed()

    def optimizer_stepped(self) -> None:
        """Count the step of an optimizer, whose own step is not over yet."""
        if self._has_stopped:
            self._has_stopped = False
            self.changed()
        self._countdown -= 1
        self._most_for_step = max(self._most_for_step, self._n_since_step)
        self._n_in_steps += self._n_since_step
        self._n_since_step = 0
        if self._countdown <= 0:
            self._update()

    def step_captured(self) -> None:
        """Count the steps that nobody saw before this one, which is captured."""
        n_since = self._session.n_training_steps - self._n_at_look
        self._countdown = min(self._countdown, self._until_next - n_since + 1)

    def forward_begins(self, *, has_optimizer: bool, has_gradients: bool) -> None:
        """Count a forward in training.

        Args:
            has_optimizer: Whether an optimizer is known.
            has_gradients: Whether gradients can be computed of it: no step of an
                optimizer need follow if not.
        """
        self._n_forwards += 1
        if not has_optimizer:
            self._countdown -= has_gradients
            is_first = self._written is None and self._n_forwards > 1
            if is_first or (self._written is not None and self._countdown <= 0):
                self._update()
            return
        self._n_since_step += has_gradients
        if self._n_since_step == 1 and not self._n_in_steps and self._stands_still:
            self._stands_still()
        n, most = self._n_since_step, self._most_for_step
        if n < _SURELY_STOPPED or not n > _TIMES_USUAL * most > 0:
            return
        self._stop()
        if n > self._n_in_steps:
            self._session.optimizers_stop()

    def steps_ended(self, n: int) -> None:
        """Count steps that are over, each of a forward and a step of an optimizer."""
        self._n_forwards += n - 1
        self._n_in_steps += n - 1
        self._countdown -= n - 1
        self.forward_begins(has_optimizer=True, has_gradients=True)
        self.optimizer_stepped()

    def conclude(self) -> None:
        """Write what was not written yet: training ends, perhaps after one step."""
        n, usual = self._n_since_step, _TIMES_USUAL * self._most_for_step
        # One that has never stepped may be there for a program that steps by itself.
        may_stop = usual or (self._stands_still is not None and self._stands_still())
        if n >= _STOPPED_AT_END and n > max(usual, self._n_in_steps) and may_stop:
            self._stop()
        elif self._n_forwards and self._written is None:
            self._update()
        elif not self._n_forwards and self._waiting is not None and self._written:
            self._write(
                dataclasses.replace(
                    self._written,
                    never_trained=True,
                    empty_loader=tuple(self._waiting),
                )
            )
        if self._at_end is not None and self._written is not None:
            info = self._at_end(self._written)
            if info != self._written:
                self._write(info)

    def _stop(self) -> None:
        """Write that the optimizers have stopped."""
        if not self._has_stopped:
            self._has_stopped = True
            self.changed()
            self._update()

    def _mode_changed(self) -> None:
        self._n_mode_changes += 1
        if self._n_mode_changes <= _MOST_MODE_CHANGES:
            self.changed()

    def _update(self, evaluated: Step | None = None) -> None:
        """Write the model info if it may differ from what was written.

        Args:
            evaluated: The step of evaluation from which it holds; None: the present
                or last step of training.
        """
        n_parameters, marks = self._source.marks()
        soon = n_parameters // _PARAMETERS_A_STEP
        self._countdown = self._until_next = min(_LATEST, max(_SOONEST, soon))
        self._n_at_look = self._session.n_training_steps
        if self._session.writes_as is None or (marks == self._marks and self._written):
            return
        self._marks = marks
        machine = self._session.machine
        step = machine.training
        number = machine.latest(TRAIN)[0] if step is None else step.number
        if evaluated is not None:
            number = evaluated.number
        in_evaluation: Collection[Hashable] = ()
        is_settled = self._n_mode_changes < _MOST_MODE_CHANGES
        if step is not None and machine.trains_in_evaluation and is_settled:
            in_evaluation = step.forwards
        info = dataclasses.replace(
            self._source.model_info(max(0, number), in_evaluation),
            has_stopped=self._has_stopped,
        )
        written = self._written
        if written is None or info != dataclasses.replace(written, step=info.step):
            self._write(info)

    def _write(self, info: ModelInfo) -> None:
        self._written = info
        for document in info.parts():
            self._session.write_event(EventKind.CONFIGURATION, document, info.step)
