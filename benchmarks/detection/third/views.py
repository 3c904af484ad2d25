"""What these trainings share: a loop for losses of any form, and predicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.data import Split
from benchmarks.detection.corpus.loops import Predicate, Probe
from benchmarks.detection.corpus.training import Training

__all__ = [
    "alike_for_all",
    "constantly",
    "epoch",
    "far_from_training",
    "in_order",
    "mean",
    "pretrain",
    "quiet",
    "since",
    "stand",
    "train",
]

#: Looks at the losses so far, after a step.
Look = Callable[[list[float]], object]


def mean(values: list[float]) -> float:
    """Of a list that is not empty."""
    return sum(values) / len(values)


def quiet(_: list[float]) -> bool:
    """Nothing is to be seen."""
    return False


def train(
    t: Training,
    loss_of: Callable[[int], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    n_steps: int,
    visible: Look = quiet,
    after_backward: Callable[[], object] | None = None,
    after_step: Callable[[int], object] | None = None,
) -> list[float]:
    """Step down these losses; the model is watched already.

    Returns:
        The losses.
    """
    losses: list[float] = []
    for step in t.steps(n_steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        if after_backward is not None:
            after_backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if after_step is not None:
            after_step(step)
        t.visible(visible(losses))
    t.note(first_loss=losses[0], last_loss=mean(losses[-10:]))
    return losses


def pretrain(model: nn.Module, split: Split, n_steps: int, rate: float = 3e-3) -> None:
    """Train as somebody else has done before; nobody watches."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    luck = torch.Generator().manual_seed(7)
    for _ in range(n_steps):
        chosen = torch.randint(len(split.x), (64,), generator=luck)
        loss = nn.functional.cross_entropy(model(split.x[chosen]), split.y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()


def epoch(t: Training, n_rows: int, size: int) -> Iterator[Tensor]:
    """Indices of shuffled batches without end; the last of an epoch may be short."""
    while True:
        yield from torch.randperm(n_rows, generator=t.order).split(size)


def in_order(n_rows: int, size: int) -> Iterator[Tensor]:
    """Likewise, but as the rows lie."""
    while True:
        yield from torch.arange(n_rows).split(size)


def since(n: int, predicate: Predicate) -> Predicate:
    """From the n-th step on, counted from 0."""
    return lambda p: p.step >= n and predicate(p)


def alike_for_all(limit: float) -> Predicate:
    """The outputs for all training data deviate by less than that from one another."""
    return lambda p: bool(p.outputs().std(0).max() < limit)


def constantly(names: list[str], patience: int) -> Predicate:
    """These parameters have not moved at all in so many steps."""
    still = stand(patience)

    def holds(p: Probe) -> bool:
        named = dict(p.model.named_parameters())
        return still([named[name] for name in names])

    return holds


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


def far_from_training(times: float, above: float, patience: int = 3) -> Predicate:
    """So often in a row, validation loss is high and many times the training loss."""

    def holds(p: Probe) -> bool:
        if len(p.validation) < patience or p.validation[-1][0] != p.step:
            return False
        worst = min(loss for _, loss, _ in p.validation[-patience:])
        return worst > above and worst > times * mean(p.losses[-20:])

    return holds
