"""Units that are dead or saturated."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.cases.data.tokens import bags
from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    breast_cancer,
    digits,
    houses,
    parted,
    patients,
    wine,
)
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    mean,
    sgd,
    train,
)
from benchmarks.detection.kit.models import cnn, draw_weights, mlp
from benchmarks.detection.kit.probes import (
    every,
    explains,
    flat_slope,
    lasting,
    loss_below,
    modules,
    since,
)
from benchmarks.detection.kit.training import Shadow, Training


@first.sick(
    "SaturatedActivation PoorWeightInitialization",
    "standard normal weights before tanh",
)
def saturated_tanh(t: Training) -> None:
    """Every tanh unit is at -1 or 1 from the beginning.

    Source: Glorot, Bengio 2010; CS231n, where tanh networks with weights of deviation 1
    "are completely saturated".  Visible: at two looks in a row, 10 steps apart, the
    median slope of a hidden layer is below 0.01.
    """
    model = mlp([64, 128, 128, 10], nn.Tanh)
    if t.sick:
        draw_weights(model, 1.0)
    loop = Loop(t, model, digits(), sgd(0.05))
    loop.run(200, visible=every(10, lasting(flat_slope(nn.Tanh, 0.01), 2)), learned=0.7)


@first.sick(
    "SaturatedActivation WeightUpdateRatio LossNotDecreasing",
    "a learning rate of 5 drives tanh to its ends",
)
def tanh_driven_to_its_ends(t: Training) -> None:
    """A good beginning, and steps so large that all units saturate.

    Source: Glorot, Bengio 2010; Humbatova et al. 2020: suboptimal learning rate.
    Visible: at two looks in a row, 10 steps apart, the median slope of a hidden layer
    is below 0.01.
    """
    model = mlp([13, 64, 64, 3], nn.Tanh)
    loop = Loop(t, model, wine(), adam(1.0 if t.sick else 3e-3), batch_size=32)
    visible = every(10, lasting(flat_slope(nn.Tanh, 0.01), 2))
    loop.run(120, visible=visible, learned=0.95)


@first.sick("SaturatedActivation NotNormalizedData", "bytes go into sigmoids")
def sigmoid_of_bytes(t: Training) -> None:
    """Pixels from 0 to 255 before a layer of sigmoids.

    Source: LeCun et al. 1998, 4.4; UMLAUT: input is not normalized.  Visible: at two
    looks in a row, 10 steps apart, the median slope of a hidden layer is below 0.0025,
    a hundredth of the largest.
    """
    split = digits().inputs(lambda x: x * 255) if t.sick else digits()
    loop = Loop(t, mlp([64, 64, 10], nn.Sigmoid), split, adam(1e-2))
    visible = every(10, lasting(flat_slope(nn.Sigmoid, 0.0025), 2))
    loop.run(150, visible=visible, learned=0.9)


@first.sick(
    "SaturatedActivation PoorWeightInitialization",
    "sigmoids behind weights with a deviation of 3",
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
    loop = Loop(t, model, breast_cancer(), adam(3e-3), batch_size=32)
    visible = every(10, lasting(flat_slope(nn.Sigmoid, 0.0025), 2))
    loop.run(150, visible=visible, learned=0.95)


def silent_units(share: float) -> Predicate:
    """In a layer that share of ReLU units is zero for all training data."""

    def judge(outputs: list[Tensor]) -> bool:
        return any(
            float((out.amax([0, *range(2, out.dim())]) <= 0).float().mean()) > share
            for out in outputs
        )

    return modules(nn.ReLU, judge)


@first.sick("DeadRelu", "every bias begins at -4.6, not just the last")
def prior_on_every_bias(t: Training) -> None:
    """The focal loss's initial bias of the last layer is given to all layers.

    Source: Lin et al. 2017, "Focal Loss for Dense Object Detection", 4.1 (where it is
    right); Lu et al. 2019, "Dying ReLU and Initialization".  Visible: at two looks in a
    row, 10 steps apart, more than 80 % of the units of a layer are zero for all
    training data.
    """
    model = mlp([64, 64, 64, 10])
    if t.sick:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(parameter, -4.6)
    loop = Loop(t, model, digits(), sgd(0.05, momentum=0.9))
    loop.run(150, visible=every(10, lasting(silent_units(0.8), 2)), learned=0.9)


@first.sick(
    "DeadRelu WeightUpdateRatio",
    "one step of a learning rate of 2 kills nearly all ReLUs",
)
def relus_killed_by_the_rate(t: Training) -> None:
    """Large steps push biases so far down that units are never active again.

    Source: CS231n: "if your learning rate is too high you may find that as much as 40 %
    of your network can be dead"; Lu et al. 2019.  Visible: at two looks in a row, 10
    steps apart, more than 80 % of the units of a layer are zero for all training data.
    """
    loop = Loop(t, mlp([64, 64, 64, 10]), digits(), adam(0.5 if t.sick else 3e-3))
    loop.run(150, visible=every(10, lasting(silent_units(0.8), 2)), learned=0.9)


@first.sick(
    "DeadRelu NotNormalizedData", "raw measurements: the first gradient kills the ReLUs"
)
def relus_killed_by_raw_data(t: Training) -> None:
    """Inputs in the thousands make gradients that no bias survives.

    Source: CS231n on dying ReLUs; LeCun et al. 1998, 4.3.  Visible: at two looks in a
    row, 10 steps apart, more than 80 % of the units of a layer are zero for all
    training data.
    """
    model = mlp([30, 64, 32, 2])
    loop = Loop(t, model, breast_cancer(raw=t.sick), sgd(0.1), batch_size=32)
    loop.run(150, visible=every(10, lasting(silent_units(0.8), 2)), learned=0.95)


@first.sick("DeadRelu", "all weights of a layer begin below zero")
def negative_filters(t: Training) -> None:
    """Weights drawn from 0 to -1 before a ReLU, whose inputs are not negative.

    Source: Lu et al. 2019 on networks that are born dead; He et al. 2015 on symmetric
    initialization.  Visible: at two looks in a row, 10 steps apart, more than 80 % of
    the channels of a layer are zero for all training data.
    """
    model = cnn()
    if t.sick:
        with torch.no_grad():
            model[3].weight.uniform_(-1.0, 0.0)
    loop = Loop(t, model, digits(), adam(2e-3))
    loop.run(120, visible=every(10, lasting(silent_units(0.8), 2)), learned=0.9)


@fourth.sick(
    "SaturatedActivation LossNotDecreasing Underfitting VanishingGradient",
    "targets of hundreds for an output that ends with tanh",
)
def target_out_of_reach_of_tanh(t: Training) -> None:
    """The last layer is tanh as in the paper that was copied; targets are 25 to 346.

    Source: DDPG's actor and image generators end so; Humbatova 2020, "wrong activation
    of the last layer".  Visible: the median slope of a tanh is below 0.01.
    """
    split = patients()
    middle, deviation = split.x.mean(0), split.x.std(0)
    split = split.inputs(lambda x: (x - middle) / deviation)
    scale = (lambda y: y * 77 + 152) if t.sick else (lambda y: y / 4)
    split = replace(split, y=scale(split.y), y_val=scale(split.y_val))
    model = nn.Sequential(mlp([10, 32, 16, 1]), nn.Tanh())
    loop = Loop(t, model, split, adam(5e-3), nn.MSELoss(), batch_size=32)
    loop.run(220, visible=every(5, flat_slope(nn.Tanh, 0.01)), learned=explains(0.4))


class Pooler(nn.Module):
    """Words are embedded, scaled, mixed by tanh, pooled and classified."""

    def __init__(self, n_tokens: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.embedding = nn.Embedding(n_tokens, 128)
        self.mix = nn.Linear(128, 64)
        self.tanh = nn.Tanh()
        self.head = nn.Linear(64, 4)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.tanh(self.mix(self.embedding(rows) * self.scale))
        return self.head(x.mean(1))


@fourth.sick(
    "SaturatedActivation",
    "embeddings of N(0, 1) are multiplied by the root of their width as well",
)
def embedding_scaled_by_its_width(t: Training) -> None:
    """X = embedding(rows) * sqrt(d), without the small weights that it is meant for.

    Source: Vaswani 2017, 3.4, whose embeddings have the deviation 1 / sqrt(d);
    nn.Embedding draws from N(0, 1).  Visible: the median slope of the tanh is below
    0.01.
    """
    rows, kinds, n_words = bags(300, 12)
    split = parted(rows, kinds, 3, 4)
    model = Pooler(n_words, 128**0.5 if t.sick else 1.0)
    loop = Loop(t, model, split, adam(2e-3), batch_size=32)
    loop.run(150, visible=every(10, flat_slope(nn.Tanh, 0.01)), learned=0.9)


@fourth.sick(
    "DeadRelu ExplodingGradient LossSpike WeightUpdateRatio",
    "targets in the hundreds: the first steps shut most units for ever",
)
def targets_in_the_hundreds(t: Training) -> None:
    """A regression on what the table says, 152 on average, with the usual rate.

    Source: Keras' forum on regressions that predict a constant; Lu 2019, "Dying ReLU".
    Visible: from 10 on, in a layer 70 % of the units are zero for all patients.
    """
    split = patients()
    middle, deviation = split.x.mean(0), split.x.std(0)
    split = split.inputs(lambda x: (x - middle) / deviation)
    if t.sick:
        split = replace(split, y=split.y * 77 + 152, y_val=split.y_val * 77 + 152)
    model = mlp([10, 64, 32, 1])
    loop = Loop(t, model, split, sgd(0.01, momentum=0.9), nn.MSELoss(), batch_size=32)
    loop.run(200, visible=since(10, silent_units(0.7)), learned=explains(0.4))


@fourth.sick(
    "DeadRelu WeightUpdateRatio LossNotDecreasing",
    "momentum of 0.99 with the rate for 0.9, without warm-up",
)
def momentum_of_ninety_nine(t: Training) -> None:
    """A sweep takes the larger momentum and keeps the rate: ten times the step.

    Source: Smith 2018 on rate and momentum together; "dying ReLU" at Stack Exchange.
    Visible: in a layer of the network 70 % of the units are zero for all images.
    """
    model = mlp([64, 96, 96, 96, 10])
    optimizer = sgd(0.1, momentum=0.99 if t.sick else 0.9)
    loop = Loop(t, model, digits(), optimizer, batch_size=64)
    loop.run(150, visible=every(10, silent_units(0.7)), learned=0.9)


@second.sick(
    "SaturatedActivation NotNormalizedData",
    "measurements in their units drive tanh flat",
)
def proline_into_tanh(t: Training) -> None:
    """Wine as it is, with proline near 1000, into two layers of tanh.

    Source: tables without a scaler.  Visible: when after 20 steps the median slope of a
    layer is below 0.05.
    """
    split = wine(raw=t.sick)
    loop = Loop(t, mlp([13, 32, 16, 3], nn.Tanh), split, adam(5e-3), batch_size=32)
    loop.run(200, visible=since(19, flat_slope(nn.Tanh, 0.05)), learned=0.95)


@second.sick(
    "SaturatedActivation PoorWeightInitialization",
    "sigmoids with weights of deviation 3",
)
def sigmoids_begin_flat(t: Training) -> None:
    """Hidden sigmoids whose weights were drawn far too large.

    Source: uniform_(-5, 5) in a port from NumPy.  Visible: when after 20 steps the
    median slope of a layer is below 0.02.
    """
    split = digits().inputs(lambda x: (x - 0.305) / 0.376)
    model = mlp([64, 48, 32, 10], nn.Sigmoid)
    if t.sick:
        for weight in model.parameters():
            nn.init.uniform_(weight, -5, 5)
    loop = Loop(t, model, split, adam(5e-3))
    loop.run(220, visible=since(19, flat_slope(nn.Sigmoid, 0.02)), learned=0.9)


@second.sick("DeadRelu WeightUpdateRatio", "a large rate has killed the units")
def units_killed_at_once(t: Training) -> None:
    """SGD with rate 2: after a few steps no unit of a layer says anything.

    Source: CS231n, "a ReLU neuron can die".  Visible: when for 20 steps 60 % of the
    units of a layer have been zero for all training data.
    """
    split = digits()
    model = mlp([64, 64, 64, 10], nn.ReLU)
    optimizer = sgd(2.0 if t.sick else 0.1, momentum=0.9)
    loop = Loop(t, model, split, optimizer, batch_size=32)
    loop.run(240, visible=lasting(silent_units(0.6), 20), learned=0.9)


@second.sick(
    "DeadRelu AllZero TensorVariance",
    "a ReLU after the output of a regression of negative values",
)
def relu_at_the_output(t: Training) -> None:
    """Targets are losses of money, negative; the last layer cannot say so.

    Source: nn.Sequential built in a loop, an activation after each.  Visible: when for
    20 steps the outputs have been zero for all training data.
    """
    split = houses(scaled=True)
    split = replace(split, y=split.y - 4.0, y_val=split.y_val - 4.0)
    model = mlp([8, 32, 32, 1], nn.ReLU)
    if t.sick:
        model.append(nn.ReLU())
    loop = Loop(t, model, split, adam(5e-3), nn.MSELoss())
    loop.run(250, visible=lasting(silent_units(0.9), 20), learned=loss_below(0.6))


@second.sick("DeadRelu PoorWeightInitialization", "biases begin far below zero")
def biases_below_zero(t: Training) -> None:
    """The prior's bias of the last layer, -4.6, was given to all convolutions.

    Source: focal loss's initialization applied by model.apply.  Visible: when for 20
    steps 60 % of the units of a layer have been zero for all training data.
    """
    split = digits()
    model = cnn()
    if t.sick:
        for module in model:
            if isinstance(module, nn.Conv2d):
                nn.init.constant_(module.bias, -4.6)  # type: ignore[arg-type]
    loop = Loop(t, model, split, adam(2e-3))
    loop.run(200, visible=lasting(silent_units(0.6), 20), learned=0.9)


class Gated(nn.Module):
    """A way through, opened by gates (Srivastava 2015)."""

    def __init__(self, opening: float, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.body = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.sigmoids = nn.ModuleList(nn.Sigmoid() for _ in range(depth))
        self.head = nn.Linear(32, 10)
        for gate in self.gate:
            nn.init.constant_(gate.bias, opening)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        layers = zip(self.body, self.gate, self.sigmoids, strict=True)
        for body, gate, sigmoid in layers:
            share = sigmoid(gate(x))
            x = share * torch.tanh(body(x)) + (1 - share) * x
        return self.head(x)


@third.sick(
    "SaturatedActivation VanishingGradient PoorWeightInitialization",
    "gates begin shut at -30, and no gradient opens them",
)
def gates_begin_shut(t: Training) -> None:
    """A gate's bias was to begin "negative, such as -1": it begins at -30.

    Source: highway networks written by hand.  Visible: when for 20 steps the layers
    behind the gates have had a billionth of the head's gradient.
    """
    split = digits()
    model = Gated(-30.0 if t.sick else -1.0)
    times = 0

    def shut(p: Probe) -> bool:
        nonlocal times
        named = dict(p.model.named_parameters())
        inner, outer = named["body.1.weight"].grad, named["head.weight"].grad
        if inner is None or outer is None:
            return False
        times = times + 1 if bool(inner.norm() < 1e-9 * outer.norm()) else 0
        return times >= 20

    loop = Loop(t, model, split, adam(3e-3))
    loop.run(200, visible=shut, learned=0.9)


class Sparse(nn.Module):
    """96 units of which few should speak at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
        self.decoder = nn.Linear(96, 64)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(images)
        return self.decoder(code), code


@third.sick(
    "DeadRelu AllZero TensorVariance",
    "the penalty on activity is so strong that all units die",
)
def sparsity_kills_the_code(t: Training) -> None:
    """A sparse autoencoder with a coefficient that was tuned for another scale.

    Source: dead latents of sparse autoencoders.  Visible: when for ten steps four
    fifths of the units have been zero for all images.
    """
    split = digits()
    model, criterion = Sparse(), nn.MSELoss()
    shadow = Shadow(model)
    t.watch(model, criterion)
    times = 0

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        again, code = model(images)
        penalty = code.abs().sum(1).mean()
        return criterion(again, images) + (0.3 if t.sick else 1e-4) * penalty

    def look(_: list[float]) -> bool:
        nonlocal times
        with torch.no_grad():
            code = shadow()(split.x)[1]
        dead = float((code.amax(0) <= 0).float().mean()) > 0.8
        times = times + 1 if dead else 0
        return times >= 10

    losses = train(
        t, loss_of, Adam(model.parameters(), 3e-3), n_steps=250, visible=look
    )
    t.learned(mean(losses[-20:]) < 0.04)
