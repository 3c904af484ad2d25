"""Layers that say nothing, or something else than in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import Residual, mlp
from benchmarks.detection.corpus.probes import lasting, loss_above
from benchmarks.detection.corpus.training import Shadow, Training
from benchmarks.detection.third.views import (
    alike_for_all,
    far_from_training,
    mean,
    train,
)


class Pooled(nn.Module):
    """Lines of an image, normalized and averaged: over the lines, or wrongly."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(torch.randn(8, 32) * 0.5)
        self.mix = nn.Sequential(nn.GELU(), nn.Linear(32, 32))
        self.norm = nn.LayerNorm(32, elementwise_affine=False)
        self.axis = axis
        self.head = nn.Linear(32 if axis == 1 else 8, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.view(-1, 8, 8)) + self.place
        out: Tensor = self.head(self.norm(self.mix(x)).mean(self.axis))
        return out


@sick(
    named_by={"AllZero", "TensorVariance", "Underfitting", "LossNotDecreasing"},
    diagnosis="the mean is taken over what LayerNorm has made to have the mean 0",
)
def mean_of_normalized_features(t: Training) -> None:
    """mean(2) instead of mean(1); the head was made to fit the error message.

    Source: Humbatova's "wrong tensor shape".  Visible: when for ten steps all images
    have had the same outputs.
    """
    model = Pooled(2 if t.sick else 1)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=220,
        visible=lasting(alike_for_all(1e-4), 10),
        learned=0.85,
    )


class Sparse(nn.Module):
    """96 units of which few should speak at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
        self.decoder = nn.Linear(96, 64)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(images)
        return self.decoder(code), code


@sick(
    named_by={"DeadRelu", "AllZero", "TensorVariance"},
    diagnosis="the penalty on activity is so strong that all units die",
)
def sparsity_kills_the_code(t: Training) -> None:
    """A sparse autoencoder with a coefficient that was tuned for another scale.

    Source: dead latents of sparse autoencoders.  Visible: when for ten steps four
    fifths of the units have been zero for all images.
    """
    split = digits()
    model, criterion = Sparse(), nn.MSELoss()
    shadow = Shadow(model)
    t.watch(model, criterion)
    times = 0

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        again, code = model(images)
        penalty = code.abs().sum(1).mean()
        loss: Tensor = criterion(again, images) + (0.3 if t.sick else 1e-4) * penalty
        return loss

    def look(_: list[float]) -> bool:
        nonlocal times
        with torch.no_grad():
            code = shadow()(split.x)[1]
        dead = float((code.amax(0) <= 0).float().mean()) > 0.8
        times = times + 1 if dead else 0
        return times >= 10

    losses = train(
        t,
        loss_of,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=250,
        visible=look,
    )
    t.learned(mean(losses[-20:]) < 0.04)


@sick(
    named_by={"Overfit", "Overtraining", "UnchangedTensor"},
    diagnosis="BatchNorm's momentum is 0: it never learns what to use in evaluation",
)
def statistics_never_updated(t: Training) -> None:
    """momentum=0, because another framework's 1.0 means that.

    Source: PyTorch's forum, "good in train(), bad in eval()".  Visible: at three
    validations in a row their loss is above 1 and five times that of the training.
    """
    model = Residual()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and t.sick:
            module.momentum = 0.0
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=200,
        validate_every=10,
        visible=far_from_training(5, 1.0),
        learned=lambda p: p.validation[-1][2] > 0.9,
    )


@sick(
    named_by={
        "VanishingGradient",
        "LossNotDecreasing",
        "Underfitting",
        "UnchangedTensor",
        "TrainedInEvalMode",
    },
    diagnosis="the model was left in eval(): BatchNorm normalizes nothing",
)
def left_in_eval(t: Training) -> None:
    """A summary of the model called eval() before the training, and nobody train().

    Source: PyTorch's forum; Karpathy's list of most common mistakes.  Visible: from the
    80th step on, when the loss of 20 batches is above 2.2.
    """
    model = mlp([64, *[32] * 9, 10], norm=nn.BatchNorm1d)
    if t.sick:
        model.eval()
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=200,
        visible=loss_above(2.2, 80),
        learned=0.9,
    )
