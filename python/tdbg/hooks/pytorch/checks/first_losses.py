"""Read the graphs of the first losses, and find parameters that nobody trains.

A parameter that takes part in the loss, but is in neither the model nor an optimizer,
never changes.  Layers in a plain list are an example, or a loss with its own weights.
A parameter that the program writes to, such as a copy of the model's, is no mistake.
Nor does a layer change that ``forward`` makes anew each time: it is gone when the next
loss has another one.

Thread safety: the training's thread.  Errors: none; unreadable graphs are skipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.copies.copies import Copies
from tdbg.hooks.pytorch.checks.copies.target_networks import TargetNetworks
from tdbg.hooks.pytorch.checks.copies.teachers import Teachers
from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.graphs.graph_reader import GraphReader
from tdbg.hooks.pytorch.checks.losses.bootstraps import LossVariables
from tdbg.hooks.pytorch.checks.losses.loss_graph import LossGraph, read_loss_graph
from tdbg.hooks.pytorch.device.tensors import is_recording, sample_of
from tdbg.hooks.pytorch.model.module_tree import class_name, named_modules
from tdbg.hooks.pytorch.model.process_objects import held_ids, living, met
from tdbg.run.loss_facts import LossFact, UntrainedParameter
from tdbg.run.model_info import ModelInfo

__all__ = ["FirstLosses"]

# Graphs of this training that are read, and graphs of other trainings that are read in
# vain, at most: a step may have several losses.
_MOST_GRAPHS = 8
_MOST_IN_VAIN = 10
# Calls of ``look`` after which the optimizers have stepped often enough.
_LOOKS = 2
# Parameters that are watched and reported, at most.
_MOST_PARAMETERS = 100
# Losses that each had another layer: no accident.
_MADE_ANEW = 3
# How deep lists in lists are searched for modules.
_DEEPEST = 3


class _Table(Protocol):
    """The parameters of a registered module, which a ``ParameterTable`` is."""

    @property
    def module(self) -> nn.Module | None: ...

    def identities(self) -> set[int]: ...


class _Watched(NamedTuple):
    # Whether the model takes part in the same loss.
    is_beside_ours: bool
    shape: tuple[int, ...]
    parameter: weakref.ref[Any]
    sample: torch.Tensor
    version: int
    since: int

    def is_untouched(self, parameter: torch.Tensor) -> bool:
        """Return whether nobody has written to it, be it the same numbers."""
        return (
            parameter._version == self.version
            and len(self.sample) > 0
            and torch.equal(sample_of(parameter), self.sample)
        )


class FirstLosses:
    """Read the first losses of a training, and the next ones after a new optimizer.

    The new optimizer may have other parameters than those of the loss.

    Args:
        tables: The parameters of the registered modules; grows.
        step: Returns the global step of training.
        spend_once: Counts the time, in nanoseconds, that reading costs.
        reader: Reads the graphs of losses.
        copies: Watches copies of the modules.
        teachers: Watches models whose answers the modules learn.
        variables: Those of the program where it computes losses.
        begins: Told of the losses of this training.

    Attributes:
        facts: The faults of the losses so far.
        is_open: Whether graphs were read and hide nothing.
        is_surrogate: Whether one of them is a policy gradient's.
        logit_scale: The largest number that one multiplies logits by.
        untrained: Parameters that a loss depends on and that nobody trains.
    """

    def __init__(
        self,
        tables: Sequence[_Table],
        step: Callable[[], int],
        spend_once: Callable[[int], None],
        reader: GraphReader,
        copies: Copies,
        teachers: Teachers,
        variables: LossVariables,
        begins: Callable[[Graph], None],
    ) -> None:
        self._tables = tables
        self._step = step
        self._copies = copies
        self._teachers = teachers
        self._variables = variables
        self._spend_once = spend_once
        self._reader = reader
        self._of_optimizers = begins
        self.facts: tuple[LossFact, ...] = ()
        self.is_open = self.is_surrogate = False
        self.logit_scale = 1.0
        self.untrained: tuple[UntrainedParameter, ...] = ()
        self._watched: dict[int, _Watched] = {}
        # Parameters that a loss reaches, and those that it cannot, with what cuts.
        self._reached: set[int] = set()
        self._cut: dict[int, str] = {}
        self._n_read = self._n_in_vain = 0
        self._n_looks = 0
        self._is_first = True
        self._has_searched = False
        self._targets: TargetNetworks | None = None
        reader.add(self)

    def begin_anew(self) -> None:
        """An optimizer was found: read the losses that come next."""
        self._n_read = self._n_in_vain = self._n_looks = 0
        self._reader.add(self)

    def loss_begins(self, graph: Graph) -> None:
        """Read the graph of a loss at which a backward pass begins."""
        if is_recording():
            return
        start = time.perf_counter_ns()
        try:
            self._read(graph)
        finally:
            self._spend_once(time.perf_counter_ns() - start)

    def look(self) -> tuple[int, ...]:
        """Find parameters that have not changed; return numbers that show a change.

        Called as the first step of an optimizer ends, and then after some more.
        """
        if not is_recording():
            self._look()
        found = len(self.facts), self.is_surrogate, len(self.untrained)
        return *found, len(self.cut()), self.makes_targets

    def _look(self) -> None:
        self._n_looks += 1
        if self._n_looks >= _LOOKS and self._watched:
            with contextlib.suppress(Exception):
                self.untrained = tuple(self._find_untrained())
            self._watched.clear()
        with contextlib.suppress(Exception):
            self._copies.look(make_targets=self._has_target_networks)

    @property
    def makes_targets(self) -> bool:
        """Whether copies of the model make its targets, or what it expects itself."""
        if self._variables.make_targets:
            return True
        return self._targets is not None and self._targets.exist

    @property
    def _has_target_networks(self) -> bool:
        return self._targets is not None and self._targets.exist

    def cut(self) -> dict[int, str]:
        """Return the operations that cut parameters off from all losses, by id."""
        return {key: cut for key, cut in self._cut.items() if key not in self._reached}

    def add_to(self, info: ModelInfo) -> ModelInfo:
        """Return the model's description with the findings about its losses."""
        return dataclasses.replace(
            info,
            loss_facts=self.facts,
            is_loss_open=self.is_open,
            is_surrogate=self.is_surrogate,
            logit_scale=self.logit_scale,
            makes_targets=self.makes_targets,
            untrained=self.untrained,
        )

    def remove(self) -> None:
        """Read no more."""
        self._watched.clear()
        self._reader.discard(self)
        if self._targets is not None:
            self._targets.remove()
        with contextlib.suppress(Exception):
            self._copies.conclude(make_targets=self._has_target_networks)
        self._copies.remove()
        self._teachers.remove()

    def _read(self, graph: Graph) -> None:
        ours = set[int]().union(*(each.identities() for each in self._tables))
        theirs = []
        for leaf, cut in graph.leaves:
            key = id(leaf)
            if key not in ours:
                theirs.append(leaf)
            elif cut:
                self._cut[key] = cut
            else:
                self._reached.add(key)
        if self._n_looks < _LOOKS and theirs:
            self._watch(theirs, is_beside_ours=len(theirs) < len(graph.leaves))
        if graph.root is not None and len(theirs) == len(graph.leaves):
            self._n_in_vain += 1
        else:
            self._learn(read_loss_graph(graph))
            self._teachers.read(graph.root)
            with contextlib.suppress(Exception):
                self._of_optimizers(graph)
        if self._n_read >= _MOST_GRAPHS or self._n_in_vain >= _MOST_IN_VAIN:
            self._reader.discard(self)

    def _learn(self, graph: LossGraph) -> None:
        """Note the findings in the graph of a loss of this training."""
        self.is_open = graph.is_open and (self.is_open or self._is_first)
        self._is_first = False
        self._n_read += 1
        self.is_surrogate |= graph.is_surrogate
        self.logit_scale = max(self.logit_scale, graph.logit_scale)
        found = [each.module for each in self._tables]
        roots = [each for each in found if each is not None]
        self._teachers.note_roots(roots)
        if not self._has_searched:
            self._has_searched = True
            modules = living(nn.Module)
            held = set[int]().union(*map(held_ids, met(Optimizer)))
            self._copies.search(roots, modules, held)
            self._teachers.search(modules, held, self._copies.living())
        if graph.is_distance and self._targets is None:
            self._targets = TargetNetworks(self._step)
            self._targets.watch(self._copies.living())
        # The last batch of an epoch may have another shape.
        known = {(each.fault, each.operation): each for each in reversed(graph.facts)}
        known |= {(each.fault, each.operation): each for each in self.facts}
        self.facts = tuple(known.values())

    def _watch(self, leaves: Sequence[torch.Tensor], *, is_beside_ours: bool) -> None:
        attributes = set[int]()
        if any(not isinstance(leaf, nn.Parameter) for leaf in leaves):
            attributes = {id(each) for _, each in self._plain_tensors()}
        for leaf in leaves:
            is_own = isinstance(leaf, nn.Parameter) or id(leaf) in attributes
            if id(leaf) in self._watched or not is_own:
                continue
            if len(self._watched) < _MOST_PARAMETERS:
                self._watched[id(leaf)] = _Watched(
                    is_beside_ours,
                    tuple(leaf.shape),
                    weakref.ref(leaf),
                    sample_of(leaf),
                    leaf._version,
                    max(0, self._step()),
                )

    def _find_made_anew(self) -> Iterator[UntrainedParameter]:
        """Yield weights and biases of layers that each loss had one of its own of."""
        gone = defaultdict[tuple[int, ...], dict[int, None]](dict)
        for each in self._watched.values():
            if each.is_beside_ours and each.parameter() is None:
                gone[each.shape][each.since] = None
        often = {shape: [*at] for shape, at in gone.items() if len(at) >= _MADE_ANEW}
        for shape, at in often.items():
            is_layer = any(
                len(weight) > 1 and bias == (weight[0],)
                for weight, bias in itertools.permutations(often, 2)
                if shape in (weight, bias)
            )
            if is_layer:
                yield UntrainedParameter(None, shape, True, at[0], len(at))

    def _find_untrained(self) -> Iterator[UntrainedParameter]:
        yield from self._find_made_anew()
        left = {
            id(parameter): parameter
            for each in self._watched.values()
            if (parameter := each.parameter()) is not None
            and each.is_untouched(parameter)
        }
        if not left:
            return
        held, evaluating = _owned()
        if self._targets is not None:
            # Nobody means to train a copy that makes targets.
            held |= self._targets.parameters
        names = dict(self._in_containers())
        names |= {id(each): name for name, each in self._plain_tensors()}
        for identity, parameter in left.items():
            if identity not in held:
                yield UntrainedParameter(
                    names.get(identity),
                    tuple(parameter.shape),
                    identity not in evaluating,
                    self._watched[identity].since,
                )

    def _plain_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield leaves that are attributes of modules, and no parameters."""
        for table in self._tables:
            root = table.module
            if root is None:
                continue
            for path, module in named_modules(root):
                owner = f"{class_name(root)}.{path}" if path else class_name(root)
                for key, value in vars(module).items():
                    is_plain = type(value) is torch.Tensor and value.is_leaf
                    if is_plain and value.requires_grad:
                        yield f"{owner}.{key}", value

    def _in_containers(self) -> Iterator[tuple[int, str]]:
        """Yield parameters in plain lists and dictionaries of the modules."""
        for table in self._tables:
            root = table.module
            if root is None:
                continue
            for path, module in named_modules(root):
                owner = f"{class_name(root)}.{path}" if path else class_name(root)
                for key, value in vars(module).items():
                    if not key.startswith("_") and isinstance(
                        value, list | tuple | dict
                    ):
                        yield from _parameters_in(value, f"{owner}.{key}", _DEEPEST)


def _parameters_in(value: Any, path: str, depth: int) -> Iterator[tuple[int, str]]:
    if isinstance(value, nn.Module):
        for name, parameter in value.named_parameters():
            yield id(parameter), f"{path}.{name}"
    elif isinstance(value, nn.Parameter):
        yield id(value), path
    elif depth and isinstance(value, list | tuple | dict):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in list(members):
            yield from _parameters_in(each, f"{path}[{key!r}]", depth - 1)


def _owned() -> tuple[set[int], set[int]]:
    """Return the parameters of all optimizers, and of modules in evaluation mode."""
    held, evaluating = set[int](), set[int]()
    for each in living(Optimizer, nn.Module):
        if isinstance(each, Optimizer):
            held |= held_ids(each)
        elif not each.training:
            evaluating.update(map(id, each._parameters.values()))
    return held, evaluating
