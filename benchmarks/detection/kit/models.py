"""Small models of the kinds that people train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


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
        return self.relu(x + self.body(x))


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
        return self.head(x)


class Recurrent(nn.Module):
    """Reads an image line by line."""

    def __init__(self, cell: type[nn.RNNBase] = nn.GRU, width: int = 32) -> None:
        super().__init__()
        self.cell = cell(8, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.cell(images.view(-1, 8, 8))[0][:, -1])


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
        return self.head(x.mean(1))


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


def draw_weights(model: nn.Module, deviation: float) -> None:
    """All weights of linear and convolutional layers normal, all biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=deviation)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class Convolved(nn.Module):
    """Classifies rows of characters by convolutions over them."""

    def __init__(self, n_tokens: int, n_classes: int, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, 16)
        self.body = nn.Sequential(
            nn.Conv1d(16, width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(width, n_classes)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(rows).transpose(1, 2)))


class WordTransformer(nn.Module):
    """Likewise by attention; the head is the embedding."""

    def __init__(self, n_tokens: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_tokens, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.05)
        self.head.weight = self.embedding.weight

    def forward(self, rows: Tensor) -> Tensor:
        n = rows.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        x = self.embedding(rows) + self.place[:n]
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))


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
        return self.head(states[torch.arange(len(tokens)), last])


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
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


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
        return self.head(x)
