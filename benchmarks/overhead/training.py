"""The trainings that are slowed down: small real ones, on handwritten digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from sklearn.datasets import load_digits
from torch import nn

__all__ = ["MODELS", "Contender", "Step", "make_step"]

Step = Callable[[], float]


class Contender(Protocol):
    """What a file in contenders/ defines."""

    def attach(self, model: nn.Module, criterion: nn.Module, directory: str) -> object:
        """Watch a training; returns what must stay alive."""


def cnn() -> nn.Module:
    """Two convolutions: 45 thousand parameters, cheap steps."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def wide() -> nn.Module:
    """Four convolutions of 128 channels: half a million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(1, 128, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 64, 10))


MODELS = {"cnn": cnn, "wide": wide}


def make_step(
    model_name: str, batch_size: int, contender: Contender | None, directory: str
) -> Step:
    """A training of its own, advanced by one step at each call."""
    torch.manual_seed(1)
    data = load_digits()
    images = torch.tensor(data.images / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target)
    model, criterion = MODELS[model_name](), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    alive = contender and contender.attach(model, criterion, directory)
    order = torch.Generator().manual_seed(2)

    def step() -> float:
        chosen = torch.randint(len(images), (batch_size,), generator=order)
        optimizer.zero_grad()
        loss = criterion(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    step.alive = alive  # type: ignore[attr-defined]
    return step
