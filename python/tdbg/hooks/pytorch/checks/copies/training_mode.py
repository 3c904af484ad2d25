"""See that a program evaluates a model in training mode.

A program that forgets ``eval()`` measures its model with dropout and with the
statistics of the evaluation's batches, and feeds these to its normalizations.

What shows it: blocks of forwards in training mode and without gradients, between steps
of training.  Names say that a block evaluates: those of functions that training does
not call, or of the inputs.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import re
import sys
import weakref
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import compiler, nn
from torch.compiler import is_dynamo_compiling

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.checks.copies.running_statistics import has_statistics
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.compile.uncompiled_hooks import UncompiledHooks
from tdbg.hooks.pytorch.device.tensors import is_recording, sample_of
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import class_name
from tdbg.hooks.pytorch.model.variables import locals_of
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["TrainingMode", "kinds_in"]

# Forwards of training whose callers are noted, forwards without gradients that are
# looked at, and frames of each, at most.
_MOST_TRAINED, _MOST_CALLS, _MOST_FRAMES = 8, 400, 30
# Steps of training between blocks, blocks that names say evaluate, and other ones.
_APART, _ENOUGH, _ENOUGH_UNNAMED = 4, 2, 3
# What programs call functions that evaluate, and inputs of an evaluation.
_FUNCTION = re.compile(
    r"(^|_)(eval|evaluate|evaluation|valid|validate|validation|val|test|accuracy)(_|$)",
    re.IGNORECASE,
)
_INPUT = re.compile(
    r"(^|_)(val|valid|validation|test|eval|dev|holdout)(_|[0-9]|$)", re.IGNORECASE
)


class TrainingMode:
    """Watches in which mode models are called without gradients.

    Args:
        session: Counts the steps of training, and writes what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hooks = UncompiledHooks()

    def search(self, roots: Sequence[nn.Module]) -> None:
        """Watch the models whose answers depend on the mode."""
        if not self._hooks.may_be_added:
            return
        for root in roots:
            kinds = kinds_in(root)
            if root.training and kinds:
                self._hooks.add(root, _Called(self._session, kinds))

    def remove(self) -> None:
        """Watch no longer."""
        self._hooks.remove()


class _Called(Inert):
    """The hook of a model."""

    __slots__ = (
        "_blocks", "_inputs", "_is_named", "_kinds", "_n", "_named", "_others",
        "_session", "_trained",
    )  # fmt: skip

    def __init__(self, session: Session, kinds: str) -> None:
        self._session = weakref.ref(session)
        self._kinds = kinds
        self._trained: set[CodeType] = set()
        # Forwards of training, and without gradients, that are still looked at.
        self._n, self._others = _MOST_TRAINED, _MOST_CALLS
        # The steps before the latest block, its inputs, and the blocks so far.
        self._blocks: list[int] = []
        self._inputs: list[torch.Tensor] = []
        self._named = 0
        self._is_named = False

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            if self._n > 0 and module.training:
                self._n -= 1
                self._trained.update(_codes(sys._getframe(1)))
            if self._inputs:
                self._trains(args)
            return
        if not module.training or self._others <= 0:
            return
        if is_dynamo_compiling() or compiler._is_compiling_flag or is_recording():
            return
        session = self._session()
        if session is not None and session.depth <= 1:
            self._others -= 1
            frame = sys._getframe(1)
            session.run(self._look, session, module, args, frame)

    def _trains(self, args: Sequence[Any]) -> None:
        """Look no more if training takes what has just had no gradients."""
        given = next((each for each in args if isinstance(each, torch.Tensor)), None)
        inputs, self._inputs = self._inputs, []
        with contextlib.suppress(Exception):
            if given is not None and _is_among(sample_of(given), inputs):
                self._others = 0

    def _look(
        self, session: Session, module: nn.Module, args: Sequence[Any], frame: FrameType
    ) -> None:
        given = next((each for each in args if isinstance(each, torch.Tensor)), None)
        if given is None:
            return
        n_steps = session.n_training_steps
        sample = sample_of(given)
        if not self._blocks or n_steps != self._blocks[-1]:
            self._begin(session, module, n_steps)
        elif _is_among(sample, self._inputs):
            self._others = 0  # It draws several answers on purpose.
        self._inputs.append(sample)
        if self._others and not self._is_named:
            self._is_named = _evaluates(frame, given, self._trained)
            self._named += self._is_named
        if self._named >= _ENOUGH:
            self._tell(session, module, is_named=True)

    def _begin(self, session: Session, module: nn.Module, n_steps: int) -> None:
        """Begin a block; look no more if there is one between most steps."""
        if self._blocks and n_steps - self._blocks[-1] <= _APART:
            self._others = 0
            return
        if len(self._blocks) >= _ENOUGH_UNNAMED and not self._named:
            self._tell(session, module, is_named=False)
            return
        self._blocks.append(n_steps)
        self._inputs.clear()
        self._is_named = False

    def _tell(self, session: Session, module: nn.Module, *, is_named: bool) -> None:
        self._others = 0
        step = max(0, session.latest_step(TRAIN)[0])
        numbers = {"blocks": float(len(self._blocks)), "named": float(is_named)}
        words = {"layers": self._kinds}
        fault = Fault.EVALUATED_IN_TRAINING
        session.observe(Observation(fault, step, (class_name(module),), numbers, words))


never_compiled(_Called.__call__)


def kinds_in(root: nn.Module, *, is_whole: bool = False) -> str:
    """Return the layers in training mode whose results the mode changes.

    Args:
        root: The model.
        is_whole: Whether to leave out layers whose owners are in evaluation mode, as
            where a program switches on dropout, and nothing else, to draw answers.
    """
    every = list(root.modules())
    if is_whole:
        owners = [each for each in every if each.training]
        every = [each for owner in owners for each in owner.children()]
    drops = any(
        isinstance(each, nn.modules.dropout._DropoutNd) and each.training and each.p > 0
        for each in every
    )
    normalizes = any(each.training and has_statistics(each) for each in every)
    kinds = (("dropout", drops), ("normalization", normalizes))
    return " and ".join(kind for kind, is_there in kinds if is_there)


def _is_among(sample: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    return any(
        sample.shape == each.shape
        and sample.dtype == each.dtype
        and torch.equal(sample, each)
        for each in others
    )


def _codes(frame: FrameType | None) -> list[CodeType]:
    found: list[CodeType] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        found.append(frame.f_code)
        frame = frame.f_back
    return found


def _evaluates(
    frame: FrameType | None, given: torch.Tensor, trained: set[CodeType]
) -> bool:
    """Return whether names say that the model is evaluated on an input."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code not in trained and _FUNCTION.search(frame.f_code.co_name):
            return True
        base = given._base
        for name, value in locals_of(frame).items():
            is_input = value is given or (base is not None and value is base)
            if is_input and _INPUT.search(name):
                return True
        frame = frame.f_back
    return False
