"""Models that these trainings need beside the usual ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["Encoder", "Lines", "Plain", "Siamese", "TwoHeads", "Unrolled", "colours"]


def colours(width: int = 12) -> nn.Sequential:
    """Convolutions with batch normalization for patches of 3 colours."""

    def stage(n_in: int, n_out: int) -> list[nn.Module]:
        return [
            nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
        ]

    return nn.Sequential(
        *stage(3, width),
        nn.MaxPool2d(2),
        *stage(width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 2),
    )


class Lines(nn.Module):
    """Tells of what kind a line of tokens is: a GRU, its state after the last."""

    def __init__(self, n_tokens: int, n_classes: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, 16, padding_idx=0)
        self.gru = nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.gru(self.embedding(tokens))[0]
        last = (tokens != 0).sum(1).clamp(min=1) - 1
        out: Tensor = self.head(states[torch.arange(len(tokens)), last])
        return out


class Encoder(nn.Module):
    """Likewise by attention, without a mask: the mean over all places."""

    def __init__(self, n_tokens: int, n_classes: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, batch_first=True, dropout=0.0, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embedding(tokens)).mean(1))
        return out


class Plain(nn.Module):
    """A deep stack of linear layers, with or without a way around each."""

    def __init__(
        self,
        sizes: tuple[int, int, int],
        depth: int,
        activation: Callable[[], nn.Module],
        *,
        residual: bool,
    ) -> None:
        super().__init__()
        n_in, width, n_out = sizes
        self.stem = nn.Linear(n_in, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.activations = nn.ModuleList(activation() for _ in range(depth))
        self.head = nn.Linear(width, n_out)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer, activation in zip(self.layers, self.activations, strict=True):
            seen = activation(layer(x))
            x = x + seen if self.residual else seen
        out: Tensor = self.head(x)
        return out


class Unrolled(nn.Module):
    """A simple recurrent network that reads an image pixel by pixel."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, width, batch_first=True, nonlinearity="relu")
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(images[:, :, None])[0][:, -1])
        return out


class Siamese(nn.Module):
    """Puts an image at a place where its like are near."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 8)
        )

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.body(images)
        return out


class TwoHeads(nn.Module):
    """One trunk; which digit is it, and how much ink does it take?"""

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32))
        self.digit = nn.Linear(32, 10)
        self.ink = nn.Linear(32, 1)
        self.cut = cut

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.cut:
            with torch.no_grad():
                x = self.trunk(images)
        else:
            x = self.trunk(images)
        return self.digit(torch.relu(x)), self.ink(torch.relu(x))
