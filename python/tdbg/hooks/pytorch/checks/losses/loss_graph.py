"""Find faults of a loss in its graph, before the first backward pass.

Autograd's graph has every operation from the loss down to the parameters, with the
shapes of results and some arguments.  So the inputs of a loss and the parameters that
it depends on are certain at the first step, whether the program wrote the loss as a
module, as a function or by hand.

Only the end of the graph is judged, from the loss down to the layers that made its
inputs.

Thread safety: reads only.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    axis_of,
    factor_of,
    name_of,
    operands_of,
    past_shapes,
    saved_of,
    shape_of,
    source_of,
)
from tdbg.hooks.pytorch.checks.losses.loss_targets import (
    OF_LABELS,
    OF_SCORES,
    faults_of_labels,
    faults_of_scores,
    faults_of_targets,
    is_dropout,
)
from tdbg.run.loss_facts import LossFact, LossFault

__all__ = ["LossGraph", "is_surrogate", "read_loss_graph"]

# Nodes between the loss and what it is given, at most.
_MOST_OF_END = 200

# What takes logarithms of probabilities, as it is called, and the axis of the classes.
_LIKELIHOODS = {
    "NllLoss": ("nll_loss", 1),
    "NllLoss2D": ("nll_loss", 1),
    "CtcLoss": ("ctc_loss", -1),
    "CudnnCtcLoss": ("ctc_loss", -1),
}
_DISTANCES = {
    "NllLoss": "nll_loss",
    "NllLoss2D": "nll_loss",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
}
# What compares numbers.
_OF_NUMBERS = frozenset({"MseLoss", "SmoothL1Loss", "HuberLoss", "Abs", "Pow"})
_SOFTMAXES = frozenset({"Softmax", "LogSoftmax"})
# What takes outputs first: cross_entropy multiplies their logarithms by the labels.
_OF_OUTPUTS = frozenset({"BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "Mul"})
_LEAST_LABELS = 8
# Layers with weights, which give scores.
_LAYERS = frozenset({"Addmm", "Mm", "Convolution"})
# What takes an output and a target, or a logarithm of a probability and its weight.
_PAIRING = frozenset({"Sub", "Rsub", "Mul"}) | _DISTANCES.keys()
# What an output is made by that is one number a sample.
_OF_SAMPLES = _LAYERS | {"Gather", "Sigmoid", "Tanh", "Softplus", "Relu"}
# The same, where an error is computed of it, and nothing else.
_OF_ERRORS = _OF_SAMPLES | {"Add", "Addmv", "Baddbmm", "Bmm", "Mul", "Mv", "Sub", "Sum"}
_MEANS = frozenset({"Mean", "Sum"})
_OF_MEANS = frozenset({"Abs", "Div", "Mul", "Pow", "Sqrt"})
# The operations a loss is made of after the layers.
_OF_END = (
    SHAPING
    | _SOFTMAXES
    | _DISTANCES.keys()
    | _LIKELIHOODS.keys()
    | {
        "Abs",
        "Add",
        "Clamp",
        "ClampMin",
        "Div",
        "Exp",
        "Expand",
        "Gather",
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
        "Sub",
        "Sum",
        "Where",
    }
)
# From a logarithm of a probability to where it is chosen: the ratio of two, say.
_OF_CHANCE = SHAPING | {"Add", "Clamp", "Div", "Exp", "Neg", "Sub", "Sum"}
_MOST_OF_CHANCE = 8
_MOST_WEIGHTS = 4096
# A logarithm of a probability is not above zero, and probabilities add up to one.
_ROUNDING = 0.01
_REDUCED_BY_SUM = 2  # torch.nn.functional's _Reduction.get_enum("sum").


class LossGraph(NamedTuple):
    """The findings in the graph of a loss.

    Attributes:
        facts: The faults.
        is_open: Whether all operations from the loss down to the layers are known.  A
            compiled graph and an author's own function hide theirs.
        is_surrogate: Whether the loss weighs logarithms of probabilities by the success
            of the choices, as policy gradients do.
        is_distance: Whether the loss is the mean of distances between numbers.
        logit_scale: The largest factor of logits before a softmax, at least 1.
    """

    facts: tuple[LossFact, ...]
    is_open: bool
    is_surrogate: bool
    is_distance: bool
    logit_scale: float


def read_loss_graph(graph: Graph) -> LossGraph:
    """Read the end of the graph of a loss.

    Args:
        graph: The graph; the program is about to call ``backward()`` of its loss.

    Example:
        >>> scores = torch.zeros(4, 3, requires_grad=True) * 1.0
        >>> given = torch.softmax(scores, 1)
        >>> loss = torch.nn.functional.cross_entropy(given, torch.zeros(4).long())
        >>> read_loss_graph(Graph(loss)).facts[0].fault
        <LossFault.SOFTMAX_TWICE: 'softmax_twice'>
    """
    root = graph.root
    if root is None:
        facts = [LossFact(LossFault.NO_GRAPH, "tensor")] if graph.leaves else []
        return LossGraph(tuple(facts), True, False, False, 1.0)
    found = dict.fromkeys(_sign(root))
    is_open, weighs_chances, is_distance, scale = True, False, False, 1.0
    for node, name, is_whole in _end_of(root):
        is_open &= not isinstance(node, torch.autograd.function.BackwardCFunction)
        found.update(dict.fromkeys(_faults(node, name, is_whole=is_whole)))
        with contextlib.suppress(Exception):
            if name in OF_SCORES:
                found.update(dict.fromkeys(faults_of_scores(node, name)))
            elif name in OF_LABELS:
                found.update(dict.fromkeys(faults_of_labels(node, name)))
        weighs_chances |= name == "Mul" and _weighs_chances(node)
        is_distance |= name in _OF_NUMBERS
        if name == "LogSoftmax":
            scale = max(scale, _scale_of_logits(node))
    # Programs change tensors that the graph has saved, and then nobody can read them.
    with contextlib.suppress(Exception):
        found.update(dict.fromkeys(faults_of_targets(root)))
    return LossGraph(tuple(found), is_open, weighs_chances, is_distance, scale)


def is_surrogate(root: Any) -> bool:
    """Return whether a loss weighs chances by success, as policy gradients do."""
    return any(
        name == "Mul" and _weighs_chances(node) for node, name, _ in _end_of(root)
    )


def _sign(root: Any) -> Iterator[LossFact]:
    """Yield the fault of a loss that is a distance with the opposite sign."""
    node, is_negative = root, False
    while (name := name_of(node)) in {"Neg", "Mul", "Div"}:
        factor = -1.0 if name == "Neg" else factor_of(node)
        below = operands_of(node)
        if factor is None or len(below) != 1:
            return
        is_negative ^= factor < 0
        node = below[0]
    if is_negative and name in _DISTANCES:
        yield LossFact(LossFault.NEGATED, _DISTANCES[name])


def _end_of(root: Any) -> Iterator[tuple[Any, str, bool]]:
    """Yield the operations from the loss down to the layers, with their names.

    The third value says whether the loss is the operation's result, or a multiple of it
    that does not depend on the size of the batch.
    """
    seen, waiting = {root}, [(root, True)]
    while waiting and len(seen) < _MOST_OF_END:
        node, is_whole = waiting.pop()
        name = name_of(node)
        yield node, name, is_whole
        if name not in _OF_END:
            continue
        is_whole &= name in {"Add", "Neg", "Sub"} or _multiplies(node, name)
        for each in operands_of(node):
            if each not in seen:
                seen.add(each)
                waiting.append((each, is_whole))


def _faults(node: Any, name: str, *, is_whole: bool) -> Iterator[LossFact]:
    given = source_of(node)
    yield from _faults_of_chances(node, name, given)
    is_logistic = name == "BinaryCrossEntropyWithLogits"
    # A target may be a sigmoid.
    if is_logistic and name_of(given) == "Sigmoid" and node.next_functions[0][0]:
        yield LossFact(LossFault.SIGMOID_TWICE, _DISTANCES[name], (shape_of(given),))
    if name in _LIKELIHOODS:
        yield from _faults_of_likelihood(node, name, given)
    if "CtcLoss" in name:
        yield from _left_out(node)
    swapped = _takes_labels(node, name) if name in _OF_OUTPUTS else ""
    if swapped:
        shapes = (shape_of(operands_of(node)[0]),)
        yield LossFact(LossFault.ARGUMENTS_SWAPPED, swapped, shapes)
    if is_whole and _is_sum(node, name):
        what = _DISTANCES.get(name, "sum")
        yield LossFact(LossFault.SUMMED, what, (shape_of(operands_of(node)[0]),))
    if name in _DISTANCES and name in _OF_NUMBERS:
        yield from _dropped(node, name)
    yield from _faults_of_shapes(node, name)


def _faults_of_chances(node: Any, name: str, given: Any) -> Iterator[LossFact]:
    """Yield that a softmax is one of chances, or of a single score."""
    if name in _SOFTMAXES and _size_of_softmax(node) == 1:
        yield LossFact(LossFault.SOFTMAX_OF_ONE, name.lower(), (shape_of(node),))
    elif name == "LogSoftmax" and name_of(given) == "Softmax":
        what = "cross_entropy"
        yield LossFact(LossFault.SOFTMAX_TWICE, what, (shape_of(given),))
    elif name == "Sub" and _normalizes_chances(node):
        shape = shape_of(node)
        yield LossFact(LossFault.SOFTMAX_TWICE, "Categorical", (shape,))


def _dropped(node: Any, name: str) -> Iterator[LossFact]:
    """Yield that dropout sets predicted numbers to zero, right before their loss."""
    ways = operands_of(node)
    given = past_shapes(ways[0])
    below = [name_of(each) for each in operands_of(given)]
    # A target that learns, too, may be a feature.
    if len(ways) == 1 and below and below[0] in _LAYERS and is_dropout(given):
        yield LossFact(LossFault.SCORES_DROPPED, _DISTANCES[name], (shape_of(given),))


def _normalizes_chances(node: Any) -> bool:
    """Return whether a distribution of choices takes probabilities for their scores.

    It subtracts the logarithm of the sum of exponentials.
    """
    ways = operands_of(node)
    return (
        len(ways) == 2
        and name_of(ways[1]) == "Logsumexp"
        and name_of(past_shapes(ways[0])) == "Softmax"
        and source_of(ways[1]) is past_shapes(ways[0])
    )


def _faults_of_shapes(node: Any, name: str) -> Iterator[LossFact]:
    """Yield the fault of outputs that were paired with targets of another shape."""
    paired = _paired_for_mean(node, name)
    if name in _PAIRING or paired is not None:
        one = node if paired is None else paired
        makers = _OF_SAMPLES if paired is None else _OF_ERRORS
        shape = _shape_before_pairing(one, makers)
        if shape is not None:
            what = _DISTANCES.get(name_of(one), name_of(one).lower())
            both = shape_of(one) or shape_of(operands_of(one)[0])
            yield LossFact(LossFault.BROADCAST, what, (shape, both))


def _faults_of_likelihood(node: Any, name: str, given: Any) -> Iterator[LossFact]:
    """Yield the faults of a function that takes logarithms of probabilities.

    The operations show them, or the numbers if other operations lie between.
    """
    operation, classes = _LIKELIHOODS[name]
    direct = operands_of(node)[0]
    shape = shape_of(direct)
    faults = {
        "Softmax": LossFault.LIKELIHOOD_OF_PROBABILITIES,
        **dict.fromkeys(_LAYERS, LossFault.LIKELIHOOD_OF_SCORES),
    }
    fault = faults.get(name_of(given))
    if name_of(given) == "LogSoftmax":
        is_over_samples = (
            given is direct
            and operation == "nll_loss"
            and len(shape) == 2
            and axis_of(given) == 0
            and shape[0] > 1
        )
        fault = LossFault.SOFTMAX_OVER_SAMPLES if is_over_samples else None
    elif fault is None:
        fault = _fault_of_numbers(node, classes)
    if fault is not None:
        yield LossFact(fault, operation, (shape,))


def _takes_labels(node: Any, name: str) -> str:
    """Return the loss that an operation computes for labels as outputs; "": none.

    Its first argument has no gradient, and its second one has.
    """
    ways = [each for each, _ in node.next_functions]
    given = saved_of(node, "self") if len(ways) == 2 and ways[0] is None else None
    if not isinstance(given, torch.Tensor) or given.numel() < _LEAST_LABELS:
        return ""
    some = given.detach()
    if name != "Mul":
        is_binary = bool(((some == 0) | (some == 1)).all())
        is_varied = is_binary and bool((some != some.flatten()[0]).any())
        return _DISTANCES[name] if is_varied else ""
    # A log_softmax of labels that are 1 for one class and 0 for all others.
    if some.dim() < 2 or some.shape[1] < 2 or some.shape != shape_of(node):
        return ""
    peak = 1.0 - math.log(math.e + some.shape[1] - 1)
    is_peak = (some - peak).abs() < _ROUNDING
    is_other = (some - peak + 1.0).abs() < _ROUNDING
    is_one_hot = bool((is_peak | is_other).all() and (is_peak.sum(1) == 1).all())
    return "cross_entropy" if is_one_hot else ""


def _left_out(node: Any) -> Iterator[LossFact]:
    """Yield the fault of targets that CTC cannot spell, and leaves out silently."""
    losses = saved_of(node, "result0")
    if not getattr(node, "_saved_zero_infinity", False) or losses is None:
        return
    n_left = int(losses.detach().isinf().sum())
    given = saved_of(node, "log_probs").detach()
    if n_left and bool(given.isfinite().all()):
        counts = n_left, losses.numel()
        yield LossFact(LossFault.TARGETS_TOO_LONG, "ctc_loss", (counts,))


def _fault_of_numbers(node: Any, classes: int) -> LossFault | None:
    """Return the fault of the numbers given to a likelihood; None for logarithms."""
    given = saved_of(node, "self")
    if given is None:
        given = saved_of(node, "log_probs")
    if not isinstance(given, torch.Tensor) or not given.numel():
        return None
    some = given.detach()
    if some.ndim > 1:
        some = some[: max(1, _MOST_WEIGHTS * len(some) // some.numel())]
    if not float(some.max()) > _ROUNDING:
        return None
    sums = some.sum(classes if some.ndim > 1 else 0)
    adds_up = float(some.min()) >= 0.0 and float((sums - 1).abs().max()) <= _ROUNDING
    return (
        LossFault.LIKELIHOOD_OF_PROBABILITIES
        if adds_up
        else LossFault.LIKELIHOOD_OF_SCORES
    )


def _is_sum(node: Any, name: str) -> bool:
    """Return whether an operation sums a distance over the batch."""
    if name in _DISTANCES:
        return getattr(node, "_saved_reduction", None) == _REDUCED_BY_SUM
    if name != "Sum" or shape_of(node):
        return False
    of = operands_of(node)
    return len(of) == 1 and name_of(of[0]) in {"Abs", "Pow", *_DISTANCES}


def _paired_for_mean(node: Any, name: str) -> Any:
    """Return the difference whose mean square or magnitude a loss is, or None.

    A loss of errors alone does not compare pairs on purpose, as kernels do.
    """
    if name not in _MEANS or shape_of(node):
        return None
    is_error = False
    for _ in range(_MOST_OF_CHANCE):
        below = operands_of(node)
        if len(set(below)) != 1:
            return None
        is_error |= name_of(node) in {"Abs", "Pow"} or len(below) == 2
        node = below[0]
        if name_of(node) in {"Sub", "Rsub"} and is_error:
            return node
        if name_of(node) not in _OF_MEANS:
            return None
    return None


def _shape_before_pairing(
    node: Any, makers: AbstractSet[str]
) -> tuple[int, ...] | None:
    """Return the shape of outputs, one number for N samples, that meet all targets.

    The result is None if they do not.  A program that compares all pairs on purpose
    adds an axis, has gradients on both sides, or uses operations other than *makers*;
    but it never passes these to a function that is a distance.
    """
    operands = operands_of(node)
    if len(operands) != 1:
        return None
    is_distance = name_of(node) in _DISTANCES
    both = shape_of(operands[0]) if is_distance else shape_of(node)
    if len(both) != 2 or both[0] != both[1] or both[0] < 2:
        return None
    below = operands[0]
    if is_distance and name_of(below) != "Expand":
        return None
    while name_of(below) in {"Expand", "ToCopy"}:
        below = operands_of(below)[0]
    shape = shape_of(below)
    if shape not in {(both[0], 1), (both[0],)} or name_of(below) == "Unsqueeze":
        return None
    while name_of(below) in SHAPING and name_of(below) != "Unsqueeze":
        below = operands_of(below)[0]
    return shape if is_distance or name_of(below) in makers else None


def _weighs_chances(node: Any) -> bool:
    """Return whether a product weighs logarithms of chosen probabilities.

    Chances of classes are gathered from all classes.  Chances of numbers contain a
    square, as errors do, so only weights of both signs tell them from a weighted error.
    A mask of ones and zeros is no weight, nor is one number for all samples.
    """
    operands = operands_of(node)
    if len(operands) != 1:
        return False
    found, below = set[str](), operands
    for _ in range(_MOST_OF_CHANCE):
        found |= {"Gather", "Pow"} & {name_of(each) for each in below}
        below = [
            each
            for above in below
            if name_of(above) in _OF_CHANCE
            for each in operands_of(above)
        ]
    if not found:
        return False
    weights = saved_of(node, "other")
    if weights is None:
        weights = saved_of(node, "self")
    if not isinstance(weights, torch.Tensor):
        return False
    if weights.numel() == 1:
        is_one = math.prod(shape_of(node)) == 1
        return is_one and "Gather" in found and float(weights) != 1.0
    values = weights.detach().flatten()[:_MOST_WEIGHTS].float()
    is_varied = float(values.std()) > 0.1 * float(values.abs().mean())
    least = float(values.min())
    return least < 0 or (is_varied and least > 0 and "Gather" in found)


def _scale_of_logits(node: Any) -> float:
    """Return the factor of the logits of a softmax; 1 if there is none."""
    scale = 1.0
    for _ in range(_MOST_OF_CHANCE):
        below = operands_of(node)
        if not below:
            break
        node = below[0]
        name = name_of(node)
        factor = factor_of(node) if name in {"Div", "Mul"} else None
        if factor and math.isfinite(factor):
            scale *= abs(factor) if name == "Mul" else 1.0 / abs(factor)
        elif name not in SHAPING and name not in {"Add", "Sub"}:
            break
    return scale


def _size_of_softmax(node: Any) -> int:
    shape = shape_of(node)
    return shape[axis_of(node)] if shape and math.prod(shape) > 1 else 0


def _multiplies(node: Any, name: str) -> bool:
    """Return whether it makes a single number larger, as a loss scale does."""
    if name != "Mul" or shape_of(node):
        return False
    factor = factor_of(node)
    return factor is None or abs(factor) >= 1.0
