"""Small models that several of these trainings share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Convolved", "NextWord", "Pooled", "WordTransformer"]


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
        out: Tensor = self.head(self.body(self.embedding(rows).transpose(1, 2)))
        return out


class Pooled(nn.Module):
    """Classifies rows of words by the mean of what they are embedded in."""

    def __init__(self, n_tokens: int, n_classes: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.hidden = nn.Linear(width, width)
        self.relu = nn.ReLU()
        self.head = nn.Linear(width, n_classes)

    def forward(self, rows: Tensor) -> Tensor:
        inside = (rows != 0).float()[:, :, None]
        middle = (self.embedding(rows) * inside).sum(1) / inside.sum(1).clamp(min=1)
        out: Tensor = self.head(self.relu(self.hidden(middle)))
        return out


class NextWord(nn.Module):
    """Says which word may follow, at each place (batch, place, word)."""

    def __init__(self, n_tokens: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, n_tokens)

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(self.embedding(rows))[0])
        return out


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
        out: Tensor = self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))
        return out
