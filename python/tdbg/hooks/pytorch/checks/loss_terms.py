"""Find terms of a loss that do not do what their form says, in its graph.

A loss is a sum of terms, each with a sign.  Operations, constants and saved numbers
tell what a term is: an entropy, a divergence from a normal distribution, the weight of
a focal loss.  The weights of classes are compared with the numbers of their labels.

Thread safety: reads only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tdbg.hooks.pytorch.checks.graph_nodes import (
    SHAPING,
    Graph,
    factor_of,
    name_of,
    operands_of,
    saved_of,
    shape_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graph_reader import Found, Note, StepCheck
from tdbg.hooks.pytorch.checks.loss_graph import is_surrogate
from tdbg.run.observations import Fault

__all__ = ["ClassWeights", "faults_of_terms"]

# Terms of a loss that are read, at most.
_MOST_TERMS = 300
# Rows of probabilities that are looked at, and how exact they are.
_MOST_ROWS, _ROUNDING = 64, 1e-3
# Operations between the probabilities of a policy and the scores they are made of.
_OF_CHANCE = SHAPING | {
    "Add", "Clamp", "Div", "Exp", "Gather", "Log", "LogSoftmax", "Logsumexp", "Mul",
    "Neg", "Pow", "Softmax", "Sub", "Sum",
}  # fmt: skip
_MOST_OF_CHANCE = 40
# What a clipped loss takes of two.
_OF_TWO = frozenset({"Maximum", "Min", "Minimum"})
# Losses that PyTorch reduces to a mean, and how the graph calls that.
_MEANS = frozenset({"NllLoss", "NllLoss2D", "BinaryCrossEntropyWithLogits"})
_REDUCED_BY_MEAN = 1
# Between a loss and the weight that a focal loss makes of it.
_OF_FOCAL = frozenset({"Add", "Mul", "Neg", "Pow", "Rsub", "Sub"})
_MOST_OF_FOCAL = 8
# Noise has about the mean and deviation of a standard normal distribution.
_LEAST_NOISE = 16

# Losses without weights, losses with some, and labels of one that are counted, at most.
_MOST_UNWEIGHED, _MOST_WEIGHED, _MOST_LABELS = 2, 16, 1 << 16
# Labels of all classes, and of the rarest one, at least; and how much more the most
# frequent one must have.
_ENOUGH_LABELS, _LEAST_LABELS, _UNEVEN = 256, 8, 3.0
# The power of the labels that weights are, and how exactly.
_LEAST_SLOPE, _ALIKE = 0.5, 0.9

# A result of an operation.
_Result = tuple[Any, int]


class _Term(NamedTuple):
    """A result that a loss contains, times a number of that sign."""

    result: _Result
    sign: float

    @property
    def node(self) -> Any:
        return self.result[0]


def faults_of_terms(graph: Graph) -> Iterator[Found]:
    """Yield the faults of the terms of a loss.

    Example:
        >>> error = torch.nn.functional.cross_entropy(
        ...     torch.zeros(4, 3, requires_grad=True), torch.zeros(4).long()
        ... )
        >>> list(faults_of_terms(Graph((1 - (-error).exp()) ** 2 * error)))
        [(<Fault.FOCAL_OF_MEAN: 'focal_of_mean'>, {}, {})]
    """
    for fault in () if graph.root is None else _faults_of(graph):
        yield fault, {}, {}


def _faults_of(graph: Graph) -> Iterator[Fault]:
    terms = list(_terms(graph.root))
    if any(map(_is_focal_of_mean, (term.node for term in terms))):
        yield Fault.FOCAL_OF_MEAN
    penalized = [term.node for term in terms if _lowers_entropy(term)]
    if (
        penalized
        and is_surrogate(graph.root)
        and any(_is_of_policy(each, terms) for each in penalized)
    ):
        yield Fault.ENTROPY_PENALIZED
    if _takes_variance_for_deviation(graph, terms):
        yield Fault.VARIANCE_AS_DEVIATION
    if _maximizes_divergence(terms):
        yield Fault.DIVERGENCE_MAXIMIZED


def _terms(root: Any) -> Iterator[_Term]:
    """Yield the terms of a loss, and what they are a mean, sum or multiple of."""
    waiting = [_Term((root, 0), 1.0)]
    for _ in range(_MOST_TERMS):
        if not waiting:
            return
        term = waiting.pop()
        yield term
        node, name = term.node, name_of(term.node)
        below = [each for each in node.next_functions if each[0] is not None]
        sign = term.sign * _sign_of(node, name)
        if name in {"Add", "Sub", "Rsub"}:
            signs = _signs_of_sum(node, name)
            waiting += [
                _Term(each, term.sign * signs[i])
                for i, each in enumerate(node.next_functions)
                if each[0] is not None and i < len(signs)
            ]
        elif sign and len(below) == 1:
            waiting.append(_Term(below[0], sign))


def _signs_of_sum(node: Any, name: str) -> tuple[float, float]:
    alpha = float(getattr(node, "_saved_alpha", 1.0))
    if name == "Rsub":
        return -alpha, 1.0
    return 1.0, -alpha if name == "Sub" else alpha


def _sign_of(node: Any, name: str) -> float:
    """Return the sign of what an operation multiplies by; 0: it does something else."""
    if name in {"Mean", "Sum", "Expand"} or name in SHAPING:
        return 1.0
    if name == "Neg":
        return -1.0
    if name not in {"Mul", "Div"}:
        return 0.0
    factor = factor_of(node)
    if factor is not None:
        return math.copysign(1.0, factor) if factor else 0.0
    other = _constant(node)
    if other is None or not other.numel():
        return 0.0
    if float(other.min()) >= 0.0:
        return 1.0
    return -1.0 if float(other.max()) <= 0.0 else 0.0


def _constant(node: Any) -> torch.Tensor | None:
    """Return the tensor by which an operation multiplies or divides its operand."""
    if len(operands_of(node)) != 1:
        return None
    for name in ("other", "self"):
        found = saved_of(node, name)
        if isinstance(found, torch.Tensor):
            return found.detach()
    return None


# ---- a policy's entropy --------------------------------------------------------------


def _lowers_entropy(term: _Term) -> bool:
    """Return whether a smaller loss means a smaller entropy, of choices or numbers.

    The sum of p log p is the negative entropy; the logarithm of a scale is a part of
    the entropy of a normal distribution.
    """
    name = name_of(term.node)
    if name == "Mul" and term.sign < 0:
        return _is_of_probabilities(term.node)
    return name == "Log" and term.sign > 0


def _is_of_probabilities(node: Any) -> bool:
    """Return whether a product is one of probabilities and their logarithms."""
    one, other = (saved_of(node, each) for each in ("self", "other"))
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    if one.shape != other.shape or one.ndim < 1 or one.shape[-1] < 2:
        return False
    rows = [each.detach().reshape(-1, each.shape[-1]) for each in (one, other)]
    rows = [each[:_MOST_ROWS].float() for each in rows]
    return any(_are_probabilities(p, log_p) for p, log_p in (rows, rows[::-1]))


def _are_probabilities(p: torch.Tensor, log_p: torch.Tensor) -> bool:
    add_up = bool(((p.sum(-1) - 1).abs() < _ROUNDING).all())
    return add_up and bool(((log_p.exp() - p).abs() < _ROUNDING).all())


def _is_of_policy(node: Any, terms: list[_Term]) -> bool:
    """Return whether an entropy has the scores of chances that the loss weighs."""
    weighed = [term.node for term in terms if _gathers(term.node)]
    own = _made_of(node)
    return any(own & _made_of(each) for each in weighed)


def _gathers(node: Any) -> bool:
    """Return whether numbers of both signs weigh chances that follow from choices."""
    if name_of(node) in _OF_TWO:
        return any(map(_gathers, operands_of(node)))
    weights = _constant(node) if name_of(node) == "Mul" else None
    return weights is not None and float(weights.min()) < 0.0


def _made_of(node: Any) -> set[Any]:
    """Return the operations that made the scores or scales that a chance is of."""
    found = set[Any]()
    passes = _OF_CHANCE | _OF_TWO
    for each in walk(node, _MOST_OF_CHANCE, passes):
        if name_of(each) not in passes:
            found.add(each)
        elif name_of(each) == "Log":
            found.update(operands_of(each))
    return found


# ---- the weight of a focal loss ------------------------------------------------------


def _is_focal_of_mean(node: Any) -> bool:
    """Return whether a mean loss is weighted by (1 - exp(-mean loss)) ** gamma."""
    if name_of(node) != "Mul" or shape_of(node) or len(operands_of(node)) != 2:
        return False
    one, other = operands_of(node)
    return any(
        _is_mean_of_several(mean) and _is_focal_weight(weight, mean)
        for mean, weight in ((one, other), (other, one))
    )


def _is_mean_of_several(node: Any) -> bool:
    if shape_of(node):
        return False
    if name_of(node) == "Mean":
        return math.prod(shape_of(operands_of(node)[0])) > 1
    is_mean = getattr(node, "_saved_reduction", None) == _REDUCED_BY_MEAN
    n_samples = (*shape_of(operands_of(node)[0]), 0)[0]
    return name_of(node) in _MEANS and is_mean and n_samples > 1


def _is_focal_weight(node: Any, mean: Any) -> bool:
    for _ in range(_MOST_OF_FOCAL):
        name, below = name_of(node), operands_of(node)
        if len(below) != 1:
            return False
        if name == "Exp":
            return below[0] is mean or operands_of(below[0]) == [mean]
        if name not in _OF_FOCAL:
            return False
        node = below[0]
    return False


# ---- the deviation of noise ----------------------------------------------------------


def _takes_variance_for_deviation(graph: Graph, terms: list[_Term]) -> bool:
    """Return whether noise is multiplied by what the divergence says is no deviation.

    A divergence from the standard normal distribution has exp(x) - x of a logarithm x
    of a variance.  Noise then takes exp(x / 2).
    """
    every = {term.result for term in terms}
    logarithms = {
        below
        for node, _ in every
        if name_of(node) == "Exp"
        for below in node.next_functions
        if below in every
    }
    if not logarithms:
        return False
    return any(
        of in logarithms
        or (name_of(of[0]) == "Exp" and of[0].next_functions[0] in logarithms)
        for of in _scales_of_noise(graph)
    )


def _maximizes_divergence(terms: list[_Term]) -> bool:
    """Return whether the loss has x - exp(x), and the negative of a square beside it.

    A divergence from the standard normal distribution has exp(x) - x, and a square.
    """
    signs: dict[_Result, set[float]] = {}
    for term in terms:
        signs.setdefault(term.result, set()).add(term.sign)
    has_square = any(
        name_of(term.node) == "Pow" and term.sign < 0 and shape_of(term.node)
        for term in terms
    )
    return has_square and any(
        name_of(term.node) == "Exp"
        and term.sign < 0
        and signs.get(term.node.next_functions[0]) == {1.0}
        for term in terms
    )


def _scales_of_noise(graph: Graph) -> Iterator[_Result]:
    """Yield what is multiplied by noise and then added to something."""
    products = [
        each
        for node in graph.named(["Add"])
        if len(below := operands_of(node)) == 2
        for each in below
        if name_of(each) == "Mul" and _is_by_noise(each)
    ]
    for each in products:
        yield from (result for result in each.next_functions if result[0] is not None)


def _is_by_noise(node: Any) -> bool:
    noise = _constant(node)
    if noise is None or noise.numel() < _LEAST_NOISE or not noise.is_floating_point():
        return False
    if tuple(noise.shape) != shape_of(node):
        return False
    some = noise.flatten()[:4096].float()
    near = 4.0 / math.sqrt(some.numel())
    return abs(float(some.mean())) < near and abs(float(some.std()) - 1.0) < near


# ---- weights of classes --------------------------------------------------------------


class ClassWeights(StepCheck):
    """Compares weights of classes with the numbers of their labels.

    Weights make up for rare labels.  Those that grow as the labels do, and about as
    much, are shares of the labels, where the inverse was meant.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_losses = 0
        self._weights: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None

    def loss_begins(self, graph: Graph) -> None:
        """Count the labels of a loss with weights."""
        self._n_losses += 1
        for weights, counts in _weighed(graph):
            if self._weights is None or self._counts is None:
                self._weights, self._counts = weights, counts
            elif torch.equal(self._weights, weights):
                self._counts = self._counts + counts
        if self._weights is None or self._counts is None:
            self.is_over = self._n_losses >= _MOST_UNWEIGHED
            return
        is_enough = int(self._counts.sum()) >= _ENOUGH_LABELS
        self.is_over = is_enough or self._n_losses >= _MOST_WEIGHED
        if is_enough and _follow(self._weights, self._counts):
            often, rare = int(self._counts.argmax()), int(self._counts.argmin())
            self._note(
                Fault.WEIGHTS_UPSIDE_DOWN,
                {
                    "often": float(often),
                    "rare": float(rare),
                    "labels": float(self._counts.sum()),
                    "often_labels": float(self._counts[often]),
                    "rare_labels": float(self._counts[rare]),
                    "often_weight": float(self._weights[often]),
                    "rare_weight": float(self._weights[rare]),
                },
                {},
            )


def _weighed(graph: Graph) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the weights of classes in a loss, and how many labels each has."""
    for node in graph.named({"NllLoss", "NllLoss2D"}):
        weights, labels = saved_of(node, "weight"), saved_of(node, "target")
        if weights is not None and labels is not None:
            some = labels.flatten()[:_MOST_LABELS]
            known = some[(some >= 0) & (some < len(weights))]
            counts = torch.bincount(known, minlength=len(weights))
            yield weights.detach().double().cpu(), counts.cpu()
    for node in graph.named({"BinaryCrossEntropyWithLogits"}):
        weight, labels = saved_of(node, "pos_weight"), saved_of(node, "target")
        if weight is not None and labels is not None and weight.numel() == 1:
            some = labels.detach().flatten()[:_MOST_LABELS]
            counts = torch.stack([(some == 0).sum(), (some == 1).sum()])
            weights = torch.stack([torch.ones(()), weight.detach().flatten()[0].cpu()])
            yield weights.double(), counts.cpu()


def _follow(weights: torch.Tensor, counts: torch.Tensor) -> bool:
    """Return whether weights grow as numbers of labels do, and nearly as much."""
    if float(weights.min()) <= 0 or int(counts.min()) < _LEAST_LABELS:
        return False
    if float(counts.max()) < _UNEVEN * float(counts.min()):
        return False
    x, y = counts.double().log(), weights.log()
    x, y = x - x.mean(), y - y.mean()
    slope = float((x * y).sum() / (x * x).sum())
    likeness = float((x * y).sum() / ((x * x).sum() * (y * y).sum()).sqrt())
    return _LEAST_SLOPE <= slope <= 1 / _LEAST_SLOPE and likeness >= _ALIKE
