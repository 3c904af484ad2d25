"""Healthy trainings on text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.detection.corpus.case import healthy
from benchmarks.detection.corpus.data import (
    N_CHARACTERS,
    Split,
    lines_of_code,
    text,
    windows,
)
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import CharacterModel, CharacterTransformer
from benchmarks.detection.corpus.text_faults import padded
from benchmarks.detection.corpus.training import Training

LENGTH = 24


def learned(p: Probe) -> bool:
    """The loss has come down by a quarter."""
    return sum(p.losses[-10:]) < 7.5 * p.losses[0]


def guess_characters(
    t: Training,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    n_steps: int = 120,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> None:
    """Train a model of characters on windows of text."""
    stream = text()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        return windows(stream, t.draw(len(stream) - LENGTH - 1, 32), LENGTH)

    some = windows(stream, torch.arange(0, 640, 40), LENGTH)
    fit(
        t,
        model,
        Split(*some, *some),
        optimizer,
        n_steps=n_steps,
        batches=batches,
        clip=1.0,
        schedule=schedule,
        learned=learned,
    )


@healthy
def characters_by_lstm(t: Training) -> None:
    """An LSTM that guesses the next character."""
    model = CharacterModel(N_CHARACTERS, 64)
    guess_characters(t, model, Adam(model.parameters(), 5e-3))


@healthy
def characters_by_transformer(t: Training) -> None:
    """Attention to what came before, with a warm-up."""
    model = CharacterTransformer(N_CHARACTERS, LENGTH)
    adam = AdamW(model.parameters(), 3e-3)
    warm = LambdaLR(adam, lambda s: min(1.0, (s + 1) / 20))
    guess_characters(t, model, adam, schedule=warm, n_steps=180)


@healthy
def tied_weights(t: Training) -> None:
    """The head has the embedding's weights."""
    model = CharacterTransformer(N_CHARACTERS, LENGTH, tied=True)
    guess_characters(t, model, AdamW(model.parameters(), 3e-3), n_steps=180)


class Indented(nn.Module):
    """Says of a line whether it is indented by four, from a bag of its characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 24, padding_idx=0)
        self.hidden = nn.Linear(24, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        n = (tokens != 0).sum(1, keepdim=True).clamp(min=1)
        out: Tensor = self.head(torch.relu(self.norm(self.hidden(x.sum(1) / n))))
        return out


@healthy
def padded_bags(t: Training) -> None:
    """A third of the tokens is padding, which has a row of its own that stays zero."""
    lines = [line for line in lines_of_code(8) if len(line) <= 40]
    rows = padded(lines, 40)
    targets = torch.tensor([int("(" in letters(line)) for line in lines])
    model = Indented()
    adam = Adam(model.parameters(), 1e-2)
    split = Split(rows[200:], targets[200:], rows[:200], targets[:200])
    fit(t, model, split, adam, n_steps=150, learned=0.75)


def letters(line: Tensor) -> str:
    """The characters of a line again."""
    return "".join(chr(int(number) + 29) for number in line if number > 2)
