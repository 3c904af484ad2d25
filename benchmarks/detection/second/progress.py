"""The loss does what it should not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    digits,
    wine,
)
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import (
    Attentive,
    Recurrent,
    cnn,
    mlp,
)
from benchmarks.detection.corpus.probes import loss_above
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.second.looks import (
    jumped,
    mean,
    plateau,
)
from benchmarks.detection.second.parts import houses


@sick(
    named_by={"LossNotDecreasing", "Underfitting"},
    diagnosis="inputs and labels are shuffled apart from each other",
)
def two_shuffles(t: Training) -> None:
    """x[perm()] and y[perm()]: the second call is another permutation.

    Source: hand-written loaders.  Visible: at 120, when the loss of a recurrent network
    is still what guessing costs.
    """
    split = digits()
    model = Recurrent(nn.LSTM)

    def batch(_: int) -> tuple[Tensor, Tensor]:
        chosen = t.draw(len(split.x), 48)
        other = t.draw(len(split.x), 48) if t.sick else chosen
        return split.x[chosen], split.y[other]

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=240,
        batches=batch,
        visible=loss_above(2.2, since=120),
        learned=0.8,
    )


@sick(
    named_by={"LossNotDecreasing", "Underfitting"},
    diagnosis="softmax before cross entropy",
)
def softmax_twice(t: Training) -> None:
    """The model ends in Softmax and the loss is CrossEntropyLoss.

    Source: the forum's most frequent loss mistake.  Visible: the loss cannot go below
    1.46 and stands there, or above, between two stretches of 50 batches.
    """
    split = digits()
    model = mlp([64, 32, 32, 10], nn.ReLU)
    if t.sick:
        model.append(nn.Softmax(1))
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=500,
        visible=plateau(1.45, since=200),
        learned=0.95,
    )


@sick(
    named_by={"LossNotDecreasing", "ExplodingGradient", "ExplodingTensor"},
    diagnosis="the loss is maximized",
)
def uphill(t: Training) -> None:
    """maximize=True was left over from a policy gradient.

    Source: objectives and losses in one code base.  Visible: the loss of 20 batches is
    twice what it began with.
    """
    split = houses(scaled=True)
    model = mlp([8, 32, 1], nn.Tanh)
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.01, maximize=t.sick),
        nn.MSELoss(),
        n_steps=300,
        visible=lambda p: (
            len(p.losses) > 20 and mean(p.losses[-20:]) > 2 * mean(p.losses[:5])
        ),
        learned=lambda p: mean(p.losses[-20:]) < 0.5,
    )


@sick(
    named_by={
        "ZeroLearningRate",
        "LossNotDecreasing",
        "Underfitting",
        "WeightUpdateRatio",
        "UnchangedTensor",
    },
    diagnosis="a schedule of epochs is stepped in every batch",
)
def schedule_in_the_batch_loop(t: Training) -> None:
    """StepLR(10, 0.1) is stepped per batch: after 70 batches the rate is 1e-9.

    Source: the forum, "scheduler.step() in the inner loop".  Visible: at 120, when the
    rate is below a millionth of its first value and the loss is high.
    """
    split = digits()
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    fit(
        t,
        model,
        split,
        optimizer,
        n_steps=260,
        schedule=torch.optim.lr_scheduler.StepLR(optimizer, 10 if t.sick else 210, 0.1),
        visible=lambda p: (
            p.step >= 120
            and optimizer.param_groups[0]["lr"] < 2e-8
            and mean(p.losses[-20:]) > 0.5
        ),
        learned=0.9,
    )


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="everything passes through a single unit",
)
def bottleneck_of_one(t: Training) -> None:
    """A layer of one unit in the middle: a width was mistaken for a depth.

    Source: configurations by position.  Visible: the loss is above 1 and stands there
    between two stretches of 50 batches.
    """
    split = digits()
    model = mlp([64, 32, 1 if t.sick else 16, 10], nn.ReLU)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=600,
        validate_every=50,
        visible=plateau(1.0, since=250),
        learned=0.95,
    )


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="weight decay keeps all weights near zero",
)
def decay_of_one(t: Training) -> None:
    """weight_decay=1 for Adam, which adds it to the gradient.

    Source: AdamW's values given to Adam.  Visible: the loss is near that of a constant
    and stands there between two stretches of 50 batches.
    """
    split = houses(scaled=True)
    model = mlp([8, 48, 48, 1], nn.ReLU)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(
            model.parameters(), 2e-3, weight_decay=1.0 if t.sick else 1e-5
        ),
        nn.MSELoss(),
        n_steps=400,
        validate_every=40,
        visible=plateau(0.7, since=150),
        learned=lambda p: mean(p.losses[-20:]) < 0.3,
    )


@sick(
    named_by={"LossSpike", "NotNormalizedData", "ExplodingGradient"},
    diagnosis="a batch in other units",
)
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

    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=250,
        batches=batch,
        visible=jumped(5.0),
        learned=0.95,
    )


@sick(
    named_by={"LossSpike", "WeightUpdateRatio", "ExplodingGradient"},
    diagnosis="the restart of the schedule is far too high",
)
def restart_too_high(t: Training) -> None:
    """After a pause the optimizer is made anew, with a rate a hundred times as large.

    Source: resumed runs whose schedule begins again.  Visible: when the loss is five
    times the largest of the 20 batches before.
    """
    split = digits()
    model = Attentive()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def restart(step: int) -> None:
        if t.sick and step == 200:
            optimizer.param_groups[0]["lr"] = 0.2

    fit(
        t,
        model,
        split,
        optimizer,
        n_steps=320,
        before_step=restart,
        visible=jumped(5.0),
        learned=0.95,
    )
