"""Sick classes: two of them are taken for each other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import Split, digits
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import every, lasting, mistakes_for
from benchmarks.detection.corpus.training import Training


@sick(named_by={"Confusion"}, diagnosis="annotators wrote 3 for half of the eights")
def annotators_disagree(t: Training) -> None:
    """Half of one class bears the label of another.

    Source: Northcutt, Jiang, Chuang 2021, "Confident learning": class-conditional
    noise; Humbatova et al. 2020: wrong labels.

    Visible: at two looks in a row, 10 steps apart, more than 20 % of the eights of the
    validation data are taken for threes, and of the other digits 85 % are known.
    """
    split = digits()
    if t.sick:
        chance = torch.rand(len(split.y), generator=t.order)
        wrong = (split.y == 8) & (chance < 0.5)
        split = Split(split.x, split.y.masked_fill(wrong, 3), split.x_val, split.y_val)
    model = mlp([64, 64, 10])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 3e-3),
        n_steps=200,
        visible=every(10, lasting(mistakes_for((8, 3), 0.2, 0.85), 2), 40),
        learned=0.95,
    )


def merged(targets: Tensor) -> Tensor:
    """Nines as eights: of a table of labels that ends at 8."""
    return targets.clamp(max=8)


@sick(
    named_by={"Confusion", "ClassImbalance"},
    diagnosis="labels were clamped to 8: there are no nines",
)
def clamped_labels(t: Training) -> None:
    """Labels are clamped to a range that is one too small.

    Source: Islam et al. 2019, "A Comprehensive Study on Deep Learning Bug
    Characteristics": off by one in the number of classes; many a
    `min(label, n_classes - 1)` put there to silence an assertion of the loss.

    Visible: at two looks in a row, 10 steps apart, more than 60 % of the nines of the
    validation data are taken for eights, and of the other digits 85 % are known.
    """
    split = digits()
    if t.sick:
        split = Split(split.x, merged(split.y), split.x_val, split.y_val)
    model = mlp([64, 64, 10])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 3e-3),
        n_steps=150,
        visible=every(10, lasting(mistakes_for((9, 8), 0.6, 0.85), 2), 40),
        learned=0.92,
    )
