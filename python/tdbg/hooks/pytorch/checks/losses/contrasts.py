"""Find what a contrastive loss compares: which samples match, and which do not.

Such a loss has scores of all samples of a batch by all of them.  Their gradient says
what the loss does with each, however it was written: it is negative where two samples
are to come closer, positive where they are to part, and zero where a mask hides them.

Thread safety: the training's thread; a hook of autograd, wherever that runs, keeps a
gradient and reads no number of it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    name_of,
    operands_of,
    saved_of,
    shape_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.device.tensors import is_recording
from tdbg.run.observations import Fault

__all__ = ["Contrasts"]

# Samples of a batch, and numbers of all products, at least and at most.
_LEAST_SAMPLES, _MOST_SAMPLES, _MOST_PRODUCTS = 8, 2048, 1 << 23
# Graphs and matrices that are looked at, at most; and graphs that have none.
_MOST_GRAPHS, _MOST_SCORES, _MOST_IN_VAIN = 12, 4, 4
# Graphs that show a fault.
_ENOUGH = 3
# What a sum of gradients comes to by rounding, beside the sum of their magnitudes.
_ROUNDING = 1e-3
# The share of samples that must show it; matches among all pairs, at most.
_NEARLY_ALL, _MOST_MATCHES = 0.9, 0.3
# Samples that are equal, and samples that are not, relative to their size.
_EQUAL, _DIFFERENT = 1e-6, 1e-3
# Operations between samples and their scores, which compare the same samples.
_SAME_SAMPLES = SHAPING - {
    "Cat", "Index", "IndexSelect", "MaskedSelect", "Select", "Slice", "Stack",
}  # fmt: skip
_MOST_BETWEEN, _MOST_BELOW = 12, 5000
_DISTANCES = frozenset({"Cdist", "EuclideanDist"})


class _Scores(NamedTuple):
    """Scores of all samples by all others.

    Attributes:
        gradients: Arrive in the backward pass.
        one: The samples of the rows, as (sample, number).
        other: Those of the columns.
        is_of_itself: Whether both are the same.
        is_of_batch: Whether the columns are samples, and no weights.
        sign: 1; -1: the scores are distances.
    """

    gradients: list[torch.Tensor]
    one: torch.Tensor | None
    other: torch.Tensor | None
    is_of_itself: bool
    is_of_batch: bool
    sign: float


class Contrasts(StepCheck):
    """Looks at the scores in the first losses.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._handles: list[Any] = []
        self._scores: list[_Scores] = []
        self._n_graphs = self._n_found = 0
        self._counts: Counter[tuple[Fault, int]] = Counter()

    def loss_begins(self, graph: Graph) -> None:
        """Wait for the gradients of scores."""
        if is_recording():
            return  # The numbers of a graph of a device are not there yet.
        self._n_graphs += 1
        met = 0
        for node in graph.named({"Bmm", "Mm", "Sum"} | _DISTANCES):
            found = _read(node) if met < _MOST_SCORES else None
            if found is not None:
                met += 1
                self._handles.append(node.register_prehook(_keeper(found.gradients)))
                self._scores.append(found)
        self._n_found += met > 0

    def step_begins(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Look at the gradients that have arrived."""
        self._let_go()
        scores, self._scores = self._scores, []
        if is_recording():
            return
        found = {fault: numbers for each in scores for fault, numbers in _faults(each)}
        for fault, numbers in found.items():
            key = fault, int(numbers.get("match", -1))
            self._counts[key] += 1
            if self._counts[key] == _ENOUGH:
                self._note(fault, numbers, {})
        is_vain = self._n_graphs >= _MOST_IN_VAIN and not self._n_found
        if is_vain or self._n_graphs >= _MOST_GRAPHS:
            self.remove()

    def remove(self) -> None:
        """Look at no more."""
        self.is_over = True
        self._let_go()
        self._scores.clear()

    def _let_go(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def _keeper(gradients: list[torch.Tensor]) -> Any:
    def arrives(given: Any) -> None:
        with contextlib.suppress(Exception):
            if not gradients and isinstance(given[0], torch.Tensor):
                gradients.append(given[0].detach().clone())

    return arrives


def _read(node: Any) -> _Scores | None:
    """Return the scores that an operation computes; None: it computes none."""
    shape = shape_of(node)
    is_of_pairs = len(shape) > 1 and shape[-1] == shape[-2] and set(shape[:-2]) <= {1}
    if not is_of_pairs or not _LEAST_SAMPLES <= shape[-1] <= _MOST_SAMPLES:
        return None
    name, n = name_of(node), shape[-1]
    product = node
    if name == "Sum":
        product = operands_of(node)[0]
        shape = shape_of(product)
        if name_of(product) != "Mul" or shape[:2] != (n, n) or len(shape) != 3:
            return None
    ways = [each for each, _ in product.next_functions][:2]
    if len(ways) < 2 or all(each is None for each in ways):
        return None
    one, other = _samples(name, product, n)
    is_of_itself = None not in ways and _origin(ways[0]) is _origin(ways[1])
    is_of_batch = None not in ways and not any(map(_are_weights, ways))
    sign = -1.0 if name in _DISTANCES else 1.0
    return _Scores([], one, other, is_of_itself, is_of_batch, sign)


def _samples(
    name: str, node: Any, n: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the samples that are compared, where the operation has kept them."""
    names = {"Sum": ("self", "other")} | dict.fromkeys(_DISTANCES, ("x1", "x2"))
    first, second = (saved_of(node, each) for each in names.get(name, ("self", "mat2")))
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return None, None
    first, second = first.detach(), second.detach()
    if name == "Sum":
        if n * n * first.shape[-1] > _MOST_PRODUCTS:
            return None, None
        first, second = (each.expand(n, n, -1) for each in (first, second))
        if first.stride(0) == 0:
            first, second = second, first
        return first[:, 0], second[0]
    if name in {"Mm", "Bmm"}:
        second = second.transpose(-1, -2)
    return first.reshape(n, -1), second.reshape(n, -1)


def _origin(node: Any) -> Any:
    """Return the operation that made samples, before they were shaped or scaled."""
    for _ in range(_MOST_BETWEEN):
        name, below = name_of(node), operands_of(node)
        is_scaled = name in {"Div", "Expand", "Mul"} and node.next_functions[0][0]
        if not below or not (name in _SAME_SAMPLES or is_scaled):
            break
        node = below[0]
    return node


def _are_weights(node: Any) -> bool:
    """Return whether rows are those of a parameter, be they scaled."""
    rows = max(shape_of(node)) if shape_of(node) else 0
    origin = _origin(node)
    if hasattr(origin, "variable"):
        return True
    learn = [
        each.variable for each in walk(origin, _MOST_BELOW) if hasattr(each, "variable")
    ]
    return len(learn) == 1 and rows in learn[0].shape and _shapes_match(node, learn[0])


def _shapes_match(node: Any, leaf: torch.Tensor) -> bool:
    return sorted(filter(lambda n: n > 1, shape_of(node))) == sorted(leaf.shape)


_Found = tuple[Fault, dict[str, float]]


def _faults(scores: _Scores) -> Iterator[_Found]:
    """Yield what is wrong with the matches of samples."""
    if not scores.gradients:
        return
    gradients = scores.sign * scores.gradients[0].double().cpu()
    n = gradients.shape[-1]
    if gradients.numel() != n * n or not bool(gradients.isfinite().all()):
        return
    gradients = gradients.reshape(n, n)
    total = float(gradients.abs().sum())
    gradients = gradients / (total / n or 1.0)
    matches = gradients < -_ROUNDING / n
    if not total or not _is_contrastive(gradients, matches):
        return
    if scores.is_of_itself and _parts_itself(gradients, matches):
        yield Fault.OWN_VIEW_COUNTS, {"samples": float(n)}
    match = _match_of_all(matches) if scores.is_of_batch else None
    if match is not None:
        yield Fault.ONE_MATCHES_ALL, {"samples": float(n), "match": float(match)}
    if scores.one is not None and scores.other is not None and scores.is_of_batch:
        one, other = (each.double().cpu() for each in (scores.one, scores.other))
        if _are_equal(one, other, matches, is_of_itself=scores.is_of_itself):
            yield Fault.VIEWS_ARE_ONE, {"samples": float(n)}


def _is_contrastive(gradients: torch.Tensor, matches: torch.Tensor) -> bool:
    """Return whether chances that come to one are compared with matches.

    The gradients of scores come to zero then, for each sample, or for all if chances
    are those of rows and columns.  If the matches have scores of their own, all
    gradients are positive, and come to the same for each sample.  Those of a mean of
    scores are equal, and no chances.
    """
    if float(matches.double().mean()) > _MOST_MATCHES:
        return False
    sums, sizes = gradients.sum(1), gradients.abs().sum(1)
    if abs(float(sums.sum())) <= _ROUNDING * float(sizes.sum()):
        return True
    if bool(matches.any()):
        is_none = sums.abs() <= _ROUNDING * sizes
        return float(is_none.double().mean()) >= _NEARLY_ALL
    spread = float((sums - sums.mean()).abs().max())
    least, most = gradients.aminmax()
    has_chances = float(most - least) > _ROUNDING * float(most)
    return has_chances and spread <= _ROUNDING * float(sums.mean())


def _match_of_all(matches: torch.Tensor) -> int | None:
    """Return the sample that all others match, and no other; None: there is none."""
    both = matches.double().mean(0), matches.double().mean(1)
    shares = torch.maximum(*both)
    match = int(shares.argmax())
    others = matches.clone()
    others[match] = False
    others[:, match] = False
    is_only = float(shares[match]) >= _NEARLY_ALL and not bool(others.any())
    return match if is_only else None


def _parts_itself(gradients: torch.Tensor, matches: torch.Tensor) -> bool:
    """Return whether each sample is to part from itself, more than from any other."""
    own = gradients.diagonal()
    others = gradients.masked_fill(matches, 0.0)
    is_most = own >= others.max(1).values * (1.0 - _ROUNDING)
    is_parted = own > _ROUNDING / len(gradients)
    return bool(is_parted.all()) and float(is_most.double().mean()) >= _NEARLY_ALL


def _are_equal(
    one: torch.Tensor, other: torch.Tensor, matches: torch.Tensor, *, is_of_itself: bool
) -> bool:
    """Return whether each sample and its match are equal, and others are not.

    If matches have scores of their own, any other sample may be one.
    """
    if not bool(one.isfinite().all() and other.isfinite().all()):
        return False
    # A temperature may scale one of them.
    one, other = (each / each.square().sum(1).mean().sqrt() for each in (one, other))
    apart = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
    is_own = torch.eye(len(one), dtype=torch.bool)
    is_equal = apart <= _EQUAL
    if is_of_itself:
        matches = ~is_own & (matches if bool(matches.any()) else is_equal)
    if float((matches & is_equal).any(1).double().mean()) < _NEARLY_ALL:
        return False
    strangers = apart[~(matches | is_own)]
    return float((strangers > _DIFFERENT).double().mean()) >= _NEARLY_ALL
