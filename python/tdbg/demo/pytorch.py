"""An ordinary loop of PyTorch: one small convolutional network, healthy or sick."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from tdbg.pytorch import Hook, SaveConfig

if TYPE_CHECKING:
    from tdbg.demo.data import Digits
    from tdbg.rules import Rule

__all__ = ["LOOK_AT", "SICK", "Training", "build", "make_hook"]

# The derivative of a sigmoid is at most 1/4, so each layer takes at least three
# quarters of the gradient away: what reaches the first layers cannot teach them.
SICK = "14 layers of sigmoids"
LOOK_AT = "gradient/conv1.weight"

BATCH_SIZE = 64
SEED = 7
_CHANNELS = 32


def build(*, is_sick: bool) -> nn.Module:
    """Make the network: convolutions of 3 x 3, then a linear layer."""
    depth, activation = (14, nn.Sigmoid) if is_sick else (4, nn.ReLU)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    n_in = 1
    for i in range(1, depth + 1):
        layers[f"conv{i}"] = nn.Conv2d(n_in, _CHANNELS, 3, padding=1)
        layers[f"act{i}"] = activation()
        n_in = _CHANNELS
    layers["pool"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["classify"] = nn.Linear(16 * n_in, 10)
    return nn.Sequential(layers)


def make_hook(run: Path, rules: Sequence[Rule]) -> Hook:
    """Make a hook that captures statistics of every step."""
    return Hook(
        run,
        save_all=True,
        rules=rules,
        save_config=SaveConfig(statistics_interval=1, save_interval=100),
    )


class Training:
    """An ordinary loop, which can be made step by step.

    Args:
        digits: What is learned.
        hook: Captures the training; None: nothing does.
        is_sick: Which network.
    """

    def __init__(
        self, digits: Digits, hook: Hook | None, *, is_sick: bool = False
    ) -> None:
        # One core for the training, so that the watcher has one too.
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self._digits = digits
        self._model = build(is_sick=is_sick)
        self._criterion = nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=0.05, momentum=0.9
        )
        if hook is not None:
            hook.register_module(self._model)
            hook.register_loss(self._criterion)
        self._batches = digits.batches(BATCH_SIZE, SEED)

    def step(self) -> None:
        """Make a step.

        Raises:
            TrainingStopped: If somebody asked for it.
        """
        images, labels = map(torch.from_numpy, next(self._batches))
        self._optimizer.zero_grad()
        self._criterion(self._model(images), labels).backward()
        self._optimizer.step()

    def fit(self, n_steps: int, on_step: Callable[[int], None]) -> None:
        """Train: ``frameworks.Training`` says how."""
        for done in range(1, n_steps + 1):
            self.step()
            on_step(done)

    def accuracy(self) -> float:
        """The share of right answers on the test images."""
        self._model.eval()
        with torch.no_grad():
            answers = self._model(torch.from_numpy(self._digits.test_images))
        right = answers.argmax(dim=1).numpy() == self._digits.test_labels
        return float(right.mean())
