"""What the healthy trainings share: epochs, one step down, and how good a model is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.data import Split
from benchmarks.detection.corpus.training import Training

__all__ = ["accuracy", "descend", "epochs", "fell", "mean_of_last", "r_squared"]


def epochs(
    t: Training, n_rows: int, size: int, *, drop_last: bool = False
) -> Iterator[Tensor]:
    """Indices of batches, epoch after epoch without end, shuffled like a DataLoader."""
    while True:
        order = torch.randperm(n_rows, generator=t.order)
        for begin in range(0, n_rows, size):
            batch = order[begin : begin + size]
            if not drop_last or len(batch) == size:
                yield batch


def descend(
    optimizer: torch.optim.Optimizer,
    loss: Tensor,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> float:
    """The usual end of a step; the loss as a number."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if schedule is not None:
        schedule.step()
    return float(loss.detach())


def mean_of_last(losses: Sequence[float], n: int = 20) -> float:
    """Mean of the last *n* losses."""
    last = losses[-n:]
    return sum(last) / len(last)


def fell(t: Training, losses: Sequence[float], to: float, over: int = 10) -> bool:
    """Whether the loss has come to a share *to* of what it was in the beginning."""
    begin, end = sum(losses[:over]) / over, mean_of_last(losses, over)
    t.note(begin=begin, end=end)
    return end <= to * begin


def accuracy(model: nn.Module, split: Split) -> float:
    """On the validation data, in evaluation mode and back, as people do it."""
    model.eval()
    with torch.no_grad():
        right = (model(split.x_val).argmax(1) == split.y_val).float().mean()
    model.train()
    return float(right)


def r_squared(outputs: Tensor, targets: Tensor) -> float:
    """Share of the variance of the targets that is explained."""
    rest = (outputs - targets).double().pow(2).mean()
    return float(1 - rest / targets.double().var(unbiased=False))
