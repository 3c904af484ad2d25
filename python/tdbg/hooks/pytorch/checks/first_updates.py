"""Find out in the first steps whether gradients are made and used as they should be.

Each check sees where backward passes begin and the steps of optimizers, until it has
seen enough.

Thread safety: the training's thread.  Errors: none; a check that fails ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.copies.kept_references import SelfTargets
from tdbg.hooks.pytorch.checks.copies.shared_weights import EqualNetworks, SharedWeights
from tdbg.hooks.pytorch.checks.data.evaluated_outputs import EvaluatedOutputs
from tdbg.hooks.pytorch.checks.data.loop_answers import state_over_batches
from tdbg.hooks.pytorch.checks.data.program_loops import (
    kept_as_dropped,
    unread_arguments,
    unread_settings,
)
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.graphs.graph_reader import (
    Found,
    GraphFaults,
    GraphReader,
    StepCheck,
)
from tdbg.hooks.pytorch.checks.graphs.weighed_chances import Rollouts
from tdbg.hooks.pytorch.checks.losses.bootstraps import Bootstraps, LossVariables
from tdbg.hooks.pytorch.checks.losses.contrasts import Contrasts
from tdbg.hooks.pytorch.checks.losses.gradient_use import GradientUse
from tdbg.hooks.pytorch.checks.losses.known_forms import (
    Adversaries,
    TakenActions,
    faults_of_forms,
)
from tdbg.hooks.pytorch.checks.losses.layer_forms import faults_of_layers
from tdbg.hooks.pytorch.checks.losses.loss_targets import (
    faults_of_samples,
)
from tdbg.hooks.pytorch.checks.losses.loss_terms import ClassWeights, faults_of_terms
from tdbg.hooks.pytorch.checks.losses.micro_batches import MicroBatches
from tdbg.hooks.pytorch.checks.losses.misplaced_gradients import MisplacedGradients
from tdbg.hooks.pytorch.checks.losses.noise_mixtures import Mixtures
from tdbg.hooks.pytorch.checks.losses.policy_losses import (
    ActorLosses,
    PolicyLosses,
    PolicyRatio,
)
from tdbg.hooks.pytorch.checks.losses.wrong_dimensions import (
    faults_of_dimensions,
    key_of_dimensions,
)
from tdbg.hooks.pytorch.checks.probes.own_gradients import OwnGradients
from tdbg.hooks.pytorch.checks.probes.written_faults import WrittenFaults
from tdbg.hooks.pytorch.checks.updates.clipped_gradients import ClippedGradients
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.hooks.pytorch.functions.scaler_calls import ScalerStep
from tdbg.hooks.pytorch.model.module_tree import class_name
from tdbg.run.observations import Fault, Observation

__all__ = ["FirstUpdates"]

# Graphs whose dimensions are read, whose terms are, whose noise is, and at which
# rollouts are.
_OF_DIMENSIONS, _OF_TERMS, _OF_MIXTURES, _OF_ROLLOUTS = 2, 6, 64, 20_000


class _Table(Protocol):
    """The parameters of a registered module, which a ``ParameterTable`` is."""

    @property
    def module(self) -> nn.Module | None: ...

    def parameters(self) -> Iterable[tuple[torch.Tensor, Any]]: ...


class FirstUpdates:
    """The checks of one training.

    Args:
        tables: The parameters of the registered modules; grows.
        step: Returns the global step of training.
        observe: Writes an observation.
        spend_once: Counts the time, in nanoseconds, that the checks cost.
        reader: Reads the graphs of losses.
        shared: Watches the weights that modules share.
        variables: Those of the program where it computes losses.
        evaluated: Follows what evaluations make of outputs.
        may_probe: Whether functions of the program may be called.

    Attributes:
        is_over: Whether all was found out, so that no step need be seen.
    """

    def __init__(
        self,
        tables: Sequence[_Table],
        step: Callable[[], int],
        observe: Callable[[Observation], None],
        spend_once: Callable[[int], None],
        reader: GraphReader,
        shared: SharedWeights,
        variables: LossVariables,
        evaluated: EvaluatedOutputs,
        *,
        may_probe: bool,
    ) -> None:
        self.is_over = False
        self._tables = tables
        self._step = step
        self._observe = observe
        self._spend_once = spend_once
        self._reader = reader
        self._clipping = ClippedGradients(self._parameters, self._note)
        self._use = GradientUse(self._parameters, self._note)
        self._checks: list[StepCheck] = [
            self._clipping,
            self._use,
            shared,
            GraphFaults(
                faults_of_dimensions, _OF_DIMENSIONS, self._note, key_of_dimensions
            ),
            GraphFaults(_faults_of_terms, _OF_TERMS, self._note),
            GraphFaults(_faults_of_targets, _OF_DIMENSIONS, self._note),
            WrittenFaults(
                tables,
                step,
                observe,
                state_of=state_over_batches,
                unread_of=unread_settings,
                unread_by=unread_arguments,
                dropped_of=kept_as_dropped,
            ),
            OwnGradients(step, observe, is_open=may_probe),
            MisplacedGradients(self._parameters, self._note),
            ClassWeights(self._note),
            MicroBatches(self._note),
            PolicyRatio(self._note),
            PolicyLosses(self._note),
            ActorLosses(self._note),
            EqualNetworks(tables, step, observe),
            SelfTargets(tables, step, observe),
            Bootstraps(self._note, variables),
            Contrasts(self._note),
            Adversaries(self._note),
            TakenActions(self._note),
            GraphFaults(Rollouts(), _OF_ROLLOUTS, self._note),
            GraphFaults(Mixtures(), _OF_MIXTURES, self._note),
            evaluated,
        ]
        reader.add(self)

    def loss_begins(self, graph: Graph) -> None:
        """Note that a backward pass is about to begin."""
        self._tell(self._checks, methodcaller("loss_begins", graph))

    def step_begins(self, optimizer: Optimizer) -> None:
        """Note that an optimizer is about to step."""
        self._tell(self._checks, methodcaller("step_begins", optimizer))

    def step_ends(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has stepped."""
        self._tell(self._checks, methodcaller("step_ends", optimizer))

    def scaler_steps(self, step: ScalerStep, scale: Callable[[], float]) -> None:
        """Note that a scaler is about to step an optimizer.

        Args:
            step: What it is about to do.
            scale: Returns the scale, for which a device may have to be asked.
        """
        if not self._clipping.is_over:
            self._tell(
                [self._clipping], lambda _: self._clipping.scaler_steps(step, scale)
            )
        if not self._use.is_over:
            self._tell([self._use], lambda _: self._use.scaler_steps(step.optimizer))

    def stranger_steps(self, optimizer: Optimizer) -> None:
        """Note that an optimizer without parameters of the model is about to step."""
        if not self._use.is_over:
            self._tell([self._use], lambda _: self._use.stranger_steps(optimizer))

    def remove(self) -> None:
        """Look at no more."""
        self.is_over = True
        while self._checks:
            self._checks.pop().remove()
        self._reader.discard(self)

    def _tell(
        self, checks: Sequence[StepCheck], tell: Callable[[StepCheck], None]
    ) -> None:
        """Tell checks what happens, and end those that are over or fail."""
        if is_compiling() or is_recording():
            return
        start = time.perf_counter_ns()
        for check in list(checks):
            try:
                tell(check)
            except Exception:
                check.remove()
            if check.is_over and check in self._checks:
                self._checks.remove(check)
        if not self._checks:
            self.remove()
        self._spend_once(time.perf_counter_ns() - start)

    def _parameters(self) -> Iterator[torch.Tensor]:
        for table in self._tables:
            for parameter, _ in table.parameters():
                yield parameter

    def _note(
        self, fault: Fault, numbers: Mapping[str, float], words: Mapping[str, str]
    ) -> None:
        roots = (table.module for table in self._tables)
        names = [class_name(root) for root in roots if root is not None][:1]
        step = max(0, self._step())
        self._observe(Observation(fault, step, tuple(names), numbers, words))


def _faults_of_targets(graph: Graph) -> Iterator[Found]:
    yield from faults_of_samples(graph)
    yield from faults_of_layers(graph)


def _faults_of_terms(graph: Graph) -> Iterator[Found]:
    yield from faults_of_terms(graph)
    yield from faults_of_forms(graph)
