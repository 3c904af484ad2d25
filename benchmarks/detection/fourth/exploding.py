"""Numbers that grow until they are none, and losses that jump."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    N_CHARACTERS,
    breast_cancer,
    digits,
    text,
    windows,
)
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import lasting, non_finite
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.fourth.material import patients
from benchmarks.detection.third.views import mean, pretrain, train


@sick(
    named_by={
        "ExplodingGradient",
        "ExplodingTensor",
        "LossNotDecreasing",
        "WeightUpdateRatio",
        "LossSpike",
    },
    diagnosis='reduction="sum" with the rate that fits a mean',
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

    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        nn.MSELoss(reduction=reduction),
        n_steps=120,
        batch_size=128,
        visible=lasting(lost, 10),
        learned=explained,
    )


class Attends(nn.Module):
    """One head of attention over characters, with a mask made by hand."""

    def __init__(self, diagonal: int) -> None:
        super().__init__()
        self.diagonal = diagonal
        self.embedding = nn.Embedding(N_CHARACTERS, 48)
        self.place = nn.Embedding(24, 48)
        self.query_key_value = nn.Linear(48, 144)
        self.mix = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.head = nn.Linear(48, N_CHARACTERS)

    def forward(self, rows: Tensor) -> Tensor:
        n = rows.shape[1]
        x = self.embedding(rows) + self.place(torch.arange(n))
        query, key, value = self.query_key_value(x).chunk(3, 2)
        later = torch.ones(n, n, dtype=torch.bool).triu(self.diagonal)
        scores = (query @ key.transpose(1, 2) / 48**0.5).masked_fill(later, -math.inf)
        x = x + scores.softmax(2) @ value
        out: Tensor = self.head(x + self.mix(x))
        return out.transpose(1, 2)


@sick(
    named_by={"ExplodingTensor"},
    diagnosis="triu(0): the first place may see nothing, and softmax of nothing is NaN",
)
def first_place_sees_nothing(t: Training) -> None:
    """The causal mask hides the diagonal too; a row of minus infinity is divided 0 / 0.

    Source: "loss is nan" under many re-implementations of GPT; the diagonal of triu.
    Visible: the loss, a weight or a gradient is not finite.
    """
    stream = text()
    model, criterion = Attends(0 if t.sick else 1), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows, wanted = windows(stream, t.draw(len(stream) - 25, 24), 24)
        loss: Tensor = criterion(model(rows), wanted)
        return loss

    losses = train(
        t,
        loss_of,
        torch.optim.AdamW(model.parameters(), 3e-3),
        n_steps=100,
        visible=lambda losses: not math.isfinite(losses[-1]),
    )
    t.learned(mean(losses[-10:]) < losses[0] - 1.0)


class Counts(nn.Module):
    """Poisson's loss by hand: the network says the log of the rate."""

    def forward(self, said: Tensor, wanted: Tensor) -> Tensor:
        return (said.exp() - wanted * said).mean()


@sick(
    named_by={
        "ExplodingTensor",
        "ExplodingGradient",
        "NotNormalizedData",
        "LossSpike",
        "LossNotDecreasing",
    },
    diagnosis="exp of an output for raw columns of hundreds: infinite",
)
def exponent_of_raw_columns(t: Training) -> None:
    """A regression with a log link is given blood values as they are.

    Source: Cameron and Trivedi's textbook example of counts, done by gradient descent;
    Stack Overflow on overflow in exp.  Visible: for ten steps, something is not
    finite or the loss above 4000, where a constant answer has less than 1.
    """
    split = patients()
    if not t.sick:
        middle, deviation = split.x.mean(0), split.x.std(0)
        split = split.inputs(lambda x: (x - middle) / deviation)

    def counts(y: Tensor) -> Tensor:
        return (2 * y + 4).clamp(min=0).round()

    split = replace(split, y=counts(split.y), y_val=counts(split.y_val))
    model = nn.Sequential(nn.Linear(10, 16), nn.Softplus(), nn.Linear(16, 1))

    def lost(p: Probe) -> bool:
        return non_finite(p) or p.losses[-1] > 4000

    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 5e-3),
        Counts(),
        n_steps=200,
        batch_size=32,
        visible=lasting(lost, 10),
        learned=lambda p: mean(p.losses[-20:]) < p.losses[0] - 1,
    )


@sick(
    named_by={"LossSpike", "NotNormalizedData", "ExplodingTensor", "ExplodingGradient"},
    diagnosis="a missing measurement is written as -9999, in a few rows",
)
def missing_written_as_minus_9999(t: Training) -> None:
    """A code for "not measured" goes through the scaler that was fitted without it.

    Source: codebooks of every survey and weather archive; pandas' na_values is for it.
    Visible: the loss of a batch is 10 times the median of up to 20 before it, and
    above 2.
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

    model = mlp([30, 32, 16, 2], nn.LeakyReLU)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 1e-3),
        n_steps=240,
        batch_size=16,
        visible=jumped,
        learned=0.95,
    )


@sick(
    named_by={"LossSpike", "ExplodingGradient", "WeightUpdateRatio"},
    diagnosis="the trunk is unfrozen at the rate of the head",
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
    optimizer = torch.optim.SGD(
        [
            {"params": list(model[2].parameters()), "lr": rate},
            {
                "params": list(trunk.parameters()),
                "lr": rate if t.sick else rate / 100,
            },
        ],
        momentum=0.9,
    )

    def thaw(step: int) -> None:
        if step == 79:
            trunk.requires_grad_(True)

    def jumped(p: Probe) -> bool:
        usual = mean(p.losses[60:80]) if p.step > 80 else math.inf
        return mean(p.losses[-5:]) > max(1.0, 3 * usual)

    fit(
        t,
        model,
        split,
        optimizer,
        n_steps=160,
        batch_size=32,
        before_step=thaw,
        visible=jumped,
        learned=0.95,
    )
