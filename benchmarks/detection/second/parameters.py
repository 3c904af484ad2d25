"""Weights begin wrong, or are moved wrongly."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import Split, digits, wine
from benchmarks.detection.corpus.loops import Probe, fit
from benchmarks.detection.corpus.models import Attentive, Residual, cnn, mlp
from benchmarks.detection.corpus.probes import both, lasting, loss_above, units_alike
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.second.looks import (
    after,
    mean,
    spread_of_layers,
    stands,
    unmoved,
)
from benchmarks.detection.second.nets import Encoder, Plain
from benchmarks.detection.second.parts import houses, words


def pictures() -> Split:
    """Digits that are to be drawn again."""
    split = digits()
    return replace(split, y=split.x, y_val=split.x_val)


@sick(
    named_by={"PoorWeightInitialization"},
    diagnosis="all weights of a layer begin with the same value",
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
    fit(
        t,
        model,
        pictures(),
        torch.optim.Adam(model.parameters(), 5e-3),
        nn.MSELoss(),
        n_steps=250,
        visible=after(10, units_alike(1e-3)),
        learned=lambda p: mean(p.losses[-20:]) < 0.05,
    )


@sick(
    named_by={"PoorWeightInitialization"},
    diagnosis="all weights are drawn with deviation 1",
)
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

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=200,
        batch_size=48,
        visible=visible,
        learned=0.7,
    )


@sick(
    named_by={"PoorWeightInitialization", "VanishingGradient"},
    diagnosis="weights begin so small that no signal arrives",
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

    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=250,
        visible=visible,
        learned=0.8,
    )


@sick(
    named_by={"WeightUpdateRatio", "LossNotDecreasing"},
    diagnosis="Adam was given the learning rate of SGD",
)
def rate_of_sgd_for_adam(t: Training) -> None:
    """lr=0.3 stayed when SGD was replaced by Adam.

    Source: optimizers compared at one rate.  Visible: at 40, when the loss of 20
    batches is what guessing costs, or worse.
    """
    model = cnn()
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 0.3 if t.sick else 3e-3),
        n_steps=200,
        visible=loss_above(2.29, since=40),
        learned=0.9,
    )


@sick(
    named_by={"WeightUpdateRatio", "LossNotDecreasing"},
    diagnosis="a rate for fine-tuning, though nothing was trained before",
)
def rate_for_fine_tuning(t: Training) -> None:
    """AdamW with 1e-6 trains a transformer from scratch.

    Source: copied scripts of fine-tuning.  Visible: at 100, when in 100 steps no matrix
    has moved by a hundredth.
    """
    split = words(600)
    model = Encoder(620, 5)
    fit(
        t,
        model,
        split,
        torch.optim.AdamW(model.parameters(), 1e-6 if t.sick else 2e-3),
        n_steps=240,
        batch_size=48,
        visible=unmoved(0.01, 100),
        learned=0.7,
    )


class MeanOfMean(nn.MSELoss):
    """The mean, divided once more by the number of elements."""

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        return super().forward(out, target) / out.numel()


@sick(
    named_by={"WeightUpdateRatio", "LossNotDecreasing"},
    diagnosis="the loss is divided by the number of pixels twice",
)
def mean_of_mean(t: Training) -> None:
    """Loss = MSELoss()(x, y) / x.numel(), with SGD.

    Source: sums turned into means.  Visible: at 100, when in 100 steps no matrix has
    moved by a hundredth.
    """
    model = mlp([64, 48, 12, 48, 64], nn.ELU)
    fit(
        t,
        model,
        pictures(),
        torch.optim.SGD(model.parameters(), 0.5, momentum=0.9),
        MeanOfMean() if t.sick else nn.MSELoss(),
        n_steps=260,
        visible=unmoved(0.01, 100),
        learned=lambda p: mean(p.losses[-20:]) < 0.08,
    )


@sick(
    named_by={"NotInOptimizer", "UnchangedTensor", "LossNotDecreasing"},
    diagnosis="the optimizer has the weights of another copy of the model",
)
def optimizer_of_a_copy(t: Training) -> None:
    """The model is copied after the optimizer was made.

    Source: the forum; moving, wrapping or loading after the optimizer.  Visible: after
    30 steps in which no weight has moved.
    """
    split = digits()
    first = Residual(8, 1)
    model = copy.deepcopy(first)
    of = first if t.sick else model
    every_weight = [name for name, _ in model.named_parameters()]
    fit(
        t,
        model,
        split,
        torch.optim.SGD(of.parameters(), 0.05, momentum=0.9),
        n_steps=150,
        batch_size=32,
        visible=stands(every_weight, 30),
        learned=0.9,
    )


@sick(
    named_by={"NotInOptimizer", "UnchangedTensor"},
    diagnosis="layers are thawed that the optimizer does not know",
)
def thawed_too_late(t: Training) -> None:
    """The optimizer was given what required a gradient; later all does.

    Source: gradual unfreezing with filter(lambda p: p.requires_grad).  Visible: 20
    steps after the thaw, in which the body has a gradient and has not moved.
    """
    split = digits()
    model = Plain((64, 48, 10), 3, nn.ReLU, residual=True)
    body = [model.stem, *model.layers]
    for module in body:
        module.requires_grad_(False)
    given = [p for p in model.parameters() if p.requires_grad or not t.sick]
    optimizer = torch.optim.Adam(given, 2e-3)
    names = [f"layers.{i}.weight" for i in range(3)]

    def thaw(step: int) -> None:
        if step == 80:
            for module in body:
                module.requires_grad_(True)

    def with_gradient(_: Probe) -> bool:
        return all(layer.weight.grad is not None for layer in model.layers)

    fit(
        t,
        model,
        split,
        optimizer,
        n_steps=220,
        before_step=thaw,
        visible=lasting(both(with_gradient, stands(names, 1)), 20),
        learned=0.9,
    )


@sick(
    named_by={"ZeroLearningRate", "UnchangedTensor", "LossNotDecreasing"},
    diagnosis="a warm-up by integer division: the rate is zero",
)
def warm_up_by_integers(t: Training) -> None:
    """LambdaLR(lambda step: min(1, step // 1000)).

    Source: // for /.  Visible: after 30 steps in which no weight has moved.
    """
    split = digits()
    model = Attentive()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def factor(step: int) -> float:
        return min(1.0, step // 1000) if t.sick else min(1.0, (step + 1) / 50)

    every_weight = [name for name, _ in model.named_parameters()]
    fit(
        t,
        model,
        split,
        optimizer,
        n_steps=200,
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, factor),
        visible=stands(every_weight, 30),
        learned=0.9,
    )


@sick(
    named_by={"ZeroLearningRate", "UnchangedTensor"},
    diagnosis="the schedule ends after a third of the training",
)
def schedule_too_short(t: Training) -> None:
    """LinearLR to zero over 100 steps, for a training of 300.

    Source: total_steps of another batch size.  Visible: after 20 steps in which no
    weight has moved, 200 steps before the end.
    """
    split = wine()
    model = mlp([13, 24, 24, 3], nn.Mish)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    every_weight = [name for name, _ in model.named_parameters()]
    fit(
        t,
        model,
        split,
        optimizer,
        n_steps=300,
        batch_size=16,
        schedule=torch.optim.lr_scheduler.LinearLR(
            optimizer, 1.0, 0.0 if t.sick else 0.1, total_iters=80 if t.sick else 300
        ),
        visible=stands(every_weight, 20),
        learned=0.95,
    )


@sick(
    named_by={"UnchangedTensor", "LossNotDecreasing", "WeightUpdateRatio"},
    diagnosis="the first weights are loaded again in every step",
)
def checkpoint_loaded_each_step(t: Training) -> None:
    """load_state_dict(best) in the loop, and the best never changes.

    Source: roll-back on a worse loss with a comparison upside down.  Visible: after 30
    steps in which no weight has moved.
    """
    split = houses(scaled=True)
    model = mlp([8, 32, 1], nn.SiLU)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    best = copy.deepcopy(model.state_dict())
    every_weight = [name for name, _ in model.named_parameters()]
    if t.sick:
        optimizer.register_step_post_hook(lambda *_: model.load_state_dict(best))
    fit(
        t,
        model,
        split,
        optimizer,
        nn.HuberLoss(),
        n_steps=220,
        visible=stands(every_weight, 30),
        learned=lambda p: mean(p.losses[-20:]) < 0.25,
    )
