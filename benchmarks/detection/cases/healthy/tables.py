"""Healthy models of tables."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from benchmarks.detection.kit.case import first, fourth
from benchmarks.detection.kit.data import (
    breast_cancer,
    diabetes,
    digits,
    flowers,
    patches,
    thin_out,
    wine,
)
from benchmarks.detection.kit.loops import Loop, Probe, adam, adamw, descend, mean, sgd
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.probes import explains, validates
from benchmarks.detection.kit.training import Training


def explains_a_third(p: Probe) -> bool:
    """At least a third of the variance of normalized targets is explained."""
    return sum(p.losses[-20:]) < 0.67 * 20


@first.healthy
def regression(t: Training) -> None:
    """A small network with weight decay; half of the variance is noise."""
    model = mlp([10, 16, 1])
    loop = Loop(t, model, diabetes(), adamw(3e-3, weight_decay=0.1), nn.MSELoss())
    loop.run(250, learned=explains_a_third)


@first.healthy
def linear_regression(t: Training) -> None:
    """A single linear layer by plain SGD, until it has converged."""
    loop = Loop(t, nn.Linear(10, 1), diabetes(), sgd(0.02), nn.MSELoss())
    loop.run(200, learned=explains_a_third)


@first.healthy
def robust_regression(t: Training) -> None:
    """Huber's loss, two layers of tanh, validation on the way."""
    model = mlp([10, 12, 1], nn.Tanh)
    adam = Adam(model.parameters(), 3e-3, weight_decay=1e-2)
    loop = Loop(t, model, diabetes(), adam, nn.HuberLoss(), validate_every=25)
    loop.run(150, learned=lambda p: sum(p.losses[-20:]) < 0.3 * 20)


@first.healthy
def layer_normalization(t: Training) -> None:
    """LayerNorm and GELU."""
    model = mlp([30, 48, 48, 2], nn.GELU, norm=nn.LayerNorm)
    loop = Loop(t, model, breast_cancer(), adamw(1e-3), batch_size=32)
    loop.run(150, learned=0.95)


@first.healthy
def mild_imbalance(t: Training) -> None:
    """Three times as many of one class as of the other, both well recognized."""
    split = thin_out(breast_cancer(), 0, 85)
    loop = Loop(t, mlp([30, 32, 2]), split, sgd(0.05, momentum=0.9), batch_size=32)
    loop.run(150, learned=0.95)


@first.healthy
def three_wines(t: Training) -> None:
    """A few batches are enough; the rest of the training changes little."""
    loop = Loop(t, mlp([13, 24, 3], nn.Tanh), wine(), adam(3e-3), batch_size=32)
    loop.run(200, learned=0.97)


@first.healthy
def second_order(t: Training) -> None:
    """LBFGS on all data at once: a step is many evaluations."""
    split = breast_cancer()
    model = mlp([30, 8, 2], nn.Tanh)
    lbfgs = LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=8)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=lbfgs)

    def closure() -> Tensor:
        lbfgs.zero_grad()
        penalty = sum(q.pow(2).sum() for q in model.parameters())
        loss = criterion(model(split.x), split.y)
        (loss + 1e-3 * penalty).backward()
        return loss

    losses = [float(lbfgs.step(closure).detach()) for _ in t.steps(40)]
    t.note(first=losses[0], last=losses[-1])
    t.learned(losses[-1] < 0.2)


@first.healthy
def logistic_regression(t: Training) -> None:
    """One output, a binary cross entropy, weight decay."""
    split = breast_cancer()
    model = nn.Linear(30, 1)
    sgd = SGD(model.parameters(), 0.1, weight_decay=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(200):
        chosen = t.draw(len(split.x), 32)
        loss = criterion(model(split.x[chosen]), split.y[chosen, None].float())
        losses.append(descend(sgd, loss))
    t.note(first=losses[0], last=losses[-1])
    t.learned(sum(losses[-20:]) < 0.2 * 20)


class TwoHeads(nn.Module):
    """One body, a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(13, 32), nn.ReLU())
        self.kind = nn.Linear(32, 3)
        self.strength = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.kind(hidden), self.strength(hidden)


@first.healthy
def two_tasks(t: Training) -> None:
    """The class of a wine, and its alcohol from the other measurements: two losses."""
    split = wine()
    model = TwoHeads()
    adam = Adam(model.parameters(), 5e-3)
    classes, numbers = nn.CrossEntropyLoss(), nn.MSELoss()
    t.watch(model, classes, numbers)
    first, last = 0.0, 0.0
    for step in t.steps(200):
        chosen = t.draw(len(split.x), 32)
        x = split.x[chosen].clone()
        alcohol = x[:, :1].clone()
        x[:, 0] = 0.0
        adam.zero_grad()
        kind, strength = model(x)
        loss = classes(kind, split.y[chosen]) + 0.5 * numbers(strength, alcohol)
        loss.backward()
        adam.step()
        first = float(loss.detach()) if step == 0 else first
        last = float(loss.detach())
    t.note(first=first, last=last)
    t.learned(last < 0.3 * first)


@first.healthy
def converged(t: Training) -> None:
    """A separable problem for 600 steps: loss and gradients go towards zero."""
    loop = Loop(t, mlp([13, 64, 3]), wine(), adam(3e-3), batch_size=32)
    loop.run(600, learned=0.99)


@first.healthy
def all_data_at_once(t: Training) -> None:
    """Full batches: no noise at all in the loss."""
    split = wine()
    model = mlp([13, 16, 3])
    sgd = SGD(model.parameters(), 0.1, momentum=0.9)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        return split.x, split.y

    loop = Loop(t, model, split, sgd, batches=batches)
    loop.run(150, learned=0.97)


@fourth.healthy
def plain_layers_with_adam(t: Training) -> None:
    """Two hidden layers, Adam with its own rate, epochs of shuffled batches."""
    loop = Loop(t, mlp([64, 128, 64, 10]), digits(), adam(), batch_size=32, epochs=True)
    loop.run(250, learned=0.95)


@fourth.healthy
def convolutions_without_momentum(t: Training) -> None:
    """LeNet's form on digits, plain SGD."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 12, 3),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(384, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )
    loop = Loop(t, model, digits(), sgd(0.2), batch_size=64)
    loop.run(220, learned=0.9)


@fourth.healthy
def batches_of_eight(t: Training) -> None:
    """Wine in batches of eight rows, AdamW, evaluated every 20 steps."""
    model = mlp([13, 32, 32, 3], nn.SiLU)
    optimizer = adamw(2e-3, weight_decay=0.01)
    loop = Loop(t, model, wine(), optimizer, batch_size=8, validate_every=20)
    loop.run(220, learned=0.95)


@fourth.healthy
def batches_of_512(t: Training) -> None:
    """Large batches, a large rate with Nesterov's momentum and batch normalization."""
    model = mlp([64, 96, 96, 10], norm=nn.BatchNorm1d)
    optimizer = sgd(0.2, momentum=0.9, nesterov=True)
    loop = Loop(t, model, digits(), optimizer, batch_size=512)
    loop.run(120, learned=0.97)


@fourth.healthy
def half_of_all_dropped(t: Training) -> None:
    """Dropout of a half after both hidden layers, as in 2014; evaluated."""
    model = mlp([64, 192, 192, 10], dropout=0.5)
    loop = Loop(t, model, digits(), adam(2e-3), batch_size=64, validate_every=40)
    loop.run(260, learned=0.95)


@fourth.healthy
def smoothed_labels_with_swish(t: Training) -> None:
    """Label smoothing of a tenth, SiLU, layer normalization, one cycle of the rate."""
    model = mlp([64, 96, 96, 10], nn.SiLU, norm=nn.LayerNorm)
    optimizer = AdamW(model.parameters(), 1e-3)
    schedule = OneCycleLR(optimizer, 6e-3, total_steps=221)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    loop = Loop(t, model, digits(), optimizer, criterion, schedule=schedule)
    loop.run(220, learned=0.95)


@fourth.healthy
def one_output_for_two_classes(t: Training) -> None:
    """Tumours by one output and BCE with weights for the rarer class."""
    split = breast_cancer()
    split = replace(
        split, y=split.y.float()[:, None], y_val=split.y_val.float()[:, None]
    )
    model = mlp([30, 24, 1], nn.ELU)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([0.6]))
    optimizer = sgd(0.05, momentum=0.9, weight_decay=1e-4)
    loop = Loop(t, model, split, optimizer, criterion, batch_size=16, validate_every=25)
    loop.run(200, learned=lambda p: p.accuracy() > 0.95)


@fourth.healthy
def huber_with_rmsprop(t: Training) -> None:
    """How a disease went on, by Huber's loss and RMSprop; a fit that stays noisy."""
    model = mlp([10, 24, 12, 1], nn.LeakyReLU)
    optimizer = RMSprop(model.parameters(), 1e-3)
    loop = Loop(t, model, diabetes(), optimizer, nn.HuberLoss(), batch_size=32)
    loop.run(260, learned=explains(0.4))


@fourth.healthy
def stops_when_validation_rises(t: Training) -> None:
    """Validation every epoch; after five without a better one it stops."""
    split = breast_cancer()
    best, waited = math.inf, 0

    def patience_is_over(p: Probe) -> bool:
        nonlocal best, waited
        now = p.validation[-1][1]
        waited = 0 if now < best else waited + 1
        best = min(best, now)
        return waited >= 5

    model = mlp([30, 48, 24, 2], dropout=0.2)
    loop = Loop(t, model, split, adam(1e-3), batch_size=32, validate_every=13)
    loop.run(400, stop=patience_is_over, learned=validates(0.2))


@fourth.healthy
def softmax_regression_of_irises(t: Training) -> None:
    """The smallest model there is: one layer, three classes, four columns."""
    loop = Loop(t, nn.Sequential(nn.Linear(4, 3)), flowers(), sgd(0.3), batch_size=16)
    loop.run(200, learned=0.9)


class Squeezed(nn.Module):
    """Two residual blocks whose channels are weighed by what is in them (Hu 2018)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.bodies = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width),
            )
            for _ in range(2)
        )
        self.weighers = nn.ModuleList(
            nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(width, 4, 1),
                nn.ReLU(),
                nn.Conv2d(4, width, 1),
                nn.Sigmoid(),
            )
            for _ in range(2)
        )
        self.act = nn.ReLU()
        self.head = nn.Linear(width, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for body, weigher in zip(self.bodies, self.weighers, strict=True):
            inner = body(x)
            x = self.act(x + inner * weigher(inner))
        return self.head(x.mean((2, 3)))


@fourth.healthy
def photographs_by_a_residual_network(t: Training) -> None:
    """Coloured patches, normalized by channel, mirrored at random; cosine rates."""
    split = patches()
    middle = split.x.mean((0, 2, 3), keepdim=True)
    deviation = split.x.std((0, 2, 3), keepdim=True)
    split = split.inputs(lambda x: (x - middle) / deviation)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        chosen = t.draw(len(split.x), 32)
        images = split.x[chosen]
        mirrored = torch.rand(len(images), 1, 1, 1, generator=t.order) < 0.5
        return torch.where(mirrored, images.flip(3), images), split.y[chosen]

    model = Squeezed()
    optimizer = SGD(
        model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = CosineAnnealingLR(optimizer, 160)
    loop = Loop(
        t,
        model,
        split,
        optimizer,
        batches=batches,
        validate_every=40,
        schedule=schedule,
    )
    loop.run(160, learned=lambda p: p.accuracy() > 0.85 and mean(p.losses[-20:]) < 0.4)
