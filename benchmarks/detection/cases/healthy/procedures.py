"""Healthy training procedures: accumulation, mixed precision, averages, restarts."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ReduceLROnPlateau,
)
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint

from benchmarks.detection.kit.case import first, second
from benchmarks.detection.kit.data import breast_cancer, digits, wine
from benchmarks.detection.kit.loops import Loop, accuracy, adam, descend, noted_accuracy
from benchmarks.detection.kit.models import Attentive, Recurrent, Residual, cnn, mlp
from benchmarks.detection.kit.probes import knows
from benchmarks.detection.kit.training import Training


def finish(t: Training, losses: list[float], share: float) -> None:
    """Note first and last losses; learned: the last is that share of the first."""
    first, last = sum(losses[:5]) / 5, sum(losses[-10:]) / 10
    t.note(first=first, last=last)
    t.learned(last < share * first)


@first.healthy
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


@first.healthy
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
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(model(split.x[chosen]).float(), split.y[chosen])
        losses.append(descend(adam, loss))
    finish(t, losses, 0.25)


@first.healthy
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


@first.healthy
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

    def forward(self, head_rows: Tensor, same: Tensor, other: Tensor) -> Tensor:
        return nn.functional.triplet_margin_loss(head_rows, same, other, margin=1.0)


@first.healthy
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
        out = model(split.x[torch.cat(rows)])
        losses.append(descend(adam, criterion(out[:48], out[48:96], out[96:])))
    finish(t, losses, 0.3)


@first.healthy
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
        losses.append(descend(adam, criterion((student(x) / 2).log_softmax(1), wanted)))
    finish(t, losses, 0.2)


@first.healthy
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


@first.healthy
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
        losses.append(descend(sgd, criterion(model(split.x[chosen]), split.y[chosen])))
    finish(t, losses, 0.15)


@first.healthy
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
        losses.append(descend(adam, criterion(model(split.x[chosen]), split.y[chosen])))
    finish(t, losses, 0.3)


@second.healthy
def accumulates_four(t: Training) -> None:
    """Gradients of four small batches in each step of the optimizer."""
    split = digits()
    model, criterion = cnn(), nn.CrossEntropyLoss()
    optimizer = AdamW(model.parameters(), 2e-3)
    t.watch(model, criterion)
    batches = t.epochs(len(split.x), 16)
    for _ in t.steps(150):
        for _ in range(4):
            batch = next(batches)
            (criterion(model(split.x[batch]), split.y[batch]) / 4).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    t.learned(noted_accuracy(t, model, split) > 0.93)


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
        return self.leave(x)


@second.healthy
def recomputes_activations(t: Training) -> None:
    """Gradient checkpointing."""
    loop = Loop(t, Checkpointed(), digits(), adam(1e-3), batch_size=64, epochs=True)
    loop.run(200, learned=knows(0.92))


@second.healthy
def autocast_bfloat16(t: Training) -> None:
    """Mixed precision: products in bfloat16, weights and Adam in float32."""
    split = digits()
    model, criterion = Attentive(2), nn.CrossEntropyLoss()
    optimizer = AdamW(model.parameters(), 2e-3)
    t.watch(model, criterion)
    for _, batch in t.batches(250, len(split.x), 64):
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(model(split.x[batch]), split.y[batch])
        descend(optimizer, loss)
    t.learned(noted_accuracy(t, model, split) > 0.9)


@second.healthy
def exponential_average(t: Training) -> None:
    """The weights are averaged with 0.99, and the average is evaluated."""
    split = digits()
    model, criterion = cnn(), nn.CrossEntropyLoss()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = Adam(model.parameters(), 2e-3)
    t.watch(model, criterion)
    for _, batch in t.batches(300, len(split.x), 64):
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        average.update_parameters(model)
    t.learned(noted_accuracy(t, average, split) > 0.93)


@second.healthy
def stochastic_average(t: Training) -> None:
    """SWA: after two thirds the rate is high and constant, and weights are averaged."""
    split = digits()
    model, criterion = Residual(), nn.CrossEntropyLoss()
    average = AveragedModel(model)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    fall = CosineAnnealingLR(optimizer, 200)
    flat = SWALR(optimizer, 0.05, anneal_epochs=20)
    t.watch(model, criterion)
    for step, batch in t.batches(220, len(split.x), 64):
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        if step < 140:
            fall.step()
        else:
            flat.step()
            if step % 10 == 9:
                average.update_parameters(model)
    update_bn(split.x.split(128), average)  # type: ignore[no-untyped-call]
    t.learned(noted_accuracy(t, average, split) > 0.93)


@second.healthy
def warm_restarts(t: Training) -> None:
    """The rate falls to nothing and jumps back (SGDR): so does the loss."""
    split = digits()
    model = mlp((64, 64, 64, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule = CosineAnnealingWarmRestarts(optimizer, 75)
    loop = Loop(
        t,
        model,
        split,
        optimizer,
        criterion,
        batch_size=32,
        epochs=True,
        schedule=schedule,
        validate_every=75,
    )
    loop.run(300, learned=knows(0.93))


@second.healthy
def plateau_and_early_stop(t: Training) -> None:
    """The rate is halved when validation stands; the training ends when it stays so."""
    split = breast_cancer()
    model, criterion = mlp((30, 32, 2), dropout=0.3), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 3e-3, weight_decay=1e-3)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    t.watch(model, criterion)
    best, since = float("inf"), 0
    for step, batch in t.batches(700, len(split.x), 32):
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
        return x + self.body(x) * (1.0 if self.training else 1 - self.chance)


@second.healthy
def stochastic_depth(t: Training) -> None:
    """Blocks are left out by chance, up to a half of the steps: then no gradient."""
    split = digits()
    model = nn.Sequential(
        nn.Linear(64, 48), *(DropPath(0.1 * k) for k in range(1, 6)), nn.Linear(48, 10)
    )
    loop = Loop(t, model, split, adam(1e-3), batch_size=64, epochs=True)
    loop.run(250, learned=knows(0.9))


@second.healthy
def two_optimizers(t: Training) -> None:
    """Adam for the trunk, SGD for the head; both step in each step."""
    split = digits()
    model, criterion = cnn(), nn.CrossEntropyLoss()
    first = Adam(model[:7].parameters(), 2e-3)
    second = SGD(model[7:].parameters(), 0.05, momentum=0.9)
    t.watch(model, criterion, optimizer=first)
    for _, batch in t.batches(200, len(split.x), 64):
        model.zero_grad()
        criterion(model(split.x[batch]), split.y[batch]).backward()
        second.step()
        first.step()
    t.learned(noted_accuracy(t, model, split) > 0.93)


@second.healthy
def small_plain_rate(t: Training) -> None:
    """Plain SGD with 0.01 and no momentum: slow, but it learns all the way."""
    split = digits().inputs(lambda x: (x - 0.305) / 0.376)
    model = mlp((64, 48, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.01)
    loop = Loop(
        t,
        model,
        split,
        optimizer,
        criterion,
        batch_size=32,
        epochs=True,
        validate_every=43,
    )
    loop.run(600, learned=knows(0.85))


@second.healthy
def strong_decay(t: Training) -> None:
    """AdamW with a decay of 0.5 and rate 3e-3: weights shrink, and it generalizes."""
    split = digits()
    model = mlp((64, 128, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = AdamW(model.parameters(), 3e-3, weight_decay=0.5)
    loop = Loop(
        t,
        model,
        split,
        optimizer,
        criterion,
        batch_size=64,
        epochs=True,
        validate_every=66,
    )
    loop.run(300, learned=knows(0.92))


@second.healthy
def spectrally_normed(t: Training) -> None:
    """Weights divided by their largest singular value: parameters are originals."""
    split = digits()
    model = nn.Sequential(
        spectral_norm(nn.Linear(64, 96)), nn.ELU(), spectral_norm(nn.Linear(96, 96)),
        nn.ELU(), nn.Linear(96, 10),
    )  # fmt: skip
    loop = Loop(t, model, split, adam(3e-3), batch_size=64, epochs=True)
    loop.run(250, learned=knows(0.9))


@second.healthy
def resumed_from_checkpoint(t: Training) -> None:
    """Half of the training, then a new model and optimizer from what was saved."""
    split = digits()
    criterion = nn.CrossEntropyLoss()
    saved: dict[str, dict[str, object]] = {}
    model: nn.Module = nn.Module()
    batches = t.epochs(len(split.x), 64)
    for step in t.steps(240):
        if step % 120 == 0:
            model = Recurrent(nn.LSTM)
            optimizer = Adam(model.parameters(), 8e-3)
            if saved:
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
            t.watch(model, criterion)
        batch = next(batches)
        descend(optimizer, criterion(model(split.x[batch]), split.y[batch]))
        if step == 119:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    t.learned(noted_accuracy(t, model, split) > 0.88)


@second.healthy
def weighted_sampler(t: Training) -> None:
    """One class of three has 10 wines only; all are drawn as often as each other."""
    split = wine()
    few = torch.nonzero(split.y == 1).flatten()[10:]
    kept = torch.ones(len(split.x), dtype=torch.bool)
    kept[few] = False
    x, y = split.x[kept], split.y[kept]
    chance = 1 / torch.bincount(y)[y].float()
    model, criterion = mlp((13, 16, 3)), nn.CrossEntropyLoss()
    optimizer = Adam(model.parameters(), 5e-3, weight_decay=1e-3)
    t.watch(model, criterion)
    for step in t.steps(150):
        batch = torch.multinomial(chance, 24, True, generator=t.order)
        descend(optimizer, criterion(model(x[batch]), y[batch]))
        if step % 25 == 24:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    t.learned(noted_accuracy(t, model, split) > 0.85)
