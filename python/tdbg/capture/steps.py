"""The step machine decides what a step is, and where it begins and ends.

It implements docs/steps.md.  Events go in, decisions come out; there is no clock, no
tensor and no framework.

A training step ends when its defining optimizer has stepped: the first one, or the last
of several that take turns with a forward each.  If there is no optimizer, or if all
have stopped, it ends when the module is called again.  A step of evaluation is one call
of a root module.  It stays open for its loss until the next call of a root, and leaves
an open training step alone.  If an optimizer uses its gradients, it turns out to be a
step of training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tdbg.config.messages import check_choice, short, whole_number
from tdbg.errors import ConfigurationError
from tdbg.modes import EVALUATION, GLOBAL, TRAIN, ModeKeys
from tdbg.run.schema import StepFlag

__all__ = [
    "Counters",
    "Step",
    "StepChange",
    "StepMachine",
    "change_of",
    "counters_as_json",
    "parse_counters",
]


@dataclass(slots=True, eq=False)
class Step:
    """One step, from its first event until its end and a little longer.

    Attributes:
        number: Number among all steps.
        mode: Mode of the step.
        mode_step: Number among the steps of that mode.
        flags: Bits of ``StepFlag``.
        is_open: Whether the step has not ended.
        is_taken: Whether a closure was evaluated already. Further forwards are trials
            of the optimizer, and are not captured.
        may_train: Whether gradients of the forward can be computed, in a step of
            evaluation.
        micro_batch: Number of the latest forward of a root.
        micro_batches: Number of micro-batches, at least 1.
        context: Belongs to the owner of the machine, until the next step of the same
            mode has ended.
        forwards: Number of forwards of each root.
    """

    number: int
    mode: ModeKeys
    mode_step: int
    flags: int = 0
    is_open: bool = True
    is_taken: bool = False
    may_train: bool = False
    micro_batch: int = 0
    micro_batches: int = 1
    context: Any = None
    forwards: dict[Hashable, int] = field(default_factory=dict)

    def add_forward(self, root: Hashable) -> None:
        """Count another forward of a root, which is another micro-batch."""
        count = self.forwards[root]
        self.forwards[root] = count + 1
        self.micro_batch = count
        self.micro_batches = max(self.micro_batches, count + 1)


class Counters(NamedTuple):
    """Numbers of the next steps.

    Attributes:
        step: Number of the next step among all steps.
        modes: Number of the next step of each mode.
    """

    step: int
    modes: dict[ModeKeys, int]


class StepChange(NamedTuple):
    """What an event changed.

    Attributes:
        step: The step that the event belongs to, or None.
        began: Whether that step begins here.
        ended: Steps that ended, in this order; before *step* began.
    """

    step: Step | None
    began: bool = False
    ended: tuple[Step, ...] = ()


# Makes a StepChange without a call of a Python function, for every event of a step.
change_of: Callable[[tuple[Step | None, bool, tuple[Step, ...]]], StepChange]
change_of = functools.partial(tuple.__new__, StepChange)


# After this many steps of another optimizer in a row, without one of the defining
# optimizer, the other one defines the steps.
_TAKEOVER = 2


class StepMachine:
    """Turns the events of one training into steps.

    Any hashable value can be the key of a root or of an optimizer.

    Thread safety: none; a training has one thread that calls its model.

    Attributes:
        training: The open training step; read-only.
        evaluation: The open step of evaluation; read-only.
        called: The step of the latest forward; read-only.
        depth: Number of nested calls of roots under way; read-only.
        n_forwards: Grows with every forward in training, and with every step of
            training that begins without one; read-only.
        optimizers: The keys of the known optimizers; read-only.
        trains_in_evaluation: Whether an optimizer has used gradients of a forward
            that the module made in evaluation, and so probably will again; reset by
            whoever sees the module train.
    """

    def __init__(self) -> None:
        self.training: Step | None = None
        self.trains_in_evaluation = False
        self.depth = 0
        self.n_forwards = 0
        self._next_number = 0
        self._next_mode_step = dict.fromkeys(ModeKeys, 0)
        self.evaluation: Step | None = None
        self._latest: dict[ModeKeys, Step] = {}
        self.called: Step | None = None
        # The step of the root forward under way.
        self._forward: Step | None = None
        self.optimizers: set[Hashable] = set()
        self._defining: Hashable | None = None
        self._is_explicit = False
        self._strays: dict[Hashable, int] = {}
        # The first optimizers that step, in their order; None: the cycle is known.
        self._cycle: list[Hashable] | None = []
        self._stepping: Hashable | None = None
        self._in_closure = False
        # Whether nobody waits for an optimizer: none has stepped for long.
        self._have_stopped = False

    @property
    def training_number(self) -> int:
        """Number of the open training step, or of the next one, among training steps.

        All ranks have the same number at the same point of a training, even if only
        some of them have made steps of evaluation.
        """
        begun = self._next_mode_step[TRAIN] + self._next_mode_step[GLOBAL]
        return begun if self.training is None else begun - 1

    def latest(self, mode: ModeKeys) -> tuple[int, int]:
        """Return the numbers of the latest step: of all, and of *mode*; -1: none."""
        return self._next_number - 1, self._next_mode_step[mode] - 1

    def next_training(self) -> tuple[int, int]:
        """Return the numbers of the next training step: among these, and among all."""
        begun = self._next_mode_step[TRAIN] + self._next_mode_step[GLOBAL]
        return begun, self._next_number

    @property
    def is_in_closure(self) -> bool:
        """Whether an optimizer is evaluating its closure."""
        return self._in_closure

    def following(self, mode: ModeKeys) -> int:
        """Return the number that the next step of a mode will have in it."""
        return self._next_mode_step[mode]

    # ---- optimizers ----------------------------------------------------------

    def optimizer_comes_last(self, key: Hashable) -> None:
        """Let the last optimizer of a step define it, unless the user chose one."""
        if not self._is_explicit:
            self._defining = key
            self._cycle = None
            self._strays.clear()

    def optimizer_found(self, key: Hashable, *, defines_step: bool = False) -> None:
        """Note an optimizer of the model's parameters, which may never have stepped."""
        self.optimizers.add(key)
        if defines_step:
            self._defining = key
            self._is_explicit = True

    def optimizer_gone(self, key: Hashable) -> None:
        """Forget an optimizer that no longer exists."""
        self.optimizers.discard(key)
        self._strays.pop(key, None)
        if self._defining == key:
            self._defining = None
            self._is_explicit = False
            self._cycle = []
        if self._stepping == key:
            self._stepping = None

    def optimizers_stop(self) -> None:
        """End steps without an optimizer from now on, until one steps again."""
        if not self._have_stopped and self.training is not None:
            self.training.flags |= StepFlag.INTERRUPTED
        self._have_stopped = True

    def optimizer_begins(self, key: Hashable, mode: ModeKeys) -> StepChange:
        """Note that an optimizer is about to step, or that its scaler skips the step.

        The step in the returned change may have ended already, because another
        optimizer has stepped.
        """
        self.optimizers.add(key)
        self._have_stopped = False
        if not self._in_closure:
            self.depth = 0  # Whatever a forward that failed has left behind.
        is_inner = self._stepping is not None and self._stepping != key
        if not is_inner:
            self._stepping = key
            if self._cycle is not None:
                self._learn_cycle(self._cycle, key)
            if key != self._defining:
                self._consider(key)
        step = self.training
        if step is not None:
            return change_of((step, False, ()))
        if key != self._defining:
            latest = self._latest.get(TRAIN) or self._latest.get(GLOBAL)
            if latest is not None:
                return StepChange(latest)  # It comes after the one that ended the step.
        return StepChange(self._begin_training(mode), began=True)

    def evaluation_trains(self, key: Hashable) -> Step | None:
        """Note that an optimizer is about to use gradients from evaluation mode.

        If they belong to the open step of evaluation, return that step: it becomes a
        step of training, and keeps its number among all steps.
        """
        step = self.evaluation
        if step is None or not step.may_train or self.training is not None:
            return None
        if self._defining not in {None, key} or self._stepping is not None:
            return None
        self.evaluation = None
        self.n_forwards += 1
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
        """Note that the optimizer that is stepping evaluates its closure."""
        self._in_closure = True

    def closure_ends(self) -> None:
        """Note the end of the evaluation; only the first one in a step is captured."""
        self._in_closure = False
        self.depth = 0
        if self.training is not None:
            self.training.is_taken = True

    def closure_fails(self) -> None:
        """Note that the evaluation raised, and that so will the optimizer's step."""
        self._in_closure = False

    def optimizer_ends(self, key: Hashable, *, skipped: bool = False) -> StepChange:
        """Note that the optimizer has stepped, or was skipped."""
        step = self.training
        if self._stepping == key:
            self._stepping = None
            self._in_closure = False
        if step is None:
            return StepChange(None)
        if skipped:
            step.flags |= StepFlag.SKIPPED
        if self._defining != key:
            step.is_taken = False
            return StepChange(step)
        self._strays.clear()
        return change_of((step, False, self._end(step)))

    # ---- forwards ------------------------------------------------------------

    def forward_begins(self, root: Hashable, mode: ModeKeys) -> StepChange:
        """Note that a root is about to be called."""
        self.depth += 1
        if self.depth > 1:
            return StepChange(self._forward)
        ended: tuple[Step, ...] = ()
        if self.evaluation is not None:
            ended = self._end(self.evaluation)
        if mode in EVALUATION:
            began = True
            step = self.evaluation = self._begin(mode)
        else:
            self.n_forwards += 1
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
        self._forward = self.called = step
        return change_of((step, began, ended))

    def forward_ends(self, *, failed: bool = False) -> StepChange:
        """Note that the call of a root is over; *failed* says that it raised."""
        self.depth = self.depth - 1 if self.depth > 0 else 0
        step = self._forward
        if self.depth > 0 or step is None:
            return StepChange(step)
        self._forward = None
        if not failed or not step.is_open:
            return change_of((step, False, ()))
        step.flags |= StepFlag.INTERRUPTED
        if self._stepping is not None:
            return StepChange(step)
        return StepChange(step, ended=self._end(step))

    def forward_lost(self) -> StepChange:
        """Note that the call of a root ended without an event, by an interrupt."""
        self.depth = min(self.depth, 1)
        return self.forward_ends(failed=True)

    def module_called(self, mode: ModeKeys, *, again: bool = False) -> StepChange:
        """Note the call of a module or a loss, perhaps outside the call of a root.

        Args:
            mode: The present mode.
            again: Whether the open step, which no forward began, has had this call.
        """
        if self.depth > 0:
            return StepChange(self._forward)
        if mode in EVALUATION:
            return self._evaluated(mode, again=again)
        if self.training is None:
            return StepChange(self._begin_training(mode), began=True)
        return change_of((self.training, False, ()))

    def _evaluated(self, mode: ModeKeys, *, again: bool) -> StepChange:
        """Note the evaluation of a part or a loss outside the call of a root."""
        step = self.evaluation
        if step is not None and step.mode is mode and not again:
            return change_of((step, False, ()))
        ended = () if step is None else self._end(step)
        self.evaluation = self.called = self._begin(mode)
        return StepChange(self.evaluation, began=True, ended=ended)

    # ---- many steps at once --------------------------------------------------

    def may_pass(self, mode: ModeKeys, optimizer: Hashable) -> bool:
        """Return whether the next steps may pass: steps of this optimizer in training.

        Not in a training that goes in and out of evaluation at every step.
        """
        return (
            mode is TRAIN
            and self.training is None
            and self.evaluation is None
            and self.depth == 0
            and self._defining == optimizer
            and self._stepping is None
            and not self._have_stopped
            and not self.trains_in_evaluation
        )

    def count(self, n: int, forwards: Mapping[Hashable, int] | None = None) -> Step:
        """Count training steps that are over; return the last of them.

        REQUIRES: ``may_pass`` was true, and no event has come since; *n* is positive.

        Args:
            n: How many they are.
            forwards: The forwards of each root in each step; None: as in the step
                before them, which there is.
        """
        self._next_number += n - 1
        self._next_mode_step[TRAIN] += n - 1
        step = self._begin(TRAIN)
        if forwards is None:
            before = self._latest[TRAIN]
            step.micro_batches, forwards = before.micro_batches, before.forwards
        self.n_forwards += n * max(1, sum(forwards.values()))
        step.forwards = dict(forwards)
        step.is_open = False
        self._is_latest(step)
        self.called = step
        return step

    # ---- a training that resumes ---------------------------------------------

    def counters(self) -> Counters:
        """Return the numbers of the next steps, for a training that resumes here.

        The resumed training repeats the training step that is open now.
        """
        step, modes = self._next_number, dict(self._next_mode_step)
        training = self.training
        if training is not None:
            modes[training.mode] -= 1
            if training.number == step - 1:
                step -= 1
        return Counters(step, modes)

    def continue_from(self, counters: Counters) -> bool:
        """Continue from these numbers; do nothing and return False if they go back."""
        if counters.step < self._next_number or any(
            counters.modes.get(mode, 0) < count
            for mode, count in self._next_mode_step.items()
        ):
            return False
        self._next_number = counters.step
        self._next_mode_step.update(counters.modes)
        return True

    # ---- the rest ------------------------------------------------------------

    def record_given(self, mode: ModeKeys) -> StepChange:
        """Find the step of a value recorded by hand; it may have ended already."""
        if self.depth > 0:
            return StepChange(self._forward)
        steps = (
            self._open(mode),
            self._latest.get(mode),
            self.training,
            self.evaluation,
        )
        for step in steps:
            if step is not None:
                return StepChange(step)
        step = self._begin(mode)
        if mode in EVALUATION:
            self.evaluation = step
        else:
            self.training = step
        return StepChange(step, began=True)

    def close(self) -> StepChange:
        """End all open steps, because no more events will come."""
        ended: tuple[Step, ...] = ()
        if self.evaluation is not None:
            ended = self._end(self.evaluation)
        step = self.training
        if step is not None:
            if step.forwards and self._awaits_optimizer:
                step.flags |= StepFlag.INTERRUPTED  # Its optimizer's step never came.
            ended += self._end(step)
        return StepChange(None, ended=ended)

    def _open(self, mode: ModeKeys) -> Step | None:
        for step in (self.training, self.evaluation):
            if step is not None and step.mode is mode:
                return step
        return None

    def _is_over(self, root: Hashable, mode: ModeKeys) -> bool:
        """Return whether this call of a root is outside the open training step."""
        step = self.training
        if step is None or step.mode is not mode:
            return step is not None
        if self._in_closure:
            return False
        if self._stepping is not None:
            # The optimizer raised: a post-step hook never ran.
            self._stepping = None
            step.flags |= StepFlag.INTERRUPTED
            return True
        return not self._awaits_optimizer and root in step.forwards

    @property
    def _awaits_optimizer(self) -> bool:
        return bool(self.optimizers) and not self._have_stopped

    def _consider(self, key: Hashable) -> None:
        """Let the optimizer define the steps, unless another one still does."""
        if self._defining is None:
            self._defining = key
        elif not self._is_explicit:
            self._strays[key] = self._strays.get(key, 0) + 1
            if self._strays[key] >= _TAKEOVER:
                self._defining = key
                self._strays.clear()

    def _learn_cycle(self, cycle: list[Hashable], key: Hashable) -> None:
        """Let the last of several optimizers that step in turn define the steps.

        Each of them steps once, after a forward, before the first one steps again:
        without a forward they belong to the step that the first one has ended.
        """
        if key not in cycle:
            if not cycle or self.training is not None:
                cycle.append(key)
            return
        self._cycle = None
        if len(cycle) > 1 and key == cycle[0]:
            self.optimizer_comes_last(cycle[-1])

    def _begin_training(self, mode: ModeKeys) -> Step:
        self.n_forwards += 1
        self.training = self._begin(TRAIN if mode in EVALUATION else mode)
        return self.training

    def _begin(self, mode: ModeKeys) -> Step:
        number, mode_step = self._next_number, self._next_mode_step[mode]
        self._next_number = number + 1
        self._next_mode_step[mode] = mode_step + 1
        return Step(number, mode, mode_step)

    def _end(self, step: Step) -> tuple[Step, ...]:
        step.is_open = False
        self._is_latest(step)
        if step is self.training:
            self.training = None
        else:
            self.evaluation = None
        return (step,)

    def _is_latest(self, step: Step) -> None:
        """Note the step that ended last in its mode; release the one before it."""
        before = self._latest.get(step.mode)
        if before is not None:
            # It refers to its step: without this, memory waits for the collector.
            before.context = None
        self._latest[step.mode] = step


VERSION = 1
# Numbers of steps have 64 bits on disk; no training makes so many steps.
_MAX_STEP = 1 << 62


def counters_as_json(counters: Counters) -> dict[str, Any]:
    """Return counters as a checkpoint has them, for ``parse_counters``."""
    modes = {mode.name: count for mode, count in counters.modes.items() if count}
    return {"version": VERSION, "step": counters.step, "modes": modes}


def parse_counters(state: object) -> Counters:
    """Parse counters from a checkpoint.

    Raises:
        ConfigurationError: If *state* has other contents.
    """
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        msg = f"expected the result of hook.state_dict(), not {short(state)}"
        raise ConfigurationError(msg)
    given = state.get("modes")
    if not isinstance(given, Mapping):
        msg = f"modes must map names of modes to numbers of steps, not {short(given)}"
        raise ConfigurationError(msg)
    modes = dict.fromkeys(ModeKeys, 0)
    for name, count in given.items():
        check_choice("modes", name, ModeKeys.__members__)
        modes[ModeKeys[name]] = _step(name, count)
    return Counters(_step("step", state.get("step")), modes)


def _step(name: str, value: object) -> int:
    number = whole_number(value, 0, _MAX_STEP - 1)
    if number is None:
        msg = f"{name} must be a number of steps, not {short(value)}"
        raise ConfigurationError(msg)
    return number
