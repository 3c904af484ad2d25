"""Healthy ways to train: accumulation, mixed precision, averages, restarts, ..."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint

from benchmarks.detection.corpus.case import healthy
from benchmarks.detection.corpus.data import breast_cancer, digits, wine
from benchmarks.detection.corpus.models import Attentive, Recurrent, Residual, cnn, mlp
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.second.kit import accuracy, descend, epochs


@healthy
def accumulates_four(t: Training) -> None:
    """Gradients of four small batches in each step of the optimizer."""
    split = digits()
    model, criterion = cnn(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 16)
    for _ in t.steps(150):
        for _ in range(4):
            batch = next(batches)
            (criterion(model(split.x[batch]), split.y[batch]) / 4).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.93)


class Checkpointed(nn.Module):
    """Each block is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(64, 48)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(48), nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48)
            )
            for _ in range(4)
        )
        self.leave = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        out: Tensor = self.leave(x)
        return out


@healthy
def recomputes_activations(t: Training) -> None:
    """Gradient checkpointing."""
    split = digits()
    model, criterion = Checkpointed(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 64)
    for _ in t.steps(200):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.92)


@healthy
def autocast_bfloat16(t: Training) -> None:
    """Mixed precision: products in bfloat16, weights and Adam in float32."""
    split = digits()
    model, criterion = Attentive(2), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 64)
    for _ in t.steps(250):
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(model(split.x[batch]), split.y[batch])
        descend(optimizer, loss)
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.9)


@healthy
def exponential_average(t: Training) -> None:
    """The weights are averaged with 0.99, and the average is evaluated."""
    split = digits()
    model, criterion = cnn(), nn.CrossEntropyLoss()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 64)
    for _ in t.steps(300):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        average.update_parameters(model)
    right = accuracy(average, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.93)


@healthy
def stochastic_average(t: Training) -> None:
    """SWA: after two thirds the rate is high and constant, and weights are averaged."""
    split = digits()
    model, criterion = Residual(), nn.CrossEntropyLoss()
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4
    )
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    flat = SWALR(optimizer, 0.05, anneal_epochs=20)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 64)
    for step in t.steps(220):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        if step < 140:
            fall.step()
        else:
            flat.step()
            if step % 10 == 9:
                average.update_parameters(model)
    update_bn(split.x.split(128), average)  # type: ignore[no-untyped-call]
    right = accuracy(average, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.93)


@healthy
def warm_restarts(t: Training) -> None:
    """The rate falls to nothing and jumps back (SGDR): so does the loss."""
    split = digits()
    model, criterion = mlp((64, 64, 64, 10)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule = CosineAnnealingWarmRestarts(optimizer, 75)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 32)
    for step in t.steps(300):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]), schedule)
        if step % 75 == 74:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.93)


@healthy
def plateau_and_early_stop(t: Training) -> None:
    """The rate is halved when validation stands; the training ends when it stays so."""
    split = breast_cancer()
    model, criterion = mlp((30, 32, 2), dropout=0.3), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-3)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 32)
    best, since = float("inf"), 0
    for step in t.steps(700):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        if step % 14 == 13:
            loss, _ = t.evaluate(model, criterion, split.x_val, split.y_val)
            schedule.step(loss)
            best, since = (loss, 0) if loss < best - 1e-4 else (best, since + 1)
            if since >= 6:
                break
    right = accuracy(model, split)
    t.note(validation_accuracy=right, best=best)
    t.learned(right > 0.94)


class DropPath(nn.Module):
    """A residual block that is left out altogether in some steps (Huang 2016)."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance
        self.body = nn.Sequential(
            nn.LayerNorm(48), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.training and float(torch.rand(())) < self.chance:
            return x
        out: Tensor = x + self.body(x) * (1.0 if self.training else 1 - self.chance)
        return out


@healthy
def stochastic_depth(t: Training) -> None:
    """Blocks are left out by chance, up to a half of the steps: then no gradient."""
    split = digits()
    model = nn.Sequential(
        nn.Linear(64, 48), *(DropPath(0.1 * k) for k in range(1, 6)), nn.Linear(48, 10)
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 64)
    for _ in t.steps(250):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.9)


@healthy
def two_optimizers(t: Training) -> None:
    """Adam for the trunk, SGD for the head; both step in each step."""
    split = digits()
    model, criterion = cnn(), nn.CrossEntropyLoss()
    first = torch.optim.Adam(model[:7].parameters(), 2e-3)
    second = torch.optim.SGD(model[7:].parameters(), 0.05, momentum=0.9)
    t.watch(model, criterion, optimizer=first)
    batches = epochs(t, len(split.x), 64)
    for _ in t.steps(200):
        batch = next(batches)
        model.zero_grad()
        criterion(model(split.x[batch]), split.y[batch]).backward()
        second.step()
        first.step()
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.93)


@healthy
def small_plain_rate(t: Training) -> None:
    """Plain SGD with 0.01 and no momentum: slow, but it learns all the way."""
    split = digits().inputs(lambda x: (x - 0.305) / 0.376)
    model, criterion = mlp((64, 48, 10)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 32)
    for step in t.steps(600):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        if step % 43 == 42:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.85)


@healthy
def strong_decay(t: Training) -> None:
    """AdamW with a decay of 0.5 and rate 3e-3: weights shrink, and it generalizes."""
    split = digits()
    model, criterion = mlp((64, 128, 10)), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.5)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 64)
    for step in t.steps(300):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        if step % 66 == 65:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.92)


@healthy
def spectrally_normed(t: Training) -> None:
    """Weights divided by their largest singular value: parameters are originals."""
    split = digits()
    model = nn.Sequential(
        spectral_norm(nn.Linear(64, 96)), nn.ELU(), spectral_norm(nn.Linear(96, 96)),
        nn.ELU(), nn.Linear(96, 10),
    )  # fmt: skip
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    t.watch(model, criterion)
    batches = epochs(t, len(split.x), 64)
    for _ in t.steps(250):
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.9)


@healthy
def resumed_from_checkpoint(t: Training) -> None:
    """Half of the training, then a new model and optimizer from what was saved."""
    split = digits()
    criterion = nn.CrossEntropyLoss()
    saved: dict[str, dict[str, object]] = {}
    model: nn.Module = nn.Module()
    batches = epochs(t, len(split.x), 64)
    for step in t.steps(240):
        if step % 120 == 0:
            model = Recurrent(nn.LSTM)
            optimizer = torch.optim.Adam(model.parameters(), 8e-3)
            if saved:
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
            t.watch(model, criterion)
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        if step == 119:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.88)


@healthy
def weighted_sampler(t: Training) -> None:
    """One class of three has 10 wines only; all are drawn as often as each other."""
    split = wine()
    few = torch.nonzero(split.y == 1).flatten()[10:]
    kept = torch.ones(len(split.x), dtype=torch.bool)
    kept[few] = False
    x, y = split.x[kept], split.y[kept]
    chance = 1 / torch.bincount(y)[y].float()
    model, criterion = mlp((13, 16, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3, weight_decay=1e-3)
    t.watch(model, criterion)
    for step in t.steps(150):
        batch = torch.multinomial(chance, 24, True, generator=t.order)
        descend(optimizer, criterion(model(x[batch]), y[batch]))
        if step % 25 == 24:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    right = accuracy(model, split)
    t.note(validation_accuracy=right)
    t.learned(right > 0.85)
