"""Learning rates of zero, and updates too large or too small for their weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    ExponentialLR,
    LambdaLR,
    LinearLR,
    ReduceLROnPlateau,
    StepLR,
)

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import digits, pictures, wine, words
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    adamw,
    mean,
    sgd,
    train,
)
from benchmarks.detection.kit.models import Attentive, Encoder, cnn, mlp
from benchmarks.detection.kit.probes import (
    below_accuracy,
    lasting,
    loss_above,
    loss_below,
    since,
    stands,
)
from benchmarks.detection.kit.training import Training


def predictions_stand(n: int, accuracy: float, since: int = 0) -> Predicate:
    """In *n* steps no prediction has changed, though accuracy is below a limit."""
    before: list[Tensor] = []

    def holds(p: Probe) -> bool:
        if p.step % 10:
            return False
        said = p.outputs()
        before.append(said.argmax(1))
        if p.step < since + n or len(before) <= n // 10:
            return False
        same = bool((before[-1] == before[-1 - n // 10]).all())
        return same and p.accuracy() < accuracy

    return holds


@first.sick(
    "ZeroLearningRate UnchangedTensor WeightUpdateRatio LossNotDecreasing",
    "step // warmup is 0 for all of the warm-up",
)
def warm_up_by_integers(t: Training) -> None:
    """A warm-up with an integer division: the rate is zero until it is over.

    Source: Humbatova et al. 2020: wrong learning rate schedule; LambdaLR on the forum.
    Visible: in 40 steps no prediction for the training data has changed, though
    accuracy is below 50 %.
    """
    model = mlp([64, 64, 10])
    optimizer = Adam(model.parameters(), 3e-3)
    warm = (lambda s: s // 100) if t.sick else (lambda s: min(1.0, (s + 1) / 50))
    loop = Loop(t, model, digits(), optimizer, schedule=LambdaLR(optimizer, warm))
    loop.run(180, visible=predictions_stand(40, 0.5), learned=0.93)


@first.sick(
    "ZeroLearningRate UnchangedTensor WeightUpdateRatio",
    "the schedule ends at step 30, the training at 200",
)
def schedule_too_short(t: Training) -> None:
    """The number of steps of a linear decay was that of one epoch, not of all.

    Source: transformers' issues on num_training_steps; Humbatova et al. 2020.  Visible:
    in 40 steps no prediction for the training data has changed, though accuracy is
    below 80 %.
    """
    model = mlp([64, 64, 10])
    optimizer = Adam(model.parameters(), 2e-3)
    end = 20 if t.sick else 200
    schedule = LambdaLR(optimizer, lambda s: max(0.0, 1 - s / end))
    loop = Loop(t, model, digits(), optimizer, schedule=schedule)
    loop.run(200, visible=predictions_stand(40, 0.8), learned=0.88)


@first.sick(
    "VanishingLearningRate WeightUpdateRatio LossNotDecreasing ZeroLearningRate",
    "the learning rate is decayed at each batch instead of each epoch",
)
def decay_per_batch(t: Training) -> None:
    """scheduler.step() stands in the inner loop.

    Source: PyTorch's documentation of lr_scheduler and its forum; Humbatova et al.
    2020: wrong learning rate schedule.  Visible: in 50 steps no prediction for the
    training data has changed, though accuracy is below 80 %.
    """
    model = mlp([64, 64, 10])
    optimizer = SGD(model.parameters(), 0.1)
    schedule = ExponentialLR(optimizer, 0.8 if t.sick else 0.8 ** (1 / 21))
    loop = Loop(t, model, digits(), optimizer, schedule=schedule)
    loop.run(250, visible=predictions_stand(50, 0.8), learned=0.8)


@first.sick("WeightUpdateRatio LossNotDecreasing", "Adam with a learning rate of 1e-9")
def rate_of_another_framework(t: Training) -> None:
    """A learning rate so small that the weights do not move.

    Source: AutoTrainer's slow convergence (Zhang et al. 2021); UMLAUT: learning rate
    out of range.  Visible: in 50 steps no prediction for the training data has changed,
    though accuracy is below 60 %.
    """
    loop = Loop(t, mlp([64, 64, 10], nn.Tanh), digits(), adam(1e-9 if t.sick else 3e-3))
    loop.run(200, visible=predictions_stand(50, 0.6), learned=0.9)


@first.sick(
    "WeightUpdateRatio LossNotDecreasing DeadRelu ExplodingGradient "
    "PoorWeightInitialization",
    "Adam with a learning rate of 1",
)
def adam_rate_one(t: Training) -> None:
    """A learning rate that suits SGD is given to Adam.

    Source: Karpathy 2019 ("3e-4 is the best learning rate for Adam"); UMLAUT: learning
    rate out of range; Zhang et al. 2018.  Visible: from step 40 on, the mean loss of
    the last 20 batches is above 2.
    """
    loop = Loop(t, mlp([64, 64, 64, 10]), digits(), adam(1.0 if t.sick else 3e-3))
    loop.run(150, visible=loss_above(2.0, 40), learned=0.9)


@first.sick(
    "WeightUpdateRatio ExplodingGradient ExplodingTensor DeadRelu LossNotDecreasing",
    "the loss is summed over the batch, the rate is for its mean",
)
def summed_loss(t: Training) -> None:
    """reduction="sum" makes gradients 64 times as large.

    Source: PyTorch forum on reduction="sum" and the learning rate; Goyal et al. 2017 on
    scaling the rate with the batch.  Visible: from step 40 on, the mean loss of the
    last 20 batches, of one example, is above 1.8.
    """
    model = mlp([64, 64, 64, 10])
    criterion = nn.CrossEntropyLoss(reduction="sum" if t.sick else "mean")
    loop = Loop(t, model, digits(), sgd(0.1, momentum=0.9), criterion)
    loop.run(150, visible=loss_above(1.8 * 64, 40), learned=0.9)


def churns(share: float, patience: int) -> Predicate:
    """At each step the predictions for that share of the training data change."""
    before: Tensor | None = None

    def holds(p: Probe) -> bool:
        nonlocal before
        now = p.outputs().argmax(1)
        changed = 0.0 if before is None else float((now != before).float().mean())
        before = now
        return changed > share

    return lasting(holds, patience)


@first.sick(
    "WeightUpdateRatio LossNotDecreasing ExplodingGradient",
    "a learning rate of 3 makes the loss jump to and fro",
)
def oscillation(t: Training) -> None:
    """The steps are so long that each one undoes the last.

    Source: AutoTrainer's oscillating loss; Karpathy 2019.  Visible: at 10 steps in a
    row the predictions for more than 15 % of the training data change.
    """
    model = mlp([64, 64, 10], nn.Tanh)
    optimizer = sgd(3.0 if t.sick else 0.05, momentum=0.9)
    loop = Loop(t, model, digits(), optimizer, batch_size=32)
    loop.run(150, visible=churns(0.15, 10), learned=0.95)


@first.sick(
    "WeightUpdateRatio LossNotDecreasing DeadRelu ExplodingTensor",
    "a typing error: 5.0 instead of 0.05",
)
def rate_of_five(t: Training) -> None:
    """A learning rate that is a hundred times too large.

    Source: Humbatova et al. 2020: suboptimal learning rate; DeepFD's faults.  Visible:
    from step 60 on, the mean loss of the last 20 batches is above 2.
    """
    loop = Loop(t, cnn(), digits(), sgd(5.0 if t.sick else 0.05, momentum=0.9))
    loop.run(150, visible=loss_above(2.0, 60), learned=0.7)


@fourth.sick(
    "WeightUpdateRatio ExplodingGradient ExplodingTensor LossNotDecreasing",
    "the learning rate is multiplied by the batch's size, not by size / 256",
)
def scaled_by_the_batch(t: Training) -> None:
    """Lr = 0.1 * batch_size, where the rule of Goyal 2017 has a 256 below it.

    Source: scripts that say "linear scaling rule".  Visible: from 60 on, less than half
    of the digits is recognized.
    """
    size = 128
    model = mlp([64, 96, 48, 10], nn.ReLU, norm=nn.LayerNorm)
    rate = 0.1 * size if t.sick else 0.1 * size / 256
    loop = Loop(t, model, digits(), sgd(rate, momentum=0.9), batch_size=size)
    loop.run(140, visible=below_accuracy(0.5, since=60), learned=0.95)


@fourth.sick(
    "ZeroLearningRate UnchangedTensor LossNotDecreasing",
    "warm-up counted in epochs: the whole first epoch has a rate of zero",
)
def warm_up_by_epochs(t: Training) -> None:
    """LambdaLR(lambda epoch: epoch / 5), stepped once an epoch, begins with 0 / 5.

    Source: the forum on warm-up with LambdaLR.  Visible: for 20 steps nothing moves.
    """
    split = digits()
    model = cnn(6)
    optimizer = AdamW(model.parameters(), 4e-3)
    schedule = LambdaLR(optimizer, lambda k: min(1.0, k / 5 if t.sick else (k + 1) / 5))
    per_epoch = -(-len(split.x) // 32)

    def at_the_end_of_an_epoch(step: int) -> None:
        if step % per_epoch == per_epoch - 1:
            schedule.step()

    loop = Loop(
        t,
        model,
        split,
        optimizer,
        batch_size=32,
        epochs=True,
        before_step=at_the_end_of_an_epoch,
    )
    loop.run(3 * per_epoch, visible=stands([], 20), learned=0.8)


@fourth.sick(
    "ZeroLearningRate UnchangedTensor LossNotDecreasing",
    "the schedule was restored too, and it had ended",
)
def resumed_at_the_end_of_the_schedule(t: Training) -> None:
    """scheduler.load_state_dict for a second training: its cosine is over, at zero.

    Source: questions on resuming that continue with a rate of 0; Hugging Face's
    resume_from_checkpoint with the same num_train_epochs.  Visible: for 20 steps
    nothing moves.
    """
    model = mlp([13, 32, 3], nn.ELU)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    total = 400
    done = total if t.sick else 0
    schedule = LambdaLR(optimizer, lambda k: max(0.0, 1 - (k + done) / total))
    loop = Loop(
        t, model, wine(), optimizer, batch_size=16, schedule=schedule, validate_every=45
    )
    loop.run(180, visible=stands([], 20), learned=0.95)


@fourth.sick(
    "WeightUpdateRatio UnchangedTensor",
    "each layer learns at a tenth of the rate of the one above: from scratch",
)
def discount_per_layer(t: Training) -> None:
    """Layer-wise rates of fine-tuning (0.1 per layer) are used without a checkpoint.

    Source: Howard and Ruder 2018, "discriminative fine-tuning", and its copies.
    Visible: after 60 steps the first layer has moved by less than a thousandth of
    itself, the last by more than a hundredth.
    """
    model = mlp([64, 64, 64, 64, 64, 10], nn.GELU)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    discount = 0.1 if t.sick else 0.9
    groups = [
        {"params": list(layer.parameters()), "lr": 5e-3 * discount**above}
        for above, layer in enumerate(reversed(layers))
    ]
    began = [layer.weight.detach().clone() for layer in layers]

    def lopsided(_: Probe) -> bool:
        moved = [
            float((layer.weight.detach() - old).norm() / old.norm())
            for layer, old in zip(layers, began, strict=True)
        ]
        return moved[0] < 1e-3 and moved[-1] > 1e-2

    loop = Loop(t, model, digits(), Adam(groups), batch_size=64)
    loop.run(180, visible=since(60, lopsided), learned=0.95)


@second.sick(
    "WeightUpdateRatio LossNotDecreasing", "Adam was given the learning rate of SGD"
)
def rate_of_sgd_for_adam(t: Training) -> None:
    """lr=0.3 stayed when SGD was replaced by Adam.

    Source: optimizers compared at one rate.  Visible: at 40, when the loss of 20
    batches is what guessing costs, or worse.
    """
    loop = Loop(t, cnn(), digits(), adam(0.3 if t.sick else 3e-3))
    loop.run(200, visible=loss_above(2.29, since=40), learned=0.9)


def hardly_moved(ratio: float, patience: int) -> Predicate:
    """No weight matrix has moved by that share of itself in so many steps."""
    history: list[list[Tensor]] = []

    def holds(p: Probe) -> bool:
        now = [w.detach().clone() for w in p.model.parameters() if w.dim() > 1]
        history.append(now)
        if len(history) <= patience:
            return False
        then = history.pop(0)
        return all(
            bool((a - b).norm() < ratio * a.norm())
            for a, b in zip(now, then, strict=True)
        )

    return holds


@second.sick(
    "WeightUpdateRatio LossNotDecreasing",
    "a rate for fine-tuning, though nothing was trained before",
)
def rate_for_fine_tuning(t: Training) -> None:
    """AdamW with 1e-6 trains a transformer from scratch.

    Source: copied scripts of fine-tuning.  Visible: at 100, when in 100 steps no matrix
    has moved by a hundredth.
    """
    split = words(600)
    model = Encoder(620, 5)
    loop = Loop(t, model, split, adamw(1e-6 if t.sick else 2e-3), batch_size=48)
    loop.run(240, visible=hardly_moved(0.01, 100), learned=0.7)


class MeanOfMean(nn.MSELoss):
    """The mean, divided once more by the number of elements."""

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        return super().forward(out, target) / out.numel()


@second.sick(
    "WeightUpdateRatio LossNotDecreasing",
    "the loss is divided by the number of pixels twice",
)
def mean_of_mean(t: Training) -> None:
    """Loss = MSELoss()(x, y) / x.numel(), with SGD.

    Source: sums turned into means.  Visible: at 100, when in 100 steps no matrix has
    moved by a hundredth.
    """
    model = mlp([64, 48, 12, 48, 64], nn.ELU)
    criterion = MeanOfMean() if t.sick else nn.MSELoss()
    loop = Loop(t, model, pictures(), sgd(0.5, momentum=0.9), criterion)
    loop.run(260, visible=hardly_moved(0.01, 100), learned=loss_below(0.08))


@second.sick(
    "ZeroLearningRate UnchangedTensor LossNotDecreasing",
    "a warm-up by integer division: the rate is zero",
)
def warm_up_rounded_down(t: Training) -> None:
    """LambdaLR(lambda step: min(1, step // 1000)).

    Source: // for /.  Visible: after 30 steps in which no weight has moved.
    """
    split = digits()
    model = Attentive()
    optimizer = AdamW(model.parameters(), 3e-3)

    def factor(step: int) -> float:
        return min(1.0, step // 1000) if t.sick else min(1.0, (step + 1) / 50)

    every_weight = [name for name, _ in model.named_parameters()]
    loop = Loop(t, model, split, optimizer, schedule=LambdaLR(optimizer, factor))
    loop.run(200, visible=stands(every_weight, 30), learned=0.9)


@second.sick(
    "ZeroLearningRate UnchangedTensor",
    "the schedule ends after a third of the training",
)
def decay_ends_too_soon(t: Training) -> None:
    """LinearLR to zero over 100 steps, for a training of 300.

    Source: total_steps of another batch size.  Visible: after 20 steps in which no
    weight has moved, 200 steps before the end.
    """
    split = wine()
    model = mlp([13, 24, 24, 3], nn.Mish)
    optimizer = SGD(model.parameters(), 0.05)
    every_weight = [name for name, _ in model.named_parameters()]
    loop = Loop(
        t,
        model,
        split,
        optimizer,
        batch_size=16,
        schedule=LinearLR(
            optimizer, 1.0, 0.0 if t.sick else 0.1, total_iters=80 if t.sick else 300
        ),
    )
    loop.run(300, visible=stands(every_weight, 20), learned=0.95)


@second.sick(
    "ZeroLearningRate LossNotDecreasing Underfitting WeightUpdateRatio UnchangedTensor",
    "a schedule of epochs is stepped in every batch",
)
def schedule_in_the_batch_loop(t: Training) -> None:
    """StepLR(10, 0.1) is stepped per batch: after 70 batches the rate is 1e-9.

    Source: the forum, "scheduler.step() in the inner loop".  Visible: at 120, when the
    rate is below a millionth of its first value and the loss is high.
    """
    split = digits()
    model = cnn()
    optimizer = SGD(model.parameters(), 0.02, momentum=0.9)
    schedule = StepLR(optimizer, 10 if t.sick else 210, 0.1)
    loop = Loop(t, model, split, optimizer, schedule=schedule)
    loop.run(
        260,
        visible=lambda p: (
            p.step >= 120
            and optimizer.param_groups[0]["lr"] < 2e-8
            and mean(p.losses[-20:]) > 0.5
        ),
        learned=0.9,
    )


@third.sick(
    "ZeroLearningRate WeightUpdateRatio LossNotDecreasing UnchangedTensor Underfitting",
    "ReduceLROnPlateau waits for the loss to rise",
)
def plateau_in_mode_max(t: Training) -> None:
    """mode="max", copied from a script that gave it the accuracy.

    Source: PyTorch's forum.  Visible: when the rate has come below a thousandth of the
    first, though the validation loss is above 0.5.
    """
    split = digits()
    model, criterion = mlp([64, 48, 10]), nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.05, momentum=0.5)
    schedule = ReduceLROnPlateau(
        optimizer, "max" if t.sick else "min", factor=0.1, patience=1
    )
    t.watch(model, criterion)
    last = math.inf

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 64)
        return criterion(model(split.x[chosen]), split.y[chosen])

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


@third.sick(
    "WeightUpdateRatio LossNotDecreasing ZeroLearningRate Underfitting",
    "LambdaLR was given rates, not factors: the rate is squared",
)
def rate_times_itself(t: Training) -> None:
    """lr_lambda=lambda step: 3e-3 * 0.995**step, multiplied by the rate of 3e-3.

    Source: the docs' "multiplicative factor", read too fast.  Visible: from the 100th
    step on, when the loss has come down by less than a tenth.
    """
    model = mlp([64, 64, 10])
    rate = 3e-3
    optimizer = Adam(model.parameters(), rate)
    schedule = LambdaLR(optimizer, lambda step: (rate if t.sick else 1.0) * 0.995**step)
    loop = Loop(t, model, digits(), optimizer, schedule=schedule)
    visible = since(100, lambda p: mean(p.losses[-20:]) > 0.9 * mean(p.losses[:5]))
    loop.run(250, visible=visible, learned=0.9)


@third.sick(
    "WeightUpdateRatio LossNotDecreasing VanishingGradient UnchangedTensor "
    "PrecisionLoss",
    "gradients are clipped while they are scaled: 1e-5 of them is left",
)
def clipped_before_unscaling(t: Training) -> None:
    """The norm is clipped to 1, and then divided by the loss' scale of 65536.

    Source: PyTorch's examples of automatic mixed precision.  Visible: from the 80th
    step on, when the loss has come down by less than a twentieth.
    """
    split, scale = digits(), 65536.0
    model, criterion = mlp([64, 64, 10]), nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
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
