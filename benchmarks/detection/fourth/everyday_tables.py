"""Healthy trainings of everyday: tables and small images, the usual optimizers."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import healthy
from benchmarks.detection.corpus.data import breast_cancer, diabetes, digits, wine
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.fourth.material import flowers, patches
from benchmarks.detection.fourth.sights import explains
from benchmarks.detection.third.views import epoch, mean


@healthy
def plain_layers_with_adam(t: Training) -> None:
    """Two hidden layers, Adam with its own rate, epochs of shuffled batches."""
    split = digits()
    order = epoch(t, len(split.x), 32)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        chosen = next(order)
        return split.x[chosen], split.y[chosen]

    model = mlp([64, 128, 64, 10])
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters()),
        n_steps=250,
        batches=batches,
        learned=0.95,
    )


@healthy
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
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.2),
        n_steps=220,
        batch_size=64,
        learned=0.9,
    )


@healthy
def batches_of_eight(t: Training) -> None:
    """Wine in batches of eight rows, AdamW, evaluated every 20 steps."""
    model = mlp([13, 32, 32, 3], nn.SiLU)
    fit(
        t,
        model,
        wine(),
        torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01),
        n_steps=220,
        batch_size=8,
        validate_every=20,
        learned=0.95,
    )


@healthy
def batches_of_512(t: Training) -> None:
    """Large batches, a large rate with Nesterov's momentum and batch normalization."""
    model = mlp([64, 96, 96, 10], norm=nn.BatchNorm1d)
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.2, momentum=0.9, nesterov=True),
        n_steps=120,
        batch_size=512,
        learned=0.97,
    )


@healthy
def half_of_all_dropped(t: Training) -> None:
    """Dropout of a half after both hidden layers, as in 2014; evaluated."""
    model = mlp([64, 192, 192, 10], dropout=0.5)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=260,
        batch_size=64,
        validate_every=40,
        learned=0.95,
    )


@healthy
def smoothed_labels_with_swish(t: Training) -> None:
    """Label smoothing of a tenth, SiLU, layer normalization, one cycle of the rate."""
    model = mlp([64, 96, 96, 10], nn.SiLU, norm=nn.LayerNorm)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    fit(
        t,
        model,
        digits(),
        optimizer,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        n_steps=220,
        schedule=torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=221),
        learned=0.95,
    )


@healthy
def one_output_for_two_classes(t: Training) -> None:
    """Tumours by one output and BCE with weights for the rarer class."""
    split = breast_cancer()
    split = replace(
        split, y=split.y.float()[:, None], y_val=split.y_val.float()[:, None]
    )
    model = mlp([30, 24, 1], nn.ELU)
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([0.6])),
        n_steps=200,
        batch_size=16,
        validate_every=25,
        learned=lambda p: p.accuracy() > 0.95,
    )


@healthy
def huber_with_rmsprop(t: Training) -> None:
    """How a disease went on, by Huber's loss and RMSprop; a fit that stays noisy."""
    model = mlp([10, 24, 12, 1], nn.LeakyReLU)
    fit(
        t,
        model,
        diabetes(),
        torch.optim.RMSprop(model.parameters(), 1e-3),
        nn.HuberLoss(),
        n_steps=260,
        batch_size=32,
        learned=explains(0.4),
    )


@healthy
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 1e-3),
        n_steps=400,
        batch_size=32,
        validate_every=13,
        stop=patience_is_over,
        learned=lambda p: p.validation[-1][1] < 0.2,
    )


@healthy
def softmax_regression_of_irises(t: Training) -> None:
    """The smallest model there is: one layer, three classes, four columns."""
    model = nn.Sequential(nn.Linear(4, 3))
    fit(
        t,
        model,
        flowers(),
        torch.optim.SGD(model.parameters(), 0.3),
        n_steps=200,
        batch_size=16,
        learned=0.9,
    )


@healthy
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
    optimizer = torch.optim.SGD(
        model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    fit(
        t,
        model,
        split,
        optimizer,
        n_steps=160,
        batches=batches,
        validate_every=40,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160),
        learned=lambda p: p.accuracy() > 0.85 and mean(p.losses[-20:]) < 0.4,
    )


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
        out: Tensor = self.head(x.mean((2, 3)))
        return out
