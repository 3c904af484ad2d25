"""Sick data: classes of very different size, inputs that nobody normalized."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import Split, breast_cancer, digits, wine
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import (
    below_accuracy,
    every,
    flat_slope,
    lasting,
    recall_below,
)
from benchmarks.detection.corpus.training import Training


def thin_out(split: Split, label: int, keep: int) -> Split:
    """Keep only so many examples of a class."""
    of_class = torch.nonzero(split.y == label).flatten()
    others = torch.nonzero(split.y != label).flatten()
    return split.take(torch.cat((others, of_class[:keep])))


@sick(named_by={"ClassImbalance"}, diagnosis="2 eights among 1200 digits")
def rare_digit(t: Training) -> None:
    """A class of which hardly any example was collected.

    Source: Buda, Maki, Mazurowski 2018, "A systematic study of the class imbalance
    problem in convolutional neural networks"; Humbatova et al. 2020, "Taxonomy of Real
    Faults in Deep Learning Systems": unbalanced training data.

    Visible: from step 60 on, at two looks in a row, 10 steps apart, less than half of
    the eights of the validation data are recognized, and 85 % of the other digits.
    """
    split = thin_out(digits(), 8, 2) if t.sick else digits()
    model = mlp([64, 64, 10])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 3e-3),
        n_steps=150,
        visible=every(10, lasting(recall_below([8], 0.5, 0.85), 2), 60),
        learned=0.92,
    )


@sick(named_by={"ClassImbalance"}, diagnosis="2 % of the tumours are malignant")
def rare_disease(t: Training) -> None:
    """Two classes, one of which is 50 times as frequent; accuracy looks splendid.

    Source: Johnson, Khoshgoftaar 2019, "Survey on deep learning with class imbalance":
    screening for diseases and fraud.

    Visible: at two looks in a row, 10 steps apart, less than half of the
    malignant tumours of the validation data are recognized, and 95 % of the others.
    """
    split = breast_cancer()
    if t.sick:
        split = thin_out(split, 0, 5)
    model = mlp([30, 16, 2])
    fit(
        t,
        model,
        split,
        SGD(model.parameters(), 0.1),
        n_steps=150,
        batch_size=32,
        visible=every(10, lasting(recall_below([0], 0.5, 0.95), 2)),
        learned=0.95,
    )


@sick(
    named_by={"ClassImbalance", "Confusion"},
    diagnosis="the split was made of sorted data: a class is missing",
)
def split_of_sorted_rows(t: Training) -> None:
    """The first rows of a file are taken to train on, but the file is by class.

    Source: the most common answer to "validation accuracy is zero" with scikit-learn's
    wine and iris, which are sorted; scikit-learn's user guide, "Cross-validation":
    shuffle before splitting if samples of the same class are contiguous.

    Visible: at two looks in a row, 10 steps apart, none of the third class is
    recognized, and 80 % or more of the others.
    """
    split = wine()
    if t.sick:
        by_class = torch.argsort(split.y, stable=True)
        n_known = int((split.y < 2).sum())
        split = split.take(by_class[: n_known + 1])
    model = mlp([13, 32, 3])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 3e-3),
        n_steps=120,
        batch_size=32,
        visible=every(10, lasting(recall_below([2], 0.2, 0.8), 2)),
        learned=0.95,
    )


@sick(
    named_by={"NotNormalizedData"},
    diagnosis="measurements from 0.1 to 1680 as they are",
)
def raw_wine(t: Training) -> None:
    """Columns of very different scale go into a network as they were measured.

    Source: LeCun, Bottou, Orr, Mueller 1998, "Efficient BackProp", 4.3; Humbatova et
    al. 2020: missing normalization; Zhang et al. 2018.

    Visible: from step 60 on, accuracy on the training data is below 75 %.
    """
    split = wine(raw=t.sick)
    model = mlp([13, 32, 3])
    fit(
        t,
        model,
        split,
        SGD(model.parameters(), 0.05),
        n_steps=200,
        batch_size=32,
        visible=below_accuracy(0.75, 60),
        learned=0.95,
    )


@sick(
    named_by={"NotNormalizedData"},
    diagnosis="pixels from 0 to 255 instead of 0 to 1",
)
def raw_pixels(t: Training) -> None:
    """Images are given as they were decoded; the division by 255 was forgotten.

    Source: UMLAUT (Schoop, Huang, Hartmann 2021): "input is not normalized", images in
    [0, 255]; Karpathy 2019, "A Recipe for Training Neural Networks".

    Visible: from step 100 on, accuracy on the training data is below 80 %.
    """
    split = digits().inputs(lambda x: x * 255) if t.sick else digits()
    model = cnn()
    fit(
        t,
        model,
        split,
        SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=200,
        visible=below_accuracy(0.8, 100),
        learned=0.9,
    )


def worse_on_validation(p: Probe) -> bool:
    """Accuracy on the validation data is 25 points or more below."""
    return p.validation[-1][2] < p.accuracy() - 0.25


@sick(
    named_by={"NotNormalizedData", "Overfit"},
    diagnosis="validation data are not normalized, training data are",
)
def normalized_in_training_only(t: Training) -> None:
    """Training data are standardized, what is predicted later is not.

    Source: Google's "Rules of Machine Learning", training-serving skew; scikit-learn's
    "Common pitfalls": inconsistent preprocessing.

    Visible: at two evaluations in a row accuracy on the validation data is 25 points
    or more below that on the training data.
    """
    split = breast_cancer()
    if t.sick:
        raw = breast_cancer(raw=True)
        split = Split(split.x, split.y, raw.x_val, raw.y_val)
    model = mlp([30, 32, 2])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 2e-3),
        n_steps=150,
        batch_size=32,
        validate_every=10,
        visible=every(10, lasting(worse_on_validation, 2)),
        learned=0.95,
    )


@sick(
    named_by={"NotNormalizedData", "SaturatedActivation"},
    diagnosis="areas in the thousands go into tanh",
)
def raw_tumours(t: Training) -> None:
    """Raw measurements up to 4254 drive all hidden tanh units to their ends.

    Source: LeCun et al. 1998, 4.3 and 4.4; Glorot, Bengio 2010.

    Visible: from step 10 on, the median slope of the hidden tanh units is below 0.01.
    """
    split = breast_cancer(raw=t.sick)
    model = mlp([30, 32, 2], nn.Tanh)
    fit(
        t,
        model,
        split,
        SGD(model.parameters(), 0.05),
        n_steps=150,
        batch_size=32,
        visible=every(10, flat_slope(nn.Tanh, 0.01)),
        learned=0.93,
    )
