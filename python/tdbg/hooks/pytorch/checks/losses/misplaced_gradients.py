"""Find gradients of a loss where none belongs, and terms that lack theirs.

The target of a temporal difference (a reward, and a share of what a network says next)
is detached, and so is an advantage that weighs the choices of a policy.  A term that is
another number at each step has a graph, or nothing learns of it.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    factor_of,
    leaves_below,
    name_of,
    operands_of,
    saved_of,
    shape_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.functions.gradient_calls import GradientCall, GradientCalls
from tdbg.run.observations import Fault

__all__ = ["MisplacedGradients", "faults_of_gradients"]

# Losses that are read, operations between a loss and what it compares, and those
# between such a part and a layer, at most.
_MOST_LOSSES, _MOST_OF_END, _MOST_OF_PART = 6, 200, 30
# Losses that show that a term without a gradient changes, and by how much of the loss.
_ENOUGH, _LEAST_SHARE, _LEAST_CHANGE = 3, 1e-3, 1e-5
# Samples of a policy gradient, at least.
_LEAST_SAMPLES = 8
# A discount is below 1, and seldom lower than this.
_LEAST_DISCOUNT = 0.5

_DISTANCES = frozenset({"HuberLoss", "MseLoss", "SmoothL1Loss"})
_OF_END = SHAPING | _DISTANCES | {
    "Abs", "Add", "Clamp", "Div", "Mean", "Maximum", "Minimum", "Mul", "Neg", "Pow",
    "Sqrt", "Sub", "Sum", "Where",
}  # fmt: skip
# Between the value of a next state and its discount.
_OF_VALUE = SHAPING | {
    "Amax", "Clamp", "Gather", "Max", "Maximum", "Minimum", "Where",
}  # fmt: skip
# Between the logarithm of a chance and the weight of the choice.
_OF_CHANCE = SHAPING | {"Clamp", "Exp", "Minimum", "Neg", "Sum"}
_REDUCED = {0: "none", 1: "mean", 2: "sum"}


class MisplacedGradients(StepCheck):
    """Read where gradients go in the first losses.

    Args:
        parameters: Yields the parameters of the registered modules.
        note: Called with what is found out.
    """

    def __init__(
        self, parameters: Callable[[], Iterable[torch.Tensor]], note: Note
    ) -> None:
        self._parameters = parameters
        self._note = note
        self._n_losses = 0
        self._found: set[Fault] = set()
        # Numbers without a gradient that losses contain, by the number of their terms;
        # and how many losses followed on gradients of inputs that have no graph.
        self._numbers: dict[int, list[float]] = {}
        self._n_of_slopes = 0
        self._has_slope = False
        self._slopes: GradientCalls | None = GradientCalls(self._differentiated)

    def loss_begins(self, graph: Graph) -> None:
        """Read the loss at which a backward pass begins."""
        self._n_losses += 1
        for fault in faults_of_gradients(graph):
            self._tell(fault)
        # A program may have changed tensors that the graph has saved.
        with contextlib.suppress(Exception):
            self._look_for_number(graph.loss)
        self._has_slope = False
        if self._n_losses >= _MOST_LOSSES:
            self.remove()

    def remove(self) -> None:
        """Read no more."""
        super().remove()
        self._numbers.clear()
        if self._slopes is not None:
            self._slopes.remove()
            self._slopes = None

    def _differentiated(self, call: GradientCall) -> None:
        """Note that a program has computed a gradient of its inputs, as a number."""
        self._has_slope |= not call.is_kept and any(
            each.requires_grad and not isinstance(each, nn.Parameter)
            for each in call.inputs
        )

    def _look_for_number(self, root: torch.Tensor) -> None:
        """Look for a number in the loss that changes, and has no graph."""
        node = root.grad_fn
        if node is None or not _adds_number(node):
            return
        if self._has_slope:
            self._n_of_slopes += 1
            if self._n_of_slopes >= _ENOUGH:
                self._tell(Fault.TERM_HAS_NO_GRADIENT, words={"kind": "slope"})
            return
        known = _sum_of_terms(node)
        total = float(root.detach())
        if known is None or not math.isfinite(total):
            return
        numbers = self._numbers.setdefault(_size_of(node), [])
        if abs(total - known) < _LEAST_SHARE * abs(total):
            numbers.clear()
            return
        numbers.append(total - known)
        changes = max(numbers) - min(numbers)
        if len(numbers) < _ENOUGH or changes < _LEAST_CHANGE * abs(total):
            return
        # The loss of a part that does not train at this time has no graph, either.
        if all(each.requires_grad for each in self._parameters()):
            seen = {"first": numbers[0], "latest": numbers[-1], "loss": total}
            self._tell(Fault.TERM_HAS_NO_GRADIENT, seen, {"kind": "number"})

    def _tell(
        self,
        fault: Fault,
        numbers: Mapping[str, float] | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        if fault not in self._found:
            self._found.add(fault)
            self._note(fault, numbers or {}, words or {})


def faults_of_gradients(graph: Graph) -> Iterator[Fault]:
    """Yield the faults of a loss that passes gradients where none belongs.

    Example:
        >>> values = torch.nn.Linear(2, 1)
        >>> states, rewards = torch.ones(4, 2), torch.zeros(4, 1)
        >>> target = rewards + 0.9 * values(states + 1)
        >>> loss = torch.nn.functional.mse_loss(values(states), target)
        >>> list(faults_of_gradients(Graph(loss)))
        [<Fault.TARGET_LEARNS: 'target_learns'>]
    """
    if graph.root is None:
        return
    for node in walk(graph.root, _MOST_OF_END, _OF_END):
        name, below = name_of(node), operands_of(node)
        if len(below) != 2:
            continue
        if name in _DISTANCES or (name == "Sub" and shape_of(node)):
            if any(
                _is_target(target)
                and not _is_target(told)
                and not leaves_below(target).isdisjoint(leaves_below(told))
                for target, told in (below, below[::-1])
            ):
                yield Fault.TARGET_LEARNS
        elif name == "Mul" and _weighs_by_what_learns(node):
            yield Fault.ADVANTAGE_LEARNS


# ---- targets -------------------------------------------------------------------------


def _is_target(node: Any) -> bool:
    """Return whether a part is numbers plus a discounted result of a network."""
    node = _below(node, SHAPING)
    if name_of(node) != "Add" or len(operands_of(node)) != 1 or not shape_of(node):
        return False
    (node,), discount = operands_of(node), 1.0
    for _ in range(_MOST_OF_PART):
        name, below = name_of(node), operands_of(node)
        if name == "Mul" and len(below) == 1:
            factor = _largest_factor(node)
            if factor is None:
                return False
            discount *= factor
        elif name not in _OF_VALUE or not below:
            break
        node = below[0]
    return _LEAST_DISCOUNT <= discount < 1.0


def _largest_factor(node: Any) -> float | None:
    """Return what a product multiplies by, where that is one number, or it and 0."""
    number = factor_of(node)
    if number is not None:
        return number
    factors = _constant(node)
    if factors is None or factors.dtype == torch.bool or not factors.numel():
        return None if factors is None else 1.0
    largest = factors.max()
    is_mask = bool(((factors == 0) | ((factors - largest).abs() < 1e-6)).all())
    return float(largest) if is_mask else None


# ---- advantages ----------------------------------------------------------------------


def _weighs_by_what_learns(node: Any) -> bool:
    """Return whether chances of choices are multiplied by what another network says.

    Weights of one sign are probabilities, or weights of samples.
    """
    if math.prod(shape_of(node)) < _LEAST_SAMPLES:
        return False
    one, other = operands_of(node)
    values = [saved_of(node, "self"), saved_of(node, "other")]
    for chance, weight, given in ((one, other, values[1]), (other, one, values[0])):
        if not _is_chance(chance) or _is_chance(weight) or given is None:
            continue
        numbers = given.detach()
        if numbers.numel() < _LEAST_SAMPLES or not float(numbers.min()) < 0.0:
            continue
        if float(numbers.max()) > 0.0 and leaves_below(weight) - leaves_below(chance):
            return True
    return False


def _is_chance(node: Any) -> bool:
    """Return whether a part is the logarithm of a chosen probability, or a ratio."""
    for _ in range(_MOST_OF_PART):
        name, below = name_of(node), operands_of(node)
        if name == "Gather" and below:
            of = name_of(_below(below[0], SHAPING))
            return of in {"Log", "LogSoftmax", "Sub"}
        is_of_old = name == "Sub" and len(below) == 1
        if not (name in _OF_CHANCE or is_of_old) or not below:
            return False
        node = below[0]
    return False


# ---- terms without a graph -----------------------------------------------------------


def _adds_number(node: Any) -> bool:
    """Return whether a loss adds a number without a graph to one with a graph."""
    name, below = name_of(node), operands_of(node)
    if shape_of(node) or name not in {"Add", "Sub"}:
        return False
    if len(below) == 1:
        # The flooding of a loss adds a number to a distance from it.
        return name_of(below[0]) not in {"Abs", "Relu"}
    return any(map(_adds_number, below))


def _size_of(node: Any) -> int:
    """Return how many terms a loss has, to compare none but losses of one kind."""
    if name_of(node) not in {"Add", "Sub"} or shape_of(node):
        return 1
    return 1 + sum(map(_size_of, operands_of(node)))


def _sum_of_terms(node: Any) -> float | None:
    """Return what the terms with a graph add up to; None: one cannot be computed."""
    name = name_of(node)
    if name in {"Add", "Sub"} and not shape_of(node):
        alpha = float(getattr(node, "_saved_alpha", 1.0))
        signs = 1.0, -alpha if name == "Sub" else alpha
        total = 0.0
        for (below, _), sign in zip(node.next_functions, signs, strict=False):
            term = 0.0 if below is None else _sum_of_terms(below)
            if term is None:
                return None
            total += sign * term
        return total
    if name in {"Mul", "Div"} and len(operands_of(node)) == 1:
        factor, term = factor_of(node), _sum_of_terms(operands_of(node)[0])
        if factor is None or term is None or (name == "Div" and not factor):
            return None
        return term / factor if name == "Div" else term * factor
    return _distance(node, name)


def _distance(node: Any, name: str) -> float | None:
    """Return the result of a loss of PyTorch, by what it keeps."""
    given, target = saved_of(node, "self"), saved_of(node, "target")
    how = _REDUCED.get(getattr(node, "_saved_reduction", -1), "none")
    if given is None or target is None or how == "none":
        return None
    given = given.detach()
    if name in {"NllLoss", "NllLoss2D"}:
        ignored = int(node._saved_ignore_index)
        ignored -= 1 << 64 if ignored >= 1 << 63 else 0
        weight = saved_of(node, "weight")
        return float(
            functional.nll_loss(given, target, weight, None, ignored, None, how)
        )
    if name == "BinaryCrossEntropyWithLogits":
        weights = {key: saved_of(node, key) for key in ("weight", "pos_weight")}
        compute = functional.binary_cross_entropy_with_logits
        return float(compute(given, target, reduction=how, **weights))
    if name == "MseLoss":
        return float(functional.mse_loss(given, target.detach(), reduction=how))
    return None


# ---- parts of a graph ----------------------------------------------------------------


def _below(node: Any, names: frozenset[str]) -> Any:
    """Return the nearest operation that is none of these."""
    for _ in range(_MOST_OF_PART):
        below = operands_of(node)
        if name_of(node) not in names or len(below) != 1:
            break
        node = below[0]
    return node


def _constant(node: Any) -> torch.Tensor | None:
    for name in ("other", "self"):
        found = saved_of(node, name)
        if isinstance(found, torch.Tensor):
            return found.detach()
    return None
