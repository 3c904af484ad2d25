"""Healthy models of lines, photographs and pairs, as they are trained every day."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, NAdam
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.detection.kit.case import fourth
from benchmarks.detection.kit.data import (
    ALPHABET,
    N_CHARACTERS,
    UNKNOWN,
    digits,
    kinds_of_lines,
    parted,
    patches,
    prose,
    rows_of,
    text,
    vocabulary,
    windows,
    words_of,
)
from benchmarks.detection.kit.loops import Loop, adamw, mean, share_right, train
from benchmarks.detection.kit.models import (
    CharacterModel,
    Convolved,
    Recurrent,
    WordTransformer,
    cnn,
    mlp,
)
from benchmarks.detection.kit.training import Training


@fourth.healthy
def language_model_with_tied_weights(t: Training) -> None:
    """A transformer on words of prose; AdamW, warm-up, cosine, clipped gradients."""
    words = words_of(prose())
    numbers = vocabulary(words, 40)
    stream = torch.tensor([numbers.get(word, UNKNOWN) for word in words])
    model, criterion = WordTransformer(len(numbers) + 2, 24, 48), nn.CrossEntropyLoss()
    optimizer = AdamW(model.parameters(), 4e-3, weight_decay=0.05)
    schedule = LambdaLR(
        optimizer,
        lambda k: min((k + 1) / 20, 0.55 + 0.45 * math.cos(math.pi * k / 180)),
    )
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows, wanted = windows(stream, t.draw(len(stream) - 25, 16), 24)
        return criterion(model(rows).transpose(1, 2), wanted)

    losses = train(
        t,
        loss_of,
        optimizer,
        n_steps=180,
        after_backward=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        after_step=lambda _: schedule.step(),
    )
    t.learned(mean(losses[-20:]) < losses[0] - 1.5)


class Tagger(nn.Module):
    """Embedding, bidirectional LSTM, and a linear layer at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 24)
        self.cell = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.cell(self.embedding(rows))[0])


@fourth.healthy
def tagger_of_characters(t: Training) -> None:
    """A bidirectional LSTM says of each character of code of which kind it is."""
    stream = text()
    upper = torch.tensor([c.isupper() for c in ALPHABET])
    letter = torch.tensor([c.isalpha() for c in ALPHABET])
    kind = torch.zeros(N_CHARACTERS, dtype=torch.int64)
    kind[2:] = letter.long() + upper.long()
    before_space = stream[1:] == 2 + ALPHABET.index(" ")
    tags = torch.where(before_space, 3, kind[stream[:-1]])
    model = Tagger()
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    rights: list[float] = []

    def loss_of(_: int) -> Tensor:
        at = t.draw(len(tags) - 32, 24)[:, None] + torch.arange(32)
        said = model(stream[at]).flatten(0, 1)
        rights.append(share_right(said, tags[at].flatten()))
        return criterion(said, tags[at].flatten())

    train(t, loss_of, Adam(model.parameters(), 5e-3), n_steps=130)
    t.note(right=mean(rights[-10:]))
    t.learned(mean(rights[-10:]) > 0.9)


@fourth.healthy
def which_signs_a_line_has(t: Training) -> None:
    """Several labels for each line of code: which of eight signs are in it."""
    lines = kinds_of_lines()[1][:1600]
    signs = "()=.:,[_"
    wanted = torch.tensor([[float(s in line[:40]) for s in signs] for line in lines])
    split = parted(rows_of(lines, 40), wanted, 3, 4)
    model = Convolved(N_CHARACTERS, len(signs), 32)

    criterion = nn.BCEWithLogitsLoss()
    loop = Loop(
        t, model, split, adamw(4e-3), criterion, batch_size=32, validate_every=45
    )
    loop.run(
        180,
        learned=lambda p: (
            float(((p.outputs() > 0) == (p.split.y > 0.5)).float().mean()) > 0.85
        ),
    )


@fourth.healthy
def recurrence_in_bfloat16(t: Training) -> None:
    """A GRU over the lines of an image under autocast to bfloat16."""
    split = digits()
    model, criterion = Recurrent(nn.GRU, 48), nn.CrossEntropyLoss()
    optimizer = AdamW(model.parameters(), 5e-3)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 48)
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = criterion(model(split.x[chosen]), split.y[chosen])
        return loss

    losses = train(t, loss_of, optimizer, n_steps=180)
    t.learned(mean(losses[-20:]) < 0.4)


@fourth.healthy
def four_batches_to_a_step(t: Training) -> None:
    """A character LSTM; four small batches add up to a step, clipped at a norm of 1."""
    stream = text()
    model, criterion = CharacterModel(N_CHARACTERS, 64), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model, criterion)
    losses: list[float] = []
    for _ in t.steps(110):
        optimizer.zero_grad()
        for _part in range(4):
            rows, wanted = windows(stream, t.draw(len(stream) - 33, 6), 32)
            loss = criterion(model(rows), wanted) / 4
            loss.backward()
            losses.append(4 * float(loss.detach()))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    t.note(first_loss=losses[0], last_loss=mean(losses[-20:]))
    t.learned(mean(losses[-20:]) < losses[0] - 1.5)


@fourth.healthy
def averages_are_evaluated(t: Training) -> None:
    """Each step moves an average of the weights, and this is what is evaluated."""
    split = digits()
    model, criterion = cnn(8), nn.CrossEntropyLoss()
    average = copy.deepcopy(model)
    t.watch(model, criterion)

    @torch.no_grad()
    def follow(_: int) -> None:
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 0.05)

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 32)
        return criterion(model(split.x[chosen]), split.y[chosen])

    optimizer = NAdam(model.parameters(), 2e-3)
    train(t, loss_of, optimizer, n_steps=200, after_step=follow)
    with torch.no_grad():
        right = share_right(average(split.x_val), split.y_val)
    t.note(right=right)
    t.learned(right > 0.9)


class Hourglass(nn.Module):
    """Down, down, up, up, with what was there before put beside it (a small U-Net)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Conv2d(3, 12, 3, 1, 1), nn.Conv2d(12, 24, 3, 2, 1)]
        )
        self.middle = nn.Conv2d(24, 24, 3, 1, 1)
        self.norm = nn.GroupNorm(4, 24)
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.out = nn.Conv2d(24, 3, 3, 1, 1)
        self.act = nn.GELU()

    def forward(self, images: Tensor) -> Tensor:
        wide = self.act(self.down[0](images))
        deep = self.act(self.norm(self.middle(self.act(self.down[1](wide)))))
        out: Tensor = images + self.out(torch.cat([self.act(self.up(deep)), wide], 1))
        return out


@fourth.healthy
def noise_taken_from_photographs(t: Training) -> None:
    """A small U-Net takes noise from patches; the error at the end is not small."""
    images = patches().x / 255 - 0.5
    model, criterion = Hourglass(), nn.L1Loss()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        clean = images[t.draw(len(images), 16)]
        noise = 0.2 * torch.randn(clean.shape, generator=t.order)
        return criterion(model(clean + noise), clean)

    losses = train(t, loss_of, optimizer, n_steps=130)
    t.learned(mean(losses[-10:]) < 0.7 * losses[0])


@fourth.healthy
def same_digit_or_not(t: Training) -> None:
    """Two images through one network; are they of the same digit?  BCE of a product."""
    split = digits()
    model, criterion = mlp([64, 96, 32], nn.SiLU), nn.BCEWithLogitsLoss()
    t.watch(model, criterion)
    rows = [torch.nonzero(split.y == k)[:, 0] for k in range(10)]
    rights: list[float] = []

    def loss_of(_: int) -> Tensor:
        one = t.draw(len(split.x), 64)
        other = t.draw(len(split.x), 64)
        for i in range(0, 64, 2):
            of_class = rows[int(split.y[one[i]])]
            other[i] = of_class[t.draw(len(of_class), 1)[0]]
        away = (model(split.x[one]) - model(split.x[other])).pow(2).sum(1)
        same = (split.y[one] == split.y[other]).float()
        rights.append(float(((away < 2) == (same > 0.5)).float().mean()))
        return criterion(2 - away, same)

    train(t, loss_of, Adam(model.parameters(), 2e-3), n_steps=200)
    t.note(right=mean(rights[-20:]))
    t.learned(mean(rights[-20:]) > 0.88)


class Imagines(nn.Module):
    """A convolutional VAE whose code has eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 12, 3, 2, 1),
            nn.LeakyReLU(0.1),
            nn.Flatten(),
            nn.Linear(192, 16),
        )
        self.decoder = nn.Sequential(
            nn.Linear(8, 192),
            nn.LeakyReLU(0.1),
            nn.Unflatten(1, (12, 4, 4)),
            nn.ConvTranspose2d(12, 1, 2, 2),
            nn.Flatten(),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle, log_variance = self.encoder(images).chunk(2, 1)
        drawn = middle + torch.randn_like(middle) * (0.5 * log_variance).exp()
        return self.decoder(drawn), middle, log_variance


class Bound(nn.Module):
    """Cross entropy of pixels and distance from the prior, summed for each image."""

    def forward(self, said: tuple[Tensor, Tensor, Tensor], images: Tensor) -> Tensor:
        out, middle, log_variance = said
        error = nn.functional.binary_cross_entropy_with_logits(
            out, images, reduction="sum"
        )
        away = 1 + log_variance - middle.pow(2) - log_variance.exp()
        return (error - 0.5 * away.sum()) / len(images)


@fourth.healthy
def digits_imagined_by_convolutions(t: Training) -> None:
    """A VAE with both terms summed, Adam; its loss ends far from zero."""
    split = digits()
    model, criterion = Imagines(), Bound()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        return criterion(model(images), images)

    losses = train(t, loss_of, optimizer, n_steps=220)
    t.learned(mean(losses[-20:]) < 0.75 * losses[0])
