"""A sweep of thirty real trainings, three of them sick: what a table of runs is for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import tdbg
import tdbg.pytorch as td
from benchmarks.ui._trainings import Residual, register

__all__ = ["BEST_RATE", "LEAVES_AT", "SICK", "STEPS", "Trial", "sweep", "train"]

STEPS, BATCH = 400, 128
NOISE = 0.7
#: At this step the gain of one block of the second sick run is taken away.
LEAVES_AT = 214
#: What is wrong, by the number of the run.
SICK = {7: "rate", 19: "block", 23: "labels"}
BEST_RATE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The settings of a training of the sweep."""

    number: int
    lr: float
    momentum: float
    width: int
    dropout: float
    seed: int

    @property
    def name(self) -> str:
        return f"sweep-{self.number:02}"


def sweep(n: int = 30) -> list[Trial]:
    """Settings that a random search would draw; of the same number always the same."""
    dice = np.random.default_rng(7)
    found = []
    for number in range(n):
        rate = float(f"{10 ** dice.uniform(-2.6, -0.9):.2g}")
        found.append(
            Trial(
                number=number,
                lr=40.0 if SICK.get(number) == "rate" else rate,
                momentum=float(dice.choice([0.0, 0.8, 0.9])),
                width=int(dice.choice([32, 48, 64])),
                dropout=float(dice.choice([0.0, 0.1, 0.2])),
                seed=number,
            )
        )
    return found


def train(folder: Path, settings: Trial, steps: int = STEPS) -> None:
    """One training of the sweep, in *folder*."""
    torch.manual_seed(settings.seed)
    found = load_digits()
    images = torch.tensor(found.data / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(found.target)
    sickness = SICK.get(settings.number)
    if sickness == "labels":
        labels = labels[torch.randperm(len(labels))]
    model, criterion = Residual(settings.width, depth=6), nn.CrossEntropyLoss()
    dropped = nn.Dropout(settings.dropout)
    optimizer = torch.optim.SGD(
        model.parameters(), settings.lr, momentum=settings.momentum
    )
    names = ["losses", "gradients", "weights", "scalars", "hyperparameters", "metrics"]
    save = tdbg.SaveConfig(save_interval=10**6, statistics_interval=2)
    out = folder / settings.name
    with td.Hook(out, include_collections=names, save_config=save) as hook:
        register(hook, model, criterion)
        for step in range(steps):
            if sickness == "block" and step == LEAVES_AT:
                with torch.no_grad():
                    model.blocks[3].down.weight.mul_(8)
            if step == 0:
                remember(hook, settings)
            model.train()
            chosen = torch.randint(0, 1500, (BATCH,))
            optimizer.zero_grad()
            noisy = dropped(images[chosen] + NOISE * torch.randn(BATCH, 64))
            criterion(model(noisy), labels[chosen]).backward()
            optimizer.step()
            if step % 40 == 39:
                validate(hook, model, criterion, images[1500:], labels[1500:])


def remember(hook: td.Hook, settings: Trial) -> None:
    """Record the settings with the run."""
    for name in ("lr", "momentum", "width", "dropout", "seed"):
        value = np.array(getattr(settings, name))
        hook.save_tensor(
            f"hyperparameters/{name}", value, collections_to_write="hyperparameters"
        )


def validate(
    hook: td.Hook,
    model: nn.Module,
    criterion: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
) -> None:
    """Evaluate, and record the accuracy."""
    model.eval()
    with torch.no_grad():
        logits = model(images)
        criterion(logits, labels)
        accuracy = float((logits.argmax(1) == labels).float().mean())
    hook.save_scalar("val/accuracy", accuracy if math.isfinite(accuracy) else 0.0)
