"""Predicates: what can be seen of a fault, measured on the model's own tensors.

Each function returns a new predicate for one run; what it remembers is its own.  They
say what a person would see who looks at the right thing; none repeats a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.detection.kit.data import Split
from benchmarks.detection.kit.loops import Predicate, Probe, accuracy, mean
from benchmarks.detection.kit.training import Training


def lasting(predicate: Predicate, n: int) -> Predicate:
    """It has held *n* times in a row."""
    times = 0

    def holds(p: Probe) -> bool:
        nonlocal times
        times = times + 1 if predicate(p) else 0
        return times >= n

    return holds


def every(n: int, predicate: Predicate, since: int = 0) -> Predicate:
    """Look only at each n-th step, from *since* on."""

    def holds(p: Probe) -> bool:
        return p.step >= since and (p.step + 1) % n == 0 and predicate(p)

    return holds


def both(*predicates: Predicate) -> Predicate:
    """All of them hold; each is asked."""

    def holds(p: Probe) -> bool:
        verdicts = [predicate(p) for predicate in predicates]
        return all(verdicts)

    return holds


def below_accuracy(limit: float, since: int) -> Predicate:
    """From step *since* on: accuracy on all training data is below the limit."""
    return every(10, lambda p: p.accuracy() < limit, since)


def loss_above(limit: float, since: int, over: int = 20) -> Predicate:
    """From *since* on: the mean loss of the last batches is above it, or not finite."""

    def holds(p: Probe) -> bool:
        last = p.losses[-over:]
        return p.step >= since and not sum(last) / len(last) <= limit

    return holds


def non_finite(p: Probe) -> bool:
    """The loss, a weight or a gradient is NaN or infinite."""
    if not math.isfinite(p.losses[-1]):
        return True
    return any(
        not bool(torch.isfinite(tensor).all())
        for parameter in p.model.parameters()
        for tensor in (parameter.detach(), parameter.grad)
        if tensor is not None
    )


def modules(
    kind: type[nn.Module] | tuple[type[nn.Module], ...],
    judge: Callable[[list[Tensor]], bool],
) -> Predicate:
    """A judgement of what modules of a kind put out for all training data."""

    def holds(p: Probe) -> bool:
        outputs: list[Tensor] = []
        shadow = p.shadow()
        handles = [
            module.register_forward_hook(lambda _m, _i, out: outputs.append(out))
            for module in shadow.modules()
            if isinstance(module, kind)
        ]
        with torch.no_grad():
            shadow(p.split.x)
        for handle in handles:
            handle.remove()
        return judge(outputs)

    return holds


def flat_slope(kind: type[nn.Tanh | nn.Sigmoid], slope: float) -> Predicate:
    """The slope of a layer of tanh or sigmoid is nearly zero for most examples.

    The median slope, of all units and all training data, is below *slope*; it is
    at most 1 for tanh and 1/4 for a sigmoid.
    """

    def judge(outputs: list[Tensor]) -> bool:
        slopes = [1 - y**2 if kind is nn.Tanh else y * (1 - y) for y in outputs]
        return any(bool(slope_of.median() < slope) for slope_of in slopes)

    return modules(kind, judge)


class Noted:
    """Shuffled batches of a split, and what they held."""

    def __init__(self, t: Training, split: Split, size: int) -> None:
        self._split, self._order = split, t.epochs(len(split.x), size)
        self.inputs: list[Tensor] = []
        self.labels: list[Tensor] = []

    def __call__(self, _: int) -> tuple[Tensor, Tensor]:
        chosen = next(self._order)
        self.inputs.append(self._split.x[chosen])
        self.labels.append(self._split.y[chosen])
        return self.inputs[-1], self.labels[-1]

    def after(
        self, n: int, look: Callable[[Tensor, Tensor], object]
    ) -> Callable[[Probe], bool]:
        """Look at the inputs and labels of the first batches, once there are n."""
        return lambda p: (
            p.step + 1 >= n
            and bool(look(torch.cat(self.inputs[:n]), torch.cat(self.labels[:n])))
        )


def explains(share: float) -> Callable[[Probe], bool]:
    """That share of the variance of the targets is explained."""

    def holds(p: Probe) -> bool:
        left = (p.outputs() - p.split.y).pow(2).mean()
        return bool(left < (1 - share) * p.split.y.var())

    return holds


def plateau(
    above: float, since: int, over: int = 50, better: float = 0.03
) -> Predicate:
    """The loss is high and has not become better between two stretches of batches."""

    def holds(p: Probe) -> bool:
        if p.step + 1 < max(since, 2 * over):
            return False
        before, last = mean(p.losses[-2 * over : -over]), mean(p.losses[-over:])
        return last > above and last > (1 - better) * before

    return holds


def stands(names: list[str], patience: int, wrong: float = 1.0) -> Predicate:
    """These weights, or all, have stood still so long, though not all is learned.

    *wrong* is the accuracy below which that is so; 1.0 if it is not asked.
    """
    before: dict[str, Tensor] = {}

    def same(p: Probe) -> bool:
        now = {n: w.detach().clone() for n, w in p.model.named_parameters()}
        still = bool(before) and all(
            torch.equal(now[n], before[n]) for n in names or now
        )
        before.update(now)
        return still

    still_long = lasting(same, patience)
    return lambda p: still_long(p) and (wrong >= 1.0 or p.accuracy() < wrong)


def since(n: int, predicate: Predicate) -> Predicate:
    """From the n-th step on, counted from 0."""
    return lambda p: p.step >= n and predicate(p)


def alike_for_all(limit: float) -> Predicate:
    """The outputs for all training data deviate by less than that from one another."""
    return lambda p: bool(p.outputs().std(0).max() < limit)


def stand(patience: int) -> Callable[[list[Tensor]], bool]:
    """Asked at each step: have these tensors been the same for so many steps?"""
    before: list[Tensor] = []
    times = 0

    def holds(now: list[Tensor]) -> bool:
        nonlocal before, times
        same = bool(before) and all(map(torch.equal, now, before))
        times = times + 1 if same else 0
        before = [tensor.detach().clone() for tensor in now]
        return times >= patience

    return holds


def knows(share: float) -> Predicate:
    """In the end more than this share of the validation data is recognized."""
    return lambda p: accuracy(p.model, p.split) > share


def validates(limit: float) -> Predicate:
    """The last loss of validation is below the limit."""
    return lambda p: p.validation[-1][1] < limit


def loss_below(limit: float, over: int = 20) -> Predicate:
    """The mean loss of the last batches is below the limit."""
    return lambda p: mean(p.losses[-over:]) < limit
