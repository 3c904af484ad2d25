"""Trains a small network on samples that take 2.5 ms each to fetch.

    python examples/loader_bound/train.py --steps 500 --workers 0

Fetching waits, as for a network or a disk, and the model waits 20 ms, as for a device:
so the example shows the same on a machine with few cores, and on a busy one.  The
script knows nothing of tdbg.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

__all__ = ["Device", "Samples", "main"]

FETCH_SECONDS = 0.0025
DEVICE_SECONDS = 0.02
BATCH = 32


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that are somewhere else."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(FETCH_SECONDS)
        label = index % 10
        values = torch.zeros(256)
        values[label * 25 : label * 25 + 25] = 1.0
        return values, torch.tensor(label)


class Device(nn.Module):
    """A device that computes for a while."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what came in, later."""
        time.sleep(DEVICE_SECONDS)
        return x


def main(arguments: list[str] | None = None) -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10), Device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    samples = Samples(options.steps * BATCH)
    loader = DataLoader(samples, batch_size=BATCH, num_workers=options.workers)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
