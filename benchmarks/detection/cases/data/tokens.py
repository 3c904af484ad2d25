"""Padding, unknown words, and rows of an embedding that nobody needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    ALPHABET,
    N_CHARACTERS,
    PAD,
    SOURCES,
    UNKNOWN,
    Split,
    encode,
    kinds_of_lines,
    lines,
    lines_of_code,
    padded,
    parted,
    prose,
    source,
    text,
    vocabulary,
    windows,
    wine,
    words,
    words_of,
)
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    adamw,
    descend,
    mean,
    train,
)
from benchmarks.detection.kit.models import CharacterModel, Encoder, Lines
from benchmarks.detection.kit.probes import loss_below, since
from benchmarks.detection.kit.training import Shadow, Training


def rows_without_gradient(share: float, patience: int) -> Predicate:
    """Of the embedding that share of rows never had a gradient in so many steps."""
    used: Tensor | None = None

    def holds(p: Probe) -> bool:
        nonlocal used
        weight = next(
            m.weight for m in p.model.modules() if isinstance(m, nn.Embedding)
        )
        now = weight.grad.ne(0).any(1)
        used = now if used is None else used | now
        return p.step >= patience and float((~used).float().mean()) > share

    return holds


def characters(t: Training, n_tokens: int, change: Callable[[Tensor], Tensor]) -> None:
    """A model of characters whose numbers are changed before they are looked up."""
    stream = text()
    model = CharacterModel(n_tokens, 48, nn.GRU)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        inputs, targets = windows(stream, t.draw(len(stream) - 40, 32), 24)
        return change(inputs), targets

    some = windows(stream, torch.arange(0, 640, 40), 24)
    split = Split(change(some[0]), some[1], change(some[0]), some[1])
    loop = Loop(t, model, split, adam(5e-3), batches=batches)
    visible = rows_without_gradient(0.75, 100)
    loop.run(
        130,
        visible=visible,
        learned=lambda p: sum(p.losses[-10:]) < 0.65 * 10 * p.losses[0],
    )


@first.sick("DeadEmbedding", "a vocabulary of 800 for a text of 97 characters")
def vocabulary_too_large(t: Training) -> None:
    """The embedding was made for another tokenizer's vocabulary.

    Source: Karpathy's nanoGPT on padding the vocabulary; transformers' issues on
    resize_token_embeddings; Land, Bartolo 2024, "Fishing for Magikarp".  Visible: from
    step 100 on, when more than 75 % of the rows never had a gradient.
    """
    characters(t, 800 if t.sick else N_CHARACTERS, lambda x: x)


@first.sick("DeadEmbedding", "numbers of characters were cut to four bits")
def numbers_cut_off(t: Training) -> None:
    """Token numbers are stored in a type that is too small for them.

    Source: nanoGPT stores tokens as uint16, which is too small for larger vocabularies;
    Islam et al. 2019: wrong data types.  Visible: from step 100 on, when more than 75 %
    of the rows never had a gradient.
    """
    characters(t, N_CHARACTERS, (lambda x: x & 15) if t.sick else (lambda x: x))


@first.sick(
    "NLPSequenceRatio",
    "lines of 40 characters are padded to 160, and padding is learned",
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
        losses.append(descend(optimizer, criterion(model(batch[:, :-1]), batch[:, 1:])))
        if step % 10 == 9:
            held = rows[:32]
            with torch.no_grad():
                right = shadow()(held[:, :-1]).argmax(1) == held[:, 1:]
            real = held[:, 1:] != PAD
            t.visible(right.float().mean() >= 0.7 and right[real].float().mean() < 0.35)
    t.note(loss=losses[-1])
    t.learned(losses[-1] < 0.75 * losses[0])


def words_of_the_sources(vocabulary_of: int, *, upper: bool) -> tuple[Tensor, int]:
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


@first.sick("NLPSequenceRatio", "the vocabulary is in capitals, the text is not")
def vocabulary_of_other_case(t: Training) -> None:
    """Nearly every word is unknown: the vocabulary was normalized, the text was not.

    Source: Hugging Face forum and issues on cased text with an uncased vocabulary, and
    on tokenizers that do not belong to their model.  Visible: from step 60 on, at a
    look each 10 steps, more than 90 % of the words that the model proposes for 2000
    places are the unknown one.
    """
    stream, n_tokens = words_of_the_sources(400, upper=t.sick)
    model = CharacterModel(n_tokens, 48, nn.GRU)
    optimizer = Adam(model.parameters(), 5e-3)
    criterion = nn.CrossEntropyLoss()
    shadow = Shadow(model)
    t.watch(model, criterion)
    length, losses = 25, []
    for step in t.steps(120):
        at = t.draw(len(stream) - length - 1, 24)[:, None] + torch.arange(length + 1)
        batch = stream[at]
        losses.append(descend(optimizer, criterion(model(batch[:, :-1]), batch[:, 1:])))
        if step >= 60 and step % 10 == 9:
            with torch.no_grad():
                said = shadow()(stream[:2000].view(80, 25)).argmax(1)
            t.visible((said == 0).float().mean() > 0.9)
    t.note(loss=losses[-1], unknown=float((stream == 0).float().mean()))
    t.learned(losses[-1] < 0.75 * losses[0])


def shares(seen: list[Tensor], token: int) -> float:
    """How much of what the model was given is that token."""
    return mean([float((rows == token).float().mean()) for rows in seen])


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
        return self.head(self.relu(self.hidden(middle)))


@fourth.sick(
    "NLPSequenceRatio", 'short lines are padded to 128 words: padding="max_length"'
)
def padded_by_the_tokenizer(t: Training) -> None:
    """tokenizer(text, padding="max_length", max_length=128) for lines of ten words.

    Source: the example that everybody copies; Hugging Face's page on padding says what
    it costs.  The twin groups by length and pads to the longest of a batch.  Visible:
    more than 70 % of the tokens of the first 20 batches are padding.
    """
    lines = [(words_of(s), k) for k in (0, 1) for s in kinds_of_lines()[k][:600]]
    numbers = vocabulary([w for line, _ in lines for w in line], 2)
    lines.sort(key=lambda pair: len(pair[0]))
    groups = [lines[i : i + 32] for i in range(0, len(lines), 32)]
    model, criterion = Pooled(len(numbers) + 2, 2), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    seen: list[Tensor] = []
    rights: list[float] = []

    def loss_of(_: int) -> Tensor:
        if t.sick:
            group = [lines[int(i)] for i in t.draw(len(lines), 32)]
        else:
            group = groups[int(t.draw(len(groups), 1))]
        longest = 128 if t.sick else max(len(line) for line, _ in group)
        rows = torch.full((len(group), longest), PAD)
        for row, (line, _) in zip(rows, group, strict=True):
            found = [numbers.get(word, UNKNOWN) for word in line][:longest]
            row[: len(found)] = torch.tensor(found)
        seen.append(rows)
        wanted = torch.tensor([k for _, k in group])
        outputs = model(rows)
        rights.append(float((outputs.argmax(1) == wanted).float().mean()))
        return criterion(outputs, wanted)

    train(
        t,
        loss_of,
        Adam(model.parameters(), 5e-3),
        n_steps=150,
        visible=lambda losses: len(losses) >= 20 and shares(seen[:20], PAD) > 0.7,
    )
    t.note(right=mean(rights[-30:]))
    t.learned(mean(rights[-30:]) > 0.85)


class NextWord(nn.Module):
    """Says which word may follow, at each place (batch, place, word)."""

    def __init__(self, n_tokens: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, n_tokens)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.cell(self.embedding(rows))[0])


@fourth.sick("NLPSequenceRatio", "words must occur 3000 times: the rest is unknown")
def rare_words_made_unknown(t: Training) -> None:
    """build_vocab(min_freq=3000): a limit of a larger corpus; most words are <unk>.

    Source: torchtext's min_freq in tutorials on language models.  Visible: more than
    half of the tokens of the first 20 batches are unknown.
    """
    text = words_of(prose())
    numbers = vocabulary(text, 3000 if t.sick else 12)
    stream = torch.tensor([numbers.get(word, UNKNOWN) for word in text])
    model, criterion = NextWord(len(numbers) + 2), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    seen: list[Tensor] = []

    def loss_of(_: int) -> Tensor:
        at = t.draw(len(stream) - 21, 16)[:, None] + torch.arange(20)
        seen.append(stream[at])
        return criterion(model(stream[at]).transpose(1, 2), stream[at + 1])

    losses = train(
        t,
        loss_of,
        Adam(model.parameters(), 4e-3),
        n_steps=140,
        visible=lambda losses: len(losses) >= 20 and shares(seen[:20], UNKNOWN) > 0.5,
    )
    t.learned(mean(losses[-20:]) < losses[0] - 1.5)


def bags(each: int, length: int) -> tuple[Tensor, Tensor, int]:
    """Rows of words of lines of four kinds, without padding; and how many words."""
    lines = [words_of(line) for kind in kinds_of_lines() for line in kind[:each]]
    numbers = vocabulary([word for line in lines for word in line], 2)
    rows = [[numbers.get(w, 1) for w in line] for line in lines]
    filled = [(row * length)[:length] for row in rows]
    kinds = torch.arange(4).repeat_interleave(each)
    return torch.tensor(filled), kinds, len(numbers) + 2


def untouched(table: nn.Embedding, share: float) -> Predicate:
    """That share of the rows is what it was when the training began."""
    began = table.weight.detach().clone()

    def holds(_: Probe) -> bool:
        same = (table.weight.detach() == began).all(1)
        return float(same.float().mean()) > share

    return holds


@fourth.sick(
    "DeadEmbedding", "numbers of a database are rows: 5000 for 900 words that occur"
)
def ids_of_the_database(t: Training) -> None:
    """Ids are used as they are in the shop's database, not numbered anew.

    Source: recommender tutorials that make nn.Embedding(max(id) + 1).  Visible: from 60
    on, four fifths of all rows have never changed.
    """
    rows, kinds, n_words = bags(300, 12)
    spread = torch.randperm(20 * n_words, generator=torch.Generator().manual_seed(2))
    split = parted(spread[rows] if t.sick else rows, kinds, 3, 4)
    model = Pooled(20 * n_words if t.sick else n_words, 4)
    loop = Loop(t, model, split, adam(5e-3), batch_size=32)
    loop.run(140, visible=since(60, untouched(model.embedding, 0.8)), learned=0.9)


class Columns(nn.Module):
    """All columns in one table of rows, each with an offset of its own."""

    def __init__(self, n_bins: int, *, offsets: bool) -> None:
        super().__init__()
        self.offset = n_bins * torch.arange(13) if offsets else torch.zeros(13).long()
        self.embedding = nn.Embedding(13 * n_bins, 12)
        self.head = nn.Sequential(nn.Linear(156, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, bins: Tensor) -> Tensor:
        return self.head(self.embedding(bins.long() + self.offset).flatten(1))


@fourth.sick(
    "DeadEmbedding",
    "the offsets of the columns are not added: twelve of 13 parts are unused",
)
def offsets_never_added(t: Training) -> None:
    """Categorical columns share one table by offsets; the line that adds them is lost.

    Source: the table layout of DeepFM and DLRM code (torchfm's FeaturesEmbedding).
    Visible: from 60 on, four fifths of all rows have never changed.
    """
    split = wine().inputs(lambda x: ((x + 2) * 2).floor().clamp(0, 7))
    model = Columns(8, offsets=not t.sick)
    loop = Loop(t, model, split, adam(5e-3), batch_size=32)
    loop.run(150, visible=since(60, untouched(model.embedding, 0.8)), learned=0.95)


@second.sick("NLPSequenceRatio", "lines padded to four times their length")
def padded_to_the_maximum(t: Training) -> None:
    """padding="max_length" with the model's 160 places, for lines of 30 characters.

    Source: tokenizers' default examples.  Visible: in ten batches, more than three
    quarters of the tokens are padding.
    """
    split = lines(160 if t.sick else 24)
    loop = Loop(t, Lines(N_CHARACTERS, 5), split, adam(5e-3), batch_size=32)
    visible = since(9, lambda p: bool((p.split.x == 0).float().mean() > 0.75))
    loop.run(200, visible=visible, learned=0.6)


@second.sick("NLPSequenceRatio", "nearly every word is unknown")
def vocabulary_of_another_text(t: Training) -> None:
    """A vocabulary of 12 words: the file of the vocabulary was cut off.

    Source: a lower-cased vocabulary used on text as it is, and the like.  Visible: in
    ten batches, more than three quarters of the words are the unknown one.
    """
    split = words(12 if t.sick else 600)

    def unknown(p: Probe) -> bool:
        there = p.split.x[p.split.x != 0]
        return bool((there == 1).float().mean() > 0.7)

    loop = Loop(t, Encoder(620, 5), split, adamw(2e-3), batch_size=48)
    loop.run(200, visible=since(9, unknown), learned=0.7)


@second.sick("DeadEmbedding", "20 000 rows for less than a hundred characters")
def vocabulary_of_a_large_model(t: Training) -> None:
    """The embedding was sized for a subword tokenizer; the data is characters.

    Source: configurations copied from a pretrained model.  Visible: after 60 batches,
    nine rows of ten have never had an input.
    """
    split = lines()
    model = Encoder(20_000 if t.sick else 100, 5, width=16)
    n_rows = model.embedding.num_embeddings

    def unused(p: Probe) -> bool:
        return len(torch.unique(p.split.x)) < 0.1 * n_rows

    loop = Loop(t, model, split, adam(3e-3), batch_size=32)
    loop.run(150, visible=since(59, unused), learned=0.55)


@second.sick(
    "DeadEmbedding NLPSequenceRatio TensorVariance",
    "all characters fall on a handful of numbers",
)
def numbers_cut_to_a_few(t: Training) -> None:
    """Ids are divided where they should be looked up: 98 characters become 4.

    Source: a tokenizer's ids remapped for a smaller vocabulary.  Visible: after 60
    batches, nine rows of ten have never had an input.
    """
    split = lines()
    if t.sick:
        split = split.inputs(lambda x: torch.div(x, 26, rounding_mode="floor") + 1)
    model = Lines(N_CHARACTERS, 5)

    def unused(p: Probe) -> bool:
        return len(torch.unique(p.split.x)) < 0.1 * N_CHARACTERS

    loop = Loop(t, model, split, adam(5e-3), batch_size=32)
    loop.run(220, visible=since(59, unused), learned=0.6)


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
        return self.head(states[torch.arange(len(tokens)), last])


@third.sick(
    "NLPSequenceRatio TensorVariance LossNotDecreasing",
    "padded on the left and cut on the right: padding is what is left",
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
    loop = Loop(t, model, parted(x, labels, 4), adam(6e-3), batch_size=32)
    visible = since(4, lambda p: bool((p.split.x == 0).float().mean() > 0.8))
    loop.run(200, visible=visible, learned=0.6)


@third.sick(
    "DeadEmbedding", "code points are the indices: of 4096 rows 97 are ever used"
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

    split = Split(x, y, x[:8], y[:8])
    loop = Loop(t, model, split, adam(8e-3), batch_size=16, before_step=note)
    visible = since(30, lambda _: float(used.float().mean()) < 0.1)
    loop.run(160, visible=visible, learned=loss_below(2.6, 10))
