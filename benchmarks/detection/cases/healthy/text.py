"""Healthy models of text."""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.optim import Adam, AdamW, Optimizer, SparseAdam
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)

from benchmarks.detection.kit.case import first, second
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    SOURCES,
    Split,
    encode,
    lines_of_code,
    padded,
    source,
    text,
    windows,
)
from benchmarks.detection.kit.loops import Loop, Probe, descend, fell, mean
from benchmarks.detection.kit.models import CharacterModel, CharacterTransformer
from benchmarks.detection.kit.training import Training

LENGTH = 24


def learned(p: Probe) -> bool:
    """The loss has come down by a quarter."""
    return sum(p.losses[-10:]) < 7.5 * p.losses[0]


def guess_characters(
    t: Training,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    n_steps: int = 120,
    schedule: LRScheduler | None = None,
) -> None:
    """Train a model of characters on windows of text."""
    stream = text()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        return windows(stream, t.draw(len(stream) - LENGTH - 1, 32), LENGTH)

    some = windows(stream, torch.arange(0, 640, 40), LENGTH)
    split = Split(*some, *some)
    loop = Loop(
        t, model, split, optimizer, batches=batches, clip=1.0, schedule=schedule
    )
    loop.run(n_steps, learned=learned)


@first.healthy
def characters_by_lstm(t: Training) -> None:
    """An LSTM that guesses the next character."""
    model = CharacterModel(N_CHARACTERS, 64)
    guess_characters(t, model, Adam(model.parameters(), 5e-3))


@first.healthy
def characters_by_transformer(t: Training) -> None:
    """Attention to what came before, with a warm-up."""
    model = CharacterTransformer(N_CHARACTERS, LENGTH)
    adam = AdamW(model.parameters(), 3e-3)
    warm = LambdaLR(adam, lambda s: min(1.0, (s + 1) / 20))
    guess_characters(t, model, adam, schedule=warm, n_steps=180)


@first.healthy
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
        return self.head(torch.relu(self.norm(self.hidden(x.sum(1) / n))))


def letters(line: Tensor) -> str:
    """The characters of a line again."""
    return "".join(chr(int(number) + 29) for number in line if number > 2)


@first.healthy
def padded_bags(t: Training) -> None:
    """A third of the tokens is padding, which has a row of its own that stays zero."""
    lines = [line for line in lines_of_code(8) if len(line) <= 40]
    rows = padded(lines, 40)
    targets = torch.tensor([int("(" in letters(line)) for line in lines])
    model = Indented()
    adam = Adam(model.parameters(), 1e-2)
    split = Split(rows[200:], targets[200:], rows[:200], targets[:200])
    loop = Loop(t, model, split, adam)
    loop.run(150, learned=0.75)


class CausalBlock(nn.Module):
    """Attention to what came before, and a feed-forward part, as in nanoGPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.c_proj(seen.transpose(1, 2).reshape(n, length, width)))
        return x + self.drop(self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    """Head and embedding share their weights."""

    def __init__(self, length: int = 48, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.wte = nn.Embedding(N_CHARACTERS, width)
        self.wpe = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(CausalBlock(width, 4) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, N_CHARACTERS, bias=False)
        self.apply(self._init)
        for block in self.blocks:
            out = block.c_proj.weight  # type: ignore[union-attr]
            nn.init.normal_(out, std=0.02 / (2 * depth) ** 0.5)  # type: ignore[arg-type]
        self.lm_head.weight = self.wte.weight

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@second.healthy
def nano_gpt(t: Training) -> None:
    """GPT with tied weights, written and trained as nanoGPT does.

    AdamW with (0.9, 0.95), decay of matrices only, clipping at 1, warm-up, and a cosine
    to a tenth. The loss is a function, not a module.
    """
    stream, model = text(), GPT()
    split = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": split, "weight_decay": 0.1},
        {"params": rest, "weight_decay": 0.0},
    ]
    optimizer = AdamW(groups, 3e-3, betas=(0.9, 0.95))
    rise = LinearLR(optimizer, 0.02, total_iters=25)
    fall = CosineAnnealingLR(optimizer, 275, eta_min=3e-4)
    schedule = SequentialLR(optimizer, [rise, fall], [25])
    t.watch(model)
    losses = []
    for _ in t.steps(300):
        x, y = windows(stream, t.draw(len(stream) - 50, 16), 48)
        loss = nn.functional.cross_entropy(
            model(x).view(-1, N_CHARACTERS), y.reshape(-1)
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    t.learned(fell(t, losses, 0.6))


class Stateful(nn.Module):
    """Two layers of GRU that go on where they have stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 24)
        self.gru = nn.GRU(24, 64, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(64, N_CHARACTERS)

    def forward(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        out, state = self.gru(self.embedding(tokens), state)
        return self.head(out).transpose(1, 2), state


@second.healthy
def gru_truncated_bptt(t: Training) -> None:
    """Text in order, state carried over and detached, gradients clipped at 0.5."""
    model, criterion = Stateful(), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 4e-3)
    t.watch(model, criterion)
    n_rows, length = 16, 24
    stream = text()
    rows = stream[: len(stream) // n_rows * n_rows].view(n_rows, -1)
    state, losses = None, []
    for step in t.steps(250):
        at = step * length % (rows.shape[1] - length - 1)
        logits, state = model(rows[:, at : at + length], state)
        state = state.detach()
        loss = criterion(logits, rows[:, at + 1 : at + length + 1])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(float(loss.detach()))
    t.learned(fell(t, losses, 0.72))


KINDS = (tokenize.STRING, tokenize.COMMENT, tokenize.NUMBER, tokenize.OP, tokenize.NAME)


@cache
def tagged() -> list[tuple[Tensor, Tensor]]:
    """Lines of code, and what kind of token each character belongs to; 0 is none."""
    found = []
    for name in SOURCES:
        lines = source(name).splitlines()
        tags = [torch.zeros(len(line), dtype=torch.int64) for line in lines]
        for token in tokenize.generate_tokens(io.StringIO(source(name)).readline):
            if token.type in KINDS and token.start[0] == token.end[0]:
                row = tags[token.start[0] - 1]
                row[token.start[1] : token.end[1]] = 1 + KINDS.index(token.type)
        found += [
            (encode(line), tag)
            for line, tag in zip(lines, tags, strict=True)
            if 8 <= len(line) <= 72 and tag.any()
        ]
    return found


class Tagger(nn.Module):
    """A bidirectional LSTM over sequences of their own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, len(KINDS) + 1)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(out).transpose(1, 2)


@second.healthy
def bilstm_tagger(t: Training) -> None:
    """Which kind of token is each character of? Padded, packed, padding ignored."""
    rows = tagged()
    model, criterion = Tagger(), nn.CrossEntropyLoss(ignore_index=-100)
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model, criterion)
    batches = t.epochs(len(rows), 16, drop_last=True)
    right = []
    for _ in t.steps(200):
        batch = [rows[i] for i in next(batches).tolist()]
        x = pad_sequence([a for a, _ in batch], batch_first=True)
        y = pad_sequence([b for _, b in batch], batch_first=True, padding_value=-100)
        logits = model(x, torch.tensor([len(a) for a, _ in batch]))
        descend(optimizer, criterion(logits, y))
        right.append(float((logits.argmax(1) == y)[y >= 0].float().mean()))
    t.note(right=mean(right[-20:]))
    t.learned(mean(right[-20:]) > 0.85)


class Reverser(nn.Module):
    """GRU encoder, GRU decoder with attention, taught by the right answer."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, width, padding_idx=0)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(2 * width, N_CHARACTERS)

    def forward(self, asked: Tensor, so_far: Tensor) -> Tensor:
        seen, state = self.encoder(self.embedding(asked))
        said, _ = self.decoder(self.embedding(so_far), state)
        score = self.query(said) @ seen.transpose(1, 2)
        score = score.masked_fill((asked == 0)[:, None], -1e9)
        context = score.softmax(-1) @ seen
        return self.head(torch.cat([said, context], -1)).transpose(1, 2)


@cache
def words() -> list[str]:
    """All words of the sources in order, with repetition."""
    return re.findall(r"[A-Za-z_]{3,10}", "\n".join(map(source, SOURCES)))


@second.healthy
def seq2seq_reverses_words(t: Training) -> None:
    """Words backwards, in batches of which about 40 % are padding."""
    known = [encode(word) for word in sorted(set(words()))]
    model, criterion = Reverser(), nn.CrossEntropyLoss(ignore_index=0)
    optimizer = Adam(model.parameters(), 4e-3)
    t.watch(model, criterion)
    batches = t.epochs(len(known), 32)
    losses = []
    for _ in t.steps(300):
        batch = [known[i] for i in next(batches).tolist()]
        x = pad_sequence(batch, batch_first=True)
        y = pad_sequence([row.flip(0) for row in batch], batch_first=True)
        so_far = nn.functional.pad(y[:, :-1], (1, 0), value=1)
        optimizer.zero_grad()
        loss = criterion(model(x, so_far), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    t.learned(fell(t, losses, 0.55))


class TextCNN(nn.Module):
    """Windows of three and five characters, and the strongest of each (Kim 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 24, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(24, 32, k, padding=k // 2) for k in (3, 5))
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(64, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        pooled = [conv(x).relu().amax(2) for conv in self.convs]
        return self.head(self.drop(torch.cat(pooled, 1)))


@cache
def prose_or_code() -> tuple[list[Tensor], Tensor]:
    """Lines, and whether each is of a long string or a comment: every fourth."""
    prose, code = [], []
    for name in SOURCES:
        lines = source(name).splitlines()
        is_prose = set()
        for token in tokenize.generate_tokens(io.StringIO(source(name)).readline):
            long = token.type == tokenize.STRING and token.start[0] < token.end[0]
            if long or (token.type == tokenize.COMMENT):
                is_prose.update(range(token.start[0] - 1, token.end[0]))
        for i, line in enumerate(lines):
            if len(line.strip()) > 8:
                (prose if i in is_prose else code).append(encode(line[:60]))
    prose = prose[: len(code) // 3]
    return code + prose, torch.tensor([0] * len(code) + [1] * len(prose))


@second.healthy
def text_cnn_three_to_one(t: Training) -> None:
    """Is a line of code, or of a docstring or comment? Padded; three to one."""
    rows, prose = prose_or_code()
    model, criterion = TextCNN(), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    right = []
    for _, batch in t.batches(250, len(rows), 32):
        x = pad_sequence([rows[i] for i in batch.tolist()], batch_first=True)
        logits = model(x)
        descend(optimizer, criterion(logits, prose[batch]))
        right.append(float((logits.argmax(1) == prose[batch]).float().mean()))
    share = float(prose.float().mean())
    t.note(share=share, right=mean(right[-20:]))
    t.learned(mean(right[-20:]) > 0.85)


@cache
def numbered() -> tuple[Tensor, int]:
    """The words as numbers, the most frequent first; and how many there are."""
    ranks = {word: i for i, (word, _) in enumerate(Counter(words()).most_common())}
    return torch.tensor([ranks[word] for word in words()]), len(ranks)


class SkipGram(nn.Module):
    """Word vectors with sparse gradients; the second table begins at zero."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inside = nn.Embedding(n, 24, sparse=True)
        self.outside = nn.Embedding(n, 24, sparse=True)
        nn.init.uniform_(self.inside.weight, -0.5 / 24, 0.5 / 24)
        nn.init.zeros_(self.outside.weight)

    def forward(self, centre: Tensor, others: Tensor) -> Tensor:
        return (self.inside(centre)[:, None] * self.outside(others)).sum(-1)


@second.healthy
def word2vec_sparse(t: Training) -> None:
    """Skip-gram with negative samples (Mikolov 2013) over words of a Zipf law."""
    stream, n = numbered()
    model, criterion = SkipGram(n), nn.BCEWithLogitsLoss()
    optimizer = SparseAdam(model.parameters(), 0.01)
    t.watch(model, criterion)
    often = torch.bincount(stream, minlength=n).float() ** 0.75
    truth = torch.zeros(256, 6)
    truth[:, 0] = 1
    losses = []
    for _ in t.steps(300):
        at = t.draw(len(stream) - 4, 256) + 2
        near = at + torch.tensor([-2, -1, 1, 2])[t.draw(4, 256)]
        wrong = torch.multinomial(often, 256 * 5, True, generator=t.order).view(256, 5)
        others = torch.cat([stream[near][:, None], wrong], 1)
        losses.append(descend(optimizer, criterion(model(stream[at], others), truth)))
    t.learned(fell(t, losses, 0.65))
