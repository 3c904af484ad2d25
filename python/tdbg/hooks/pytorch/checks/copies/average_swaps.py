"""See from which weights a program trains on after it has evaluated its model.

A program that swaps its average in for an evaluation must put its own weights back.
If it forgets that, each evaluation sets the training back to the average.  And one that
begins another training, such as that of the next fold, must draw weights anew.

Thread safety: the training's thread.  Errors: those of the program's own objects.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import compiler, nn
from torch.compiler import is_dynamo_compiling

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.compile.uncompiled_hooks import UncompiledHooks
from tdbg.hooks.pytorch.device.tensors import is_recording, sample_of
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import class_name
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["AVERAGE", "AverageSwaps", "WeightsTrainedOn"]

AVERAGE = re.compile(
    r"(^|_)(ema|swa|avg|averaged?|shadow|moving)(_|$|[0-9])", re.IGNORECASE
)
"""What programs call averages of weights."""
# What they call the weights that they put aside meanwhile.
_ASIDE = re.compile(r"backup|collected|stored|saved|orig|temp|cache|old", re.IGNORECASE)
# How deep averages lie in objects, and the tensors of each that are looked at, at most.
_DEEPEST, _MOST_TENSORS = 3, 4000
# Forwards of training in which an average must move.
_MOST_FORWARDS = 50
# Evaluations after which the training may go on from other weights, at most.
_MOST_EVALUATIONS = 1000
# Evaluations in a row after which the model goes on from its average.
_ENOUGH = 2

# Returns the tensor of an average, if there is one.
_Read = Callable[[], torch.Tensor | None]


class AverageSwaps:
    """The averages that stand in the place of a model as it is evaluated.

    Args:
        session: Counts the steps of training, and writes what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hooks = UncompiledHooks()
        self._n = 0

    def evaluation_begins(
        self, spaces: Sequence[Mapping[str, Any]], roots: Sequence[nn.Module]
    ) -> None:
        """Look for an average whose weights a model has now.

        Args:
            spaces: The variables of the program.
            roots: The models that are trained.
        """
        if self._hooks or not self._hooks.may_be_added:
            return
        swap = next(_swaps(spaces, roots), None)
        root = None if swap is None else swap.root()
        if swap is not None and root is not None:
            swap.n_steps = self._session.n_training_steps
            self._hooks.add(root, _TrainsAgain(self, swap))

    def remove(self) -> None:
        """Look no longer."""
        self._hooks.remove()

    def trains(self, swap: _Swap, root: nn.Module) -> None:
        """Count averages that the model was trained from after an evaluation."""
        is_restored = swap.is_restored()
        if is_restored is None:
            return
        self._hooks.remove()
        self._n = 0 if is_restored else self._n + 1
        if self._n == _ENOUGH:
            step = max(0, self._session.latest_step(TRAIN)[0])
            numbers, words = {"since": float(swap.n_steps)}, {"kept": swap.name}
            fault, names = Fault.AVERAGE_NOT_RESTORED, (class_name(root),)
            self._session.observe(Observation(fault, step, names, numbers, words))


class WeightsTrainedOn:
    """Whether the training goes on from the weights that were evaluated.

    That is told once, and once that it does not, or that nobody looks any longer: an
    agent may act in evaluation mode in each step.

    Args:
        session: Counts the steps of training, and writes what is seen.

    Attributes:
        waits: Whether an evaluation has begun since the last forward of training.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told = set[str]()
        self._pivot: weakref.ref[nn.Parameter] | None = None
        self._sample: torch.Tensor | None = None
        self._n = 0
        self._is_open = True
        self.waits = False

    def evaluation_begins(self, roots: Sequence[nn.Module]) -> None:
        """Note the weights, unless these are known to be drawn anew."""
        if self.waits or not self._is_open or len(roots) != 1 or is_recording():
            return
        if (pivot := _pivot_of(roots[0])) is not None:
            self._pivot, self._sample = weakref.ref(pivot), sample_of(pivot)
            self.waits = True

    def training_resumes(self) -> None:
        """Compare the weights with those that were evaluated."""
        self.waits = False
        pivot = None if self._pivot is None else self._pivot()
        if pivot is None or self._sample is None or is_recording():
            return
        self._n += 1
        how = "on" if torch.equal(self._sample, sample_of(pivot)) else "anew"
        if self._n > _MOST_EVALUATIONS:
            how = "unknown"
        self._is_open = how == "on"
        if how not in self._told:
            self._told.add(how)
            step = max(0, self._session.latest_step(TRAIN)[0])
            fault, words = Fault.TRAINED_ON, {"how": how}
            self._session.observe(Observation(fault, step, (how,), {}, words))


class _Swap:
    """An average whose weights the model has as an evaluation begins.

    Attributes:
        name: What the program calls the average.
        n_steps: The steps that were made before.
    """

    def __init__(
        self, name: str, root: nn.Module, pivot: nn.Parameter, average: _Read
    ) -> None:
        self.name = name
        self.n_steps = 0
        self.root = weakref.ref(root)
        self._pivot = weakref.ref(pivot)
        self._read = average
        self._sample = sample_of(pivot)
        self._n_forwards = 0

    def is_restored(self) -> bool | None:
        """Return whether the model is its own again; None: that is not known yet.

        The first forward trains from the average.  At a later one, the average has
        moved, and not to where the model is: programs copy the model at first.
        """
        pivot, average = self._pivot(), self._read()
        self._n_forwards += 1
        if pivot is None or average is None or self._n_forwards > _MOST_FORWARDS:
            return True
        if self._n_forwards == 1:
            if not torch.equal(self._sample, sample_of(pivot)):
                return True
            return False if average.data_ptr() == pivot.data_ptr() else None
        present = sample_of(average)
        if torch.equal(present, self._sample):
            return None
        return torch.equal(present, sample_of(pivot))


class _TrainsAgain(Inert):
    """The hook of a model that was evaluated with the weights of its average."""

    __slots__ = ("_swap", "_swaps")

    def __init__(self, swaps: AverageSwaps, swap: _Swap) -> None:
        self._swaps = weakref.ref(swaps)
        self._swap = swap

    def __call__(self, module: nn.Module, *_: Any) -> None:
        swaps = self._swaps()
        if swaps is None or not (module.training and torch.is_grad_enabled()):
            return
        if is_dynamo_compiling() or compiler._is_compiling_flag or is_recording():
            return
        swaps._session.run(swaps.trains, self._swap, module)


never_compiled(_TrainsAgain.__call__)


def _swaps(
    spaces: Sequence[Mapping[str, Any]], roots: Sequence[nn.Module]
) -> Iterator[_Swap]:
    """Yield the averages whose weights a model has."""
    for root in roots:
        pivot = _pivot_of(root)
        sample = None if pivot is None else sample_of(pivot)
        if pivot is None or sample is None or not bool((sample != sample[:1]).any()):
            continue
        for names in spaces:
            for name, value in names.items():
                if not AVERAGE.search(name):
                    continue
                for each, read in _tensors_in(value, _DEEPEST):
                    if (
                        each is not pivot
                        and each.shape == pivot.shape
                        and each.dtype == pivot.dtype
                        and torch.equal(sample_of(each), sample)
                    ):
                        yield _Swap(name, root, pivot, read)


def _pivot_of(root: nn.Module) -> nn.Parameter | None:
    """Return the largest trained matrix of a model."""
    found = [each for each in root.parameters() if each.requires_grad and each.ndim > 1]
    return max(found, key=torch.Tensor.numel, default=None)


def _tensors_in(value: Any, depth: int) -> Iterator[tuple[torch.Tensor, _Read]]:
    """Yield tensors, each with what returns the one that is in its place later."""
    if isinstance(value, nn.Module):
        for each in value.parameters():
            yield each, weakref.ref(each)
    elif isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in [*members][:_MOST_TENSORS] if depth else ():
            if isinstance(each, torch.Tensor):
                yield each, functools.partial(_member, value, key)
            else:
                yield from _tensors_in(each, depth - 1)
    elif depth and type(getattr(value, "__dict__", None)) is dict:
        for name, each in vars(value).items():
            if not (isinstance(each, nn.Module) or _ASIDE.search(name)):
                yield from _tensors_in(each, depth - 1)


def _member(container: Any, key: Any) -> torch.Tensor | None:
    try:
        found = container[key]
    except LookupError:
        return None
    return found if isinstance(found, torch.Tensor) else None
