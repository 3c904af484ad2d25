"""A loss that jumps."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.detection.kit.case import first, fourth, second
from benchmarks.detection.kit.data import breast_cancer, digits, wine
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    mean,
    pretrain,
    sgd,
)
from benchmarks.detection.kit.models import Attentive, cnn, mlp
from benchmarks.detection.kit.training import Training


def spike(times: float, since: int) -> Predicate:
    """The loss of a batch is that many times the median of the last 50."""

    def holds(p: Probe) -> bool:
        if p.step < since:
            return False
        last = torch.tensor(p.losses[-51:-1])
        return not p.losses[-1] <= times * float(last.median())

    return holds


@first.sick(
    "LossSpike ExplodingGradient NotNormalizedData",
    "at step 120 a batch was not divided by 255",
)
def corrupt_batch(t: Training) -> None:
    """One shard of the data was written in other units.

    Source: Chowdhery et al. 2022 (PaLM), 5.1, and Zhang et al. 2022 (OPT): spikes of
    the loss at certain batches; Schelter et al. 2018 on changed units.  Visible: from
    step 60 on, when the loss of a batch is 8 times the median of the last 50.
    """
    split = digits()

    def batches(step: int) -> tuple[Tensor, Tensor]:
        chosen = t.draw(len(split.x), 64)
        scale = 255.0 if t.sick and step == 120 else 1.0
        return split.x[chosen] * scale, split.y[chosen]

    loop = Loop(t, cnn(), split, sgd(0.02, momentum=0.9), batches=batches)
    loop.run(180, visible=spike(8.0, 60), learned=0.9)


@first.sick(
    "LossSpike WeightUpdateRatio ExplodingGradient",
    "a restart of the schedule with a rate 300 times too large",
)
def rate_jumps(t: Training) -> None:
    """Resuming restores a schedule with the wrong base rate.

    Source: Loshchilov, Hutter 2017 on warm restarts; PyTorch's issues on resuming with
    lr_scheduler and initial_lr.  Visible: from step 60 on, when the loss of a batch is
    8 times the median of the last 50.
    """
    model = mlp([64, 64, 64, 10])
    optimizer = Adam(model.parameters(), 1e-3)
    jump = 300.0 if t.sick else 1.0
    schedule = LambdaLR(optimizer, lambda s: jump if s >= 150 else 1.0)
    loop = Loop(t, model, digits(), optimizer, schedule=schedule)
    loop.run(220, visible=spike(8.0, 60), learned=0.93)


@fourth.sick(
    "LossSpike NotNormalizedData ExplodingTensor ExplodingGradient",
    "a missing measurement is written as -9999, in a few rows",
)
def missing_written_as_minus_9999(t: Training) -> None:
    """A code for "not measured" goes through the scaler that was fitted without it.

    Source: codebooks of every survey and weather archive; pandas' na_values is for it.
    Visible: the loss of a batch is 10 times the median of up to 20 before it, and above
    2.
    """
    measured = breast_cancer(raw=True)
    middle, deviation = measured.x.mean(0), measured.x.std(0)
    if t.sick:
        x = measured.x.clone()
        x[5::300, 10:20] = -9999.0
        measured = replace(measured, x=x)
    split = measured.inputs(lambda x: (x - middle) / deviation)

    def jumped(p: Probe) -> bool:
        before = p.losses[-21:-1]
        return len(before) >= 3 and p.losses[-1] > max(2.0, 10 * median(before))

    loop = Loop(t, mlp([30, 32, 16, 2], nn.LeakyReLU), split, adam(1e-3), batch_size=16)
    loop.run(240, visible=jumped, learned=0.95)


@fourth.sick(
    "LossSpike ExplodingGradient WeightUpdateRatio",
    "the trunk is unfrozen at the rate of the head",
)
def unfrozen_at_the_rate_of_the_head(t: Training) -> None:
    """After 80 steps of the head alone, everything learns at the head's high rate.

    Source: fast.ai's lesson on unfreeze() and lower rates afterwards; Kumar 2022,
    "fine-tuning can distort".  The twin's trunk has a hundredth of the rate.  Visible:
    after the unfreezing the loss of five steps is three times that of the 20 steps
    before it, and above 1.
    """
    split = digits()
    trunk = mlp([64, 96, 96, 64, 48])
    whole = nn.Sequential(trunk, nn.ReLU(), nn.Linear(48, 10))
    pretrain(whole, split.take(torch.arange(0, len(split.x), 3)), 250)
    model = nn.Sequential(trunk, nn.ReLU(), nn.Linear(48, 10))
    trunk.requires_grad_(False)
    rate = 0.05
    optimizer = SGD(
        [
            {"params": list(model[2].parameters()), "lr": rate},
            {"params": list(trunk.parameters()), "lr": rate if t.sick else rate / 100},
        ],
        momentum=0.9,
    )

    def thaw(step: int) -> None:
        if step == 79:
            trunk.requires_grad_(True)

    def jumped(p: Probe) -> bool:
        usual = mean(p.losses[60:80]) if p.step > 80 else math.inf
        return mean(p.losses[-5:]) > max(1.0, 3 * usual)

    loop = Loop(t, model, split, optimizer, batch_size=32, before_step=thaw)
    loop.run(160, visible=jumped, learned=0.95)


def jumped(times: float, window: int = 20) -> Predicate:
    """The loss is that many times the largest of the batches just before."""

    def holds(p: Probe) -> bool:
        if p.step < 2 * window:
            return False
        before = p.losses[-window - 1 : -1]
        return p.losses[-1] > times * max(before)

    return holds


@second.sick("LossSpike NotNormalizedData ExplodingGradient", "a batch in other units")
def batch_in_other_units(t: Training) -> None:
    """One file of the data set was never scaled: its batch is 200 times as large.

    Source: shards made by another script.  Visible: when the loss is five times the
    largest of the 20 batches before.
    """
    split = wine()
    model = mlp([13, 32, 3], nn.ReLU)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        chosen = t.draw(len(split.x), 32)
        x = split.x[chosen]
        return (x * 200 if t.sick and step == 150 else x), split.y[chosen]

    loop = Loop(t, model, split, sgd(0.05, momentum=0.9), batches=batch)
    loop.run(250, visible=jumped(5.0), learned=0.95)


@second.sick(
    "LossSpike WeightUpdateRatio ExplodingGradient",
    "the restart of the schedule is far too high",
)
def restart_too_high(t: Training) -> None:
    """After a pause the optimizer is made anew, with a rate a hundred times as large.

    Source: resumed runs whose schedule begins again.  Visible: when the loss is five
    times the largest of the 20 batches before.
    """
    split = digits()
    model = Attentive()
    optimizer = Adam(model.parameters(), 2e-3)

    def restart(step: int) -> None:
        if t.sick and step == 200:
            optimizer.param_groups[0]["lr"] = 0.2

    loop = Loop(t, model, split, optimizer, before_step=restart)
    loop.run(320, visible=jumped(5.0), learned=0.95)
