"""Texts and sequences: tokens, padding, axes and states in the wrong place."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    ALPHABET,
    N_CHARACTERS,
    Split,
    digits,
    encode,
    source,
    text,
    windows,
)
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import CharacterModel, CharacterTransformer
from benchmarks.detection.corpus.probes import below_accuracy, lasting
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.third.views import mean, since

MODULES = ("argparse", "csv", "textwrap", "heapq")
LONGEST = 64


@cache
def lines_by_module() -> tuple[list[Tensor], Tensor]:
    """300 lines of each module at most, and of which they are."""
    rows, labels = [], []
    for label, module in enumerate(MODULES):
        lines = [line.strip() for line in source(module).splitlines()]
        chosen = [line for line in lines if len(line) >= 12][:300]
        rows += [encode(line[:LONGEST]) for line in chosen]
        labels += [label] * len(chosen)
    return rows, torch.tensor(labels)


def parted(x: Tensor, y: Tensor) -> Split:
    """A fifth to validate with."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(4))
    n = len(x) // 5
    x, y = x[order], y[order]
    return Split(x[n:], y[n:], x[:n], y[:n])


class LineReader(nn.Module):
    """Of which module is the line?  Says so after its last character, or the last."""

    def __init__(self, cell: type[nn.RNNBase], *, after_padding: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 24, padding_idx=0)
        self.cell = cell(24, 48, batch_first=True)
        self.head = nn.Linear(48, len(MODULES))
        self.after_padding = after_padding

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.cell(self.embedding(tokens))[0]
        last = torch.full((len(tokens),), tokens.shape[1] - 1)
        if not self.after_padding:
            places = torch.arange(tokens.shape[1])
            last = torch.where(tokens != 0, places, 0).amax(1)
        out: Tensor = self.head(states[torch.arange(len(tokens)), last])
        return out


@sick(
    named_by={"NLPSequenceRatio", "TensorVariance", "LossNotDecreasing"},
    diagnosis="padded on the left and cut on the right: padding is what is left",
)
def truncated_on_the_wrong_side(t: Training) -> None:
    """padding_side="left" together with truncation that keeps the beginning.

    Source: issues of transformers.  Visible: after five batches, when four fifths of
    the tokens are padding.
    """
    rows, labels = lines_by_module()
    x = torch.zeros(len(rows), 120, dtype=torch.int64)
    for into, row in zip(x, rows, strict=True):
        into[-len(row) :] = row
    x = x[:, :80] if t.sick else x[:, -24:]
    model = LineReader(nn.GRU, after_padding=True)
    fit(
        t,
        model,
        parted(x, labels),
        torch.optim.Adam(model.parameters(), 6e-3),
        n_steps=200,
        batch_size=32,
        visible=since(4, lambda p: bool((p.split.x == 0).float().mean() > 0.8)),
        learned=0.6,
    )


@sick(
    named_by={"DeadEmbedding"},
    diagnosis="code points are the indices: of 4096 rows 97 are ever used",
)
def code_points_as_indices(t: Training) -> None:
    """ord(c) into an embedding that has room for all of it, instead of a vocabulary.

    Source: recommenders with raw identifiers as indices.  Visible: after 30 steps, when
    nine tenths of the rows never had a gradient.
    """
    stream = text()
    if t.sick:
        points = torch.tensor([0, 0, *map(ord, ALPHABET)])
        stream = points[stream]
    n_tokens = 4096 if t.sick else N_CHARACTERS
    starts = torch.arange(0, len(stream) - 33, 48)
    x, _ = windows(stream, starts, 32)
    _, y = windows(text(), starts, 32)
    used = torch.zeros(n_tokens, dtype=torch.bool)
    model = CharacterModel(N_CHARACTERS, 48, nn.GRU)
    model.embedding = nn.Embedding(n_tokens, 32)

    def note(_: int) -> None:
        grad = model.embedding.weight.grad
        if grad is not None:
            used.logical_or_(grad.ne(0).any(1))

    fit(
        t,
        model,
        Split(x, y, x[:8], y[:8]),
        torch.optim.Adam(model.parameters(), 8e-3),
        n_steps=160,
        batch_size=16,
        before_step=note,
        visible=since(30, lambda _: float(used.float().mean()) < 0.1),
        learned=lambda p: mean(p.losses[-10:]) < 2.6,
    )


@sick(
    named_by={"PoorWeightInitialization"},
    diagnosis="the head shares an embedding of deviation 1: logits begin in the tens",
)
def tied_embedding_too_wide(t: Training) -> None:
    """Tied weights with nn.Embedding's own initialization, made for no output.

    Source: issues of nanoGPT and its like, "initial loss of 100 instead of 4".
    Visible: at the first step, whose loss is twice that of a guess.
    """
    stream = text()
    starts = torch.arange(0, len(stream) - 33, 48)
    x, y = windows(stream, starts, 32)
    model = CharacterTransformer(N_CHARACTERS, 32, tied=True)
    if t.sick:
        model.embedding.reset_parameters()
    fit(
        t,
        model,
        Split(x, y, x[:8], y[:8]),
        torch.optim.AdamW(model.parameters(), 3e-3),
        n_steps=160,
        batch_size=16,
        visible=lambda p: p.step == 0 and p.losses[0] > 2 * math.log(N_CHARACTERS),
        learned=lambda p: mean(p.losses[-10:]) < 2.8,
    )


class ClassToken(nn.Module):
    """A transformer over the lines of an image; a token of its own is asked."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.token = nn.Parameter(torch.randn(1, 1, 32) * 0.02)
        self.place = nn.Parameter(torch.randn(9, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.view(-1, 8, 8))
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        out: Tensor = self.head(self.encoder(x)[:, 0])
        return out


@sick(
    named_by={"Underfitting", "LossNotDecreasing", "TensorVariance"},
    diagnosis="batch_first was forgotten: attention goes over the batch",
)
def batch_first_forgotten(t: Training) -> None:
    """(batch, place, width) into a layer that expects the place first.

    Source: PyTorch's forum.  Visible: when for ten steps after the 30th all of the
    first 64 images have had the same outputs.
    """
    model = ClassToken(batch_first=not t.sick)

    def all_the_same(p: Probe) -> bool:
        with torch.no_grad():
            outputs = p.shadow()(p.split.x[:64])
        return bool(outputs.std(0).max() < 1e-3)

    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=220,
        visible=lasting(since(30, all_the_same), 10),
        learned=0.9,
    )


class Reshaped(nn.Module):
    """A recurrent network, the place first, whose states are laid side by side."""

    def __init__(self, *, viewed: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 24)
        self.head = nn.Linear(8 * 24, 10)
        self.viewed = viewed

    def forward(self, images: Tensor) -> Tensor:
        n = len(images)
        states = self.gru(images.view(n, 8, 8).transpose(0, 1))[0]
        if not self.viewed:
            states = states.transpose(0, 1)
        out: Tensor = self.head(states.reshape(n, -1))
        return out


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="view() instead of transpose(): states of different images are mixed",
)
def view_mixes_the_batch(t: Training) -> None:
    """States of (place, batch, width) viewed as if the batch came first.

    Source: Karpathy's recipe, "use backprop to chart dependencies"; PyTorch's forum.
    Visible: from the 100th step on, when less than half of the images are recognized.
    """
    model = Reshaped(viewed=t.sick)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=220,
        visible=below_accuracy(0.5, 100),
        learned=0.9,
    )


@sick(
    named_by={
        "VanishingGradient",
        "LossNotDecreasing",
        "Underfitting",
        "NLPSequenceRatio",
    },
    diagnosis="the state is read after the padding, when the line is forgotten",
)
def state_after_the_padding(t: Training) -> None:
    """out[:, -1] of a simple recurrent network, for lines of very different length.

    Source: PyTorch's forum, "use pack_padded_sequence".  Visible: from the 150th step
    on, when less than 45 % of the lines are told apart (29 % by always saying one).
    """
    rows, labels = lines_by_module()
    x = torch.zeros(len(rows), LONGEST, dtype=torch.int64)
    for into, row in zip(x, rows, strict=True):
        into[: len(row)] = row
    model = LineReader(nn.RNN, after_padding=t.sick)
    fit(
        t,
        model,
        parted(x, labels),
        torch.optim.Adam(model.parameters(), 4e-3),
        n_steps=260,
        batch_size=32,
        clip=1.0,
        visible=below_accuracy(0.45, 150),
        learned=0.55,
    )
