"""Sick losses: they do not fall, or not as far as they should."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import diabetes, digits
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import (
    below_accuracy,
    every,
    loss_above,
)
from benchmarks.detection.corpus.training import Training


@sick(
    named_by={"LossNotDecreasing", "Underfitting"},
    diagnosis="labels belong to other images",
)
def labels_of_others(t: Training) -> None:
    """Images were shuffled, their labels were not.

    Source: Karpathy 2019 ("did you shuffle x and y together?"); Humbatova et al. 2020:
    wrong labels for training data.

    Visible: from step 100 on, accuracy on the training data is below 30 %.
    """
    split = digits()
    if t.sick:
        split = split.take(torch.arange(len(split.x)))
        order = torch.randperm(len(split.y), generator=t.order)
        split.y.copy_(split.y[order])
    model = cnn()
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 2e-3),
        n_steps=220,
        visible=below_accuracy(0.3, 120),
        learned=0.95,
    )


@sick(
    named_by={"LossNotDecreasing", "WeightUpdateRatio"},
    diagnosis="the learning rate is 1e-6",
)
def tiny_learning_rate(t: Training) -> None:
    """The learning rate is off by three orders of magnitude.

    Source: Zhang et al. 2018, "An Empirical Study on TensorFlow Program Bugs";
    Humbatova et al. 2020: suboptimal learning rate; AutoTrainer's slow convergence.

    Visible: from step 120 on, accuracy on the training data is below 30 %.
    """
    model = cnn()
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 1e-6 if t.sick else 0.05, momentum=0.9),
        n_steps=220,
        visible=below_accuracy(0.3, 120),
        learned=0.9,
    )


@sick(
    named_by={
        "LossNotDecreasing",
        "WeightUpdateRatio",
        "ExplodingGradient",
        "ExplodingTensor",
        "LossSpike",
    },
    diagnosis="gradients of all steps add up: zero_grad() is missing",
)
def no_zero_grad(t: Training) -> None:
    """Gradients are never set to zero between steps.

    Source: Karpathy's list of most common mistakes, 2018: "you forgot to .zero_grad()
    (in pytorch) before .backward()"; Humbatova et al. 2020: missing gradient reset.

    Visible: from step 150 on, the mean loss of the last 20 batches is above 1.5, where
    chance is 2.3.
    """
    model = mlp([64, 64, 64, 10])
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.15),
        n_steps=260,
        zero_grad=not t.sick,
        visible=loss_above(1.5, 150),
        learned=0.9,
    )


class Likelihood(nn.Module):
    """Ends in a softmax where it is told to."""

    def __init__(self, softmax: bool) -> None:
        super().__init__()
        self.body = mlp([64, 64, 10])
        self.last = nn.Softmax(1) if softmax else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.body(x))
        return out


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="a softmax before the cross entropy, which has one of its own",
)
def softmax_twice(t: Training) -> None:
    """Probabilities are given to a loss that expects logits.

    Source: Karpathy's list: "you passed softmaxed outputs to a loss that expects raw
    logits"; UMLAUT; NeuraLint's rule on the last activation.

    Visible: from step 150 on, the mean loss of the last 20 batches is above 1.4: it
    can never be below 1.461.
    """
    model = Likelihood(t.sick)
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.1, momentum=0.9),
        n_steps=260,
        visible=loss_above(1.4, 150),
        learned=0.95,
        validate_every=20,
    )


class Negated(nn.Module):
    """The likelihood, to be maximized, or the loss."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.sign * nn.functional.cross_entropy(outputs, targets)


@sick(
    named_by={"LossNotDecreasing", "ExplodingTensor", "ExplodingGradient"},
    diagnosis="the loss has the wrong sign",
)
def wrong_sign(t: Training) -> None:
    """The log likelihood is minimized instead of maximized.

    Source: Humbatova et al. 2020: wrong loss function calculation; policy gradients on
    many forums.

    Visible: from step 100 on, accuracy on the training data is below 30 %.
    """
    model = cnn()
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.05, momentum=0.9),
        criterion=Negated(-1.0 if t.sick else 1.0),
        n_steps=220,
        visible=below_accuracy(0.3, 100),
        learned=0.85,
    )


@sick(
    named_by={"LossNotDecreasing", "TensorVariance", "Underfitting"},
    diagnosis="(n, 1) minus (n,) is (n, n): every prediction is drawn to the mean",
    asks={
        "TensorVariance": {
            "tensor_regex": r"^Flat_output_0$",
            "min_threshold": 0.01,
        }
    },
)
def broadcast_loss(t: Training) -> None:
    """Predictions of shape (n, 1) meet targets of shape (n,) in the squared error.

    Source: PyTorch's own warning "Using a target size that is different to the input
    size"; Islam et al. 2019, wrong tensor shape; many questions on Stack Overflow.

    Visible: from step 80 on, the deviation of all predictions is below 0.25 of that of
    the targets.
    """

    class Squared(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - (targets[:, 0] if t.sick else targets)).pow(2).mean()

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp([10, 32, 1], nn.Tanh)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x)
            return out

    def collapsed(p: Probe) -> bool:
        return bool(p.outputs().std() < 0.25 * p.split.y.std())

    model = Flat()
    probe = fit(
        t,
        model,
        diabetes(),
        SGD(model.parameters(), 0.05),
        criterion=Squared(),
        n_steps=260,
        visible=every(10, collapsed, 80),
        learned=lambda p: sum(p.losses[-20:]) < 0.6 * 20,
    )
    t.note(spread=float(probe.outputs().std()))


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="two hidden units for ten classes",
)
def too_narrow(t: Training) -> None:
    """A model without the capacity for its task.

    Source: Humbatova et al. 2020: suboptimal network structure; Goodfellow, Bengio,
    Courville 2016, 5.2.

    Visible: from step 180 on, accuracy on the training data is below 75 %, and that on
    the validation data is not more than 5 points from it.
    """

    def stuck(p: Probe) -> bool:
        trained = p.accuracy()
        return trained < 0.75 and abs(p.validation[-1][2] - trained) < 0.05

    model = mlp([64, 2 if t.sick else 64, 10])
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 1e-2),
        n_steps=300,
        validate_every=10,
        visible=every(10, stuck, 180),
        learned=0.95,
    )


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="a weight decay of 0.3 keeps all weights at zero",
)
def too_much_decay(t: Training) -> None:
    """Regularization that leaves nothing to be learned.

    Source: Goodfellow et al. 2016, 5.2.2; Humbatova et al. 2020: wrong regularization.

    Visible: from step 150 on, the mean loss of the last 20 batches is above 1.8, where
    chance is 2.3.
    """
    model = mlp([64, 64, 10])
    decay = 0.3 if t.sick else 1e-4
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=decay),
        n_steps=260,
        validate_every=10,
        visible=loss_above(1.8, 150),
        learned=0.95,
    )
