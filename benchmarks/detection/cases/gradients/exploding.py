"""Gradients that grow without a limit."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    Split,
    diabetes,
    digits,
    houses,
    patients,
    text,
    windows,
)
from benchmarks.detection.kit.loops import Loop, Predicate, Probe, mean, sgd, train
from benchmarks.detection.kit.models import CharacterModel, mlp
from benchmarks.detection.kit.probes import lasting, loss_below, non_finite
from benchmarks.detection.kit.training import Shadow, Training


def enormous(times_first: float, patience: int = 1) -> Predicate:
    """The norm of all gradients is that much larger than that of the first step."""
    first = 0.0
    held = 0

    def holds(p: Probe) -> bool:
        nonlocal first, held
        norm = float(
            sum(
                q.grad.double().pow(2).sum()
                for q in p.model.parameters()
                if q.grad is not None
            )
        )
        first = first or norm
        held = held + 1 if not norm <= times_first**2 * first else 0
        return held >= patience

    return holds


def any_of(*predicates: Predicate) -> Predicate:
    """One of them holds; each is asked."""

    def holds(p: Probe) -> bool:
        verdicts = [predicate(p) for predicate in predicates]
        return any(verdicts)

    return holds


@first.sick(
    "ExplodingGradient ExplodingTensor LossSpike NotNormalizedData "
    "LossNotDecreasing WeightUpdateRatio",
    "targets from 25 to 346 as they are, with a rate for unit variance",
)
def raw_targets(t: Training) -> None:
    """A regression on targets that were not normalized diverges.

    Source: Humbatova et al. 2020: missing normalization of targets; questions on
    regressions with a loss of NaN.  Visible: when the norm of the gradients is more
    than 100 times that of the first step, or something is not finite.
    """
    split = diabetes(raw_targets=t.sick)
    loop = Loop(t, mlp([10, 64, 64, 1]), split, sgd(0.05), nn.MSELoss(), batch_size=32)
    visible = any_of(enormous(100.0), non_finite)
    loop.run(
        60 if t.sick else 200,
        visible=visible,
        learned=lambda p: sum(p.losses[-20:]) < 0.7 * 20,
    )


@first.sick(
    "ExplodingGradient PoorWeightInitialization ExplodingTensor",
    "weights with four times He's deviation in ten layers",
)
def explosive_depth(t: Training) -> None:
    """Gradients that grow fourfold from layer to layer.

    Source: He et al. 2015; Hanin 2018, "Which Neural Net Architectures Give Rise To
    Exploding and Vanishing Gradients?"  Visible: at 5 steps in a row the norm of a
    weight's gradient is more than 1000, or something is not finite.
    """
    held = 0

    def large(p: Probe) -> bool:
        nonlocal held
        norms = [
            float(q.grad.double().norm())
            for q in p.model.parameters()
            if q.grad is not None
        ]
        held = held + 1 if not max(norms) <= 1000 else 0
        return held >= 5 or non_finite(p)

    model = mlp([64] * 10 + [10])
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if t.sick:
                module.weight.data.mul_(4.0)
    loop = Loop(t, model, digits(), sgd(0.02))
    loop.run(160, visible=large, learned=0.7)


@first.sick(
    "ExplodingGradient LossSpike ExplodingTensor",
    "a recurrent network of large weights without clipping",
)
def unclipped_recurrence(t: Training) -> None:
    """Gradients through 40 steps of time explode; nobody clips them.

    Source: Pascanu, Mikolov, Bengio 2013, "On the difficulty of training recurrent
    neural networks". The twin clips at 0.5.  Visible: when the norm of the gradients is
    more than 30 times that of the first step, or something is not finite.
    """
    model = CharacterModel(N_CHARACTERS, 64, nn.RNN)
    model.cell = nn.RNN(32, 64, batch_first=True, nonlinearity="relu")
    nn.init.orthogonal_(model.cell.weight_hh_l0, 1.15)
    stream = text()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        return windows(stream, t.draw(len(stream) - 50, 16), 40)

    def learned(p: Probe) -> bool:
        return sum(p.losses[-10:]) < 0.8 * 10 * p.losses[0]

    some = windows(stream, torch.arange(0, 640, 40), 40)
    split = Split(*some, *some)
    loop = Loop(
        t, model, split, sgd(0.5), batches=batches, clip=None if t.sick else 0.5
    )
    loop.run(120, visible=any_of(enormous(30.0), non_finite), learned=learned)


@fourth.sick(
    "ExplodingGradient ExplodingTensor LossNotDecreasing WeightUpdateRatio LossSpike",
    'reduction="sum" with the rate that fits a mean',
)
def summed_over_the_batch(t: Training) -> None:
    """The loss becomes a sum over 128 rows; the learning rate stays what it was.

    Source: questions on reduction="sum" and size_average=False in PyTorch's forum.
    Visible: for ten steps, the loss is ten times the first one, or not finite.
    """
    split = patients()
    middle, deviation = split.x.mean(0), split.x.std(0)
    split = split.inputs(lambda x: (x - middle) / deviation)
    reduction = "sum" if t.sick else "mean"
    model = mlp([10, 48, 24, 1])

    def lost(p: Probe) -> bool:
        return not p.losses[-1] <= 10 * p.losses[0]

    def explained(p: Probe) -> bool:
        return bool((p.outputs() - split.y).pow(2).mean() < 0.6 * split.y.var())

    criterion = nn.MSELoss(reduction=reduction)
    loop = Loop(t, model, split, sgd(0.05, momentum=0.9), criterion, batch_size=128)
    loop.run(120, visible=lasting(lost, 10), learned=explained)


class Unrolled(nn.Module):
    """A simple recurrent network that reads an image pixel by pixel."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, width, batch_first=True, nonlinearity="relu")
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.rnn(images[:, :, None])[0][:, -1])


@second.sick(
    "ExplodingGradient ExplodingTensor LossSpike",
    "a recurrent network over 64 steps, without clipping",
)
def recurrence_without_clipping(t: Training) -> None:
    """The identity as recurrent weights, over 64 pixels, and nothing holds them.

    Source: Pascanu et al. 2013; Le et al. 2015.  Visible: when the norm of the gradient
    is above 1000, or something is not finite.
    """
    model = Unrolled(24)
    recurrent = dict(model.named_parameters())["rnn.weight_hh_l0"]
    nn.init.eye_(recurrent)
    with torch.no_grad():
        recurrent.mul_(1.0 if t.sick else 0.95)

    def huge(p: Probe) -> bool:
        grads = [w.grad for w in p.model.parameters() if w.grad is not None]
        return float(torch.stack([g.norm() for g in grads]).norm()) > 1000

    optimizer = sgd(0.01, momentum=0.9)
    loop = Loop(
        t, model, digits(), optimizer, batch_size=32, clip=None if t.sick else 1.0
    )
    loop.run(300, visible=any_of(huge, non_finite), learned=loss_below(2.2))


@second.sick(
    "ExplodingGradient ExplodingTensor WeightUpdateRatio LossNotDecreasing LossSpike",
    "the loss is the sum over the batch, the rate one for the mean",
)
def sum_over_the_batch(t: Training) -> None:
    """reduction="sum" in a regression; the batch has 128 rows.

    Source: losses written by hand.  Visible: when the mean loss of ten batches is twice
    that of the first, or something is not finite.
    """
    model = mlp([8, 64, 1], nn.ReLU)

    def grown(p: Probe) -> bool:
        return len(p.losses) > 10 and mean(p.losses[-10:]) > 2 * p.losses[0]

    criterion = nn.MSELoss(reduction="sum" if t.sick else "mean")
    optimizer = sgd(0.05, momentum=0.9)
    loop = Loop(t, model, houses(scaled=True), optimizer, criterion, batch_size=128)
    loop.run(200, visible=any_of(grown, non_finite), learned=loss_below(0.3))


@third.sick(
    "ExplodingGradient ExplodingTensor WeightUpdateRatio LossNotDecreasing "
    "LossSpike DeadRelu",
    "the scale of the loss is never taken out of the gradients",
)
def scale_never_taken_out(t: Training) -> None:
    """The loss times 1024 for half precision; the division was lost in a rewrite.

    Source: mixed precision by hand.  Visible: when the loss is not finite or, for ten
    steps, above twice the first.
    """
    split = digits()
    model, criterion = mlp([64, 48, 10]), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    scale = 1024.0
    real: list[float] = []

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 64)
        loss: Tensor = criterion(model(split.x[chosen]), split.y[chosen])
        real.append(float(loss.detach()))
        return loss * scale

    def unscale() -> None:
        for weight in model.parameters():
            if weight.grad is not None and not t.sick:
                weight.grad /= scale

    train(
        t,
        loss_of,
        SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=200,
        after_backward=unscale,
        visible=lambda _: len(real) > 10 and not min(real[-10:]) <= 2 * real[0],
    )
    t.learned(mean(real[-20:]) < 0.3)


@third.sick(
    "GradientsNotCleared ExplodingGradient LossSpike WeightUpdateRatio "
    "LossNotDecreasing ExplodingTensor DeadRelu",
    "of two optimizers only one is zeroed: the trunk's gradients add up",
)
def zero_grad_of_the_other(t: Training) -> None:
    """Two optimizers for trunk and head; the script zeroes the head's.

    Source: PyTorch's forum on GANs and actor-critics.  Visible: when for ten steps the
    trunk's gradient has been ten times that of its batch alone.
    """
    split = digits()
    model, criterion = mlp([64, 48, 48, 10]), nn.CrossEntropyLoss()
    alone = Shadow(model)
    trunk = SGD(model[:4].parameters(), 0.1)
    head = SGD(model[4].parameters(), 0.1)
    t.watch(model, criterion, optimizer=head)
    times = 0
    losses = []
    for _ in t.steps(250):
        chosen = t.draw(len(split.x), 64)
        head.zero_grad()
        if not t.sick:
            trunk.zero_grad()
        # The copy has the weights of before the step, as the batch has.
        copy = alone()
        loss: Tensor = criterion(model(split.x[chosen]), split.y[chosen])
        loss.backward()
        of_batch = torch.autograd.grad(
            nn.functional.cross_entropy(copy(split.x[chosen]), split.y[chosen]),
            next(copy.parameters()),
        )[0]
        summed = next(model.parameters()).grad
        large = summed is not None and bool(summed.norm() > 10 * of_batch.norm())
        times = times + 1 if large else 0
        trunk.step()
        head.step()
        losses.append(float(loss.detach()))
        t.visible(times >= 10)
    t.note(last_loss=mean(losses[-10:]))
    t.learned(mean(losses[-10:]) < 0.8)
