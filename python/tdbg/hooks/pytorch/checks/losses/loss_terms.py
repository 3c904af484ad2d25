"""Find terms of a loss that do not do what their form says, in its graph.

A loss is a sum of terms, each with a sign.  Operations, constants and saved numbers
tell what a term is: an entropy, a divergence from a normal distribution, the weight of
a focal loss.  The weights of classes are compared with the numbers of their labels.

Thread safety: reads only.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    axis_of,
    factor_of,
    leaf_of,
    name_of,
    operands_of,
    saved_of,
    shape_of,
    terms_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found, Note, StepCheck
from tdbg.hooks.pytorch.checks.losses.loss_graph import is_surrogate
from tdbg.hooks.pytorch.model.variables import namespaces
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
_REDUCED_BY_MEAN, _REDUCED_BY_SUM = 1, 2
# Between a loss and the weight that a focal loss makes of it.
_OF_FOCAL = frozenset({"Add", "Mul", "Neg", "Pow", "Rsub", "Sub"})
_MOST_OF_FOCAL = 8
# Samples of a batch, at least; and the weight of a term that is no small one.
_LEAST_BATCH, _LEAST_WEIGHT = 8, 0.4
# Times that a divergence is too large whose weight nobody has chosen with care.
_OUTWEIGHS = 100.0
_OF_DIVERGENCE = frozenset({"Add", "Mul", "Neg", "Pow", "Rsub", "Sub", "Sum"})
_MOST_OF_DIVERGENCE = 40
_CUMULATIVE = frozenset({"Cumsum", "Logcumsumexp"})
# What puts samples in another order.
_CHOOSING = frozenset({"Gather", "Index", "IndexSelect", "Sort", "Take"})
_TIME = re.compile(r"^t$|time|dur|surv|tte|days|months|years", re.IGNORECASE)
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
    if graph.root is None:
        return
    for fault in _faults_of(graph):
        yield fault, {}, {}
    if "Exp" in graph.names:
        yield from _of_reductions(graph)
    if not _CUMULATIVE.isdisjoint(graph.names):
        yield from _of_risk_sets(graph)


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


# ---- sums and means over the samples -------------------------------------------------


def _of_reductions(graph: Graph) -> Iterator[Found]:
    """Yield that a divergence is a sum over the samples, and the rest a mean.

    Or the reverse.  Both are whole terms of the loss.
    """
    terms = [
        (reduced, node)
        for node, factor in terms_of(graph.root)
        if (reduced := _reduction_of(node, factor)) is not None
    ]
    for own, node in terms:
        below = operands_of(node)[0]
        if own.n < _LEAST_BATCH or not _is_divergence(below, own.n):
            continue
        others = [each for each, its in terms if its is not node and each.is_clear]
        is_same = any(each.n == own.n for each in others)
        are_other = {each.is_mean for each in others} == {not own.is_mean}
        if is_same and are_other and (times := own.outweighs(others)):
            numbers = {"samples": float(own.n), "times": times}
            kind = "mean" if own.is_mean else "sum"
            yield Fault.REDUCTIONS_DIFFER, numbers, {"kind": kind}
            return


class _Reduced(NamedTuple):
    """A term that is reduced over samples.

    Attributes:
        is_mean: Whether it is a mean over them; else a sum.
        n: Samples.
        n_values: Numbers that are reduced.
        weight: What it is multiplied by.
    """

    is_mean: bool
    n: int
    n_values: int
    weight: float

    @property
    def is_clear(self) -> bool:
        """Whether it is surely one of both: a small weight may be of any mixture."""
        return self.is_mean or self.weight >= _LEAST_WEIGHT

    def outweighs(self, others: Iterable[_Reduced]) -> float:
        """Return how many times a divergence is too large or small; 0: it is not.

        A small weight is the choice of one who balances the terms, unless the sum
        outweighs means over many numbers all the same.
        """
        if self.weight >= _LEAST_WEIGHT:
            return float(self.n)
        least = min(each.n_values / each.weight for each in others)
        times = 0.0 if self.is_mean else 2.0 * self.weight * least
        return times if times >= _OUTWEIGHS else 0.0


def _reduction_of(node: Any, factor: float) -> _Reduced | None:
    """Return how a term is reduced over samples; None: it is not."""
    name, below = name_of(node), operands_of(node)
    if shape_of(node) or len(below) != 1 or not (shape := shape_of(below[0])):
        return None
    reduction = getattr(node, "_saved_reduction", None)
    size, n = abs(factor), shape[0]
    found = _Reduced(True, n, math.prod(shape), size)
    if name == "Mean" or reduction == _REDUCED_BY_MEAN:
        return found if _LEAST_WEIGHT <= size <= 1.0 else None
    if (name == "Sum" or reduction == _REDUCED_BY_SUM) and size > 0:
        is_mean = _LEAST_WEIGHT <= size * n <= 1.0 + _ROUNDING
        return found._replace(is_mean=is_mean and size < _LEAST_WEIGHT)
    return None


def _is_divergence(node: Any, n: int) -> bool:
    """Return whether a term has exp(x), x and a square, of what a layer made of *n*."""
    nodes = list(walk(node, _MOST_OF_DIVERGENCE, _OF_DIVERGENCE))
    if not any(name_of(each) == "Pow" for each in nodes):
        return False
    for each in nodes:
        below = operands_of(each)[:1]
        if name_of(each) != "Exp" or not below or shape_of(each)[:1] != (n,):
            continue
        is_beside = any(
            below[0] in operands_of(other) for other in nodes if other is not each
        )
        if is_beside and not leaf_of(below[0]):
            return True
    return False


# ---- sets at risk --------------------------------------------------------------------


def _of_risk_sets(graph: Graph) -> Iterator[Found]:
    """Yield that risks are added up along samples that nobody has sorted."""
    for node in graph.named(_CUMULATIVE):
        shape = shape_of(node)
        n = math.prod(shape)
        is_long = n >= _LEAST_BATCH and n == shape[0] and axis_of(node) == 0
        is_of_risks = name_of(node) == "Logcumsumexp" or (
            name_of(operands_of(node)[0]) == "Exp"
            and any(name_of(each) == "Log" for each in graph.users_of(node))
        )
        if not (is_long and is_of_risks) or _is_chosen(node):
            continue
        name = _unsorted(n)
        if name:
            yield Fault.RISKS_UNSORTED, {"samples": float(n)}, {"name": name}
            return


def _is_chosen(node: Any) -> bool:
    """Return whether samples have been put in another order since they were scored."""
    return any(
        name_of(each) in _CHOOSING
        for each in itertools.islice(_first_operands(node), _MOST_OF_DIVERGENCE)
    )


def _first_operands(node: Any) -> Iterator[Any]:
    while below := operands_of(node):
        node = below[0]
        yield node


def _unsorted(n: int) -> str:
    """Return the name of *n* numbers of the program that are not sorted.

    Empty if some are sorted, or would be so in an order that the program has.
    """
    numbers: dict[str, torch.Tensor] = {}
    orders: list[torch.Tensor] = []
    for scope in namespaces(sys._getframe(1)):
        for name, value in scope.items():
            if type(value) is not torch.Tensor or value.numel() != n:
                continue
            if value.requires_grad or value.dtype is torch.bool or value.dim() > 2:
                continue
            flat = value.detach().flatten()
            if flat.is_floating_point() or int(flat.min()) < 0 or int(flat.max()) >= n:
                numbers[name] = flat
            else:
                orders.append(flat)
                numbers[name] = flat
    varied = {
        name: each
        for name, each in numbers.items()
        if len(each.unique()) > n // 2  # type: ignore[no-untyped-call]
    }
    every = [*varied.values()]
    every += [each[order.long()] for each in varied.values() for order in orders]
    if any(map(_is_sorted, every)):
        return ""
    floating = [name for name, each in varied.items() if each.is_floating_point()]
    likely = [name for name in floating if _TIME.search(name)]
    return next(iter(likely), "")


def _is_sorted(numbers: torch.Tensor) -> bool:
    steps = numbers[1:] - numbers[:-1]
    return bool((steps >= 0).all()) or bool((steps <= 0).all())


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
