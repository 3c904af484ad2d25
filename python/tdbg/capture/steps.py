"""The step machine: what a step is, and where it begins and ends.

Implements docs/steps.md.  Pure: events in, decisions out; no clock, no tensors,
no framework.

A training step ends when its defining optimizer has stepped.  Where there is no
optimizer it ends when the module is called again.  A step of evaluation is one
call of a root module; it stays open for what belongs to it (its loss) until the
next call of a root, and leaves an open training step alone.  Unless an optimizer
uses its gradients: then it was a step of training.
"""

from __future__ import annotations

from collections.abc import Hashable

from tdbg.capture.step import (
    INTERRUPTED,
    SKIPPED,
    Change,
    Counters,
    Step,
    change_of,
)
from tdbg.modes import EVAL, GLOBAL, PREDICT, TRAIN, ModeKeys

__all__ = ["INTERRUPTED", "SKIPPED", "Change", "Counters", "Step", "StepMachine"]

_EVALUATION = frozenset({EVAL, PREDICT})
# Steps of another optimizer, without one of the defining optimizer in between,
# after which the other one defines the steps.
_TAKEOVER = 2


class StepMachine:
    """Turns the events of one training into steps.

    Roots and optimizers are named by keys, any hashable values.

    Thread safety: none; a training has one thread that calls its model.

    Attributes:
        training: The training step that is open; to be read only.
        depth: How many calls of roots are under way, one in the other; likewise.
        optimizers: The keys of those that are known; likewise.
        trains_in_evaluation: Whether an optimizer has used gradients of a forward
            that the module made in evaluation, and so will again, as it seems; set
            back by whoever sees the module train.
    """

    def __init__(self) -> None:
        self.training: Step | None = None
        self.trains_in_evaluation = False
        self.depth = 0
        self._next_number = 0
        self._next_mode_step = dict.fromkeys(ModeKeys, 0)
        self._evaluation: Step | None = None
        self._latest: dict[ModeKeys, Step] = {}
        # The step of the root forward under way.
        self._forward: Step | None = None
        self.optimizers: set[Hashable] = set()
        self._defining: Hashable | None = None
        self._is_explicit = False
        self._strays: dict[Hashable, int] = {}
        self._stepping: Hashable | None = None
        self._in_closure = False

    @property
    def training_number(self) -> int:
        """Number of the open training step, or else of the next one, among these.

        The same at the same point of a training on every rank, however many steps
        of evaluation only some of them have made.
        """
        begun = self._next_mode_step[TRAIN] + self._next_mode_step[GLOBAL]
        return begun if self.training is None else begun - 1

    def latest(self, mode: ModeKeys) -> tuple[int, int]:
        """The numbers of the step that began last, of all and of *mode*; -1: none."""
        return self._next_number - 1, self._next_mode_step[mode] - 1

    def next_training(self) -> tuple[int, int]:
        """Numbers of the next training step to begin: of training, and global."""
        begun = self._next_mode_step[TRAIN] + self._next_mode_step[GLOBAL]
        return begun, self._next_number

    @property
    def is_in_closure(self) -> bool:
        """Whether an optimizer is evaluating its closure."""
        return self._in_closure

    def following(self, mode: ModeKeys) -> int:
        """The mode step that the next step of this mode will have."""
        return self._next_mode_step[mode]

    # ---- optimizers ----------------------------------------------------------

    def optimizer_found(self, key: Hashable, *, defines_step: bool = False) -> None:
        """An optimizer of the model's parameters exists; it need not have stepped."""
        self.optimizers.add(key)
        if defines_step:
            self._defining = key
            self._is_explicit = True

    def optimizer_gone(self, key: Hashable) -> None:
        """The optimizer does not exist any longer."""
        self.optimizers.discard(key)
        self._strays.pop(key, None)
        if self._defining == key:
            self._defining = None
            self._is_explicit = False
        if self._stepping == key:
            self._stepping = None

    def optimizer_begins(self, key: Hashable, mode: ModeKeys) -> Change:
        """The optimizer is about to step, or its scaler has decided to skip.

        The step may have ended, by another optimizer's step.
        """
        self.optimizers.add(key)
        if not self._in_closure:
            self.depth = 0  # Whatever a forward that failed has left behind.
        is_inner = self._stepping is not None and self._stepping != key
        if not is_inner:
            self._stepping = key
            if key != self._defining:
                self._consider(key)
        step = self.training
        if step is not None:
            return change_of((step, False, ()))
        if key != self._defining:
            latest = self._latest.get(TRAIN) or self._latest.get(GLOBAL)
            if latest is not None:
                return Change(latest)  # It comes after the one that ended the step.
        return Change(self._begin_training(mode), began=True)

    def evaluation_trains(self, key: Hashable) -> Step | None:
        """This optimizer is about to use gradients that the module made in evaluation.

        If the open step of evaluation is theirs it is one of training from now on,
        and returned; it has kept its number.
        """
        step = self._evaluation
        if step is None or not step.may_train or self.training is not None:
            return None
        if self._defining not in {None, key} or self._stepping is not None:
            return None
        self._evaluation = None
        self._next_mode_step[step.mode] = step.mode_step
        step.mode, step.mode_step = TRAIN, self._next_mode_step[TRAIN]
        self._next_mode_step[TRAIN] += 1
        self.training = step
        self.trains_in_evaluation = True
        return step

    def defines_step(self, key: Hashable) -> bool:
        """Whether the end of this optimizer's step is the end of a step."""
        return self._defining == key

    def closure_begins(self) -> None:
        """The optimizer that steps evaluates its closure."""
        self._in_closure = True

    def closure_ends(self) -> None:
        """The evaluation is over; the first one is the step's."""
        self._in_closure = False
        self.depth = 0
        if self.training is not None:
            self.training.is_taken = True

    def closure_fails(self) -> None:
        """The evaluation raised; so will the optimizer's step."""
        self._in_closure = False

    def optimizer_ends(self, key: Hashable, *, skipped: bool = False) -> Change:
        """The optimizer has stepped, or was skipped."""
        step = self.training
        if self._stepping == key:
            self._stepping = None
            self._in_closure = False
        if step is None:
            return Change(None)
        if skipped:
            step.flags |= SKIPPED
        if self._defining != key:
            step.is_taken = False
            return Change(step)
        self._strays.clear()
        return change_of((step, False, self._end(step)))

    # ---- forwards ------------------------------------------------------------

    def forward_begins(self, root: Hashable, mode: ModeKeys) -> Change:
        """A root is about to be called."""
        self.depth += 1
        if self.depth > 1:
            return Change(self._forward)
        ended: tuple[Step, ...] = ()
        if self._evaluation is not None:
            ended = self._end(self._evaluation)
        if mode in _EVALUATION:
            began = True
            step = self._evaluation = self._begin(mode)
        else:
            if self.training is not None and self._is_over(root, mode):
                ended += self._end(self.training)
            began = self.training is None
            step = self.training or self._begin(mode)
            self.training = step
        if root in step.forwards:
            step.add_forward(root)
        else:
            step.forwards[root] = 1
            step.micro_batch = 0
        self._forward = step
        return change_of((step, began, ended))

    def forward_ends(self, *, failed: bool = False) -> Change:
        """The call of a root is over; *failed* if it raised."""
        self.depth = self.depth - 1 if self.depth > 0 else 0
        step = self._forward
        if self.depth > 0 or step is None:
            return Change(step)
        self._forward = None
        if not failed or not step.is_open:
            return change_of((step, False, ()))
        step.flags |= INTERRUPTED
        if self._stepping is not None:
            return Change(step)
        return Change(step, ended=self._end(step))

    def forward_lost(self) -> Change:
        """The call of a root ended without a word (an interrupt)."""
        self.depth = min(self.depth, 1)
        return self.forward_ends(failed=True)

    def module_called(self, mode: ModeKeys) -> Change:
        """A module or a loss was called, perhaps outside the call of a root."""
        if self.depth > 0:
            return Change(self._forward)
        step = self.training
        if mode in _EVALUATION:
            evaluation = self._evaluation
            if evaluation is not None and evaluation.mode is mode:
                step = evaluation
        elif step is None:
            return Change(self._begin_training(mode), began=True)
        return change_of((step, False, ()))

    # ---- a training that resumes ---------------------------------------------

    def counters(self) -> Counters:
        """The numbers that a training resumed from here goes on with.

        It repeats an open training step, which is not over.
        """
        step, modes = self._next_number, dict(self._next_mode_step)
        training = self.training
        if training is not None:
            modes[training.mode] -= 1
            if training.number == step - 1:
                step -= 1
        return Counters(step, modes)

    def continue_from(self, counters: Counters) -> bool:
        """Count on from there; False, and nothing changes, if that is a way back."""
        if counters.step < self._next_number or any(
            counters.modes.get(mode, 0) < count
            for mode, count in self._next_mode_step.items()
        ):
            return False
        self._next_number = counters.step
        self._next_mode_step.update(counters.modes)
        return True

    # ---- the rest ------------------------------------------------------------

    def record_given(self, mode: ModeKeys) -> Change:
        """Somebody records a value by hand; the step may have ended already."""
        if self.depth > 0:
            return Change(self._forward)
        steps = (
            self._open(mode),
            self._latest.get(mode),
            self.training,
            self._evaluation,
        )
        for step in steps:
            if step is not None:
                return Change(step)
        step = self._begin(mode)
        if mode in _EVALUATION:
            self._evaluation = step
        else:
            self.training = step
        return Change(step, began=True)

    def close(self) -> Change:
        """No further event will come."""
        ended: tuple[Step, ...] = ()
        if self._evaluation is not None:
            ended = self._end(self._evaluation)
        step = self.training
        if step is not None:
            if step.forwards and self.optimizers:
                step.flags |= INTERRUPTED  # Its optimizer's step never came.
            ended += self._end(step)
        return Change(None, ended=ended)

    def _open(self, mode: ModeKeys) -> Step | None:
        for step in (self.training, self._evaluation):
            if step is not None and step.mode is mode:
                return step
        return None

    def _is_over(self, root: Hashable, mode: ModeKeys) -> bool:
        """Whether this call of a root is not of the open training step."""
        step = self.training
        if step is None or step.mode is not mode:
            return step is not None
        if self._in_closure:
            return False
        if self._stepping is not None:
            # The optimizer raised: a post-step hook never ran.
            self._stepping = None
            step.flags |= INTERRUPTED
            return True
        return not self.optimizers and root in step.forwards

    def _consider(self, key: Hashable) -> None:
        """Let the optimizer define the steps if none does, or not any longer."""
        if self._defining is None:
            self._defining = key
        elif not self._is_explicit:
            self._strays[key] = self._strays.get(key, 0) + 1
            if self._strays[key] >= _TAKEOVER:
                self._defining = key
                self._strays.clear()

    def _begin_training(self, mode: ModeKeys) -> Step:
        self.training = self._begin(TRAIN if mode in _EVALUATION else mode)
        return self.training

    def _begin(self, mode: ModeKeys) -> Step:
        number, mode_step = self._next_number, self._next_mode_step[mode]
        self._next_number = number + 1
        self._next_mode_step[mode] = mode_step + 1
        return Step(number, mode, mode_step)

    def _end(self, step: Step) -> tuple[Step, ...]:
        step.is_open = False
        self._latest[step.mode] = step
        if step is self.training:
            self.training = None
        else:
            self._evaluation = None
        return (step,)
