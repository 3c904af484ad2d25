"""Inputs and targets in units that a model cannot use."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    Split,
    breast_cancer,
    digits,
    houses,
    parted,
    patches,
    patients,
    wine,
)
from benchmarks.detection.kit.loops import Loop, Probe, adam, adamw, sgd, train
from benchmarks.detection.kit.models import cnn, mlp
from benchmarks.detection.kit.probes import (
    Noted,
    below_accuracy,
    every,
    explains,
    flat_slope,
    lasting,
    loss_below,
    since,
)
from benchmarks.detection.kit.training import Training


@first.sick("NotNormalizedData", "measurements from 0.1 to 1680 as they are")
def raw_wine(t: Training) -> None:
    """Columns of very different scale go into a network as they were measured.

    Source: LeCun, Bottou, Orr, Mueller 1998, "Efficient BackProp", 4.3; Humbatova et
    al. 2020: missing normalization; Zhang et al. 2018.  Visible: from step 60 on,
    accuracy on the training data is below 75 %.
    """
    loop = Loop(t, mlp([13, 32, 3]), wine(raw=t.sick), sgd(0.05), batch_size=32)
    loop.run(200, visible=below_accuracy(0.75, 60), learned=0.95)


@first.sick("NotNormalizedData", "pixels from 0 to 255 instead of 0 to 1")
def raw_pixels(t: Training) -> None:
    """Images are given as they were decoded; the division by 255 was forgotten.

    Source: UMLAUT (Schoop, Huang, Hartmann 2021): "input is not normalized", images in
    [0, 255]; Karpathy 2019, "A Recipe for Training Neural Networks".  Visible: from
    step 100 on, accuracy on the training data is below 80 %.
    """
    split = digits().inputs(lambda x: x * 255) if t.sick else digits()
    loop = Loop(t, cnn(), split, sgd(0.05, momentum=0.9))
    loop.run(200, visible=below_accuracy(0.8, 100), learned=0.9)


def worse_on_validation(p: Probe) -> bool:
    """Accuracy on the validation data is 25 points or more below."""
    return p.validation[-1][2] < p.accuracy() - 0.25


@first.sick(
    "NotNormalizedData Overfit", "validation data are not normalized, training data are"
)
def normalized_in_training_only(t: Training) -> None:
    """Training data are standardized, what is predicted later is not.

    Source: Google's "Rules of Machine Learning", training-serving skew; scikit-learn's
    "Common pitfalls": inconsistent preprocessing.  Visible: at two evaluations in a row
    accuracy on the validation data is 25 points or more below that on the training
    data.
    """
    split = breast_cancer()
    if t.sick:
        raw = breast_cancer(raw=True)
        split = Split(split.x, split.y, raw.x_val, raw.y_val)
    model = mlp([30, 32, 2])
    loop = Loop(t, model, split, adam(2e-3), batch_size=32, validate_every=10)
    loop.run(150, visible=every(10, lasting(worse_on_validation, 2)), learned=0.95)


@first.sick(
    "NotNormalizedData SaturatedActivation", "areas in the thousands go into tanh"
)
def raw_tumours(t: Training) -> None:
    """Raw measurements up to 4254 drive all hidden tanh units to their ends.

    Source: LeCun et al. 1998, 4.3 and 4.4; Glorot, Bengio 2010.  Visible: from step 10
    on, the median slope of the hidden tanh units is below 0.01.
    """
    split = breast_cancer(raw=t.sick)
    loop = Loop(t, mlp([30, 32, 2], nn.Tanh), split, sgd(0.05), batch_size=32)
    loop.run(150, visible=every(10, flat_slope(nn.Tanh, 0.01)), learned=0.93)


IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@fourth.sick(
    "NotNormalizedData",
    "ImageNet's mean is taken from bytes that were not divided by 255",
)
def bytes_minus_imagenet(t: Training) -> None:
    """PILToTensor instead of ToTensor before Normalize(mean, std): values of hundreds.

    Source: PyTorch's forum and torchvision's note that ToTensor scales and PILToTensor
    does not.  Visible: the inputs of 20 batches are 100 or more on average.
    """
    mean_of = torch.tensor(IMAGENET_MEAN)[:, None, None]
    deviation = torch.tensor(IMAGENET_DEVIATION)[:, None, None]
    scale = 1.0 if t.sick else 255.0
    split = patches().inputs(lambda x: (x / scale - mean_of) / deviation)
    batches = Noted(t, split, 32)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 2),
    )
    loop = Loop(t, model, split, adamw(1e-3, weight_decay=0.05), batches=batches)
    loop.run(150, visible=batches.after(20, lambda x, _: x.mean() > 100), learned=0.8)


@fourth.sick("NotNormalizedData", "columns in years, mmHg and mg/dl")
def measurements_in_their_units(t: Training) -> None:
    """A table goes into the network as the clinic exported it.

    Source: Zhang 2018 and Humbatova 2020, "missing preprocessing"; scikit-learn's
    example on the importance of feature scaling.  Visible: in 20 batches the mean of a
    column is more than 100 times the deviation of another.
    """
    split = patients()
    if not t.sick:
        middle, deviation = split.x.mean(0), split.x.std(0)
        split = split.inputs(lambda x: (x - middle) / deviation)
    batches = Noted(t, split, 16)
    model = mlp([10, 32, 32, 1], nn.SiLU)
    loop = Loop(t, model, split, adam(2e-3), nn.SmoothL1Loss(), batches=batches)
    visible = batches.after(20, lambda x, _: x.mean(0).max() > 100 * x.std(0).min())
    loop.run(200, visible=visible, learned=explains(0.4))


@fourth.sick(
    "NotNormalizedData", "the number of the record was left in the table as a column"
)
def record_number_as_a_column(t: Training) -> None:
    """Thirty columns are standardized by name; the id, not in the list, stays as it is.

    Source: Kaggle's copies of the breast cancer data, whose first column is an id of
    842302 and more.  Visible: in 20 batches a column is 100,000 on average.
    """
    split = breast_cancer()
    if t.sick:
        number = 842302.0 + 97.0 * torch.arange(len(split.x))[:, None]
        later = 950000.0 + 97.0 * torch.arange(len(split.x_val))[:, None]
        split = replace(
            split,
            x=torch.cat([number, split.x], 1),
            x_val=torch.cat([later, split.x_val], 1),
        )
    batches = Noted(t, split, 24)
    model = mlp([split.x.shape[1], 40, 2], nn.GELU)
    loop = Loop(t, model, split, adam(1e-3), batches=batches, validate_every=36)
    visible = batches.after(20, lambda x, _: x.mean(0).max() > 1e5)
    loop.run(180, visible=visible, learned=0.95)


def colours(width: int = 12) -> nn.Sequential:
    """Convolutions with batch normalization for patches of 3 colours."""

    def stage(n_in: int, n_out: int) -> list[nn.Module]:
        return [
            nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
        ]

    return nn.Sequential(
        *stage(3, width),
        nn.MaxPool2d(2),
        *stage(width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 2),
    )


@cache
def all_patches(size: int = 12) -> Split:
    """Patches of two photographs, 3 colours from 0 to 255: which one are they of?"""
    found, labels = [], []
    for label, image in enumerate(datasets.load_sample_images().images):
        pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1)
        rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
        for i in range(0, rows * columns, 3):
            top, left = size * (i // columns), size * (i % columns)
            found.append(pixels[:, top : top + size, left : left + size])
            labels.append(label)
    return parted(torch.stack(found).float(), torch.tensor(labels))


@second.sick("NotNormalizedData", "pixels from 0 to 255")
def pixels_as_bytes(t: Training) -> None:
    """ToTensor was replaced by from_numpy(...).float(): nothing divides by 255.

    Source: the forum, each week.  Visible: ten batches of pixels with a mean above 10.
    """
    split = all_patches()
    if not t.sick:
        split = split.inputs(lambda x: (x - 127.5) / 70.0)
    loop = Loop(t, colours(), split, adamw(2e-3), batch_size=32)
    visible = since(9, lambda p: bool(p.split.x.mean().abs() > 10))
    loop.run(150, visible=visible, learned=0.8)


@second.sick("NotNormalizedData", "columns and prices in their units")
def prices_in_dollars(t: Training) -> None:
    """Regression on columns of the scales of 1 to 5000, of prices in dollars.

    Source: scikit-learn's California housing in any first notebook.  Visible: ten
    batches, columns whose means differ by a factor of a thousand.
    """
    split = houses(scaled=not t.sick)
    model = mlp([8, 64, 32, 1], nn.GELU)

    def scales(p: Probe) -> bool:
        means = p.split.x.mean(0).abs()
        return bool(means.max() > 100 and p.split.y.abs().mean() > 1000)

    loop = Loop(t, model, split, adam(3e-3), nn.SmoothL1Loss())
    loop.run(250, visible=since(9, scales), learned=loss_below(0.25))


@second.sick("NotNormalizedData TensorVariance", "images are divided by 255 twice")
def divided_twice(t: Training) -> None:
    """The loader gives 0 to 1 already, and the transform divides again.

    Source: torchvision's ToTensor followed by a scaling of one's own.  Visible: ten
    batches whose largest pixel is below 0.01.
    """
    split = digits()
    if t.sick:
        split = split.inputs(lambda x: x / 255.0)
    else:
        split = split.inputs(lambda x: (x - 0.305) / 0.376)
    loop = Loop(t, mlp([64, 64, 10]), split, adam(2e-3))
    visible = since(9, lambda p: bool(p.split.x.abs().max() < 0.01))
    loop.run(150, visible=visible, learned=0.9)


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


@third.sick(
    "NotNormalizedData ExplodingGradient WeightUpdateRatio LossNotDecreasing "
    "LossSpike ClassImbalance DeadRelu",
    "boxes are in pixels of a large picture; their loss drowns the classes'",
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
        return of_class + of_box

    train(
        t,
        loss_of,
        SGD(model.parameters(), 0.02, momentum=0.9),
        n_steps=200,
        visible=lambda losses: len(losses) > 50 and drowned >= 10,
    )
    with torch.no_grad():
        right = (model(split.x)[0].argmax(1) == split.y).float().mean()
    t.note(accuracy=float(right))
    t.learned(right > 0.9)


@third.sick(
    "NotNormalizedData", "standardized by the mean and deviation of the whole table"
)
def scaled_over_the_whole_table(t: Training) -> None:
    """(x - x.mean()) / x.std() without an axis: only proline is left of the wine.

    Source: NumPy's default axis; Humbatova's "missing preprocessing".  Visible: after
    an epoch, when more than half of the columns deviate by less than 0.1.
    """
    split = wine(raw=t.sick)
    if t.sick:
        all_of_it = split.x
        split = split.inputs(lambda x: (x - all_of_it.mean()) / all_of_it.std())
    loop = Loop(t, mlp([13, 32, 3], nn.Tanh), split, adam(5e-3), batch_size=32)
    visible = since(4, lambda p: bool((p.split.x.std(0) < 0.1).sum() > 6))
    loop.run(150, visible=visible, learned=0.95)


@third.sick(
    "NotNormalizedData DeadRelu LossNotDecreasing",
    "decibels from -80 to 0 go into the network as they are",
)
def decibels(t: Training) -> None:
    """Logarithms of power as librosa gives them; nobody brought them to unit scale.

    Source: audio tutorials.  Visible: after five batches, when inputs are below -20 on
    average.
    """
    split = digits().inputs(lambda x: 20 * torch.log10(x + 1e-4))
    if not t.sick:
        level, spread = split.x.mean(), split.x.std()
        split = split.inputs(lambda x: (x - level) / spread)
    loop = Loop(t, mlp([64, 64, 32, 10]), split, sgd(0.05, momentum=0.9))
    visible = since(4, lambda p: bool(p.split.x.mean() < -20))
    loop.run(200, visible=visible, learned=0.95)
