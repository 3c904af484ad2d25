"""Sick optimization: parameters that nobody updates, rates of zero, spikes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import N_CHARACTERS, Split, digits, text, windows
from benchmarks.detection.corpus.loops import Predicate, Probe, fit
from benchmarks.detection.corpus.models import CharacterModel, cnn, mlp
from benchmarks.detection.corpus.probes import (
    lasting,
    predictions_stand,
    without_gradient,
)
from benchmarks.detection.corpus.training import Training


class Detached(nn.Module):
    """An encoder and a head, with or without a way back from one to the other."""

    def __init__(self, detach: bool) -> None:
        super().__init__()
        self.encoder = mlp([64, 64, 32])
        self.head = mlp([32, 32, 10])
        self.detach = detach

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x)
        hidden = hidden.detach() if self.detach else hidden
        out: Tensor = self.head(hidden)
        return out


@sick(
    named_by={"MissingGradient"},
    diagnosis="detach() between encoder and head: the encoder never learns",
)
def detached_encoder(t: Training) -> None:
    """A detach() that was put there for a visualization is left behind.

    Source: PyTorch forum, "Why is my encoder not trained"; Humbatova et al. 2020: wrong
    tensor operations; Karpathy 2019 uses gradients to find such bugs.

    Visible: at 10 steps in a row the encoder's trainable weights have no gradient.
    """
    model = Detached(t.sick)
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 3e-3),
        n_steps=150,
        visible=without_gradient(["encoder.0.weight", "encoder.2.weight"]),
        learned=0.93,
    )


class Forgetful(nn.Module):
    """Has a second convolution, which forward may forget."""

    def __init__(self, forget: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU()
        self.head = nn.Linear(512, 10)
        self.forget = forget

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x.view(-1, 1, 8, 8)))
        if not self.forget:
            x = self.relu(self.second(x))
        out: Tensor = self.head(x.flatten(1))
        return out


@sick(
    named_by={"MissingGradient"},
    diagnosis="a layer is made and never called",
)
def layer_never_called(t: Training) -> None:
    """A layer is defined in the constructor and forgotten in forward.

    Source: DistributedDataParallel's find_unused_parameters and the many questions
    about it; Humbatova et al. 2020: missing layer.

    Visible: at 10 steps in a row that layer's trainable weights have no gradient.
    """
    model = Forgetful(t.sick)
    fit(
        t,
        model,
        digits(),
        Adam(model.parameters(), 3e-3),
        n_steps=100,
        visible=without_gradient(["second.weight", "second.bias"]),
        learned=0.9,
    )


def standing(names: list[str], patience: int = 20) -> Predicate:
    """Trainable weights with a gradient do not change by a bit."""
    before: list[Tensor] = []

    def holds(p: Probe) -> bool:
        named = dict(p.model.named_parameters())
        chosen = [named[name] for name in names]
        now = [q.detach().clone() for q in chosen]
        same = bool(before) and all(map(torch.equal, now, before))
        before[:] = now
        moved = all(q.grad is not None and bool(q.grad.any()) for q in chosen)
        return same and moved

    return lasting(holds, patience)


@sick(
    named_by={"NotInOptimizer", "UnchangedTensor"},
    diagnosis="the optimizer was given the head only",
)
def head_only(t: Training) -> None:
    """Only the last layer's parameters are given to the optimizer; nothing is frozen.

    Source: left over from fine-tuning (PyTorch's transfer learning tutorial, where the
    rest is frozen as well).

    Visible: at 20 steps in a row weights with a gradient do not change by a bit.
    """
    model = cnn()
    chosen = model[9].parameters() if t.sick else model.parameters()
    fit(
        t,
        model,
        digits(),
        Adam(chosen, 3e-3),
        n_steps=120,
        visible=standing(["1.weight", "3.weight", "7.weight"]),
        learned=0.9,
    )


@sick(
    named_by={"NotInOptimizer", "UnchangedTensor"},
    diagnosis="a layer was replaced after the optimizer was made",
)
def layer_replaced_later(t: Training) -> None:
    """The head is replaced for another number of classes when the optimizer is there.

    Source: questions on fine-tuning torchvision's models: `model.fc = nn.Linear(...)`
    after `Adam(model.parameters())`.

    Visible: at 20 steps in a row the new weight has a gradient and does not change by
    a bit.
    """
    model = mlp([64, 64, 20])
    if not t.sick:
        model[2] = nn.Linear(64, 10)
    optimizer = Adam(model.parameters(), 3e-3)
    if t.sick:
        model[2] = nn.Linear(64, 10)
    fit(
        t,
        model,
        digits(),
        optimizer,
        n_steps=120,
        visible=standing(["2.weight"]),
        learned=0.9,
    )


@sick(
    named_by={
        "ZeroLearningRate",
        "UnchangedTensor",
        "WeightUpdateRatio",
        "LossNotDecreasing",
    },
    diagnosis="step // warmup is 0 for all of the warm-up",
)
def warm_up_by_integers(t: Training) -> None:
    """A warm-up with an integer division: the rate is zero until it is over.

    Source: Humbatova et al. 2020: wrong learning rate schedule; LambdaLR on the forum.

    Visible: in 40 steps no prediction for the training data has changed, though
    accuracy is below 50 %.
    """
    model = mlp([64, 64, 10])
    optimizer = Adam(model.parameters(), 3e-3)
    warm = (lambda s: s // 100) if t.sick else (lambda s: min(1.0, (s + 1) / 50))
    fit(
        t,
        model,
        digits(),
        optimizer,
        n_steps=180,
        schedule=LambdaLR(optimizer, warm),
        visible=predictions_stand(40, 0.5),
        learned=0.93,
    )


@sick(
    named_by={"ZeroLearningRate", "UnchangedTensor", "WeightUpdateRatio"},
    diagnosis="the schedule ends at step 30, the training at 200",
)
def schedule_too_short(t: Training) -> None:
    """The number of steps of a linear decay was that of one epoch, not of all.

    Source: transformers' issues on num_training_steps; Humbatova et al. 2020.

    Visible: in 40 steps no prediction for the training data has changed, though
    accuracy is below 80 %.
    """
    model = mlp([64, 64, 10])
    optimizer = Adam(model.parameters(), 2e-3)
    end = 20 if t.sick else 200
    schedule = LambdaLR(optimizer, lambda s: max(0.0, 1 - s / end))
    fit(
        t,
        model,
        digits(),
        optimizer,
        n_steps=200,
        schedule=schedule,
        visible=predictions_stand(40, 0.8),
        learned=0.88,
    )


def spike(times: float, since: int) -> Predicate:
    """The loss of a batch is that many times the median of the last 50."""

    def holds(p: Probe) -> bool:
        if p.step < since:
            return False
        last = torch.tensor(p.losses[-51:-1])
        return not p.losses[-1] <= times * float(last.median())

    return holds


@sick(
    named_by={"LossSpike", "ExplodingGradient", "NotNormalizedData"},
    diagnosis="at step 120 a batch was not divided by 255",
)
def corrupt_batch(t: Training) -> None:
    """One shard of the data was written in other units.

    Source: Chowdhery et al. 2022 (PaLM), 5.1, and Zhang et al. 2022 (OPT): spikes of
    the loss at certain batches; Schelter et al. 2018 on changed units.

    Visible: from step 60 on, when the loss of a batch is 8 times the median of the last
    50.
    """
    split = digits()

    def batches(step: int) -> tuple[Tensor, Tensor]:
        chosen = t.draw(len(split.x), 64)
        scale = 255.0 if t.sick and step == 120 else 1.0
        return split.x[chosen] * scale, split.y[chosen]

    model = cnn()
    fit(
        t,
        model,
        split,
        SGD(model.parameters(), 0.02, momentum=0.9),
        n_steps=180,
        batches=batches,
        visible=spike(8.0, 60),
        learned=0.9,
    )


@sick(
    named_by={"LossSpike", "WeightUpdateRatio", "ExplodingGradient"},
    diagnosis="a restart of the schedule with a rate 300 times too large",
)
def rate_jumps(t: Training) -> None:
    """Resuming restores a schedule with the wrong base rate.

    Source: Loshchilov, Hutter 2017 on warm restarts; PyTorch's issues on resuming with
    lr_scheduler and initial_lr.

    Visible: from step 60 on, when the loss of a batch is 8 times the median of the last
    50.
    """
    model = mlp([64, 64, 64, 10])
    optimizer = Adam(model.parameters(), 1e-3)
    jump = 300.0 if t.sick else 1.0
    schedule = LambdaLR(optimizer, lambda s: jump if s >= 150 else 1.0)
    fit(
        t,
        model,
        digits(),
        optimizer,
        n_steps=220,
        schedule=schedule,
        visible=spike(8.0, 60),
        learned=0.93,
    )


def rows_without_gradient(share: float, patience: int) -> Predicate:
    """Of the embedding that share of rows never had a gradient in so many steps."""
    used: Tensor | None = None

    def holds(p: Probe) -> bool:
        nonlocal used
        weight = next(
            m.weight for m in p.model.modules() if isinstance(m, nn.Embedding)
        )
        now = weight.grad.ne(0).any(1)
        used = now if used is None else used | now
        return p.step >= patience and float((~used).float().mean()) > share

    return holds


def characters(t: Training, n_tokens: int, change: Callable[[Tensor], Tensor]) -> None:
    """A model of characters whose numbers are changed before they are looked up."""
    stream = text()
    model = CharacterModel(n_tokens, 48, nn.GRU)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        inputs, targets = windows(stream, t.draw(len(stream) - 40, 32), 24)
        return change(inputs), targets

    some = windows(stream, torch.arange(0, 640, 40), 24)
    fit(
        t,
        model,
        Split(change(some[0]), some[1], change(some[0]), some[1]),
        Adam(model.parameters(), 5e-3),
        n_steps=130,
        batches=batches,
        visible=rows_without_gradient(0.75, 100),
        learned=lambda p: sum(p.losses[-10:]) < 0.65 * 10 * p.losses[0],
    )


@sick(
    named_by={"DeadEmbedding"},
    diagnosis="a vocabulary of 800 for a text of 97 characters",
)
def vocabulary_too_large(t: Training) -> None:
    """The embedding was made for another tokenizer's vocabulary.

    Source: Karpathy's nanoGPT on padding the vocabulary; transformers' issues on
    resize_token_embeddings; Land, Bartolo 2024, "Fishing for Magikarp".

    Visible: from step 100 on, when more than 75 % of the rows never had a gradient.
    """
    characters(t, 800 if t.sick else N_CHARACTERS, lambda x: x)


@sick(
    named_by={"DeadEmbedding"},
    diagnosis="numbers of characters were cut to four bits",
)
def numbers_cut_off(t: Training) -> None:
    """Token numbers are stored in a type that is too small for them.

    Source: nanoGPT stores tokens as uint16, which is too small for larger vocabularies;
    Islam et al. 2019: wrong data types.

    Visible: from step 100 on, when more than 75 % of the rows never had a gradient.
    """
    characters(t, N_CHARACTERS, (lambda x: x & 15) if t.sick else (lambda x: x))
