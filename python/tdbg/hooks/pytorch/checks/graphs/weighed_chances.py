"""Find the chances of choices that a loss weighs, and the sign of all that it adds up.

Thread safety: reads only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    factor_of,
    name_of,
    operands_of,
    saved_of,
    walk,
)
from tdbg.hooks.pytorch.model.numbers import as_numbers

__all__ = [
    "PAIRS",
    "PASSES",
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
