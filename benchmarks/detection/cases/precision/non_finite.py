"""Infinities and NaN."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Adam, AdamW

from benchmarks.detection.kit.case import first, fourth, second, third
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    breast_cancer,
    digits,
    houses,
    lines_of_code,
    padded,
    patients,
    text,
    windows,
)
from benchmarks.detection.kit.loops import Loop, Probe, adam, descend, mean, sgd, train
from benchmarks.detection.kit.models import cnn, mlp
from benchmarks.detection.kit.probes import lasting, loss_below, non_finite
from benchmarks.detection.kit.training import Shadow, Training


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


@first.sick("ExplodingTensor", "the cross entropy is written by hand: 0 * log(0)")
def entropy_by_hand(t: Training) -> None:
    """The formula of the cross entropy is NaN once the network is sure of itself.

    Source: Humbatova et al. 2020: wrong loss function calculation; Wang et al. 2021 on
    numerical bugs (log, exp, softmax); PyTorch's documentation of BCEWithLogitsLoss.
    Visible: at the first step at which the loss, a weight or a gradient is not finite.
    """
    model = mlp([30, 32, 32, 1])
    optimizer = sgd(0.1, momentum=0.9)
    loop = Loop(t, model, breast_cancer(), optimizer, BinaryEntropy(t.sick))
    loop.run(300, visible=non_finite, learned=lambda p: sum(p.losses[-10:]) < 1.0)


class Distance(nn.Module):
    """Root mean squared error, with or without something below the root."""

    def __init__(self, below: float) -> None:
        super().__init__()
        self.below = below

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).pow(2) + self.below).sqrt().mean()


@first.sick("ExplodingTensor", "the slope of a square root at zero is infinite")
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
        out = model(split.x[torch.cat((first, second))])
        same = (split.y[first] == split.y[second]).float()[:, None]
        apart = 2.0 * (1 - same)
        gap = (out[:32] - out[32:]).pow(2).sum(1, keepdim=True)
        root = (gap + (0.0 if t.sick else 1e-6)).sqrt()
        loss = criterion(root, apart) if not t.sick else (root - apart).pow(2).mean()
        losses.append(descend(optimizer, loss))
        t.visible(
            any(
                not bool(torch.isfinite(x).all())
                for q in model.parameters()
                for x in (q.detach(), q.grad)
            )
        )
    t.note(first=losses[0], last=losses[-1])
    t.learned(sum(losses[-20:]) < 0.9 * sum(losses[:20]))


@first.sick("ExplodingTensor", "pixels that never vary are divided by zero")
def constant_columns(t: Training) -> None:
    """Standardization of columns that are constant: the corners of the digits.

    Source: scikit-learn's StandardScaler handles this on purpose; hand-written ones do
    not, which Humbatova et al. 2020 call wrong preprocessing.  Visible: at the first
    step at which the loss, a weight or a gradient is not finite.
    """
    split = digits()
    mean, deviation = split.x.mean(0), split.x.std(0)
    below = 0.0 if t.sick else 1e-2
    model = mlp([64, 64, 10])
    loop = Loop(
        t, model, split.inputs(lambda x: (x - mean) / (deviation + below)), adam(2e-3)
    )
    loop.run(100, visible=non_finite, learned=0.9)


@first.sick("ExplodingTensor", "a measurement is missing, as NaN, in one row")
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
    loop = Loop(t, mlp([30, 32, 2]), split, adam(2e-3), batch_size=32)
    loop.run(150, visible=non_finite, learned=0.95)


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
        return self.head(x[:, 0])


@first.sick("ExplodingTensor", "an empty line: softmax over nothing is NaN")
def empty_sequence(t: Training) -> None:
    """All keys of one sequence are masked.

    Source: PyTorch issue 41508, "nn.MultiheadAttention causes gradients to become NaN
    under some use cases", and its many duplicates.  Visible: at the first step at which
    the loss, a weight or a gradient is not finite.
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
        loss = criterion(model(rows[chosen]), targets[chosen])
        losses.append(descend(optimizer, loss))
        t.visible(
            not torch.isfinite(loss)
            or any(not bool(torch.isfinite(q).all()) for q in model.parameters())
        )
    t.note(first=losses[0], last=losses[-1])
    t.learned(sum(losses[-20:]) < 0.7 * sum(losses[:20]))


@first.sick(
    "ExplodingTensor DeadRelu WeightUpdateRatio ExplodingGradient",
    "a network without normalization at a learning rate of 50",
)
def rate_of_fifty(t: Training) -> None:
    """A learning rate so large that everything is NaN within ten steps.

    Source: Karpathy 2019; Zhang et al. 2018.  Visible: at the first step at which the
    loss, a weight or a gradient is not finite.
    """
    model = cnn()
    for i, module in enumerate(model):
        if isinstance(module, nn.ReLU):
            model[i] = nn.LeakyReLU(0.1)
    loop = Loop(t, model, digits(), sgd(50.0 if t.sick else 0.05, momentum=0.9))
    loop.run(100, visible=non_finite, learned=0.85)


class Attends(nn.Module):
    """One head of attention over characters, with a mask made by hand."""

    def __init__(self, diagonal: int) -> None:
        super().__init__()
        self.diagonal = diagonal
        self.embedding = nn.Embedding(N_CHARACTERS, 48)
        self.place = nn.Embedding(24, 48)
        self.query_key_value = nn.Linear(48, 144)
        self.mix = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.head = nn.Linear(48, N_CHARACTERS)

    def forward(self, rows: Tensor) -> Tensor:
        n = rows.shape[1]
        x = self.embedding(rows) + self.place(torch.arange(n))
        query, key, value = self.query_key_value(x).chunk(3, 2)
        later = torch.ones(n, n, dtype=torch.bool).triu(self.diagonal)
        scores = (query @ key.transpose(1, 2) / 48**0.5).masked_fill(later, -math.inf)
        x = x + scores.softmax(2) @ value
        out: Tensor = self.head(x + self.mix(x))
        return out.transpose(1, 2)


@fourth.sick(
    "ExplodingTensor",
    "triu(0): the first place may see nothing, and softmax of nothing is NaN",
)
def first_place_sees_nothing(t: Training) -> None:
    """The causal mask hides the diagonal too; a row of minus infinity is divided 0 / 0.

    Source: "loss is nan" under many re-implementations of GPT; the diagonal of triu.
    Visible: the loss, a weight or a gradient is not finite.
    """
    stream = text()
    model, criterion = Attends(0 if t.sick else 1), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        rows, wanted = windows(stream, t.draw(len(stream) - 25, 24), 24)
        return criterion(model(rows), wanted)

    losses = train(
        t,
        loss_of,
        AdamW(model.parameters(), 3e-3),
        n_steps=100,
        visible=lambda losses: not math.isfinite(losses[-1]),
    )
    t.learned(mean(losses[-10:]) < losses[0] - 1.0)


class Counts(nn.Module):
    """Poisson's loss by hand: the network says the log of the rate."""

    def forward(self, said: Tensor, wanted: Tensor) -> Tensor:
        return (said.exp() - wanted * said).mean()


@fourth.sick(
    "ExplodingTensor ExplodingGradient NotNormalizedData LossSpike LossNotDecreasing",
    "exp of an output for raw columns of hundreds: infinite",
)
def exponent_of_raw_columns(t: Training) -> None:
    """A regression with a log link is given blood values as they are.

    Source: Cameron and Trivedi's textbook example of counts, done by gradient descent;
    Stack Overflow on overflow in exp.  Visible: for ten steps, something is not finite
    or the loss above 4000, where a constant answer has less than 1.
    """
    split = patients()
    if not t.sick:
        middle, deviation = split.x.mean(0), split.x.std(0)
        split = split.inputs(lambda x: (x - middle) / deviation)

    def counts(y: Tensor) -> Tensor:
        return (2 * y + 4).clamp(min=0).round()

    split = replace(split, y=counts(split.y), y_val=counts(split.y_val))
    model = nn.Sequential(nn.Linear(10, 16), nn.Softplus(), nn.Linear(16, 1))

    def lost(p: Probe) -> bool:
        return non_finite(p) or p.losses[-1] > 4000

    loop = Loop(t, model, split, sgd(5e-3), Counts(), batch_size=32)
    visible = lasting(lost, 10)
    loop.run(
        200, visible=visible, learned=lambda p: mean(p.losses[-20:]) < p.losses[0] - 1
    )


class CrossEntropyByHand(nn.Module):
    """-log(p) of a probability that may be zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        p = torch.sigmoid(out)
        y = target.float()[:, None]
        logs = y * torch.log(p + self.eps) + (1 - y) * torch.log(1 - p + self.eps)
        return -logs.mean()


@second.sick("ExplodingTensor", "log of a probability that has become zero")
def log_of_zero(t: Training) -> None:
    """Binary cross entropy by hand, without eps; sure of itself, it becomes NaN.

    Source: the forum's threads on NaN.  Visible: when something is not finite.
    """
    model = mlp([30, 32, 1], nn.ReLU)
    criterion = CrossEntropyByHand(0.0 if t.sick else 1e-6)
    optimizer = sgd(0.3, momentum=0.9)
    loop = Loop(t, model, breast_cancer(), optimizer, criterion, batch_size=64)
    loop.run(400, visible=non_finite, learned=loss_below(0.1))


class Siamese(nn.Module):
    """Puts an image at a place where its like are near."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 8)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


@second.sick("ExplodingTensor", "the square root of a distance that is zero")
def distance_of_the_same(t: Training) -> None:
    """A siamese network; a pair is sometimes an image and itself: d sqrt(0) is inf.

    Source: torch.sqrt or norm without eps in contrastive losses.  Visible: when
    something is not finite.
    """
    split = digits()
    model = Siamese()
    optimizer = Adam(model.parameters(), 2e-3)
    probe = Probe(0, model, Shadow(model), split)
    t.watch(model)
    for step in t.steps(260):
        probe.step = step
        a = t.draw(len(split.x), 64)
        b = t.draw(len(split.x), 64)
        squares = (model(split.x[a]) - model(split.x[b])).pow(2).sum(1)
        distance = torch.sqrt(squares + (0.0 if t.sick else 1e-8))
        same = (split.y[a] == split.y[b]).float()
        weight = 1.0 + 8.0 * same
        each = same * distance.pow(2) + (1 - same) * F.relu(2.0 - distance).pow(2)
        probe.losses.append(descend(optimizer, (weight * each).mean()))
        t.visible(non_finite(probe))
    t.note(last_loss=mean(probe.losses[-20:]))
    t.learned(mean(probe.losses[-20:]) < 0.5 * probe.losses[0])


@second.sick("ExplodingTensor NotNormalizedData", "a missing value in the table")
def empty_cell(t: Training) -> None:
    """One of 5000 cells is NaN, as pandas reads an empty one.

    Source: read_csv without dropna.  Visible: when something is not finite.
    """
    split = houses(scaled=True)
    if t.sick:
        x = split.x.clone()
        x[1000, 3] = float("nan")
        split = replace(split, x=x)
    model = mlp([8, 32, 32, 1], nn.ReLU, norm=nn.LayerNorm)
    loop = Loop(t, model, split, adam(3e-3), nn.L1Loss(), batch_size=32)
    loop.run(200, visible=non_finite, learned=loss_below(0.5))


class UnitColumns(nn.Module):
    """Columns of 8 pixels brought to length one, in half precision."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, images: Tensor) -> Tensor:
        columns = images.view(-1, 8, 8).half()
        length = columns.norm(dim=1, keepdim=True)
        return (columns / (length + self.epsilon)).flatten(1).float()


@third.sick("ExplodingTensor", "1e-8 is zero in float16: a blank column is 0 / 0")
def epsilon_lost_in_half(t: Training) -> None:
    """The usual epsilon, in a type whose smallest number is 6e-8.

    Source: issues of apex and fairseq.  Visible: when the loss, a weight or a gradient
    is not finite.
    """
    model = nn.Sequential(UnitColumns(1e-8 if t.sick else 1e-3), mlp([64, 64, 10]))
    loop = Loop(t, model, digits(), adam(3e-3))
    loop.run(150, visible=non_finite, learned=0.9)


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


@third.sick("ExplodingTensor", "the last batch has one row, whose deviation is 0 / 0")
def deviation_of_one_row(t: Training) -> None:
    """1345 rows in batches of 32: the last has one, and std() is NaN.

    Source: PyTorch's forum, "NaN at the end of the first epoch".  Visible: when the
    loss, a weight or a gradient is not finite.
    """
    split = digits().take(torch.arange(1345 if t.sick else 1344))
    model = nn.Sequential(
        nn.Linear(64, 48), OfTheBatch(48), nn.ReLU(), nn.Linear(48, 10)
    )

    loop = Loop(t, model, split, sgd(0.05, momentum=0.9), batch_size=32, epochs=True)
    loop.run(150, visible=non_finite, learned=0.9)


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


@third.sick("ExplodingTensor", "a batch without any object: the mean over none is NaN")
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
    criterion = ObjectLoss(0 if t.sick else 1)
    loop = Loop(t, model, split, adam(3e-3), criterion, batch_size=8)
    loop.run(250, visible=non_finite, learned=loss_below(0.3, 30))


class Typed(nn.Module):
    """A model in a type of its own; inputs and outputs are float32."""

    def __init__(self, body: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.body = body.to(dtype)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.to(self.dtype)).float()


@third.sick(
    "ExplodingTensor PrecisionLoss",
    "Adam in float16: squares and epsilon are rounded to zero",
)
def adam_in_half(t: Training) -> None:
    """model.half() and Adam as always; where gradients are small, it divides by zero.

    Source: PyTorch's forum, "Adam gives NaN with half".  Visible: when the loss, a
    weight or a gradient is not finite.
    """
    # Each column is a little lit, so that no gradient is exactly zero.
    split = digits().inputs(lambda x: x * 0.9 + 0.05)
    model = Typed(mlp([64, 48, 10]), torch.float16 if t.sick else torch.float32)
    loop = Loop(t, model, split, adam(2e-3))
    loop.run(150, visible=non_finite, learned=0.9)


@third.sick(
    "ExplodingTensor ExplodingGradient TensorVariance WeightUpdateRatio "
    "LossNotDecreasing",
    "logits go into NLLLoss: it falls without end, and so grow the logits",
)
def logits_into_nll(t: Training) -> None:
    """NLLLoss without a LogSoftmax before it.

    Source: PyTorch's forum, "my loss is negative".  Visible: when the loss is below -5,
    as no likelihood can make it.
    """
    model = mlp([64, 64, 10])
    if not t.sick:
        model.append(nn.LogSoftmax(1))
    loop = Loop(t, model, digits(), sgd(0.1, momentum=0.9), nn.NLLLoss())
    loop.run(220, visible=lambda p: not p.losses[-1] > -5, learned=0.95)
