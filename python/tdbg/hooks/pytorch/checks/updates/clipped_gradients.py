"""Find out in the first steps whether the clipping of gradients has its effect.

A call that clips is compared with what the optimizer then does: it must be given
parameters, these must have gradients, the optimizer must not have used them before, and
a scaler must have unscaled them.

PyTorch's functions call the code that clips from a closure.  While anybody watches,
that code is followed.  The functions stay the same objects, so a call is seen wherever
the program imported them.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import GeneratorType
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from tdbg.hooks.pytorch.checks.graphs.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.device.tensors import gradient_of
from tdbg.hooks.pytorch.functions.diverted import WarnedLines
from tdbg.hooks.pytorch.functions.scaler_calls import ScalerStep
from tdbg.hooks.pytorch.model.process_objects import held_ids, living, parameters_of
from tdbg.run.observations import Fault

__all__ = ["ClippedGradients"]

# Steps with the same fault that prove it, and steps that are looked at, at most.
_ENOUGH, _MOST_STEPS = 3, 20
_MOST_CALLS = 200
# An optimizer's parameters that are compared, at most.
_MOST_COMPARED = 16
# Who gives a larger limit measures the norm, and does not mean to clip.
_NO_LIMIT = 1e6
# A scale below is no proof, nor is a limit that may have been multiplied by it.
_LEAST_SCALE, _LIMIT_OF_SCALE = 128.0, 0.01


# The functions, and the arguments that limit gradients.
_LIMITS = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value"}


class ClipCall(NamedTuple):
    """A call that is about to clip.

    Attributes:
        function: Its name.
        parameters: The tensors that it is given.
        limit: The largest norm or value; None: it is no number of Python's.
        is_used_up: Whether it is given an iterator that somebody has read to its end.
    """

    function: str
    parameters: tuple[torch.Tensor, ...]
    limit: float | None
    is_used_up: bool


class _Followed(NamedTuple):
    """The cell that holds the code that clips, before and while it is followed."""

    cell: Any
    original: Callable[..., Any]
    followed: Callable[..., Any]
    lines: WarnedLines


# While there are any, the functions are followed.
_watchers: weakref.WeakSet[ClippedGradients] = weakref.WeakSet()
_followed: list[_Followed] = []


class ClippedGradients(StepCheck):
    """Compare calls that clip with the steps of optimizers.

    Args:
        parameters: Returns the parameters of the model.
        note: Called with what is found out.
    """

    def __init__(
        self, parameters: Callable[[], Iterable[torch.Tensor]], note: Note
    ) -> None:
        self._parameters = parameters
        self._note = note
        self._n_steps = self._n_calls = 0
        self._found: Counter[Fault] = Counter()
        # Of the step under way: what was clipped, by the parameters' ids.
        self._fresh: dict[int, ClipCall] = {}
        self._without: dict[int, ClipCall] = {}
        self._used_again: ClipCall | None = None
        # Gradients that the latest step of an optimizer used, with their versions.
        self._used: dict[int, tuple[TensorWeakRef, int]] = {}
        _watch(self)

    def clips(self, call: ClipCall) -> None:
        """Look at what a call is about to clip."""
        self._n_calls += 1
        if self._n_calls >= _MOST_CALLS:
            self.remove()
        if self.is_over or (call.limit or 0.0) > _NO_LIMIT:
            return
        if call.is_used_up:
            self._given_nothing(call)
            return
        gradients = {id(each): gradient_of(each) for each in call.parameters}
        if all(each is None for each in gradients.values()):
            self._without |= dict.fromkeys(gradients, call)
        elif self._were_used(gradients):
            self._used_again = call
        else:
            self._fresh |= dict.fromkeys(gradients, call)

    def scaler_steps(self, step: ScalerStep, scale: Callable[[], float]) -> None:
        """Look at what was clipped before a scaler steps an optimizer.

        Args:
            step: What the scaler is about to do.
            scale: Returns the scale, for which a device may have to be asked.
        """
        if step.is_unscaled:
            return
        calls = self._of(step.optimizer, self._fresh)
        if not calls or any(call.limit is None for call in calls):
            return
        limit = max(call.limit for call in calls if call.limit is not None)
        factor = scale()
        if factor >= _LEAST_SCALE and limit < _LIMIT_OF_SCALE * factor:
            self._count(
                Fault.CLIPPED_SCALED, calls[0], {"limit": limit, "scale": factor}
            )

    def step_begins(self, optimizer: Optimizer) -> None:
        """Look at what was clipped before an optimizer uses the gradients."""
        if not (self._fresh or self._without or self._used_again):
            return
        held = parameters_of(optimizer)
        with_gradient = {id(each) for each in held if gradient_of(each) is not None}
        late = [
            call
            for key, call in self._without.items()
            if key in with_gradient and key not in self._fresh
        ]
        if late:
            self._count(Fault.CLIPPED_BEFORE_BACKWARD, late[0], {})
        if self._used_again is not None and not self._of(optimizer, self._fresh):
            self._count(Fault.CLIPPED_AFTER_STEP, self._used_again, {})
        self._used_again = None
        ids = set(map(id, held))
        if not late and self._without and not self._of(optimizer, self._fresh):
            self._look_at_others(ids, with_gradient)
        for key in ids:
            self._fresh.pop(key, None)
            self._without.pop(key, None)

    def _look_at_others(
        self, held: AbstractSet[int], with_gradient: AbstractSet[int]
    ) -> None:
        """See whether what was clipped belongs to no optimizer, and these are not."""
        others = {key: call for key, call in self._without.items() if key not in held}
        if not (others and with_gradient):
            return
        if self._found[Fault.CLIPPED_OTHERS] == _ENOUGH - 1:
            every = [held_ids(each) for each in living(Optimizer)]
            if not others.keys().isdisjoint(set[int]().union(*every)):
                self._without.clear()
                return
        self._without.clear()
        self._count(Fault.CLIPPED_OTHERS, next(iter(others.values())), {})

    def step_ends(self, optimizer: Optimizer) -> None:
        """Note which gradients an optimizer has used."""
        self._n_steps += 1
        if self._n_steps >= _MOST_STEPS:
            self.remove()
            return
        if self._n_steps > _ENOUGH and not self._n_calls:
            return  # The program does not clip, or has not begun to.
        used = (
            (id(each), each.grad)
            for each in parameters_of(optimizer)
            if each.grad is not None
        )
        self._used |= {
            key: (TensorWeakRef(gradient), gradient._version)
            for key, gradient in itertools.islice(used, _MOST_COMPARED)
        }

    def remove(self) -> None:
        """Watch no longer."""
        super().remove()
        _unwatch(self)
        self._fresh.clear()
        self._without.clear()
        self._used.clear()
        self._used_again = None

    def _given_nothing(self, call: ClipCall) -> None:
        """Note a call that is given no parameters though there are gradients."""
        if any(gradient_of(each) is not None for each in self._parameters()):
            self._count(Fault.CLIPPED_NOTHING, call, {})

    def _were_used(self, gradients: Mapping[int, Any]) -> bool:
        """Return whether an optimizer has used these as they are."""
        known = [
            (gradients[key], *self._used[key])
            for key in gradients.keys() & self._used.keys()
        ]
        return bool(known) and all(
            gradient is not None and used() is gradient and gradient._version == version
            for gradient, used, version in known
        )

    def _of(
        self, optimizer: Optimizer, calls: Mapping[int, ClipCall]
    ) -> list[ClipCall]:
        return [
            calls[key]
            for each in parameters_of(optimizer)
            if (key := id(each)) in calls
        ]

    def _count(
        self, fault: Fault, call: ClipCall, numbers: Mapping[str, float]
    ) -> None:
        self._found[fault] += 1
        if self._found[fault] != _ENOUGH:
            return
        known = dict(numbers)
        if call.limit is not None and math.isfinite(call.limit):
            known.setdefault("limit", float(call.limit))
        self._note(fault, known, {"function": call.function})


# ---- calls that clip ----------------------------------------------------------------


def _watch(watcher: ClippedGradients) -> None:
    """Call *watcher* before each call that clips."""
    _watchers.add(watcher)
    if not _followed:
        _followed.extend(_follow())


def _unwatch(watcher: ClippedGradients) -> None:
    """Call *watcher* no longer."""
    _watchers.discard(watcher)
    while _followed and not _watchers:
        each = _followed.pop()
        each.lines.end()
        if each.cell.cell_contents is each.followed:
            each.cell.cell_contents = each.original


def _follow() -> Iterator[_Followed]:
    for name in _LIMITS:
        function: Any = getattr(clip_grad, name, None)
        original: Any = inspect.unwrap(function)
        # The profiler may have wrapped what PyTorch has wrapped.
        while getattr(function, "__wrapped__", original) is not original:
            function = function.__wrapped__
        for cell in getattr(function, "__closure__", None) or ():
            if cell.cell_contents is original:
                followed = _following(name, original)
                lines = WarnedLines(original.__globals__, followed.__code__, followed)
                lines.begin()
                cell.cell_contents = followed
                yield _Followed(cell, original, followed, lines)


def _following(name: str, original: Callable[..., Any]) -> Any:
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            with contextlib.suppress(Exception):
                parameters, call = _read(name, parameters, args, kwargs)
                for each in list(_watchers):
                    each.clips(call)
        return original(parameters, *args, **kwargs)

    return functools.wraps(original)(clip)


def _read(
    name: str, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ClipCall]:
    """Return what to give on, since an iterator can be read once, and the call."""
    limit = args[0] if args else kwargs.get(_LIMITS[name])
    if not isinstance(limit, int | float):
        limit = None
    if isinstance(given, torch.Tensor):
        return given, ClipCall(name, (given,), limit, False)
    is_used_up = _is_used_up(given)
    every = tuple(given)
    call = ClipCall(name, every, limit, is_used_up)
    if isinstance(given, GeneratorType):
        return (each for each in every), call
    return (every if isinstance(given, Iterator) else given), call


def _is_used_up(given: Any) -> bool:
    """Return whether a generator has ended, or that of a filter."""
    if isinstance(given, GeneratorType):
        return given.gi_frame is None
    if isinstance(given, filter | map):
        reduced: Any = given.__reduce__()
        return any(map(_is_used_up, reduced[1][1:]))
    return False
