"""Sick generalization: learned by heart, or trained for far too long."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import Split, breast_cancer, diabetes, digits
from benchmarks.detection.corpus.loops import Predicate, Probe, fit, never
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import every, lasting
from benchmarks.detection.corpus.training import Training


def by_heart(times: int = 3, ratio: float = 4.0) -> Predicate:
    """Validation loss has risen by 10 % from its best; training loss is far below.

    At *times* evaluations in a row, the training loss being the mean of the last 20
    batches, and far below: the validation loss is more than *ratio* times that.
    """
    held = 0
    seen = 0

    def holds(p: Probe) -> bool:
        nonlocal held, seen
        if len(p.validation) == seen:
            return False
        seen = len(p.validation)
        of_all = [loss for _, loss, _ in p.validation]
        train = sum(p.losses[-20:]) / 20
        bad = of_all[-1] > 1.1 * min(of_all) and of_all[-1] > ratio * train
        held = held + 1 if bad else 0
        return held >= times

    return holds


@sick(
    named_by={"Overfit"}, diagnosis="40 patients, 500 hidden units, no regularization"
)
def few_patients(t: Training) -> None:
    """A wide network learns 40 examples by heart.

    Source: Goodfellow et al. 2016, 5.2; Karpathy 2019, "overfit", then "regularize".
    The twin has all 331 examples, 16 units and weight decay.

    Visible: at three evaluations in a row validation loss is 10 % above its best and
    four times the training loss.
    """
    split = diabetes()
    if t.sick:
        split = split.take(torch.arange(40))
    model = mlp([10, 500, 1] if t.sick else [10, 16, 1])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 3e-3, weight_decay=0.0 if t.sick else 1e-2),
        criterion=nn.MSELoss(),
        n_steps=300,
        batch_size=32,
        validate_every=10,
        visible=by_heart(),
        learned=lambda p: p.validation[-1][1] < 0.65,
    )


@sick(named_by={"Overfit"}, diagnosis="a third of the labels is wrong, and learned")
def wrong_labels_by_heart(t: Training) -> None:
    """Noisy labels are learned one by one.

    Source: Zhang et al. 2017, "Understanding deep learning requires rethinking
    generalization"; Northcutt et al. 2021 on wrong labels in well known data.

    Visible: at two looks in a row, 10 steps apart, accuracy by the training labels is
    above 92 %, and on the validation data below 88 %.
    """

    def learned_noise(p: Probe) -> bool:
        return p.accuracy() > 0.92 and p.validation[-1][2] < 0.88

    split = breast_cancer()
    split = split.take(torch.arange(200))
    if t.sick:
        wrong = torch.rand(len(split.y), generator=t.order) < 0.33
        split = Split(
            split.x, torch.where(wrong, 1 - split.y, split.y), split.x_val, split.y_val
        )
    model = mlp([30, 128, 128, 2])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 3e-3),
        n_steps=250,
        batch_size=32,
        validate_every=10,
        visible=every(10, lasting(learned_noise, 2)),
        learned=lambda p: p.validation[-1][2] > 0.9,
    )


@sick(
    named_by={"Overfit"}, diagnosis="80 images to learn from, 256 units to do it with"
)
def few_images(t: Training) -> None:
    """A classifier that knows its 80 images and is sure of itself on others.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks"; Karpathy 2019.

    Visible: at three evaluations in a row validation loss is more than 5 times the
    training loss and above 0.3, when accuracy on the training data is 100 %.
    """
    held = 0

    def sure(p: Probe) -> bool:
        nonlocal held
        if p.step % 10 != 9:
            return False
        loss = p.validation[-1][1]
        bad = loss > 5 * sum(p.losses[-20:]) / 20 and loss > 0.3
        held = held + 1 if bad and p.accuracy() == 1.0 else 0
        return held >= 3

    split = digits()
    if t.sick:
        split = split.take(torch.arange(80))
    model = mlp([64, 256, 10])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 2e-3),
        n_steps=200,
        batch_size=32,
        validate_every=10,
        visible=sure,
        learned=0.95,
    )


def no_better(n: int) -> Predicate:
    """The best validation loss is at least *n* evaluations old, within 1 %."""

    def holds(p: Probe) -> bool:
        of_all = [loss for _, loss, _ in p.validation]
        if len(of_all) <= n:
            return False
        return min(of_all[-n:]) > 0.99 * min(of_all[:-n])

    return holds


@sick(
    named_by={"Overtraining", "Overfit"},
    diagnosis="the best model was had long ago; training goes on",
)
def trained_too_long(t: Training) -> None:
    """Nobody stops a regression that has converged.

    Source: Prechelt 1998, "Early Stopping - But When?"; Humbatova et al. 2020: wrong
    number of epochs. The twin stops when 4 evaluations brought nothing.

    Visible: the best validation loss of the last 15 evaluations, 10 steps apart, is not
    1 % better than the best before.
    """
    model = mlp([10, 64, 1], nn.Tanh)
    fit(
        t,
        model,
        diabetes(),
        Adam(model.parameters(), 1e-2),
        criterion=nn.MSELoss(),
        n_steps=400,
        validate_every=10,
        visible=no_better(15),
        learned=lambda p: min(loss for _, loss, _ in p.validation) < 0.65,
        stop=never if t.sick else no_better(4),
    )


@sick(
    named_by={"Overtraining", "Overfit"},
    diagnosis="validation was at its best after a quarter of the training",
)
def tumours_for_too_long(t: Training) -> None:
    """A classifier is trained on until it is sure of everything.

    Source: as above; Soudry et al. 2018: the loss of separable data falls for ever on
    training data while that on validation data grows.

    Visible: the best validation loss of the last 15 evaluations, 10 steps apart, is not
    1 % better than the best before.
    """
    model = mlp([30, 64, 64, 2])
    fit(
        t,
        model,
        breast_cancer(),
        SGD(model.parameters(), 0.1, momentum=0.9),
        n_steps=600,
        batch_size=32,
        validate_every=10,
        visible=no_better(15),
        learned=0.95,
        stop=never if t.sick else no_better(4),
    )
