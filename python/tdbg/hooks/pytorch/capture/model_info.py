"""Description of a model, from its modules, parameters, losses and optimizers.

Thread safety: the training's thread.

Errors: none of its own; parts that cannot be described are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.capture.model_info import ModelMarks
from tdbg.config.kinds import Kind
from tdbg.hooks.pytorch.capture.function_calls import FunctionCalls
from tdbg.hooks.pytorch.capture.losses import CapturedLoss
from tdbg.hooks.pytorch.capture.optimizers import OptimizerWatch
from tdbg.hooks.pytorch.capture.parameters_and_gradients import ParameterPlace
from tdbg.hooks.pytorch.capture.registered_modules import ModuleCapture
from tdbg.hooks.pytorch.checks.copies.running_statistics import NormStatistics
from tdbg.hooks.pytorch.checks.first_losses import FirstLosses
from tdbg.hooks.pytorch.checks.updates.optimizer_setup import OptimizerSetup
from tdbg.hooks.pytorch.checks.updates.schedules import Schedules
from tdbg.hooks.pytorch.device.tensors import (
    gradient_of,
    is_recording,
    name_of,
    sample_of,
)
from tdbg.hooks.pytorch.model.kinds import kind_of
from tdbg.hooks.pytorch.model.mode import evaluating
from tdbg.hooks.pytorch.model.module_tree import (
    class_name,
    named_modules,
    package_models_in,
)
from tdbg.hooks.pytorch.model.process_objects import parameters_of
from tdbg.run.model_info import ModelInfo, ParameterFacts, owner_of

__all__ = ["TorchModel"]


# Backward passes that begin elsewhere before it is clear that none begins at a loss.
_OFTEN_IDLE = 5
# A registered module that lives.
_Root = tuple[ModuleCapture, nn.Module]


class TorchModel:
    """The model of a training: a ``ModelSource``.

    Args:
        module_captures: Those of the registered modules; grows.
        losses: The registered losses; grows.
        schedules: Follows those of the optimizers.

    Attributes:
        watch: Knows the optimizers, once something does.
        first_losses: Reads the graphs of the losses; None: nothing does yet.
        setup: Knows how the optimizers are set up; None: nothing does yet.
        functions: Follows calls of functions, if anything does.
        statistics: Watches running statistics, if anything does.
    """

    def __init__(
        self,
        module_captures: Sequence[ModuleCapture],
        losses: Sequence[CapturedLoss],
        schedules: Schedules,
    ) -> None:
        self._module_captures = module_captures
        self._losses = losses
        self._schedules = schedules
        self.watch: OptimizerWatch | None = None
        self.first_losses: FirstLosses | None = None
        self.setup: OptimizerSetup | None = None
        # Names of parameters that have had a gradient.
        self._with_gradient: set[str] = set()
        self.functions: FunctionCalls | None = None
        self.statistics: NormStatistics | None = None
        # A trained parameter, and some of its elements.
        self._first: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []

    @property
    def _optimizers(self) -> list[Optimizer]:
        return [] if self.watch is None else self.watch.optimizers()

    def stands_still(self) -> bool:
        """Return whether parameters are as they were at the first call."""
        if is_recording():
            return False
        if not self._first:
            trained = [
                parameter
                for each in self._tracked()
                if (parameter := each.parameter()) is not None
                and parameter.requires_grad
            ]
            self._first = [
                (weakref.ref(each), sample_of(each)) for each in trained[-1:]
            ]
        found = [(each(), sample) for each, sample in self._first]
        return bool(found) and all(
            each is not None and len(sample) and torch.equal(sample_of(each), sample)
            for each, sample in found
        )

    def marks(self) -> ModelMarks:
        """Count what there is, and which parameters are trained."""
        all_tracked = self._tracked()
        found = [len(self._module_captures), len(self._losses), len(all_tracked)]
        found += [0 if self.watch is None else self.watch.n_foreign]
        found += [
            len(group["params"])
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]
        for tracked in all_tracked:
            parameter = tracked.parameter()
            found.append(-1 if parameter is None else parameter.requires_grad)
            if parameter is not None and gradient_of(parameter) is not None:
                self._with_gradient.add(tracked.weight.name)
        found.append(len(self._with_gradient))
        found += [len(self._made_inputs()), len(self._idle_losses())]
        if self.first_losses is not None:
            found += self.first_losses.look()
        if self.setup is not None:
            self.setup.look()
        if self.statistics is not None:
            with contextlib.suppress(Exception):
                self.statistics.look()
        with contextlib.suppress(Exception):
            self._schedules.look(self._optimizers)
        return ModelMarks(len(all_tracked), tuple(found))

    def model_info(
        self, step: int, trained_in_evaluation: Collection[Hashable]
    ) -> ModelInfo:
        """Describe the model as it is now."""
        optimizers, others = self._optimizers, list[Optimizer]()
        if self.watch is not None and self.watch.n_foreign:
            others = self.watch.others()
        held = {
            id(parameter): i
            for i, optimizer in enumerate(optimizers)
            for parameter in parameters_of(optimizer)
        }
        roots = [
            (module_capture, root)
            for module_capture in self._module_captures
            if (root := module_capture.module) is not None
        ]
        modules, kinds = self._modules(roots)
        info = ModelInfo(
            evaluating=tuple(self._evaluating(trained_in_evaluation, held)),
            dropping=() if self.functions is None else self.functions.dropping,
            step=step,
            models=tuple(class_name(root) for _, root in roots),
            losses=tuple(loss.class_name for loss in self._losses),
            idle_losses=self._idle_losses(),
            optimizers=tuple(type(each).__name__ for each in (*optimizers, *others)),
            modules=modules,
            kinds=kinds,
            parameters=self._parameters(roots, held),
            complete=bool(optimizers),
            keeps_gradients=self.watch is not None and self.watch.keeps_gradients,
            made_inputs=self._made_inputs(),
        )
        return info if self.first_losses is None else self.first_losses.add_to(info)

    def at_end(self, info: ModelInfo) -> ModelInfo:
        """Add how far the schedules have come."""
        if self.setup is not None:
            self.setup.look(at_end=True)
        with contextlib.suppress(Exception):
            self._schedules.look(self._optimizers)
            self._schedules.conclude()
        return dataclasses.replace(info, schedules=self._schedules.known())

    def _modules(
        self, roots: Sequence[_Root]
    ) -> tuple[dict[str, str], dict[str, Kind]]:
        """Return the classes of all modules by path, and kinds by loss and class."""
        modules: dict[str, str] = {}
        kinds = {loss.name: loss.kind for loss in self._losses}
        for module_capture, root in roots:
            for path, module in named_modules(root):
                name = module_capture.prefix + path if path else module_capture.name
                modules.setdefault(name, class_name(module))
                kinds.setdefault(class_name(module), kind_of(module))
        return modules, {key: kind for key, kind in kinds.items() if kind is not None}

    def _parameters(
        self, roots: Sequence[_Root], held: Mapping[int, int]
    ) -> dict[str, ParameterFacts]:
        """Return the facts of all parameters by name."""
        cut = {} if self.first_losses is None else self.first_losses.cut()
        package_models = {
            module_capture.prefix + path: module_capture.prefix + model
            for module_capture, root in roots
            for path, model in package_models_in(root).items()
        }
        parameters: dict[str, ParameterFacts] = {}
        for tracked in self._tracked():
            parameter = tracked.parameter()
            # A lazy parameter has no shape yet.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                if parameter is not None:
                    name = tracked.weight.name
                    parameters[name] = dataclasses.replace(
                        _facts_of(tracked, parameter, held.get(id(parameter))),
                        has_gradient=name in self._with_gradient,
                        cut_by=cut.get(id(parameter)),
                        package_model=package_models.get(owner_of(name)),
                    )
        return parameters

    def _idle_losses(self) -> tuple[str, ...]:
        return tuple(
            each.name
            for each in self._losses
            if each.n_idle >= _OFTEN_IDLE and not each.is_begun
        )

    def _made_inputs(self) -> tuple[str, ...]:
        found = (each.made_inputs for each in self._module_captures)
        return tuple(sorted(frozenset[str]().union(*found)))

    def _tracked(self) -> list[ParameterPlace]:
        return [
            each
            for module_capture in self._module_captures
            for each in module_capture.parameters.tracked_parameters()
        ]

    def _evaluating(
        self, roots: Collection[Hashable], held: Mapping[int, int]
    ) -> Iterator[str]:
        """Yield the layers of these roots whose results evaluation mode changes."""
        dropping = set() if self.functions is None else self.functions.not_dropping
        for module_capture in self._module_captures:
            root = module_capture.module
            if root is None or id(module_capture) not in roots:
                continue
            trained = {
                id(each) for each in root.parameters() if each.requires_grad
            } & held.keys()
            for path in evaluating(root, trained, dropping):
                yield module_capture.prefix + path if path else module_capture.name


def _facts_of(
    tracked: ParameterPlace, parameter: torch.Tensor, optimizer: int | None
) -> ParameterFacts:
    owner = tracked.owner()
    return ParameterFacts(
        shape=tuple(int(size) for size in parameter.shape),
        dtype=name_of(parameter.dtype) or str(parameter.dtype).removeprefix("torch."),
        requires_grad=parameter.requires_grad,
        module="" if owner is None else class_name(owner),
        optimizer=optimizer,
    )
