"""See running statistics that are not those of the training.

In training, batch normalization uses the statistics of the batch and follows them; in
evaluation, it uses what it has followed.  It has followed nothing if it was never
called in training.  It has nearly forgotten all but the last batch if its momentum was
meant for another framework.  And it goes on following while its weights are frozen.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import compiler, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.batchnorm import _NormBase

from tdbg.capture.session import Session
from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.device.tensors import is_recording, sample_of
from tdbg.hooks.pytorch.model.callbacks import Inert
from tdbg.hooks.pytorch.model.module_tree import named_modules
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["NormStatistics", "has_statistics", "statistics_of"]

# Layers that are looked at, and how often, at most.
_MOST_LAYERS, _MOST_LOOKS = 100, 12
# Steps of training before an evaluation that must find fed layers; evaluations that are
# looked at; layers that are named.
_LEAST_STEPS, _MOST_EVALUATIONS, _MOST_NAMED = 3, 3, 8
# Keras's momentum is the weight of the past; PyTorch's is that of the batch.
_OF_ANOTHER = 0.8
# Looks that show how far statistics jump.
_ENOUGH_JUMPS = 3
# Deviations by which statistics of frozen layers have moved, to be said at once.
_FAR = 0.5


class _Layer:
    """A normalization with running statistics.

    Attributes:
        path: Its path in the model.
        first: Its statistics at the beginning.
        was_training: Whether it was in training mode as an optimizer stepped.
        jumps: Distances between its means at looks, in deviations.
    """

    def __init__(self, path: str, module: nn.Module, feeds: nn.Module | None) -> None:
        self.path = path
        self._module = weakref.ref(module)
        # The layer before it, and some of its weights.
        self._feeds = None if feeds is None else weakref.ref(feeds)
        self._weights = None if feeds is None else _weights_of(feeds)
        self.first = self._latest = statistics_of(module)
        self.was_training = False
        self.jumps: list[float] = []

    @property
    def module(self) -> Any:
        """The layer, if it lives."""
        return self._module()

    def look(self) -> None:
        """Note the mode, and how far the means have jumped."""
        module = self.module
        if module is None:
            return
        self.was_training |= module.training
        if is_of_another_framework(module):
            before, self._latest = self._latest, statistics_of(module)
            self.jumps.append(_distance(before, self._latest))

    def drift(self) -> float:
        """Return how far the statistics have moved, in deviations.

        The result is 0 unless the layer and the one before it are frozen, nobody
        writes to their weights, and the statistics were those of a training.
        """
        module = self.module
        feeds = None if self._feeds is None else self._feeds()
        if module is None or feeds is None or not module.training:
            return 0.0
        if not (_is_frozen(module) and _is_frozen(feeds)) or _are_initial(self.first):
            return 0.0
        if self._weights is None or not torch.equal(self._weights, _weights_of(feeds)):
            return 0.0
        return _distance(self.first, statistics_of(module))


class NormStatistics:
    """Watch the running statistics of a model.

    Args:
        session: Counts the steps of training, and writes what is seen.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layers: list[_Layer] = []
        self._roots: list[weakref.ref[nn.Module]] = []
        self._n_looks = 0
        # The numbers of training steps before the evaluations that were looked at.
        self._evaluated: set[int] = set()
        self._handles: list[Any] = []
        # By fault, how far the layers have moved.
        self._moved: dict[Fault, tuple[list[str], float]] = {}

    def register(self, root: nn.Module, prefix: str) -> None:
        """Watch the layers of a root, whose paths begin with *prefix*."""
        self._roots.append(weakref.ref(root))
        before: nn.Module | None = None
        for path, module in named_modules(root):
            if has_statistics(module) and len(self._layers) < _MOST_LAYERS:
                self._layers.append(_Layer(prefix + path, module, before))
            elif next(module.parameters(recurse=False), None) is not None:
                before = module

    def look(self) -> None:
        """Look at all layers: an optimizer has stepped."""
        if not self._layers or self._n_looks >= _MOST_LOOKS or is_recording():
            return
        self._n_looks += 1
        for layer in self._layers:
            layer.look()
        if any(layer.jumps for layer in self._layers):
            self._look_at_jumps()
        if self._is_trained():
            self._look_at_frozen()
        if self._n_looks >= _MOST_LOOKS:
            self._conclude()

    def evaluation_begins(self) -> None:
        """Look for layers that were never fed: a forward of evaluation has begun."""
        n_steps = self._session.n_training_steps
        if n_steps < _LEAST_STEPS or n_steps in self._evaluated:
            return
        if not self._layers or len(self._evaluated) >= _MOST_EVALUATIONS:
            return
        if is_recording():
            return
        self._evaluated.add(n_steps)
        self._forget_calls()
        found = [
            layer
            for layer in self._layers
            if layer.was_training and _is_unfed(layer.module)
        ]
        for layer in found[:_MOST_NAMED]:
            called = _Called(self, layer, len(found))
            self._handles.append(layer.module.register_forward_pre_hook(called))

    def called(self, layer: _Layer, n_layers: int) -> None:
        """Report layers that were not fed, if evaluation calls one of them as it is."""
        if _is_unfed(layer.module):
            self._observe(Fault.NEVER_FED, [layer.path], {"layers": n_layers})
            self._forget_calls()
            self._evaluated.update(range(-_MOST_EVALUATIONS, 0))

    def remove(self) -> None:
        """Look no longer; report what was not certain enough before."""
        self._forget_calls()
        self._conclude()
        self._layers.clear()

    # ---- inside ----------------------------------------------------------------

    def _look_at_jumps(self) -> None:
        found = [
            layer
            for layer in self._layers
            if layer.was_training and len(layer.jumps) >= _ENOUGH_JUMPS
        ]
        if found:
            distance = max(median(layer.jumps[1:]) for layer in found)
            names = [layer.path for layer in found]
            self._moved[Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK] = names, distance

    def _look_at_frozen(self) -> None:
        drifts = {
            layer.path: drift for layer in self._layers if (drift := layer.drift())
        }
        fault = Fault.FROZEN_STATISTICS_MOVE
        self._moved.pop(fault, None)
        if drifts:
            names = sorted(drifts, key=drifts.__getitem__, reverse=True)
            self._moved[fault] = names, drifts[names[0]]
            if drifts[names[0]] >= _FAR:
                self._conclude()

    def _conclude(self) -> None:
        """Report how far statistics have moved."""
        self._n_looks = _MOST_LOOKS
        for fault, (paths, distance) in self._moved.items():
            numbers = {"distance": distance, "layers": len(paths)}
            self._observe(fault, paths, numbers)
        self._moved.clear()

    def _is_trained(self) -> bool:
        roots = [root for each in self._roots if (root := each()) is not None]
        return any(each.requires_grad for root in roots for each in root.parameters())

    def _observe(
        self, fault: Fault, paths: Sequence[str], numbers: dict[str, float]
    ) -> None:
        modules = {layer.path: layer.module for layer in self._layers}
        momentum = getattr(modules.get(paths[0]), "momentum", None)
        if momentum is not None:
            numbers["momentum"] = momentum
        step = max(0, self._session.latest_step(TRAIN)[0])
        names = tuple(paths[:_MOST_NAMED])
        self._session.observe(Observation(fault, step, names, numbers))

    def _forget_calls(self) -> None:
        while self._handles:
            self._handles.pop().remove()


class _Called(Inert):
    """The hook of a layer that was not fed."""

    __slots__ = ("_layer", "_n_layers", "_statistics")

    def __init__(
        self, statistics: NormStatistics, layer: _Layer, n_layers: int
    ) -> None:
        self._statistics = weakref.ref(statistics)
        self._layer = layer
        self._n_layers = n_layers

    def __call__(self, *_: Any) -> None:
        statistics = self._statistics()
        if statistics is None or is_dynamo_compiling() or compiler._is_compiling_flag:
            return
        if is_recording():
            return
        session = statistics._session
        session.run(statistics.called, self._layer, self._n_layers)


never_compiled(_Called.__call__)


def has_statistics(module: nn.Module) -> bool:
    """Return whether a module has running statistics, which evaluation uses."""
    return (
        isinstance(module, _NormBase)
        and bool(module.track_running_stats)
        and type(module.running_mean) is torch.Tensor
        and type(module.running_var) is torch.Tensor
    )


def statistics_of(module: Any) -> torch.Tensor:
    """Return some running means, and below them the variances."""
    both = sample_of(module.running_mean), sample_of(module.running_var)
    return torch.stack(both).double()


def is_of_another_framework(module: Any) -> bool:
    """Return whether the past has the weight that the batch has in other frameworks."""
    momentum = module.momentum
    return momentum is not None and _OF_ANOTHER <= momentum < 1.0


def _are_initial(statistics: torch.Tensor) -> bool:
    means, variances = statistics
    return not bool(means.any()) and bool((variances == 1).all())


def _is_unfed(module: Any) -> bool:
    """Return whether a layer evaluates with the statistics that it was made with."""
    if module is None or module.training or not has_statistics(module):
        return False
    return _are_initial(statistics_of(module))


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far means are apart, in deviations, on average over the channels."""
    deviations = one[1].maximum(other[1]).sqrt().clamp(min=1e-12)
    return float(((one[0] - other[0]).abs() / deviations).mean())


def _is_frozen(module: nn.Module) -> bool:
    return not any(each.requires_grad for each in _own(module))


def _weights_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([sample_of(each).double() for each in _own(module)])


def _own(module: nn.Module) -> Iterator[torch.Tensor]:
    return module.parameters(recurse=False)
