"""How far rounding alone takes two runs apart: docs/diff.md, "The tolerance".

Thread safety: values and pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.execution import (
    ACTIVATIONS,
    DATA,
    GRADIENTS,
    ExecutionOrder,
    is_setting,
    role_named,
)
from tdbg.config.collections import Role
from tdbg.trial import TensorDescription, Trial

__all__ = ["LOOSEST", "SMALL", "Rounding", "rounding_of", "roundoff_of"]

# 2^-p, for numbers with p bits of significand, the implicit one included.
_BITS = {
    "float64": 53,
    "float32": 24,
    "float16": 11,
    "bfloat16": 8,
    "float8_e4m3fn": 4,
    "float8_e4m3fnuz": 4,
    "float8_e5m2": 3,
    "float8_e5m2fnuz": 3,
    "float8_e8m0fnu": 1,
}
# Both runs round, and independently of each other.
RUNS = 2.0
# How many times the square root of a number of roundings is allowed: the probability
# that a sum exceeds it is at most 2 exp(-16 / 2), less than 0.1 %.
CONFIDENCE = 4.0
# Matrix products of narrower types are summed in this one.
ACCUMULATOR = 2.0**-24
# The first dimension of an activation numbers samples, over which a backward sums.
SAMPLES = 1
# From this number of dimensions on, an activation has its channels second: images.
CHANNELS_SECOND = 4
# What follows from an update may be twice as far apart as what it follows from.
GROWTH = 2.0
# Tensors that are further apart are no longer small disturbances of each other: signs
# of gradients turn, and adaptive optimizers go other ways.
SMALL = 0.01
# A tolerance beyond this one would call anything the same.
LOOSEST = 0.5
# Of numbers that a program sets, as learning rates: what two ways to compute them may
# give.
SETTING = 1e-6
# What no computation of the run has made before its first update.
GIVEN = frozenset({Role.WEIGHT, Role.BIAS, Role.MODEL_INPUT, Role.LABEL})
FORWARD = frozenset({Role.INPUT, Role.OUTPUT, Role.MODEL_INPUT, Role.PREDICTION})


def roundoff_of(dtype: str) -> float:
    """Return the unit roundoff of a type; 0 for those that do not round.

    Example:
        >>> roundoff_of("bfloat16")
        0.00390625
    """
    return 2.0 ** -_BITS[dtype] if dtype in _BITS else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Rounding:
    """How far rounding may take each tensor of two runs apart.

    Attributes:
        at_start: By name the tolerance before any update.
        updated: By name what one update makes of it, halved; 0 for what updates do not
            touch.
        n_updates: After more updates than these, rounding says nothing.
        reduction: The longest sum: inputs of a unit, or a dimension of an activation.
        layers: How many outputs a forward has.
        roundoff: The coarsest unit roundoff of either run.
    """

    at_start: Mapping[str, float] = field(repr=False)
    updated: Mapping[str, float] = field(repr=False)
    n_updates: int
    reduction: int
    layers: int
    roundoff: float

    def tolerances(
        self, names: Sequence[str], n_updates: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the relative deviations that rounding explains: (names, updates).

        Infinity is where it explains any.

        Args:
            names: Tensors.
            n_updates: How many updates precede each step.
        """
        start = np.array([self.at_start[name] for name in names]).reshape(-1, 1)
        updated = np.array([self.updated[name] for name in names]).reshape(-1, 1)
        grown = updated * GROWTH ** np.minimum(n_updates, self.n_updates)
        found = np.where((n_updates > 0) & (updated > 0), grown, start)
        found = np.minimum(LOOSEST, found)
        found[(n_updates > self.n_updates) & (updated > 0)] = np.inf
        return found


def rounding_of(
    trials: tuple[Trial, Trial], execution: ExecutionOrder, others: Mapping[str, str]
) -> Rounding:
    """Derive tolerances from element types and depths.

    Args:
        trials: The runs; the first one's model says how long its sums are.
        execution: The order of all tensors of the first, compared or not.
        others: What the second calls those that are compared.
    """
    first = {each.name: each for each in trials[0].describe(execution.order)}
    second = {each.name: each for each in trials[1].describe(trials[1].tensor_names())}
    own = {name: roundoff_of(each.dtype) for name, each in first.items()}
    for name, other in others.items():
        own[name] = max(own[name], roundoff_of(second[other].dtype))
    unpaired = [second[name] for name in second.keys() - others.values()]
    # What the second rounds under another name may precede anything.
    coarsest = max(
        [roundoff_of(each.dtype) for each in unpaired if _is_of_forward(each)],
        default=0.0,
    )
    n = _reduction(trials[0], first)
    backward = max(n, _over_samples(first.values()))
    # Gradients in narrow types are summed in these, over samples, ranks and batches.
    summed = _coarsest_of(own, GRADIENTS, execution, ACCUMULATOR)
    deepest = max(execution.depths.values(), default=1)
    # An update carries what the whole step has rounded into every parameter.
    worst = max(coarsest, *own.values())
    step = _of(worst, backward, deepest, summed)
    at_start: dict[str, float] = {}
    updated: dict[str, float] = {}
    for name in execution.order:
        role, depth = execution.roles[name], execution.depths[name]
        coarsest = max(coarsest, own[name] if role in FORWARD else 0.0)
        is_forward = role in ACTIVATIONS
        terms, accumulator = (n, ACCUMULATOR) if is_forward else (backward, summed)
        made = _of(max(own[name], coarsest), terms, depth, accumulator)
        at_start[name] = _at_start(name, role, own[name], made)
        updated[name] = 0.0 if role in DATA or is_setting(name) else step
    n_updates = int(math.log(SMALL / step, GROWTH)) if 0.0 < step < SMALL else 0
    return Rounding(at_start, updated, n_updates, n, deepest // 2, worst)


def _at_start(name: str, role: Role, own: float, made: float) -> float:
    if is_setting(name):
        return SETTING
    return RUNS * own if role in GIVEN else made


def _coarsest_of(
    own: Mapping[str, float],
    roles: frozenset[Role],
    execution: ExecutionOrder,
    least: float,
) -> float:
    """The coarsest roundoff of tensors of some roles, and at least *least*."""
    return max([least, *(u for n, u in own.items() if execution.roles[n] in roles)])


def _is_of_forward(tensor: TensorDescription) -> bool:
    return role_named(tensor.role) in FORWARD


def _of(
    u: float, reduction: int, depth: int, accumulator: float = ACCUMULATOR
) -> float:
    """How far apart rounding may take a tensor: the formula of docs/diff.md."""
    each = u + min(u, accumulator) * math.sqrt(reduction)
    return RUNS * CONFIDENCE * math.sqrt(depth) * each


def _reduction(trial: Trial, described: Mapping[str, TensorDescription]) -> int:
    """The longest sum that a forward has, as far as its run says."""
    found = [1]
    for info in trial.model_info()[-1:]:
        found += [each.n_inputs for each in info.parameters.values()]
    for each in described.values():
        if each.shape and each.role in ("input", "output"):
            found += each.shape[SAMPLES:]
    return max(found)


def _over_samples(described: Iterable[TensorDescription]) -> int:
    """The longest sum over samples and positions, as gradients of parameters are."""
    found = [1]
    for each in described:
        if each.shape and each.role == "output":
            channels = SAMPLES if len(each.shape) >= CHANNELS_SECOND else -1
            found.append(math.prod(each.shape) // max(1, each.shape[channels]))
    return max(found)
