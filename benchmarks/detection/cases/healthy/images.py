"""Healthy image models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from benchmarks.detection.kit.case import first
from benchmarks.detection.kit.data import digits
from benchmarks.detection.kit.loops import Loop, Probe, adamw, sgd
from benchmarks.detection.kit.models import Attentive, Recurrent, Residual, cnn, mlp
from benchmarks.detection.kit.training import Training


@first.healthy
def convolutions(t: Training) -> None:
    """A convolutional network by SGD with momentum."""
    loop = Loop(t, cnn(), digits(), sgd(0.05, momentum=0.9), validate_every=20)
    loop.run(200, learned=0.95)


@first.healthy
def residual_network(t: Training) -> None:
    """Batch normalization behind convolutions without bias, AdamW."""
    loop = Loop(t, Residual(), digits(), adamw(3e-3), validate_every=20)
    loop.run(150, learned=0.95)


@first.healthy
def bias_before_normalization(t: Training) -> None:
    """Convolutions with a bias that the normalization behind them takes away again."""
    model = Residual()
    model.stem = nn.Conv2d(1, 8, 3, padding=1)
    for block in model.blocks:
        block.body[0] = nn.Conv2d(8, 8, 3, padding=1)
        block.body[3] = nn.Conv2d(8, 8, 3, padding=1)
    loop = Loop(t, model, digits(), sgd(0.1, momentum=0.9, weight_decay=1e-4))
    loop.run(150, learned=0.9)


@first.healthy
def attention_over_lines(t: Training) -> None:
    """A transformer with a warm-up and AdamW."""
    model = Attentive(2)
    adam = AdamW(model.parameters(), 3e-3)
    warm = LambdaLR(adam, lambda s: min(1.0, (s + 1) / 30))
    loop = Loop(t, model, digits(), adam, schedule=warm, clip=1.0)
    loop.run(150, learned=0.9)


@first.healthy
def recurrent_lines(t: Training) -> None:
    """A GRU that reads images line by line."""
    loop = Loop(t, Recurrent(), digits(), adamw(5e-3), clip=1.0)
    loop.run(200, learned=0.9)


@first.healthy
def autoencoder(t: Training) -> None:
    """64 pixels through 12 numbers and back; the output ends in a sigmoid."""
    split = digits()
    model = nn.Sequential(mlp([64, 48, 12, 48, 64]), nn.Sigmoid())
    adam = AdamW(model.parameters(), 3e-3)

    def batches(_: int) -> tuple[Tensor, Tensor]:
        x = split.x[t.draw(len(split.x), 64)]
        return x, x

    def learned(p: Probe) -> bool:
        return p.losses[-1] < 0.35 * p.losses[0]

    loop = Loop(t, model, split, adam, nn.MSELoss(), batches=batches)
    loop.run(300, learned=learned)


@first.healthy
def cosine_schedule(t: Training) -> None:
    """The learning rate goes down to zero with the last step, and not before."""
    model = cnn()
    sgd = SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    loop = Loop(t, model, digits(), sgd, schedule=CosineAnnealingLR(sgd, 200))
    loop.run(200, learned=0.93)


@first.healthy
def one_cycle(t: Training) -> None:
    """Smith's super-convergence: up to a large rate and down again."""
    model = Residual()
    sgd = SGD(model.parameters(), 0.01, momentum=0.9)
    loop = Loop(t, model, digits(), sgd, schedule=OneCycleLR(sgd, 0.3, total_steps=200))
    loop.run(200, learned=0.95)


@first.healthy
def sparse_relus(t: Training) -> None:
    """A wide ReLU network with an l1 penalty on what its hidden units say."""
    split = digits()
    model = mlp([64, 256, 10])
    adam = AdamW(model.parameters(), 3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    hidden: list[Tensor] = []
    model[1].register_forward_hook(lambda _m, _i, out: hidden.append(out))
    losses, right = [], 0.0
    for _ in t.steps(200):
        chosen = t.draw(len(split.x), 64)
        hidden.clear()
        adam.zero_grad()
        outputs = model(split.x[chosen])
        loss = criterion(outputs, split.y[chosen])
        (loss + 2e-3 * hidden[0].mean() * 256 / 10).backward()
        adam.step()
        losses.append(float(loss.detach()))
        right = float((outputs.argmax(1) == split.y[chosen]).float().mean())
    t.note(last=losses[-1], silent=float((hidden[0] == 0).float().mean()))
    t.learned(right > 0.9)


@first.healthy
def frozen_backbone(t: Training) -> None:
    """The first layers were trained before and are frozen; the head is new."""
    split = digits()
    model = cnn()
    first = AdamW(model.parameters(), 3e-3)
    for _ in range(100):
        chosen = t.draw(len(split.x), 64)
        first.zero_grad()
        nn.functional.cross_entropy(
            model(split.x[chosen]), split.y[chosen] % 5
        ).backward()
        first.step()
    model.zero_grad()
    for parameter in list(model.parameters())[:6]:
        parameter.requires_grad_(False)
    model[9] = nn.Linear(64, 10)
    adam = AdamW(model[9].parameters(), 1e-2)
    del first
    loop = Loop(t, model, split, adam)
    loop.run(200, learned=0.8)


@first.healthy
def fine_tuning(t: Training) -> None:
    """All of a network that knows the digits already is trained on, gently."""
    split = digits()
    model = cnn()
    first = AdamW(model.parameters(), 3e-3)
    for _ in range(150):
        chosen = t.draw(len(split.x), 64)
        first.zero_grad()
        nn.functional.cross_entropy(model(split.x[chosen]), split.y[chosen]).backward()
        first.step()
    model.zero_grad()
    del first
    noisy = split.inputs(lambda x: x + 0.1 * torch.randn(x.shape, generator=t.order))
    loop = Loop(t, model, noisy, adamw(2e-4))
    loop.run(200, learned=0.95)


@first.healthy
def label_smoothing_and_dropout(t: Training) -> None:
    """The loss stays above 0.5 for ever, by construction."""
    model = mlp([64, 128, 128, 10], dropout=0.3)
    adam = AdamW(model.parameters(), 3e-3)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    loop = Loop(t, model, digits(), adam, smooth, validate_every=25)
    loop.run(250, learned=0.95)


@first.healthy
def small_rate_that_learns(t: Training) -> None:
    """SGD without momentum at 0.02: slow, steady, and far from done at the end."""
    loop = Loop(t, mlp([64, 64, 10]), digits(), sgd(0.02))
    loop.run(400, learned=0.7)


@first.healthy
def sigmoid_units(t: Training) -> None:
    """One hidden layer of sigmoids, which is what they are good for."""
    loop = Loop(t, mlp([64, 64, 10], nn.Sigmoid), digits(), adamw(1e-2))
    loop.run(200, learned=0.95)


@first.healthy
def noisy_small_batches(t: Training) -> None:
    """Batches of 4: the loss of one says little."""
    loop = Loop(t, cnn(8), digits(), sgd(0.02, momentum=0.9), batch_size=4)
    loop.run(500, learned=0.75)
