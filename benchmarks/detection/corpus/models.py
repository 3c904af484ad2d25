"""Small models of the kinds that people train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

__all__ = [
    "Attentive",
    "CharacterModel",
    "CharacterTransformer",
    "Recurrent",
    "Residual",
    "cnn",
    "mlp",
]


def mlp(
    sizes: Sequence[int],
    activation: Callable[[], nn.Module] = nn.ReLU,
    *,
    norm: Callable[[int], nn.Module] | None = None,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Linear layers of these sizes; no activation after the last."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes[:-1]):
        layers.append(nn.Linear(n_in, n_out))
        if norm is not None:
            layers.append(norm(n_out))
        layers.append(activation())
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def cnn(width: int = 8) -> nn.Sequential:
    """Two convolutions and two linear layers for flat images of 64 pixels."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * width, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Block(nn.Module):
    """Two convolutions with batch normalization around which there is a way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(x + self.body(x))
        return out


class Residual(nn.Module):
    """A residual network for flat images of 64 pixels."""

    def __init__(self, width: int = 8, n_blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(n_blocks)))
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.relu(self.norm(self.stem(images.view(-1, 1, 8, 8)))))
        x = nn.functional.avg_pool2d(x, 4).flatten(1)
        out: Tensor = self.head(x)
        return out


class Recurrent(nn.Module):
    """Reads an image line by line."""

    def __init__(self, cell: type[nn.RNNBase] = nn.GRU, width: int = 32) -> None:
        super().__init__()
        self.cell = cell(8, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(images.view(-1, 8, 8))[0][:, -1])
        return out


class Attentive(nn.Module):
    """A small transformer over the lines of an image."""

    def __init__(self, n_layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(torch.randn(8, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(
            layer, n_layers, enable_nested_tensor=False
        )
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.encoder(self.embed(images.view(-1, 8, 8)) + self.place)
        out: Tensor = self.head(x.mean(1))
        return out


class CharacterModel(nn.Module):
    """Guesses the next character; outputs (batch, class, place)."""

    def __init__(
        self, n_tokens: int, width: int = 64, cell: type[nn.RNNBase] = nn.LSTM
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, 32)
        self.cell = cell(32, width, batch_first=True)
        self.head = nn.Linear(width, n_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(self.embedding(tokens))[0])
        return out.transpose(1, 2)


class CharacterTransformer(nn.Module):
    """Likewise, by attention to what came before; the head may share its weights."""

    def __init__(
        self, n_tokens: int, length: int, width: int = 48, *, tied: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.place = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, batch_first=True, dropout=0.0, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_tokens, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        x = self.embedding(tokens) + self.place(torch.arange(n))
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        x = self.norm(self.encoder(x, mask=mask, is_causal=True))
        out: Tensor = self.head(x)
        return out.transpose(1, 2)
