"""What layers put out is wrong."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    N_CHARACTERS,
    breast_cancer,
    digits,
    wine,
)
from benchmarks.detection.corpus.loops import Predicate, Probe, fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import (
    flat_slope,
    lasting,
    modules,
    silent_units,
)
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.second.looks import after, mean
from benchmarks.detection.second.parts import houses, lines


def constant(kind: type[nn.Module]) -> Predicate:
    """Ten steps long, a module of this kind puts out one and the same number."""

    def judge(outputs: list[Tensor]) -> bool:
        return any(bool(out.std() < 1e-6) for out in outputs)

    return lasting(modules(kind, judge), 10)


class Pool(nn.Module):
    """Mean over the places that count."""

    def __init__(self, *, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = (~mask if self.inverted else mask).float()[:, :, None]
        out: Tensor = (x * mask).sum(1) / mask.sum(1).clamp(min=1)
        return out


class Bag(nn.Module):
    """A mean of embeddings, and a classifier."""

    def __init__(self, *, inverted: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 32, padding_idx=0)
        self.pool = Pool(inverted=inverted)
        self.head = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.pool(self.embedding(tokens), tokens != 0))
        return out


@sick(
    named_by={"AllZero", "TensorVariance"},
    diagnosis="the mask of padding is upside down",
)
def mask_upside_down(t: Training) -> None:
    """True means "ignore" there, and "keep" here: all that is pooled is padding.

    Source: key_padding_mask against attention_mask.  Visible: ten steps long, the
    pooling puts out nothing but zeros.
    """
    split = lines(32)
    model = Bag(inverted=t.sick)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 1e-2),
        n_steps=250,
        batch_size=64,
        visible=constant(Pool),
        learned=0.5,
    )


@sick(
    named_by={"AllZero", "TensorVariance"},
    diagnosis="dropout was given a probability of 1",
)
def dropout_of_everything(t: Training) -> None:
    """P is the share that is dropped, not the share that is kept.

    Source: keep_prob of older libraries.  Visible: when for ten steps the layer after
    the dropout has had no input but zeros.
    """
    split = breast_cancer()
    dropout = nn.Dropout(1.0 if t.sick else 0.1)
    model = nn.Sequential(
        nn.Linear(30, 32), nn.ReLU(), dropout, nn.Linear(32, 16), nn.ReLU()
    )
    model.append(nn.Linear(16, 2))

    def nothing(_: Probe) -> bool:
        gradient = dict(model.named_parameters())["3.weight"].grad
        return gradient is not None and not bool(torch.count_nonzero(gradient))

    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=160,
        batch_size=32,
        visible=lasting(nothing, 10),
        learned=0.9,
    )


@sick(
    named_by={"TensorVariance", "LossNotDecreasing", "AllZero"},
    diagnosis="softmax over a single output is always 1",
)
def softmax_of_one(t: Training) -> None:
    """A binary classifier with one output and Softmax(dim=1).

    Source: the forum; Keras has the same.  Visible: ten steps long, the outputs are
    one and the same number.
    """
    split = breast_cancer()
    split = replace(
        split, y=split.y.float()[:, None], y_val=split.y_val.float()[:, None]
    )
    model = mlp([30, 32, 1], nn.ReLU)
    model.append(nn.Softmax(1) if t.sick else nn.Sigmoid())
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 3e-3),
        nn.BCELoss(),
        n_steps=180,
        batch_size=32,
        visible=constant(nn.Softmax),
        learned=lambda p: mean(p.losses[-20:]) < 0.15,
    )


class Column(nn.Module):
    """A linear layer whose single column is normalized."""

    def __init__(self, *, per_value: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.GELU())
        self.norm = nn.LayerNorm(1 if per_value else 24)
        self.head = nn.Linear(24, 1)
        self.per_value = per_value

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        x = self.norm(x[:, :, None])[:, :, 0] if self.per_value else self.norm(x)
        out: Tensor = self.head(x)
        return out


@sick(
    named_by={"AllZero", "TensorVariance"},
    diagnosis="layer normalization over one value",
)
def norm_over_one_value(t: Training) -> None:
    """LayerNorm(1) over a last axis of length one: each value minus itself.

    Source: unsqueeze(-1) for a library that wants channels last.  Visible: ten steps
    long, the normalization puts out one and the same number.
    """
    model = Column(per_value=t.sick)
    fit(
        t,
        model,
        houses(scaled=True),
        torch.optim.Adam(model.parameters(), 5e-3),
        nn.MSELoss(),
        n_steps=220,
        batch_size=32,
        visible=constant(nn.LayerNorm),
        learned=lambda p: mean(p.losses[-20:]) < 0.4,
    )


@sick(
    named_by={"SaturatedActivation", "NotNormalizedData"},
    diagnosis="measurements in their units drive tanh flat",
)
def proline_into_tanh(t: Training) -> None:
    """Wine as it is, with proline near 1000, into two layers of tanh.

    Source: tables without a scaler.  Visible: when after 20 steps the median slope of a
    layer is below 0.05.
    """
    split = wine(raw=t.sick)
    model = mlp([13, 32, 16, 3], nn.Tanh)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=200,
        batch_size=32,
        visible=after(20, flat_slope(nn.Tanh, 0.05)),
        learned=0.95,
    )


@sick(
    named_by={"SaturatedActivation", "PoorWeightInitialization"},
    diagnosis="sigmoids with weights of deviation 3",
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=220,
        visible=after(20, flat_slope(nn.Sigmoid, 0.02)),
        learned=0.9,
    )


@sick(
    named_by={"DeadRelu", "WeightUpdateRatio"},
    diagnosis="a large rate has killed the units",
)
def units_killed_at_once(t: Training) -> None:
    """SGD with rate 2: after a few steps no unit of a layer says anything.

    Source: CS231n, "a ReLU neuron can die".  Visible: when for 20 steps 60 % of the
    units of a layer have been zero for all training data.
    """
    split = digits()
    model = mlp([64, 64, 64, 10], nn.ReLU)
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 2.0 if t.sick else 0.1, momentum=0.9),
        n_steps=240,
        batch_size=32,
        visible=lasting(silent_units(0.6), 20),
        learned=0.9,
    )


@sick(
    named_by={"DeadRelu", "AllZero", "TensorVariance"},
    diagnosis="a ReLU after the output of a regression of negative values",
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        nn.MSELoss(),
        n_steps=250,
        visible=lasting(silent_units(0.9), 20),
        learned=lambda p: mean(p.losses[-20:]) < 0.6,
    )


@sick(
    named_by={"DeadRelu", "PoorWeightInitialization"},
    diagnosis="biases begin far below zero",
)
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=200,
        visible=lasting(silent_units(0.6), 20),
        learned=0.9,
    )
