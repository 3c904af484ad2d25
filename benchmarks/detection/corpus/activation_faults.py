"""Sick activations: tanh and sigmoid at their ends, ReLUs that are dead."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import breast_cancer, digits, wine
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import every, flat_slope, lasting, silent_units
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.corpus.weight_faults import draw_weights


@sick(
    named_by={"SaturatedActivation", "PoorWeightInitialization"},
    diagnosis="standard normal weights before tanh",
)
def saturated_tanh(t: Training) -> None:
    """Every tanh unit is at -1 or 1 from the beginning.

    Source: Glorot, Bengio 2010; CS231n, where tanh networks with weights of deviation 1
    "are completely saturated".

    Visible: at two looks in a row, 10 steps apart, the median slope of a hidden layer
    is below 0.01.
    """
    model = mlp([64, 128, 128, 10], nn.Tanh)
    if t.sick:
        draw_weights(model, 1.0)
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.05),
        n_steps=200,
        visible=every(10, lasting(flat_slope(nn.Tanh, 0.01), 2)),
        learned=0.7,
    )


@sick(
    named_by={"SaturatedActivation", "WeightUpdateRatio", "LossNotDecreasing"},
    diagnosis="a learning rate of 5 drives tanh to its ends",
)
def tanh_driven_to_its_ends(t: Training) -> None:
    """A good beginning, and steps so large that all units saturate.

    Source: Glorot, Bengio 2010; Humbatova et al. 2020: suboptimal learning rate.

    Visible: at two looks in a row, 10 steps apart, the median slope of a hidden layer
    is below 0.01.
    """
    model = mlp([13, 64, 64, 3], nn.Tanh)
    fit(
        t,
        model,
        wine(),
        Adam(model.parameters(), 1.0 if t.sick else 3e-3),
        n_steps=120,
        batch_size=32,
        visible=every(10, lasting(flat_slope(nn.Tanh, 0.01), 2)),
        learned=0.95,
    )


@sick(
    named_by={"SaturatedActivation", "NotNormalizedData"},
    diagnosis="bytes go into sigmoids",
)
def sigmoid_of_bytes(t: Training) -> None:
    """Pixels from 0 to 255 before a layer of sigmoids.

    Source: LeCun et al. 1998, 4.4; UMLAUT: input is not normalized.

    Visible: at two looks in a row, 10 steps apart, the median slope of a hidden layer
    is below 0.0025, a hundredth of the largest.
    """
    split = digits().inputs(lambda x: x * 255) if t.sick else digits()
    model = mlp([64, 64, 10], nn.Sigmoid)
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 1e-2),
        n_steps=150,
        visible=every(10, lasting(flat_slope(nn.Sigmoid, 0.0025), 2)),
        learned=0.9,
    )


@sick(
    named_by={"SaturatedActivation", "PoorWeightInitialization"},
    diagnosis="sigmoids behind weights with a deviation of 3",
)
def saturated_sigmoid(t: Training) -> None:
    """The gain of an initialization was multiplied instead of divided by the width.

    Source: Glorot, Bengio 2010; Humbatova et al. 2020: wrong weights initialization.

    Visible: at two looks in a row, 10 steps apart, the median slope of a hidden layer
    is below 0.0025, a hundredth of the largest.
    """
    model = mlp([30, 64, 64, 2], nn.Sigmoid)
    if t.sick:
        draw_weights(model, 3.0)
    fit(
        t,
        model,
        breast_cancer(),
        Adam(model.parameters(), 3e-3),
        n_steps=150,
        batch_size=32,
        visible=every(10, lasting(flat_slope(nn.Sigmoid, 0.0025), 2)),
        learned=0.95,
    )


@sick(named_by={"DeadRelu"}, diagnosis="every bias begins at -4.6, not just the last")
def prior_on_every_bias(t: Training) -> None:
    """The focal loss's initial bias of the last layer is given to all layers.

    Source: Lin et al. 2017, "Focal Loss for Dense Object Detection", 4.1 (where it is
    right); Lu et al. 2019, "Dying ReLU and Initialization".

    Visible: at two looks in a row, 10 steps apart, more than 80 % of the units of a
    layer are zero for all training data.
    """
    model = mlp([64, 64, 64, 10])
    if t.sick:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(parameter, -4.6)
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=150,
        visible=every(10, lasting(silent_units(0.8), 2)),
        learned=0.9,
    )


@sick(
    named_by={"DeadRelu", "WeightUpdateRatio"},
    diagnosis="one step of a learning rate of 2 kills nearly all ReLUs",
)
def relus_killed_by_the_rate(t: Training) -> None:
    """Large steps push biases so far down that units are never active again.

    Source: CS231n: "if your learning rate is too high you may find that as much as 40 %
    of your network can be dead"; Lu et al. 2019.

    Visible: at two looks in a row, 10 steps apart, more than 80 % of the units of a
    layer are zero for all training data.
    """
    model = mlp([64, 64, 64, 10])
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 0.5 if t.sick else 3e-3),
        n_steps=150,
        visible=every(10, lasting(silent_units(0.8), 2)),
        learned=0.9,
    )


@sick(
    named_by={"DeadRelu", "NotNormalizedData"},
    diagnosis="raw measurements: the first gradient kills the ReLUs",
)
def relus_killed_by_raw_data(t: Training) -> None:
    """Inputs in the thousands make gradients that no bias survives.

    Source: CS231n on dying ReLUs; LeCun et al. 1998, 4.3.

    Visible: at two looks in a row, 10 steps apart, more than 80 % of the units of a
    layer are zero for all training data.
    """
    model = mlp([30, 64, 32, 2])
    fit(
        t,
        model,
        breast_cancer(raw=t.sick),
        SGD(model.parameters(), 0.1),
        n_steps=150,
        batch_size=32,
        visible=every(10, lasting(silent_units(0.8), 2)),
        learned=0.95,
    )


@sick(named_by={"DeadRelu"}, diagnosis="all weights of a layer begin below zero")
def negative_filters(t: Training) -> None:
    """Weights drawn from 0 to -1 before a ReLU, whose inputs are not negative.

    Source: Lu et al. 2019 on networks that are born dead; He et al. 2015 on symmetric
    initialization.

    Visible: at two looks in a row, 10 steps apart, more than 80 % of the channels of a
    layer are zero for all training data.
    """
    model = cnn()
    if t.sick:
        with torch.no_grad():
            model[3].weight.uniform_(-1.0, 0.0)
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 2e-3),
        n_steps=120,
        visible=every(10, lasting(silent_units(0.8), 2)),
        learned=0.9,
    )
