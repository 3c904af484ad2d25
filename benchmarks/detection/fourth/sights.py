"""What people look at in these trainings: batches, validations, explained variance."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.detection.corpus.data import Split
from benchmarks.detection.corpus.loops import Probe
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.third.views import epoch, mean

__all__ = ["Noted", "explains", "far_behind", "past_its_best"]


class Noted:
    """Shuffled batches of a split, and what they held."""

    def __init__(self, t: Training, split: Split, size: int) -> None:
        self._split, self._order = split, epoch(t, len(split.x), size)
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


def far_behind(times: float, above: float, n: int = 3) -> Callable[[Probe], bool]:
    """At so many validations in a row the loss is high, and far above training's."""

    def holds(p: Probe) -> bool:
        if len(p.validation) < n or p.validation[-1][0] != p.step:
            return False
        least = min(loss for _, loss, _ in p.validation[-n:])
        return least > above and least > times * mean(p.losses[-20:])

    return holds


def past_its_best(share: float, n: int) -> Callable[[Probe], bool]:
    """The last n validations are all worse than the best one by that share."""

    def holds(p: Probe) -> bool:
        losses = [loss for _, loss, _ in p.validation]
        if len(losses) <= n or p.validation[-1][0] != p.step:
            return False
        return min(losses[-n:]) > (1 + share) * min(losses[:-n])

    return holds
