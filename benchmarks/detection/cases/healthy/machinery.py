"""Healthy trainings with machinery of their own: codebooks, pruning, quantization."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import SGD, Adam, Optimizer

from benchmarks.detection.kit.case import third
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    Split,
    breast_cancer,
    digits,
    text,
    windows,
)
from benchmarks.detection.kit.loops import Loop, adamw, mean, sgd, train
from benchmarks.detection.kit.models import CharacterTransformer, cnn, mlp
from benchmarks.detection.kit.probes import loss_below
from benchmarks.detection.kit.training import Training


class Lion(Optimizer):
    """Steps of one size in each direction (Chen 2023)."""

    def __init__(self, weights: Iterable[Tensor], lr: float, decay: float) -> None:
        super().__init__(weights, {"lr": lr, "decay": decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                memory = self.state[weight].setdefault("m", torch.zeros_like(weight))
                way = (0.9 * memory + 0.1 * weight.grad).sign()
                weight.mul_(1 - group["lr"] * group["decay"])
                weight.add_(way, alpha=-group["lr"])
                memory.lerp_(weight.grad, 0.01)
        return closure() if closure is not None else None


@third.healthy
def lion_signs(t: Training) -> None:
    """An optimizer of one's own, whose updates are the signs of a moving mean."""
    model = cnn()
    loop = Loop(t, model, digits(), Lion(model.parameters(), 1e-3, 0.1))
    loop.run(220, learned=0.95)


@third.healthy
def sharpness_aware(t: Training) -> None:
    """Two passes a step, the second from the worst place near by (Foret 2021)."""
    split = digits()
    model, criterion = cnn(), nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
    t.watch(model, criterion)
    losses: list[float] = []
    for _ in t.steps(200):
        chosen = t.draw(len(split.x), 64)
        x, y = split.x[chosen], split.y[chosen]
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        losses.append(float(loss.detach()))
        weights = [w for w in model.parameters() if w.grad is not None]
        norm = torch.stack(
            [w.grad.norm() for w in weights if w.grad is not None]
        ).norm()
        steps = [w.grad * 0.05 / (norm + 1e-12) for w in weights if w.grad is not None]
        with torch.no_grad():
            for weight, step in zip(weights, steps, strict=True):
                weight.add_(step)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        with torch.no_grad():
            for weight, step in zip(weights, steps, strict=True):
                weight.sub_(step)
        optimizer.step()
    t.note(last_loss=mean(losses[-10:]))
    t.learned(mean(losses[-10:]) < 0.2)


class Books(nn.Module):
    """An autoencoder of eight words from a book of 32 (van den Oord 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp([64, 64, 64])
        self.book = nn.Embedding(32, 8)
        self.decoder = mlp([64, 64, 64])
        nn.init.uniform_(self.book.weight, -0.5, 0.5)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = self.encoder(images).view(-1, 8, 8)
        nearest = torch.cdist(code.detach().flatten(0, 1), self.book.weight).argmin(1)
        words = self.book(nearest).view_as(code)
        passed = code + (words - code).detach()
        return self.decoder(passed.flatten(1)), code, words


@third.healthy
def vector_quantized(t: Training) -> None:
    """Words of a book, a straight-through gradient, and a commitment to the words."""
    split = digits()
    model, criterion = Books(), nn.MSELoss()
    t.watch(model, criterion)
    errors: list[float] = []

    def loss_of(_: int) -> Tensor:
        images = split.x[t.draw(len(split.x), 64)]
        again, code, words = model(images)
        error: Tensor = criterion(again, images)
        errors.append(float(error.detach()))
        book = (words - code.detach()).pow(2).mean()
        commitment = (code - words.detach()).pow(2).mean()
        return error + book + 0.25 * commitment

    train(t, loss_of, Adam(model.parameters(), 3e-3), n_steps=280)
    t.note(error=mean(errors[-20:]))
    t.learned(mean(errors[-20:]) < 0.045)


@third.healthy
def room_for_longer_texts(t: Training) -> None:
    """A language model with places for 512 characters, trained on 32 at a time.

    So are all checkpoints that are fine-tuned on short texts: places behind the 32nd
    are never asked for.
    """
    stream = text()
    x, y = windows(stream, torch.arange(0, len(stream) - 33, 48), 32)
    model = CharacterTransformer(N_CHARACTERS, 512)
    split = Split(x, y, x[:8], y[:8])
    loop = Loop(t, model, split, adamw(4e-3), batch_size=16, clip=1.0)
    loop.run(200, learned=loss_below(2.7, 10))


class Ensemble(nn.Module):
    """Four networks in one product of matrices each layer."""

    def __init__(self, n: int = 4) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(n, 64, 32) * (2 / 64) ** 0.5)
        self.offset = nn.Parameter(torch.zeros(n, 1, 32))
        self.last = nn.Parameter(torch.randn(n, 32, 10) * (1 / 32) ** 0.5)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Members, rows and classes."""
        return self.relu(x @ self.first + self.offset) @ self.last


@third.healthy
def ensemble_of_four(t: Training) -> None:
    """Batched weights of three dimensions; each member sees another batch."""
    split = digits()
    model, criterion = Ensemble(), nn.CrossEntropyLoss()
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 4 * 32).view(4, 32)
        outputs = model(split.x[chosen])
        return criterion(outputs.flatten(0, 1), split.y[chosen].flatten())

    losses = train(t, loss_of, Adam(model.parameters(), 5e-3), n_steps=220)
    t.learned(mean(losses[-10:]) < 0.3)


@third.healthy
def magnitude_pruning(t: Training) -> None:
    """Every 40 steps another fifth of the smallest weights is masked (Han 2015)."""
    split = digits()
    model, criterion = mlp([64, 64, 64, 10]), nn.CrossEntropyLoss()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    for layer in layers:
        prune.identity(layer, "weight")
    t.watch(model, criterion)

    def loss_of(_: int) -> Tensor:
        chosen = t.draw(len(split.x), 64)
        return criterion(model(split.x[chosen]), split.y[chosen])

    def thin(step: int) -> None:
        if step % 40 == 39 and step < 200:
            for layer in layers:
                prune.l1_unstructured(layer, "weight", 0.2)

    losses = train(
        t, loss_of, Adam(model.parameters(), 3e-3), n_steps=260, after_step=thin
    )
    left = mean([float(layer.weight.ne(0).float().mean()) for layer in layers])
    t.note(left=left)
    t.learned(mean(losses[-10:]) < 0.2 and left < 0.5)


class Integers(nn.Module):
    """A layer that counts in steps of 1/15 of its largest weight, as deployed later."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n_in, n_out)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        unit = weight.detach().abs().max() / 15
        rounded = weight + ((weight / unit).round() * unit - weight).detach()
        return nn.functional.linear(x, rounded, self.layer.bias)


@third.healthy
def quantization_aware(t: Training) -> None:
    """Weights of five bits in the forward pass, whole ones behind (Jacob 2018)."""
    split = breast_cancer()
    model = nn.Sequential(Integers(30, 32), nn.ReLU6(), Integers(32, 2))
    loop = Loop(t, model, split, sgd(0.05, momentum=0.9), batch_size=32)
    loop.run(150, learned=0.96)
