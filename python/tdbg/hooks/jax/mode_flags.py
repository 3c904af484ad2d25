"""See modules of Flax NNX that are in the wrong mode, by their flags and what they do.

``model.eval()`` sets ``deterministic`` of dropout and ``use_running_average`` of
normalizations.  An argument of a call may say otherwise, so a flag alone proves
nothing: dropout that draws counts its keys, and a normalization in training moves its
statistics.  The momentum of a normalization is the weight of the past.

Thread safety: the training's thread.

Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdbg.capture.session import Session
from tdbg.hooks.jax.normalizations import OF_ANOTHER, distance
from tdbg.modes import TRAIN
from tdbg.run.observations import Fault, Observation

__all__ = ["ModeFlags"]

# Calls of training in a row, steps before an evaluation, evaluations looked at.
_ENOUGH, _LEAST_STEPS, _MOST_EVALUATIONS = 4, 3, 6
# Calls of training that are looked at after each of the first evaluations.
_MOST_CALLS, _MOST_ROUNDS, _ENOUGH_JUMPS = 7, 4, 5
_MOST_ELEMENTS, _MOST_PARAMETERS, _MOST_LAYERS, _MOST_NAMED = 1 << 16, 8, 64, 8

Array = NDArray[Any]


class _Layer(NamedTuple):
    """A layer that works otherwise in training.

    Attributes:
        kind: Its class.
        is_evaluating: What its flag says.
        state: What it changes in training.
        variance: The running variance of a normalization.
        momentum: Its momentum; 1 of others.
        trained: Parameters of its own, or beside it.
    """

    kind: str
    is_evaluating: bool
    state: Array
    variance: Array | None = None
    momentum: float = 1.0
    trained: tuple[Array, ...] = ()


class ModeFlags:
    """Looks at the modules of NNX that steps are called with.

    Args:
        session: Receives what is seen.

    Attributes:
        is_on: Whether the next calls of training are to be looked at.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._latest: Mapping[str, _Layer] = {}
        self._before: Mapping[str, _Layer] = {}
        self._n_wrong = self._n_calls = self._n_rounds = self._n_evaluations = 0
        self._jumps: list[float] = []
        self._told: set[Fault] = set()
        self.is_on = True

    def trained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Look at a call of a training step, which has returned."""
        self.is_on = False  # Also if anything below fails.
        before, self._latest = self._latest, _layers_in(args, kwargs)
        found = self._latest
        self._n_calls += 1
        if not found or Fault.TRAINED_IN_EVALUATION in self._told:
            return
        self.is_on = self._looks_at_momentum(before, found)
        if not all(each.is_evaluating for each in found.values()):
            self._n_wrong = 0
            return
        self.is_on |= self._n_calls < _MOST_CALLS
        if before.keys() != found.keys():
            return
        is_wrong = all(
            _is_equal(before[path].state, each.state)
            and any(
                not _is_equal(*pair)
                for pair in zip(before[path].trained, each.trained, strict=False)
            )
            for path, each in found.items()
        )
        self._n_wrong = self._n_wrong + 1 if is_wrong else 0
        if self._n_wrong >= _ENOUGH:
            self._observe(Fault.TRAINED_IN_EVALUATION, found)

    def _looks_at_momentum(
        self, before: Mapping[str, _Layer], found: Mapping[str, _Layer]
    ) -> bool:
        """Measure how far means jump whose past weighs little; return whether any."""
        quick = {
            path: each
            for path, each in found.items()
            if 0 < each.momentum <= OF_ANOTHER
        }
        if not quick or Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK in self._told:
            return False
        jumps = [
            distance(_statistics_of(before[path]), _statistics_of(each))
            for path, each in quick.items()
            if path in before
        ]
        if any(jumps):
            self._jumps.append(max(jumps))
        if len(self._jumps) < _ENOUGH_JUMPS:
            return self._n_calls < _MOST_CALLS
        numbers = {
            "distance": median(self._jumps[1:]),
            "momentum": next(iter(quick.values())).momentum,
        }
        self._observe(Fault.MOMENTUM_OF_ANOTHER_FRAMEWORK, quick, numbers)
        return False

    def evaluation_begins(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Remember the modules before an evaluation."""
        self._before = {}
        is_told = Fault.EVALUATED_AS_FLAGGED in self._told
        if not is_told and self._n_evaluations < _MOST_EVALUATIONS:
            self._before = _layers_in(args, kwargs)

    def evaluated(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Look at an evaluation that has returned, and at the training that follows."""
        before, self._before = self._before, {}
        if self._n_rounds < _MOST_ROUNDS and self._latest and not self.is_on:
            self._n_rounds += 1
            self._n_calls, self._n_wrong, self.is_on = 0, 0, True
        if not before or self._session.n_training_steps < _LEAST_STEPS:
            return
        self._n_evaluations += 1
        after = _layers_in(args, kwargs)
        active = {
            path: each
            for path, each in before.items()
            if path in after
            and not each.is_evaluating
            and not _is_equal(each.state, after[path].state)
        }
        if active:
            self._observe(Fault.EVALUATED_AS_FLAGGED, active)

    def _observe(
        self,
        fault: Fault,
        layers: Mapping[str, _Layer],
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        self._told.add(fault)
        kinds = dict.fromkeys(each.kind for each in layers.values())
        self._session.observe(
            Observation(
                fault,
                max(0, self._session.latest_step(TRAIN)[0]),
                tuple(layers)[:_MOST_NAMED],
                {"layers": float(len(layers)), **(numbers or {})},
                {"layers": ", ".join(kinds)},
            )
        )


def _layers_in(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, _Layer]:
    """Return the layers of modules of NNX that work otherwise in training."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return {}
    found: dict[str, _Layer] = {}
    for model in _modules_in(nnx, (args, kwargs)):
        for path, module in nnx.iter_modules(model):
            layer = _layer_of(nnx, module)
            if layer is not None:
                beside = tuple(_parameters_beside(nnx, model, path, module))
                found["/".join(map(str, path))] = layer._replace(trained=beside)
                if len(found) > _MOST_LAYERS:
                    return {}
    return found


def _modules_in(nnx: Any, tree: Any) -> Iterator[Any]:
    def is_module(value: Any) -> bool:
        is_one = isinstance(value, nnx.Module)
        return is_one and not isinstance(value, nnx.Optimizer)

    leaves = jax.tree_util.tree_leaves(tree, is_leaf=is_module)
    return filter(is_module, leaves)


def _layer_of(nnx: Any, module: Any) -> _Layer | None:
    kind = type(module)
    if issubclass(kind, nnx.Dropout):
        count = getattr(getattr(module, "rngs", None), "count", None)
        if count is None or not module.rate:
            return None
        return _made(kind, module.deterministic, _array(count))
    if not issubclass(kind, nnx.BatchNorm):
        return None
    variance = _array(module.var)
    layer = _made(kind, module.use_running_average, _array(module.mean))
    if layer is None or variance is None:
        return None
    return layer._replace(variance=variance, momentum=float(module.momentum))


def _made(kind: type, flag: Any, state: Array | None) -> _Layer | None:
    if state is None or not isinstance(flag, bool):
        return None
    return _Layer(kind.__name__, flag, state)


def _parameters_beside(
    nnx: Any, model: Any, path: tuple[Any, ...], module: Any
) -> Iterator[Array]:
    """Yield parameters of a layer, or of the module that it is part of."""
    owner = module
    if not issubclass(type(module), nnx.BatchNorm):
        owner = model
        for key in path[:-1]:
            owner = getattr(owner, key) if isinstance(key, str) else owner[key]
    leaves = jax.tree_util.tree_leaves(nnx.state(owner, nnx.Param))
    arrays = (_array(leaf) for leaf in leaves)
    for _, array in zip(range(_MOST_PARAMETERS), arrays, strict=False):
        if array is not None:
            yield array


def _array(value: Any) -> Array | None:
    get = getattr(value, "get_value", None)
    array = get() if get is not None else value
    if not isinstance(array, jax.Array) or array.size > _MOST_ELEMENTS:
        return None
    if array.is_deleted() or not array.is_fully_addressable:
        return None
    return np.asarray(array)


def _statistics_of(layer: _Layer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    variance = np.ones_like(layer.state) if layer.variance is None else layer.variance
    return layer.state.astype(np.float64), variance.astype(np.float64)


def _is_equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other)
