"""Backward, clip, step, zero: the calls are there, but not in that order or measure."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parametrizations

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import breast_cancer, digits, wine
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.training import Shadow, Training
from benchmarks.detection.third.views import constantly, mean, since, stand, train

NOTHING_MOVES = {
    "UnchangedTensor",
    "LossNotDecreasing",
    "WeightUpdateRatio",
    "VanishingGradient",
    "MissingGradient",
    "AllZero",
}


@sick(
    named_by=NOTHING_MOVES,
    diagnosis="zero_grad() stands between backward() and step()",
)
def zeroed_before_the_step(t: Training) -> None:
    """Gradients are thrown away before anybody has used them.

    Source: PyTorch's forum; Zhang 2018.  Visible: when in ten steps no weight has
    moved.
    """
    model = mlp([13, 32, 3])
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def zero(_: int) -> None:
        if t.sick:
            optimizer.zero_grad()

    fit(
        t,
        model,
        wine(),
        optimizer,
        n_steps=150,
        batch_size=32,
        before_step=zero,
        visible=constantly([name for name, _ in model.named_parameters()], 10),
        learned=0.97,
    )


@sick(
    named_by=NOTHING_MOVES,
    diagnosis="the loss was made a new tensor: backward() ends at it",
)
def loss_wrapped_anew(t: Training) -> None:
    """torch.tensor(loss, requires_grad=True), as the error message seemed to ask for.

    Source: PyTorch's forum, "element 0 of tensors does not require grad".  Visible:
    when in ten steps no weight has moved.
    """
    split = breast_cancer()
    model, criterion = mlp([30, 32, 2]), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    t.watch(model, criterion)
    still = stand(10)

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 32)
        loss: Tensor = criterion(model(split.x[chosen]), split.y[chosen])
        again = torch.tensor(float(loss.detach()), requires_grad=True)
        return again if t.sick else loss

    losses = train(
        t,
        loss_of,
        optimizer,
        n_steps=150,
        visible=lambda _: still(list(model.parameters())),
    )
    t.learned(mean(losses[-20:]) < 0.15)


@sick(
    named_by=NOTHING_MOVES,
    diagnosis="the norm of the gradients is clipped to 0",
)
def clip_at_nothing(t: Training) -> None:
    """max_grad_norm: 0, which was meant to say "do not clip".

    Source: configurations of trainers, of which some take 0 for "off".  Visible: when
    in ten steps no weight has moved.
    """
    model = cnn()
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=200,
        clip=0.0 if t.sick else 5.0,
        visible=constantly([name for name, _ in model.named_parameters()], 10),
        learned=0.9,
    )


@sick(
    named_by={
        "ZeroLearningRate",
        "WeightUpdateRatio",
        "LossNotDecreasing",
        "UnchangedTensor",
        "Underfitting",
    },
    diagnosis="ReduceLROnPlateau waits for the loss to rise",
)
def plateau_in_mode_max(t: Training) -> None:
    """mode="max", copied from a script that gave it the accuracy.

    Source: PyTorch's forum.  Visible: when the rate has come below a thousandth of the
    first, though the validation loss is above 0.5.
    """
    split = digits()
    model, criterion = mlp([64, 48, 10]), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.5)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, "max" if t.sick else "min", factor=0.1, patience=1
    )
    t.watch(model, criterion)
    last = math.inf

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 64)
        loss: Tensor = criterion(model(split.x[chosen]), split.y[chosen])
        return loss

    def validate(step: int) -> None:
        nonlocal last
        if step % 10 == 9:
            last, _ = t.evaluate(model, criterion, split.x_val, split.y_val)
            schedule.step(last)

    train(
        t,
        loss_of,
        optimizer,
        n_steps=300,
        after_step=validate,
        visible=lambda _: optimizer.param_groups[0]["lr"] < 4.9e-5 and last > 0.5,
    )
    t.note(validation=last)
    t.learned(last < 0.5)


@sick(
    named_by={
        "WeightUpdateRatio",
        "LossNotDecreasing",
        "ZeroLearningRate",
        "Underfitting",
    },
    diagnosis="LambdaLR was given rates, not factors: the rate is squared",
)
def rate_times_itself(t: Training) -> None:
    """lr_lambda=lambda step: 3e-3 * 0.995**step, multiplied by the rate of 3e-3.

    Source: the docs' "multiplicative factor", read too fast.  Visible: from the 100th
    step on, when the loss has come down by less than a tenth.
    """
    model = mlp([64, 64, 10])
    rate = 3e-3
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (rate if t.sick else 1.0) * 0.995**step
    )
    fit(
        t,
        model,
        digits(),
        optimizer,
        n_steps=250,
        schedule=schedule,
        visible=since(100, lambda p: mean(p.losses[-20:]) > 0.9 * mean(p.losses[:5])),
        learned=0.9,
    )


@sick(
    named_by={"NotInOptimizer", "UnchangedTensor"},
    diagnosis="weights were reparametrized after the optimizer was made",
)
def normed_after_the_optimizer(t: Training) -> None:
    """weight_norm() makes new parameters; the optimizer steps the old ones.

    Source: PyTorch's forum on weight_norm, spectral_norm and pruning.  Visible: when in
    20 steps the directions of the weights have not moved.
    """
    model = mlp([64, 48, 48, 10], nn.Tanh)
    parameters = list(model.parameters())
    for layer in (model[0], model[2]):
        parametrizations.weight_norm(layer)
    optimizer = torch.optim.Adam(
        parameters if t.sick else list(model.parameters()), 4e-3
    )
    lost = [f"{i}.parametrizations.weight.original1" for i in (0, 2)]
    fit(
        t,
        model,
        digits(),
        optimizer,
        n_steps=200,
        visible=constantly(lost, 20),
        learned=0.9,
    )


@sick(
    named_by={
        "WeightUpdateRatio",
        "LossNotDecreasing",
        "VanishingGradient",
        "UnchangedTensor",
        "PrecisionLoss",
    },
    diagnosis="gradients are clipped while they are scaled: 1e-5 of them is left",
)
def clipped_before_unscaling(t: Training) -> None:
    """The norm is clipped to 1, and then divided by the loss' scale of 65536.

    Source: PyTorch's examples of automatic mixed precision.  Visible: from the 80th
    step on, when the loss has come down by less than a twentieth.
    """
    split, scale = digits(), 65536.0
    model, criterion = mlp([64, 64, 10]), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    t.watch(model, criterion)
    real: list[float] = []

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 64)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(split.x[chosen])
        loss: Tensor = criterion(outputs.float(), split.y[chosen])
        real.append(float(loss.detach()))
        return loss * scale

    def unscale_and_clip() -> None:
        if t.sick:
            clip_grad_norm_(model.parameters(), 1.0)
        for weight in model.parameters():
            if weight.grad is not None:
                weight.grad /= scale
        if not t.sick:
            clip_grad_norm_(model.parameters(), 1.0)

    train(
        t,
        loss_of,
        optimizer,
        n_steps=200,
        after_backward=unscale_and_clip,
        visible=lambda _: len(real) > 80 and mean(real[-20:]) > 0.95 * mean(real[:5]),
    )
    t.learned(mean(real[-20:]) < 0.3)


@sick(
    named_by={
        "ExplodingGradient",
        "LossSpike",
        "WeightUpdateRatio",
        "LossNotDecreasing",
        "ExplodingTensor",
        "DeadRelu",
    },
    diagnosis="of two optimizers only one is zeroed: the trunk's gradients add up",
)
def zero_grad_of_the_other(t: Training) -> None:
    """Two optimizers for trunk and head; the script zeroes the head's.

    Source: PyTorch's forum on GANs and actor-critics.  Visible: when for ten steps the
    trunk's gradient has been ten times that of its batch alone.
    """
    split = digits()
    model, criterion = mlp([64, 48, 48, 10]), nn.CrossEntropyLoss()
    alone = Shadow(model)
    trunk = torch.optim.SGD(model[:4].parameters(), 0.1)
    head = torch.optim.SGD(model[4].parameters(), 0.1)
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
