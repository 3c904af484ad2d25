"""A training that a search has found, its hook, and modules that may belong to one.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from tdbg.capture.ranks import launched_rank
from tdbg.errors import TdbgError
from tdbg.hooks.pytorch.device.distributed import process_group_rank
from tdbg.hooks.pytorch.functions.direct_calls import name_in_model
from tdbg.hooks.pytorch.model.module_tree import class_name, unwrapped
from tdbg.hooks.pytorch.model.process_objects import held_ids, living
from tdbg.launch.family import Place
from tdbg.launch.settings import arguments_of, include

__all__ = [
    "Candidate",
    "FoundTraining",
    "has_own_parameters",
    "make_hook",
    "outermost",
    "owners",
    "parameter_ids",
    "rank_and_size",
]

# Modules of trainers, and those with what looks at a trainer's settings.
_TRAINERS = {
    "lightning.pytorch.trainer.trainer": "tdbg.integrations.lightning",
    "pytorch_lightning.trainer.trainer": "tdbg.integrations.lightning",
    "transformers.trainer": "tdbg.integrations.transformers",
}


class FoundTraining:
    """A training that the search has found.

    Attributes:
        hook: What captures it.
        path: Where its run is.
        roots: The roots of the training.
        optimizers: The optimizers whose parameters the roots own.
        held: The ids of the parameters that they hold, or held.
        losses: The modules that compute the loss.
        n_steps: The largest number of steps that one of the optimizers, which may be
            gone, has made during the search.
        has_settled: Whether the training is complete.
        n_left_out: How many roots it has beyond ``MOST_ROOTS``.
        n_forwards: The number of forwards when the last backward pass began.
    """

    def __init__(self, hook: Any, path: Place) -> None:
        self.hook = hook
        self.path = path
        self.roots: list[weakref.ref[nn.Module]] = []
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.held: set[int] = set()
        self.losses: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.n_steps = 0
        self.has_settled = False
        self.n_left_out = 0
        self.n_forwards = -1

    def add(self, optimizer: Optimizer) -> None:
        """Add an optimizer of its roots."""
        self.optimizers.add(optimizer)
        self.held |= held_ids(optimizer)

    @property
    def is_over(self) -> bool:
        """Whether the program has dropped the optimizers of a complete training."""
        return self.has_settled and bool(self.held) and not self.optimizers

    def is_followed_by(self, held: set[int]) -> bool:
        """Return whether an optimizer of these parameters begins another training.

        REQUIRES: the parameters belong to the roots.
        """
        return self.is_over and held != self.held

    def parameters(self) -> set[int]:
        """Return the ids of all parameters of the roots."""
        found = (root() for root in self.roots)
        return {
            number
            for root in found
            if root is not None
            for number in parameter_ids(root)
        }


def make_hook(
    settings: Mapping[str, Any],
    module: nn.Module,
    path: Place,
    optimizers: Iterable[Optimizer],
) -> Any:
    """Make the hook of a training.

    Args:
        settings: As in ``Discovery``.
        module: The first root.
        path: Where the run is to be.
        optimizers: The optimizers that may train it.
    """
    from tdbg import pytorch

    # Where optimizers have parameters of others too, each root goes by its name.
    own, inside = parameter_ids(module), unwrapped(module)
    is_alone = all(held_ids(optimizer) <= own for optimizer in optimizers)
    hook = pytorch.watch(
        module,
        out=path,
        name=None if is_alone else name_in_model(inside) or class_name(inside),
        **arguments_of(settings),
    )
    include(hook, settings)
    with contextlib.suppress(Exception):  # Its version may be unknown.
        _observe_trainer(hook)
    return hook


def _observe_trainer(hook: Any) -> None:
    """Let a trainer that is at work be looked at, if a trainer calls the model."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        integration = _TRAINERS.get(frame.f_globals.get("__name__", ""))
        trainer = frame.f_locals.get("self") if integration else None
        if integration and trainer is not None:
            import_module(integration).observe_trainer(trainer, hook)
            return
        frame = frame.f_back


class Candidate:
    """A module that is called from outside of others, and that no optimizer trains.

    Attributes:
        module: The module.
        parameters: Those that it had when it was called last, perhaps lent to it, by
            identity.
        was_followed: Whether a backward pass has begun since it was called.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        self.was_followed = False
        self.called(module)

    def called(self, module: nn.Module) -> None:
        """Note that the module is called."""
        self.parameters = {id(each): weakref.ref(each) for each in module.parameters()}

    def has_one_of(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Return whether one of these was a parameter of the module."""
        return any(
            id(each) in self.parameters and self.parameters[id(each)]() is each
            for each in tensors
        )


def has_own_parameters(module: nn.Module) -> bool:
    """Return whether a module has real parameters, not tensors lent for a call."""
    return all(isinstance(each, nn.Parameter) for each in module.parameters())


def outermost(modules: list[nn.Module]) -> list[nn.Module]:
    """Return the modules that are inside no other of these."""
    inside = {id(each) for one in modules for each in one.modules() if each is not one}
    return [each for each in modules if id(each) not in inside]


def owners(parameters: set[int]) -> list[nn.Module]:
    """Return all modules of the process that have one of these parameters, by id."""
    return [
        each
        for each in living(nn.Module)
        if not parameters.isdisjoint(parameter_ids(each))
    ]


def parameter_ids(module: nn.Module) -> set[int]:
    """Return the ids of the parameters of a module and of all inside."""
    return {id(parameter) for parameter in module.parameters()}


def rank_and_size() -> tuple[int, int]:
    """Return the rank and the number of ranks; (0, 1) if they are unclear."""
    try:
        return process_group_rank() or launched_rank(os.environ)
    except TdbgError:  # The hook reports it.
        return 0, 1
