"""The loss asks for something else than its author wants."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import loss_above
from benchmarks.detection.corpus.training import Shadow, Training
from benchmarks.detection.third.views import mean, train


@sick(
    named_by={
        "ExplodingTensor",
        "ExplodingGradient",
        "TensorVariance",
        "WeightUpdateRatio",
        "LossNotDecreasing",
    },
    diagnosis="logits go into NLLLoss: it falls without end, and so grow the logits",
)
def logits_into_nll(t: Training) -> None:
    """NLLLoss without a LogSoftmax before it.

    Source: PyTorch's forum, "my loss is negative".  Visible: when the loss is below -5,
    as no likelihood can make it.
    """
    model = mlp([64, 64, 10])
    if not t.sick:
        model.append(nn.LogSoftmax(1))
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        nn.NLLLoss(),
        n_steps=220,
        visible=lambda p: not p.losses[-1] > -5,
        learned=0.95,
    )


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="the softmax is taken over the batch",
)
def softmax_over_the_batch(t: Training) -> None:
    """LogSoftmax(dim=0): the images of a batch compete, not the classes.

    Source: Humbatova's "wrong dimension"; PyTorch's warning on an implicit dim.
    Visible: from the 120th step on, when the loss of the last 20 is above 1.4.
    """
    model = mlp([64, 64, 10])
    model.append(nn.LogSoftmax(0 if t.sick else 1))
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 5e-3),
        nn.NLLLoss(),
        n_steps=250,
        visible=loss_above(1.4, 120),
        learned=0.95,
    )


@sick(
    named_by={"Underfitting", "LossNotDecreasing"},
    diagnosis="similarities are multiplied by the temperature, not divided",
)
def times_the_temperature(t: Training) -> None:
    """Contrastive learning whose logits are between -0.07 and 0.07.

    Source: reimplementations of SimCLR and CLIP.  Visible: from the 100th step on, when
    the mean loss of 20 is above 4, where to guess gives 4.16.
    """
    split = digits()
    model = mlp([64, 96, 24])
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        first, second = (
            nn.functional.normalize(model(images + 0.1 * torch.randn(images.shape)))
            for _ in range(2)
        )
        alike = first @ second.T
        logits = alike * 0.07 if t.sick else alike / 0.07
        loss: Tensor = criterion(logits, torch.arange(64))
        return loss

    losses = train(
        t,
        loss_of,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=220,
        visible=lambda losses: len(losses) > 100 and mean(losses[-20:]) > 4,
    )
    t.learned(mean(losses[-20:]) < 0.8)


class Variational(nn.Module):
    """Eight numbers for an image, and how certain they are."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp([64, 64, 16])
        self.decoder = mlp([8, 64, 64])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle, log_variance = self.encoder(images).chunk(2, 1)
        noise = torch.randn(middle.shape) if self.training else 0.0
        code = middle + noise * (0.5 * log_variance).exp()
        return self.decoder(code), middle, log_variance


@sick(
    named_by={
        "TensorVariance",
        "Underfitting",
        "LossNotDecreasing",
        "VanishingGradient",
    },
    diagnosis="the error is a mean over pixels, the divergence a sum: empty codes",
)
def posterior_collapse(t: Training) -> None:
    """A VAE that answers every image with the mean of all.

    Source: PyTorch's forum, "VAE generates the same image".  Visible: from the 80th
    step on, when its answers explain less than 5 % of the variance of the images.
    """
    split = digits()
    model, criterion = Variational(), nn.MSELoss()
    shadow = Shadow(model)
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        again, middle, log_variance = model(images)
        error = criterion(again, images) * (1 if t.sick else 64)
        spread = middle.pow(2) + log_variance.exp() - 1 - log_variance
        weight = 1.0 if t.sick else 0.1
        total: Tensor = error + weight * 0.5 * spread.sum(1).mean()
        return total

    def explained() -> float:
        with torch.no_grad():
            rest = shadow()(split.x)[0] - split.x
        return float(1 - rest.pow(2).mean() / split.x.var(0).mean())

    train(
        t,
        loss_of,
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=240,
        visible=lambda losses: (
            len(losses) > 80 and len(losses) % 10 == 0 and explained() < 0.05
        ),
    )
    t.note(explained=explained())
    t.learned(explained() > 0.3)


@sick(
    named_by={
        "Underfitting",
        "LossNotDecreasing",
        "AllZero",
        "DeadRelu",
        "TensorVariance",
    },
    diagnosis="the probability to keep was given as that to drop",
)
def keep_probability_as_p(t: Training) -> None:
    """Dropout(0.95), ported from a framework in which 0.95 is kept.

    Source: ports from TensorFlow 1; Islam 2019 on API misuse.  Visible: from the 100th
    step on, when the loss of 20 batches is above 1.8.
    """
    model = mlp([64, 64, 64, 10], dropout=0.95 if t.sick else 0.05)
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=220,
        visible=loss_above(1.8, 100),
        learned=0.9,
    )


class Boxes(nn.Module):
    """Class, and left, top, right, bottom of the ink."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = cnn()
        self.trunk[-1] = nn.Identity()
        self.digit = nn.Linear(64, 10)
        self.box = nn.Linear(64, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(images)
        return self.digit(x), self.box(x)


def boxes_of(images: Tensor) -> Tensor:
    """Edges of the ink as shares of the image."""
    ink = images.view(-1, 8, 8) > 0.3
    places = torch.arange(8)
    found = []
    for axis in (1, 2):
        some = ink.any(axis)
        found += [torch.where(some, places, 8).amin(1), torch.where(some, places, -1)]
        found[-1] = found[-1].amax(1) + 1
    return torch.stack(found, 1) / 8


@sick(
    named_by={
        "NotNormalizedData",
        "ExplodingGradient",
        "WeightUpdateRatio",
        "LossNotDecreasing",
        "LossSpike",
        "ClassImbalance",
        "DeadRelu",
    },
    diagnosis="boxes are in pixels of a large picture; their loss drowns the classes'",
)
def boxes_in_pixels(t: Training) -> None:
    """A detector's two losses are added, the one of boxes from 0 to 640.

    Source: issues of detection repositories.  Visible: from the 50th step on, when the
    loss of the boxes is 20 times that of the classes, ten times in a row.
    """
    split = digits()
    targets = boxes_of(split.x) * (640 if t.sick else 1)
    model, classes, edges = Boxes(), nn.CrossEntropyLoss(), nn.SmoothL1Loss()
    t.watch(model, classes, edges)
    drowned = 0

    def loss_of(_: int) -> Tensor:
        nonlocal drowned
        chosen = t.draw(len(split.x), 64)
        digit, box = model(split.x[chosen])
        of_class, of_box = classes(digit, split.y[chosen]), edges(box, targets[chosen])
        drowned = drowned + 1 if bool(of_box > 20 * of_class) else 0
        total: Tensor = of_class + of_box
        return total

    train(
        t,
        loss_of,
        torch.optim.SGD(model.parameters(), 0.02, momentum=0.9),
        n_steps=200,
        visible=lambda losses: len(losses) > 50 and drowned >= 10,
    )
    with torch.no_grad():
        right = (model(split.x)[0].argmax(1) == split.y).float().mean()
    t.note(accuracy=float(right))
    t.learned(right > 0.9)
