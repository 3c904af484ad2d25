"""Find losses of policies that miss what policies are to learn from.

Some make good choices unlikely, some are clipped for nothing, and some compare the
policy with itself instead of the older one that has chosen the actions.

A policy gradient weighs the logarithms of the chances of choices, or ratios of chances,
by how good the choices were.  The graph of the loss has the weights and their sign.
What was good follows from the values in the same loss, or from the variables of the
program.

Thread safety: the training's thread.  Reads only.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    SHAPING,
    Graph,
    leaf_of,
    leaves_below,
    name_of,
    operands_of,
    saved_of,
    source_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.checks.graphs.weighed_chances import (
    PAIRS,
    PASSES,
    WeighedChances,
    signed_parts,
    weighed_chances,
)
from tdbg.hooks.pytorch.device.tensors import sample_of
from tdbg.hooks.pytorch.model.numbers import as_numbers, named, numbers_in
from tdbg.hooks.pytorch.model.process_objects import held_ids, living
from tdbg.run.observations import Fault

__all__ = ["ActorLosses", "PolicyLosses", "PolicyRatio"]

# Losses that are read, those of them that are no policy's, and operations of a ratio.
_MOST_LOSSES, _MOST_IN_VAIN, _MOST_OF_RATIO = 60, 8, 30
_LEAST_SAMPLES = 8
# Losses that must have a fault, and losses without any after which nothing is sought.
_ENOUGH, _ENOUGH_SOUND = 2, 3
# How closely weights follow the values of the same loss, or numbers with a name.
_FOLLOWS, _EQUALS = 0.9, 0.9999
# A ratio that is one, and an error that is none.
_ONE, _NONE = 1e-4, 1e-6
# What programs call how good a choice was, and what is meant to be small.
_GOOD = re.compile(
    r"(^|_)(adv|advs|advantages?|gaes?|returns?|rtgs?)(_|$)", re.IGNORECASE
)
_REWARD = re.compile(r"adv|return|reward|(^|_)(rew|rews|rtgs?)(_|$)", re.IGNORECASE)
_BAD = re.compile(
    r"cost|neg|penalt|constraint|minus|regret|length|(^|_)(len|c)(_|$)|distance"
    r"|makespan|energy",
    re.IGNORECASE,
)

_DISTANCES = frozenset({"HuberLoss", "MseLoss", "Pow", "SmoothL1Loss"})

# Losses that show who is a critic, and those that are read for it, at most.
_ENOUGH_CRITICS, _MOST_CRITICS = 3, 8
# Who may want values to be small, and what programs call what values learn.
_AGAINST = re.compile(r"advers|attack|cost|regret|penalt|worst", re.IGNORECASE)
_LEARNT = re.compile(
    r"target|expected|backup|(^|_)(y|tds?|q_?next|returns?)(_|$)", re.IGNORECASE
)

# Losses with a ratio, operations of one, and of its end, at most.
_MOST_RATIOS, _MOST_BELOW, _MOST_NEAR = 200, 2000, 60
# Bounds of a ratio of chances are between these.
_HALF, _DOUBLE = 0.4, 2.5
# Rows of a batch that are compared, at most.
_MOST_SAMPLES = 256
# Batches of few different samples are compared as a whole, if no sample is most of it.
_VARIED, _LARGEST_SHARE = 0.5, 0.75
# First layers, and where their operations keep the inputs.
_INPUTS = {
    "Addmm": "mat1",
    "Mm": "self",
    "Convolution": "input",
    "Embedding": "indices",
}
_BETWEEN = SHAPING | {"Clamp", "Sum", "Mul"}

_Numbers = NDArray[np.float64]


class PolicyLosses(StepCheck):
    """Read the first losses of a policy.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_losses = self._n_in_vain = self._n_steps = 0
        self._n_seen: dict[Fault, int] = {}
        self._n_sound = 0
        # Whether the values of new samples have no error.
        self._is_equal = True
        self._told: set[Fault] = set()

    def loss_begins(self, graph: Graph) -> None:
        """Read the loss at which a backward pass begins."""
        self._n_losses += 1
        weighed = [] if graph.root is None else list(weighed_chances(graph.root))
        if not weighed or any(_is_maximized(each) for each in living(Optimizer)):
            self._n_in_vain += 1
        else:
            self._n_in_vain = 0
            self._look_at_sign(graph, weighed)
            self._look_at_clipping(graph)
            self._look_at_values(graph, weighed)
        if self._n_in_vain >= _MOST_IN_VAIN or self._n_losses >= _MOST_LOSSES:
            self.remove()

    def step_ends(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Note that the policy has changed."""
        self._n_steps += 1

    def _look_at_clipping(self, graph: Graph) -> None:
        # With the wrong sign, the other part is the right one.
        is_reversed = Fault.POLICY_REVERSED in self._n_seen
        if self._n_losses > _ENOUGH:
            return
        if not is_reversed and _is_optimistic(graph.root):
            self._see(Fault.CLIPPED_FOR_NOTHING)
        for fault, bounds in _strange_bounds(graph.root):
            self._see(fault, numbers=dict(zip(("least", "most"), bounds, strict=True)))
            break

    def _look_at_sign(self, graph: Graph, weighed: list[WeighedChances]) -> None:
        """Compare what the loss makes likely with what was good."""
        if self._n_sound >= _ENOUGH_SOUND or Fault.POLICY_REVERSED in self._told:
            return
        several, errors = _of_samples(weighed), list(_errors(graph.root))
        names = _Names(max((each.size for each in several), default=0))
        if names.are_bad:
            return
        told, by = _similar_to_errors(several, errors), "values"
        if not (told and names.are_of_rewards):
            told, by = names.similar_to(several)
        if told and min(told) > 0:
            self._see(Fault.POLICY_REVERSED, {"by": by})
        elif told:
            self._n_sound += 1

    def _look_at_values(self, graph: Graph, weighed: list[WeighedChances]) -> None:
        """Note that values learn what they say themselves.

        New samples have a ratio of one, and values that nobody has changed.
        """
        ratio, errors = _ratio(weighed), list(_errors(graph.root))
        if ratio is None or not errors or not self._is_equal:
            return
        is_new = float(np.abs(ratio - 1.0).max()) < _ONE
        if is_new and self._n_steps and _is_varied(weighed[0].weights):
            largest = max(float(np.abs(each).max()) for each in errors)
            self._is_equal = largest < _NONE
            if self._is_equal:
                self._see(Fault.VALUES_LEARN_THEMSELVES)

    def _see(
        self,
        fault: Fault,
        words: dict[str, str] | None = None,
        numbers: dict[str, float] | None = None,
    ) -> None:
        self._n_seen[fault] = self._n_seen.get(fault, 0) + 1
        if self._n_seen[fault] >= _ENOUGH and fault not in self._told:
            self._told.add(fault)
            self._note(fault, numbers or {}, words or {})


def _is_maximized(optimizer: Optimizer) -> bool:
    return any(group.get("maximize") for group in optimizer.param_groups)


# ---- the graph -----------------------------------------------------------------------


def _is_optimistic(root: Any) -> bool:
    """Return whether a loss takes the better of a ratio and of the clipped ratio.

    A loss has the larger of both, and its negative the smaller one: clipping only takes
    away what a larger ratio would gain.
    """
    for node, sign in signed_parts(root):
        name = name_of(node)
        is_pair = name in PAIRS and len(operands_of(node)) == 2
        is_larger = name == "Maximum"
        if is_pair and sign and (sign > 0) != is_larger and _clips(node):
            return True
    return False


def _clips(node: Any) -> bool:
    """Return whether two parts are a ratio and the same one, clipped, times numbers."""
    one, other = map(_ratio_below, operands_of(node))
    if one is None or other is None or one[0] is not other[0]:
        return False
    return one[1] != other[1]


def _ratio_below(node: Any) -> tuple[Any, bool] | None:
    """Return the exponential in a product, and whether it is clipped."""
    is_clipped = False
    for _ in range(_MOST_OF_RATIO):
        name, below = name_of(node), operands_of(node)
        if name == "Exp":
            return node, is_clipped
        if len(below) != 1 or name not in SHAPING | {"Clamp", "Mul", "Neg"}:
            return None
        is_clipped |= name == "Clamp"
        node = below[0]
    return None


def _strange_bounds(root: Any) -> Iterator[tuple[Fault, tuple[float, float]]]:
    """Yield what is clipped and is no ratio of chances, or one that is never near 1."""
    for node in walk(root, _MOST_NEAR, PASSES):
        if name_of(node) != "Clamp":
            continue
        least, most = (saved_of(node, each) for each in ("min", "max"))
        if not (isinstance(least, float | int) and isinstance(most, float | int)):
            continue
        bounds = float(least), float(most)
        found = _ratio_below(node)
        is_around = _HALF <= least < 1.0 < most <= _DOUBLE
        if found is None and is_around and _is_of_logarithms(operands_of(node)[0]):
            yield Fault.RATIO_OF_LOGARITHMS, bounds
        is_aside = found is not None and not least <= 1.0 <= most
        if found is not None and is_aside and name_of(source_of(found[0])) == "Sub":
            yield Fault.RATIO_CLIPPED_ASIDE, bounds


def _is_of_logarithms(node: Any) -> bool:
    """Return whether a number is a logarithm of a chance, divided or less another.

    A chance itself, which a softmax makes, may be divided.
    """
    is_compared = False
    for _ in range(_MOST_OF_RATIO):
        name, below = name_of(node), operands_of(node)
        if name in {"Gather", "NllLoss"}:
            above = source_of(node)
            is_normalized = name_of(above) in {"Log", "LogSoftmax"} or any(
                name_of(each) == "Logsumexp" for each in operands_of(above)
            )
            return is_compared and (name == "NllLoss" or is_normalized)
        if len(below) != 1 or name not in SHAPING | {"Div", "Neg", "Sub", "Sum"}:
            return False
        is_compared |= name in {"Div", "Sub"}
        node = below[0]
    return False


def _ratio(weighed: Iterable[WeighedChances]) -> _Numbers | None:
    """Return the ratio of chances that a loss weighs."""
    for each in weighed:
        found = _ratio_below(operands_of(each.node)[0])
        result = None if found is None else saved_of(found[0], "result")
        if isinstance(result, torch.Tensor) and result.numel() >= _LEAST_SAMPLES:
            numbers: _Numbers = result.detach().double().cpu().numpy().reshape(-1)
            return numbers
    return None


def _errors(root: Any) -> Iterator[_Numbers]:
    """Yield what values in a loss say too much: they, less their targets."""
    for node, sign in signed_parts(root):
        name = name_of(node)
        if name not in _DISTANCES or not sign:
            continue
        if name == "Pow":
            pair = next(iter(operands_of(node)), node)
            if name_of(pair) != "Sub" or len(operands_of(pair)) != 1:
                continue
            apart = saved_of(node, "self")
            sense = 1.0 if pair.next_functions[0][0] is not None else -1.0
        else:
            told, target = saved_of(node, "self"), saved_of(node, "target")
            if told is None or target is None or told.shape != target.shape:
                continue
            apart = told.detach() - target.detach()
            sense = 1.0 if node.next_functions[0][0] is not None else -1.0
        if isinstance(apart, torch.Tensor) and apart.numel() >= _LEAST_SAMPLES:
            yield sense * apart.detach().double().cpu().numpy().reshape(-1)


# ---- what was good -------------------------------------------------------------------


def _of_samples(weighed: list[WeighedChances]) -> list[_Numbers]:
    """Return the weights of samples, or those of many products with a sample each."""
    every = [each.weights for each in weighed]
    ones = [each for each in every if each.size == 1]
    if len(ones) >= _LEAST_SAMPLES:
        every.append(np.concatenate(ones))
    return [each for each in every if each.size >= _LEAST_SAMPLES and _is_varied(each)]


def _is_varied(numbers: _Numbers) -> bool:
    return bool(numbers.std() > 1e-3 * np.abs(numbers).mean())


def _similarity(one: _Numbers, other: _Numbers) -> float:
    """Return the correlation of numbers of the same samples; 0 if it is unknown."""
    if one.shape != other.shape or not (_is_varied(one) and _is_varied(other)):
        return 0.0
    found = float(np.corrcoef(one, other)[0, 1])
    return found if np.isfinite(found) else 0.0


def _similar_to_errors(several: list[_Numbers], errors: list[_Numbers]) -> list[float]:
    """Return correlations with how much better it was than the values say."""
    found = [
        _similarity(weights, -error)
        for weights in several
        for error in errors
        if weights.min() < 0.0 < weights.max()
    ]
    return [each for each in found if abs(each) >= _FOLLOWS]


class _Names:
    """The numbers of a batch, by the names that a program gives them.

    Args:
        size: The size of the batch.

    Attributes:
        are_of_rewards: Whether there is a name for rewards or what is made of them.
        are_bad: Whether there is one for what is to be small.
    """

    def __init__(self, size: int) -> None:
        frame = sys._getframe(1)
        self.are_of_rewards = self.are_bad = False
        self._good: list[tuple[str, _Numbers]] = []
        for name, value in named(frame):
            is_good, is_bad = _REWARD.search(name), _BAD.search(name)
            numbers = as_numbers(value) if is_good or is_bad else None
            if numbers is None:
                continue
            self.are_bad |= bool(is_bad) and numbers.size == size > 1
            self.are_of_rewards |= bool(is_good)
            if _GOOD.search(name) and not (is_bad or "loss" in name.lower()):
                self._good.append((name, numbers.reshape(-1)))

    def similar_to(self, several: list[_Numbers]) -> tuple[list[float], str]:
        """Return correlations with what is called an advantage, and that name.

        Numbers are the same, or standardized, perhaps in another order.
        """
        for weights in several:
            for name, numbers in self._good:
                found = _similarity(weights, numbers)
                if abs(found) >= _EQUALS:
                    return [found], name
                rising = _similarity(np.sort(weights), np.sort(numbers))
                falling = _similarity(np.sort(weights), np.sort(-numbers))
                if max(rising, falling) >= _EQUALS > min(rising, falling):
                    return [rising if rising > falling else -falling], name
        return [], ""


# ---- actors that follow the gradient of a value --------------------------------------


class ActorLosses(StepCheck):
    """Find actors that make values small, or whose entropy is penalized.

    A critic learns values that rise with rewards.  The loss of an actor is the negative
    of such a value of its own action, and its optimizer has none of the critic.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_losses, self._n_read, self._has_rewards = 0, 0, False
        # Losses of critics, by the parameters that they reach.
        self._critics: Counter[frozenset[int]] = Counter()
        # What the loss of an actor shows, until its optimizer steps.
        self._seen: tuple[Fault | None, set[int], frozenset[int]] | None = None
        self._n_found: Counter[Fault | None] = Counter()

    def loss_begins(self, graph: Graph) -> None:
        """Read the loss at which a backward pass begins."""
        self._n_losses += 1
        self._seen = None
        if graph.root is None or self._n_losses >= _MOST_LOSSES:
            self.remove()
            return
        known = [each for each, n in self._critics.items() if n >= _ENOUGH_CRITICS]
        if known:
            self._read_actor(graph.root, known)
        elif self._n_read < _MOST_CRITICS:
            self._read_critic(graph.root)
        is_late = self._n_losses >= _MOST_IN_VAIN and not self._has_rewards
        if is_late or (not self._n_read and self._n_losses >= _ENOUGH_CRITICS):
            self.remove()

    def step_begins(self, optimizer: Optimizer) -> None:
        """See whether the optimizer that steps is that of the actor."""
        if self._seen is None:
            return
        (fault, actor, critic), self._seen = self._seen, None
        held = held_ids(optimizer)
        if actor <= held and critic.isdisjoint(held) and not _is_maximized(optimizer):
            self._n_found[fault] += 1
            if self._n_found[fault] >= _ENOUGH_SOUND:
                self.remove()
                if fault is not None:
                    self._note(fault, {}, {"kind": "actor"})

    def _read_critic(self, root: Any) -> None:
        """Note the parameters of values that learn what rises with rewards."""
        errors = [
            node
            for node in walk(root, _MOST_NEAR, PASSES | _DISTANCES)
            if name_of(node) in _DISTANCES
        ]
        if not errors:
            return
        self._n_read += 1
        names = numbers_in(sys._getframe(1))
        if any(_AGAINST.search(name) for name, _ in names.every):
            self._n_read = _MOST_CRITICS
            return
        targets = [as_numbers(saved_of(node, "target")) for node in errors]
        targets += [each for name, each in names.every if _LEARNT.search(name)]
        rewards = [each.reshape(-1) for _, each in names.rewards]
        self._has_rewards |= bool(rewards)
        if any(
            target is not None and _rises_with(target.reshape(-1), reward)
            for target in targets
            for reward in rewards
        ):
            self._critics[frozenset(leaves_below(root))] += 1

    def _read_actor(self, root: Any, critics: list[frozenset[int]]) -> None:
        signs, logarithms, critic = set[float](), set[float](), frozenset[int]()
        for node, sign in signed_parts(root):
            name = name_of(node)
            if name in {"Addmm", "Mm"}:
                own = {leaf_of(each) for each in operands_of(node)} - {0}
                found = next((each for each in critics if own & each), None)
                if found is None or not sign:
                    return
                critic = found
                signs.add(sign)
            elif name == "Log" and sign:
                logarithms.add(sign)
        actor = leaves_below(root) - critic
        if len(signs) != 1 or not actor:
            return
        fault = Fault.ACTOR_REVERSED if signs == {1.0} else None
        if fault is None and logarithms == {1.0}:
            fault = Fault.ENTROPY_PENALIZED
        self._seen = fault, actor, critic


def _rises_with(target: _Numbers, reward: _Numbers) -> bool:
    """Return whether targets have rewards in them, and not their negatives."""
    if target.shape != reward.shape or target.size < _LEAST_SAMPLES:
        return False
    return _is_varied(reward) and (target - reward).std() < (target + reward).std()


# ---- the older policy ----------------------------------------------------------------


class PolicyRatio(StepCheck):
    """Find ratios of probabilities that are one although the policy has changed.

    Proximal policy optimization (PPO) divides a probability by the one that the action
    had when it was chosen.  The first update of new samples finds a ratio of exactly
    one.  If the same samples come again after an update, the ratio must differ from
    one, or the program computes the old probabilities anew.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_losses = self._n_in_vain = self._n_steps = self._n_repeated = 0
        # The step at which a sample, or a batch, was met first.
        self._met: dict[int, int] = {}
        # Some weights at the latest loss.
        self._weights: torch.Tensor | None = None

    def loss_begins(self, graph: Graph) -> None:
        """Look at the ratio in the loss at which a backward pass begins."""
        ratio = _exponential(graph.root) if graph.named(["Exp"]) else None
        if ratio is None:
            self._n_in_vain += 1
            if self._n_in_vain >= _MOST_IN_VAIN:
                self.remove()
            return
        self._n_losses += 1
        if self._n_losses > _MOST_RATIOS or not bool((ratio == 1.0).all()):
            self.remove()  # Some samples were chosen by an older policy.
            return
        self._look_at_samples(graph.root)

    def step_ends(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Note that the policy has changed."""
        self._n_steps += 1

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        self._met.clear()
        self._weights = None

    def _look_at_samples(self, root: Any) -> None:
        """Note a ratio of one of samples that an earlier step has used."""
        parts, weights = _samples_of(root)
        keys = _keys(parts)
        has_changed = self._weights is not None and not (
            weights is not None and torch.equal(weights, self._weights)
        )
        self._weights = weights
        steps = [self._met.setdefault(key, self._n_steps) for key in keys]
        if keys and has_changed and max(steps) < self._n_steps:
            self._n_repeated += 1
        if self._n_repeated >= _ENOUGH:
            self.remove()
            self._note(Fault.RATIO_ALWAYS_ONE, {}, {})


def _exponential(root: Any) -> torch.Tensor | None:
    """Return the exponential of a difference near the end of a loss; None: no such."""
    for node in walk(root, _MOST_NEAR):
        result = saved_of(node, "result") if name_of(node) == "Exp" else None
        if result is None or result.numel() < _LEAST_SAMPLES:
            continue
        below = operands_of(node)
        while len(below) == 1 and name_of(below[0]) in _BETWEEN:
            below = operands_of(below[0])
        if len(below) == 1 and name_of(below[0]) == "Sub":
            return result.detach()  # type: ignore[no-any-return]
    return None


def _samples_of(root: Any) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Return the inputs of the first layer, the chosen actions, and some weights."""
    parts: dict[str, torch.Tensor] = {}
    weights = None
    for node in walk(root, _MOST_BELOW):
        name = name_of(node)
        leaf = getattr(node, "variable", None)
        if weights is None and leaf is not None:
            weights = sample_of(leaf)
        kept = saved_of(node, _INPUTS.get(name, ""))
        if isinstance(kept, torch.Tensor) and not kept.requires_grad:
            parts.setdefault("input", kept.detach())
        if name == "Gather":
            parts.setdefault("choice", saved_of(node, "index").detach())
    return (list(parts.values()) if "input" in parts else []), weights


def _keys(parts: list[torch.Tensor]) -> list[int]:
    """Return what tells samples apart, or batches; nothing if these are too alike."""
    n = min((len(each) for each in parts if each.ndim), default=0)
    if n < _LEAST_SAMPLES or any(len(each) != n for each in parts):
        return []
    arrays = [
        each[:_MOST_SAMPLES].reshape(min(n, _MOST_SAMPLES), -1).cpu() for each in parts
    ]
    rows = [
        b"".join(each.contiguous().numpy().tobytes() for each in row)
        for row in zip(*arrays, strict=True)
    ]
    counted = Counter(rows)
    if len(counted) >= _VARIED * len(rows):
        return [hash(row) for row in counted]
    if max(counted.values()) <= _LARGEST_SHARE * len(rows):
        return [hash(tuple(rows))]
    return []
