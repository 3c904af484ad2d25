"""Sound programs for sequences, in the styles that people write them, are silent."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import Tensor, nn

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.rules.builtin.data.label_misuse import LabelMisuse
from tdbg.rules.builtin.data.label_shift import LabelShift
from tdbg.rules.builtin.weights.batch_dependence import BatchDependence
from tdbg.rules.builtin.weights.mask_leak import MaskLeak
from tdbg.rules.builtin.weights.nondeterministic_evaluation import (
    NondeterministicEvaluation,
)

pytestmark = pytest.mark.torch

RULES = (
    LabelMisuse(),
    LabelShift(),
    MaskLeak(),
    BatchDependence(),
    NondeterministicEvaluation(),
)
N, PLACES, VOCABULARY, WIDTH = 8, 24, 40, 32
PAD, END, BEGIN, MASK = 0, 1, 2, 3
Step = Callable[[], Tensor]
Program = Callable[[], tuple[nn.Module, Step]]


def texts(n: int = N, most: int = PLACES, least: int = 6) -> list[Tensor]:
    """Return texts of several lengths: each token is near the one before."""
    found = []
    for _ in range(n):
        length = int(torch.randint(least, most - 1, ()))
        steps = torch.randint(1, 4, (length,)).cumsum(0)
        found.append(4 + (steps + torch.randint(0, 36, ())) % (VOCABULARY - 4))
    return found


def padded(rows: list[Tensor], padding: int = PAD, width: int = 0) -> Tensor:
    rows = [*rows, torch.zeros(width, dtype=torch.int64)] if width else rows
    every = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
    return every[: len(rows) - bool(width)]


def ended(rows: list[Tensor], end: int = END) -> list[Tensor]:
    return [torch.cat([each, torch.tensor([end])]) for each in rows]


def full(n: int = N, places: int = PLACES) -> Tensor:
    steps = torch.randint(1, 4, (n, places)).cumsum(1)
    return 4 + (steps + torch.randint(0, 36, (n, 1))) % (VOCABULARY - 4)


class Block(nn.Module):
    """Attention by a given mask, True where a place is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.given = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (2, -1)).transpose(1, 2)
            for each in self.given(self.norm(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(x)


class Decoder(nn.Module):
    """A small GPT; returns logits, and the loss if it gets targets."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=padding)
        self.places = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self,
        idx: Tensor,
        targets: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        is_causal: bool = True,
    ) -> Any:
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x, mask, is_causal=is_causal and mask is None)
        logits = self.head(x)
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return logits, loss


def flat(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), **settings
    )


def nano_gpt() -> tuple[nn.Module, Step]:
    model = Decoder()

    def step() -> Tensor:
        text = full(places=PLACES + 1)
        loss: Tensor = model(text[:, :-1], text[:, 1:])[1]
        return loss

    return model, step


def sliced_outside() -> tuple[nn.Module, Step]:
    model = Decoder()

    def step() -> Tensor:
        text = full()
        return flat(model(text)[:, :-1], text[:, 1:])

    return model, step


def padded_texts_that_end() -> tuple[nn.Module, Step]:
    model = Decoder(padding=PAD)

    def step() -> Tensor:
        text = padded(ended(texts()))
        return flat(model(text[:, :-1]), text[:, 1:], ignore_index=PAD)

    return model, step


def loss_masked_by_hand() -> tuple[nn.Module, Step]:
    model = Decoder(padding=PAD)

    def step() -> Tensor:
        text = padded(ended(texts()))
        x, y = text[:, :-1], text[:, 1:]
        each = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        return (each * (y != PAD)).sum() / (y != PAD).sum()

    return model, step


def classes_weighted() -> tuple[nn.Module, Step]:
    model = Decoder(padding=PAD)
    weights = torch.ones(VOCABULARY)
    weights[PAD] = 0
    loss = nn.CrossEntropyLoss(weight=weights)

    def step() -> Tensor:
        text = padded(ended(texts()))
        value: Tensor = loss(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        return value

    return model, step


def padding_is_the_end_and_counts_once() -> tuple[nn.Module, Step]:
    model = Decoder()

    def step() -> Tensor:
        rows = texts()
        text = padded(ended(rows), END)
        places = torch.arange(text.shape[1] - 1)
        lengths = torch.tensor([len(each) for each in rows])[:, None]
        labels = text[:, 1:].masked_fill(places >= lengths, -100)
        return flat(model(text[:, :-1]), labels)

    return model, step


def prefixes() -> tuple[nn.Module, Step]:
    """Labels of the prompt are left out; the answer ends."""
    model = Decoder()

    def step() -> Tensor:
        text = padded(ended(texts(least=12)))
        labels = text[:, 1:].masked_fill(text[:, 1:] == PAD, -100)
        labels[:, :5] = -100
        n = text.shape[1] - 1
        mask = torch.ones(n, n).tril().bool()
        mask[:6, :6] = True
        return flat(model(text[:, :-1], mask=mask), labels)

    return model, step


def packed_documents() -> tuple[nn.Module, Step]:
    model = Decoder()

    def step() -> Tensor:
        rows = [torch.cat(ended(texts(6)))[: PLACES * 2 + 1] for _ in range(N)]
        text = padded(rows, END)
        x, y = text[:, :-1], text[:, 1:].clone()
        document = (x == END).cumsum(1) - (x == END).long()
        mask = (document[:, :, None] == document[:, None, :]).tril()
        return flat(model(x, mask=mask[:, None]), y.masked_fill(x == END, -100))

    return model, step


def alibi_in_a_window() -> tuple[nn.Module, Step]:
    model = Decoder()
    places = torch.arange(PLACES)
    distance = (places[:, None] - places).float()
    bias = (-0.5 * distance).masked_fill((distance < 0) | (distance > 8), -math.inf)

    def step() -> Tensor:
        text = full(places=PLACES + 1)
        return flat(model(text[:, :-1], mask=bias), text[:, 1:])

    return model, step


def guesses_masked_tokens() -> tuple[nn.Module, Step]:
    model = Decoder()

    def step() -> Tensor:
        text = padded(texts())
        is_chosen = (torch.rand(text.shape) < 0.15) & (text != PAD)
        shown = text.masked_fill(is_chosen & (torch.rand(text.shape) < 0.8), MASK)
        labels = text.masked_fill(~is_chosen, -100)
        mask = (text != PAD)[:, None, None]
        return flat(model(shown, mask=mask), labels)

    return model, step


def diffuses_tokens() -> tuple[nn.Module, Step]:
    """Any share of the tokens is masked, and all of them are restored."""
    model = Decoder()

    def step() -> Tensor:
        text = full()
        is_masked = torch.rand(text.shape) < torch.rand(len(text), 1)
        return flat(model(text.masked_fill(is_masked, MASK), is_causal=False), text)

    return model, step


def restores_a_text() -> tuple[nn.Module, Step]:
    """An autoencoder of sequences; some tokens are others."""
    model = Decoder()

    def step() -> Tensor:
        text = full()
        is_other = torch.rand(text.shape) < 0.15
        shown = text.where(~is_other, torch.randint(4, VOCABULARY, text.shape))
        return flat(model(shown, is_causal=False), text)

    return model, step


class CarriedOver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.cell = nn.GRU(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        found, state = self.cell(self.tokens(x), state)
        return self.head(found), state


def characters_with_a_state() -> tuple[nn.Module, Step]:
    model, states = CarriedOver(), list[Tensor | None]([None])

    def step() -> Tensor:
        text = full(places=PLACES + 1).t()
        logits, state = model(text[:-1], states[0])
        states[0] = state.detach()
        return flat(logits, text[1:])

    return model, step


class Translator(nn.Module):
    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
        self.inside = nn.Transformer(
            WIDTH, 2, 1, 1, 64, dropout=0.1, batch_first=batch_first
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        is_padding = src == PAD
        causal = self.inside.generate_square_subsequent_mask(tgt.shape[1])
        found = self.inside(
            self.tokens(src),
            self.tokens(tgt),
            tgt_mask=causal.isinf(),
            src_key_padding_mask=is_padding,
            tgt_key_padding_mask=tgt == PAD,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        logits: Tensor = self.head(found)
        return logits


def translates() -> tuple[nn.Module, Step]:
    model = Translator()
    loss = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)

    def step() -> Tensor:
        rows = texts()
        source = padded(rows)
        begun = [F.pad(each.flip(0), (1, 0), value=BEGIN) for each in rows]
        target = padded(ended(begun))
        logits = model(source, target[:, :-1])
        value: Tensor = loss(logits.flatten(0, 1), target[:, 1:].flatten())
        return value

    return model, step


class ShiftsInside(nn.Module):
    """A decoder that gets its labels, and puts a beginning before them."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Decoder()

    def forward(self, wanted: Tensor) -> Tensor:
        begun = F.pad(wanted[:, :-1], (1, 0), value=BEGIN)
        logits: Tensor = self.inside(begun)
        return logits


def shifts_inside() -> tuple[nn.Module, Step]:
    model = ShiftsInside()

    def step() -> Tensor:
        text = full()
        return flat(model(text), text)

    return model, step


class Reader(nn.Module):
    """Classifies padded texts, or each of their tokens."""

    def __init__(self, n_classes: int, *, is_tagger: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, batch_first=True)
        self.inside = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, n_classes)
        self.is_tagger = is_tagger

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found = self.inside(self.tokens(x), src_key_padding_mask=~mask.bool())
        if not self.is_tagger:
            weights = mask[..., None] / mask.sum(1)[:, None, None]
            found = (found * weights).sum(1)
        scores: Tensor = self.head(found)
        return scores


def classifies_padded_texts() -> tuple[nn.Module, Step]:
    model = Reader(4)

    def step() -> Tensor:
        x = padded(texts(16))
        return F.cross_entropy(model(x, (x != PAD).float()), x[:, 0] % 4)

    return model, step


def tags_tokens() -> tuple[nn.Module, Step]:
    model = Reader(5, is_tagger=True)
    loss = nn.CrossEntropyLoss(ignore_index=0)

    def step() -> Tensor:
        x = padded(texts(16))
        tags = (x % 4 + 1).masked_fill(x == PAD, 0)
        value: Tensor = loss(model(x, (x != PAD).long()).transpose(1, 2), tags)
        return value

    return model, step


def tags_some_tokens() -> tuple[nn.Module, Step]:
    model = Reader(4, is_tagger=True)

    def step() -> Tensor:
        x = padded(texts(16))
        is_other = (x == PAD) | (torch.rand(x.shape) < 0.3)
        labels = (x % 4).masked_fill(is_other, -100)
        return flat(model(x, (x != PAD).long()), labels)

    return model, step


class Spells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.GRU(8, WIDTH, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * WIDTH, 12)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.head(self.inside(x)[0]), -1)


def spells() -> tuple[nn.Module, Step]:
    model, loss = Spells(), nn.CTCLoss(zero_infinity=True)

    def step() -> Tensor:
        targets = torch.randint(1, 12, (N, 6))
        sound = F.one_hot(targets.repeat_interleave(4, 1), 12)[..., :8].float()
        found = model(sound + 0.1 * torch.randn_like(sound))
        lengths = torch.full((N,), 24), torch.full((N,), 6)
        value: Tensor = loss(found.transpose(0, 1), targets, *lengths)
        return value

    return model, step


class PackedClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
        self.cell = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.tokens(x), lengths, batch_first=True, enforce_sorted=False
        )
        scores: Tensor = self.head(self.cell(packed)[1][0][-1])
        return scores


def classifies_packed_texts() -> tuple[nn.Module, Step]:
    model = PackedClassifier()

    def step() -> Tensor:
        rows = texts(16)
        x, lengths = padded(rows), torch.tensor([len(each) for each in rows])
        labels = x[torch.arange(16), lengths - 1] % 3
        return F.cross_entropy(model(x, lengths), labels)

    return model, step


def names_by_a_window() -> tuple[nn.Module, Step]:
    """The next character by the last three."""
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 8), nn.Flatten(), nn.Linear(24, 32), nn.Tanh()
    )
    model.append(nn.Linear(32, VOCABULARY))

    def step() -> Tensor:
        text = full(32, 4)
        return F.cross_entropy(model(text[:, :3]), text[:, 3])

    return model, step


def some_samples_have_no_label() -> tuple[nn.Module, Step]:
    """Class 0 is "unknown", as most pixels of a scene are."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))

    def step() -> Tensor:
        x = torch.randn(32, 8)
        labels = x[:, :5].argmax(1) + 1
        labels[torch.rand(32) < 0.7] = 0
        return F.cross_entropy(model(x), labels, ignore_index=0)

    return model, step


PROGRAMS: tuple[Program, ...] = (
    nano_gpt,
    sliced_outside,
    padded_texts_that_end,
    loss_masked_by_hand,
    classes_weighted,
    padding_is_the_end_and_counts_once,
    prefixes,
    packed_documents,
    alibi_in_a_window,
    guesses_masked_tokens,
    diffuses_tokens,
    restores_a_text,
    characters_with_a_state,
    translates,
    shifts_inside,
    classifies_padded_texts,
    tags_tokens,
    tags_some_tokens,
    spells,
    classifies_packed_texts,
    names_by_a_window,
    some_samples_have_no_label,
)


def accused(run: Path, program: Program, n_steps: int = 55) -> list[str]:
    """Train; return what the rules say at the end."""
    torch.manual_seed(0)
    model, step = program()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with td.watch(model, out=run, probes=True, min_free_bytes=0):
        for _ in range(n_steps):
            optimizer.zero_grad()
            step().backward()
            optimizer.step()
    findings = check(run, RULES, record=False).findings
    return [f"{each.rule}: {each.message}" for each in findings]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_sound_program_is_not_accused(run_dir: Path, program: Program) -> None:
    assert accused(run_dir, program) == []
