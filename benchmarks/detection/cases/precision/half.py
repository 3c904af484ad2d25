"""Numbers that half precision has no room for."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.kit.case import first, fourth, second
from benchmarks.detection.kit.data import Split, digits
from benchmarks.detection.kit.loops import (
    Loop,
    Probe,
    adam,
    descend,
    mean,
    sgd,
    share_right,
    train,
)
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.probes import lasting, loss_below, since
from benchmarks.detection.kit.training import Training


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


@first.sick(
    "PrecisionLoss VanishingGradient AllZero",
    "float16 without a loss scale: gradients are rounded to zero",
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


@first.sick(
    "ExplodingTensor PrecisionLoss NotNormalizedData",
    "bytes as float16: sums exceed 65504",
)
def activations_above_half(t: Training) -> None:
    """Values that float32 holds easily overflow in float16.

    Source: Micikevicius et al. 2018; transformers' issues on T5 in float16.  Visible:
    at the first step at which a loss or a gradient is not finite.
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
        loss = criterion(model(split.x[chosen].half()), split.y[chosen])
        losses.append(descend(optimizer, loss))
        t.visible(
            not torch.isfinite(loss)
            or any(not bool(torch.isfinite(q.grad).all()) for q in model.parameters())
        )
    t.note(first=losses[0], last=losses[-1])
    t.learned(sum(losses[-10:]) < 5.0)


class RootNorm(nn.Module):
    """Divides by the root of the mean square, taken in the type that comes in."""

    def __init__(self, *, upcast: bool) -> None:
        super().__init__()
        self.upcast = upcast

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if self.upcast else x
        return (y * (y.pow(2).sum(1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


class HalfInside(nn.Module):
    """A network whose middle computes in float16."""

    def __init__(self, *, upcast: bool) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.act = nn.SiLU()
        self.norm = RootNorm(upcast=upcast)
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.act(self.first(images * 255.0)).half()
        return self.head(4 * self.norm(x).float())


@fourth.sick(
    "PrecisionLoss AllZero ExplodingTensor LossNotDecreasing",
    "the squares of a norm are summed in float16: infinite, and 1 / inf is 0",
)
def squares_summed_in_half(t: Training) -> None:
    """RMSNorm without .float(): activations of 100 have squares above 65504 together.

    Source: T5's layer norm in fp16 (transformers' issues), and why Llama's has float32.
    Visible: from 20 on, for more than half of the images the norm gives nothing.
    """
    model = HalfInside(upcast=not t.sick)

    def lost(p: Probe) -> bool:
        with torch.no_grad():
            inner = model.norm(model.act(model.first(p.split.x[:200] * 255.0)).half())
        dead = (inner == 0).all(1) | ~inner.isfinite().all(1)
        return float(dead.float().mean()) > 0.5

    loop = Loop(t, model, digits(), adam(1e-3), batch_size=32)
    loop.run(200, visible=since(20, lost), learned=0.8)


@fourth.sick(
    "PrecisionLoss VanishingGradient UnchangedTensor",
    "autocast to float16 without GradScaler, for a mean over all pixels",
)
def mean_of_pixels_in_half(t: Training) -> None:
    """A dense loss with a small weight; its gradients are below what float16 has.

    Source: PyTorch's page on mixed precision, "gradient scaling".  The twin scales by
    4096.  Visible: for ten steps, in the first layer more than half of the gradient's
    numbers are exactly zero, among pixels that are not.
    """
    split = digits()
    model, criterion = mlp([64, 96, 48, 96, 64], nn.GELU), nn.MSELoss()
    optimizer = Adam(model.parameters(), 2e-3)
    first = next(model.parameters())
    inked = split.x.amax(0) > 0
    scale = 1.0 if t.sick else 4096.0
    t.watch(model, criterion)
    times = 0

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 128)]
        with torch.autocast("cpu", torch.float16):
            out = model(images)
        return 0.001 * criterion(out.float(), images) * scale

    def look() -> None:
        nonlocal times
        for q in model.parameters():
            if q.grad is not None:
                q.grad /= scale
        given = first.grad
        zeros = 0.0 if given is None else float((given[:, inked] == 0).float().mean())
        times = times + 1 if zeros > 0.5 else 0

    losses = train(
        t,
        loss_of,
        optimizer,
        n_steps=160,
        after_backward=look,
        visible=lambda _: times >= 10,
    )
    t.learned(mean(losses[-10:]) < 0.6 * losses[0])


@second.sick(
    "PrecisionLoss UnchangedTensor WeightUpdateRatio",
    "weights in bfloat16: small updates are rounded away",
)
def weights_in_bfloat16(t: Training) -> None:
    """model.bfloat16() and SGD with a small rate: 8 bits do not hold the sum.

    Source: pure bfloat16 training without a float32 copy.  Visible: after 30 steps in
    which nine tenths of the weights with a gradient have not moved.
    """
    split = digits()
    model = mlp([64, 64, 64, 10], nn.ReLU)
    if t.sick:
        model.bfloat16()
        split = split.inputs(lambda x: x.bfloat16())
    before: list[Tensor] = []

    def rounded(p: Probe) -> bool:
        now = [w.detach().clone() for w in p.model.parameters()]
        moved = still = 0
        for a, b, w in zip(now, before, p.model.parameters(), strict=False):
            wanted = torch.zeros_like(a) if w.grad is None else w.grad
            moved += int(((a != b) & (wanted != 0)).sum())
            still += int(((a == b) & (wanted != 0)).sum())
        before[:] = now
        return still > 9 * moved

    loop = Loop(t, model, split, sgd(2e-3, momentum=0.9))
    loop.run(500, visible=lasting(rounded, 30), learned=0.7)


@second.sick(
    "PrecisionLoss VanishingGradient AllZero",
    "gradients in float16 without a loss scaler",
)
def half_without_scaler(t: Training) -> None:
    """model.half(), a mean over many outputs, no GradScaler: gradients become zero.

    Source: Micikevicius et al. 2018.  Visible: ten times in a row more than half of the
    first layer's gradient is zero, which it is not in float32.
    """
    split = replace(digits(), y=digits().x, y_val=digits().x_val)
    model = mlp([64, 64, 16, 64, 64], nn.Tanh)
    if t.sick:
        model.half()
        split = Split(*(x.half() for x in (split.x, split.y, split.x_val, split.y_val)))

    class Scaled(nn.MSELoss):
        """Losses of the parts of a large model are weighed like that."""

        def forward(self, out: Tensor, target: Tensor) -> Tensor:
            return 1e-4 * super().forward(out, target)

    def flushed(_: Probe) -> bool:
        gradient = dict(model.named_parameters())["0.weight"].grad
        there = split.x.float().std(0) > 0.05
        return gradient is not None and bool(
            (gradient[:, there] == 0).float().mean() > 0.5
        )

    loop = Loop(t, model, split, sgd(2000.0, momentum=0.5), Scaled())
    loop.run(200, visible=lasting(flushed, 10), learned=loss_below(9e-6))
