"""Sick initial weights."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import breast_cancer, digits
from benchmarks.detection.corpus.loops import Predicate, Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import (
    below_accuracy,
    both,
    every,
    units_alike,
)
from benchmarks.detection.corpus.training import Training


def set_weights(model: nn.Module, value: float) -> None:
    """All weights of linear and convolutional layers alike, all biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.constant_(module.weight, value)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def draw_weights(model: nn.Module, deviation: float) -> None:
    """All weights of linear and convolutional layers normal, all biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=deviation)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@sick(
    named_by={"PoorWeightInitialization"},
    diagnosis="all weights begin as 0.05, so all units stay alike",
)
def equal_weights(t: Training) -> None:
    """Weights are set to one constant: the units of a layer never differ.

    Source: Goodfellow, Bengio, Courville 2016, 8.4 on symmetry; Humbatova et al. 2020:
    wrong weights initialization; DeepLocalize's and UMLAUT's lists.

    Visible: at step 9 and after, when all units of a hidden layer say the same, within
    0.1 % of the largest, for every image.
    """
    model = mlp([64, 64, 64, 10])
    if t.sick:
        set_weights(model, 0.05)
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 2e-3),
        n_steps=150,
        visible=every(10, units_alike(1e-3)),
        learned=0.9,
    )


@sick(
    named_by={"PoorWeightInitialization", "VanishingGradient", "AllZero"},
    diagnosis="all weights begin as zero: nothing but the last bias can learn",
)
def zero_weights(t: Training) -> None:
    """Everything is set to zero, as one would for logistic regression.

    Source: CS231n, "Pitfall: all zero initialization"; NeuraLint's rule that initial
    weights must not be constants.

    Visible: at step 9 and after, when all units of a hidden layer say the same for
    every example.
    """
    model = mlp([30, 32, 32, 2], nn.Tanh)
    if t.sick:
        set_weights(model, 0.0)
    fit(
        t,
        model,
        breast_cancer(),
        SGD(model.parameters(), 0.1),
        n_steps=150,
        batch_size=32,
        visible=every(10, units_alike(1e-3)),
        learned=0.93,
    )


def far_off_chance(times: int, n_classes: int, at_least: float) -> Predicate:
    """The loss of the first *times* batches is far above that of guessing."""
    limit = at_least * math.log(n_classes)

    def holds(p: Probe) -> bool:
        return min(p.losses) > limit and len(p.losses) >= times

    return holds


@sick(
    named_by={
        "PoorWeightInitialization",
        "ExplodingGradient",
        "ExplodingTensor",
    },
    diagnosis="weights begin with a deviation of 1, whatever the width",
)
def wide_weights(t: Training) -> None:
    """Standard normal weights in layers of 128 units.

    Source: Glorot, Bengio 2010; He et al. 2015; Karpathy 2019: "verify loss @ init".

    Visible: at step 9, when the loss of all batches so far was more than 5 times that
    of guessing.
    """
    model = mlp([64, 128, 128, 128, 10])
    if t.sick:
        draw_weights(model, 1.0)
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 1e-3),
        n_steps=150,
        visible=far_off_chance(10, 10, 5.0),
        learned=0.9,
    )


def says_nothing(p: Probe) -> bool:
    """What the model says hardly depends on the image."""
    out = p.outputs()
    return bool(out.std(0).max() < 1e-3)


@sick(
    named_by={"PoorWeightInitialization", "VanishingGradient"},
    diagnosis="weights begin at 0.001: after four layers nothing is left",
)
def narrow_weights(t: Training) -> None:
    """Small random numbers, right for two layers, in a deeper network.

    Source: Glorot, Bengio 2010; CS231n: "small random numbers" vanish with depth.

    Visible: at step 19 and after, when no output of the network deviates by more than
    0.001 over the training data, and less than 30 % is classified rightly.
    """
    model = mlp([64, 64, 64, 64, 64, 10])
    if t.sick:
        draw_weights(model, 0.001)
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.1, momentum=0.9),
        n_steps=250,
        visible=every(10, both(says_nothing, below_accuracy(0.3, 19)), 19),
        learned=0.75,
    )
