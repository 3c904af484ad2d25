"""Sick text: sequences that are nearly all padding, or nearly all unknown."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    N_CHARACTERS,
    SOURCES,
    lines_of_code,
    source,
)
from benchmarks.detection.corpus.models import CharacterModel
from benchmarks.detection.corpus.training import Shadow, Training

PAD = 0


def padded(lines: list[Tensor], length: int) -> Tensor:
    """Lines as rows of one length, with zeros after them."""
    rows = torch.zeros(len(lines), length, dtype=torch.int64)
    for row, line in zip(rows, lines, strict=True):
        row[: min(length, len(line))] = line[:length]
    return rows


@sick(
    named_by={"NLPSequenceRatio"},
    diagnosis="lines of 40 characters are padded to 160, and padding is learned",
)
def padded_to_the_longest(t: Training) -> None:
    """Every sequence is padded to one large length, and the loss counts the padding.

    Source: Hugging Face's documentation on padding ("max_length" against "longest");
    PyTorch forum on losses without ignore_index. The twin cuts lines to 32 characters.

    Visible: at a look each 10 steps, 70 % or more of all next tokens are guessed, but
    of those that are characters less than 35 %.
    """
    lines = lines_of_code(24)
    rows = padded(lines, 160 if t.sick else 32)
    model = CharacterModel(N_CHARACTERS, 32, nn.GRU)
    optimizer = Adam(model.parameters(), 5e-3)
    criterion = nn.CrossEntropyLoss()
    shadow = Shadow(model)
    t.watch(model, criterion)
    losses = []
    for step in t.steps(70):
        batch = rows[t.draw(len(rows), 8 if t.sick else 32)]
        optimizer.zero_grad()
        loss = criterion(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step % 10 == 9:
            held = rows[:32]
            with torch.no_grad():
                right = shadow()(held[:, :-1]).argmax(1) == held[:, 1:]
            real = held[:, 1:] != PAD
            t.visible(right.float().mean() >= 0.7 and right[real].float().mean() < 0.35)
    t.note(loss=losses[-1])
    t.learned(losses[-1] < 0.75 * losses[0])


def words(vocabulary_of: int, *, upper: bool) -> tuple[Tensor, int]:
    """The sources as numbers of words; 0: not in the vocabulary."""
    every = [w for name in SOURCES for w in re.findall(r"\w+|[^\w\s]", source(name))]
    counts: dict[str, int] = {}
    for word in every:
        known = word.upper() if upper else word
        counts[known] = counts.get(known, 0) + 1
    kept = sorted(counts, key=lambda word: -counts[word])[:vocabulary_of]
    if upper:
        kept = [word for word in kept if word.isalpha()]
    numbers = {word: i + 1 for i, word in enumerate(kept)}
    return torch.tensor([numbers.get(word, 0) for word in every]), vocabulary_of + 1


@sick(
    named_by={"NLPSequenceRatio"},
    diagnosis="the vocabulary is in capitals, the text is not",
)
def vocabulary_of_other_case(t: Training) -> None:
    """Nearly every word is unknown: the vocabulary was normalized, the text was not.

    Source: Hugging Face forum and issues on cased text with an uncased vocabulary, and
    on tokenizers that do not belong to their model.

    Visible: from step 60 on, at a look each 10 steps, more than 90 % of the words that
    the model proposes for 2000 places are the unknown one.
    """
    stream, n_tokens = words(400, upper=t.sick)
    model = CharacterModel(n_tokens, 48, nn.GRU)
    optimizer = Adam(model.parameters(), 5e-3)
    criterion = nn.CrossEntropyLoss()
    shadow = Shadow(model)
    t.watch(model, criterion)
    length, losses = 25, []
    for step in t.steps(120):
        at = t.draw(len(stream) - length - 1, 24)[:, None] + torch.arange(length + 1)
        batch = stream[at]
        optimizer.zero_grad()
        loss = criterion(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step >= 60 and step % 10 == 9:
            with torch.no_grad():
                said = shadow()(stream[:2000].view(80, 25)).argmax(1)
            t.visible((said == 0).float().mean() > 0.9)
    t.note(loss=losses[-1], unknown=float((stream == 0).float().mean()))
    t.learned(losses[-1] < 0.75 * losses[0])
