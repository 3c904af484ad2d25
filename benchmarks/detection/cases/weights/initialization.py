"""Weights that begin where nothing can be learned."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    Split,
    breast_cancer,
    digits,
    pictures,
    text,
    windows,
    words,
)
from benchmarks.detection.kit.loops import (
    Loop,
    Predicate,
    Probe,
    adam,
    adamw,
    mean,
    pretrain,
    sgd,
)
from benchmarks.detection.kit.models import (
    CharacterTransformer,
    Encoder,
    draw_weights,
    mlp,
)
from benchmarks.detection.kit.probes import (
    alike_for_all,
    below_accuracy,
    both,
    every,
    lasting,
    loss_below,
    modules,
    since,
    stands,
)
from benchmarks.detection.kit.training import Training


def units_alike(spread_limit: float) -> Predicate:
    """All units of a hidden layer say the same, for every example.

    The deviation among units is below a share of the largest output of the layer.
    """

    def judge(outputs: list[Tensor]) -> bool:
        return any(
            bool(out.std(1).max() <= spread_limit * out.abs().max()) for out in outputs
        )

    return modules((nn.ReLU, nn.Tanh, nn.Sigmoid), judge)


def set_weights(model: nn.Module, value: float) -> None:
    """All weights of linear and convolutional layers alike, all biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.constant_(module.weight, value)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@first.sick(
    "PoorWeightInitialization", "all weights begin as 0.05, so all units stay alike"
)
def equal_weights(t: Training) -> None:
    """Weights are set to one constant: the units of a layer never differ.

    Source: Goodfellow, Bengio, Courville 2016, 8.4 on symmetry; Humbatova et al. 2020:
    wrong weights initialization; DeepLocalize's and UMLAUT's lists.  Visible: at step 9
    and after, when all units of a hidden layer say the same, within 0.1 % of the
    largest, for every image.
    """
    model = mlp([64, 64, 64, 10])
    if t.sick:
        set_weights(model, 0.05)
    loop = Loop(t, model, digits(), adam(2e-3))
    loop.run(150, visible=every(10, units_alike(1e-3)), learned=0.9)


@first.sick(
    "PoorWeightInitialization VanishingGradient AllZero",
    "all weights begin as zero: nothing but the last bias can learn",
)
def zero_weights(t: Training) -> None:
    """Everything is set to zero, as one would for logistic regression.

    Source: CS231n, "Pitfall: all zero initialization"; NeuraLint's rule that initial
    weights must not be constants.  Visible: at step 9 and after, when all units of a
    hidden layer say the same for every example.
    """
    model = mlp([30, 32, 32, 2], nn.Tanh)
    if t.sick:
        set_weights(model, 0.0)
    loop = Loop(t, model, breast_cancer(), sgd(0.1), batch_size=32)
    loop.run(150, visible=every(10, units_alike(1e-3)), learned=0.93)


def far_off_chance(times: int, n_classes: int, at_least: float) -> Predicate:
    """The loss of the first *times* batches is far above that of guessing."""
    limit = at_least * math.log(n_classes)

    def holds(p: Probe) -> bool:
        return min(p.losses) > limit and len(p.losses) >= times

    return holds


@first.sick(
    "PoorWeightInitialization ExplodingGradient ExplodingTensor",
    "weights begin with a deviation of 1, whatever the width",
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
    loop = Loop(t, model, digits(), adam(1e-3))
    loop.run(150, visible=far_off_chance(10, 10, 5.0), learned=0.9)


def says_nothing(p: Probe) -> bool:
    """What the model says hardly depends on the image."""
    out = p.outputs()
    return bool(out.std(0).max() < 1e-3)


@first.sick(
    "PoorWeightInitialization VanishingGradient",
    "weights begin at 0.001: after four layers nothing is left",
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
    loop = Loop(t, model, digits(), sgd(0.1, momentum=0.9))
    visible = every(10, both(says_nothing, below_accuracy(0.3, 19)), 19)
    loop.run(250, visible=visible, learned=0.75)


@fourth.sick(
    "PoorWeightInitialization ExplodingTensor ExplodingGradient LossNotDecreasing",
    "weights are drawn from 0 to 1: none is negative",
)
def uniform_from_zero_to_one(t: Training) -> None:
    """nn.init.uniform_(weight) and torch.rand have 0 and 1 as their ends.

    Source: own layers with nn.Parameter(torch.rand(n, m)) in the forum; Humbatova 2020,
    "wrong weights initialisation".  Visible: from 20 on, less than 40 % of the training
    data is recognized.
    """
    model = mlp([64, 100, 100, 10])
    if t.sick:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.uniform_(layer.weight)
    loop = Loop(t, model, digits(), adam(1e-3), batch_size=64)
    loop.run(150, visible=below_accuracy(0.4, since=20), learned=0.9)


class Adapted(nn.Module):
    """A frozen linear layer, and beside it two small matrices that learn (Hu 2021)."""

    def __init__(self, layer: nn.Linear, rank: int, *, both_zero: bool) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        if both_zero:
            nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


@fourth.sick(
    "PoorWeightInitialization VanishingGradient UnchangedTensor AllZero "
    "MissingGradient",
    "both matrices of each adapter begin at zero: neither has a gradient",
)
def both_adapters_zero(t: Training) -> None:
    """LoRA written by hand: A is set to zero like B, so that nothing can ever move.

    Source: Hu 2021, section 4.1, says that only B is zero; questions under
    re-implementations whose loss stands.  The network knows digits turned by 90
    degrees, and is to learn upright ones.  Visible: after 20 steps all adapters are
    exactly zero.
    """
    split = digits()
    turned = split.inputs(lambda x: x.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1))
    layers = [nn.Linear(64, 96), nn.Linear(96, 96), nn.Linear(96, 10)]
    pretrain(
        nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]),
        turned,
        150,
    )
    first, second, last = (Adapted(q, 8, both_zero=t.sick) for q in layers)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
    learned = [q for q in model.parameters() if q.requires_grad]

    def nothing_moved(p: Probe) -> bool:
        return p.step >= 19 and not any(bool(q.detach().any()) for q in learned)

    loop = Loop(t, model, split, AdamW(learned, 1e-2), batch_size=32)
    loop.run(200, visible=nothing_moved, learned=0.8)


@fourth.sick(
    "PoorWeightInitialization",
    "a layer was widened by copying its units; all copies stay alike",
)
def widened_by_copies(t: Training) -> None:
    """Net2Net without its noise: eight units are repeated until there are 64.

    Source: Chen 2015, who add noise for that reason; Goodfellow's book, 8.4, on
    symmetry.  Visible: from 30 on, at no time more than 8 of the 64 units of the hidden
    layer say something different.
    """
    first, second = nn.Linear(30, 64), nn.Linear(64, 24)
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(24, 2))
    if t.sick:
        with torch.no_grad():
            first.weight.copy_(first.weight[:8].repeat(8, 1))
            first.bias.copy_(first.bias[:8].repeat(8))
            second.weight.copy_(second.weight[:, :8].repeat(1, 8) / 8)

    def copies(_: Probe) -> bool:
        rows = torch.cat([first.weight, first.bias[:, None]], 1).detach()
        return len(torch.unique((rows * 1e4).round(), dim=0)) <= 8

    optimizer = sgd(0.05, momentum=0.9)
    loop = Loop(t, model, breast_cancer(), optimizer, batch_size=32, validate_every=40)
    loop.run(160, visible=since(30, copies), learned=0.95)


@second.sick(
    "PoorWeightInitialization", "all weights of a layer begin with the same value"
)
def constant_weights(t: Training) -> None:
    """An autoencoder whose layers are filled with 0.05.

    Source: nn.init.constant_ for want of another.  Visible: when after ten steps all
    units of a hidden layer say the same.
    """
    sizes = (nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 8))
    model = nn.Sequential(*sizes, nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64))
    if t.sick:
        for name, weight in model.named_parameters():
            nn.init.constant_(weight, 0.05 if name.endswith("weight") else 0.0)
    loop = Loop(t, model, pictures(), adam(5e-3), nn.MSELoss())
    loop.run(250, visible=since(9, units_alike(1e-3)), learned=loss_below(0.05))


def spread_of_layers(
    low: float, high: float, kind: type[torch.nn.Module] = torch.nn.Linear
) -> Predicate:
    """Deviation of what some layer puts out is below or above these, at the start."""

    def holds(p: Probe) -> bool:
        if p.step > 0:
            return False
        found: list[float] = []
        shadow = p.shadow()
        handles = [
            module.register_forward_hook(
                lambda _m, _i, out: found.append(float(out.std()))
            )
            for module in shadow.modules()
            if isinstance(module, kind)
        ]
        with torch.no_grad():
            shadow(p.split.x[:64])
        for handle in handles:
            handle.remove()
        return min(found) < low or max(found) > high

    return holds


@second.sick("PoorWeightInitialization", "all weights are drawn with deviation 1")
def normal_of_deviation_one(t: Training) -> None:
    """For p in model.parameters(): nn.init.normal_(p), in a transformer.

    Source: the default of normal_.  Visible: at once, a layer's outputs have a
    deviation above 5; and called at 20, with the loss above that of a guess.
    """
    split = words(600)
    model = Encoder(620, 5)
    if t.sick:
        for weight in model.parameters():
            nn.init.normal_(weight)
    far = spread_of_layers(0.0, 5.0)
    seen: list[bool] = []

    def visible(p: Probe) -> bool:
        seen.append(far(p))
        return p.step >= 20 and any(seen) and mean(p.losses[-20:]) > 1.6

    loop = Loop(t, model, split, adam(2e-3), batch_size=48)
    loop.run(200, visible=visible, learned=0.7)


@second.sick(
    "PoorWeightInitialization VanishingGradient",
    "weights begin so small that no signal arrives",
)
def thousandth(t: Training) -> None:
    """normal_(std=0.001) in every layer of a plain network of six.

    Source: AlexNet's 0.01, once more divided.  Visible: at 30, when outputs of a layer
    had a deviation below 1e-4 and the loss is what guessing costs.
    """
    split = digits()
    model = mlp([64, 48, 48, 48, 48, 48, 10], nn.ReLU)
    if t.sick:
        for weight in model.parameters():
            nn.init.normal_(weight, std=1e-3)
    small = spread_of_layers(1e-3, 1e9)
    seen: list[bool] = []

    def visible(p: Probe) -> bool:
        seen.append(small(p))
        return p.step >= 30 and any(seen) and mean(p.losses[-20:]) > 2.29

    loop = Loop(t, model, split, sgd(0.05, momentum=0.9))
    loop.run(250, visible=visible, learned=0.8)


@third.sick(
    "PoorWeightInitialization",
    "the head shares an embedding of deviation 1: logits begin in the tens",
)
def tied_embedding_too_wide(t: Training) -> None:
    """Tied weights with nn.Embedding's own initialization, made for no output.

    Source: issues of nanoGPT and its like, "initial loss of 100 instead of 4". Visible:
    at the first step, whose loss is twice that of a guess.
    """
    stream = text()
    starts = torch.arange(0, len(stream) - 33, 48)
    x, y = windows(stream, starts, 32)
    model = CharacterTransformer(N_CHARACTERS, 32, tied=True)
    if t.sick:
        model.embedding.reset_parameters()
    loop = Loop(t, model, Split(x, y, x[:8], y[:8]), adamw(3e-3), batch_size=16)
    learned = loss_below(2.8, 10)
    loop.run(
        160,
        visible=lambda p: p.step == 0 and p.losses[0] > 2 * math.log(N_CHARACTERS),
        learned=learned,
    )


@third.sick(
    "PoorWeightInitialization AllZero TensorVariance VanishingGradient Underfitting "
    "LossNotDecreasing",
    "all vectors begin at zero, those of normalizations too",
)
def norms_zeroed_by_init(t: Training) -> None:
    """xavier_uniform_ for matrices, zeros_ "for biases": and for LayerNorm's scales.

    Source: initialization loops over parameters() by dim().  Visible: when for ten
    steps all images have had the same outputs.
    """
    model = mlp([64, 48, 48, 10], norm=nn.LayerNorm)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
        elif t.sick or name.endswith("bias"):
            nn.init.zeros_(weight)
    loop = Loop(t, model, digits(), adam(3e-3))
    loop.run(200, visible=lasting(alike_for_all(1e-4), 10), learned=0.95)


class LowRank(nn.Module):
    """A frozen layer and a product of two narrow matrices beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 6, *, zeros: bool) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.zeros(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        if not zeros:
            nn.init.kaiming_uniform_(self.down, 5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


@third.sick(
    "PoorWeightInitialization VanishingGradient UnchangedTensor AllZero "
    "LossNotDecreasing WeightUpdateRatio",
    "both factors of the adapters begin at zero, and stay there",
)
def adapters_of_zeros(t: Training) -> None:
    """LoRA of which both matrices are zero: neither gets a gradient.

    Source: LoRA written by hand.  Visible: when in ten steps no adapter has moved.
    """
    split = digits()
    base = mlp([64, 64, 64, 10])
    pretrain(base, split, 200)
    for weight in base.parameters():
        weight.requires_grad_(requires_grad=False)
    for i in (0, 2, 4):
        base[i] = LowRank(base[i], zeros=t.sick)  # type: ignore[arg-type]
    upright = split.inputs(
        lambda x: x.view(-1, 8, 8).transpose(1, 2).flatten(1).contiguous()
    )
    adapters = [name for name, w in base.named_parameters() if w.requires_grad]
    optimizer = Adam([w for w in base.parameters() if w.requires_grad], 0.01)
    loop = Loop(t, base, upright, optimizer)
    loop.run(220, visible=stands(adapters, 10), learned=0.85)
