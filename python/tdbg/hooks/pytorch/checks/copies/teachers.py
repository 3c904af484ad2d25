"""Watch models that teach: frozen ones that drop units, and ones that learn themselves.

A teacher gives answers that another model learns.  In training mode its dropout makes
them random.  If the optimizer has its weights and gradients reach them, it gives in:
the two models meet somewhere between.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import re
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import compiler, nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.copies.running_statistics import has_statistics
from tdbg.hooks.pytorch.checks.copies.training_mode import TrainingMode
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    leaves_below,
    name_of,
    operands_of,
    walk,
)
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.compile.uncompiled_hooks import UncompiledHooks
from tdbg.hooks.pytorch.device.tensors import is_recording, sample_of
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import class_name, named_modules
from tdbg.hooks.pytorch.model.process_objects import held_ids, living
from tdbg.hooks.pytorch.model.variables import namespaces
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["Teachers"]

# Frozen models that are watched, calls of each, and steps that must have some.
_MOST_MODELS, _MOST_CALLS, _LEAST_STEPS = 8, 60, 10
# Operations from a loss to what it compares, at most.
_MOST_OF_END = 60
# What compares two models' answers, and what may lie between the loss and that.
# The divergence of answers with gradients is a product of both.
_COMPARES = {"MseLoss", "SmoothL1Loss", "HuberLoss", "KlDiv", "Mul", "Sub", "Rsub"}
_BETWEEN = {
    *("Abs", "Add", "Clone", "Div", "Mean", "Neg", "Pow", "Sqrt", "Sum"),
    *("Squeeze", "ToCopy", "UnsafeView", "Unsqueeze", "View"),
}


# What programs call a model that only teaches.
_TEACHER = re.compile(
    r"(^|_)teacher(_|$)|momentum_encoder|(^|_)ema(_|$)", re.IGNORECASE
)


class Teachers:
    """Watch the teachers of a training.

    Args:
        session: Counts the steps of training, and writes what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._roots: list[weakref.ref[nn.Module]] = []
        self._hooks = UncompiledHooks()
        self._mode = TrainingMode(session)

    def note_roots(self, roots: Sequence[nn.Module]) -> None:
        """Note the modules that are trained now."""
        self._roots = [weakref.ref(each) for each in roots]

    def search(
        self,
        modules: Sequence[nn.Module],
        held: AbstractSet[int],
        copies: Iterable[nn.Module],
    ) -> None:
        """Find models that nobody trains and that are in training mode.

        Args:
            modules: All modules of the process.
            held: The ids of what its optimizers hold.
            copies: Copies of the trained modules, which may follow these.
        """
        self._mode.search(self._living_roots())
        if not self._hooks.may_be_added:
            return
        parts = set[int]()
        copied = {id(part) for each in copies for part in each.modules()}
        models = [
            each
            for each in modules
            if _may_teach(each, held, is_copy=id(each) in copied)
        ]
        for each in sorted(models, key=lambda model: -sum(1 for _ in model.modules())):
            if id(each) in parts or len(self._hooks) >= _MOST_MODELS:
                continue
            parts.update(map(id, each.modules()))
            self._hooks.add(each, _Called(self, each))

    def read(self, root: Any) -> None:
        """Find a teacher that learns in the graph of a loss."""
        for one, other in _compared(root):
            ours, theirs = leaves_below(one), leaves_below(other)
            if not (ours and theirs) or not ours.isdisjoint(theirs):
                continue
            held = set[int]().union(*map(held_ids, living(Optimizer)))
            if not (ours <= held and theirs <= held):
                continue
            modes = _modes_of(self._living_roots())
            spaces = list(namespaces(sys._getframe(1)))
            for teacher, student in ((ours, theirs), (theirs, ours)):
                told = {modes.get(each) for each in teacher}
                name = _called_in(spaces, teacher)
                if told == {False} and {modes.get(each) for each in student} == {True}:
                    self._observe(Fault.TEACHER_LEARNS, self._name_of(teacher))
                elif name and not _called_in(spaces, student):
                    self._observe(Fault.TEACHER_LEARNS, name, {"mode": "train"})

    def is_called(self, model: nn.Module) -> bool:
        """Return whether a call of a frozen model now asks for answers to be learned.

        A frozen part of a model that learns is called inside of it, with gradients.
        """
        if not model.training:
            return False
        if not torch.is_grad_enabled():
            return True
        is_frozen = not any(each.requires_grad for each in model.parameters())
        return is_frozen and self._session.depth == 0

    def drops(self, model: nn.Module) -> None:
        """Report a frozen model that drops units."""
        identities = set(map(id, model.parameters()))
        words = {} if _drops(model) else {"layers": "normalizations"}
        self._observe(Fault.TEACHER_DROPS, self._name_of(identities, model), words)

    @property
    def step(self) -> int:
        """The number of training steps so far."""
        return self._session.n_training_steps

    def remove(self) -> None:
        """Watch no longer."""
        self._mode.remove()
        self._hooks.remove()

    def _living_roots(self) -> list[nn.Module]:
        return [root for each in self._roots if (root := each()) is not None]

    def _name_of(self, identities: AbstractSet[int], model: Any = None) -> str:
        """Return the path of the module with these parameters, or its class."""
        for root in self._living_roots():
            for path, module in named_modules(root):
                own = set(map(id, module.parameters()))
                if path and own and own <= identities:
                    return path
        return "teacher" if model is None else class_name(model)

    def _observe(
        self, fault: Fault, name: str, words: Mapping[str, str] | None = None
    ) -> None:
        step = max(0, self._session.latest_step(TRAIN)[0])
        self._session.observe(Observation(fault, step, (name,), {}, words or {}))


class _Called(Inert):
    """The hook of a frozen model."""

    __slots__ = ("_n_calls", "_steps", "_teachers", "_weights")

    def __init__(self, teachers: Teachers, model: nn.Module) -> None:
        self._teachers = weakref.ref(teachers)
        self._weights = _weights_of(model)
        self._steps: set[int] = set()
        self._n_calls = 0

    def __call__(self, model: nn.Module, *_: Any) -> None:
        teachers = self._teachers()
        if self._n_calls >= _MOST_CALLS or teachers is None:
            return
        if is_dynamo_compiling() or compiler._is_compiling_flag or is_recording():
            return
        with contextlib.suppress(Exception):
            self._n_calls += 1
            if teachers.is_called(model):
                self._steps.add(teachers.step)
            if len(self._steps) >= _LEAST_STEPS:
                self._n_calls = _MOST_CALLS
                # A mean teacher drops on purpose, and moves.
                if torch.equal(self._weights, _weights_of(model)):
                    teachers._session.run(teachers.drops, model)


never_compiled(_Called.__call__)


def _may_teach(model: nn.Module, held: AbstractSet[int], *, is_copy: bool) -> bool:
    """Return whether nobody trains a model whose answers depend on its mode.

    Either it is frozen and drops units, or no optimizer has it and it is no copy.
    """
    first = _first_of(model) if model.training else None
    is_apart = not is_copy and id(first) not in held
    if first is None or (first.requires_grad and not is_apart):
        return False
    every = list(model.parameters())
    if _drops(model) and not any(each.requires_grad for each in every):
        return True
    return is_apart and _depends(model) and held.isdisjoint(map(id, every))


def _first_of(model: nn.Module) -> nn.Parameter | None:
    """Return the first parameter of a model."""
    for part in model.modules():
        for each in part._parameters.values():
            if each is not None:
                return each
    return None


def _depends(model: nn.Module) -> bool:
    """Return whether the mode changes a model's answers, or its statistics."""
    return _drops(model) or any(
        each.training and has_statistics(each) for each in model.modules()
    )


def _drops(model: nn.Module) -> bool:
    return any(
        isinstance(each, nn.modules.dropout._DropoutNd) and each.training and each.p > 0
        for each in model.modules()
    )


def _called_in(
    spaces: Iterable[Mapping[str, Any]], identities: AbstractSet[int]
) -> str:
    """Return what a program calls a teacher that has these parameters, or nothing."""
    for names in spaces:
        for name, value in names.items():
            if isinstance(value, nn.Module) and _TEACHER.search(name):
                own = set(map(id, value.parameters()))
                if own and identities <= own:
                    return name
    return ""


def _weights_of(model: nn.Module) -> torch.Tensor:
    every = list(model.parameters())
    return torch.cat([sample_of(each).double() for each in (every[0], every[-1])])


def _modes_of(roots: Sequence[nn.Module]) -> dict[int, bool]:
    """Return whether the owner of each parameter is in training mode, by its id."""
    return {
        id(parameter): module.training
        for root in roots
        for module in root.modules()
        for parameter in module.parameters(recurse=False)
    }


def _compared(root: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of operations whose results the loss compares."""
    if root is None:
        return
    for node in walk(root, _MOST_OF_END, _COMPARES | _BETWEEN):
        below = operands_of(node)
        if name_of(node) in _COMPARES and len(below) == 2:
            yield below[0], below[1]
