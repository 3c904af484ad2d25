"""Trainings that are captured for rules of any needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tdbg.config import Needs
from tdbg.pytorch import Hook
from tdbg.rules import Evaluation, Rule, Window
from tdbg.trial import Trial, create_trial
from torch_helpers import digits

__all__ = ["STEPS", "Asks", "Net", "asks", "need", "run"]

STEPS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks(Rule):
    """A rule of any needs."""

    of: tuple[Needs, ...] = field(default=())

    @property
    def needs(self) -> tuple[Needs, ...]:
        return self.of

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        del window
        yield from ()


def asks(*needs: Needs) -> Asks:
    return Asks(of=needs)


def need(*collections: str, **options: Any) -> Needs:
    return Needs(collections=frozenset(collections), **options)


class Net(nn.Module):
    """A module of each kind that has units."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 24)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(24, 16)
        self.tanh = nn.Tanh()
        self.fc3 = nn.Linear(16, 16)
        self.sigmoid = nn.Sigmoid()
        self.fc4 = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tanh(self.fc2(self.relu(self.fc1(x))))
        result: torch.Tensor = self.fc4(self.sigmoid(self.fc3(x)))
        return result


def run(path: Path, asked: Any, steps: int = STEPS, **options: Any) -> Trial:
    """A training that is captured for these rules."""
    torch.manual_seed(0)
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = digits(16)
    with Hook(path, rules=asked, min_free_bytes=0, **options) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(steps):
            inputs, labels = next(batches)
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
        assert hook.counters()["internal_errors"] == 0
        assert hook.counters()["refused_tensors"] == 0
    return create_trial(path)
