"""Numbers that become NaN, in ways that only some batches or some types show."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import non_finite
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.third.views import epoch, mean


class UnitColumns(nn.Module):
    """Columns of 8 pixels brought to length one, in half precision."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, images: Tensor) -> Tensor:
        columns = images.view(-1, 8, 8).half()
        length = columns.norm(dim=1, keepdim=True)
        return (columns / (length + self.epsilon)).flatten(1).float()


@sick(
    named_by={"ExplodingTensor"},
    diagnosis="1e-8 is zero in float16: a blank column is 0 / 0",
)
def epsilon_lost_in_half(t: Training) -> None:
    """The usual epsilon, in a type whose smallest number is 6e-8.

    Source: issues of apex and fairseq.  Visible: when the loss, a weight or a gradient
    is not finite.
    """
    model = nn.Sequential(UnitColumns(1e-8 if t.sick else 1e-3), mlp([64, 64, 10]))
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=150,
        visible=non_finite,
        learned=0.9,
    )


class OfTheBatch(nn.Module):
    """Standardizes by the batch, written by hand; by what was seen, to evaluate."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(n))
        self.register_buffer("spread", torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return (x - self.middle) / (self.spread + 1e-5)
        middle, spread = x.mean(0), x.std(0)
        with torch.no_grad():
            self.middle.lerp_(middle, 0.1)  # type: ignore[operator]
            self.spread.lerp_(spread, 0.1)  # type: ignore[operator]
        return (x - middle) / (spread + 1e-5)


@sick(
    named_by={"ExplodingTensor"},
    diagnosis="the last batch has one row, whose deviation is 0 / 0",
)
def deviation_of_one_row(t: Training) -> None:
    """1345 rows in batches of 32: the last has one, and std() is NaN.

    Source: PyTorch's forum, "NaN at the end of the first epoch".  Visible: when the
    loss, a weight or a gradient is not finite.
    """
    split = digits().take(torch.arange(1345 if t.sick else 1344))
    order = epoch(t, len(split.x), 32)
    model = nn.Sequential(
        nn.Linear(64, 48), OfTheBatch(48), nn.ReLU(), nn.Linear(48, 10)
    )

    def batches(_: int) -> tuple[Tensor, Tensor]:
        chosen = next(order)
        return split.x[chosen], split.y[chosen]

    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        n_steps=150,
        batches=batches,
        visible=non_finite,
        learned=0.9,
    )


class ObjectLoss(nn.Module):
    """Is there an object, and if so, where is its middle?"""

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self.at_least = at_least

    def forward(self, said: Tensor, wanted: Tensor) -> Tensor:
        there = wanted[:, 0] > 0.5
        presence = nn.functional.binary_cross_entropy_with_logits(
            said[:, 0], wanted[:, 0]
        )
        away = (said[there, 1:] - wanted[there, 1:]).pow(2).sum()
        n_objects = max(int(there.sum()), self.at_least)
        return presence + away / torch.tensor(float(n_objects))


@sick(
    named_by={"ExplodingTensor"},
    diagnosis="a batch without any object: the mean over none is NaN",
)
def no_object_in_the_batch(t: Training) -> None:
    """A detector's loss of places, divided by the number of objects of the batch.

    Source: issues of SSD and YOLO.  Visible: when the loss, a weight or a gradient is
    not finite.
    """
    images = digits()

    def wanted(x: Tensor, y: Tensor) -> Tensor:
        ink = x.view(-1, 8, 8)
        weight = ink.sum((1, 2))
        places = torch.arange(8.0) / 4 - 1
        across = (ink.sum(1) * places).sum(1) / weight
        down = (ink.sum(2) * places).sum(1) / weight
        return torch.stack([(y < 3).float(), across, down], 1)

    split = type(images)(
        images.x,
        wanted(images.x, images.y),
        images.x_val,
        wanted(images.x_val, images.y_val),
    )
    model = mlp([64, 48, 3])
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        ObjectLoss(0 if t.sick else 1),
        n_steps=250,
        batch_size=8,
        visible=non_finite,
        learned=lambda p: mean(p.losses[-30:]) < 0.3,
    )


class Typed(nn.Module):
    """A model in a type of its own; inputs and outputs are float32."""

    def __init__(self, body: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.body = body.to(dtype)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.to(self.dtype)).float()
        return out


@sick(
    named_by={"ExplodingTensor", "PrecisionLoss"},
    diagnosis="Adam in float16: squares and epsilon are rounded to zero",
)
def adam_in_half(t: Training) -> None:
    """model.half() and Adam as always; where gradients are small, it divides by zero.

    Source: PyTorch's forum, "Adam gives NaN with half".  Visible: when the loss, a
    weight or a gradient is not finite.
    """
    # Each column is a little lit, so that no gradient is exactly zero.
    split = digits().inputs(lambda x: x * 0.9 + 0.05)
    model = Typed(mlp([64, 48, 10]), torch.float16 if t.sick else torch.float32)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=150,
        visible=non_finite,
        learned=0.9,
    )
