"""The loss stays where it is, or ends where a better model would begin."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import below_accuracy, lasting
from benchmarks.detection.corpus.training import Shadow, Training
from benchmarks.detection.fourth.material import patients
from benchmarks.detection.fourth.sights import explains
from benchmarks.detection.third.views import mean, since, train


@sick(
    named_by={"LossNotDecreasing", "Underfitting"},
    diagnosis="targets (n,) against outputs (n, 1): all are compared with all",
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
        fit(
            t,
            model,
            split,
            torch.optim.Adam(model.parameters(), 3e-3),
            nn.MSELoss(),
            n_steps=260,
            batches=batches,
            visible=since(150, lambda p: not enough(p)),
            learned=explains(0.4),
        )


class Reader(nn.Module):
    """Reads an image line by line, and answers after the first or the last."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.cell = nn.GRU(8, 40, batch_first=True)
        self.head = nn.Linear(40, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(images.view(-1, 8, 8))[0][:, self.at])
        return out


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="out[:, 0] instead of out[:, -1]: only the first line has been read",
)
def answers_after_the_first_line(t: Training) -> None:
    """The classifier looks at the first state of the GRU, not at the last.

    Source: Stack Overflow on which output of nn.LSTM to classify by.  Visible: from
    180 on, less than half of all images is recognized.
    """
    model = Reader(0 if t.sick else -1)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=280,
        batch_size=48,
        validate_every=40,
        visible=below_accuracy(0.5, since=180),
        learned=0.9,
    )


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="images are made so small that digits look the same",
)
def thumbnails(t: Training) -> None:
    """Images are resized to 2 x 2 pixels to train faster.

    Source: Humbatova 2020, "unsuited preprocessing"; Karpathy's "visualize just before
    the net".  Visible: from 200 on, less than 65 % of the images is recognized.
    """
    size = 2 if t.sick else 8
    split = digits().inputs(
        lambda x: nn.functional.adaptive_avg_pool2d(x.view(-1, 8, 8), size).flatten(1)
    )
    model = mlp([size * size, 64, 32, 10], nn.GELU)
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 3e-3),
        n_steps=300,
        batch_size=64,
        validate_every=30,
        visible=below_accuracy(0.65, since=200),
        learned=0.9,
    )


@sick(
    named_by={
        "WeightUpdateRatio",
        "ExplodingGradient",
        "ExplodingTensor",
        "LossNotDecreasing",
    },
    diagnosis="the learning rate is multiplied by the batch's size, not by size / 256",
)
def scaled_by_the_batch(t: Training) -> None:
    """Lr = 0.1 * batch_size, where the rule of Goyal 2017 has a 256 below it.

    Source: scripts that say "linear scaling rule".  Visible: from 60 on, less than half
    of the digits is recognized.
    """
    size = 128
    model = mlp([64, 96, 48, 10], nn.ReLU, norm=nn.LayerNorm)
    rate = 0.1 * size if t.sick else 0.1 * size / 256
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), rate, momentum=0.9),
        n_steps=140,
        batch_size=size,
        visible=below_accuracy(0.5, since=60),
        learned=0.95,
    )


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
        loss: Tensor = error - 0.5 * away.sum(1).mean()
        return loss


@sick(
    named_by={"LossNotDecreasing", "Underfitting", "TensorVariance"},
    diagnosis="error is a mean of pixels, divergence a sum: the code is given up",
)
def mean_of_pixels_sum_of_codes(t: Training) -> None:
    """A VAE whose two terms are reduced differently; all images get the same code.

    Source: issues of PyTorch's VAE example; Bowman 2016, "posterior collapse".
    Visible: from 100 on, the codes of all digits differ by less than 0.05.
    """
    split = digits()
    model = Coder()
    criterion = Evidence(of_pixels="mean" if t.sick else "sum")
    shadow = Shadow(model)
    t.watch(model, criterion)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def codes() -> Tensor:
        with torch.no_grad():
            out: Tensor = shadow()(split.x)[1]
        return out

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        loss: Tensor = criterion(model(images), images)
        return loss

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


def all_alike(p: Probe) -> bool:
    """What is said of different images differs by less than a thousandth."""
    said = p.outputs()
    return bool(said.std(0).max() < 1e-3 * said.abs().max())


class Lines(nn.Module):
    """The lines of an image are embedded with their places, and pooled."""

    def __init__(self, over: int) -> None:
        super().__init__()
        self.over = over
        self.embed = nn.Linear(8, 64)
        self.place = nn.Parameter(torch.randn(8, 64))
        self.act = nn.GELU()
        self.mix = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        lines = self.embed(images.view(-1, 8, 8)) + self.place
        pooled = self.mix(self.act(lines)).mean(self.over, keepdim=True)
        out: Tensor = self.head(self.act(pooled.expand_as(lines))).mean(1)
        return out


@sick(
    named_by={"TensorVariance", "LossNotDecreasing", "Underfitting"},
    diagnosis="mean(0) instead of mean(1): all images of a batch become one",
)
def pooled_over_the_batch(t: Training) -> None:
    """A dimension is off by one: the mean is over the batch, not over the lines.

    Source: Karpathy's recipe, "use backprop to chart dependencies"; he names view
    and mean over the wrong dimension.  Visible: from 50 on, for ten steps, all images
    get the same answer.
    """
    model = Lines(0 if t.sick else 1)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 8e-3),
        n_steps=240,
        batch_size=40,
        visible=since(50, lasting(all_alike, 10)),
        learned=0.8,
    )
