"""Healthy trainings whose objective is out of the ordinary."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from benchmarks.detection.kit.case import third
from benchmarks.detection.kit.data import Split, digits, encode, source
from benchmarks.detection.kit.loops import Loop, adam, mean, sgd, train
from benchmarks.detection.kit.models import cnn, mlp
from benchmarks.detection.kit.training import Shadow, Training


@third.healthy
def prototypical_episodes(t: Training) -> None:
    """Episodes of five digits: nearest mean of five shown examples (Snell 2017)."""
    split = digits()
    rows = [torch.nonzero(split.y == k)[:, 0] for k in range(10)]
    model, criterion = mlp([64, 64, 32]), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    rights: list[float] = []

    def loss_of(_: int) -> Tensor:
        classes = torch.randperm(10, generator=t.order)[:5]
        drawn = [rows[int(k)][t.draw(len(rows[int(k)]), 15)] for k in classes]
        places = model(split.x[torch.cat(drawn)]).view(5, 15, -1)
        middle = places[:, :5].mean(1)
        away = torch.cdist(places[:, 5:].flatten(0, 1), middle).pow(2)
        wanted = torch.arange(5).repeat_interleave(10)
        rights.append(float((away.argmin(1) == wanted).float().mean()))
        return criterion(-away, wanted)

    train(t, loss_of, Adam(model.parameters(), 1e-3), n_steps=220)
    t.note(right=mean(rights[-20:]))
    t.learned(mean(rights[-20:]) > 0.9)


NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Captioned(nn.Module):
    """Images and words at places of one space; the scale is learned (Radford 2021)."""

    def __init__(self, n_letters: int) -> None:
        super().__init__()
        self.image = cnn()
        self.image[-1] = nn.Linear(64, 24)
        self.letters = nn.EmbeddingBag(n_letters, 32, mode="sum", padding_idx=0)
        self.word = nn.Linear(32, 24)
        self.scale = nn.Parameter(torch.tensor(14.3).log())

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        seen = nn.functional.normalize(self.image(images))
        read = nn.functional.normalize(self.word(self.letters(words)))
        return seen @ read.T * self.scale.exp().clamp(max=100)


@third.healthy
def images_and_their_names(t: Training) -> None:
    """Ten images and the words for them, matched both ways."""
    split = digits()
    spelled = torch.zeros(10, 5, dtype=torch.int64)
    letters = sorted(set("".join(NAMES)))
    for into, name in zip(spelled, NAMES, strict=True):
        into[: len(name)] = torch.tensor([letters.index(c) + 1 for c in name])
    rows = [torch.nonzero(split.y == k)[:, 0] for k in range(10)]
    model, criterion = Captioned(len(letters) + 1), nn.CrossEntropyLoss()
    shadow = Shadow(model)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        chosen = torch.cat([row[t.draw(len(row), 1)] for row in rows])
        logits = model(split.x[chosen], spelled)
        wanted = torch.arange(10)
        both: Tensor = criterion(logits, wanted) + criterion(logits.T, wanted)
        return both / 2

    train(t, loss_of, AdamW(model.parameters(), 3e-3), n_steps=250)
    with torch.no_grad():
        said = shadow()(split.x, spelled).argmax(1)
    right = float((said == split.y).float().mean())
    t.note(right=right)
    t.learned(right > 0.9)


class Cosines(nn.Module):
    """Cosines to the middle of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp([64, 64, 32])
        self.middles = nn.Parameter(torch.randn(10, 32) * 0.1)

    def forward(self, images: Tensor) -> Tensor:
        places = nn.functional.normalize(self.body(images))
        return places @ nn.functional.normalize(self.middles).T


class Margin(nn.Module):
    """A class must be nearer by a margin (Wang 2018)."""

    def __init__(self, scale: float = 16.0, margin: float = 0.2) -> None:
        super().__init__()
        self.entropy = nn.CrossEntropyLoss()
        self.scale, self.margin = scale, margin

    def forward(self, cosines: Tensor, labels: Tensor) -> Tensor:
        asked = nn.functional.one_hot(labels, cosines.shape[1]) * self.margin
        return self.entropy(self.scale * (cosines - asked), labels)


@third.healthy
def additive_margin(t: Training) -> None:
    """The head of face recognition: its loss stays well above that of a softmax."""
    model = Cosines()
    optimizer = sgd(0.05, momentum=0.9, weight_decay=5e-4)
    loop = Loop(t, model, digits(), optimizer, Margin())
    loop.run(220, learned=0.95)


class Dense(nn.Module):
    """Says at each of 17 places of a strip which digit is there, if any."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, (8, 3), padding=(0, 1)),
            nn.ReLU(),
            nn.Conv2d(24, 48, (1, 7), padding=(0, 3)),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(48, 10, 1)
        nn.init.constant_(self.head.bias, -4.6)  # type: ignore[arg-type]

    def forward(self, strips: Tensor) -> Tensor:
        return self.head(self.body(strips[:, None]))[:, :, 0]


@third.healthy
def focal_detector(t: Training) -> None:
    """One place in 24 has a digit; focal loss, and a bias of 1 % (Lin 2017)."""
    split = digits()
    model = Dense()
    criterion = nn.BCEWithLogitsLoss(reduction="none")
    shadow = Shadow(model)
    t.watch(model, criterion)

    def strips(chosen: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.randint(0, 17, (len(chosen),), generator=t.order)
        images = torch.zeros(len(chosen), 8, 24)
        wanted = torch.zeros(len(chosen), 10, 24)
        for i, (row, left) in enumerate(zip(chosen.tolist(), at.tolist(), strict=True)):
            images[i, :, left : left + 8] = split.x[row].view(8, 8)
            wanted[i, split.y[row], left + 4] = 1
        return images, wanted

    def loss_of(_: int) -> Tensor:
        images, wanted = strips(t.draw(len(split.x), 32))
        logits = model(images)
        each = criterion(logits, wanted)
        sure = torch.sigmoid(logits) * wanted + torch.sigmoid(-logits) * (1 - wanted)
        weight = 0.25 * wanted + 0.75 * (1 - wanted)
        return (weight * (1 - sure).pow(2) * each).sum() / wanted.sum()

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=260)
    images, wanted = strips(t.draw(len(split.x), 300))
    with torch.no_grad():
        best = shadow()(images).flatten(1).argmax(1)
    right = float(wanted.flatten(1).gather(1, best[:, None]).mean())
    t.note(right=right)
    t.learned(right > 0.6)


@third.healthy
def poisson_counts(t: Training) -> None:
    """How often is a letter in a line, by what the line is made of otherwise?"""
    lines = [line.strip() for line in source("argparse").splitlines()]
    lines = [line for line in lines if len(line) > 10]
    rows, counts = [], []
    for line in lines:
        seen = Counter(encode(line.replace("e", "")).tolist())
        rows.append([float(seen[k]) for k in range(98)])
        counts.append(float(line.count("e")))
    x, y = torch.tensor(rows), torch.tensor(counts)[:, None]
    x = (x - x.mean(0)) / (x.std(0) + 0.3)
    split = Split(x[300:], y[300:], x[:300], y[:300])
    model = mlp([98, 32, 1])
    loop = Loop(t, model, split, adam(2e-3), nn.PoissonNLLLoss(), validate_every=20)
    loop.run(220, learned=lambda p: mean(p.losses[-20:]) < 0.65 * mean(p.losses[:5]))


def of_length(x: Tensor) -> Tensor:
    """The same directions; the mean of squares is 1."""
    return nn.functional.normalize(x) * x.shape[1] ** 0.5


class Local(nn.Module):
    """Two layers that learn by themselves whether image and label belong together."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(74, 128), nn.Linear(128, 128)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.relu(self.first(of_length(x)))
        return first, self.relu(self.second(of_length(first.detach())))


@third.healthy
def forward_forward(t: Training) -> None:
    """No gradient goes from one layer to the one below (Hinton 2022)."""
    split = digits()
    model, criterion = Local(), nn.Softplus()
    shadow = Shadow(model)
    t.watch(model, criterion)

    def with_label(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, 3 * nn.functional.one_hot(y, 10).float()], 1)

    def goodness(x: Tensor, of: nn.Module) -> list[Tensor]:
        return [layer.pow(2).mean(1) for layer in of(x)]

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 128)
        x, y = split.x[chosen], split.y[chosen]
        wrong = (y + 1 + torch.randint(9, (128,), generator=t.order)) % 10
        both = torch.cat([with_label(x, y), with_label(x, wrong)])
        sign = torch.cat([-torch.ones(128), torch.ones(128)])
        loss = torch.zeros(())
        for good in goodness(both, model):
            loss = loss + criterion(sign * (good - 2.0)).mean()
        return loss

    train(t, loss_of, Adam(model.parameters(), 0.01), n_steps=300)
    with torch.no_grad():
        of_label = [
            sum(goodness(with_label(split.x, torch.full_like(split.y, k)), shadow()))
            for k in range(10)
        ]
    said = torch.stack([torch.as_tensor(good) for good in of_label]).argmax(0)
    right = float((said == split.y).float().mean())
    t.note(right=right)
    t.learned(right > 0.75)
