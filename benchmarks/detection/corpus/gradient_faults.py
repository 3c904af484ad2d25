"""Sick gradients: they do not arrive, or they are enormous."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    N_CHARACTERS,
    Split,
    diabetes,
    digits,
    text,
    windows,
)
from benchmarks.detection.corpus.loops import Predicate, Probe, fit
from benchmarks.detection.corpus.models import CharacterModel, mlp
from benchmarks.detection.corpus.probes import any_of, non_finite, starved
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.corpus.weight_faults import draw_weights


@sick(
    named_by={"VanishingGradient"},
    diagnosis="ten layers of sigmoids",
)
def deep_sigmoids(t: Training) -> None:
    """Sigmoids in a deep network.

    Source: Hochreiter 1991; Bengio, Simard, Frasconi 1994; Glorot, Bengio 2010;
    AutoTrainer's and DeepLocalize's vanishing gradients. The twin has ReLUs.

    Visible: at 10 steps in a row the gradient of the first layer is 1e-4 of that of the
    last, or less, by root mean square.
    """
    model = mlp([64] * 9 + [10], nn.Sigmoid if t.sick else nn.ReLU)
    if not t.sick:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.02, momentum=0.9),
        n_steps=150,
        visible=starved("0.weight", "16.weight", 1e-4),
        learned=0.85,
    )


@sick(
    named_by={"VanishingGradient", "PoorWeightInitialization"},
    diagnosis="tanh in twelve layers whose weights begin at 0.01",
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
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.01, momentum=0.9),
        n_steps=150,
        visible=starved("2.weight", "22.weight", 1e-4),
        learned=0.85,
    )


def enormous(times_first: float, patience: int = 1) -> Predicate:
    """The norm of all gradients is that much larger than that of the first step."""
    first = 0.0
    held = 0

    def holds(p: Probe) -> bool:
        nonlocal first, held
        norm = float(
            sum(
                q.grad.double().pow(2).sum()
                for q in p.model.parameters()
                if q.grad is not None
            )
        )
        first = first or norm
        held = held + 1 if not norm <= times_first**2 * first else 0
        return held >= patience

    return holds


@sick(
    named_by={
        "ExplodingGradient",
        "ExplodingTensor",
        "LossSpike",
        "NotNormalizedData",
        "LossNotDecreasing",
        "WeightUpdateRatio",
    },
    diagnosis="targets from 25 to 346 as they are, with a rate for unit variance",
)
def raw_targets(t: Training) -> None:
    """A regression on targets that were not normalized diverges.

    Source: Humbatova et al. 2020: missing normalization of targets; questions on
    regressions with a loss of NaN.

    Visible: when the norm of the gradients is more than 100 times that of the first
    step, or something is not finite.
    """
    split = diabetes(raw_targets=t.sick)
    model = mlp([10, 64, 64, 1])
    fit(
        t,
        model,
        split,
        SGD(model.parameters(), 0.05),
        criterion=nn.MSELoss(),
        n_steps=60 if t.sick else 200,
        batch_size=32,
        visible=any_of(enormous(100.0), non_finite),
        learned=lambda p: sum(p.losses[-20:]) < 0.7 * 20,
    )


@sick(
    named_by={"ExplodingGradient", "PoorWeightInitialization", "ExplodingTensor"},
    diagnosis="weights with four times He's deviation in ten layers",
)
def explosive_depth(t: Training) -> None:
    """Gradients that grow fourfold from layer to layer.

    Source: He et al. 2015; Hanin 2018, "Which Neural Net Architectures Give Rise To
    Exploding and Vanishing Gradients?"

    Visible: at 5 steps in a row the norm of a weight's gradient is more than 1000, or
    something is not finite.
    """
    held = 0

    def large(p: Probe) -> bool:
        nonlocal held
        norms = [
            float(q.grad.double().norm())
            for q in p.model.parameters()
            if q.grad is not None
        ]
        held = held + 1 if not max(norms) <= 1000 else 0
        return held >= 5 or non_finite(p)

    model = mlp([64] * 10 + [10])
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if t.sick:
                module.weight.data.mul_(4.0)
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 0.02),
        n_steps=160,
        visible=large,
        learned=0.7,
    )


@sick(
    named_by={"ExplodingGradient", "LossSpike", "ExplodingTensor"},
    diagnosis="a recurrent network of large weights without clipping",
)
def unclipped_recurrence(t: Training) -> None:
    """Gradients through 40 steps of time explode; nobody clips them.

    Source: Pascanu, Mikolov, Bengio 2013, "On the difficulty of training recurrent
    neural networks". The twin clips at 0.5.

    Visible: when the norm of the gradients is more than 30 times that of the first
    step, or something is not finite.
    """
    model = CharacterModel(N_CHARACTERS, 64, nn.RNN)
    model.cell = nn.RNN(32, 64, batch_first=True, nonlinearity="relu")
    nn.init.orthogonal_(model.cell.weight_hh_l0, 1.15)
    stream = text()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        return windows(stream, t.draw(len(stream) - 50, 16), 40)

    def learned(p: Probe) -> bool:
        return sum(p.losses[-10:]) < 0.8 * 10 * p.losses[0]

    some = windows(stream, torch.arange(0, 640, 40), 40)
    fit(
        t,
        model,
        Split(*some, *some),
        SGD(model.parameters(), 0.5),
        n_steps=120,
        batches=batches,
        clip=None if t.sick else 0.5,
        visible=any_of(enormous(30.0), non_finite),
        learned=learned,
    )
