"""Healthy trainings whose loops are unusual."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from benchmarks.detection.corpus.case import healthy
from benchmarks.detection.corpus.data import digits, wine
from benchmarks.detection.corpus.models import Residual, cnn, mlp
from benchmarks.detection.corpus.training import Training


def finish(t: Training, losses: list[float], share: float) -> None:
    """Note first and last losses; learned: the last is that share of the first."""
    first, last = sum(losses[:5]) / 5, sum(losses[-10:]) / 10
    t.note(first=first, last=last)
    t.learned(last < share * first)


@healthy
def accumulation(t: Training) -> None:
    """Four micro-batches to a step."""
    split = digits()
    model = cnn(4)
    adam = AdamW(model.parameters(), 3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(120):
        adam.zero_grad()
        for _ in range(4):
            chosen = t.draw(len(split.x), 16)
            loss = criterion(model(split.x[chosen]), split.y[chosen])
            (loss / 4).backward()
        adam.step()
        losses.append(float(loss.detach()))
    finish(t, losses, 0.3)


@healthy
def bfloat16_autocast(t: Training) -> None:
    """Mixed precision: bfloat16 in the layers, float32 weights."""
    split = digits()
    model = cnn(4)
    adam = AdamW(model.parameters(), 3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(150):
        chosen = t.draw(len(split.x), 64)
        adam.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(model(split.x[chosen]).float(), split.y[chosen])
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    finish(t, losses, 0.25)


@healthy
def float16_with_scaler(t: Training) -> None:
    """float16 with a loss scale that is found by overflows at the beginning."""
    split = digits()
    model = mlp([64, 64, 64, 10])
    sgd = SGD(model.parameters(), 0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=60)
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(200):
        chosen = t.draw(len(split.x), 64)
        sgd.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = criterion(model(split.x[chosen]).float(), split.y[chosen])
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()
        losses.append(float(loss.detach()))
    t.note(scale=scaler.get_scale())
    finish(t, losses, 0.2)


@healthy
def adversaries(t: Training) -> None:
    """A generator of digits and its judge, whose losses need not fall."""
    split = digits()
    maker = nn.Sequential(mlp([16, 64, 64]), nn.Sigmoid())
    judge = mlp([64, 64, 1], lambda: nn.LeakyReLU(0.2))
    for_maker = Adam(maker.parameters(), 1e-3, betas=(0.5, 0.999))
    for_judge = Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    both = nn.ModuleDict({"maker": maker, "judge": judge})

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = both

        def forward(self, real: Tensor | None, noise: Tensor) -> tuple[Tensor, ...]:
            made = self.parts["maker"](noise)
            if real is None:
                return (self.parts["judge"](made),)
            return self.parts["judge"](real), self.parts["judge"](made.detach())

    pair = Pair()
    t.watch(pair, criterion, optimizer=for_maker)
    pictures = torch.tensor(0.0)
    for _ in t.steps(150):
        real = split.x[t.draw(len(split.x), 64)]
        one, zero = torch.ones(64, 1), torch.zeros(64, 1)
        for_judge.zero_grad()
        said_real, said_made = pair(real, torch.randn(64, 16))
        (criterion(said_real, 0.9 * one) + criterion(said_made, zero)).backward()
        for_judge.step()
        for_maker.zero_grad()
        noise = torch.randn(64, 16)
        criterion(pair(None, noise)[0], one).backward()
        for_maker.step()
        pictures = maker.forward(noise).detach()
    gap = float((pictures.mean(0) - split.x.mean(0)).abs().mean())
    t.note(gap=gap)
    t.learned(gap < 0.2)


class Triplets(nn.Module):
    """Distance to one of the same class below that to one of another, by a margin."""

    def forward(self, anchor: Tensor, same: Tensor, other: Tensor) -> Tensor:
        return nn.functional.triplet_margin_loss(anchor, same, other, margin=1.0)


@healthy
def metric_learning(t: Training) -> None:
    """An embedding in which digits of a class are near each other."""
    split = digits()
    by_class = [torch.nonzero(split.y == k).flatten() for k in range(10)]
    model = mlp([64, 64, 16])
    adam = Adam(model.parameters(), 2e-3)
    criterion = Triplets()
    t.watch(model, criterion)
    losses = []
    for _ in t.steps(200):
        kinds = torch.randint(10, (48,), generator=t.order)
        others = (kinds + 1 + torch.randint(9, (48,), generator=t.order)) % 10
        rows = []
        for of in (kinds, kinds, others):
            at = torch.rand(48, generator=t.order)
            rows.append(
                torch.stack(
                    [
                        by_class[k][int(p * len(by_class[k]))]
                        for k, p in zip(of.tolist(), at.tolist(), strict=True)
                    ]
                )
            )
        adam.zero_grad()
        out = model(split.x[torch.cat(rows)])
        loss = criterion(out[:48], out[48:96], out[96:])
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    finish(t, losses, 0.3)


@healthy
def distillation(t: Training) -> None:
    """A student learns what a teacher says; the teacher is frozen and not watched."""
    split = digits()
    teacher = mlp([64, 64, 10])
    first = Adam(teacher.parameters(), 3e-3)
    for _ in range(150):
        chosen = t.draw(len(split.x), 64)
        first.zero_grad()
        nn.functional.cross_entropy(
            teacher(split.x[chosen]), split.y[chosen]
        ).backward()
        first.step()
    del first
    student = mlp([64, 24, 10])
    adam = Adam(student.parameters(), 5e-3)
    criterion = nn.KLDivLoss(reduction="batchmean")
    t.watch(student, criterion)
    losses = []
    for _ in t.steps(200):
        x = split.x[t.draw(len(split.x), 64)]
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(1)
        adam.zero_grad()
        loss = criterion((student(x) / 2).log_softmax(1), wanted)
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    finish(t, losses, 0.2)


@healthy
def averaged_weights(t: Training) -> None:
    """An exponential average of the weights is kept and evaluated."""
    split = digits()
    model = Residual(n_blocks=1)
    average = copy.deepcopy(model)
    adam = AdamW(model.parameters(), 3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    losses = []
    for step in t.steps(120):
        chosen = t.draw(len(split.x), 64)
        adam.zero_grad()
        loss = criterion(model(split.x[chosen]), split.y[chosen])
        loss.backward()
        adam.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)
        losses.append(float(loss.detach()))
        if step % 30 == 29:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    finish(t, losses, 0.25)


@healthy
def epochs_without_replacement(t: Training) -> None:
    """Shuffled epochs with a smaller last batch, evaluated after each."""
    split = wine()
    model = mlp([13, 24, 3])
    sgd = SGD(model.parameters(), 0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    losses: list[float] = []
    order: list[Tensor] = []
    for _ in t.steps(150):
        if not order:
            shuffled = torch.randperm(len(split.x), generator=t.order)
            order = list(shuffled.split(24))
            if losses:
                t.evaluate(model, criterion, split.x_val, split.y_val)
        chosen = order.pop(0)
        sgd.zero_grad()
        loss = criterion(model(split.x[chosen]), split.y[chosen])
        loss.backward()
        sgd.step()
        losses.append(float(loss.detach()))
    finish(t, losses, 0.15)


@healthy
def unfrozen_later(t: Training) -> None:
    """The head is trained first, all of the network from the middle on."""
    split = digits()
    model = cnn(4)
    head = list(model[9].parameters())
    body = [q for q in model.parameters() if all(q is not h for h in head)]
    adam = AdamW([{"params": head, "lr": 1e-2}, {"params": body, "lr": 3e-3}])
    for parameter in body:
        parameter.requires_grad_(False)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    losses = []
    for step in t.steps(220):
        if step == 80:
            for parameter in body:
                parameter.requires_grad_(True)
        chosen = t.draw(len(split.x), 64)
        adam.zero_grad()
        loss = criterion(model(split.x[chosen]), split.y[chosen])
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    finish(t, losses, 0.3)
