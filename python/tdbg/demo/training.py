"""An ordinary PyTorch training loop, whose only part of tdbg is the hook."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from tdbg.errors import TrainingStopped

if TYPE_CHECKING:
    from tdbg.demo.data import Digits
    from tdbg.demo.model import Configuration
    from tdbg.pytorch import Hook

__all__ = ["Outcome", "prepare", "train"]

BATCH_SIZE = 64
SEED = 7


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training went.

    Attributes:
        n_steps: Number of optimizer steps.
        seconds: Wall time of these steps.
        accuracy: Share of right answers on the test images.
        stopped: Why it was stopped early, or None.
    """

    n_steps: int
    seconds: float
    accuracy: float
    stopped: str | None


def prepare(
    configuration: Configuration, digits: Digits, hook: Hook | None
) -> tuple[nn.Module, Callable[[], None]]:
    """Make a network and the function that trains it by one step.

    Args:
        configuration: The network.
        digits: What it learns.
        hook: Captures the training; None: nothing does.
    """
    torch.manual_seed(SEED)
    model = configuration.build()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=configuration.learning_rate, momentum=0.9
    )
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    batches = digits.batches(BATCH_SIZE, SEED)

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()

    return model, step


def train(
    configuration: Configuration,
    digits: Digits,
    hook: Hook,
    n_steps: int,
    on_step: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Train for *n_steps*, or until somebody stops the run."""
    model, step = prepare(configuration, digits, hook)
    done, stopped = 0, None
    start = time.perf_counter()
    try:
        for done in range(n_steps):
            step()
            on_step(done + 1)
        done = n_steps
    except TrainingStopped as stop:
        stopped = stop.reason
    seconds = time.perf_counter() - start
    hook.close()
    return Outcome(done, seconds, _accuracy(model, digits), stopped)


def _accuracy(model: nn.Module, digits: Digits) -> float:
    model.eval()
    with torch.no_grad():
        answers = model(digits.test_images).argmax(dim=1)
    return float((answers == digits.test_labels).double().mean())
