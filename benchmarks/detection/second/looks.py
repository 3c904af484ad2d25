"""Predicates: where somebody who may look at everything would point to."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.detection.corpus.loops import Predicate, Probe
from benchmarks.detection.corpus.probes import lasting

__all__ = [
    "after",
    "by_heart",
    "jumped",
    "past_best",
    "plateau",
    "rare_class",
    "spread_of_layers",
    "stands",
    "unmoved",
]


def after(n_batches: int, holds: Predicate) -> Predicate:
    """From the n-th batch on."""
    return lambda p: p.step + 1 >= n_batches and holds(p)


def rare_class(share: float, n_batches: int) -> Predicate:
    """After an epoch: a class has less than this share of an even one."""

    def holds(p: Probe) -> bool:
        counts = torch.bincount(p.split.y).double()
        return bool(counts.min() / counts.sum() < share / len(counts))

    return after(n_batches, holds)


def mean(values: list[float]) -> float:
    """Of a list that is not empty."""
    return sum(values) / len(values)


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


def by_heart(gap: float = 3.0, worse: float = 1.2, patience: int = 3) -> Predicate:
    """Training loss far below validation loss, and that above its best, for long."""

    def holds(p: Probe) -> bool:
        losses = [loss for _, loss, _ in p.validation]
        if len(losses) < patience + 1 or p.validation[-1][0] != p.step:
            return False
        last = losses[-patience:]
        return min(last) > worse * min(losses) and min(last) > gap * mean(
            p.losses[-20:]
        )

    return holds


def past_best(patience: int, worse: float = 1.05) -> Predicate:
    """For so many evaluations the validation loss has been above its best."""

    def holds(p: Probe) -> bool:
        losses = [loss for _, loss, _ in p.validation]
        if len(losses) <= patience or p.validation[-1][0] != p.step:
            return False
        return min(losses[-patience:]) > worse * min(losses)

    return holds


def jumped(times: float, window: int = 20) -> Predicate:
    """The loss is that many times the largest of the batches just before."""

    def holds(p: Probe) -> bool:
        if p.step < 2 * window:
            return False
        before = p.losses[-window - 1 : -1]
        return p.losses[-1] > times * max(before)

    return holds


def stands(names: list[str], patience: int, wrong: float = 1.0) -> Predicate:
    """These weights have stood still so long, though not all is learned.

    *wrong* is the accuracy below which that is so; 1.0 if it is not asked.
    """
    before: dict[str, Tensor] = {}

    def same(p: Probe) -> bool:
        now = {n: w.detach().clone() for n, w in p.model.named_parameters()}
        still = bool(before) and all(torch.equal(now[n], before[n]) for n in names)
        before.update(now)
        return still

    still_long = lasting(same, patience)

    def holds(p: Probe) -> bool:
        return still_long(p) and (wrong >= 1.0 or p.accuracy() < wrong)

    return holds


def unmoved(ratio: float, patience: int) -> Predicate:
    """No weight matrix has moved by that share of itself in so many steps."""
    history: list[list[Tensor]] = []

    def holds(p: Probe) -> bool:
        now = [w.detach().clone() for w in p.model.parameters() if w.dim() > 1]
        history.append(now)
        if len(history) <= patience:
            return False
        then = history.pop(0)
        return all(
            bool((a - b).norm() < ratio * a.norm())
            for a, b in zip(now, then, strict=True)
        )

    return holds


def spread_of_layers(
    low: float, high: float, kind: type[torch.nn.Module] = torch.nn.Linear
) -> Predicate:
    """Deviation of what some layer puts out is below or above these, at the start."""

    def holds(p: Probe) -> bool:
        if p.step > 0:
            return False
        found: list[float] = []
        shadow = p.shadow()
        handles = [
            module.register_forward_hook(
                lambda _m, _i, out: found.append(float(out.std()))
            )
            for module in shadow.modules()
            if isinstance(module, kind)
        ]
        with torch.no_grad():
            shadow(p.split.x[:64])
        for handle in handles:
            handle.remove()
        return min(found) < low or max(found) > high

    return holds
