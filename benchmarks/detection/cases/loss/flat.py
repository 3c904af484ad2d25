"""A loss that does not fall."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import first, fourth, second
from benchmarks.detection.kit.data import diabetes, digits, houses, patients
from benchmarks.detection.kit.loops import Loop, Probe, adam, mean, sgd, train
from benchmarks.detection.kit.models import Recurrent, cnn, mlp
from benchmarks.detection.kit.probes import (
    below_accuracy,
    every,
    explains,
    loss_above,
    loss_below,
    plateau,
    since,
)
from benchmarks.detection.kit.training import Shadow, Training


@first.sick("LossNotDecreasing Underfitting", "labels belong to other images")
def labels_of_others(t: Training) -> None:
    """Images were shuffled, their labels were not.

    Source: Karpathy 2019 ("did you shuffle x and y together?"); Humbatova et al. 2020:
    wrong labels for training data.  Visible: from step 100 on, accuracy on the training
    data is below 30 %.
    """
    split = digits()
    if t.sick:
        split = split.take(torch.arange(len(split.x)))
        order = torch.randperm(len(split.y), generator=t.order)
        split.y.copy_(split.y[order])
    loop = Loop(t, cnn(), split, adam(2e-3))
    loop.run(220, visible=below_accuracy(0.3, 120), learned=0.95)


@first.sick("LossNotDecreasing WeightUpdateRatio", "the learning rate is 1e-6")
def tiny_learning_rate(t: Training) -> None:
    """The learning rate is off by three orders of magnitude.

    Source: Zhang et al. 2018, "An Empirical Study on TensorFlow Program Bugs";
    Humbatova et al. 2020: suboptimal learning rate; AutoTrainer's slow convergence.
    Visible: from step 120 on, accuracy on the training data is below 30 %.
    """
    loop = Loop(t, cnn(), digits(), sgd(1e-6 if t.sick else 0.05, momentum=0.9))
    loop.run(220, visible=below_accuracy(0.3, 120), learned=0.9)


@first.sick(
    "GradientsNotCleared LossNotDecreasing WeightUpdateRatio ExplodingGradient "
    "ExplodingTensor LossSpike",
    "gradients of all steps add up: zero_grad() is missing",
)
def no_zero_grad(t: Training) -> None:
    """Gradients are never set to zero between steps.

    Source: Karpathy's list of most common mistakes, 2018: "you forgot to .zero_grad()
    (in pytorch) before .backward()"; Humbatova et al. 2020: missing gradient reset.
    Visible: from step 150 on, the mean loss of the last 20 batches is above 1.5, where
    chance is 2.3.
    """
    loop = Loop(t, mlp([64, 64, 64, 10]), digits(), sgd(0.15), zero_grad=not t.sick)
    loop.run(260, visible=loss_above(1.5, 150), learned=0.9)


class Negated(nn.Module):
    """The likelihood, to be maximized, or the loss."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.sign * nn.functional.cross_entropy(outputs, targets)


@first.sick(
    "LossNotDecreasing ExplodingTensor ExplodingGradient", "the loss has the wrong sign"
)
def wrong_sign(t: Training) -> None:
    """The log likelihood is minimized instead of maximized.

    Source: Humbatova et al. 2020: wrong loss function calculation; policy gradients on
    many forums.  Visible: from step 100 on, accuracy on the training data is below 30
    %.
    """
    model = cnn()
    criterion = Negated(-1.0 if t.sick else 1.0)
    loop = Loop(t, model, digits(), sgd(0.05, momentum=0.9), criterion)
    loop.run(220, visible=below_accuracy(0.3, 100), learned=0.85)


@first.sick(
    "LossNotDecreasing TensorVariance Underfitting",
    "(n, 1) minus (n,) is (n, n): every prediction is drawn to the mean",
    asks={
        "TensorVariance": {"tensor_regex": r"^Flat_output_0$", "min_threshold": 0.01}
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
            return self.body(x)

    def collapsed(p: Probe) -> bool:
        return bool(p.outputs().std() < 0.25 * p.split.y.std())

    loop = Loop(t, Flat(), diabetes(), sgd(0.05), Squared())
    visible = every(10, collapsed, 80)
    probe = loop.run(
        260, visible=visible, learned=lambda p: sum(p.losses[-20:]) < 0.6 * 20
    )
    t.note(spread=float(probe.outputs().std()))


@fourth.sick(
    "LossNotDecreasing Underfitting",
    "targets (n,) against outputs (n, 1): all are compared with all",
)
def row_against_column(t: Training) -> None:
    """The loss broadcasts (n, 1) and (n,) to (n, n): the best answer is the mean.

    Source: the warning in PyTorch's mse_loss, and the forum's threads that led to it.
    Visible: from 150 on, less than a tenth of the variance is explained.
    """
    split = patients()
    middle, deviation = split.x.mean(0), split.x.std(0)
    split = split.inputs(lambda x: (x - middle) / deviation)
    given = split.y[:, 0] if t.sick else split.y

    def batches(_: int) -> tuple[Tensor, Tensor]:
        chosen = t.draw(len(split.x), 32)
        return split.x[chosen], given[chosen]

    model = mlp([10, 32, 1], nn.Tanh)
    enough = explains(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loop = Loop(t, model, split, adam(3e-3), nn.MSELoss(), batches=batches)
        visible = since(150, lambda p: not enough(p))
        loop.run(260, visible=visible, learned=explains(0.4))


class Coder(nn.Module):
    """Encodes images as a mean and a variance, and draws them from these."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp([64, 48, 16])
        self.decoder = mlp([8, 48, 64])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle, log_variance = self.encoder(images).chunk(2, 1)
        drawn = middle + torch.randn_like(middle) * (0.5 * log_variance).exp()
        return self.decoder(drawn), middle, log_variance


class Evidence(nn.Module):
    """Squared error of pixels, and how far the code is from a normal one."""

    def __init__(self, *, of_pixels: str) -> None:
        super().__init__()
        self.error = nn.MSELoss(reduction=of_pixels)

    def forward(self, said: tuple[Tensor, Tensor, Tensor], images: Tensor) -> Tensor:
        out, middle, log_variance = said
        error = self.error(out, images)
        if self.error.reduction == "sum":
            error = error / len(images) * 4
        away = 1 + log_variance - middle.pow(2) - log_variance.exp()
        return error - 0.5 * away.sum(1).mean()


@fourth.sick(
    "LossNotDecreasing Underfitting TensorVariance",
    "error is a mean of pixels, divergence a sum: the code is given up",
)
def mean_of_pixels_sum_of_codes(t: Training) -> None:
    """A VAE whose two terms are reduced differently; all images get the same code.

    Source: issues of PyTorch's VAE example; Bowman 2016, "posterior collapse". Visible:
    from 100 on, the codes of all digits differ by less than 0.05.
    """
    split = digits()
    model = Coder()
    criterion = Evidence(of_pixels="mean" if t.sick else "sum")
    shadow = Shadow(model)
    t.watch(model, criterion)
    optimizer = Adam(model.parameters(), 2e-3)

    def codes() -> Tensor:
        with torch.no_grad():
            out: Tensor = shadow()(split.x)[1]
        return out

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        return criterion(model(images), images)

    losses = train(
        t,
        loss_of,
        optimizer,
        n_steps=250,
        visible=lambda losses: (
            len(losses) > 100 and len(losses) % 10 == 0 and codes().std(0).max() < 0.05
        ),
    )
    t.learned(mean(losses[-20:]) < 0.75 * losses[0] and codes().std(0).max() > 0.3)


@second.sick(
    "LossNotDecreasing Underfitting",
    "inputs and labels are shuffled apart from each other",
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

    loop = Loop(t, model, split, adam(5e-3), batches=batch)
    loop.run(240, visible=loss_above(2.2, since=120), learned=0.8)


@second.sick(
    "LossMisuse LossNotDecreasing Underfitting", "softmax before cross entropy"
)
def softmax_before_the_loss(t: Training) -> None:
    """The model ends in Softmax and the loss is CrossEntropyLoss.

    Source: the forum's most frequent loss mistake.  Visible: the loss cannot go below
    1.46 and stands there, or above, between two stretches of 50 batches.
    """
    split = digits()
    model = mlp([64, 32, 32, 10], nn.ReLU)
    if t.sick:
        model.append(nn.Softmax(1))
    loop = Loop(t, model, split, adam(2e-3))
    loop.run(500, visible=plateau(1.45, since=200), learned=0.95)


@second.sick(
    "LossNotDecreasing ExplodingGradient ExplodingTensor", "the loss is maximized"
)
def uphill(t: Training) -> None:
    """maximize=True was left over from a policy gradient.

    Source: objectives and losses in one code base.  Visible: the loss of 20 batches is
    twice what it began with.
    """
    split = houses(scaled=True)
    model = mlp([8, 32, 1], nn.Tanh)
    loop = Loop(t, model, split, sgd(0.01, maximize=t.sick), nn.MSELoss())
    loop.run(
        300,
        visible=lambda p: (
            len(p.losses) > 20 and mean(p.losses[-20:]) > 2 * mean(p.losses[:5])
        ),
        learned=loss_below(0.5),
    )
