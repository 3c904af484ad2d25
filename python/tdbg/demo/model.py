"""One small convolutional network, in a healthy and in a sick configuration."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

__all__ = ["OK", "SICK", "Configuration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How deep the network is, and what is between its layers."""

    name: str
    depth: int
    activation: Callable[[], nn.Module]
    channels: int = 32
    learning_rate: float = 0.05

    def build(self) -> nn.Module:
        """Make the network: *depth* convolutions of 3 x 3, then a linear layer."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        n_in = 1
        for i in range(1, self.depth + 1):
            layers[f"conv{i}"] = nn.Conv2d(n_in, self.channels, 3, padding=1)
            layers[f"act{i}"] = self.activation()
            n_in = self.channels
        layers["pool"] = nn.MaxPool2d(2)
        layers["flatten"] = nn.Flatten()
        layers["classify"] = nn.Linear(16 * n_in, 10)
        return nn.Sequential(layers)


OK = Configuration(name="healthy", depth=4, activation=nn.ReLU)

# The derivative of a sigmoid is at most 1/4, so each layer takes at least three
# quarters of the gradient away: what reaches the first layers cannot teach them.
SICK = Configuration(name="sick", depth=14, activation=nn.Sigmoid)
