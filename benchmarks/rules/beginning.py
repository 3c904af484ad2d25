"""What the beginning costs, of which the default rules have every step.

    python -m benchmarks.rules.beginning --rounds 10

Trainings with and without ``td.watch`` take turns; of each step the processor time of
the training's thread counts, which other programs hardly disturb.  Printed are medians
over the rounds, of the steps of the beginning but the first, and of those behind it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

import tdbg.pytorch as td
from benchmarks._harness.tables import Table
from tdbg.config import BEGINNING

# Steps behind the beginning.
AFTER = 50


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """One of half a millisecond a step."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.randn(64, 64)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """One of some milliseconds a step."""
    layers: list[nn.Module] = []
    for n_inputs in (3, 32, 32, 32):
        layers += [nn.Conv2d(n_inputs, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*layers, *head), torch.randn(16, 3, 8, 8)


MODELS = {"mlp": mlp, "cnn": cnn}


def train(name: str, out: Path | None) -> list[float]:
    """Seconds of the processor of each step; watched where *out* is given."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    labels = torch.randint(0, 10, (len(inputs),))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    hook = None if out is None else td.watch(model, criterion, optimizer, out=out)
    seconds = []
    for _ in range(BEGINNING + AFTER):
        began = time.thread_time()
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
        seconds.append(time.thread_time() - began)
    if hook is not None:
        hook.close()
    return seconds


def measure(name: str, rounds: int) -> tuple[object, ...]:
    """A row of the table."""
    bare, watched = [], []
    with tempfile.TemporaryDirectory() as folder:
        train(name, Path(folder) / "warm")
        for i in range(rounds):
            bare.append(train(name, None))
            watched.append(train(name, Path(folder) / str(i)))

    def of(runs: list[list[float]], begin: int, end: int) -> float:
        return median(sum(run[begin:end]) / (end - begin) for run in runs)

    early, late = (1, BEGINNING), (BEGINNING, BEGINNING + AFTER)
    extra = of(watched, *early) - of(bare, *early)
    usual = of(watched, *late) - of(bare, *late)
    return (
        name,
        f"{1e3 * of(bare, *late):.2f} ms",
        f"{of(watched, *early) / of(bare, *early):.2f}",
        f"{of(watched, *late) / of(bare, *late):.2f}",
        f"{BEGINNING * (extra - usual) / of(bare, *late):.0f} steps",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        "the beginning",
        ("training", "step", "times in the beginning", "behind it", "it takes once"),
    )
    for name in MODELS:
        table.add(*measure(name, given.rounds))
    print(table.text())


if __name__ == "__main__":
    main()
