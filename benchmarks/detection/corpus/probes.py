"""Predicates: what can be seen of a fault, measured on the model's own tensors.

Each function returns a new predicate for one run; what it remembers is its own.  They
say what a person would see who looks at the right thing; none repeats a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.loops import Predicate, Probe

__all__ = [
    "any_of",
    "below_accuracy",
    "both",
    "churns",
    "every",
    "flat_slope",
    "lasting",
    "loss_above",
    "mistakes_for",
    "non_finite",
    "predictions_stand",
    "recall_below",
    "silent_units",
    "starved",
    "units_alike",
    "without_gradient",
]


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


def any_of(*predicates: Predicate) -> Predicate:
    """One of them holds; each is asked."""

    def holds(p: Probe) -> bool:
        verdicts = [predicate(p) for predicate in predicates]
        return any(verdicts)

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


def recall(outputs: Tensor, targets: Tensor, n_classes: int) -> Tensor:
    """Share of the members of each class that are recognized."""
    right = outputs.argmax(1) == targets
    return torch.stack([right[targets == k].float().mean() for k in range(n_classes)])


def recall_below(classes: list[int], limit: float, others: float) -> Predicate:
    """On validation data: these classes are missed while the others are known.

    Of each of *classes* less than *limit* is recognized, of the others *others* or
    more on average.
    """

    def holds(p: Probe) -> bool:
        n = int(p.split.y_val.max()) + 1
        with torch.no_grad():
            found = recall(p.shadow()(p.split.x_val), p.split.y_val, n)
        rest = [k for k in range(n) if k not in classes]
        return bool((found[classes] < limit).all() and found[rest].mean() >= others)

    return holds


def mistakes_for(
    pair: tuple[int, int], limit: float, others: float, *, both_ways: bool = False
) -> Predicate:
    """On validation data: one class is taken for another, the rest is well known.

    Of the first of the pair more than *limit* is taken for the second (or also the
    other way round, on average), while of the other classes *others* or more is
    recognized.
    """

    def holds(p: Probe) -> bool:
        n = int(p.split.y_val.max()) + 1
        with torch.no_grad():
            said = p.shadow()(p.split.x_val)
        taken = [
            float((said[p.split.y_val == a].argmax(1) == b).float().mean())
            for a, b in (pair, pair[::-1])
        ]
        rest = [k for k in range(n) if k not in pair]
        known = recall(said, p.split.y_val, n)[rest].mean()
        wrong = sum(taken) / 2 if both_ways else taken[0]
        return bool(wrong > limit and known >= others)

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


def starved(first: str, last: str, ratio: float, patience: int = 10) -> Predicate:
    """One layer's gradient is a *ratio* of another's, or less, *patience* times.

    Compared are root mean squares of the gradients of two weights.
    """

    def holds(p: Probe) -> bool:
        named = dict(p.model.named_parameters())
        small, large = (named[name].grad for name in (first, last))
        if small is None or large is None:
            return False
        return bool(small.double().pow(2).mean().sqrt() <= ratio * spread(large))

    return lasting(holds, patience)


def spread(tensor: Tensor) -> Tensor:
    """Root mean square, in double precision."""
    return tensor.double().pow(2).mean().sqrt()


def without_gradient(names: list[str], patience: int = 10) -> Predicate:
    """Trainable parameters have no gradient, or nothing but zeros, that often."""

    def holds(p: Probe) -> bool:
        named = dict(p.model.named_parameters())
        return all(
            named[name].requires_grad and not count(named[name].grad) for name in names
        )

    return lasting(holds, patience)


def count(tensor: Tensor | None) -> int:
    """How many elements are not zero."""
    return 0 if tensor is None else int(torch.count_nonzero(tensor))


def churns(share: float, patience: int) -> Predicate:
    """At each step the predictions for that share of the training data change."""
    before: Tensor | None = None

    def holds(p: Probe) -> bool:
        nonlocal before
        now = p.outputs().argmax(1)
        changed = 0.0 if before is None else float((now != before).float().mean())
        before = now
        return changed > share

    return lasting(holds, patience)


def predictions_stand(n: int, accuracy: float, since: int = 0) -> Predicate:
    """In *n* steps no prediction has changed, though accuracy is below a limit."""
    before: list[Tensor] = []

    def holds(p: Probe) -> bool:
        if p.step % 10:
            return False
        said = p.outputs()
        before.append(said.argmax(1))
        if p.step < since + n or len(before) <= n // 10:
            return False
        same = bool((before[-1] == before[-1 - n // 10]).all())
        return same and p.accuracy() < accuracy

    return holds


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


def units_alike(spread_limit: float) -> Predicate:
    """All units of a hidden layer say the same, for every example.

    The deviation among units is below a share of the largest output of the layer.
    """

    def judge(outputs: list[Tensor]) -> bool:
        return any(
            bool(out.std(1).max() <= spread_limit * out.abs().max()) for out in outputs
        )

    return modules((nn.ReLU, nn.Tanh, nn.Sigmoid), judge)


def silent_units(share: float) -> Predicate:
    """In a layer that share of ReLU units is zero for all training data."""

    def judge(outputs: list[Tensor]) -> bool:
        return any(
            float((out.amax([0, *range(2, out.dim())]) <= 0).float().mean()) > share
            for out in outputs
        )

    return modules(nn.ReLU, judge)


def flat_slope(kind: type[nn.Tanh | nn.Sigmoid], slope: float) -> Predicate:
    """The slope of a layer of tanh or sigmoid is nearly zero for most examples.

    The median slope, of all units and all training data, is below *slope*; it is
    at most 1 for tanh and 1/4 for a sigmoid.
    """

    def judge(outputs: list[Tensor]) -> bool:
        slopes = [1 - y**2 if kind is nn.Tanh else y * (1 - y) for y in outputs]
        return any(bool(slope_of.median() < slope) for slope_of in slopes)

    return modules(kind, judge)
