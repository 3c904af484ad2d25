"""Weights that begin badly, steps of the wrong size, and depth without help."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import breast_cancer, digits, wine
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import below_accuracy, every, lasting
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.third.views import pretrain, since


@sick(
    named_by={
        "PoorWeightInitialization",
        "ExplodingTensor",
        "ExplodingGradient",
        "LossNotDecreasing",
    },
    diagnosis="weights are drawn from 0 to 1: none is negative",
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
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 1e-3),
        n_steps=150,
        batch_size=64,
        visible=below_accuracy(0.4, since=20),
        learned=0.9,
    )


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
        out: Tensor = self.layer(x) + self.up(self.down(x))
        return out


@sick(
    named_by={
        "PoorWeightInitialization",
        "VanishingGradient",
        "UnchangedTensor",
        "AllZero",
        "MissingGradient",
    },
    diagnosis="both matrices of each adapter begin at zero: neither has a gradient",
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

    fit(
        t,
        model,
        split,
        torch.optim.AdamW(learned, 1e-2),
        n_steps=200,
        batch_size=32,
        visible=nothing_moved,
        learned=0.8,
    )


@sick(
    named_by={"PoorWeightInitialization"},
    diagnosis="a layer was widened by copying its units; all copies stay alike",
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

    fit(
        t,
        model,
        breast_cancer(),
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=160,
        batch_size=32,
        validate_every=40,
        visible=since(30, copies),
        learned=0.95,
    )


@sick(
    named_by={"WeightUpdateRatio", "UnchangedTensor"},
    diagnosis="each layer learns at a tenth of the rate of the one above: from scratch",
)
def discount_per_layer(t: Training) -> None:
    """Layer-wise rates of fine-tuning (0.1 per layer) are used without a checkpoint.

    Source: Howard and Ruder 2018, "discriminative fine-tuning", and its copies.
    Visible: after 60 steps the first layer has moved by less than a thousandth of
    itself, the last by more than a hundredth.
    """
    model = mlp([64, 64, 64, 64, 64, 10], nn.GELU)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    discount = 0.1 if t.sick else 0.9
    groups = [
        {"params": list(layer.parameters()), "lr": 5e-3 * discount**above}
        for above, layer in enumerate(reversed(layers))
    ]
    began = [layer.weight.detach().clone() for layer in layers]

    def lopsided(_: Probe) -> bool:
        moved = [
            float((layer.weight.detach() - old).norm() / old.norm())
            for layer, old in zip(layers, began, strict=True)
        ]
        return moved[0] < 1e-3 and moved[-1] > 1e-2

    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(groups),
        n_steps=180,
        batch_size=64,
        visible=since(60, lopsided),
        learned=0.95,
    )


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
        said: Tensor = self.head(x)
        return said


@sick(
    named_by={"VanishingGradient", "LossNotDecreasing", "PoorWeightInitialization"},
    diagnosis="24 plain layers with PyTorch's default weights",
)
def two_dozen_plain_layers(t: Training) -> None:
    """Deeper should be better; nn.Linear's default lets each layer shrink the signal.

    Source: He 2015 (both: initialization and residual learning); the forum on
    kaiming_uniform_(a=sqrt(5)).  Visible: from 60 on, less than half is recognized.
    """
    model = Deep(24 if t.sick else 8, ways_around=not t.sick)
    fit(
        t,
        model,
        wine(),
        torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
        n_steps=160,
        batch_size=16,
        visible=below_accuracy(0.5, since=60),
        learned=0.9,
    )


@sick(
    named_by={"VanishingGradient", "LossNotDecreasing", "TensorVariance"},
    diagnosis="an autoencoder of eight layers of sigmoids, without pretraining",
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

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 4e-3),
        nn.MSELoss(),
        n_steps=340,
        batches=batches,
        visible=since(150, every(10, lasting(mean_image, 3))),
        learned=rebuilds,
    )
