"""The training waits for its data."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.detection.scenarios.cases.data import (
    Computed,
    FromFile,
    Sleeping,
    Vectors,
    burn,
)
from benchmarks.detection.scenarios.kit import Play, fault, network

__all__ = ["train"]

# More than any scenario reads: an epoch ends by the clock, or never.
MANY = 10**6


def train(play: Play, loader: DataLoader[Any], model: nn.Module) -> None:
    """Train for as long as the performance lasts."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    for inputs, labels in play.batches(loader):
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()


@fault("DataLoaderBound", mends=True)
def loader_sleeps(play: Play) -> None:
    """A sample takes 10 ms to fetch, and one worker fetches. Twin: 4 workers."""
    workers = play.workers or (1 if play.ill else 4)
    loader = DataLoader(Sleeping(MANY, 0.01), batch_size=8, num_workers=workers)
    train(play, loader, network(0.03))
    play.shows(play.share("wait") > 0.3)


@fault("DataLoaderBound", mends=True)
def no_workers(play: Play) -> None:
    """The training fetches its samples itself. Twin: 2 workers do."""
    workers = play.workers or (0 if play.ill else 2)
    loader = DataLoader(Sleeping(MANY, 0.005), batch_size=8, num_workers=workers)
    train(play, loader, network(0.03))
    play.shows(play.share("wait") > 0.3)


@fault("CPUBottleneck", mends=True, alone=True)
def augmentation_on_one_core(play: Play) -> None:
    """Augmenting takes all of the only core. Twin: the model does, augmenting not."""
    os.sched_setaffinity(0, {os.cpu_count() - 1})  # type: ignore[operator]
    seconds = 0.01 if play.ill else 0.0005
    loader = DataLoader(Computed(MANY, seconds), batch_size=8, num_workers=1)
    model = network(0.01)
    if not play.sick:
        model.append(Busy())
    train(play, loader, model)
    play.shows(play.share("wait") > 0.3)


class Busy(nn.Module):
    """A model that needs the core for 50 ms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what came in, later."""
        burn(0.05)
        return x


@fault("IOBottleneck", mends=True, alone=True)
def reads_past_the_cache(play: Play) -> None:
    """Batches of 64 MB are read from the disk. Twin: from the page cache."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder) / "data"
        path.write_bytes(os.urandom(1 << 20) * 256)
        os.sync()
        length = 8 if not play.ill else 64
        data = FromFile(path, MANY, is_direct=play.ill)
        loader = DataLoader(data, batch_size=length // 8, num_workers=1)
        train(play, loader, network(0.03))
    play.shows(play.share("wait") > 0.3)


@fault("WorkerImbalance", mends=True)
def one_slow_worker(play: Play) -> None:
    """One of 4 workers takes 5 times as long. Twin: it does not."""
    slow = 0.05 if play.ill else 0.0
    data = Sleeping(MANY, 0.01, slow_worker=slow)
    train(play, DataLoader(data, batch_size=4, num_workers=4), network(0.02))
    play.shows(play.share("wait") > 0.15)


@fault("DataLoaderBound", mends=True)
def workers_start_each_epoch(play: Play) -> None:
    """Epochs of 3 s start 4 spawned workers. Twin: persistent_workers."""
    loader = DataLoader(
        Vectors(800),
        batch_size=8,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=not play.ill,
    )
    train(play, loader, network(0.03))
    play.shows(play.share("wait") > 0.1)
