"""Steps that are not what is meant: rates, schedules, scales, groups, restarts."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau

from benchmarks.detection.kit.case import ninth
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    digits,
    lines,
    text,
    windows,
)
from benchmarks.detection.kit.harm import conclude, held_out
from benchmarks.detection.kit.loops import pretrain
from benchmarks.detection.kit.models import (
    CharacterModel,
    Convolved,
    Residual,
    cnn,
    mlp,
)
from benchmarks.detection.kit.training import Training


@ninth.silent(
    "plateau of the wrong sign",
    "ReduceLROnPlateau waits for an accuracy to fall: its mode is min",
)
def plateau_of_an_accuracy(t: Training) -> None:
    """``scheduler.step(val_acc)``, and ``mode="min"`` as it is by default.

    Source: github.com/md-mohaiminul/ViS4mer/issues/4, FunctionLab/selene/issues/115
    (the same the other way round).
    Visible: the rate is a twentieth of what it was though accuracy went on rising,
    and fewer than 92 % of new images are recognized.
    """
    split = digits()
    model = mlp([64, 64, 10])
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    mode = "min" if t.sick else "max"
    scheduler = ReduceLROnPlateau(optimizer, mode=mode, factor=0.5, patience=2)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, rows in t.batches(300, len(split.x), 64):
        optimizer.zero_grad()
        loss = criterion(model(split.x[rows]), split.y[rows])
        loss.backward()
        optimizer.step()
        if step % 15 == 14:
            _, outputs = t.evaluate(model, criterion, split.x_val, split.y_val)
            scheduler.step(float((outputs.argmax(1) == split.y_val).float().mean()))
    rate = optimizer.param_groups[0]["lr"]
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(rate=rate, accuracy=accuracy)
    conclude(t, fault=rate < 0.001, reached=accuracy > 0.92)


@ninth.silent("rate of the checkpoint", "load_state_dict brings back the old rate")
def rate_of_the_checkpoint(t: Training) -> None:
    """``Adam(lr=args.lr)``, then ``load_state_dict``: the rate is the saved one.

    Source: github.com/pytorch/examples/issues/816 ("Resume will override learning rate
    on command line"), pytorch/pytorch/issues/156846, alex-hh/profam/pull/483.
    Visible: the rate of the second training is the last of the first, 3e-5, and after
    it fewer than 85 % of the new kind are recognized.
    """
    split = digits()
    args = {"lr": 2e-3, "steps": 90, "batch_size": 32}
    model = cnn()
    optimizer = Adam(model.parameters(), lr=3e-3)
    schedule = CosineAnnealingLR(optimizer, 120, eta_min=3e-5)
    for rows in (t.draw(len(split.x), 32) for _ in range(120)):
        optimizer.zero_grad()
        functional.cross_entropy(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        schedule.step()
    saved = copy.deepcopy(optimizer.state_dict())

    new = split.inputs(lambda x: x.view(-1, 8, 8).roll(1, 2).flatten(1))
    optimizer = Adam(model.parameters(), lr=args["lr"])
    optimizer.load_state_dict(saved)
    if not t.sick:
        for group in optimizer.param_groups:
            group["lr"] = args["lr"]
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(int(args["steps"]), len(new.x), int(args["batch_size"])):
        optimizer.zero_grad()
        criterion(model(new.x[rows]), new.y[rows]).backward()
        optimizer.step()
    rate = optimizer.param_groups[0]["lr"]
    accuracy = held_out(model, new.x_val, new.y_val)
    t.note(rate=rate, accuracy=accuracy)
    conclude(t, fault=rate < 1e-4, reached=accuracy > 0.85)


@dataclass
class Trainer:
    """Accumulates gradients over micro-batches."""

    model: nn.Module
    loss_of: Callable[[Tensor], Tensor]
    optimizer: Optimizer
    accumulate: int
    clears_each: bool
    lost: list[float] = field(default_factory=list)

    def train_step(self, rows: Tensor) -> float:
        """One step of the optimizer."""
        total, grads = 0.0, []
        weight = next(self.model.parameters())
        if not self.clears_each:
            self.optimizer.zero_grad()
        for micro in rows.chunk(self.accumulate):
            if self.clears_each:
                self.optimizer.zero_grad()
            before = None if weight.grad is None else weight.grad.clone()
            loss = self.loss_of(micro) / self.accumulate
            loss.backward()
            if weight.grad is not None:
                grads.append(weight.grad - (0 if before is None else before))
            total += float(loss.detach())
        whole = torch.stack(grads).sum(0)
        kept = torch.zeros_like(whole) if weight.grad is None else weight.grad
        self.lost.append(float((kept - whole).norm() / whole.norm()))
        self.optimizer.step()
        return total


@ninth.silent(
    "cleared while accumulating", "gradients are cleared before each micro-batch"
)
def cleared_in_the_inner_loop(t: Training) -> None:
    """``optimizer.zero_grad()`` stands in the loop over micro-batches.

    Source: github.com/bytetriper/RAE/issues/67 ("zero_grad is called per microbatch,
    breaking gradient accumulation"), pytorch/torchtitan/pull/3575,
    meta-pytorch/opacus/issues/93.
    Visible: the gradient of a step is not the sum of those of its micro-batches, but
    the last of them, a quarter as large as it should be.
    """
    split = lines(24)
    model = Convolved(N_CHARACTERS, 5)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    trainer = Trainer(
        model,
        lambda rows: criterion(model(split.x[rows]), split.y[rows]),
        SGD(model.parameters(), lr=0.1, momentum=0.9),
        accumulate=4,
        clears_each=t.sick,
    )
    for _, rows in t.batches(150, len(split.x), 64, drop_last=True):
        trainer.train_step(rows)
    lost = sum(trainer.lost) / len(trainer.lost)
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(lost=lost, accuracy=accuracy)
    conclude(t, fault=lost > 0.5, reached=accuracy > 0.48, harms=False)


@ninth.silent("clipped while scaled", "gradients are clipped before they are unscaled")
def clipped_while_scaled(t: Training) -> None:
    """``scaler.scale(loss).backward()``, ``clip_grad_norm_``, and no ``unscale_``.

    Source: github.com/milesial/Pytorch-UNet/issues/468, pytorch/examples/issues/1196,
    rwth-i6/returnn/issues/1590 (the limit is in effect smaller by a factor of 65
    thousand), Lightning-AI/pytorch-lightning/issues/9694.
    Visible: gradients of each step have a norm of 1/1024 of the limit, whatever the
    loss, and the text is guessed worse than by the twin.
    """
    stream = text()[:40000]
    config = {"clip": 1.0, "rate": 0.5, "scale": 1024.0, "length": 16}
    model = CharacterModel(N_CHARACTERS, 48, nn.GRU)
    optimizer = SGD(model.parameters(), lr=config["rate"], momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=config["scale"])
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    norms, losses = [], []
    for _ in t.steps(200):
        at = t.draw(len(stream) - 30, 16)
        x, y = windows(stream, at, int(config["length"]))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(x).float(), y)
        scaler.scale(loss).backward()
        if not t.sick:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
        scaler.step(optimizer)
        scaler.update()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in grads]).norm()))
        losses.append(float(loss.detach()))
    begin, end = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    t.note(begin=begin, end=end, norm=norms[-1])
    conclude(t, fault=max(norms) < 0.01, reached=end < 0.7 * begin)


class Classifier(nn.Module):
    """A trunk that was trained before, and a head."""

    def __init__(self, trunk: Residual, n_classes: int) -> None:
        super().__init__()
        self.features = trunk
        self.features.head = nn.Identity()  # type: ignore[assignment]
        self.classifier = nn.Linear(32, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features.eval()(x))


@ninth.silent("misspelt freeze", "require_grad = False, without its s: nothing freezes")
def frozen_by_a_misspelt_name(t: Training) -> None:
    """``param.require_grad = False`` makes an attribute that nobody reads.

    Source: github.com/udacity/deep-learning-v2-pytorch/issues/12,
    SvenBecker/vscode-pytorch/issues/8 ("PyTorch does not complain about it and keeps
    all params trainable").
    Visible: weights of the trunk change, which was to be kept.
    """
    split = digits()
    trunk = Residual()
    pretrain(trunk, split, 120)
    model = Classifier(trunk, 2)
    is_even = (split.y % 2, split.y_val % 2)
    for param in model.features.parameters():
        if t.sick:
            param.require_grad = False  # type: ignore[attr-defined]
        else:
            param.requires_grad = False
    before = trunk.stem.weight.detach().clone()
    chosen = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = AdamW(chosen, lr=5e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(120, len(split.x), 32):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), is_even[0][rows]).backward()
        optimizer.step()
    moved = float((trunk.stem.weight.detach() - before).abs().max())
    accuracy = held_out(model, split.x_val, is_even[1])
    t.note(moved=moved, accuracy=accuracy)
    conclude(t, fault=moved > 0, reached=accuracy > 0.88, harms=False)


def adjust_learning_rate(
    optimizer: Optimizer, step: int, total: int, base: float, *, all_groups: bool
) -> None:
    """Poly decay by hand, as segmentation code has it."""
    rate = base * (1 - step / total) ** 0.9
    optimizer.param_groups[0]["lr"] = rate
    if all_groups:
        for group in optimizer.param_groups[1:]:
            group["lr"] = 10 * rate


@ninth.silent(
    "group without schedule", "the schedule sets the rate of the first group alone"
)
def schedule_of_the_first_group(t: Training) -> None:
    """``optimizer.param_groups[0]["lr"] = lr``; the head's group keeps its rate.

    Source: github.com/speedinghzl/pytorch-segmentation-toolbox/issues/12 ("why U only
    set optimizer.param_groups[0]"), AllanYiin/trident/pull/24.
    Visible: at the end the first group's rate is nearly 0, the second's what it was.
    """
    split = digits()
    model = nn.Sequential(mlp([64, 64, 32]), nn.ReLU(), nn.Linear(32, 10))
    base = 0.02
    optimizer = SGD(
        [
            {"params": model[0].parameters(), "lr": base},
            {"params": model[2].parameters(), "lr": 10 * base},
        ],
        lr=base,
        momentum=0.9,
        weight_decay=5e-4,
    )
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for step, rows in t.batches(300, len(split.x), 32):
        adjust_learning_rate(optimizer, step, 300, base, all_groups=not t.sick)
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    rates = [group["lr"] for group in optimizer.param_groups]
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(first=rates[0], second=rates[1], accuracy=accuracy)
    conclude(t, fault=rates[1] > 100 * rates[0], reached=accuracy > 0.9, harms=False)


class Critic(nn.Module):
    """Whether an image is real."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp([64, 48, 1], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@ninth.silent(
    "gradients of another loss",
    "the critic keeps the gradients of the generator's loss",
)
def critic_keeps_gradients(t: Training) -> None:
    """``d_opt.zero_grad()`` stands after ``d_opt.step()``, before the generator's turn.

    What the generator's backward leaves in the critic is added to its next step.
    Source: github.com/Lightning-AI/pytorch-lightning/issues/557 and 591 (the
    discriminator accumulates gradients of both phases), leffff/FlowModels/
    issues/3, Project-MONAI/GenerativeModels/issues/102.
    Visible: the gradient that the critic steps by is not that of its own loss.
    """
    split = digits()
    generator, critic = mlp([8, 64, 64]), Critic()
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    g_opt = Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    d_opt = Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(32, 1), torch.zeros(32, 1)
    t.watch(both, criterion)
    off = []
    for _, rows in t.batches(500, len(split.x), 32, drop_last=True):
        made = generator(torch.randn(32, 8)).sigmoid()
        if not t.sick:
            d_opt.zero_grad()
        d_loss = criterion(critic(split.x[rows]), real)
        d_loss = d_loss + criterion(critic(made.detach()), fake)
        weight = critic.body[0].weight
        (own,) = torch.autograd.grad(d_loss, weight, retain_graph=True)
        d_loss.backward()
        off.append(float((weight.grad - own).norm() / own.norm()))
        d_opt.step()
        if t.sick:
            d_opt.zero_grad()

        g_opt.zero_grad()
        g_loss = criterion(critic(made), real)
        g_loss.backward()
        g_opt.step()
    with torch.no_grad():
        made = generator(torch.randn(400, 8)).sigmoid()
        gap = float((made.mean(0) - split.x.mean(0)).abs().mean())
    share = sum(off[10:]) / len(off[10:])
    t.note(off=share, gap=gap)
    conclude(t, fault=share > 0.1, reached=gap < 0.15, harms=False)


def layer_rates(model: nn.Sequential, base: float, *, upside_down: bool) -> list[dict]:
    """Smaller rates for what was learned before: each layer half of the next one."""
    layers = [layer for layer in model if any(True for _ in layer.parameters())]
    n = len(layers)
    return [
        {
            "params": layer.parameters(),
            "lr": base * 0.5 ** (i if upside_down else n - 1 - i),
        }
        for i, layer in enumerate(layers)
    ]


@ninth.silent("rates of layers", "the rates of layers fall towards the head, not away")
def layer_decay_upside_down(t: Training) -> None:
    """``lr * decay ** depth``, where depth is counted from the input.

    Source: github.com/huggingface/pytorch-image-models/issues/2691 (scales of layers
    that do not fit); Howard and Ruder, 2018: the last layer has the largest rate.
    Visible: the new head moves less than the first layer, and has a rate of
    an eighth of the first layer's.
    """
    split = digits()
    model = cnn()
    pretrain(model, split, 150)
    model[-1] = nn.Linear(64, 10)
    few = split.inputs(lambda x: 0.5 * x + 0.2).take(torch.arange(100))
    rates = layer_rates(model, 5e-3, upside_down=t.sick)
    optimizer = Adam(rates)
    schedule = LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(step / 80 * 3.14)))
    first, head = (model[i].weight.detach().clone() for i in (1, -1))
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(80, len(few.x), 20):
        optimizer.zero_grad()
        criterion(model(few.x[rows]), few.y[rows]).backward()
        optimizer.step()
        schedule.step()
    by_first = float((model[1].weight.detach() - first).abs().mean())
    by_head = float((model[-1].weight.detach() - head).abs().mean())
    accuracy = held_out(model, few.x_val, few.y_val)
    t.note(by_first=by_first, by_head=by_head, accuracy=accuracy)
    conclude(t, fault=by_first > by_head, reached=accuracy > 0.88, harms=False)
