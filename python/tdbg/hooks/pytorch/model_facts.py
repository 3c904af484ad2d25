"""Tells what is known of the model: its parameters, modules, losses and optimizers.

Written when the first step of training ends, and again when something has changed
since: an optimizer that was found later, a parameter that was unfrozen.  Optimizers
say so at once; the rest is looked for now and then, so that a step costs nothing.

Thread safety: the training's thread.

Errors: none of its own; what cannot be described is left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch.optim import Optimizer

from tdbg.capture.events import CONFIGURATION
from tdbg.capture.session import Session
from tdbg.facts import Facts, ParameterFacts
from tdbg.hooks.pytorch.evaluating import evaluating
from tdbg.hooks.pytorch.losses import LossTap
from tdbg.hooks.pytorch.modules import ModuleTap
from tdbg.hooks.pytorch.parameters import Entry
from tdbg.hooks.pytorch.paths import class_name, named_modules
from tdbg.hooks.pytorch.tensors import name_of
from tdbg.modes import TRAIN

__all__ = ["ModelFacts"]

# Steps of optimizers between two looks: so many parameters a step, within bounds.
_PARAMETERS_A_STEP = 3
_SOONEST, _LATEST = 10, 100
# A model that is trained in eval() and out of it by turns, so often, is so on purpose;
# and that is not to be written down at every step.
_MOST_TURNS = 64


class ModelFacts:
    """Writes the facts of a session.

    Args:
        session: Where they go.
        taps: The registered modules; grows.
        losses: The registered losses; grows.
    """

    def __init__(
        self, session: Session, taps: Sequence[ModuleTap], losses: Sequence[LossTap]
    ) -> None:
        self._session = session
        self._taps = taps
        self._losses = losses
        self.optimizers: Callable[[], Sequence[Optimizer]] = tuple
        self._countdown = 1
        self._n_forwards = 0
        self._seen: tuple[int, ...] = ()
        self._told: Facts | None = None
        self._n_turns = 0

    def change(self) -> None:
        """Something has changed: tell it when the next optimizer has stepped."""
        self._countdown = 1
        self._seen = ()

    def mode_changed(self) -> None:
        """The model turns out to be trained in eval(), or no longer to be."""
        self._n_turns += 1
        if self._n_turns <= _MOST_TURNS:
            self.change()

    def optimizer_stepped(self) -> None:
        """An optimizer has stepped; its step is not over yet."""
        self._countdown -= 1
        if self._countdown <= 0:
            self._look()

    def forward_begins(self) -> None:
        """A forward in training is about to begin, and no optimizer is known."""
        self._n_forwards += 1
        if self._n_forwards > 1 and self._told is None:
            self._look()

    def conclude(self) -> None:
        """The training has ended, perhaps after its first step."""
        if self._n_forwards and self._told is None:
            self._look()

    def _look(self) -> None:
        """Tell what is known, if it may be something else than before."""
        entries = [each for tap in self._taps for each in tap.parameters.entries()]
        soon = len(entries) // _PARAMETERS_A_STEP
        self._countdown = min(_LATEST, max(_SOONEST, soon))
        seen = self._glance(entries)
        if self._session.writes_to is None or (seen == self._seen and self._told):
            return
        self._seen = seen
        machine = self._session.machine
        step = machine.training
        number = machine.latest(TRAIN)[0] if step is None else step.number
        facts = self._facts(max(0, number), entries)
        told = self._told
        if told is None or facts != dataclasses.replace(told, step=facts.step):
            self._told = facts
            for document in facts.parts():
                self._session.write_event(CONFIGURATION, document, facts.step)

    def _glance(self, entries: Sequence[Entry]) -> tuple[int, ...]:
        """What changes when facts do, and is found fast."""
        found = [len(self._taps), len(self._losses), len(entries)]
        found += [
            len(group["params"])
            for optimizer in self.optimizers()
            for group in optimizer.param_groups
        ]
        for entry in entries:
            parameter = entry.parameter()
            found.append(-1 if parameter is None else parameter.requires_grad)
        return tuple(found)

    def _facts(self, step: int, entries: Sequence[Entry]) -> Facts:
        optimizers = self.optimizers()
        held = {
            id(parameter): i
            for i, optimizer in enumerate(optimizers)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        modules: dict[str, str] = {}
        roots = [(tap, tap.module) for tap in self._taps]
        for tap, root in roots:
            for path, module in named_modules(root) if root is not None else ():
                name = tap.prefix + path if path else tap.name
                modules.setdefault(name, class_name(module))
        parameters: dict[str, ParameterFacts] = {}
        for entry in entries:
            parameter = entry.parameter()
            # One that has no shape yet has nothing to tell.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                if parameter is not None:
                    optimizer = held.get(id(parameter))
                    parameters[entry.weight.name] = _of(entry, parameter, optimizer)
        return Facts(
            evaluating=tuple(self._evaluating(held)),
            step=step,
            models=tuple(class_name(root) for _, root in roots if root is not None),
            losses=tuple(loss.kind for loss in self._losses),
            optimizers=tuple(type(each).__name__ for each in optimizers),
            modules=modules,
            parameters=parameters,
            complete=bool(optimizers),
        )

    def _evaluating(self, held: Mapping[int, int]) -> Iterator[str]:
        """Layers that mind, of the models that this step was trained with in eval()."""
        machine = self._session.machine
        step = machine.training
        if step is None or not machine.trains_in_evaluation:
            return
        if self._n_turns >= _MOST_TURNS:
            return
        for tap in self._taps:
            root = tap.module
            if root is None or id(tap) not in step.forwards:
                continue
            trained = {
                id(each) for each in root.parameters() if each.requires_grad
            } & held.keys()
            for path in evaluating(root, trained):
                yield tap.prefix + path if path else tap.name


def _of(entry: Entry, parameter: torch.Tensor, optimizer: int | None) -> ParameterFacts:
    owner = entry.owner()
    return ParameterFacts(
        shape=tuple(int(size) for size in parameter.shape),
        dtype=name_of(parameter.dtype) or str(parameter.dtype).removeprefix("torch."),
        requires_grad=parameter.requires_grad,
        module="" if owner is None else class_name(owner),
        optimizer=optimizer,
    )
