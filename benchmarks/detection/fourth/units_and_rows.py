"""Units that are shut or at their ends, and rows that nobody asks for."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits, wine
from benchmarks.detection.corpus.loops import Predicate, Probe, fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import every, flat_slope, silent_units
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.fourth.material import (
    halved,
    kinds_of_lines,
    patients,
    vocabulary,
    words_of,
)
from benchmarks.detection.fourth.nets import Pooled
from benchmarks.detection.fourth.sights import explains
from benchmarks.detection.third.views import since


@sick(
    named_by={
        "SaturatedActivation",
        "LossNotDecreasing",
        "Underfitting",
        "VanishingGradient",
    },
    diagnosis="targets of hundreds for an output that ends with tanh",
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
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        nn.MSELoss(),
        n_steps=220,
        batch_size=32,
        visible=every(5, flat_slope(nn.Tanh, 0.01)),
        learned=explains(0.4),
    )


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
        out: Tensor = self.head(x.mean(1))
        return out


def bags(each: int, length: int) -> tuple[Tensor, Tensor, int]:
    """Rows of words of lines of four kinds, without padding; and how many words."""
    lines = [words_of(line) for kind in kinds_of_lines() for line in kind[:each]]
    numbers = vocabulary([word for line in lines for word in line], 2)
    rows = [[numbers.get(w, 1) for w in line] for line in lines]
    filled = [(row * length)[:length] for row in rows]
    kinds = torch.arange(4).repeat_interleave(each)
    return torch.tensor(filled), kinds, len(numbers) + 2


@sick(
    named_by={"SaturatedActivation"},
    diagnosis="embeddings of N(0, 1) are multiplied by the root of their width as well",
)
def embedding_scaled_by_its_width(t: Training) -> None:
    """X = embedding(rows) * sqrt(d), without the small weights that it is meant for.

    Source: Vaswani 2017, 3.4, whose embeddings have the deviation 1 / sqrt(d);
    nn.Embedding draws from N(0, 1).  Visible: the median slope of the tanh is below
    0.01.
    """
    rows, kinds, n_words = bags(300, 12)
    split = halved(rows, kinds)
    model = Pooler(n_words, 128**0.5 if t.sick else 1.0)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 2e-3),
        n_steps=150,
        batch_size=32,
        visible=every(10, flat_slope(nn.Tanh, 0.01)),
        learned=0.9,
    )


@sick(
    named_by={"DeadRelu", "ExplodingGradient", "LossSpike", "WeightUpdateRatio"},
    diagnosis="targets in the hundreds: the first steps shut most units for ever",
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
    fit(
        t,
        model,
        split,
        torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
        nn.MSELoss(),
        n_steps=200,
        batch_size=32,
        visible=since(10, silent_units(0.7)),
        learned=explains(0.4),
    )


@sick(
    named_by={"DeadRelu", "WeightUpdateRatio", "LossNotDecreasing"},
    diagnosis="momentum of 0.99 with the rate for 0.9, without warm-up",
)
def momentum_of_ninety_nine(t: Training) -> None:
    """A sweep takes the larger momentum and keeps the rate: ten times the step.

    Source: Smith 2018 on rate and momentum together; "dying ReLU" at Stack Exchange.
    Visible: in a layer of the network 70 % of the units are zero for all images.
    """
    model = mlp([64, 96, 96, 96, 10])
    fit(
        t,
        model,
        digits(),
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.99 if t.sick else 0.9),
        n_steps=150,
        batch_size=64,
        visible=every(10, silent_units(0.7)),
        learned=0.9,
    )


@sick(
    named_by={"DeadEmbedding"},
    diagnosis="numbers of a database are rows: 5000 for 900 words that occur",
)
def ids_of_the_database(t: Training) -> None:
    """Ids are used as they are in the shop's database, not numbered anew.

    Source: recommender tutorials that make nn.Embedding(max(id) + 1).  Visible: from 60
    on, four fifths of all rows have never changed.
    """
    rows, kinds, n_words = bags(300, 12)
    spread = torch.randperm(20 * n_words, generator=torch.Generator().manual_seed(2))
    split = halved(spread[rows] if t.sick else rows, kinds)
    model = Pooled(20 * n_words if t.sick else n_words, 4)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=140,
        batch_size=32,
        visible=since(60, untouched(model.embedding, 0.8)),
        learned=0.9,
    )


def untouched(table: nn.Embedding, share: float) -> Predicate:
    """That share of the rows is what it was when the training began."""
    began = table.weight.detach().clone()

    def holds(_: Probe) -> bool:
        same = (table.weight.detach() == began).all(1)
        return float(same.float().mean()) > share

    return holds


class Columns(nn.Module):
    """All columns in one table of rows, each with an offset of its own."""

    def __init__(self, n_bins: int, *, offsets: bool) -> None:
        super().__init__()
        self.offset = n_bins * torch.arange(13) if offsets else torch.zeros(13).long()
        self.embedding = nn.Embedding(13 * n_bins, 12)
        self.head = nn.Sequential(nn.Linear(156, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, bins: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(bins.long() + self.offset).flatten(1))
        return out


@sick(
    named_by={"DeadEmbedding"},
    diagnosis="the offsets of the columns are not added: twelve of 13 parts are unused",
)
def offsets_never_added(t: Training) -> None:
    """Categorical columns share one table by offsets; the line that adds them is lost.

    Source: the table layout of DeepFM and DLRM code (torchfm's FeaturesEmbedding).
    Visible: from 60 on, four fifths of all rows have never changed.
    """
    split = wine().inputs(lambda x: ((x + 2) * 2).floor().clamp(0, 7))
    model = Columns(8, offsets=not t.sick)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model.parameters(), 5e-3),
        n_steps=150,
        batch_size=32,
        visible=since(60, untouched(model.embedding, 0.8)),
        learned=0.95,
    )
