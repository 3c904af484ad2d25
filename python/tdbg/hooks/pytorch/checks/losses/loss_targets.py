"""What a loss is given to compare: divergences, targets out of reach, wrong labels.

A divergence of Kullback and Leibler compares logarithms of probabilities with
probabilities, and adds up over the classes.  PyTorch computes it by plain operations,
which the graph shows, with the targets that it saved for the backward pass.

A last activation bounds what a model can give.  Targets far beyond these bounds are
never reached.

Documented losses say which labels they take: signs, or symbols other than the blank.

Thread safety: reads only.  Errors: what PyTorch raises for saved tensors that the
program has changed since.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import torch

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    name_of,
    operands_of,
    saved_of,
    shape_of,
    source_of,
    terms_of,
)
from tdbg.run.loss_facts import LossFact, LossFault
from tdbg.run.observations import Fault

if TYPE_CHECKING:
    from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found

__all__ = [
    "OF_LABELS",
    "OF_SCORES",
    "faults_of_labels",
    "faults_of_samples",
    "faults_of_scores",
    "faults_of_targets",
    "is_dropout",
]

# What PyTorch itself calls the divergence.
_DIVERGENCE = "kl_div"
# The least and the largest number that an activation gives.
_BOUNDS = {
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Relu": (0.0, math.inf),
    "Softplus": (0.0, math.inf),
    "Exp": (0.0, math.inf),
}
# The loss whose targets are probabilities, whatever gives the outputs.
_OF_PROBABILITIES = "BinaryCrossEntropyWithLogits"
_OF_NUMBERS = frozenset({"MseLoss", "SmoothL1Loss", "HuberLoss"})
# What puts other numbers beside those of an activation.
_JOINING = frozenset({"Cat", "Stack"})
# What keeps all numbers in their order.
_RESHAPING = frozenset(
    {"ReshapeAlias", "Select", "Squeeze", "ToCopy", "UnsafeView", "Unsqueeze", "View"}
)
_NOT_REDUCED = 0  # torch.nn.functional's _Reduction.get_enum("none").
# How far targets lie beyond the bounds, as a root mean square: in their standard
# deviations, and in the distance of the bounds, where so much is enough by itself.
# Noise about targets at a bound comes to less, and its mean can be learned.
_BEYOND, _BEYOND_OF_WIDTH, _ENOUGH_OF_WIDTH = 0.5, 0.1, 0.18
_LEAST_TARGETS = 8
_MOST_NUMBERS = 4096
# Probabilities add up to one.
_ROUNDING = 0.01
_MOST_JOINED = 8
# Activations whose results are no scores of classes, and what they are applied to.
_SQUASHING, _RECTIFYING = frozenset({"Sigmoid", "Tanh"}), "Relu"
_LAYERS = frozenset({"Addmm", "Convolution", "CudnnBatchNorm", "Mm", "NativeBatchNorm"})
_LOSSES_OF_SCORES = {
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "LogSoftmax": "cross_entropy",
}
OF_SCORES = frozenset({"Sub", *_LOSSES_OF_SCORES})
"""Operations that ``faults_of_scores`` reads."""

OF_LABELS = frozenset(
    {"Add", "Clamp", "ClampMin", "CtcLoss", "CudnnCtcLoss", "Relu", "SoftMarginLoss"}
)
"""Operations that ``faults_of_labels`` reads."""

_MAGNITUDES = frozenset({"Abs", "Mul", "Pow", "Sqrt"})
# What gives no number below 0, as logarithms of rates may be.
_NOT_NEGATIVE = frozenset({"Exp", "Relu", "Sigmoid", "Softplus"})
# The share of elements that dropout leaves out, within so much.
_OF_DROPOUT = 0.15
_LEAST_DROPPED, _MOST_OF_HINGE = 32, 4


def faults_of_targets(root: Any) -> Iterator[LossFact]:
    """Yield the faults of the terms of a loss, whose graph begins at *root*."""
    terms = list(terms_of(root))
    if len(terms) == 1 and name_of(terms[0][0]) in _MAGNITUDES:
        yield from _of_sum_of_errors(terms[0][0])
    for node, factor in terms:
        yield from _of_divergence(node, factor, len(terms))
        yield from _of_bounds(node)


def _of_sum_of_errors(node: Any) -> Iterator[LossFact]:
    """Yield that the whole loss is the square or magnitude of a mean error."""
    if name_of(node) == "Sqrt":
        node = operands_of(node)[0]
    below = operands_of(node)
    if name_of(node) not in _MAGNITUDES or len(set(below)) != 1:
        return
    mean = below[0]
    errors = operands_of(mean)
    if name_of(mean) not in {"Mean", "Sum"} or shape_of(mean) or len(errors) != 1:
        return
    shape = shape_of(errors[0])
    is_error = name_of(errors[0]) == "Sub" and len(operands_of(errors[0])) == 1
    if is_error and math.prod(shape) >= _LEAST_TARGETS:
        yield LossFact(LossFault.ERRORS_CANCEL, name_of(node).lower(), (shape,))


def _of_divergence(node: Any, factor: float, n_terms: int) -> Iterator[LossFact]:
    """Yield the faults of a mean or a sum over a divergence."""
    if name_of(node) not in {"Mean", "Sum"}:
        return
    top = node
    # The sum over the classes, then the mean.
    while name_of(node) in {"Mean", "Sum"} | SHAPING and len(operands_of(node)) == 1:
        top, node = node, operands_of(node)[0]
    found = _compared(node)
    if found is None:
        return
    weights, given = found
    classes = _classes_of(weights)
    if classes is None:
        return
    shape = shape_of(node)
    if name_of(given) == "Softmax":
        fault = LossFault.LIKELIHOOD_OF_PROBABILITIES
        yield LossFact(fault, _DIVERGENCE, (shape,))
    is_mean = top.name() == "MeanBackward0"
    if is_mean and not (factor >= classes and _is_whole(factor / classes)):
        counts = classes, n_terms
        yield LossFact(LossFault.MEAN_OVER_CLASSES, _DIVERGENCE, (shape, counts))


def _compared(node: Any) -> tuple[torch.Tensor, Any] | None:
    """Return the probabilities that weigh logarithms, and the operation of these.

    PyTorch computes p log(p) - p q, or p (log(p) - q) of logarithms of targets.
    """
    is_first = name_of(node) == "Sub"
    product = _second(node) if is_first else node
    if product is None or name_of(product) != "Mul":
        return None
    below = operands_of(product)
    if len(below) != 1:
        return None
    if not is_first and (name_of(below[0]) != "Sub" or _second(below[0]) is None):
        return None
    given = source_of(product if is_first else below[0])
    weights = next(
        (
            saved
            for key in ("self", "other")
            if isinstance(saved := saved_of(product, key), torch.Tensor)
        ),
        None,
    )
    if weights is None or name_of(given) not in {"Softmax", "LogSoftmax"}:
        return None
    return weights, given


def _second(node: Any) -> Any:
    """Return the operation of the second argument, if the first has no gradient."""
    ways = [each for each, _ in node.next_functions]
    return ways[1] if len(ways) == 2 and ways[0] is None else None


def _classes_of(weights: torch.Tensor) -> int | None:
    """Return the size of the axis over which weights are probabilities, or None."""
    some = weights.detach()
    if not some.ndim or not some.is_floating_point():
        return None
    if some.ndim > 1:
        some = some[: max(1, _MOST_NUMBERS * len(some) // max(1, some.numel()))]
    if not some.numel() or float(some.min()) < 0.0:
        return None
    axes = range(1 if some.ndim > 1 else 0, some.ndim)
    for axis in reversed(axes):
        sums = some.float().sum(axis)
        if some.shape[axis] > 1 and float((sums - 1).abs().max()) <= _ROUNDING:
            return int(some.shape[axis])
    return None


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < 1e-6


def _of_bounds(node: Any) -> Iterator[LossFact]:
    """Yield the fault of targets that no output can come near."""
    found = _of_function(node) or _of_difference(node)
    if found is None:
        return
    operation, (low, high), targets = found
    some = targets.detach().flatten()[:_MOST_NUMBERS].float()
    if len(some) < _LEAST_TARGETS or not bool(some.isfinite().all()):
        return
    beyond = (some - some.clamp(low, high)).abs()
    size = float(beyond.square().mean().sqrt())
    width = high - low
    least = _BEYOND_OF_WIDTH * width if math.isfinite(width) else 0.0
    is_far = size > least and size > _BEYOND * float(some.std(correction=0))
    if is_far or size > _ENOUGH_OF_WIDTH * width:
        counts = int((beyond > 0).sum()), len(some)
        ends = math.floor(float(some.min())), math.ceil(float(some.max()))
        fault = LossFault.TARGETS_OUT_OF_REACH
        yield LossFact(fault, operation, (counts, ends))


_Bounded = tuple[str, tuple[float, float], torch.Tensor]


def _of_function(node: Any) -> _Bounded | None:
    """Return what a distance function compares with a bounded output."""
    name = name_of(node)
    if name not in _OF_NUMBERS | {_OF_PROBABILITIES}:
        return None
    # A program that reduces the losses itself may leave some out.
    if getattr(node, "_saved_reduction", _NOT_REDUCED) == _NOT_REDUCED:
        return None
    if saved_of(node, "weight") is not None:
        return None
    ways = [each for each, _ in node.next_functions]
    is_swapped = ways[0] is None
    targets = saved_of(node, "self" if is_swapped else "target")
    if len(operands_of(node)) != 1 or not isinstance(targets, torch.Tensor):
        return None
    if name == _OF_PROBABILITIES:
        what = "binary_cross_entropy_with_logits"
        return None if is_swapped else (what, _BOUNDS["Sigmoid"], targets)
    maker = _maker(operands_of(node)[0], SHAPING - _JOINING)
    if maker is None:
        return None
    name = name_of(maker)
    return name.lower(), _BOUNDS[name], targets


def _of_difference(node: Any) -> _Bounded | None:
    """Return what a mean of squares or magnitudes compares with a bounded output.

    The difference and the output are saved, so their sum is what was subtracted.
    """
    below = operands_of(node)
    if name_of(node) not in {"Mean", "Sum"} or len(below) != 1:
        return None
    error = below[0]
    if name_of(error) not in {"Abs", "Pow"} or len(operands_of(error)) != 1:
        return None
    pair = operands_of(error)[0]
    outputs = operands_of(pair)
    if name_of(pair) != "Sub" or len(outputs) != 1:
        return None
    maker = _maker(outputs[0], _RESHAPING)
    result = saved_of(maker, "result")
    difference = saved_of(error, "self")
    if (
        maker is None
        or not isinstance(result, torch.Tensor)
        or not isinstance(difference, torch.Tensor)
        or result.numel() != difference.numel()
    ):
        return None
    output = result.detach().flatten()
    is_first = pair.next_functions[0][0] is not None
    apart = difference.detach().flatten()
    name = name_of(maker)
    targets = output - apart if is_first else output + apart
    return name.lower(), _BOUNDS[name], targets


def _maker(node: Any, passes: AbstractSet[str]) -> Any:
    """Return the activation that an output is of; None: none with bounds."""
    for _ in range(_MOST_JOINED):
        name, below = name_of(node), operands_of(node)
        if name in _BOUNDS:
            return node
        if name not in passes or len(below) != 1:
            return None
        node = below[0]
    return None


# ---- scores ------------------------------------------------------------------------


def faults_of_scores(node: Any, name: str) -> Iterator[LossFact]:
    """Yield what is wrong with scores between the last layer and their loss.

    Args:
        node: An operation at the end of a loss.
        name: Its name.
    """
    rate = _logarithm_of_rate(node) if name == "Sub" else None
    if rate is not None and name_of(rate) in _NOT_NEGATIVE:
        maker = f"{name_of(rate).lower()} exp"
        yield LossFact(LossFault.EXPONENTIAL_TWICE, maker, (shape_of(rate),))
    what = _LOSSES_OF_SCORES.get(name)
    if what is None:
        return
    given = source_of(node)
    last = name_of(given)
    if last in _LAYERS:
        return
    below = [name_of(each) for each in operands_of(given)]
    is_bounded = (last in _SQUASHING and (what, last) != (_LOGISTIC, "Sigmoid")) or (
        last == _RECTIFYING and below and below[0] in _LAYERS
    )
    shape = shape_of(given)
    if is_bounded and math.prod(shape[1:]) >= (2 if name == "LogSoftmax" else 1):
        fault = LossFault.SCORES_BOUNDED
        yield LossFact(fault, f"{last.lower()} {what}", (shape,))
    elif below and below[0] in _LAYERS and is_dropout(given):
        yield LossFact(LossFault.SCORES_DROPPED, what, (shape,))


_LOGISTIC = _LOSSES_OF_SCORES[_OF_PROBABILITIES]


def _logarithm_of_rate(node: Any) -> Any:
    """Return what makes x, if a difference is exp(x) - labels * x; else None."""
    ways = operands_of(node)
    if [name_of(each) for each in ways] != ["Exp", "Mul"]:
        return None
    one, other = (operands_of(each) for each in ways)
    is_of_counts = one == other and len(one) == 1
    return source_of(ways[0]) if is_of_counts else None


def is_dropout(node: Any) -> bool:
    """Return whether an operation drops some elements and enlarges the others."""
    if name_of(node) in {"FusedDropout", "NativeDropout"}:
        return True
    mask = saved_of(node, "other") if name_of(node) == "Mul" else None
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != shape_of(node):
        return False
    some = mask.detach().flatten()[:_MOST_NUMBERS].float()
    kept = some[some != 0]
    if len(some) < _LEAST_DROPPED or not 0 < len(kept) < len(some):
        return False
    factor = float(kept[0])
    share = 1 - len(kept) / len(some)
    return (
        factor > 1.0
        and bool((kept == factor).all())
        and abs(share - (1 - 1 / factor)) < _OF_DROPOUT
    )


# ---- labels ------------------------------------------------------------------------


def faults_of_labels(node: Any, name: str) -> Iterator[LossFact]:
    """Yield that labels are none that the loss is made for.

    Args:
        node: An operation at the end of a loss.
        name: Its name.
    """
    if "CtcLoss" in name:
        yield from _of_blank(node)
    elif name == "SoftMarginLoss":
        yield from _of_signs(saved_of(node, "target"), "soft_margin_loss")
    elif name in {"Clamp", "ClampMin", "Relu"} and shape_of(node):
        yield from _of_signs(_labels_of_hinge(node), "A hinge loss")
    elif name == "Add" and shape_of(node):
        ways = operands_of(node)
        if [name_of(each) for each in ways] == ["Where", "Where"]:
            conditions = [saved_of(each, "condition") for each in ways]
            if all(isinstance(each, torch.Tensor) for each in conditions):
                yield from _of_pairs(conditions)


def _of_blank(node: Any) -> Iterator[LossFact]:
    targets, lengths = saved_of(node, "targets"), node._saved_target_lengths
    if not isinstance(targets, torch.Tensor) or isinstance(lengths, torch.Tensor):
        return
    some = targets.detach()
    if some.dim() == 2:
        # What follows the end of a text is padding, which may be anything.
        places = torch.arange(some.shape[1], device=some.device)
        ends = torch.tensor(list(lengths), device=some.device)
        some = some[places[None, :] < ends[:, None]]
    n_blank = int((some == int(node._saved_blank)).sum())
    if n_blank:
        counts = n_blank, some.numel()
        yield LossFact(LossFault.SYMBOL_IS_BLANK, "ctc_loss", (counts,))


def _labels_of_hinge(node: Any) -> Any:
    """Return the labels y of max(0, margin - y * score), or None."""
    below, has_margin = node, False
    for _ in range(_MOST_OF_HINGE):
        ways = operands_of(below)
        if len(ways) != 1:
            return None
        below = ways[0]
        name = name_of(below)
        has_margin |= name in {"Add", "Rsub", "Sub"}
        if name == "Mul" and has_margin:
            # A score that has no other shape than its labels.
            labels = saved_of(below, "other")
            labels = saved_of(below, "self") if labels is None else labels
            is_one = isinstance(labels, torch.Tensor) and labels.dim() > 0
            return labels if is_one and tuple(labels.shape) == shape_of(below) else None
        if name not in {"Add", "Neg", "Rsub", "Sub"}:
            return None
    return None


def _of_signs(labels: Any, what: str) -> Iterator[LossFact]:
    """Yield the fault of labels 0 and 1, where a loss takes -1 and 1."""
    if not isinstance(labels, torch.Tensor) or labels.numel() < _LEAST_TARGETS:
        return
    some = labels.detach().flatten()[:_MOST_NUMBERS]
    is_zero = some == 0
    n_zero = int(is_zero.sum())
    others = some[~is_zero]
    is_one_sign = len(others) > 0 and bool((others == others[0]).all())
    if n_zero and is_one_sign and abs(float(others[0])) == 1.0:
        counts = n_zero, len(some)
        yield LossFact(LossFault.LABELS_NOT_SIGNS, what, (counts,))


def _of_pairs(conditions: list[torch.Tensor]) -> Iterator[LossFact]:
    """Yield the fault of pairs that are neither alike (1) nor different (-1)."""
    one, other = (each.detach().flatten() for each in conditions)
    if one.dtype is not torch.bool or one.shape != other.shape or one.dim() != 1:
        return
    n_left = int((~(one | other)).sum())
    # Labels are 0 instead of -1 if none is -1.
    if n_left and len(one) >= _LEAST_TARGETS and not bool(other.any()):
        fault, what = LossFault.LABELS_NOT_SIGNS, "cosine_embedding_loss"
        yield LossFact(fault, what, ((n_left, len(one)),))


# ---- one sample of all ---------------------------------------------------------------
_OF_SAMPLES = frozenset(
    {
        "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "HuberLoss", "MseLoss",
        "NllLoss", "SmoothL1Loss",
    }
)  # fmt: skip
# Of sequences and graphs, one place may be all that counts.
_OF_PLACES = frozenset(
    {
        "Baddbmm", "Bmm", "Cat", "CudnnRnn", "IndexAdd", "IndexSelect", "ScatterAdd",
        "MkldnnRnnLayer", "SparseAddmm", "Stack",
    }
)  # fmt: skip
_TO_SAMPLE = frozenset(
    {"LogSoftmax", "Sigmoid", "Slice", "Squeeze", "Unsqueeze", "View"}
)


def faults_of_samples(graph: Graph) -> Iterator[Found]:
    """Yield that a loss has only the last sample of a batch, though all have labels."""
    terms = () if graph.root is None else tuple(terms_of(graph.root))
    if len(terms) != 1 or name_of(terms[0][0]) not in _OF_SAMPLES:
        return
    n = _last_of(saved_of(terms[0][0], "target"))
    if n < _LEAST_TARGETS or not _OF_PLACES.isdisjoint(graph.names):
        return
    node = operands_of(terms[0][0])[0]
    while name_of(node) in _TO_SAMPLE and operands_of(node):
        node = operands_of(node)[0]
    below = operands_of(node)[:1]
    shape = shape_of(below[0]) if below else ()
    is_last = name_of(node) == "Unbind" or (
        name_of(node) == "Select" and int(node._saved_index) % (1 << 64) in _ends_of(n)
    )
    if is_last and shape[:1] == (n,) and shape[1:] == shape_of(node):
        yield Fault.ONE_SAMPLE_COUNTS, {"samples": float(n)}, {"samples": f"{n:,}"}


def _ends_of(n: int) -> set[int]:
    return {n - 1, (1 << 64) - 1}


def _last_of(target: Any) -> int:
    """Return of how many labels this is the last one; 0: of none."""
    every = getattr(target, "_base", None)
    if every is None or not every.dim() or not every.is_contiguous():
        return 0
    behind = target.storage_offset() - every.storage_offset()
    size = every.numel() // max(1, len(every))
    is_last = behind == (len(every) - 1) * size == every.numel() - target.numel()
    return len(every) if is_last else 0
