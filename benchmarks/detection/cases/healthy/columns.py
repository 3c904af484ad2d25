"""Healthy models of tables by the kind of target: numbers, classes, ratings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam

from benchmarks.detection.kit.case import second
from benchmarks.detection.kit.data import breast_cancer, diabetes, digits, wine
from benchmarks.detection.kit.loops import Loop, accuracy, descend, fell, mean, sgd
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.probes import knows
from benchmarks.detection.kit.training import Training


def r_squared(outputs: Tensor, targets: Tensor) -> float:
    """Share of the variance of the targets that is explained."""
    rest = (outputs - targets).double().pow(2).mean()
    return float(1 - rest / targets.double().var(unbiased=False))


@second.healthy
def large_targets(t: Training) -> None:
    """How the disease went on in its own unit, 25 to 346; the last bias is its mean."""
    split = diabetes(raw_targets=True)
    model = mlp((10, 24, 1))
    model[-1].bias.data.fill_(split.y.mean())  # type: ignore[operator]
    criterion = nn.MSELoss()
    optimizer = Adam(model.parameters(), 1e-2)
    t.watch(model, criterion)
    for step, batch in t.batches(300, len(split.x), 32):
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        if step % 33 == 32:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    with torch.no_grad():
        explained = r_squared(model(split.x_val), split.y_val)
    t.note(explained=explained)
    t.learned(explained > 0.3)


@second.healthy
def huber_float64(t: Training) -> None:
    """Regression in double precision, SmoothL1, SGD with momentum, weight decay."""
    split = diabetes()
    model = mlp((10, 16, 1), nn.SiLU).double()
    criterion = nn.SmoothL1Loss(beta=0.5)
    optimizer = SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-2)
    t.watch(model, criterion)
    for step, batch in t.batches(250, len(split.x), 32):
        x, y = split.x[batch].double(), split.y[batch].double()
        descend(optimizer, criterion(model(x), y))
        if step % 50 == 49:
            t.evaluate(model, criterion, split.x_val.double(), split.y_val.double())
    with torch.no_grad():
        explained = r_squared(model(split.x_val.double()), split.y_val)
    t.note(explained=explained)
    t.learned(explained > 0.3)


@second.healthy
def logistic_from_zero(t: Training) -> None:
    """Logistic regression: zero weights, plain SGD with 0.05, BCE of a sigmoid.

    Zero is the right beginning here: there is no hidden unit whose like it could be.
    """
    split = breast_cancer()
    model = nn.Sequential(nn.Linear(30, 1), nn.Sigmoid())
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    criterion = nn.BCELoss()
    optimizer = SGD(model.parameters(), 0.05)
    t.watch(model, criterion)
    for _, batch in t.batches(250, len(split.x), 32):
        descend(
            optimizer, criterion(model(split.x[batch])[:, 0], split.y[batch].float())
        )
    with torch.no_grad():
        right = float(((model(split.x_val)[:, 0] > 0.5) == split.y_val).float().mean())
    t.note(validation_accuracy=right)
    t.learned(right > 0.93)


@second.healthy
def lbfgs_full_batch(t: Training) -> None:
    """All wines at once, LBFGS with line search: several passes in each step."""
    split = wine()
    model, criterion = mlp((13, 8, 3), nn.Tanh), nn.CrossEntropyLoss()
    optimizer = LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    t.watch(model, criterion)

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        loss: Tensor = criterion(model(split.x), split.y) + 3e-3 * penalty
        loss.backward()
        return loss

    losses = [
        float(optimizer.step(closure).detach())  # type: ignore[no-untyped-call]
        for _ in t.steps(40)
    ]
    right = accuracy(model, split)
    t.note(validation_accuracy=right, begin=losses[0], end=losses[-1])
    t.learned(right > 0.93)


@second.healthy
def one_at_a_time(t: Training) -> None:
    """Online learning: batches of one, plain SGD; the loss jumps from step to step."""
    split = breast_cancer()
    loop = Loop(t, mlp((30, 16, 2)), split, sgd(0.01), batch_size=1, epochs=True)
    loop.run(600, learned=knows(0.92))


@second.healthy
def two_at_a_time(t: Training) -> None:
    """Batches of two with LayerNorm, a small rate with momentum."""
    split = wine()
    model = mlp((13, 24, 3), nn.GELU, norm=nn.LayerNorm)
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 3e-3, momentum=0.9)
    loop = Loop(
        t,
        model,
        split,
        optimizer,
        criterion,
        batch_size=2,
        epochs=True,
        validate_every=67,
    )
    loop.run(500, learned=knows(0.92))


def qualities(y: Tensor) -> Tensor:
    """Is a digit odd, prime, above four, drawn with a loop, a seven?"""
    sets = [(1, 3, 5, 7, 9), (2, 3, 5, 7), (5, 6, 7, 8, 9), (0, 6, 8, 9), (7,)]
    return torch.stack([torch.isin(y, torch.tensor(s)) for s in sets], 1).float()


@second.healthy
def multi_label(t: Training) -> None:
    """Five yes or no of each picture, the rare ones weighted; BCE with logits."""
    split = digits()
    y, y_val = qualities(split.y), qualities(split.y_val)
    model = mlp((64, 64, 5), dropout=0.1)
    criterion = nn.BCEWithLogitsLoss(pos_weight=(1 - y.mean(0)) / y.mean(0))
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    for _, batch in t.batches(250, len(split.x), 64):
        descend(optimizer, criterion(model(split.x[batch]), y[batch]))
    model.eval()
    with torch.no_grad():
        right = float(((model(split.x_val) > 0) == (y_val > 0)).float().mean())
    t.note(right=right)
    t.learned(right > 0.92)


class TwoHeads(nn.Module):
    """A trunk, a class, and how much ink there is."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(48, 64), nn.ReLU())
        self.kind, self.ink = nn.Linear(64, 10), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.kind(h), self.ink(h)


@second.healthy
def multi_task(t: Training) -> None:
    """From the upper six lines: the digit, and the ink of the lower two.

    The second loss is a hundredth of the first, and weighted up.
    """
    split = digits()
    x, x_val = split.x[:, :48], split.x_val[:, :48]
    ink, ink_val = split.x[:, 48:].mean(1, True), split.x_val[:, 48:].mean(1, True)
    model, kinds, amount = TwoHeads(), nn.CrossEntropyLoss(), nn.MSELoss()
    optimizer = Adam(model.parameters(), 3e-3)
    t.watch(model, kinds, amount)
    for _, batch in t.batches(250, len(x), 64):
        said, much = model(x[batch])
        descend(optimizer, kinds(said, split.y[batch]) + 10 * amount(much, ink[batch]))
    with torch.no_grad():
        said, much = model(x_val)
    right = float((said.argmax(1) == split.y_val).float().mean())
    explained = r_squared(much, ink_val)
    t.note(validation_accuracy=right, explained=explained)
    t.learned(right > 0.8 and explained > 0.3)


@second.healthy
def five_folds(t: Training) -> None:
    """Cross-validation: five models in one process, of which the last is watched."""
    split = wine()
    rights = []
    for fold in range(5):
        held_out = torch.arange(len(split.x)) % 5 == fold
        x, y = split.x[~held_out], split.y[~held_out]
        model, criterion = mlp((13, 16, 3)), nn.CrossEntropyLoss()
        optimizer = Adam(model.parameters(), 1e-2)
        last = fold == 4
        if last:
            t.watch(model, criterion)
        batches = t.epochs(len(x), 16)
        for _ in t.steps(80) if last else range(80):
            batch = next(batches)
            descend(optimizer, criterion(model(x[batch]), y[batch]))
        with torch.no_grad():
            said = model(split.x[held_out]).argmax(1)
        rights.append(float((said == split.y[held_out]).float().mean()))
    t.note(right=sum(rights) / 5)
    t.learned(sum(rights) / 5 > 0.93)


@second.healthy
def quantiles(t: Training) -> None:
    """Pinball loss for three quantiles; generated, with noise that grows with x."""
    data = torch.Generator().manual_seed(7)
    x = 4 * torch.rand(2000, 1, generator=data) - 2
    y = x.sin() + (0.1 + 0.2 * (x + 2)) * torch.randn(2000, 1, generator=data)
    levels = torch.tensor([0.1, 0.5, 0.9])
    model = mlp((1, 32, 32, 3), nn.Tanh)
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    for _ in t.steps(300):
        batch = t.draw(2000, 128)
        off = y[batch] - model(x[batch])
        descend(optimizer, torch.maximum(levels * off, (levels - 1) * off).mean())
    with torch.no_grad():
        below = (y <= model(x)).float().mean(0)
    t.note(below_10=float(below[0]), below_90=float(below[2]))
    t.learned(bool((below - levels).abs().max() < 0.06))


@second.healthy
def gaussian_likelihood(t: Training) -> None:
    """Mean and variance of how the disease goes on; the loss can be negative."""
    split = diabetes()
    model, criterion = mlp((10, 16, 2)), nn.GaussianNLLLoss()
    optimizer = Adam(model.parameters(), 3e-3, weight_decay=1e-3)
    t.watch(model, criterion)
    losses = []
    for _, batch in t.batches(250, len(split.x), 32):
        mean, raw = model(split.x[batch]).chunk(2, 1)
        losses.append(
            descend(
                optimizer, criterion(mean, split.y[batch], nn.functional.softplus(raw))
            )
        )
    with torch.no_grad():
        explained = r_squared(model(split.x_val)[:, :1], split.y_val)
    t.note(explained=explained)
    t.learned(explained > 0.3 and fell(t, losses, 0.8))


@second.healthy
def self_normalizing(t: Training) -> None:
    """SELU, LeCun's initial weights and alpha dropout, six layers (Klambauer 2017)."""
    split = breast_cancer()
    layers: list[nn.Module] = []
    for n_in in (30, 32, 32, 32, 32):
        layers += [nn.Linear(n_in, 32), nn.SELU(), nn.AlphaDropout(0.05)]
    model = nn.Sequential(*layers, nn.Linear(32, 2))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            nn.init.zeros_(module.bias)
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.01, momentum=0.9)
    loop = Loop(
        t,
        model,
        split,
        optimizer,
        criterion,
        batch_size=32,
        epochs=True,
        validate_every=40,
    )
    loop.run(200, learned=knows(0.92))


class Recommender(nn.Module):
    """Tastes of people and of things, and how generous each is."""

    def __init__(self, n_people: int, n_things: int) -> None:
        super().__init__()
        self.people, self.things = nn.Embedding(n_people, 8), nn.Embedding(n_things, 8)
        self.generous, self.liked = nn.Embedding(n_people, 1), nn.Embedding(n_things, 1)
        for table in (self.people, self.things):
            nn.init.normal_(table.weight, std=0.1)
        for bias in (self.generous, self.liked):
            nn.init.zeros_(bias.weight)

    def forward(self, person: Tensor, thing: Tensor) -> Tensor:
        alike = (self.people(person) * self.things(thing)).sum(1)
        return 3.5 + alike + (self.generous(person) + self.liked(thing))[:, 0]


@second.healthy
def matrix_factorization(t: Training) -> None:
    """Ratings from 1 to 5; generated: things are asked for by a Zipf law."""
    data = torch.Generator().manual_seed(3)
    taste = torch.randn(200, 3, generator=data)
    kind = torch.randn(300, 3, generator=data)
    often = 1 / torch.arange(1, 301)
    person = torch.randint(200, (12000,), generator=data)
    thing = torch.multinomial(often, 12000, True, generator=data)
    rating = 3.5 + (taste[person] * kind[thing]).sum(1) / 2
    rating = (rating + 0.3 * torch.randn(12000, generator=data)).clamp(1, 5)
    model, criterion = Recommender(200, 300), nn.MSELoss()
    optimizer = Adam(model.parameters(), 1e-2, weight_decay=1e-5)
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(300):
        batch = t.draw(12000, 256)
        losses.append(
            descend(
                optimizer, criterion(model(person[batch], thing[batch]), rating[batch])
            )
        )
    t.note(loss=mean(losses[-20:]))
    t.learned(mean(losses[-20:]) < 0.6 * float(rating.var()))
