"""Watch copies of a model: averages of weights, target networks, references.

An average follows the weights of the model and evaluates in its place.  One that
follows parameters alone evaluates with the statistics that normalizations had when it
was copied.  One that never moves is a copy of the beginning.

A copy of weights that is called for targets of other inputs than the model has is a
target network; a teacher or a reference is asked about the same inputs.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import weakref
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from types import FrameType
from typing import Any

import torch
from torch import compiler, nn
from torch.compiler import is_dynamo_compiling
from torch.optim.swa_utils import AveragedModel

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.copies.kept_references import KeptReferences
from tdbg.hooks.pytorch.checks.copies.loaded_states import are_strangers, some_weights
from tdbg.hooks.pytorch.checks.copies.loaded_weights import LoadedWeights
from tdbg.hooks.pytorch.checks.copies.running_statistics import (
    has_statistics,
    statistics_of,
)
from tdbg.hooks.pytorch.checks.copies.target_networks import (
    Likeness,
    Questions,
    copies_in,
    is_called_an_average,
    is_follower,
    strangers_in,
)
from tdbg.hooks.pytorch.checks.copies.training_mode import kinds_in
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.compile.uncompiled_hooks import UncompiledHooks
from tdbg.hooks.pytorch.device.tensors import sample_of
from tdbg.hooks.pytorch.model.call_context import is_traced
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import class_name
from tdbg.hooks.pytorch.model.numbers import named
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["Copies"]

# Parameters and normalizations of a copy that are compared, at most.
_MOST_PARAMETERS, _MOST_LAYERS = 8, 8
# Calls whose inputs are compared, and elements of each.
_MOST_INPUTS, _MOST_ELEMENTS = 60, 4096
# Looks at a copy are ever rarer: each number is so many times the one before.
_RARER = 1.1
# Steps of training after which a copy that never moved is said to be one.
_LEAST_STEPS, _SURELY = 200, 25_000
# Looks, and steps between the first and the last, that show an average or a target to
# be the model itself.
_LEAST_LOOKS, _LEAST_CALLS = 3, 20
# Steps after which an average has moved towards its model.
_TO_MOVE = 50
# What a model must have moved for a copy to follow, in units of the number format: an
# average moves by a small share of that, which rounding may swallow.
_CLEARLY = 1e5
# Models of an average that is none of them.
_LEAST_AVERAGED = 2
# Share of the steps at which it must have been looked at.
_LATE = 0.8
# What programs call the steps between two updates of a target.
_INTERVAL = re.compile(
    r"target.*(interval|freq|period|every|steps)|(interval|freq|period|every).*target"
    r"|^(sync|copy)_(interval|freq\w*|period|every|steps)$",
    re.IGNORECASE,
)
# Blocks of calls in training mode that are evaluations, and steps between them.
_ENOUGH_BLOCKS, _APART = 3, 5


class _Copy:
    """A copy of a module, made before the first step.

    Attributes:
        name: The class of the module.
        inputs: What it and the original were called with in training.
        average: What averages models in it, and gives it the buffers of the last one.
        is_fed: Whether it was called in training mode.
        is_unmoved: Whether its weights were those of the beginning at the last look.
        is_stranger: Whether these were not the model's.
        looked: The number of steps at the last look.
        at_evaluations: Whether it was the model itself, as evaluations called it.
        at_steps: The same, as steps of training called it.
        is_follower: Whether its name in a model says that it follows another part.
        blocks: The steps before blocks of calls in training mode, without gradients.
        is_evaluated: Whether it was called in evaluation mode.
        is_exchanged: Whether its updates were seen to keep too small a share of it.
        questions: What it is asked; None: nobody listens.
    """

    def __init__(
        self, module: nn.Module, original: nn.Module, *, is_stranger: bool = False
    ) -> None:
        self.name = class_name(original if is_stranger else module)
        self.is_stranger = is_stranger
        self.at_evaluations, self.at_steps = Likeness(), Likeness()
        # Whether programs call it an average, and the steps before the latest search.
        self._is_average, self._asked = False, -1
        self._module, self._original = weakref.ref(module), weakref.ref(original)
        self._first = _weights_of(module)
        self._parts = [sample_of(each) for each in _some(module)]
        self.is_follower = self.is_evaluated = self.is_exchanged = False
        self.blocks: list[int] = []
        self.questions: Questions | None = None
        self._written = _times_written(module)
        self._layers = [
            (weakref.ref(one), weakref.ref(other), statistics_of(one))
            for one, other in _pairs_with_statistics(module, original)
        ]
        self.inputs: tuple[set[int], set[int]] = set(), set()
        self.n_inputs = 0
        self.average: weakref.ref[AveragedModel] | None = None
        self.is_fed = False
        self.is_unmoved = True
        self._has_original_moved = False
        self.looked = 0

    @property
    def module(self) -> nn.Module | None:
        """The copy, if it lives."""
        return self._module()

    @property
    def original(self) -> nn.Module | None:
        """The original, if it lives."""
        return self._original()

    def look(self, n_steps: int, *, is_last: bool = False) -> None:
        """Note whether the copy has moved, unless it had before."""
        module = self._module()
        if module is None or not self.is_unmoved:
            return
        if n_steps < _RARER * self.looked and not is_last:
            return
        self.looked = n_steps
        self.is_unmoved = torch.equal(self._first, _weights_of(module))
        # It may not live as long as the hook.
        self.is_original_moved()

    @property
    def is_written(self) -> bool:
        """Whether somebody has written to it."""
        module = self._module()
        return module is not None and self._written != _times_written(module)

    def compare(self, likeness: Likeness, n_steps: int) -> None:
        """Note whether it is the model now."""
        module, original = self._module(), self._original()
        if module is not None and original is not None and n_steps > likeness.latest:
            likeness.note(_weights_of(module), _weights_of(original), n_steps)

    def is_unlike(self) -> bool:
        """Return whether it has nothing in common with the model."""
        module, original = self._module(), self._original()
        if module is None or original is None:
            return False
        ours, theirs = (dict(some_weights(each)) for each in (module, original))
        return are_strangers([(ours[key], theirs[key]) for key in ours])

    @property
    def is_average(self) -> bool:
        """Whether the program was seen to call it an average."""
        return self._is_average

    def is_average_by(
        self, module: nn.Module, frame: FrameType | None, n_steps: int
    ) -> bool:
        """Return whether the program calls it an average, in this or an outer frame."""
        if not self._is_average and n_steps != self._asked:
            self._asked = n_steps
            self._is_average = is_called_an_average(module, frame)
        return self._is_average

    def has_moved_at(self, n_steps: int) -> bool:
        """Look at the copy now, and return whether it has moved."""
        self.look(n_steps, is_last=True)
        return not self.is_unmoved

    def is_original_moved(self) -> bool:
        """Return whether the weights of the original have been seen to change."""
        original = self._original()
        if original is not None and not self._has_original_moved:
            is_same = torch.equal(self._first, _weights_of(original))
            self._has_original_moved = not is_same
        return self._has_original_moved

    def left_behind(self) -> list[float]:
        """Return how far statistics are from those of the original, in deviations.

        One number for each layer whose statistics stood still while the weights of the
        copy, and the statistics of the original, moved.
        """
        module = self._module()
        if module is None or torch.equal(self._first, _weights_of(module)):
            return []
        found = []
        for one, other, first in self._layers:
            layer, original = one(), other()
            if layer is None or original is None or layer.training:
                return []
            before, after = statistics_of(layer), statistics_of(original)
            if not torch.equal(before, first) or torch.equal(after, first):
                return []
            deviations = after[1].sqrt().clamp(min=1e-12)
            found.append(float(((before - after)[0].abs() / deviations).mean()))
        return found

    def n_stale(self) -> tuple[int, int]:
        """Return the parameters that never moved, and all, where others have moved.

        Of those that are looked at, the ones count whose originals have moved.
        """
        module, original = self._module(), self._original()
        if module is None or original is None:
            return 0, 0
        both = zip(_some(module), _some(original), self._parts, strict=True)
        moved = [
            torch.equal(sample_of(one), first)
            for one, other, first in both
            if _is_far(sample_of(other), first)
        ]
        return (sum(moved), len(moved)) if not all(moved) else (0, 0)

    def note_mode(self, n_steps: int, *, is_training: bool) -> None:
        """Note that it is called, and in which mode."""
        self.is_evaluated |= not is_training
        is_new = not self.blocks or self.blocks[-1] != n_steps
        if is_new and is_training and not torch.is_grad_enabled():
            self.blocks.append(n_steps)

    def is_evaluated_in_training(self) -> bool:
        """Return whether there are blocks of calls, and each in training mode."""
        gaps = [two - one for one, two in itertools.pairwise(self.blocks)]
        is_enough = len(self.blocks) >= _ENOUGH_BLOCKS and min(gaps) >= _APART
        return is_enough and not self.is_evaluated

    def n_averaged(self) -> int:
        """Return the number of models that it averages, if it was never fed."""
        average = None if self.average is None else self.average()
        if average is None or self.is_fed or not self._layers:
            return 0
        return int(average.n_averaged)

    def has_other_inputs(self) -> bool:
        """Return whether it was never asked about what the original was trained on."""
        ours, theirs = self.inputs
        return min(len(ours), len(theirs)) > 2 and ours.isdisjoint(theirs)


class Copies:
    """The copies of a model.

    Args:
        session: Counts the steps of training, and writes what is seen.
        loaded: Watches what the program loads.
        kept: Knows what the program calls its copies.
    """

    def __init__(
        self, session: Session, loaded: LoadedWeights, kept: KeptReferences
    ) -> None:
        self._session = session
        self._loaded = loaded
        self._kept = kept
        self._copies: list[_Copy] = []
        self._hooks = UncompiledHooks()
        # Steps before a target moves, if the program says so.
        self._interval = 0

    def search(
        self,
        roots: Sequence[nn.Module],
        modules: Sequence[nn.Module],
        held: AbstractSet[int],
    ) -> None:
        """Find the copies among all modules of the process, before the first update.

        Args:
            roots: Modules that are trained.
            modules: All modules of the process.
            held: The ids of what its optimizers hold.
        """
        with contextlib.suppress(Exception):
            self._loaded.review()
            self._kept.loss_begins(sys._getframe(1))
            self._interval = _interval_in(sys._getframe(1))
        averages = {
            id(each.module): each
            for each in modules
            if isinstance(each, AveragedModel) and _is_mean(each)
        }
        found = [_Copy(module, of) for module, of in copies_in(roots, modules, held)]
        found += [
            _Copy(module, of, is_stranger=True)
            for module, of in strangers_in(roots, modules, held)
        ]
        for copy in found:
            module, original = copy.module, copy.original
            if module is None or original is None:
                continue
            if (average := averages.get(id(module))) is not None:
                copy.average = weakref.ref(average)
            copy.is_follower = not copy.is_stranger and is_follower(module, roots)
            if not copy.is_stranger:
                copy.questions = Questions(module, sys._getframe(1))
            self._copies.append(copy)
            if self._hooks.may_be_added:
                for each, is_copy in ((module, True), (original, False)):
                    self._hooks.add(each, _Called(self, copy, is_copy=is_copy))

    def living(self) -> list[nn.Module]:
        """Return the copies that live."""
        return [
            module
            for each in self._copies
            if (module := each.module) is not None and not each.is_stranger
        ]

    def look(self, *, make_targets: bool) -> None:
        """Look at the copies: an optimizer has stepped.

        Args:
            make_targets: Whether copies are called for targets.
        """
        n_steps = self._session.n_training_steps
        for each in self._copies:
            each.look(n_steps)
        if n_steps >= _SURELY:
            self._look_at_targets(make_targets=make_targets)

    def conclude(self, *, make_targets: bool) -> None:
        """Report targets that have never moved: training ends."""
        n_steps = self._session.n_training_steps
        for each in self._copies:
            each.look(n_steps, is_last=True)
            if n_steps >= _LEAST_STEPS:
                self._look_at_questions(each)
            seen = each.at_evaluations
            if seen.is_always and seen.n >= _LEAST_LOOKS and n_steps >= _LEAST_STEPS:
                self._observe(Fault.AVERAGE_IS_MODEL, each, {"looks": seen.n})
        if n_steps >= _LEAST_STEPS:
            self._look_at_targets(make_targets=make_targets)

    def remove(self) -> None:
        """Look no longer."""
        self._hooks.remove()
        for each in self._copies:
            if each.questions is not None:
                each.questions.remove()
        self._copies.clear()

    def called(
        self,
        copy: _Copy,
        args: Sequence[Any],
        frame: FrameType | None,
        *,
        is_copy: bool,
    ) -> None:
        """A copy, or its original, is called."""
        if copy.n_inputs < _MOST_INPUTS and (is_copy or torch.is_grad_enabled()):
            copy.n_inputs += 1
            if (key := _key_of(args)) is not None:
                copy.inputs[not is_copy].add(key)
        module = copy.module
        if not is_copy or module is None:
            return
        n_steps = self._session.n_training_steps
        if copy.is_stranger:
            if not module.training and n_steps >= _TO_MOVE:
                self._evaluates_stranger(copy, module, frame)
            return
        if copy.questions is not None and copy.questions.note(args, frame, n_steps):
            present, later = copy.questions.about
            words = {"target": copy.questions.name, "present": present, "later": later}
            self._observe(Fault.TARGET_OF_PRESENT, copy, {}, words)
        copy.compare(copy.at_steps, n_steps)
        self._look_at_shares(copy, n_steps)
        copy.is_fed |= module.training
        copy.note_mode(n_steps, is_training=module.training)
        if not module.training:
            self._evaluates(copy, module, frame)
        else:
            copy.is_average_by(module, frame, n_steps)
        self._look_at_parts(copy, module, n_steps)

    # ---- inside ----------------------------------------------------------------

    def _evaluates(
        self, copy: _Copy, module: nn.Module, frame: FrameType | None
    ) -> None:
        n_steps = self._session.n_training_steps
        distances = copy.left_behind()
        if distances:
            numbers = {"distance": max(distances), "layers": len(distances)}
            self._observe(Fault.STATISTICS_LEFT_BEHIND, copy, numbers)
        elif (n_averaged := copy.n_averaged()) >= _LEAST_AVERAGED:
            self._observe(Fault.AVERAGE_NEVER_FED, copy, {"models": float(n_averaged)})
        copy.look(n_steps)
        if not copy.is_average_by(module, frame, n_steps):
            return
        copy.compare(copy.at_evaluations, n_steps)
        if n_steps < _LEAST_STEPS / 2 or not (
            copy.is_unmoved and copy.looked == n_steps
        ):
            return
        # It may have moved since the step was looked at.
        if copy.is_original_moved() and not copy.has_moved_at(n_steps):
            numbers = {"steps": n_steps, "written": float(copy.is_written)}
            self._observe(Fault.AVERAGE_NEVER_MOVES, copy, numbers)

    def _evaluates_stranger(
        self, copy: _Copy, module: nn.Module, frame: FrameType | None
    ) -> None:
        """See whether an average that moves has nothing in common with the model."""
        if copy.is_unmoved and not copy.has_moved_at(self._session.n_training_steps):
            return
        n_steps = self._session.n_training_steps
        if copy.is_average_by(module, frame, n_steps) and copy.is_unlike():
            numbers = {"steps": float(n_steps)}
            self._observe(Fault.AVERAGE_OF_ANOTHER, copy, numbers)

    def _look_at_parts(self, copy: _Copy, module: nn.Module, n_steps: int) -> None:
        """See whether parts of a copy stand still, or it evaluates in training mode."""
        is_used = copy.is_average or copy.at_steps.n >= _LEAST_CALLS
        if is_used and n_steps >= _LEAST_STEPS / 2:
            stale, n = copy.n_stale()
            if stale:
                numbers = {"stale": float(stale), "parameters": float(n)}
                self._observe(Fault.COPY_PARTLY_STALE, copy, numbers)
        if copy.is_average and copy.is_evaluated_in_training():
            copy.is_evaluated = True  # It is told once.
            numbers = {"blocks": float(len(copy.blocks)), "named": 1.0}
            if layers := kinds_in(module):
                words = {"layers": layers}
                self._observe(Fault.EVALUATED_IN_TRAINING, copy, numbers, words)

    def _look_at_shares(self, copy: _Copy, n_steps: int) -> None:
        """See whether updates keep a small share of a copy, where a large one is meant.

        Schedules of averages begin with small shares, which grow.
        """
        left = copy.at_steps.left() if n_steps >= _TO_MOVE else 0.0
        if left and not copy.is_exchanged:
            copy.is_exchanged = True
            numbers = {"looks": float(copy.at_steps.n), "left": left}
            self._observe(Fault.TARGET_IS_MODEL, copy, numbers)

    def _look_at_questions(self, copy: _Copy) -> None:
        """See whether the program updates a target that it never asks."""
        questions = copy.questions
        if questions is None or questions.is_asked or copy.is_unmoved:
            return
        numbers = {"steps": float(self._session.n_training_steps)}
        words = {"target": questions.name}
        self._observe(Fault.TARGET_NEVER_ASKED, copy, numbers, words)

    def _look_at_targets(self, *, make_targets: bool) -> None:
        n_steps = self._session.n_training_steps
        for each in self._copies:
            is_target = make_targets and each.has_other_inputs()
            is_follower = each.is_follower and each.at_steps.n >= _LEAST_CALLS
            if each.is_stranger or not (is_target or is_follower):
                continue
            seen = each.at_steps
            # A copy that only shows what the model does is asked now and then.
            is_asked = is_follower or seen.is_at_most_steps
            if is_asked and seen.n >= _LEAST_CALLS and seen.is_always:
                self._observe(Fault.TARGET_IS_MODEL, each, {"looks": seen.n})
            if (
                each.is_unmoved
                and each.looked >= _LATE * n_steps
                and n_steps > self._interval
                and each.is_original_moved()
            ):
                self._observe(Fault.TARGET_NEVER_MOVES, each, {"steps": each.looked})

    def _observe(
        self,
        fault: Fault,
        copy: _Copy,
        numbers: dict[str, float],
        words: dict[str, str] | None = None,
    ) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        seen = Observation(fault, step, (copy.name,), numbers, words or {})
        self._session.observe(seen)


class _Called(Inert):
    """The hook of a copy or of its original."""

    __slots__ = ("_copies", "_copy", "_is_copy", "_n_calls", "_next")

    def __init__(self, copies: Copies, copy: _Copy, *, is_copy: bool) -> None:
        self._copies = weakref.ref(copies)
        self._copy = copy
        self._is_copy = is_copy
        self._n_calls = self._next = 0

    def __call__(self, _: Any, args: Any) -> None:
        self._n_calls += 1
        if self._n_calls < self._next:
            return
        copies = self._copies()
        if copies is None or is_dynamo_compiling() or compiler._is_compiling_flag:
            return
        if is_traced():
            return
        if self._n_calls >= _MOST_INPUTS:
            self._next = int(self._n_calls * _RARER) + 1
            if not self._is_copy:
                self._next = sys.maxsize
        called, frame = copies.called, sys._getframe(1)
        copies._session.run(
            lambda: called(self._copy, args, frame, is_copy=self._is_copy)
        )


never_compiled(_Called.__call__)


def _interval_in(frame: FrameType | None) -> int:
    """Return after how many steps a program means to move its targets; 0: unknown."""
    found = (
        value
        for name, value in named(frame)
        if type(value) is int and _INTERVAL.search(name)
    )
    return max(found, default=0)


def _is_mean(average: AveragedModel) -> bool:
    """Return whether models count alike, and buffers are those of the last one."""
    given = vars(average)
    has_own = any(given.get(name) is not None for name in ("avg_fn", "multi_avg_fn"))
    return not has_own and given.get("use_buffers") is False


def _is_far(present: torch.Tensor, first: torch.Tensor) -> bool:
    """Return whether weights have moved by what a slow average cannot round away."""
    if not first.is_floating_point() or present.shape != first.shape:
        return False
    way = float((present.double() - first.double()).norm())
    least = _CLEARLY * torch.finfo(first.dtype).eps
    return way > least * float(first.double().norm())


def _weights_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([sample_of(each).double() for each in _some(module)])


def _times_written(module: nn.Module) -> int:
    return sum(each._version for each in _some(module))


def _some(module: nn.Module) -> Sequence[torch.Tensor]:
    """Return some parameters, from the whole module."""
    every = list(module.parameters())
    return every[:: max(1, len(every) // _MOST_PARAMETERS)]


def _pairs_with_statistics(
    module: nn.Module, original: nn.Module
) -> Iterator[tuple[nn.Module, nn.Module]]:
    pairs = zip(module.modules(), original.modules(), strict=False)
    found = [(one, of) for one, of in pairs if has_statistics(one)]
    for one, of in found[:_MOST_LAYERS]:
        if has_statistics(of) and one.running_mean is not of.running_mean:
            yield one, of


def _key_of(args: Sequence[Any]) -> int | None:
    """Return a number of the first tensor among arguments."""
    for each in args:
        if isinstance(each, torch.Tensor):
            some = each.detach().reshape(-1)[:_MOST_ELEMENTS].double().cpu()
            return hash((tuple(each.shape), some.numpy().tobytes()))
    return None
