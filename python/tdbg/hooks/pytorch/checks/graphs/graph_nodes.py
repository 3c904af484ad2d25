"""Graphs of autograd, and their operations: names, shapes, arguments and settings.

Thread safety: reads only.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

import torch

from tdbg.hooks.pytorch.device.tensors import TYPES

__all__ = [
    "MOST_NODES",
    "SHAPING",
    "Graph",
    "axis_of",
    "factor_of",
    "is_made_of",
    "leaf_of",
    "leaves_below",
    "name_of",
    "operands_of",
    "past_shapes",
    "saved_of",
    "shape_of",
    "source_of",
    "terms_of",
    "walk",
]

# Nodes of a graph that are read, at most; that takes some 20 ms.
MOST_NODES = 20_000
# Operations below a part of a graph, at most.
_MOST_BELOW = 5000
# Operations between a result and what it was made of, at most.
_MOST_BETWEEN = 200
# Terms of a loss that are told apart, at most.
_MOST_TERMS = 50
# Names of nodes, without their ending.
_ENDING = re.compile(r"Backward\w*$")
# What gives numbers on as they are: in another shape or type, some, or many as one.
SHAPING = frozenset(
    {
        "Alias",
        "Cat",
        "Clone",
        "Index",
        "IndexSelect",
        "MaskedSelect",
        "Permute",
        "ReshapeAlias",
        "Select",
        "Slice",
        "Squeeze",
        "Stack",
        "T",
        "ToCopy",
        "Transpose",
        "UnsafeView",
        "Unsqueeze",
        "View",
    }
)


_first, _is_none = operator.itemgetter(0), functools.partial(operator.is_, None)
_LEAF = "torch::autograd::AccumulateGrad"
# Operations whose gradient is zero wherever there is one.
_FLAT = frozenset({"Ceil", "Floor", "Round", "Sgn", "Sign", "Trunc"})
# The names of PyTorch's own operations, each of which has a class.
_names: dict[type, str] = {}


def name_of(node: Any) -> str:
    """Return the name of an operation, such as ``LogSoftmax``."""
    name = _names.get(type(node))
    return _learn_name(node) if name is None else name


def _learn_name(node: Any) -> str:
    name, kind = node.name(), type(node)
    short = _ENDING.sub("", name)
    # Those that libraries wrote in C++ have one class, and programs make new ones.
    if kind.__module__ == "builtins" and name.endswith(kind.__name__):
        _names[kind] = short
    return short


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of the result of an operation."""
    results = node._input_metadata
    return tuple(map(int, results[0].shape)) if results else ()


def operands_of(node: Any) -> list[Any]:
    """Return the operations that made the arguments with a gradient."""
    # Graphs have many: no other function of Python is called for one.
    made = map(_first, node.next_functions)
    return list(itertools.filterfalse(_is_none, made))


def source_of(node: Any) -> Any:
    """Return the operation that made the first argument, past changes of shape."""
    for _ in range(_MOST_BETWEEN):
        below = operands_of(node)
        if not below:
            break
        node = below[0]
        if name_of(node) not in SHAPING:
            break
    return node


def past_shapes(node: Any) -> Any:
    """Return an operation, or the one below it that is no change of shape."""
    for _ in range(_MOST_BETWEEN):
        if name_of(node) not in SHAPING or not operands_of(node):
            break
        node = operands_of(node)[0]
    return node


def is_made_of(node: Any, number: int, n: int) -> bool:
    """Return whether an operation gets another one's whole result, in any shape.

    Args:
        node: The operation.
        number: The number that autograd has given to the other one.
        n: How many numbers its result has.
    """
    for each in operands_of(node)[:1]:
        if math.prod(shape_of(each)) != n:
            return False  # It gets a part.
    for _ in range(_MOST_BETWEEN):
        below = operands_of(node)
        if not below:
            return False
        node = below[0]
        if node._sequence_nr() == number:
            return True
        if name_of(node) not in SHAPING:
            return False
    return False


def leaf_of(node: Any) -> int:
    """Return the id of the parameter behind changes of shape; 0: there is none."""
    while name_of(node) in SHAPING and len(operands_of(node)) == 1:
        node = operands_of(node)[0]
    leaf = getattr(node, "variable", None)
    return 0 if leaf is None else id(leaf)


def walk(root: Any, most: int, through: Container[str] | None = None) -> Iterator[Any]:
    """Yield an operation and those below it, the nearest first, each once.

    Args:
        root: The operation.
        most: How many are yielded, at most.
        through: The names of operations below which the walk goes on; None: all.
    """
    seen, waiting = {root}, [root]
    for node in waiting:
        yield node
        if through is not None and name_of(node) not in through:
            continue
        for each in operands_of(node):
            if each not in seen and len(seen) < most:
                seen.add(each)
                waiting.append(each)


def leaves_below(node: Any) -> set[int]:
    """Return the ids of the leaves that an operation depends on."""
    leaves = (getattr(each, "variable", None) for each in walk(node, _MOST_BELOW))
    return {id(leaf) for leaf in leaves if leaf is not None}


def saved_of(node: Any, name: str) -> Any:
    """Return a tensor that an operation keeps for its backward pass, or None.

    None, too, if a hook packed it: a checkpoint would compute a forward again to unpack
    it, with its effects on the model, and others copy it from elsewhere.  Nor is there
    any of several ranks, where reading a number waits for the others.

    Args:
        node: The operation.
        name: The name of the argument, or ``result``.
    """
    raw = getattr(node, f"_raw_saved_{name}", None)
    if getattr(raw, "unpack_hook", None) is not None:
        return None
    found = getattr(node, f"_saved_{name}", None)
    is_foreign = isinstance(found, torch.Tensor) and type(found) not in TYPES
    return None if is_foreign else found


def axis_of(node: Any) -> int:
    """Return the axis of a softmax, counted from the first."""
    axis = int(node._saved_dim)
    # Negative ones are stored without a sign.
    return (axis - (1 << 64) if axis >= 1 << 63 else axis) % max(1, len(shape_of(node)))


def factor_of(node: Any) -> float | None:
    """Return the number by which an operation multiplies or divides, or None."""
    other = saved_of(node, "other")
    if not isinstance(other, torch.Tensor) or other.numel() != 1 or other.is_cuda:
        return None
    return float(other.detach())


def terms_of(root: Any) -> Iterator[tuple[Any, float]]:
    """Yield the terms that a loss is the sum of, each with what multiplies it.

    A factor that cannot be read without waiting for a device is NaN.
    """
    waiting, n_met = [(root, 1.0)], 0
    while waiting and n_met < _MOST_TERMS:
        n_met += 1
        node, factor = waiting.pop()
        name, below = name_of(node), operands_of(node)
        if name in {"Add", "Sub"} and not shape_of(node):
            minus = [1.0, -1.0 if name == "Sub" else 1.0]
            waiting += [
                (each, factor * sign)
                for (each, _), sign in zip(node.next_functions, minus, strict=False)
                if each is not None
            ]
        elif name in {"Mul", "Div", "Neg"} and len(below) == 1:
            number = -1.0 if name == "Neg" else _number_of(node)
            factor = factor / number if name == "Div" and number else factor * number
            waiting.append((below[0], factor))
        else:
            yield node, factor


def _number_of(node: Any) -> float:
    number = factor_of(node)
    return math.nan if number is None else number


# ---- whole graphs ------------------------------------------------------------------


class Graph:
    """The operations that a loss is made of.

    Nobody may keep it: it holds what the backward pass is about to free.

    Args:
        loss: A single number.

    Attributes:
        loss: As it was given.
        root: Its last operation; None: it was not computed of anything that learns.

    Example:
        >>> weight = torch.ones(3, requires_grad=True)
        >>> graph = Graph((weight * 2).sum())
        >>> len(graph.named({"Mul"})), graph.leaves[0][0] is weight
        (1, True)
    """

    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss
        self.root: Any = loss.grad_fn

    def named(self, names: Container[str]) -> list[Any]:
        """Return PyTorch's own operations with these names, from the loss downwards."""
        classes = {kind for name, kind in self._classes if name in names}
        return [each for each in self._nodes if type(each) in classes]

    def users_of(self, node: Any) -> list[Any]:
        """Return the operations that take a result of *node*."""
        return [
            each
            for each in self._nodes
            if any(way is node for way, _ in each.next_functions)
        ]

    def counts(self) -> frozenset[tuple[type, int]]:
        """Return how many operations of each class there are."""
        return frozenset(Counter(map(type, self._nodes)).items())

    @functools.cached_property
    def leaves(self) -> list[tuple[torch.Tensor, str]]:
        """The tensors that the loss depends on, and what cuts each off.

        That is an operation whose gradient is zero everywhere, if all ways from the
        loss pass through such operations; else "".
        """
        if self.root is None:
            return [(self.loss, "")] if self.loss.requires_grad else []
        if any(name in _FLAT for name, _ in self._classes):
            return list(_leaves(self.root))
        return [(node.variable, "") for node in reversed(self.named({_LEAF}))]

    @property
    def own_functions(self) -> list[Any]:
        """The subclasses of ``autograd.Function`` that the program has written."""
        kinds = {getattr(type(each), "_forward_cls", None) for each in self._nodes}
        return [each for each in kinds if each is not None]

    @functools.cached_property
    def names(self) -> set[str]:
        """The names of the operations that are PyTorch's own."""
        return {name for name, _ in self._classes}

    @functools.cached_property
    def _nodes(self) -> list[Any]:
        found = [] if self.root is None else [self.root]
        seen = dict.fromkeys(found)
        for node in itertools.islice(found, MOST_NODES):
            for each, _ in node.next_functions:
                if each is not None and each not in seen:
                    seen[each] = None
                    found.append(each)
        return found[:MOST_NODES]

    @functools.cached_property
    def _classes(self) -> set[tuple[str, type]]:
        """The names and classes of the operations that are PyTorch's own."""
        some = dict(zip(map(type, self._nodes), self._nodes, strict=True))
        named = {(name_of(node), kind) for kind, node in some.items()}
        return {each for each in named if each[1] in _names}


def _leaves(root: Any) -> Iterator[tuple[torch.Tensor, str]]:
    """Yield leaves with a gradient first, then those that operations cut off."""
    seen, waiting = {root}, [root]
    behind: list[tuple[Any, str]] = []
    cut = ""
    while (waiting or behind) and len(seen) < MOST_NODES:
        if not waiting:
            node, cut = behind.pop()
            if node not in seen:
                seen.add(node)
                waiting.append(node)
            continue
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf, cut
        if not cut and (name := name_of(node)) in _FLAT:
            behind += [(each, name.lower()) for each in operands_of(node)]
            continue
        for each in operands_of(node):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
