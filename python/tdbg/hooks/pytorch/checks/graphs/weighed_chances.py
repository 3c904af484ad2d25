"""Find the chances of choices that a loss weighs, and the sign of all that it adds up.

A policy gradient learns from what the present policy has done.  Steps of older policies
that stay in a list come again in each update.  Returns are values plus advantages, as
long as nobody has standardized these.

Thread safety: reads only.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    factor_of,
    name_of,
    operands_of,
    saved_of,
    walk,
)
from tdbg.hooks.pytorch.model.numbers import (
    ProgramNumbers,
    are_alike,
    as_numbers,
    is_log_chance,
    is_taken,
    numbers_in,
)
from tdbg.run.observations import Fault

if TYPE_CHECKING:
    from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found

__all__ = [
    "PAIRS",
    "PASSES",
    "Rollouts",
    "WeighedChances",
    "are_in_order",
    "signed_parts",
    "weighed_chances",
]

# Operations of the end of a loss, and of what it weighs, at most.
_MOST_OF_END, _MOST_OF_CHANCE = 400, 30

PAIRS = frozenset({"Maximum", "Min", "Minimum"})
"""What takes one of two numbers."""
PASSES = SHAPING | PAIRS | {
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

# Losses of policies that are looked at, and those of others before the first, at most.
_MOST_LOOKS, _MOST_IN_VAIN = 40, 8
# How many losses pass between two looks: this share of those so far.
_SPARSER = 0.2
# Steps of a rollout, at least; rollouts that begin with the one before, or are new.
_LEAST_STEPS, _ENOUGH_KEPT, _ENOUGH_NEW, _ENOUGH = 8, 3, 2, 2
# What standardized numbers are, to rounding.
_STANDARD = 1e-3

_LOG = re.compile(
    r"(^|_)(all|hist\w*|total|count\w*|track\w*|record\w*)(_|$)", re.IGNORECASE
)
_GAIN = re.compile(r"(^|_)(adv|advs|advantages?|gaes?)(_|$)", re.IGNORECASE)
_RETURN = re.compile(r"(^|_)(returns?|rets?|rtgs?|v_?targets?)(_|$)", re.IGNORECASE)
_VALUE = re.compile(r"(^|_)(v|vs|vals?|values?|v_?preds?)(_|$)", re.IGNORECASE)

_Numbers = NDArray[np.float64]


class WeighedChances(NamedTuple):
    """Chances that a loss weighs.

    Attributes:
        node: The product.
        weights: What a unit of each chance adds to the loss, but for a positive factor.
    """

    node: Any
    weights: _Numbers


def signed_parts(root: Any) -> Iterator[tuple[Any, float]]:
    """Yield the parts of a loss, each with the sign that it has in it; 0: unknown."""
    waiting, seen = [(root, 1.0)], {root}
    for node, sign in waiting:
        yield node, sign
        name, below = name_of(node), operands_of(node)
        if name not in PASSES or len(seen) > _MOST_OF_END:
            continue
        if name == "Mul" and len(below) == 1 and not _is_positive(node):
            continue
        for i, (each, _) in enumerate(node.next_functions):
            if each is None or each in seen:
                continue
            seen.add(each)
            waiting.append((each, sign * _sign_below(node, name, i)))


def are_in_order(root: Any, n: int) -> bool:
    """Return whether a loss joins so many chances in the order of their choices."""
    for node in walk(root, _MOST_OF_END):
        below = operands_of(node)
        if name_of(node) in {"Cat", "Stack"} and len(below) == n > 1:
            numbers = [_number_of(each) for each in below]
            return all(0 <= one < two for one, two in itertools.pairwise(numbers))
    return False


def _number_of(node: Any) -> int:
    """Return when the logarithm of a chance was computed; -1: there is none."""
    for _ in range(_MOST_OF_CHANCE):
        if name_of(node) in _LOGARITHMS:
            return int(node._sequence_nr())
        if not (below := operands_of(node)):
            break
        node = below[0]
    return -1


def _sign_below(node: Any, name: str, i: int) -> float:
    if name == "Neg" or (name == "Sub" and i == 1) or (name == "Rsub" and i == 0):
        return -1.0
    if name in {"Add", "Sub", "Rsub"} or name not in {"Mul", "Div"}:
        return 1.0
    if len(operands_of(node)) != 1:
        return 0.0
    factor = factor_of(node)
    if factor is None and name == "Mul":
        found = _constant(node)
        is_read = found is not None and found.numel() == 1 and not found.is_cuda
        factor = float(found) if found is not None and is_read else None
    return 1.0 if factor is None else float(np.sign(factor))


def _is_positive(node: Any) -> bool:
    """Return whether a product is one by a number, or by numbers that are a mask."""
    found = _constant(node)
    return found is not None and (found.numel() == 1 or float(found.min()) >= 0.0)


def weighed_chances(root: Any) -> Iterator[WeighedChances]:
    """Yield the products of chances and numbers in a loss."""
    met = set[Any]()
    for node, sign in signed_parts(root):
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
        yield WeighedChances(node, sign * weights)


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


# ---- rollouts ------------------------------------------------------------------------


class Rollouts:
    """Looks at the rollouts that a policy learns from, as ``GraphFaults`` asks it to.

    Attributes:
        is_over: Whether nothing more will be found out.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._n_losses = self._n_looks = self._next = 0
        # The latest numbers of a name, and how often they began with those before.
        self._latest: dict[str, _Numbers] = {}
        self._n_kept: dict[str, int] = {}
        self._n_new = 0
        self._n_standard = 0

    def __call__(self, graph: Graph) -> Iterator[Found]:
        """Yield what the variables of a program show that trains a policy."""
        self._n_losses += 1
        if self._n_losses < self._next:
            return
        if "Mul" in graph.names and any(weighed_chances(graph.root)):
            self._n_looks += 1
            self._next = self._n_losses + max(1, int(_SPARSER * self._n_losses))
            names = numbers_in(sys._getframe(1))
            yield from self._look_at_returns(names)
            yield from self._look_at_rollouts(names)
        is_vain = not self._n_looks and self._n_losses >= _MOST_IN_VAIN
        is_sound = self._n_new >= _ENOUGH_NEW and self._n_looks >= _MOST_IN_VAIN
        self.is_over |= is_vain or is_sound or self._n_looks >= _MOST_LOOKS

    def _look_at_rollouts(self, names: ProgramNumbers) -> Iterator[Found]:
        """Compare actions with those of the rollout before."""
        sizes = {
            each.size
            for name, each in names.every
            if _GAIN.search(name) or _RETURN.search(name)
        }
        every = dict(reversed(names.every))  # The innermost, of several with one name.
        for name, each in every.items():
            is_of_steps = is_taken(name) or is_log_chance(name)
            is_flat = len(each) == each.size >= _LEAST_STEPS
            if is_of_steps and is_flat and not _LOG.search(name):
                is_used = each.size in sizes
                yield from self._compare(name, each.reshape(-1), is_used=is_used)

    def _compare(
        self, name: str, numbers: _Numbers, *, is_used: bool
    ) -> Iterator[Found]:
        """See whether steps begin with those that a name stood for before."""
        before = self._latest.setdefault(name, numbers)
        n = before.size
        if not is_used or (numbers.size == n and (numbers == before).all()):
            return
        begins = numbers.size >= n + _LEAST_STEPS and (numbers[:n] == before).all()
        self._latest[name] = numbers
        self._n_kept[name] = self._n_kept.get(name, 0) + 1 if begins else 0
        self._n_new += not begins
        if self._n_kept[name] == _ENOUGH_KEPT and not self.is_over:
            steps = {"steps": float(numbers.size), "before": float(n)}
            self.is_over = True
            yield Fault.ROLLOUTS_KEPT, steps, {"name": name}

    def _look_at_returns(self, names: ProgramNumbers) -> Iterator[Found]:
        """Find returns that are values and standardized advantages."""
        for name, gain in names.every:
            if not _GAIN.search(name) or not _is_standard(gain):
                continue
            found = [
                other
                for other, each in _of_size(names, _RETURN, gain.size)
                for _, value in _of_size(names, _VALUE, gain.size)
                if are_alike(each - value, gain.reshape(-1)) and value.std() > 0
            ]
            self._n_standard += bool(found)
            if found and self._n_standard >= _ENOUGH:
                words = {"name": found[0], "of": name}
                yield Fault.RETURNS_OF_STANDARDIZED, {}, words


def _is_standard(numbers: _Numbers) -> bool:
    """Return whether numbers have a mean of 0 and a deviation of 1."""
    if numbers.size < 2 * _LEAST_STEPS:
        return False
    is_centred = abs(float(numbers.mean())) < _STANDARD
    ways = (float(numbers.std(ddof=n)) for n in (0, 1))
    return is_centred and any(abs(each - 1.0) < _STANDARD for each in ways)


def _of_size(
    names: ProgramNumbers, pattern: re.Pattern[str], n: int
) -> Iterator[tuple[str, _Numbers]]:
    for name, each in names.every:
        if each.size == n and pattern.search(name):
            yield name, each.reshape(-1)
