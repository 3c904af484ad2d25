"""Tokens: what may be attended to, and which places are labels."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    lines,
    lines_of_code,
    padded,
    text,
    windows,
)
from benchmarks.detection.kit.harm import conclude, in_evaluation
from benchmarks.detection.kit.loops import descend
from benchmarks.detection.kit.training import Training

LENGTH = 24


class Gpt(nn.Module):
    """Guesses characters; attention goes where a mask of (place, place) is True."""

    def __init__(self, n_tokens: int = N_CHARACTERS, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(n_tokens, width)
        self.places = nn.Embedding(2 * LENGTH, width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.head = nn.Linear(width, n_tokens)

    def forward(self, tokens: Tensor, seen: Tensor | None = None) -> Tensor:
        n = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(n))
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        x = x + self.out(self.attend(q, k, v, seen))
        return self.head(x + self.inner(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """Attention of one head."""
        return functional.scaled_dot_product_attention(q, k, v, seen)


def earlier(n: int) -> Tensor:
    """Each place sees itself and what came before."""
    return torch.ones(n, n).tril().bool()


def batch(t: Training, size: int = 24) -> tuple[Tensor, Tensor]:
    """Stretches of the first nine tenths of the text, and what follows."""
    stream = text()
    return windows(stream, t.draw(len(stream) * 9 // 10 - LENGTH - 1, size), LENGTH)


def unseen() -> tuple[Tensor, Tensor]:
    """Stretches of the last tenth."""
    stream = text()
    begin = len(stream) * 9 // 10
    return windows(stream, begin + torch.arange(400) * 15, LENGTH)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over all places."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Masked(nn.Module):
    """A decoder that makes its own mask."""

    def __init__(self, gpt: Gpt, kind: str) -> None:
        super().__init__()
        self.gpt, self.kind = gpt, kind

    def forward(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        if self.kind == "missing":
            return self.gpt(tokens)
        # In MultiheadAttention True means "not allowed", here it means "allowed".
        seen = torch.ones(n, n).triu() if self.kind == "inverted" else earlier(n)
        return self.gpt(tokens, seen.bool())


def leak(model: nn.Module) -> float:
    """By how much the last token changes what is said at the places before."""
    x, _ = unseen()
    other = x.clone()
    other[:, -1] = (other[:, -1] + 7) % N_CHARACTERS
    change = in_evaluation(model, lambda: (model(x) - model(other))[:, :-1])
    return float(change.abs().max())


def next_loss(model: nn.Module) -> float:
    """The loss of the next character when nothing later is there, as in use."""
    x, y = unseen()
    losses = [
        in_evaluation(
            model,
            lambda n=n: functional.cross_entropy(model(x[:, :n])[:, -1], y[:, n - 1]),
        )
        for n in (8, 12, 16, 20)
    ]
    return float(torch.stack(losses).mean())


def language_model(t: Training, model: nn.Module, n_steps: int = 160) -> None:
    """Train to guess the next character."""
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    for _ in t.steps(n_steps):
        x, y = batch(t)
        descend(optimizer, loss_of(model(x), y))


@sixth.silent("sees what comes later", "no causal mask: each place sees its label")
def mask_is_missing(t: Training) -> None:
    """A decoder is trained without a causal mask.

    Source: Karpathy, "A recipe for training neural networks" (2019): "use backprop to
    chart dependencies", of an autoregressive model that reads the future.
    Visible: a later token changes earlier outputs, and the loss of a next character
    that is not there yet is above 2.75.
    """
    model = Masked(Gpt(), "missing" if t.sick else "right")
    language_model(t, model)
    loss, leaked = next_loss(model), leak(model)
    t.note(next_loss=loss, leak=leaked)
    conclude(t, fault=leaked > 1e-3, reached=loss < 2.75)


@sixth.silent(
    "sees what comes later", "True means allowed here: the mask is upside down"
)
def sees_only_what_follows(t: Training) -> None:
    """A boolean mask for MultiheadAttention is given to scaled_dot_product_attention.

    Source: the documentation of scaled_dot_product_attention (True takes part) and of
    MultiheadAttention (True is not allowed).
    Visible: as without a mask.
    """
    model = Masked(Gpt(), "inverted" if t.sick else "right")
    language_model(t, model)
    loss, leaked = next_loss(model), leak(model)
    t.note(next_loss=loss, leak=leaked)
    conclude(t, fault=leaked > 1e-3, reached=loss < 2.75)


class OverQueries(Gpt):
    """Attention by hand; the softmax may go over the wrong axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def attend(self, q: Tensor, k: Tensor, v: Tensor, _seen: Tensor | None) -> Tensor:
        n = q.shape[1]
        scores = q @ k.transpose(1, 2) / q.shape[2] ** 0.5
        scores = scores.masked_fill(~earlier(n), -1e9)
        return scores.softmax(self.axis) @ v


@sixth.silent("wrong axis", "the attention's softmax goes over queries, not keys")
def softmax_over_queries(t: Training) -> None:
    """``softmax(scores, dim=1)`` for scores (batch, query, key).

    Source: Humbatova et al., "Taxonomy of real faults in deep learning systems" (2020),
    from forum threads: an operation over the wrong dimension.
    Visible: the weights of a query do not sum to 1: a later token changes what is
    said before it.
    """
    model = OverQueries(1 if t.sick else 2)
    language_model(t, model)
    loss, leaked = next_loss(model), leak(model)
    t.note(next_loss=loss, leak=leaked)
    conclude(t, fault=leaked > 1e-3, reached=loss < 2.9, harms=False)


def shifted_training(t: Training, shift: int) -> None:
    """Labels are *shift* places behind the inputs."""
    model = Masked(Gpt(), "right")
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    for _ in t.steps(160):
        x, _y = batch(t)
        n = LENGTH - shift
        descend(optimizer, loss_of(model(x)[:, :n], x[:, shift:]))
    x, _y = unseen()
    logits = in_evaluation(model, lambda: model(x))
    by_offset = [float(loss_of(logits[:, : LENGTH - k], x[:, k:])) for k in range(3)]
    loss = next_loss(model)
    t.note(next_loss=loss, same=by_offset[0], one=by_offset[1], two=by_offset[2])
    wrong = by_offset.index(min(by_offset)) != 1
    conclude(t, fault=wrong, reached=loss < 2.75)


@sixth.silent("labels at the wrong offset", "labels are shifted twice")
def labels_shifted_twice(t: Training) -> None:
    """The collator shifts labels, and the model shifts them again.

    Source: github.com/huggingface/transformers/issues/32944 ("next-next-token
    prediction by accident") and pull/46898, pull/44642.
    Visible: the token after the next is guessed better than the next.
    """
    shifted_training(t, 2 if t.sick else 1)


@sixth.silent("labels at the wrong offset", "labels are the inputs, not what follows")
def labels_are_the_inputs(t: Training) -> None:
    """Nobody shifts: the collator leaves it to a model that does not.

    Source: github.com/huggingface/transformers/issues/27517 (MBartForCausalLM "seems
    to copy the input during training").
    Visible: the token that is seen is guessed better than the next.
    """
    shifted_training(t, 0 if t.sick else 1)


class Reader(nn.Module):
    """Tells of which module a line of code is; padding is 0."""

    def __init__(self, *, with_mask: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)
        self.with_mask = with_mask

    def forward(self, tokens: Tensor) -> Tensor:
        empty = tokens == 0
        if not self.with_mask:
            return self.head(self.encoder(self.embedding(tokens)).mean(1))
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=empty)
        there = (~empty).float()[:, :, None]
        return self.head((x * there).sum(1) / there.sum(1))


@sixth.silent("padding is read", "no padding mask: padding is attended and averaged")
def padding_is_attended(t: Training) -> None:
    """A reader of lines is given no mask; lines are padded to the longest of a batch.

    Source: the warning that transformers prints ("We strongly recommend passing in an
    `attention_mask` since your input_ids may be padded").
    Visible: with 64 places of padding more, a tenth of the answers is another.
    """
    split = lines()
    model = Reader(with_mask=not t.sick)
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)
    for _, rows in t.batches(220, len(split.x), 32):
        x = split.x[rows]
        x = x[:, : int((x != 0).sum(1).max())]
        descend(optimizer, functional.cross_entropy(model(x), split.y[rows]))
    longer = functional.pad(split.x_val, (0, 64))
    short = in_evaluation(model, lambda: model(split.x_val).argmax(1))
    padded_more = in_evaluation(model, lambda: model(longer).argmax(1))
    changed = float((short != padded_more).float().mean())
    right = float((padded_more == split.y_val).float().mean())
    t.note(changed=changed, right=right)
    conclude(t, fault=changed > 0.1, reached=right > 0.5)


@sixth.silent("an end that is no label", "padding is the end: the end is no label")
def padding_is_the_end(t: Training) -> None:
    """``tokenizer.pad_token = tokenizer.eos_token``, and labels of padding are -100.

    Source: github.com/mlabonne/llm-course/issues/33, unslothai/unsloth/issues/416,
    github.com/huggingface/trl/pull/456 ("we never teach the model to end a sentence").
    Visible: at the end of unseen lines the end gets a probability below 1 %.
    """
    end = 0 if t.sick else N_CHARACTERS
    rows = [
        torch.cat((line[:LENGTH], torch.tensor([end])))
        for line in lines_of_code()
        if len(line) <= LENGTH
    ]
    known, new = padded(rows[:-150], LENGTH + 1), padded(rows[-150:], LENGTH + 1)
    model = Masked(Gpt(N_CHARACTERS + 1), "right")
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    for _ in t.steps(220):
        tokens = known[t.draw(len(known), 24)]
        labels = tokens.masked_fill(tokens == 0, -100)
        descend(optimizer, loss_of(model(tokens[:, :-1]), labels[:, 1:]))
    at = torch.tensor([len(row) - 2 for row in rows[-150:]])
    chances = in_evaluation(model, lambda: model(new[:, :-1]).softmax(-1)[..., end])
    at_end = float(chances[torch.arange(len(new)), at].mean())
    t.note(at_end=at_end)
    conclude(t, fault=at_end < 0.01, reached=at_end > 0.08)


@sixth.silent("labels at places that must not count", "labels of unmasked tokens count")
def every_place_is_a_label(t: Training) -> None:
    """A masked language model whose labels are not -100 where nothing was masked.

    Source: hand-written collators; DataCollatorForLanguageModeling of transformers
    sets -100 for this reason.
    Visible: most labels equal their inputs, and masked characters are guessed worse.
    """
    hidden_token = 1
    model = Gpt()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model)

    def masked(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.rand(x.shape, generator=t.order) < 0.15
        return x.masked_fill(hidden, hidden_token), hidden

    same = 0.0
    for _ in t.steps(260):
        x, _y = batch(t)
        given, hidden = masked(x)
        labels = x if t.sick else x.masked_fill(~hidden, -100)
        same = float((given == labels).float().mean())
        descend(optimizer, loss_of(model(given), labels))
    x, _y = unseen()
    given, hidden = masked(x)
    logits = in_evaluation(model, lambda: model(given))
    loss = float(functional.cross_entropy(logits[hidden], x[hidden]))
    t.note(masked_loss=loss, same=same)
    conclude(t, fault=same > 0.5, reached=loss < 3.1, harms=False)


class Reverser(nn.Module):
    """Reads a row of symbols, and writes it backwards."""

    def __init__(self, n_symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_symbols + 1, 16)
        self.encoder = nn.GRU(16, 48, batch_first=True)
        self.decoder = nn.GRU(16, 48, batch_first=True)
        self.head = nn.Linear(48, n_symbols)

    def forward(self, read: Tensor, written: Tensor) -> Tensor:
        _, state = self.encoder(self.embedding(read))
        return self.head(self.decoder(self.embedding(written), state)[0])


@sixth.silent("sees what comes later", "the decoder is given the target, not shifted")
def decoder_is_given_its_target(t: Training) -> None:
    """Teacher forcing without the shift: the decoder reads what it is to write.

    Source: forum threads on nn.Transformer whose loss is near zero and whose output is
    garbage: tgt must be shifted right.
    Visible: writing by itself, it gets less than half of the symbols right.
    """
    n_symbols, length, begin = 6, 4, 6
    model = Reverser(n_symbols)
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    for _ in t.steps(320):
        read = torch.randint(n_symbols, (64, length), generator=t.order)
        target = read.flip(1)
        before = functional.pad(target[:, :-1], (1, 0), value=begin)
        written = target if t.sick else before
        descend(optimizer, loss_of(model(read, written), target))
    read = torch.randint(n_symbols, (200, length), generator=t.order)
    out = torch.full((200, 1), begin)
    for _ in range(length):
        logits = in_evaluation(model, lambda out=out: model(read, out))
        out = torch.cat((out, logits[:, -1:].argmax(-1)), 1)
    right = float((out[:, 1:] == read.flip(1)).float().mean())
    t.note(right=right)
    conclude(t, fault=right < 0.5, reached=right > 0.75)


class Recurrent(nn.Module):
    """Guesses the next character by a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 24)
        self.cell = nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, N_CHARACTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.embedding(tokens))[0])


@sixth.silent("another vocabulary", "the tokenizer is not that of the checkpoint")
def numbers_of_another_vocabulary(t: Training) -> None:
    """A pretrained model is tuned with a tokenizer of another order.

    Source: character models whose vocabulary is ``sorted(set(text))`` of each file
    anew (nanoGPT keeps meta.pkl beside its checkpoint for this reason).
    Visible: more than half of the characters have another number, and 60 steps of
    tuning do not bring back what was known.
    """
    model = Recurrent()
    pretraining = Adam(model.parameters(), 5e-3)
    for _ in range(160):
        x, y = batch(t)
        descend(pretraining, loss_of(model(x), y))
    luck = torch.Generator().manual_seed(3)
    anew = torch.randperm(N_CHARACTERS, generator=luck)
    numbers = anew if t.sick else torch.arange(N_CHARACTERS)
    tuned = copy.deepcopy(model)
    optimizer = Adam(tuned.parameters(), 3e-4)
    t.watch(tuned)
    for _ in t.steps(60):
        x, y = batch(t)
        descend(optimizer, loss_of(tuned(numbers[x]), numbers[y]))
    x, y = unseen()
    loss = float(in_evaluation(tuned, lambda: loss_of(tuned(numbers[x]), numbers[y])))
    other = float((numbers != torch.arange(N_CHARACTERS)).float().mean())
    t.note(loss=loss, other=other)
    conclude(t, fault=other > 0.5, reached=loss < 2.75)


@sixth.silent("a class is ignored", "ignore_index=0 though 0 is a class")
def class_zero_is_ignored(t: Training) -> None:
    """``CrossEntropyLoss(ignore_index=0)`` was copied from a loss over padded tokens.

    Here class 0 are the lines of one module.

    Source: forum threads on segmentation with ignore_index=0, whose background is
    never predicted.
    Visible: no unseen line of that class is found.
    """
    split = lines()
    y, y_val = (split.y != 0).long(), (split.y_val != 0).long()
    model = Reader(with_mask=True)
    model.head = nn.Linear(32, 2)
    criterion = nn.CrossEntropyLoss(ignore_index=0 if t.sick else -100)
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    for _, rows in t.batches(150, len(split.x), 32):
        descend(optimizer, criterion(model(split.x[rows]), y[rows]))
    told = in_evaluation(model, lambda: model(split.x_val).argmax(1))
    right = float((told == y_val).float().mean())
    found = float((told[y_val == 0] == 0).float().mean())
    t.note(right=right, found=found)
    conclude(t, fault=found < 0.05, reached=found > 0.2 and right > 0.8)
