"""Memory that is kept, for ever or for a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.detection.scenarios.kit import Play, fault, healthy, network

__all__: list[str] = []

# The memory is full after so long, whatever the machine.
FULL_SECONDS = 1500.0
LONG = 400.0


@fault("MemoryLeak", seconds=LONG)
def keeps_losses(play: Play) -> None:
    """A list of losses keeps their graphs. Twin: a list of numbers."""
    losses: list[object] = []

    def keep(loss: torch.Tensor) -> None:
        losses.append(loss if play.sick else loss.item())

    _train(play, keep)
    play.shows(play.figures["grown"] > 0.1 * play.figures["available"])


@healthy(seconds=LONG)
def cache_that_fills(play: Play) -> None:
    """A cache keeps what it is given for 60 s, and no more after that."""
    kept: list[torch.Tensor] = []
    _train(play, lambda loss: kept.append(loss) if play.elapsed < 60 else None)


@healthy(seconds=LONG)
def sawtooth(play: Play) -> None:
    """What was kept is given back each 20 s."""
    kept: list[torch.Tensor] = []
    began = 0.0

    def keep(loss: torch.Tensor) -> None:
        nonlocal began
        if play.elapsed - began > 20:
            kept.clear()
            began = play.elapsed
        kept.append(loss)

    _train(play, keep)


def _train(play: Play, keep: Callable[[torch.Tensor], None]) -> None:
    """Train with graphs of such a size that keeping them all fills the memory."""
    available, before = _kilobytes("/proc/meminfo", "MemAvailable"), 0
    seconds = 0.1
    # Floats of the graph of a step.
    n = int(available * 1024 * seconds / FULL_SECONDS / 4 / 2)
    model = network(seconds, width=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in play.steps():
        kept = torch.full((n,), 1e-3, requires_grad=True)
        loss = model(torch.ones(4, 1)).square().mean() + 1e-3 * kept.exp().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        keep(loss)
        if step == 20:
            before = _kilobytes("/proc/self/status", "VmRSS")
    play.figures["available"] = available / 1024
    play.figures["grown"] = (_kilobytes("/proc/self/status", "VmRSS") - before) / 1024


def _kilobytes(path: str, name: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
