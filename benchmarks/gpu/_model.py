"""The training that is slowed down: a decoder in bfloat16, with AdamW."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Decoder", "Training"]


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.relu = nn.ReLU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            each.view(batch, length, self.heads, -1).transpose(1, 2)
            for each in self.qkv(self.norm_1(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        answer: torch.Tensor = x + self.down(self.relu(self.up(self.norm_2(x))))
        return answer


class Decoder(nn.Module):
    """A language model: 24 layers of width 1024 are 355 million parameters."""

    def __init__(self, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *(Block(width, max(1, width // 64)) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.blocks(self.tokens(ids) + self.places(places))
        answer: torch.Tensor = self.head(self.norm(hidden))
        return answer


class Training:
    """A training on random tokens; the same for every contender.

    Args:
        device: Where.
        small: A model of a few thousand parameters.
    """

    def __init__(self, device: str, small: bool) -> None:
        torch.manual_seed(7)
        vocabulary, width, layers, length, batch = (
            (64, 16, 2, 8, 2) if small else (50304, 1024, 24, 1024, 8)
        )
        self.model = Decoder(vocabulary, width, layers, length)
        self.model.to(device=device, dtype=torch.bfloat16)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        tokens = torch.Generator().manual_seed(8)
        self._ids = torch.randint(
            vocabulary, (16, batch, length + 1), generator=tokens
        ).to(device)
        self.vocabulary = vocabulary
        self.n_steps = 0
        self.n_parameters = sum(each.numel() for each in self.model.parameters())

    def step(self) -> torch.Tensor:
        """One step; its loss, on the device."""
        ids = self._ids[self.n_steps % len(self._ids)]
        self.n_steps += 1
        logits = self.model(ids[:, :-1])
        loss: torch.Tensor = self.criterion(
            logits.reshape(-1, self.vocabulary).float(), ids[:, 1:].reshape(-1)
        )
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()
