"""Sick precision: too small or too large for 16 bits."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits
from benchmarks.detection.corpus.loops import share_right
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.training import Training


class Scaled(nn.Module):
    """Cross entropy in the precision of its inputs, divided by a number."""

    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets) / self.by


def lost_share(
    model: nn.Module, reference: nn.Module, x: Tensor, y: Tensor, by: float
) -> float:
    """Share of gradient elements that are zero, but are not in float32.

    *reference* is the same model in float32, with the same weights; what is below 1e-30
    there is not counted.
    """
    reference.zero_grad()
    (nn.functional.cross_entropy(reference(x.float()), y) / by).backward()
    lost = counted = 0
    for mine, true in zip(model.parameters(), reference.parameters(), strict=True):
        real = true.grad.abs() > 1e-30
        counted += int(real.sum())
        lost += int((real & (mine.grad == 0)).sum())
    return lost / max(counted, 1)


@sick(
    named_by={"PrecisionLoss", "VanishingGradient", "AllZero"},
    diagnosis="float16 without a loss scale: gradients are rounded to zero",
)
def gradients_below_half(t: Training) -> None:
    """Small gradients in float16, because nobody scales the loss.

    Source: Micikevicius et al. 2018, "Mixed Precision Training", 3.2: gradients of
    activations become zeros in float16. The loss is divided by 2 ** 18, as one is that
    is normalized by a product of sizes. The twin scales it back before the backward.

    Visible: at 10 steps in a row more than half of the gradient elements that are not
    zero in float32 are zero.
    """
    by = 2.0**18
    split = digits()
    model = mlp([64, 64, 10], nn.Tanh)
    reference = copy.deepcopy(model)
    model = model.half()
    optimizer = SGD(model.parameters(), 0.2)
    criterion = Scaled(by if t.sick else 1.0)
    t.watch(model, criterion)
    times, share = 0, 0.0
    for _ in t.steps(200):
        chosen = t.draw(len(split.x), 64)
        x, y = split.x[chosen].half(), split.y[chosen]
        with torch.no_grad():
            for mine, copied in zip(
                model.parameters(), reference.parameters(), strict=True
            ):
                copied.copy_(mine)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        share = lost_share(model, reference, x, y, criterion.by)
        optimizer.step()
        times = times + 1 if share > 0.5 else 0
        t.visible(times >= 10)
    with torch.no_grad():
        right = share_right(reference(split.x), split.y)
    t.note(accuracy=right, lost=share)
    t.learned(right > 0.7)


@sick(
    named_by={"ExplodingTensor", "PrecisionLoss", "NotNormalizedData"},
    diagnosis="bytes as float16: sums exceed 65504",
)
def activations_above_half(t: Training) -> None:
    """Values that float32 holds easily overflow in float16.

    Source: Micikevicius et al. 2018; transformers' issues on T5 in float16.

    Visible: at the first step at which a loss or a gradient is not finite.
    """
    factor = 255.0 * 16 if t.sick else 1.0
    split = digits().inputs(lambda x: x * factor)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).half()
    with torch.no_grad():
        model[0].weight.mul_(4.0)
    criterion = Scaled()
    optimizer = SGD(model.parameters(), 0.05)
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(120):
        chosen = t.draw(len(split.x), 64)
        optimizer.zero_grad()
        loss = criterion(model(split.x[chosen].half()), split.y[chosen])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        t.visible(
            not torch.isfinite(loss)
            or any(not bool(torch.isfinite(q.grad).all()) for q in model.parameters())
        )
    t.note(first=losses[0], last=losses[-1])
    t.learned(sum(losses[-10:]) < 5.0)


@sick(
    named_by={
        "UnchangedTensor",
        "WeightUpdateRatio",
        "PrecisionLoss",
        "LossNotDecreasing",
    },
    diagnosis="bfloat16 weights: updates are smaller than the spacing of numbers",
)
def updates_rounded_away(t: Training) -> None:
    """Weights in bfloat16, whose 8 bits swallow updates below 0.4 %.

    Source: Zamirai et al. 2020, "Revisiting BFloat16 Training": nearest rounding of
    weight updates halts training. The twin keeps the weights in float32.

    Visible: from step 100 on, when in the last 50 steps less than 1 % of the weights
    have changed, though accuracy is below 60 %.
    """
    model = mlp([64, 64, 64, 10])
    with torch.no_grad():
        for q in model.parameters():
            q.copy_(torch.sign(q) * (q.abs() + 0.07))
    reference = copy.deepcopy(model)
    dtype = torch.bfloat16 if t.sick else torch.float32
    model = model.to(dtype)
    optimizer = Adam(model.parameters(), 1e-4)
    criterion = nn.CrossEntropyLoss()
    split = digits()
    t.watch(model, criterion)
    history: list[Tensor] = []
    right = moved = 0.0
    for step in t.steps(250):
        chosen = t.draw(len(split.x), 64)
        optimizer.zero_grad()
        loss = criterion(model(split.x[chosen].to(dtype)), split.y[chosen])
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            weights = nn.utils.parameters_to_vector(model.parameters()).detach()
            history.append(weights.float())
            if len(history) > 5:
                moved = float((history[-1] != history[-6]).float().mean())
                nn.utils.vector_to_parameters(weights.float(), reference.parameters())
                with torch.no_grad():
                    right = share_right(reference(split.x), split.y)
                t.visible(step >= 100 and moved < 0.01 and right < 0.6)
    t.note(accuracy=right, moved=moved)
    t.learned(right > 0.55)
