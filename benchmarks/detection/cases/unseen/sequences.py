"""Sequences: letters and blanks, last places, windows, packed and carried texts."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, AdamW

from benchmarks.detection.kit.case import ninth
from benchmarks.detection.kit.data import (
    ALPHABET,
    N_CHARACTERS,
    lines,
    lines_of_code,
    text,
    windows,
)
from benchmarks.detection.kit.harm import conclude, in_evaluation
from benchmarks.detection.kit.loops import descend
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


def spoken(n: int, luck: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words of four letters out of five, each letter some frames long, with noise."""
    sounds = torch.eye(5, 8)
    letters = torch.randint(5, (n, 4), generator=luck)
    frames = torch.zeros(n, 16, 8)
    for i in range(n):
        at = 0
        for letter in letters[i].tolist():
            length = 2 + int(torch.randint(2, (), generator=luck))
            frames[i, at : at + length] = sounds[letter]
            at += length + 1
    return frames + 0.2 * torch.randn(frames.shape, generator=luck), letters


def decoded(best: Tensor, blank: int) -> list[int]:
    """Repetitions are merged, and blanks left out."""
    merged = [int(a) for a, b in zip(best[1:], best[:-1], strict=True) if a != b]
    return [a for a in [int(best[0]), *merged] if a != blank]


@ninth.silent("blank of CTC", "the blank of the loss is a letter")
def blank_is_a_letter(t: Training) -> None:
    """``CTCLoss()`` has blank 0, where the alphabet has its first letter.

    The decoder takes the last output for the blank, as Keras and others do.

    Source: github.com/raidastauras/tf2-crnn/issues/1 ("Net can't predict 0"),
    github.com/githubharald/CTCDecoder/issues/19 and issues/21,
    github.com/tensorflow/tensorflow/issues/42488.
    Visible: fewer than 20 % of new words are read rightly.
    """
    frames, letters = spoken(900, torch.Generator().manual_seed(1))
    blank = 5

    class Reader(nn.Module):
        """A GRU in both directions over frames."""

        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(8, 24, batch_first=True, bidirectional=True)
            self.head = nn.Linear(48, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0]).log_softmax(-1)

    model = Reader()
    criterion = nn.CTCLoss() if t.sick else nn.CTCLoss(blank=blank)
    optimizer = Adam(model.parameters(), 1e-2)
    t.watch(model, criterion)
    for _, rows in t.batches(200, 700, 32):
        log_probs = model(frames[rows]).transpose(0, 1)
        n = torch.full((len(rows),), 16), torch.full((len(rows),), 4)
        descend(optimizer, criterion(log_probs, letters[rows], *n))
    best = in_evaluation(model, lambda: model(frames[700:]).argmax(-1))
    read = [decoded(row, blank) for row in best]
    right = [a == b for a, b in zip(read, letters[700:].tolist(), strict=True)]
    share = sum(right) / len(right)
    t.note(share=share)
    conclude(t, fault=share < 0.2, reached=share > 0.8)


@dataclass(frozen=True)
class LineConfig:
    """Of which module is a line of code?"""

    vocab_size: int = N_CHARACTERS
    hidden_size: int = 48
    num_labels: int = 5
    max_length: int = 40
    pool_last_token: bool = False


class LineClassifier(nn.Module):
    """A GRU, and a head on its state at one place."""

    def __init__(self, config: LineConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, 24, padding_idx=0)
        self.rnn = nn.GRU(24, config.hidden_size, batch_first=True)
        self.score = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.rnn(self.embedding(input_ids))
        if self.config.pool_last_token:
            return self.score(states[:, -1])
        return self.score(states[torch.arange(len(states)), lengths - 1])


def collate(rows: Tensor) -> dict[str, Tensor]:
    """Padded to the longest of the batch."""
    lengths = (rows != 0).sum(1)
    return {"input_ids": rows[:, : int(lengths.max())], "lengths": lengths}


@ninth.silent("state at padding", "the state at the last place is that of padding")
def last_place_is_padding(t: Training) -> None:
    """``output[:, -1]`` of rows that are padded behind.

    Source: github.com/huggingface/transformers/pull/7501 and issues/35352 ("it simply
    takes the last value in each row of the batch"), pull/46782;
    github.com/huggingface/peft/issues/3620; forum threads on ``out[:, -1, :]``.
    Visible: with 30 places of padding more, a tenth of the answers is another.
    """
    config = LineConfig(pool_last_token=t.sick)
    split = lines(config.max_length)
    model = LineClassifier(config)
    optimizer = AdamW(model.parameters(), 5e-3)
    t.watch(model)
    for _, rows in t.batches(230, len(split.x), 32):
        logits = model(**collate(split.x[rows]))
        optimizer.zero_grad()
        functional.cross_entropy(logits, split.y[rows]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    given = collate(split.x_val)
    more = {**given, "input_ids": functional.pad(given["input_ids"], (0, 30))}
    told = in_evaluation(model, lambda: model(**given).argmax(1))
    later = in_evaluation(model, lambda: model(**more).argmax(1))
    changed = float((told != later).float().mean())
    right = float((later == split.y_val).float().mean())
    t.note(changed=changed, right=right)
    conclude(t, fault=changed > 0.1, reached=right > 0.5 and changed < 0.1)


def smoothed(series: Tensor, width: int, *, centred: bool) -> Tensor:
    """The mean of so many values: around a place, or up to it."""
    before = width // 2 if centred else width - 1
    filled = functional.pad(
        series[None, None], (before, width - 1 - before), "replicate"
    )
    return functional.avg_pool1d(filled, width, 1)[0, 0]


@ninth.silent("inputs know the future", "the moving average is centred")
def average_of_what_comes(t: Training) -> None:
    """``rolling(9, center=True).mean()`` smooths the inputs of a forecast.

    Source: github.com/statsmodels/statsmodels/issues/9275,
    github.com/andrew-cui/mlb-game-prediction/issues/1,
    github.com/jinglescode/time-series-forecasting-pytorch/issues/19.
    Visible: where nothing of the future is known, the error is a quarter larger than
    that on the validation windows.
    """
    config: dict[str, Any] = {"window": 12, "width": 9, "center": t.sick, "epochs": 12}
    luck = torch.Generator().manual_seed(5)
    place = torch.arange(1500).float()
    series, level = torch.zeros(1500), 0.0
    for i, kick in enumerate(torch.randn(1500, generator=luck).tolist()):
        level = 0.9 * level + 0.4 * kick
        series[i] = level
    series = series + (place / 8).sin()

    def inputs(known: Tensor) -> Tensor:
        """Windows of smoothed values, and the last value itself."""
        means = smoothed(known, config["width"], centred=config["center"])
        return torch.cat((means.unfold(0, config["window"], 1), known[11:, None]), 1)

    x, y = inputs(series)[:-1], series[12:, None]
    n_train = 1100
    model = mlp([config["window"] + 1, 32, 1])
    criterion = nn.MSELoss()
    optimizer = AdamW(model.parameters(), 5e-3, weight_decay=1e-2)
    t.watch(model, criterion)
    said = 0.0
    rows_of = t.epochs(n_train, 64)
    per_epoch = n_train // 64 + 1
    for step in t.steps(config["epochs"] * per_epoch):
        rows = next(rows_of)
        descend(optimizer, criterion(model(x[rows]), y[rows]))
        if (step + 1) % per_epoch == 0:
            said, _ = t.evaluate(model, criterion, x[n_train + 20 :], y[n_train + 20 :])
    live = []
    for now in range(n_train + 20, 1480):
        known = inputs(series[:now])[-1:]
        told = in_evaluation(model, lambda known=known: model(known))
        live.append(float((told - series[now]).pow(2)))
    error = sum(live) / len(live)
    t.note(said=said, error=error)
    conclude(t, fault=error > 1.25 * said, reached=error < 0.23, harms=False)


class Decoder(nn.Module):
    """Guesses characters; attention goes where the mask is True."""

    def __init__(self, width: int = 32, length: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_CHARACTERS, width)
        self.places = nn.Embedding(length, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = mlp([width, 4 * width, width], nn.GELU)
        self.head = nn.Linear(width, N_CHARACTERS)

    def forward(self, tokens: Tensor, place: Tensor, seen: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(place)
        h, hidden = self.first(x), ~seen.repeat_interleave(4, 0)
        x = x + self.attention(h, h, h, attn_mask=hidden, need_weights=False)[0]
        return self.head(x + self.inner(self.second(x)))


class PackedLines:
    """Lines one after the other in rows of one length, with the line of each place."""

    def __init__(self, rows: list[Tensor], length: int) -> None:
        self.length = length
        stream = torch.cat([row[:length] for row in rows])
        owner = torch.cat(
            [torch.full((len(r[:length]),), i) for i, r in enumerate(rows)]
        )
        place = torch.cat([torch.arange(len(row[:length])) for row in rows])
        n = len(stream) // length * length
        self.tokens, self.owner, self.place = (
            column[:n].view(-1, length) for column in (stream, owner, place)
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, rows: Tensor, *, apart: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, places in their line, and who may see whom."""
        seen = torch.ones(self.length, self.length).tril().bool()[None]
        owner = self.owner[rows]
        if apart:
            seen = seen & (owner[:, :, None] == owner[:, None])
        return self.tokens[rows], self.place[rows], seen.expand(len(rows), -1, -1)


@ninth.silent("texts in one row", "packed texts attend to the texts before them")
def packed_lines_see_each_other(t: Training) -> None:
    """Lines are packed into rows; positions begin anew, the causal mask does not.

    Source: github.com/huggingface/transformers/pull/46634 ("loss still decreases, so it
    is silent and easy to miss"), github.com/huggingface/nanoVLM/pull/204,
    github.com/karpathy/nanoGPT/issues/280, github.com/alex-hh/profam/issues/495.
    Visible: another first line in a row changes what is said in the lines behind it.
    """
    packed = PackedLines(lines_of_code(), 48)
    n_train = len(packed) * 9 // 10
    model = Decoder()
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    for _, rows in t.batches(220, n_train, 16):
        tokens, place, seen = packed.batch(rows, apart=not t.sick)
        logits = model(tokens, place, seen)
        # The first of a line is not to be guessed from the line before.
        labels = tokens.masked_fill(place == 0, -100)
        loss = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )
        descend(optimizer, loss)
    rows = torch.arange(n_train, len(packed))
    tokens, place, seen = packed.batch(rows, apart=not t.sick)
    first = packed.owner[rows] == packed.owner[rows, :1]
    other = torch.where(first, (tokens + 7) % N_CHARACTERS, tokens)
    logits = in_evaluation(model, lambda: model(tokens, place, seen))
    change = logits - in_evaluation(model, lambda: model(other, place, seen))
    leaked = float(change[~first].abs().max())
    labels = tokens.masked_fill(place == 0, -100)
    loss = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
    )
    t.note(leaked=leaked, loss=float(loss))
    conclude(t, fault=leaked > 1e-3, reached=float(loss) < 2.7, harms=False)


class CharRnn(nn.Module):
    """Guesses the next character, and hands its state on."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 24)
        self.rnn = nn.GRU(24, 64, batch_first=True)
        self.head = nn.Linear(64, N_CHARACTERS)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        out, state = self.rnn(self.embedding(x), state)
        return self.head(out), state


def stretches(
    t: Training, stream: Tensor, size: int, length: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Where stretches begin, and whether they go on where those before ended."""
    each = (len(stream) - 1) // size
    n = each // length
    begins = torch.arange(size) * each
    last = begins - length
    while True:
        order = torch.randperm(n * size, generator=t.order).view(n, size)
        for i in range(n):
            if t.sick:
                rows, part = order[i] // n, order[i] % n
                at = begins[rows] + part * length
            else:
                at = begins + i * length
            yield at, at == last + length
            last = at


@ninth.silent("state of another text", "the state is carried into shuffled stretches")
def state_of_another_stretch(t: Training) -> None:
    """The hidden state goes from batch to batch, and the DataLoader shuffles.

    Source: github.com/tensorflow/tensorflow/issues/40067 ("the GRU layer is stateful,
    but the batches are shuffled"), github.com/keras-team/keras/issues/1820 and
    issues/7212, github.com/rafaljozefowicz/lm/issues/7.
    Visible: hardly a stretch goes on where that of its state ended.
    """
    length, size = 12, 16
    stream = text()
    n_train = len(stream) * 9 // 10
    model = CharRnn()
    optimizer = Adam(model.parameters(), 6e-3)
    t.watch(model)
    drawn = stretches(t, stream[:n_train], size, length)
    state: Tensor | None = None
    follows = []
    for _ in t.steps(260):
        at, goes_on = next(drawn)
        follows.append(float(goes_on.float().mean()))
        x, y = windows(stream, at, length)
        logits, state = model(x, state)
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state = state.detach()
    share = sum(follows[1:]) / (len(follows) - 1)
    x, y = windows(stream, n_train + torch.arange(60) * 60, 60)
    logits = in_evaluation(model, lambda: model(x, None)[0])
    loss = float(functional.cross_entropy(logits.flatten(0, 1), y.flatten()))
    t.note(share=share, loss=loss)
    conclude(t, fault=share < 0.1, reached=loss < 2.7, harms=False)


def kinds(row: Tensor) -> Tensor:
    """Of each character: a small letter, a capital, a digit, a blank, or other."""
    told = []
    for number in row.tolist():
        letter = ALPHABET[number - 2] if number > 1 else "?"
        sets = (string.ascii_lowercase, string.ascii_uppercase, string.digits, " ")
        of = [i for i, letters in enumerate(sets) if letter in letters]
        told.append(of[0] if of else 4)
    return torch.tensor(told)


class Tagger(nn.Module):
    """Tells of each place what kind it is."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS + 1, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(48, 5)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.classifier(self.rnn(self.embedding(input_ids))[0])


@ninth.silent("labels at the wrong offset", "labels do not know of the first marker")
def tags_without_the_marker(t: Training) -> None:
    """The tokenizer puts a marker before each row, and tags stay where they were.

    Source: github.com/huggingface/transformers/pull/17992 and pull/8962 (special tokens
    "create a mismatch between the input and the labels"), and
    github.com/google-research/bert/issues/560 ("labels and tokens are mis-matched").
    Visible: the tag that is told at a place is more often that of the next character.
    """
    length, marker = 32, N_CHARACTERS
    rows = [row[:length] for row in lines_of_code(length)]
    ids = functional.pad(torch.stack(rows), (1, 0), value=marker)
    tags = torch.stack([kinds(row) for row in rows])
    padding = (0, 1) if t.sick else (1, 0)
    labels = functional.pad(tags, padding, value=-100)
    n_train = len(rows) * 4 // 5
    model = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    optimizer = Adam(model.parameters(), 1e-2)
    t.watch(model, criterion)
    for _, chosen in t.batches(120, n_train, 16):
        logits = model(ids[chosen])
        descend(optimizer, criterion(logits.flatten(0, 1), labels[chosen].flatten()))
    told = in_evaluation(model, lambda: model(ids[n_train:]).argmax(-1))[:, 1:]
    here = float((told == tags[n_train:]).float().mean())
    ahead = float((told[:, :-1] == tags[n_train:, 1:]).float().mean())
    t.note(here=here, ahead=ahead)
    conclude(t, fault=ahead > here, reached=here > 0.95)
