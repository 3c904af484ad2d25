"""Gradients that become nothing on their way to the first layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam, RMSprop

from benchmarks.detection.cases.data.tokens import LONGEST, LineReader, lines_by_module
from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import digits, parted, wine
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    mean,
    sgd,
    train,
)
from benchmarks.detection.kit.models import Plain, draw_weights, mlp
from benchmarks.detection.kit.probes import (
    below_accuracy,
    every,
    lasting,
    loss_above,
    since,
)
from benchmarks.detection.kit.training import Training


def spread(tensor: Tensor) -> Tensor:
    """Root mean square, in double precision."""
    return tensor.double().pow(2).mean().sqrt()


def starved(first: str, last: str, ratio: float, patience: int = 10) -> Predicate:
    """One layer's gradient is a *ratio* of another's, or less, *patience* times.

    Compared are root mean squares of the gradients of two weights.
    """

    def holds(p: Probe) -> bool:
        named = dict(p.model.named_parameters())
        small, large = (named[name].grad for name in (first, last))
        if small is None or large is None:
            return False
        return bool(small.double().pow(2).mean().sqrt() <= ratio * spread(large))

    return lasting(holds, patience)


@first.sick("VanishingGradient", "ten layers of sigmoids")
def deep_sigmoids(t: Training) -> None:
    """Sigmoids in a deep network.

    Source: Hochreiter 1991; Bengio, Simard, Frasconi 1994; Glorot, Bengio 2010;
    AutoTrainer's and DeepLocalize's vanishing gradients. The twin has ReLUs.  Visible:
    at 10 steps in a row the gradient of the first layer is 1e-4 of that of the last, or
    less, by root mean square.
    """
    model = mlp([64] * 9 + [10], nn.Sigmoid if t.sick else nn.ReLU)
    if not t.sick:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    loop = Loop(t, model, digits(), sgd(0.02, momentum=0.9))
    loop.run(150, visible=starved("0.weight", "16.weight", 1e-4), learned=0.85)


@first.sick(
    "VanishingGradient PoorWeightInitialization",
    "tanh in twelve layers whose weights begin at 0.01",
)
def deep_narrow_tanh(t: Training) -> None:
    """Weights of a shallow network's size in a deep one.

    Source: Glorot, Bengio 2010; Saxe, McClelland, Ganguli 2014. The twin has Glorot's.
    Visible: at 10 steps in a row the gradient of the second layer is 1e-4 of that of
    the last, or less, by root mean square.
    """
    model = mlp([64] * 12 + [10], nn.Tanh)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight, gain=5 / 3)
    if t.sick:
        draw_weights(model, 0.01)
    loop = Loop(t, model, digits(), sgd(0.01, momentum=0.9))
    loop.run(150, visible=starved("2.weight", "22.weight", 1e-4), learned=0.85)


class Deep(nn.Module):
    """Many linear layers with ReLU, with ways around them or without."""

    def __init__(self, depth: int, *, ways_around: bool) -> None:
        super().__init__()
        self.ways_around = ways_around
        self.stem = nn.Linear(13, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.relu = nn.ReLU()
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        for layer in self.layers:
            out = self.relu(layer(x))
            x = x + out if self.ways_around else out
        return self.head(x)


@fourth.sick(
    "VanishingGradient LossNotDecreasing PoorWeightInitialization",
    "24 plain layers with PyTorch's default weights",
)
def two_dozen_plain_layers(t: Training) -> None:
    """Deeper should be better; nn.Linear's default lets each layer shrink the signal.

    Source: He 2015 (both: initialization and residual learning); the forum on
    kaiming_uniform_(a=sqrt(5)).  Visible: from 60 on, less than half is recognized.
    """
    model = Deep(24 if t.sick else 8, ways_around=not t.sick)
    loop = Loop(t, model, wine(), sgd(0.01, momentum=0.9), batch_size=16)
    loop.run(160, visible=below_accuracy(0.5, since=60), learned=0.9)


@fourth.sick(
    "VanishingGradient LossNotDecreasing TensorVariance",
    "an autoencoder of eight layers of sigmoids, without pretraining",
)
def stacked_sigmoids_rebuild_nothing(t: Training) -> None:
    """The deep autoencoder of 2006, trained at once: it puts out the mean image.

    Source: Hinton and Salakhutdinov 2006, who had to pretrain; Glorot 2010.  Visible:
    from 150 on, the reconstructions of different images are alike: their deviation is
    less than a twentieth of that of the images.
    """
    sizes = [64, 48, 32, 24, 12, 24, 32, 48, 64]
    model = mlp(sizes, nn.Sigmoid if t.sick else nn.SiLU)
    split = digits()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        images = split.x[t.draw(len(split.x), 64)]
        return images, images

    def mean_image(p: Probe) -> bool:
        return bool(p.outputs().std(0).mean() < 0.05 * split.x.std(0).mean())

    def rebuilds(p: Probe) -> bool:
        left = (p.outputs() - split.x).pow(2).mean()
        return bool(left < 0.7 * split.x.var(0).mean())

    loop = Loop(t, model, split, adam(4e-3), nn.MSELoss(), batches=batches)
    visible = since(150, every(10, lasting(mean_image, 3)))
    loop.run(340, visible=visible, learned=rebuilds)


@second.sick(
    "VanishingGradient PoorWeightInitialization",
    "deep, without residuals, with weights of deviation 0.02",
)
def weights_of_a_transformer(t: Training) -> None:
    """GPT's initialization in a plain network of ten layers.

    Source: nn.init.normal_(std=0.02) without what makes it work.  Visible: ten times in
    a row the first layer's gradient is a thousandth of the last one's.
    """
    model = Plain((64, 48, 10), 10, nn.GELU, residual=not t.sick)
    if t.sick:
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
    loop = Loop(t, model, digits(), adam(5e-4))
    loop.run(200, visible=starved("stem.weight", "head.weight", 1e-3), learned=0.9)


@second.sick(
    "VanishingGradient", "eight layers of sigmoids between the input and the loss"
)
def convolutions_with_sigmoids(t: Training) -> None:
    """A deep convolutional network with sigmoids, as in old books.

    Source: Glorot and Bengio 2010.  Visible: ten times in a row the first layer's
    gradient is a thousandth of the last one's.
    """
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for i in range(8):
        layers.append(nn.Conv2d(8 if i else 1, 8, 3, padding=1))
        if not t.sick:
            layers.append(nn.BatchNorm2d(8))
        layers.append(nn.Sigmoid() if t.sick else nn.ReLU())
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)]
    model = nn.Sequential(*layers)
    last = len(model) - 1
    loop = Loop(t, model, digits(), sgd(0.05, momentum=0.9), batch_size=48)
    loop.run(160, visible=starved("1.weight", f"{last}.weight", 1e-3), learned=0.8)


@third.sick(
    "VanishingGradient LossNotDecreasing Underfitting WeightUpdateRatio "
    "UnchangedTensor",
    "all weights are clamped to 0.01 after each step, as those of a critic",
)
def weights_clamped_as_in_wgan(t: Training) -> None:
    """For p in parameters(): p.data.clamp_(-0.01, 0.01), left from another project.

    Source: code of Wasserstein GANs, reused.  Visible: from the 80th step on, when the
    loss of 20 batches is above 2.2.
    """
    model = mlp([64, 48, 48, 10])
    bound = 0.01 if t.sick else 1.0

    def clamp(p: Probe) -> bool:
        for weight in p.model.parameters():
            weight.data.clamp_(-bound, bound)
        return high(p)

    high = loss_above(2.2, 80)
    loop = Loop(t, model, digits(), RMSprop(model.parameters(), 1e-3))
    loop.run(220, visible=clamp, learned=0.9)


class Rounded(nn.Module):
    """24 bits for an image."""

    def __init__(self, *, straight: bool) -> None:
        super().__init__()
        self.encoder = mlp([64, 64, 24])
        self.squash = nn.Sigmoid()
        self.decoder = mlp([24, 64, 64])
        self.straight = straight

    def forward(self, images: Tensor) -> Tensor:
        soft = self.squash(self.encoder(images))
        bits = soft.round()
        if self.straight:
            bits = soft + (bits - soft).detach()
        return self.decoder(bits)


@third.sick(
    "VanishingGradient MissingGradient UnchangedTensor AllZero",
    "round() has no slope: the encoder gets zeros",
)
def rounded_without_straight_through(t: Training) -> None:
    """An autoencoder whose code is rounded, and nothing carries the gradient past it.

    Source: PyTorch's forum, "gradient of torch.round is zero".  Visible: when for ten
    steps the gradients of the encoder have been zero to the last.
    """
    split = digits()
    model, criterion = Rounded(straight=not t.sick), nn.MSELoss()
    t.watch(model, criterion)
    times = 0

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        return criterion(model(images), images)

    def count() -> None:
        nonlocal times
        grads = [w.grad for w in model.encoder.parameters()]
        times = 0 if any(g is not None and bool(g.any()) for g in grads) else times + 1

    losses = train(
        t,
        loss_of,
        Adam(model.parameters(), 3e-3),
        n_steps=220,
        after_backward=count,
        visible=lambda _: times >= 10,
    )
    t.learned(mean(losses[-20:]) < 0.045)


@third.sick(
    "VanishingGradient LossNotDecreasing Underfitting NLPSequenceRatio",
    "the state is read after the padding, when the line is forgotten",
)
def state_after_the_padding(t: Training) -> None:
    """out[:, -1] of a simple recurrent network, for lines of very different length.

    Source: PyTorch's forum, "use pack_padded_sequence".  Visible: from the 150th step
    on, when less than 45 % of the lines are told apart (29 % by always saying one).
    """
    rows, labels = lines_by_module()
    x = torch.zeros(len(rows), LONGEST, dtype=torch.int64)
    for into, row in zip(x, rows, strict=True):
        into[: len(row)] = row
    model = LineReader(nn.RNN, after_padding=t.sick)
    loop = Loop(t, model, parted(x, labels, 4), adam(4e-3), batch_size=32, clip=1.0)
    loop.run(260, visible=below_accuracy(0.45, 150), learned=0.55)


@third.sick(
    "VanishingGradient LossNotDecreasing Underfitting UnchangedTensor "
    "TrainedInEvalMode",
    "the model was left in eval(): BatchNorm normalizes nothing",
)
def left_in_eval(t: Training) -> None:
    """A summary of the model called eval() before the training, and nobody train().

    Source: PyTorch's forum; Karpathy's list of most common mistakes.  Visible: from the
    80th step on, when the loss of 20 batches is above 2.2.
    """
    model = mlp([64, *[32] * 9, 10], norm=nn.BatchNorm1d)
    if t.sick:
        model.eval()
    loop = Loop(t, model, digits(), sgd(0.05, momentum=0.9))
    loop.run(200, visible=loss_above(2.2, 80), learned=0.9)
