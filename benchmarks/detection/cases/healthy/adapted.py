"""Healthy fine-tuning: frozen trunks, adapters, curricula."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from benchmarks.detection.kit.case import second
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import Loop, descend, noted_accuracy, share_right
from benchmarks.detection.kit.models import Residual, cnn, mlp
from benchmarks.detection.kit.probes import knows
from benchmarks.detection.kit.training import Training


def pretrained(
    t: Training, model: nn.Module, wanted: Tensor, n_steps: int = 150
) -> None:
    """Train it on some of the digits, with nobody watching."""
    split = digits()
    rows = torch.nonzero(wanted).flatten()
    optimizer = Adam(model.parameters(), 3e-3)
    batches = t.epochs(len(rows), 64)
    for _ in range(n_steps):
        batch = rows[next(batches)]
        descend(
            optimizer,
            nn.functional.cross_entropy(model(split.x[batch]), split.y[batch]),
        )


@second.healthy
def frozen_trunk(t: Training) -> None:
    """A network that knows 0 to 6 gets a new head for all; the rest is frozen.

    BatchNorm is kept in evaluation mode, as people do who freeze.
    """
    split = digits()
    model = Residual()
    pretrained(t, model, split.y < 7)
    model.requires_grad_(False)
    model.head = nn.Linear(32, 10)
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(model.head.parameters(), 1e-2)
    t.watch(model, criterion)
    batches = t.epochs(len(split.x), 64)
    for _ in t.steps(200):
        model.eval()
        model.head.train()
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
    model.eval()
    with torch.no_grad():
        right = share_right(model(split.x_val), split.y_val)
    t.note(validation_accuracy=right)
    t.learned(right > 0.85)


@second.healthy
def frozen_backbone_in_training_mode(t: Training) -> None:
    """Likewise with a convolutional network without BatchNorm, all parameters given."""
    split = digits()
    model = cnn()
    pretrained(t, model, split.y < 7)
    for parameter in model[:7].parameters():
        parameter.requires_grad = False
    model[7], model[9] = nn.Linear(256, 64), nn.Linear(64, 10)
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.02, momentum=0.9)
    loop = Loop(
        t,
        model,
        split,
        optimizer,
        criterion,
        batch_size=64,
        epochs=True,
        validate_every=40,
    )
    loop.run(200, learned=knows(0.85))


@second.healthy
def small_rate_for_the_trunk(t: Training) -> None:
    """Fine-tuning of all, the trained layers with a hundredth of the head's rate."""
    split = digits()
    model = cnn()
    pretrained(t, model, split.y < 7)
    model[9] = nn.Linear(64, 10)
    criterion = nn.CrossEntropyLoss()
    optimizer = AdamW(
        [
            {"params": model[:9].parameters(), "lr": 3e-5},
            {"params": model[9].parameters(), "lr": 3e-3},
        ]
    )
    loop = Loop(t, model, split, optimizer, criterion, batch_size=64, epochs=True)
    loop.run(250, learned=knows(0.85))


class LoRA(nn.Module):
    """A frozen linear layer and a change of low rank; the second factor is zero."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * (x @ self.lora_a.T) @ self.lora_b.T


@second.healthy
def lora_adapters(t: Training) -> None:
    """Low-rank changes of a frozen network that has to read mirrored digits now."""
    split = digits()
    model = mlp((64, 96, 64, 10))
    pretrained(t, model, split.y < 10)
    for i in (0, 2, 4):
        model[i] = LoRA(model[i])  # type: ignore[arg-type]
    mirrored = split.inputs(lambda x: x.view(-1, 8, 8).flip(2).flatten(1))
    criterion = nn.CrossEntropyLoss()
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = AdamW(learning, 3e-3)
    t.watch(model, criterion)
    for _, batch in t.batches(300, len(split.x), 64):
        descend(optimizer, criterion(model(mirrored.x[batch]), split.y[batch]))
    t.learned(noted_accuracy(t, model, mirrored) > 0.85)


class Adapter(nn.Module):
    """x + up(act(down(x))), up is zero in the beginning (Houlsby 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.act, self.up = (
            nn.Linear(width, 8),
            nn.GELU(),
            nn.Linear(8, width),
        )
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.act(self.down(x)))


@second.healthy
def bottleneck_adapters(t: Training) -> None:
    """Adapters between frozen layers, and a head that learns, on upside-down digits."""
    split = digits()
    trained = mlp((64, 96, 64, 10), nn.Tanh)
    pretrained(t, trained, split.y < 10)
    trained.requires_grad_(False)
    trained[4].requires_grad_(True)
    model = nn.Sequential(
        Adapter(64), *trained[:2], Adapter(96), *trained[2:4], Adapter(64), trained[4]
    )
    turned = split.inputs(lambda x: x.flip(1))
    criterion = nn.CrossEntropyLoss()
    optimizer = Adam(filter(lambda p: p.requires_grad, model.parameters()), 3e-3)
    t.watch(model, criterion)
    for _, batch in t.batches(300, len(split.x), 64):
        descend(optimizer, criterion(model(turned.x[batch]), split.y[batch]))
    t.learned(noted_accuracy(t, model, turned) > 0.85)


@second.healthy
def gradual_unfreezing(t: Training) -> None:
    """The head alone at first, then the layers before it, then all (ULMFiT)."""
    split = digits()
    model = mlp((64, 64, 48, 10))
    pretrained(t, model, split.y < 6)
    model[4] = nn.Linear(48, 10)
    model[:4].requires_grad_(False)
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
    t.watch(model, criterion)
    batches = t.epochs(len(split.x), 64)
    for step in t.steps(240):
        if step in (80, 160):
            model[2 if step == 80 else 0].requires_grad_(True)
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
    t.learned(noted_accuracy(t, model, split) > 0.9)


@second.healthy
def curriculum(t: Training) -> None:
    """Easy classes first: three, then six, then all ten. The loss jumps up twice."""
    split = digits()
    model, criterion = mlp((64, 96, 10)), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    rows = torch.arange(len(split.x))
    for step in t.steps(350):
        n_classes = 3 if step < 60 else 6 if step < 130 else 10
        open_now = rows[split.y < n_classes]
        batch = open_now[t.draw(len(open_now), 64)]
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
    t.learned(noted_accuracy(t, model, split) > 0.92)


@second.healthy
def pseudo_labels(t: Training) -> None:
    """200 labels; later also what the model is sure of counts (Lee 2013)."""
    split = digits()
    known, unknown = split.take(torch.arange(200)), split.x[200:]
    model, criterion = mlp((64, 96, 10), dropout=0.3), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 2e-3, weight_decay=1e-3)
    t.watch(model, criterion)
    for step, batch in t.batches(300, 200, 32):
        loss = criterion(model(known.x[batch]), known.y[batch])
        if step >= 100:
            more = unknown[t.draw(len(unknown), 64)]
            sure, said = model(more).softmax(1).max(1)
            loss = (
                loss
                + 0.3
                * (
                    (sure > 0.9)
                    * nn.functional.cross_entropy(model(more), said, reduction="none")
                ).mean()
            )
        descend(optimizer, loss)
    t.learned(noted_accuracy(t, model, split) > 0.85)
