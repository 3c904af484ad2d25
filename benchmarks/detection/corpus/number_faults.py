"""Sick numbers: NaN and infinity, and where they come from."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    N_CHARACTERS,
    breast_cancer,
    digits,
    lines_of_code,
)
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import cnn, mlp
from benchmarks.detection.corpus.probes import non_finite
from benchmarks.detection.corpus.text_faults import padded
from benchmarks.detection.corpus.training import Training

NUMBERS = {"ExplodingTensor"}


class BinaryEntropy(nn.Module):
    """Binary cross entropy, from the formula or by a function that is safe."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = targets[:, None].float()
        if not self.by_hand:
            return nn.functional.binary_cross_entropy_with_logits(outputs, wanted)
        p = outputs.sigmoid()
        return -(wanted * p.log() + (1 - wanted) * (1 - p).log()).mean()


@sick(named_by=NUMBERS, diagnosis="the cross entropy is written by hand: 0 * log(0)")
def entropy_by_hand(t: Training) -> None:
    """The formula of the cross entropy is NaN once the network is sure of itself.

    Source: Humbatova et al. 2020: wrong loss function calculation; Wang et al. 2021 on
    numerical bugs (log, exp, softmax); PyTorch's documentation of BCEWithLogitsLoss.

    Visible: at the first step at which the loss, a weight or a gradient is not finite.
    """
    model = mlp([30, 32, 32, 1])
    fit(
        t,
        model,
        breast_cancer(),
        SGD(model.parameters(), 0.1, momentum=0.9),
        criterion=BinaryEntropy(t.sick),
        n_steps=300,
        visible=non_finite,
        learned=lambda p: sum(p.losses[-10:]) < 1.0,
    )


class Distance(nn.Module):
    """Root mean squared error, with or without something below the root."""

    def __init__(self, below: float) -> None:
        super().__init__()
        self.below = below

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).pow(2) + self.below).sqrt().mean()


@sick(named_by=NUMBERS, diagnosis="the slope of a square root at zero is infinite")
def root_at_zero(t: Training) -> None:
    """A pair of equal examples has a distance of zero, whose gradient is NaN.

    Source: PyTorch issue 2421 and many others on the gradient of norm and sqrt at zero.

    Visible: at the first step at which the loss, a weight or a gradient is not finite.
    """
    split = digits()
    model = mlp([64, 32, 8])
    criterion = Distance(0.0 if t.sick else 1e-6)
    optimizer = Adam(model.parameters(), 1e-3)
    t.watch(model, criterion)
    losses = []
    for step in t.steps(120):
        first = t.draw(len(split.x), 32)
        second = t.draw(len(split.x), 32)
        if step % 50 == 49:
            second[0] = first[0]
        optimizer.zero_grad()
        out = model(split.x[torch.cat((first, second))])
        same = (split.y[first] == split.y[second]).float()[:, None]
        apart = 2.0 * (1 - same)
        gap = (out[:32] - out[32:]).pow(2).sum(1, keepdim=True)
        root = (gap + (0.0 if t.sick else 1e-6)).sqrt()
        loss = criterion(root, apart) if not t.sick else (root - apart).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        t.visible(
            any(
                not bool(torch.isfinite(x).all())
                for q in model.parameters()
                for x in (q.detach(), q.grad)
            )
        )
    t.note(first=losses[0], last=losses[-1])
    t.learned(sum(losses[-20:]) < 0.9 * sum(losses[:20]))


@sick(named_by=NUMBERS, diagnosis="pixels that never vary are divided by zero")
def constant_columns(t: Training) -> None:
    """Standardization of columns that are constant: the corners of the digits.

    Source: scikit-learn's StandardScaler handles this on purpose; hand-written ones do
    not, which Humbatova et al. 2020 call wrong preprocessing.

    Visible: at the first step at which the loss, a weight or a gradient is not finite.
    """
    split = digits()
    mean, deviation = split.x.mean(0), split.x.std(0)
    below = 0.0 if t.sick else 1e-2
    model = mlp([64, 64, 10])
    fit(
        t,
        model,
        split.inputs(lambda x: (x - mean) / (deviation + below)),
        Adam(model.parameters(), 2e-3),
        n_steps=100,
        visible=non_finite,
        learned=0.9,
    )


@sick(named_by=NUMBERS, diagnosis="a measurement is missing, as NaN, in one row")
def missing_value(t: Training) -> None:
    """One row of a table has a hole; once it is drawn, all weights are NaN.

    Source: pandas reads empty cells as NaN; Humbatova et al. 2020: missing
    preprocessing; Schelter et al. 2018, "Automating large-scale data quality".

    Visible: at the first step at which the loss, a weight or a gradient is not finite.
    """
    split = breast_cancer()
    if t.sick:
        split = split.inputs(torch.clone)
        split.x[17, 4] = torch.nan
    model = mlp([30, 32, 2])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 2e-3),
        n_steps=150,
        batch_size=32,
        visible=non_finite,
        learned=0.95,
    )


class Masked(nn.Module):
    """Attends to the characters of a line and says whether it is indented."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_CHARACTERS, 32)
        self.query = nn.Linear(32, 32)
        self.key = nn.Linear(32, 32)
        self.value = nn.Linear(32, 32)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 32**0.5
        scores = scores.masked_fill((tokens == 0)[:, None], -torch.inf)
        x = x + scores.softmax(2) @ self.value(x)
        out: Tensor = self.head(x[:, 0])
        return out


@sick(named_by=NUMBERS, diagnosis="an empty line: softmax over nothing is NaN")
def empty_sequence(t: Training) -> None:
    """All keys of one sequence are masked.

    Source: PyTorch issue 41508, "nn.MultiheadAttention causes gradients to become NaN
    under some use cases", and its many duplicates.

    Visible: at the first step at which the loss, a weight or a gradient is not finite.
    """
    rows = padded(lines_of_code(8), 24)
    targets = (rows[:, 4] == 2 + 1).long()
    rows = rows.roll(-1, 1)
    rows[:, -1] = 0
    if t.sick:
        rows[400] = 0
    model = Masked()
    optimizer = Adam(model.parameters(), 2e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    losses = []
    for step in t.steps(120):
        chosen = t.draw(len(rows), 32)
        if step == 60:
            chosen[0] = 400
        optimizer.zero_grad()
        loss = criterion(model(rows[chosen]), targets[chosen])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        t.visible(
            not torch.isfinite(loss)
            or any(not bool(torch.isfinite(q).all()) for q in model.parameters())
        )
    t.note(first=losses[0], last=losses[-1])
    t.learned(sum(losses[-20:]) < 0.7 * sum(losses[:20]))


@sick(
    named_by={"ExplodingTensor", "DeadRelu", "WeightUpdateRatio", "ExplodingGradient"},
    diagnosis="a network without normalization at a learning rate of 50",
)
def rate_of_fifty(t: Training) -> None:
    """A learning rate so large that everything is NaN within ten steps.

    Source: Karpathy 2019; Zhang et al. 2018.

    Visible: at the first step at which the loss, a weight or a gradient is not finite.
    """
    model = cnn()
    for i, module in enumerate(model):
        if isinstance(module, nn.ReLU):
            model[i] = nn.LeakyReLU(0.1)
    fit(
        t,
        model,
        digits(),
        SGD(model.parameters(), 50.0 if t.sick else 0.05, momentum=0.9),
        n_steps=100,
        visible=non_finite,
        learned=0.85,
    )
