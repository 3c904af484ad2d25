"""Reads in the graph of a loss what is wrong with it, before the first backward pass.

Autograd's graph has every operation from the loss down to the parameters, with the
shapes of their results and some of their arguments.  So what a loss is given, and which
parameters it depends on, is known for certain at the first step, however the loss was
written: by a module, by a function, or by hand.

Only the end of the graph is judged: from the loss down to the layers that made what it
is given.

Thread safety: reads only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tdbg.run.loss_facts import LossFact, LossFault

__all__ = ["LossGraph", "read_loss_graph"]

# Nodes of a graph that are read, at most; that takes some 20 ms.
_MOST_NODES = 20_000
# Nodes between the loss and what it is given, at most.
_MOST_OF_END = 200

# Names of nodes, without their ending.
_ENDING = re.compile(r"Backward\w*$")
# What gives numbers on as they are, in another shape or type.
_SHAPING = frozenset(
    {
        "Alias",
        "Clone",
        "Permute",
        "ReshapeAlias",
        "Select",
        "Slice",
        "Squeeze",
        "T",
        "ToCopy",
        "Transpose",
        "UnsafeView",
        "Unsqueeze",
        "View",
    }
)
_LIKELIHOODS = frozenset({"NllLoss", "NllLoss2D"})
_DISTANCES = {
    "NllLoss": "nll_loss",
    "NllLoss2D": "nll_loss",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
}
_SOFTMAXES = frozenset({"Softmax", "LogSoftmax"})
# Layers with weights, which give scores.
_LAYERS = frozenset({"Addmm", "Mm", "Convolution"})
# What takes an output and a target, or a logarithm of a probability and its weight.
_PAIRING = frozenset({"Sub", "Rsub", "Mul"}) | _DISTANCES.keys()
# What an output is made by that is one number a sample.
_OF_SAMPLES = _LAYERS | {"Gather", "Sigmoid", "Tanh", "Softplus", "Relu"}
# The operations a loss is made of after the layers.
_OF_END = (
    _SHAPING
    | _SOFTMAXES
    | _DISTANCES.keys()
    | {
        "Abs",
        "Add",
        "Clamp",
        "ClampMin",
        "Div",
        "Exp",
        "Expand",
        "Gather",
        "Index",
        "Log",
        "LogSigmoid",
        "Logsumexp",
        "Mean",
        "Minimum",
        "Maximum",
        "Mul",
        "Neg",
        "Pow",
        "Rsub",
        "Sigmoid",
        "Softplus",
        "Sqrt",
        "Stack",
        "Sub",
        "Sum",
        "Where",
    }
)
# From a logarithm of a probability to where it is chosen: the ratio of two, say.
_OF_CHANCE = _SHAPING | {"Add", "Clamp", "Div", "Exp", "Neg", "Sub", "Sum"}
_MOST_OF_CHANCE = 8
_MOST_WEIGHTS = 4096
_REDUCED_BY_SUM = 2  # torch.nn.functional's _Reduction.get_enum("sum").


class LossGraph(NamedTuple):
    """What was read in the graph of a loss.

    Attributes:
        facts: What is wrong.
        is_open: Whether all operations from the loss down to the layers are known: a
            compiled graph, or a function of the author's own, hides what it does.
        is_surrogate: Whether it weighs logarithms of probabilities by how good it was
            what they are of, as policy gradients do.
        leaves: The tensors on which the loss depends, as far as they were read.
    """

    facts: tuple[LossFact, ...]
    is_open: bool
    is_surrogate: bool
    leaves: tuple[torch.Tensor, ...]


def read_loss_graph(loss: torch.Tensor) -> LossGraph:
    """Read the graph of a loss.

    Args:
        loss: A single number, on which ``backward()`` is about to be called.

    Example:
        >>> scores = torch.zeros(4, 3, requires_grad=True) * 1.0
        >>> given = torch.softmax(scores, 1)
        >>> loss = torch.nn.functional.cross_entropy(given, torch.zeros(4).long())
        >>> read_loss_graph(loss).facts[0].fault
        <LossFault.SOFTMAX_TWICE: 'softmax_twice'>
    """
    root = loss.grad_fn
    if root is None:
        is_leaf = loss.requires_grad
        facts = (LossFact(LossFault.NO_GRAPH, "tensor"),) if is_leaf else ()
        return LossGraph(facts, True, False, (loss,) if is_leaf else ())
    found = dict.fromkeys(_sign(root))
    is_open, is_surrogate = True, False
    for node, name, is_whole in _end_of(root):
        is_open &= not isinstance(node, torch.autograd.function.BackwardCFunction)
        found.update(dict.fromkeys(_faults(node, name, is_whole=is_whole)))
        is_surrogate |= name == "Mul" and _weighs_chances(node)
    return LossGraph(tuple(found), is_open, is_surrogate, tuple(_leaves(root)))


def _leaves(root: Any) -> Iterator[torch.Tensor]:
    seen, waiting = {root}, [root]
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        for each, _ in node.next_functions:
            if each is not None and each not in seen:
                seen.add(each)
                waiting.append(each)


def _sign(root: Any) -> Iterator[LossFact]:
    """Whether the loss as a whole is a distance with the opposite sign."""
    node, is_negative = root, False
    while (name := _name(node)) in {"Neg", "Mul", "Div"}:
        factor = -1.0 if name == "Neg" else _factor(node)
        below = _operands(node)
        if factor is None or len(below) != 1:
            return
        is_negative ^= factor < 0
        node = below[0]
    if is_negative and name in _DISTANCES:
        yield LossFact(LossFault.NEGATED, _DISTANCES[name])


def _end_of(root: Any) -> Iterator[tuple[Any, str, bool]]:
    """The operations from the loss down to the layers, with their names.

    And whether the loss has the result as it is, or a multiple that does not depend on
    the size of the batch.
    """
    seen, waiting = {root}, [(root, True)]
    while waiting and len(seen) < _MOST_OF_END:
        node, is_whole = waiting.pop()
        name = _name(node)
        yield node, name, is_whole
        if name not in _OF_END:
            continue
        is_whole &= name in {"Add", "Neg", "Sub"} or _multiplies(node, name)
        for each in _operands(node):
            if each not in seen:
                seen.add(each)
                waiting.append((each, is_whole))


def _faults(node: Any, name: str, *, is_whole: bool) -> Iterator[LossFact]:
    given = _source(node)
    if name in _SOFTMAXES and _size_of_softmax(node) == 1:
        yield LossFact(LossFault.SOFTMAX_OF_ONE, name.lower(), (_shape(node),))
    elif name == "LogSoftmax" and _name(given) == "Softmax":
        what = "cross_entropy"
        yield LossFact(LossFault.SOFTMAX_TWICE, what, (_shape(given),))
    if name == "BinaryCrossEntropyWithLogits" and _name(given) == "Sigmoid":
        yield LossFact(LossFault.SIGMOID_TWICE, _DISTANCES[name], (_shape(given),))
    if name in _LIKELIHOODS:
        yield from _faults_of_likelihood(node, given)
    if is_whole and _is_sum(node, name):
        what = _DISTANCES.get(name, "sum")
        yield LossFact(LossFault.SUMMED, what, (_shape(_operands(node)[0]),))
    if name in _PAIRING:
        shape = _shape_before_pairing(node)
        if shape is not None:
            what = _DISTANCES.get(name, name.lower())
            both = _shape(node) or _shape(_operands(node)[0])
            yield LossFact(LossFault.BROADCAST, what, (shape, both))


def _faults_of_likelihood(node: Any, given: Any) -> Iterator[LossFact]:
    faults = {
        "Softmax": LossFault.LIKELIHOOD_OF_PROBABILITIES,
        **dict.fromkeys(_LAYERS, LossFault.LIKELIHOOD_OF_SCORES),
    }
    fault, shape = faults.get(_name(given)), _shape(given)
    if _name(given) == "LogSoftmax" and given is _operands(node)[0]:
        is_over_samples = len(shape) == 2 and _axis(given) == 0 and shape[0] > 1
        fault = LossFault.SOFTMAX_OVER_SAMPLES if is_over_samples else None
    if fault is not None:
        yield LossFact(fault, "nll_loss", (shape,))


def _is_sum(node: Any, name: str) -> bool:
    """Whether it sums a distance up over the batch."""
    if name in _DISTANCES:
        return getattr(node, "_saved_reduction", None) == _REDUCED_BY_SUM
    if name != "Sum" or _shape(node):
        return False
    of = _operands(node)
    return len(of) == 1 and _name(of[0]) in {"Abs", "Pow", *_DISTANCES}


def _shape_before_pairing(node: Any) -> tuple[int, ...] | None:
    """The shape of outputs that meet all targets: one number for each of N samples.

    None if they do not.  Who compares all pairs on purpose says so by an axis more, or
    has gradients on both sides.
    """
    operands = _operands(node)
    if len(operands) != 1:
        return None
    both = _shape(operands[0]) if _name(node) in _DISTANCES else _shape(node)
    if len(both) != 2 or both[0] != both[1] or both[0] < 2:
        return None
    below = operands[0]
    while _name(below) in {"Expand", "ToCopy"}:
        below = _operands(below)[0]
    shape = _shape(below)
    if shape not in {(both[0], 1), (both[0],)} or _name(below) == "Unsqueeze":
        return None
    while _name(below) in _SHAPING and _name(below) != "Unsqueeze":
        below = _operands(below)[0]
    return shape if _name(below) in _OF_SAMPLES else None


def _weighs_chances(node: Any) -> bool:
    """Whether a product has logarithms of chosen probabilities, and their weights.

    Chances of classes are chosen from all; those of numbers have a square in them, as
    errors have, so that only weights of both signs tell them from a weighted error.  A
    mask of ones and zeros is no weight, nor is a number for all.
    """
    operands = _operands(node)
    if len(operands) != 1:
        return False
    found, below = set[str](), operands
    for _ in range(_MOST_OF_CHANCE):
        found |= {"Gather", "Pow"} & {_name(each) for each in below}
        below = [
            each
            for above in below
            if _name(above) in _OF_CHANCE
            for each in _operands(above)
        ]
    if not found:
        return False
    weights = getattr(node, "_saved_other", None)
    if weights is None:
        weights = getattr(node, "_saved_self", None)
    if not isinstance(weights, torch.Tensor):
        return False
    if weights.numel() == 1:
        is_one = math.prod(_shape(node)) == 1
        return is_one and "Gather" in found and float(weights) != 1.0
    values = weights.detach().flatten()[:_MOST_WEIGHTS].float()
    is_varied = float(values.std()) > 0.1 * float(values.abs().mean())
    least = float(values.min())
    return least < 0 or (is_varied and least > 0 and "Gather" in found)


def _name(node: Any) -> str:
    return _ENDING.sub("", node.name())


def _shape(node: Any) -> tuple[int, ...]:
    """The shape of the result of an operation."""
    results = node._input_metadata
    return tuple(int(size) for size in results[0].shape) if results else ()


def _operands(node: Any) -> list[Any]:
    """The operations that made those arguments that have a gradient."""
    return [each for each, _ in node.next_functions if each is not None]


def _source(node: Any) -> Any:
    """What made the first argument, apart from what only changes its shape."""
    for _ in range(_MOST_OF_END):
        below = _operands(node)
        if not below:
            break
        node = below[0]
        if _name(node) not in _SHAPING:
            break
    return node


def _axis(node: Any) -> int:
    """The axis of a softmax, counted from the first."""
    axis = int(node._saved_dim)
    # Negative ones are stored without a sign.
    return (axis - (1 << 64) if axis >= 1 << 63 else axis) % max(1, len(_shape(node)))


def _size_of_softmax(node: Any) -> int:
    shape = _shape(node)
    return shape[_axis(node)] if shape and math.prod(shape) > 1 else 0


def _multiplies(node: Any, name: str) -> bool:
    """Whether it makes a single number larger, as a loss scale does."""
    if name != "Mul" or _shape(node):
        return False
    factor = _factor(node)
    return factor is None or abs(factor) >= 1.0


def _factor(node: Any) -> float | None:
    """The number by which an operation multiplies or divides; None: no number."""
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, torch.Tensor) or other.numel() != 1 or other.is_cuda:
        return None
    return float(other)
