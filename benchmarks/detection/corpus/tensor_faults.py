"""Sick tensors: nothing but zeros, without variance, never changing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import (
    N_CHARACTERS,
    digits,
    lines_of_code,
)
from benchmarks.detection.corpus.loops import Predicate, Probe, fit
from benchmarks.detection.corpus.models import CharacterModel, cnn, mlp
from benchmarks.detection.corpus.probes import below_accuracy, lasting
from benchmarks.detection.corpus.text_faults import padded
from benchmarks.detection.corpus.training import Training


@sick(
    named_by={"AllZero", "NotNormalizedData", "LossNotDecreasing", "TensorVariance"},
    diagnosis="integer division: all pixels are 0",
    asks={"AllZero": {"tensor_regex": r"_input_0$"}},
)
def integer_division(t: Training) -> None:
    """Images of bytes are divided by 255 before they become floats.

    Source: Python's // and NumPy's astype(int); Humbatova et al. 2020: wrong
    preprocessing, wrong type of data.

    Visible: from step 50 on, accuracy on the training data is below 30 %.
    """
    split = digits().inputs(lambda x: (x * 254).floor())
    model = cnn()
    fit(
        t,
        model,
        split.inputs(lambda x: x // 255 if t.sick else x / 255),
        Adam(model.parameters(), 3e-3),
        n_steps=150,
        visible=below_accuracy(0.3, 50),
        learned=0.9,
    )


@sick(
    named_by={"AllZero", "VanishingGradient"},
    diagnosis="the mask of the loss keeps the padding and drops the text",
    asks={"AllZero": {"tensor_regex": r"^gradient/|Masked_output_0$"}},
)
def inverted_mask(t: Training) -> None:
    """A mask says where padding is, and is taken to say where text is.

    Source: PyTorch's own conventions differ (key_padding_mask: True is ignored; the
    attention mask of transformers: 1 is kept); Islam et al. 2019. The lines fill
    their rows, so that nothing is left.

    Visible: at 10 steps in a row all gradients are zero.
    """

    class Masked(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            each = nn.functional.cross_entropy(outputs, targets, reduction="none")
            padding = (targets == 0).float()
            weight = padding if t.sick else 1 - padding
            return (each * weight).sum() / weight.sum().clamp(min=1)

    rows = padded([line for line in lines_of_code() if len(line) >= 24], 24)
    model = CharacterModel(N_CHARACTERS, 48, nn.GRU)
    optimizer = Adam(model.parameters(), 5e-3)
    criterion = Masked()
    t.watch(model, criterion)
    losses, still = [], 0
    for _ in t.steps(100):
        batch = rows[t.draw(len(rows), 32)]
        optimizer.zero_grad()
        loss = criterion(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        zero = not any(bool(q.grad.count_nonzero()) for q in model.parameters())
        still = still + 1 if zero else 0
        t.visible(still >= 10)
    t.note(first=losses[0], last=losses[-1])
    t.learned(losses[-1] < 0.75 * losses[0])


class Alike(nn.Module):
    """Negative cosine of two views of the same image; both ways."""

    def __init__(self, predictor: nn.Module, detach: bool) -> None:
        super().__init__()
        self.predictor = predictor
        self.detach = detach

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        def one(a: Tensor, b: Tensor) -> Tensor:
            b = b.detach() if self.detach else b
            return -nn.functional.cosine_similarity(self.predictor(a), b).mean()

        return (one(first, second) + one(second, first)) / 2


@sick(
    named_by={"TensorVariance"},
    diagnosis="siamese networks without a stopped gradient collapse to a point",
    asks={
        "TensorVariance": {"tensor_regex": r"^Cosine_output_0$", "min_threshold": 0.002}
    },
)
def collapsed_embedding(t: Training) -> None:
    """All images get the same embedding, which makes the loss perfect.

    Source: Chen, He 2021, "Exploring Simple Siamese Representation Learning", 4.1; its
    measure is the deviation of normalized embeddings, which should be 1 / sqrt(d).

    Visible: at three looks in a row, 10 steps apart, the mean deviation over the data
    of each coordinate of the normalized embedding is below 0.2 / sqrt(d).
    """
    split = digits()
    width = 32

    class Cosine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp([64, 128, width])
            self.norm = nn.BatchNorm1d(width, affine=False)
            self.predictor = mlp([width, 16, width])

        def forward(self, x: Tensor) -> Tensor:
            out = self.body(x)
            out = out if t.sick else self.norm(out)
            return nn.functional.normalize(out)

    model = Cosine()
    criterion = Alike(model.predictor, detach=not t.sick)
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    t.watch(model, criterion)
    looks, deviation = 0, 0.0
    for step in t.steps(200):
        x = split.x[t.draw(len(split.x), 64)]
        views = [x + 0.1 * torch.randn(x.shape, generator=t.order) for _ in range(2)]
        optimizer.zero_grad()
        embedded = model(torch.cat(views))
        loss = criterion(embedded[:64], embedded[64:])
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            deviation = float(embedded.detach().std(0).mean()) * width**0.5
            looks = looks + 1 if deviation < 0.2 else 0
            t.visible(looks >= 3)
    t.note(deviation=deviation)
    t.learned(deviation > 0.5)


def unmoved() -> Predicate:
    """No weight has changed by a bit, though there was a gradient."""
    before: list[Tensor] = []

    def holds(p: Probe) -> bool:
        now = [q.detach().clone() for q in p.model.parameters()]
        some = any(bool(q.grad.count_nonzero()) for q in p.model.parameters())
        same = bool(before) and all(map(torch.equal, now, before)) and some
        before[:] = now
        return same

    return lasting(holds, 20)


@sick(
    named_by={
        "UnchangedTensor",
        "LossNotDecreasing",
        "WeightUpdateRatio",
        "NotInOptimizer",
    },
    diagnosis="the optimizer has the parameters of a model that was thrown away",
)
def optimizer_of_another_model(t: Training) -> None:
    """The model is made anew after the optimizer was.

    Source: PyTorch's documentation of torch.optim ("construct optimizers after moving
    the model"); many questions on models reloaded or wrapped after the optimizer.

    Visible: at 20 steps in a row no weight has changed by a bit, though gradients are
    not zero.
    """
    model = cnn()
    optimizer = Adam(model.parameters(), 3e-3)
    if t.sick:
        model = cnn()
    fit(
        t,
        model,
        digits(),
        optimizer,
        n_steps=150,
        visible=unmoved(),
        learned=0.9,
    )


@sick(
    named_by={"UnchangedTensor", "Overfit"},
    diagnosis="each step sees the same 64 images",
    asks={"UnchangedTensor": {"tensor_regex": r"^Sequential_input_0$"}},
)
def one_batch(t: Training) -> None:
    """A generator is seeded where batches are made, so all batches are the same.

    Source: Tanelp 2021, "Using PyTorch + NumPy? You're making a mistake" (workers with
    one seed); left over from Karpathy's "overfit a single batch".

    Visible: from step 100 on, accuracy on all training data is below 90 %.
    """
    split = digits()

    def batches(_: int) -> tuple[Tensor, Tensor]:
        if t.sick:
            t.order.manual_seed(t.seed)
        chosen = t.draw(len(split.x), 64)
        return split.x[chosen], split.y[chosen]

    model = mlp([64, 64, 10])
    fit(
        t,
        model,
        split,
        Adam(model.parameters(), 3e-3),
        n_steps=200,
        batches=batches,
        validate_every=20,
        visible=below_accuracy(0.9, 100),
        learned=0.95,
    )
