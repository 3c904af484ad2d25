"""Find losses of policies that make good choices unlikely, or are clipped for nothing.

A policy gradient weighs the logarithms of the chances of choices, or ratios of chances,
by how good the choices were.  The graph of the loss has the weights and their sign.
What was good follows from the values in the same loss, or from the variables of the
program.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.graph_nodes import (
    SHAPING,
    Graph,
    factor_of,
    name_of,
    operands_of,
    saved_of,
)
from tdbg.hooks.pytorch.checks.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.model.numbers import as_numbers, named
from tdbg.hooks.pytorch.model.process_objects import living
from tdbg.run.observations import Fault

__all__ = ["PolicyLosses"]

# Losses that are read, those of them that must be no policy's, and operations of one.
_MOST_LOSSES, _MOST_IN_VAIN, _MOST_OF_END = 60, 8, 400
_MOST_OF_CHANCE, _LEAST_SAMPLES = 30, 8
# Losses that must have a fault, and losses without any after which nothing is sought.
_ENOUGH, _ENOUGH_SOUND = 2, 3
# How closely weights follow the values of the same loss, or numbers with a name.
_FOLLOWS, _EQUALS = 0.9, 0.9999
# A ratio that is one, and an error that is none.
_ONE, _NONE = 1e-4, 1e-6
# What programs call how good a choice was, and what is meant to be small.
_GOOD = re.compile(
    r"(^|_)(adv|advs|advantages?|gaes?|returns?|rtgs?)(_|$)", re.IGNORECASE
)
_REWARD = re.compile(r"adv|return|reward|(^|_)(rew|rews|rtgs?)(_|$)", re.IGNORECASE)
_BAD = re.compile(
    r"cost|neg|penalt|constraint|minus|regret|length|(^|_)(len|c)(_|$)|distance"
    r"|makespan|energy",
    re.IGNORECASE,
)

_PAIRS = frozenset({"Maximum", "Min", "Minimum"})
_DISTANCES = frozenset({"HuberLoss", "MseLoss", "Pow", "SmoothL1Loss"})
_PASSES = SHAPING | _PAIRS | {
    "Add", "Div", "Expand", "Mean", "Mul", "Neg", "Rsub", "Sub", "Sum", "Where",
}  # fmt: skip
# Logarithms of chances, and what is the negative of one.
_LOGARITHMS = {
    "Gather": 1.0, "Pow": -1.0, "NllLoss": -1.0, "NllLoss2D": -1.0,
    "BinaryCrossEntropyWithLogits": -1.0,
}  # fmt: skip

# Between the weight of a choice and the logarithm of its chance.
_OF_CHANCE = SHAPING | {
    "Add", "Clamp", "Div", "Exp", "Mean", "Mul", "Neg", "Rsub", "Sub", "Sum",
}  # fmt: skip

_Numbers = NDArray[np.float64]


class _Weighed(NamedTuple):
    """Chances that a loss weighs.

    Attributes:
        node: The product.
        weights: What a unit of each chance adds to the loss, but for a positive factor.
    """

    node: Any
    weights: _Numbers


class PolicyLosses(StepCheck):
    """Read the first losses of a policy.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_losses = self._n_in_vain = self._n_steps = 0
        self._n_seen: dict[Fault, int] = {}
        self._n_sound = 0
        # Whether the values of new samples have no error.
        self._is_equal = True
        self._told: set[Fault] = set()

    def loss_begins(self, graph: Graph) -> None:
        """Read the loss at which a backward pass begins."""
        self._n_losses += 1
        weighed = [] if graph.root is None else list(_weighed(graph.root))
        if not weighed or any(_is_maximized(each) for each in living(Optimizer)):
            self._n_in_vain += 1
        else:
            self._n_in_vain = 0
            self._look_at_sign(graph, weighed)
            self._look_at_clipping(graph)
            self._look_at_values(graph, weighed)
        if self._n_in_vain >= _MOST_IN_VAIN or self._n_losses >= _MOST_LOSSES:
            self.remove()

    def step_ends(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Note that the policy has changed."""
        self._n_steps += 1

    def _look_at_clipping(self, graph: Graph) -> None:
        # With the wrong sign, the other part is the right one.
        is_reversed = Fault.POLICY_REVERSED in self._n_seen
        if self._n_losses <= _ENOUGH and not is_reversed and _is_optimistic(graph.root):
            self._see(Fault.CLIPPED_FOR_NOTHING)

    def _look_at_sign(self, graph: Graph, weighed: list[_Weighed]) -> None:
        """Compare what the loss makes likely with what was good."""
        if self._n_sound >= _ENOUGH_SOUND or Fault.POLICY_REVERSED in self._told:
            return
        several, errors = _of_samples(weighed), list(_errors(graph.root))
        names = _Names(max((each.size for each in several), default=0))
        if names.are_bad:
            return
        told, by = _similar_to_errors(several, errors), "values"
        if not (told and names.are_of_rewards):
            told, by = names.similar_to(several)
        if told and min(told) > 0:
            self._see(Fault.POLICY_REVERSED, {"by": by})
        elif told:
            self._n_sound += 1

    def _look_at_values(self, graph: Graph, weighed: list[_Weighed]) -> None:
        """Note that values learn what they say themselves.

        New samples have a ratio of one, and values that nobody has changed.
        """
        ratio, errors = _ratio(weighed), list(_errors(graph.root))
        if ratio is None or not errors or not self._is_equal:
            return
        is_new = float(np.abs(ratio - 1.0).max()) < _ONE
        if is_new and self._n_steps and _is_varied(weighed[0].weights):
            largest = max(float(np.abs(each).max()) for each in errors)
            self._is_equal = largest < _NONE
            if self._is_equal:
                self._see(Fault.VALUES_LEARN_THEMSELVES)

    def _see(self, fault: Fault, words: dict[str, str] | None = None) -> None:
        self._n_seen[fault] = self._n_seen.get(fault, 0) + 1
        if self._n_seen[fault] >= _ENOUGH:
            self._tell(fault, words)

    def _tell(self, fault: Fault, words: dict[str, str] | None = None) -> None:
        if fault not in self._told:
            self._told.add(fault)
            self._note(fault, {}, words or {})


def _is_maximized(optimizer: Optimizer) -> bool:
    return any(group.get("maximize") for group in optimizer.param_groups)


# ---- the graph -----------------------------------------------------------------------


def _signed(root: Any) -> Iterator[tuple[Any, float]]:
    """Yield the parts of a loss, each with the sign that it has in it; 0: unknown."""
    waiting, seen = [(root, 1.0)], {root}
    for node, sign in waiting:
        yield node, sign
        name, below = name_of(node), operands_of(node)
        if name not in _PASSES or len(seen) > _MOST_OF_END:
            continue
        if name == "Mul" and len(below) == 1 and not _is_positive(node):
            continue
        for i, (each, _) in enumerate(node.next_functions):
            if each is None or each in seen:
                continue
            seen.add(each)
            waiting.append((each, sign * _sign_below(node, name, i)))


def _sign_below(node: Any, name: str, i: int) -> float:
    if name == "Neg" or (name == "Sub" and i == 1) or (name == "Rsub" and i == 0):
        return -1.0
    if name in {"Add", "Sub", "Rsub"} or name not in {"Mul", "Div"}:
        return 1.0
    if len(operands_of(node)) != 1:
        return 0.0
    factor = factor_of(node)
    return 1.0 if factor is None else float(np.sign(factor))


def _is_positive(node: Any) -> bool:
    """Return whether a product is one by a number, or by numbers that are a mask."""
    found = _constant(node)
    return found is not None and (found.numel() == 1 or float(found.min()) >= 0.0)


def _weighed(root: Any) -> Iterator[_Weighed]:
    """Yield the products of chances and numbers in a loss."""
    met = set[Any]()
    for node, sign in _signed(root):
        if name_of(node) != "Mul" or node in met or not sign:
            continue
        chain = _chance(node)
        if chain is None:
            continue
        met.update(each for each, _ in chain)
        weights = np.ones(1)
        for each, direction in chain:
            weights = weights * direction
            factor = _constant(each) if name_of(each) == "Mul" else None
            numbers = None if factor is None else as_numbers(factor)
            if numbers is not None and numbers.size in {1, weights.size}:
                weights = weights * numbers.reshape(-1)
            elif numbers is not None and weights.size == 1:
                weights = float(weights[0]) * numbers.reshape(-1)
        yield _Weighed(node, sign * weights)


def _chance(node: Any) -> list[tuple[Any, float]] | None:
    """Return the operations from a part down to the chance of a choice, or None.

    Each comes with the direction in which its result moves with what is below, up to
    factors.  A square belongs to a chance if it is not all there is.
    """
    found, is_sum = list[tuple[Any, float]](), False
    for _ in range(_MOST_OF_CHANCE):
        name, below = name_of(node), operands_of(node)
        if name in _LOGARITHMS:
            is_known = name != "Pow" or is_sum
            return [*found, (node, _LOGARITHMS[name])] if is_known else None
        if not below or name not in _OF_CHANCE:
            return None
        if name == "Mul" and len(below) != 1:
            return None
        first = 0 if node.next_functions[0][0] is not None else 1
        direction = 1.0 if name == "Mul" else _sign_below(node, name, first)
        found.append((node, direction or 1.0))
        is_sum |= name in {"Add", "Rsub", "Sub"}
        node = operands_of(node)[0]
    return None


def _constant(node: Any) -> torch.Tensor | None:
    for name in ("other", "self"):
        found = saved_of(node, name)
        if isinstance(found, torch.Tensor):
            return found.detach()
    return None


def _is_optimistic(root: Any) -> bool:
    """Return whether a loss takes the better of a ratio and of the clipped ratio.

    A loss has the larger of both, and its negative the smaller one: clipping only takes
    away what a larger ratio would gain.
    """
    for node, sign in _signed(root):
        name = name_of(node)
        is_pair = name in _PAIRS and len(operands_of(node)) == 2
        is_larger = name == "Maximum"
        if is_pair and sign and (sign > 0) != is_larger and _clips(node):
            return True
    return False


def _clips(node: Any) -> bool:
    """Return whether two parts are a ratio and the same one, clipped, times numbers."""
    one, other = map(_ratio_below, operands_of(node))
    if one is None or other is None or one[0] is not other[0]:
        return False
    return one[1] != other[1]


def _ratio_below(node: Any) -> tuple[Any, bool] | None:
    """Return the exponential in a product, and whether it is clipped."""
    is_clipped = False
    for _ in range(_MOST_OF_CHANCE):
        name, below = name_of(node), operands_of(node)
        if name == "Exp":
            return node, is_clipped
        if len(below) != 1 or name not in SHAPING | {"Clamp", "Mul", "Neg"}:
            return None
        is_clipped |= name == "Clamp"
        node = below[0]
    return None


def _ratio(weighed: Iterable[_Weighed]) -> _Numbers | None:
    """Return the ratio of chances that a loss weighs."""
    for each in weighed:
        found = _ratio_below(operands_of(each.node)[0])
        result = None if found is None else saved_of(found[0], "result")
        if isinstance(result, torch.Tensor) and result.numel() >= _LEAST_SAMPLES:
            numbers: _Numbers = result.detach().double().cpu().numpy().reshape(-1)
            return numbers
    return None


def _errors(root: Any) -> Iterator[_Numbers]:
    """Yield what values in a loss say too much: they, less their targets."""
    for node, sign in _signed(root):
        name = name_of(node)
        if name not in _DISTANCES or not sign:
            continue
        if name == "Pow":
            pair = next(iter(operands_of(node)), node)
            if name_of(pair) != "Sub" or len(operands_of(pair)) != 1:
                continue
            apart = saved_of(node, "self")
            sense = 1.0 if pair.next_functions[0][0] is not None else -1.0
        else:
            told, target = saved_of(node, "self"), saved_of(node, "target")
            if told is None or target is None or told.shape != target.shape:
                continue
            apart = told.detach() - target.detach()
            sense = 1.0 if node.next_functions[0][0] is not None else -1.0
        if isinstance(apart, torch.Tensor) and apart.numel() >= _LEAST_SAMPLES:
            yield sense * apart.detach().double().cpu().numpy().reshape(-1)


# ---- what was good -------------------------------------------------------------------


def _of_samples(weighed: list[_Weighed]) -> list[_Numbers]:
    """Return the weights of samples, or those of many products with a sample each."""
    every = [each.weights for each in weighed]
    ones = [each for each in every if each.size == 1]
    if len(ones) >= _LEAST_SAMPLES:
        every.append(np.concatenate(ones))
    return [each for each in every if each.size >= _LEAST_SAMPLES and _is_varied(each)]


def _is_varied(numbers: _Numbers) -> bool:
    return bool(numbers.std() > 1e-3 * np.abs(numbers).mean())


def _similarity(one: _Numbers, other: _Numbers) -> float:
    """Return the correlation of numbers of the same samples; 0 if it is unknown."""
    if one.shape != other.shape or not (_is_varied(one) and _is_varied(other)):
        return 0.0
    found = float(np.corrcoef(one, other)[0, 1])
    return found if np.isfinite(found) else 0.0


def _similar_to_errors(several: list[_Numbers], errors: list[_Numbers]) -> list[float]:
    """Return correlations with how much better it was than the values say."""
    found = [
        _similarity(weights, -error)
        for weights in several
        for error in errors
        if weights.min() < 0.0 < weights.max()
    ]
    return [each for each in found if abs(each) >= _FOLLOWS]


class _Names:
    """What a program calls the numbers of a batch.

    Args:
        size: The size of the batch.

    Attributes:
        are_of_rewards: Whether there is a name for rewards or what is made of them.
        are_bad: Whether there is one for what is to be small.
    """

    def __init__(self, size: int) -> None:
        frame = sys._getframe(1)
        self.are_of_rewards = self.are_bad = False
        self._good: list[tuple[str, _Numbers]] = []
        for name, value in named(frame):
            is_good, is_bad = _REWARD.search(name), _BAD.search(name)
            numbers = as_numbers(value) if is_good or is_bad else None
            if numbers is None:
                continue
            self.are_bad |= bool(is_bad) and numbers.size == size > 1
            self.are_of_rewards |= bool(is_good)
            if _GOOD.search(name) and not (is_bad or "loss" in name.lower()):
                self._good.append((name, numbers.reshape(-1)))

    def similar_to(self, several: list[_Numbers]) -> tuple[list[float], str]:
        """Return correlations with what is called an advantage, and that name.

        Numbers are the same, or standardized, perhaps in another order.
        """
        for weights in several:
            for name, numbers in self._good:
                found = _similarity(weights, numbers)
                if abs(found) >= _EQUALS:
                    return [found], name
                rising = _similarity(np.sort(weights), np.sort(numbers))
                falling = _similarity(np.sort(weights), np.sort(-numbers))
                if max(rising, falling) >= _EQUALS > min(rising, falling):
                    return [rising if rising > falling else -falling], name
        return [], ""
