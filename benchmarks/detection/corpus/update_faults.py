"""Sick updates: too small to change anything, or larger than what they update."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import churns, loss_above, predictions_stand
from benchmarks.detection.corpus.training import Training


@sick(
    named_by={"WeightUpdateRatio", "LossNotDecreasing", "ZeroLearningRate"},
    diagnosis="the learning rate is decayed at each batch instead of each epoch",
)
def decay_per_batch(t: Training) -> None:
    """scheduler.step() stands in the inner loop.

    Source: PyTorch's documentation of lr_scheduler and its forum; Humbatova et al.
    2020: wrong learning rate schedule.

    Visible: in 50 steps no prediction for the training data has changed, though
    accuracy is below 80 %.
    """
    model = mlp([64, 64, 10])
    optimizer = SGD(model.parameters(), 0.1)
    schedule = ExponentialLR(optimizer, 0.8 if t.sick else 0.8 ** (1 / 21))
    fit(
        t,
        model,
        digits(),
        optimizer,
        n_steps=250,
        schedule=schedule,
        visible=predictions_stand(50, 0.8),
        learned=0.8,
    )


@sick(
    named_by={"WeightUpdateRatio", "LossNotDecreasing"},
    diagnosis="Adam with a learning rate of 1e-9",
)
def rate_of_another_framework(t: Training) -> None:
    """A learning rate so small that the weights do not move.

    Source: AutoTrainer's slow convergence (Zhang et al. 2021); UMLAUT: learning rate
    out of range.

    Visible: in 50 steps no prediction for the training data has changed, though
    accuracy is below 60 %.
    """
    model = mlp([64, 64, 10], nn.Tanh)
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 1e-9 if t.sick else 3e-3),
        n_steps=200,
        visible=predictions_stand(50, 0.6),
        learned=0.9,
    )


@sick(
    named_by={
        "WeightUpdateRatio",
        "LossNotDecreasing",
        "DeadRelu",
        "ExplodingGradient",
        "PoorWeightInitialization",
    },
    diagnosis="Adam with a learning rate of 1",
)
def adam_rate_one(t: Training) -> None:
    """A learning rate that suits SGD is given to Adam.

    Source: Karpathy 2019 ("3e-4 is the best learning rate for Adam"); UMLAUT: learning
    rate out of range; Zhang et al. 2018.

    Visible: from step 40 on, the mean loss of the last 20 batches is above 2.
    """
    model = mlp([64, 64, 64, 10])
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 1.0 if t.sick else 3e-3),
        n_steps=150,
        visible=loss_above(2.0, 40),
        learned=0.9,
    )


@sick(
    named_by={
        "WeightUpdateRatio",
        "ExplodingGradient",
        "ExplodingTensor",
        "DeadRelu",
        "LossNotDecreasing",
    },
    diagnosis="the loss is summed over the batch, the rate is for its mean",
)
def summed_loss(t: Training) -> None:
    """reduction="sum" makes gradients 64 times as large.

    Source: PyTorch forum on reduction="sum" and the learning rate; Goyal et al. 2017
    on scaling the rate with the batch.

    Visible: from step 40 on, the mean loss of the last 20 batches, of one example, is
    above 1.8.
    """
    model = mlp([64, 64, 64, 10])
    criterion = nn.CrossEntropyLoss(reduction="sum" if t.sick else "mean")
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.1, momentum=0.9),
        criterion=criterion,
        n_steps=150,
        visible=loss_above(1.8 * 64, 40),
        learned=0.9,
    )


@sick(
    named_by={"WeightUpdateRatio", "LossNotDecreasing", "ExplodingGradient"},
    diagnosis="a learning rate of 3 makes the loss jump to and fro",
)
def oscillation(t: Training) -> None:
    """The steps are so long that each one undoes the last.

    Source: AutoTrainer's oscillating loss; Karpathy 2019.

    Visible: at 10 steps in a row the predictions for more than 15 % of the training
    data change.
    """
    model = mlp([64, 64, 10], nn.Tanh)
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 3.0 if t.sick else 0.05, momentum=0.9),
        n_steps=150,
        batch_size=32,
        visible=churns(0.15, 10),
        learned=0.95,
    )


@sick(
    named_by={"WeightUpdateRatio", "LossNotDecreasing", "DeadRelu", "ExplodingTensor"},
    diagnosis="a typing error: 5.0 instead of 0.05",
)
def rate_of_five(t: Training) -> None:
    """A learning rate that is a hundred times too large.

    Source: Humbatova et al. 2020: suboptimal learning rate; DeepFD's faults.

    Visible: from step 60 on, the mean loss of the last 20 batches is above 2.
    """
    model = cnn()
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 5.0 if t.sick else 0.05, momentum=0.9),
        n_steps=150,
        visible=loss_above(2.0, 60),
        learned=0.7,
    )
