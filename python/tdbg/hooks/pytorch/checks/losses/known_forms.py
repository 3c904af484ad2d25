"""Compare losses with forms that are known: of adversaries, of actions, of noise.

A generator learns to do what its discriminator learns to notice.  An action that a tanh
limits has another density than the number before.  Noise of a normal distribution is
not uniform, and an error that is cut off has no gradient.  Similarities of unit vectors
lie between -1 and 1, which bounds what a softmax can tell apart.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

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
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Found, Note, StepCheck
from tdbg.hooks.pytorch.checks.graphs.weighed_chances import (
    PASSES,
    signed_parts,
    weighed_chances,
)
from tdbg.hooks.pytorch.checks.losses.noise_mixtures import is_spread_evenly
from tdbg.hooks.pytorch.model.numbers import is_taken, numbers_in
from tdbg.hooks.pytorch.model.process_objects import held_ids
from tdbg.run.observations import Fault

__all__ = ["Adversaries", "TakenActions", "faults_of_forms"]

# Losses that are looked at, and those of them without any sign of a game, at most.
_MOST_LOSSES, _MOST_IN_VAIN, _ENOUGH = 40, 6, 3
# Samples of a batch, at least; operations that are read, at most.
_LEAST_SAMPLES, _MOST_NEAR, _MOST_BELOW = 8, 400, 3000
_LAYERS = frozenset({"Addmm", "Mm", "Convolution"})
# The share of samples whose scores a loss moves in one direction, and how much nearer
# samples of the same network are to each other than to real ones.
_ONE_WAY, _NEARER = 0.95, 0.5
_ERRORS = frozenset({"Abs", "Mul", "Pow"})
# The share of errors without a gradient, at least, and how large an error must be, as a
# share of the range of targets.
_LEAST_CUT, _FAR_OF_RANGE = 0.05, 0.1
_DISTANCES = frozenset({"HuberLoss", "MseLoss", "SmoothL1Loss"})
_OF_DEVIATION = SHAPING | {"Add", "Clamp", "Div", "Exp", "Expand", "Mul"}
# Logarithms of how a tanh stretches, and what they are made of.
_LOGARITHMS = frozenset({"Log", "Log1P", "LogSigmoid", "Softplus"})
_MOST_OF_TERM = 40
_OF_JACOBIAN = SHAPING | _LOGARITHMS | {
    "Abs", "Add", "Clamp", "Cosh", "Div", "Exp", "Expand", "Mul", "Neg", "Pow", "Rsub",
    "Sub", "Sum", "Tanh",
}  # fmt: skip
# Rows of length 1, by rounding; classes or samples that are told apart, at least.
_UNIT, _LEAST_CLASSES = 1e-3, 3


def faults_of_forms(graph: Graph) -> Iterator[Found]:
    """Yield the faults in the form of a loss."""
    names = graph.names
    if graph.root is None:
        return
    if "LogSoftmax" in names:
        yield from _of_similarities(graph)
    if "Exp" in names:
        yield from _of_noise(graph)
    if "Clamp" in names:
        yield from _of_cut_errors(graph)
        yield from _of_cut_outputs(graph)
    if "Tanh" in names and "Pow" in names:
        yield from _of_squashed(graph)


# ---- similarities that are close together --------------------------------------------


def _of_similarities(graph: Graph) -> Iterator[Found]:
    """Yield that a softmax is given similarities of unit vectors as they are, or less.

    If all lie between -s and s, the loss over n classes stays above
    log(1 + (n - 1) exp(-2 s)).
    """
    for softmax in graph.named({"LogSoftmax"}):
        node, scale = past_shapes(operands_of(softmax)[0]), 1.0
        while (
            name_of(node) in {"Div", "Mul"}
            and len(operands_of(node)) == 1
            and (factor := factor_of(node))
        ):
            scale *= abs(factor) if name_of(node) == "Mul" else 1 / abs(factor)
            node = past_shapes(operands_of(node)[0])
        n = shape_of(softmax)[axis_of(softmax)] if shape_of(softmax) else 0
        if scale > 1 or n < _LEAST_CLASSES or name_of(node) not in {"Bmm", "Mm"}:
            continue
        rows, columns = saved_of(node, "self"), saved_of(node, "mat2")
        if (
            rows is None
            or columns is None
            or not (_are_unit(rows, -1) and _are_unit(columns, -2))
        ):
            continue
        least = math.log1p((n - 1) * math.exp(-2 * scale))
        numbers = {"scale": scale, "classes": float(n), "least": least}
        yield Fault.SIMILARITIES_CLOSE, numbers, {}
        return


def _are_unit(vectors: torch.Tensor, axis: int) -> bool:
    """Return whether all vectors along an axis have length 1."""
    lengths = vectors.detach().float().norm(dim=axis)
    return vectors.shape[axis] > 1 and bool(((lengths - 1).abs() < _UNIT).all())


# ---- noise that is not normal --------------------------------------------------------


def _of_noise(graph: Graph) -> Iterator[Found]:
    """Yield that a code is mean + deviation * noise, where the noise is uniform.

    A divergence from the standard normal distribution has exp(x) and x of a logarithm x
    of a variance.
    """
    parts = {node for node, _ in signed_parts(graph.root)}
    logarithms = {
        below
        for node in parts
        if name_of(node) == "Exp"
        for below in operands_of(node)
        if below in parts
    }
    if not logarithms:
        return
    for node in graph.named({"Add"}):
        for each in operands_of(node):
            if name_of(each) != "Mul" or not _is_uniform(each):
                continue
            made = walk(operands_of(each)[0], _MOST_NEAR, _OF_DEVIATION)
            if not logarithms.isdisjoint(made):
                yield Fault.NOISE_IS_UNIFORM, {}, {}
                return


def _is_uniform(node: Any) -> bool:
    """Return whether a factor of a product is spread evenly over 0 to 1."""
    if len(operands_of(node)) != 1:
        return False
    noise = saved_of(node, "other")
    if not isinstance(noise, torch.Tensor):
        noise = saved_of(node, "self")
    if not isinstance(noise, torch.Tensor) or not noise.is_floating_point():
        return False
    return tuple(noise.shape) == shape_of(node) and is_spread_evenly(noise)


# ---- errors that are cut off ---------------------------------------------------------


def _of_cut_errors(graph: Graph) -> Iterator[Found]:
    """Yield that errors are limited before they are squared: beyond, none learns."""
    parts = {node for node, _ in signed_parts(graph.root)}
    for node in graph.named({"Clamp"}):
        error = operands_of(node)[0]
        is_error = name_of(error) in {"Sub", "Rsub"} and len(operands_of(error)) == 1
        if not is_error or len(shape_of(node)) > 2:
            continue
        users = [each for each in graph.users_of(node) if each in parts]
        if not any(_is_error_of(each) for each in users):
            continue
        given = saved_of(node, "self")
        least, most = (getattr(node, f"_saved_{e}", None) for e in ("min", "max"))
        if given is None or not least or not most or least != -most:
            continue
        cut = float((given.detach().abs() > most).float().mean())
        if given.numel() >= _LEAST_SAMPLES and cut >= _LEAST_CUT:
            yield Fault.ERROR_CUT_OFF, {"share": cut, "limit": float(most)}, {}
            return


def _of_cut_outputs(graph: Graph) -> Iterator[Found]:
    """Yield that outputs are limited, and many wrong ones lie beyond the limits."""
    for loss in graph.named(_DISTANCES):
        node, target = past_shapes(operands_of(loss)[0]), saved_of(loss, "target")
        given = saved_of(node, "self") if name_of(node) == "Clamp" else None
        if given is None or target is None or given.numel() != target.numel():
            continue
        bounds = [getattr(node, f"_saved_{each}", None) for each in ("min", "max")]
        least, most = (None if each is None else float(each) for each in bounds)
        given, target = given.detach().flatten(), target.detach().flatten()
        answers = given.clamp(least, most)
        far = _FAR_OF_RANGE * float(target.max() - target.min())
        is_cut = (answers != given) & ((answers - target).abs() > far)
        cut = float(is_cut.float().mean())
        if far and given.numel() >= _LEAST_SAMPLES and cut >= _LEAST_CUT:
            numbers = {"least": least, "most": most}
            found = {key: each for key, each in numbers.items() if each is not None}
            yield Fault.ERROR_CUT_OFF, {"share": cut, **found}, {"of": "outputs"}
            return


def _is_error_of(node: Any) -> bool:
    """Return whether an operation squares its operand, or takes its size."""
    name, below = name_of(node), operands_of(node)
    return name in _ERRORS and (
        name != "Mul" or (len(below) == 2 and len({*below}) == 1)
    )


# ---- the density of a limited action -------------------------------------------------


def _of_squashed(graph: Graph) -> Iterator[Found]:
    """Yield that the density of an action is that of the number before a tanh."""
    parts = {node for node, _ in signed_parts(graph.root)}
    logarithms = graph.named(_LOGARITHMS)
    for action in graph.named({"Tanh"}):
        number = operands_of(action)[0]
        if name_of(number) != "Add" or len(operands_of(number)) != 2:
            continue
        squares = [
            each
            for each in parts
            if name_of(each) == "Pow" and _is_of_difference(each, number)
        ]
        is_used = any(_reads(each, action) for each in graph.named(_LAYERS | {"Cat"}))
        if not squares or not is_used:
            continue
        terms = [
            each
            for each in logarithms
            if not {action, number}.isdisjoint(walk(each, _MOST_OF_TERM, _OF_JACOBIAN))
        ]
        kind = "" if terms else "missing"
        if any(_is_limited_twice(each, action) for each in terms):
            kind = "twice"
        if kind:
            yield Fault.DENSITY_BEFORE_LIMIT, {}, {"kind": kind}
            return


def _is_limited_twice(term: Any, action: Any) -> bool:
    """Return whether a logarithm is one of a tanh of the action itself."""
    return any(
        name_of(node) == "Tanh" and action in operands_of(node)
        for node in walk(term, _MOST_OF_TERM, _OF_JACOBIAN)
        if node is not action
    )


def _is_of_difference(square: Any, number: Any) -> bool:
    """Return whether a square is that of the number, less its mean."""
    below = operands_of(square)
    if below and name_of(below[0]) == "Div":
        below = operands_of(below[0])
    is_difference = bool(below) and name_of(below[0]) == "Sub"
    return is_difference and number in operands_of(below[0])


def _reads(node: Any, action: Any) -> bool:
    return action in walk(node, 12, SHAPING | {"Addmm", "Mm", "Mul", "Add"})


# ---- actions that were not taken -----------------------------------------------------


class TakenActions(StepCheck):
    """Find chances of other actions than those that the program calls its actions.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_losses = self._n_found = 0

    def loss_begins(self, graph: Graph) -> None:
        """Compare the choices whose chances a loss weighs with the actions."""
        self._n_losses += 1
        has_chances = graph.root is not None and "Gather" in graph.names
        found = self._look(graph.root) if has_chances else None
        if found is not None:
            self._n_found = 0 if not found else self._n_found + 1
            if self._n_found >= _ENOUGH:
                self._note(Fault.OTHER_ACTIONS_WEIGHED, {}, {"name": found})
        is_sound = found == "" and self._n_losses >= _ENOUGH
        if self._n_found >= _ENOUGH or is_sound or self._n_losses >= _MOST_IN_VAIN:
            self.remove()

    def _look(self, root: Any) -> str | None:
        """Return the name of other actions; "": they are these; None: nobody knows."""
        for each in weighed_chances(root):
            below = list(walk(each.node, 30, PASSES | {"Exp", "Clamp"}))
            chosen = [saved_of(e, "index") for e in below if name_of(e) == "Gather"]
            if chosen and chosen[0] is not None and chosen[0].numel() >= _LEAST_SAMPLES:
                flat = chosen[0].detach().flatten().double().cpu().numpy()
                is_ratio = any(name_of(e) == "Exp" for e in below)
                names = numbers_in(sys._getframe(2))
                return _other_actions(flat, names, is_ratio=is_ratio)
        return None


def _other_actions(flat: Any, names: Any, *, is_ratio: bool) -> str | None:
    """Return the name of actions that are not these; "": there are none.

    Without a ratio, actions of another name may have been drawn to ask for their value.
    """
    every = [
        (name, numbers.reshape(-1))
        for name, numbers in names.every
        if numbers.size == flat.size and not (numbers % 1).any()
    ]
    known = [(name, its) for name, its in every if is_taken(name)]
    if not known or not names.rewards:
        return None
    order = sorted(flat)
    for _, its in known if is_ratio else every:
        if (its == flat).all() or sorted(its) == order:
            return ""
    return str(max((name for name, _ in known), key=len))


# ---- generators and discriminators ---------------------------------------------------


class _Judged(NamedTuple):
    """Scores of one call of a discriminator in a loss.

    Attributes:
        layer: The id of its last weight.
        inputs: What layers below got, the nearest first, by the ids of their weights.
        gradients: Arrive in the backward pass.
    """

    layer: int
    inputs: list[tuple[int, torch.Tensor]]
    gradients: list[torch.Tensor]

    def samples(self, held: set[int], *, of_held: bool) -> torch.Tensor | None:
        """Return what the first layer got that is, or is not, in an optimizer."""
        found = [its for key, its in self.inputs if (key in held) is of_held]
        return found[-1] if found else None


class Adversaries(StepCheck):
    """Find a generator that learns the same as its discriminator.

    The discriminator's optimizer steps by a loss that moves the scores of two batches
    in opposite directions.  The generator's moves those of its own samples, and it must
    move them as the discriminator moves those of real ones.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._handles: list[Any] = []
        self._judged: list[_Judged] = []
        self._n_losses = 0
        # The latest two batches of a discriminator: which way it moves their scores.
        self._sides: dict[int, list[tuple[torch.Tensor, float]]] = {}
        self._votes: Counter[bool] = Counter()

    def loss_begins(self, graph: Graph) -> None:
        """Wait for the gradients of scores."""
        self._n_losses += 1
        if graph.root is not None:
            for node in _scores_near(graph.root):
                found = _Judged(_weight_of(node), _inputs_below(node), [])
                self._judged.append(found)
                self._handles.append(node.register_prehook(_keeper(found.gradients)))
        is_vain = self._n_losses >= _MOST_IN_VAIN and not self._sides
        if is_vain or self._n_losses >= _MOST_LOSSES:
            self.remove()

    def step_begins(self, optimizer: Optimizer) -> None:
        """Look at the gradients that have arrived."""
        if not self._judged:
            return
        while self._handles:
            self._handles.pop().remove()
        judged, self._judged = self._judged, []
        held = held_ids(optimizer)
        ways = [(each, way) for each in judged if (way := _way(each.gradients))]
        own = [(each, way) for each, way in ways if each.layer in held]
        sides = [
            (samples, way)
            for each, way in own
            if (samples := each.samples(held, of_held=True)) is not None
        ]
        if len(sides) > 1:
            self._sides[own[0][0].layer] = sides
            return
        for each, way in ways:
            is_judge = each.layer not in held
            samples = each.samples(held, of_held=False) if is_judge else None
            has_made = any(key in held for key, _ in each.inputs)
            if samples is not None and has_made:
                self._compare(samples, way, self._sides.get(each.layer, []))

    def _compare(
        self,
        samples: torch.Tensor,
        way: float,
        sides: list[tuple[torch.Tensor, float]],
    ) -> None:
        """See whether generated samples are moved as the discriminator moves them."""
        if {each for _, each in sides} != {1.0, -1.0}:
            return
        apart = {
            each: min(_apart(samples, other) for other, its in sides if its == each)
            for each in (1.0, -1.0)
        }
        (near, nearest), (_, next_one) = sorted(apart.items(), key=lambda pair: pair[1])
        if nearest > _NEARER * next_one:
            return
        self._votes[near == way] += 1
        if self._votes.total() >= _ENOUGH:
            self.remove()
            if self._votes[True] >= _ENOUGH:
                self._note(Fault.GENERATOR_HELPS, {}, {})

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        while self._handles:
            self._handles.pop().remove()
        self._judged.clear()
        self._sides.clear()


def _keeper(gradients: list[torch.Tensor]) -> Any:
    def arrives(given: Any) -> None:
        with contextlib.suppress(Exception):
            if not gradients and isinstance(given[0], torch.Tensor):
                gradients.append(given[0].detach().clone())

    return arrives


def _scores_near(root: Any) -> Iterator[Any]:
    """Yield the last layers below a loss that give one number for each sample."""
    seen, waiting = {root}, [root]
    for node in waiting:
        if name_of(node) in _LAYERS:
            shape = shape_of(node)
            is_one = len(shape) > 1 and shape[1] == 1 and shape[0] >= _LEAST_SAMPLES
            if is_one and _weight_of(node):
                yield node
            continue
        for each in operands_of(node):
            if each not in seen and len(seen) < _MOST_NEAR:
                seen.add(each)
                waiting.append(each)


def _weight_of(node: Any) -> int:
    """Return the id of the weight of a layer; 0: it has none that learns."""
    for each in operands_of(node):
        leaf = getattr(past_shapes(each), "variable", None)
        if leaf is not None and leaf.ndim > 1:
            return id(leaf)
    return 0


def _inputs_below(node: Any) -> list[tuple[int, torch.Tensor]]:
    """Return what the layers got that made scores, the nearest first."""
    n, found = shape_of(node)[0], list[tuple[int, torch.Tensor]]()
    for each in walk(node, _MOST_BELOW):
        if name_of(each) in _LAYERS:
            name = {"Addmm": "mat1", "Convolution": "input"}.get(name_of(each), "self")
            kept, weight = saved_of(each, name), _weight_of(each)
            if weight and isinstance(kept, torch.Tensor) and len(kept) == n:
                found.append((weight, kept.detach()))
    return found


def _way(gradients: list[torch.Tensor]) -> float:
    """Return the sign of the gradients of scores; 0: they have several."""
    if not gradients or not gradients[0].numel():
        return 0.0
    up = float((gradients[0] > 0).float().mean())
    down = float((gradients[0] < 0).float().mean())
    return 1.0 if up >= _ONE_WAY else -1.0 if down >= _ONE_WAY else 0.0


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far the means and deviations of two batches are apart."""
    if one.shape[1:] != other.shape[1:]:
        return math.inf
    rows = [each.flatten(1).float() for each in (one, other)]
    means, spreads = ([f(each, 0) for each in rows] for f in (torch.mean, torch.std))
    return float((means[0] - means[1]).norm() + (spreads[0] - spreads[1]).norm())
