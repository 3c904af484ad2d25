"""What comes back through the model is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import Split, breast_cancer, digits
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import (
    any_of,
    lasting,
    non_finite,
    starved,
    without_gradient,
)
from benchmarks.detection.corpus.training import Shadow, Training
from benchmarks.detection.second.looks import mean
from benchmarks.detection.second.nets import Plain, Siamese, TwoHeads, Unrolled
from benchmarks.detection.second.parts import houses


@sick(
    named_by={"VanishingGradient", "PoorWeightInitialization"},
    diagnosis="deep, without residuals, with weights of deviation 0.02",
)
def weights_of_a_transformer(t: Training) -> None:
    """GPT's initialization in a plain network of ten layers.

    Source: nn.init.normal_(std=0.02) without what makes it work.  Visible: ten times in
    a row the first layer's gradient is a thousandth of the last one's.
    """
    model = Plain((64, 48, 10), 10, nn.GELU, residual=not t.sick)
    if t.sick:
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 5e-4),
        n_steps=200,
        visible=starved("stem.weight", "head.weight", 1e-3),
        learned=0.9,
    )


@sick(
    named_by={"VanishingGradient"},
    diagnosis="eight layers of sigmoids between the input and the loss",
)
def convolutions_with_sigmoids(t: Training) -> None:
    """A deep convolutional network with sigmoids, as in old books.

    Source: Glorot and Bengio 2010.  Visible: ten times in a row the first layer's
    gradient is a thousandth of the last one's.
    """
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for i in range(8):
        layers.append(nn.Conv2d(8 if i else 1, 8, 3, padding=1))
        if not t.sick:
            layers.append(nn.BatchNorm2d(8))
        layers.append(nn.Sigmoid() if t.sick else nn.ReLU())
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)]
    model = nn.Sequential(*layers)
    last = len(model) - 1
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=160,
        batch_size=48,
        visible=starved("1.weight", f"{last}.weight", 1e-3),
        learned=0.8,
    )


@sick(
    named_by={"ExplodingGradient", "ExplodingTensor", "LossSpike"},
    diagnosis="a recurrent network over 64 steps, without clipping",
)
def recurrence_without_clipping(t: Training) -> None:
    """The identity as recurrent weights, over 64 pixels, and nothing holds them.

    Source: Pascanu et al. 2013; Le et al. 2015.  Visible: when the norm of the
    gradient is above 1000, or something is not finite.
    """
    model = Unrolled(24)
    recurrent = dict(model.named_parameters())["rnn.weight_hh_l0"]
    nn.init.eye_(recurrent)
    with torch.no_grad():
        recurrent.mul_(1.0 if t.sick else 0.95)

    def huge(p: Probe) -> bool:
        grads = [w.grad for w in p.model.parameters() if w.grad is not None]
        return float(torch.stack([g.norm() for g in grads]).norm()) > 1000

    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
        n_steps=300,
        batch_size=32,
        clip=None if t.sick else 1.0,
        visible=any_of(huge, non_finite),
        learned=lambda p: mean(p.losses[-20:]) < 2.2,
    )


@sick(
    named_by={
        "ExplodingGradient",
        "ExplodingTensor",
        "WeightUpdateRatio",
        "LossNotDecreasing",
        "LossSpike",
    },
    diagnosis="the loss is the sum over the batch, the rate one for the mean",
)
def sum_over_the_batch(t: Training) -> None:
    """reduction="sum" in a regression; the batch has 128 rows.

    Source: losses written by hand.  Visible: when the mean loss of ten batches is twice
    that of the first, or something is not finite.
    """
    model = mlp([8, 64, 1], nn.ReLU)

    def grown(p: Probe) -> bool:
        return len(p.losses) > 10 and mean(p.losses[-10:]) > 2 * p.losses[0]

    fit(
        t,
        model,
        houses(scaled=True),
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        nn.MSELoss(reduction="sum" if t.sick else "mean"),
        n_steps=200,
        batch_size=128,
        visible=any_of(grown, non_finite),
        learned=lambda p: mean(p.losses[-20:]) < 0.3,
    )


class CrossEntropyByHand(nn.Module):
    """-log(p) of a probability that may be zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        p = torch.sigmoid(out)
        y = target.float()[:, None]
        logs = y * torch.log(p + self.eps) + (1 - y) * torch.log(1 - p + self.eps)
        return -logs.mean()


@sick(
    named_by={"ExplodingTensor"},
    diagnosis="log of a probability that has become zero",
)
def log_of_zero(t: Training) -> None:
    """Binary cross entropy by hand, without eps; sure of itself, it becomes NaN.

    Source: the forum's threads on NaN.  Visible: when something is not finite.
    """
    model = mlp([30, 32, 1], nn.ReLU)
    fit(
        t,
        model,
        breast_cancer(),
        torch.optim.SGD(model.parameters(), 0.3, momentum=0.9),
        CrossEntropyByHand(0.0 if t.sick else 1e-6),
        n_steps=400,
        batch_size=64,
        visible=non_finite,
        learned=lambda p: mean(p.losses[-20:]) < 0.1,
    )


@sick(
    named_by={"ExplodingTensor"},
    diagnosis="the square root of a distance that is zero",
)
def distance_of_the_same(t: Training) -> None:
    """A siamese network; a pair is sometimes an image and itself: d sqrt(0) is inf.

    Source: torch.sqrt or norm without eps in contrastive losses.  Visible: when
    something is not finite.
    """
    split = digits()
    model = Siamese()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    probe = Probe(0, model, Shadow(model), split)
    t.watch(model)
    for step in t.steps(260):
        probe.step = step
        a = t.draw(len(split.x), 64)
        b = t.draw(len(split.x), 64)
        optimizer.zero_grad()
        squares = (model(split.x[a]) - model(split.x[b])).pow(2).sum(1)
        distance = torch.sqrt(squares + (0.0 if t.sick else 1e-8))
        same = (split.y[a] == split.y[b]).float()
        weight = 1.0 + 8.0 * same
        each = same * distance.pow(2) + (1 - same) * F.relu(2.0 - distance).pow(2)
        loss: Any = (weight * each).mean()
        loss.backward()
        optimizer.step()
        probe.losses.append(float(loss.detach()))
        t.visible(non_finite(probe))
    t.note(last_loss=mean(probe.losses[-20:]))
    t.learned(mean(probe.losses[-20:]) < 0.5 * probe.losses[0])


@sick(
    named_by={"ExplodingTensor", "NotNormalizedData"},
    diagnosis="a missing value in the table",
)
def missing_value(t: Training) -> None:
    """One of 5000 cells is NaN, as pandas reads an empty one.

    Source: read_csv without dropna.  Visible: when something is not finite.
    """
    split = houses(scaled=True)
    if t.sick:
        x = split.x.clone()
        x[1000, 3] = float("nan")
        split = replace(split, x=x)
    model = mlp([8, 32, 32, 1], nn.ReLU, norm=nn.LayerNorm)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        nn.L1Loss(),
        n_steps=200,
        batch_size=32,
        visible=non_finite,
        learned=lambda p: mean(p.losses[-20:]) < 0.5,
    )


def two_losses(t: Training, *, cut: bool, forgotten: bool) -> None:
    """Train a trunk with two heads; both must become good."""
    split = digits()
    ink = split.x.mean(1, keepdim=True)
    ink = (ink - ink.mean()) / ink.std()
    model = TwoHeads(cut=cut)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    names = ["trunk.0.weight", "trunk.2.weight"] if cut or not forgotten else []
    if forgotten or not (cut or forgotten):
        names += ["ink.weight"]
    silent = [without_gradient([name], 20) for name in names]
    probe = Probe(0, model, Shadow(model), split)
    classify, measure = nn.CrossEntropyLoss(), nn.MSELoss()
    t.watch(model, classify, measure)
    right: list[float] = []
    for step in t.steps(200):
        probe.step = step
        chosen = t.draw(len(split.x), 64)
        optimizer.zero_grad()
        digit, amount = model(split.x[chosen])
        loss = classify(digit, split.y[chosen])
        if not forgotten:
            loss = loss + measure(amount, ink[chosen])
        loss.backward()
        optimizer.step()
        probe.losses.append(float(loss.detach()))
        right.append(float((digit.argmax(1) == split.y[chosen]).float().mean()))
        seen = [look(probe) for look in silent]
        t.visible(any(seen))
    t.note(accuracy=mean(right[-20:]), last_loss=mean(probe.losses[-20:]))
    t.learned(mean(right[-20:]) > 0.9 and mean(probe.losses[-20:]) < 0.6)


@sick(
    named_by={"MissingGradient"},
    diagnosis="the trunk runs under no_grad",
)
def trunk_under_no_grad(t: Training) -> None:
    """torch.no_grad() around the features stayed from an experiment.

    Source: feature extraction turned into fine-tuning.  Visible: after 20 steps in
    which the trunk, which requires a gradient, has none.
    """
    two_losses(t, cut=t.sick, forgotten=False)


@sick(
    named_by={"MissingGradient"},
    diagnosis="the loss of the second head is not added",
)
def second_loss_forgotten(t: Training) -> None:
    """Two losses are computed, one is propagated back.

    Source: multi-task scripts; what DDP calls unused parameters.  Visible: after 20
    steps in which the second head, which requires a gradient, has none.
    """
    two_losses(t, cut=False, forgotten=t.sick)


@sick(
    named_by={"PrecisionLoss", "UnchangedTensor", "WeightUpdateRatio"},
    diagnosis="weights in bfloat16: small updates are rounded away",
)
def weights_in_bfloat16(t: Training) -> None:
    """model.bfloat16() and SGD with a small rate: 8 bits do not hold the sum.

    Source: pure bfloat16 training without a float32 copy.  Visible: after 30 steps in
    which nine tenths of the weights with a gradient have not moved.
    """
    split = digits()
    model = mlp([64, 64, 64, 10], nn.ReLU)
    if t.sick:
        model.bfloat16()
        split = split.inputs(lambda x: x.bfloat16())
    before: list[Tensor] = []

    def rounded(p: Probe) -> bool:
        now = [w.detach().clone() for w in p.model.parameters()]
        moved = still = 0
        for a, b, w in zip(now, before, p.model.parameters(), strict=False):
            wanted = torch.zeros_like(a) if w.grad is None else w.grad
            moved += int(((a != b) & (wanted != 0)).sum())
            still += int(((a == b) & (wanted != 0)).sum())
        before[:] = now
        return still > 9 * moved

    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 2e-3, momentum=0.9),
        n_steps=500,
        visible=lasting(rounded, 30),
        learned=0.7,
    )


@sick(
    named_by={"PrecisionLoss", "VanishingGradient", "AllZero"},
    diagnosis="gradients in float16 without a loss scaler",
)
def half_without_scaler(t: Training) -> None:
    """model.half(), a mean over many outputs, no GradScaler: gradients become zero.

    Source: Micikevicius et al. 2018.  Visible: ten times in a row more than half of
    the first layer's gradient is zero, which it is not in float32.
    """
    split = replace(digits(), y=digits().x, y_val=digits().x_val)
    model = mlp([64, 64, 16, 64, 64], nn.Tanh)
    if t.sick:
        model.half()
        split = Split(*(x.half() for x in (split.x, split.y, split.x_val, split.y_val)))

    class Scaled(nn.MSELoss):
        """Losses of the parts of a large model are weighed like that."""

        def forward(self, out: Tensor, target: Tensor) -> Tensor:
            return 1e-4 * super().forward(out, target)

    def flushed(_: Probe) -> bool:
        gradient = dict(model.named_parameters())["0.weight"].grad
        there = split.x.float().std(0) > 0.05
        return gradient is not None and bool(
            (gradient[:, there] == 0).float().mean() > 0.5
        )

    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 2000.0, momentum=0.5),
        Scaled(),
        n_steps=200,
        visible=lasting(flushed, 10),
        learned=lambda p: mean(p.losses[-20:]) < 9e-6,
    )
