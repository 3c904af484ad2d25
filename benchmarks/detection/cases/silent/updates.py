"""Optimizers, micro-batches, schedules, clipping, resumption."""

from __future__ import annotations

import copy
import io
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from benchmarks.detection.kit.case import sixth
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    digits,
    lines_of_code,
    padded,
    text,
    windows,
)
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.loops import descend, mean, pretrain
from benchmarks.detection.kit.models import CharacterModel, cnn, mlp
from benchmarks.detection.kit.training import Training


@sixth.silent("decay of scales", "weight decay also on scales of normalizations")
def scales_are_decayed(t: Training) -> None:
    """Groups are made by ``"bias" in name``: biases are exempt, LayerNorm's scales not.

    Source: github.com/karpathy/minGPT's configure_optimizers and
    github.com/huggingface/transformers' get_parameter_names, which exempt both; a list
    of names as "LayerNorm.weight" matches nothing in other models.
    Visible: after 300 steps scales are below 0.9 on average; the twin's stay near 1.
    """
    split = digits()
    model = mlp([64, 64, 64, 10], nn.GELU, norm=nn.LayerNorm)
    exempt = [
        p
        for n, p in model.named_parameters()
        if "bias" in n or (not t.sick and p.ndim < 2)
    ]
    others = [p for p in model.parameters() if not any(p is e for e in exempt)]
    groups = [
        {"params": others, "weight_decay": 0.5},
        {"params": exempt, "weight_decay": 0.0},
    ]
    optimizer, criterion = AdamW(groups, 3e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(300, len(split.x), 32):
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
    scales = [m.weight for m in model if isinstance(m, nn.LayerNorm)]
    scale = float(torch.cat(scales).detach().mean())
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(scale=scale, accuracy=accuracy)
    conclude(t, fault=scale < 0.9, reached=accuracy > 0.93, harms=False)


@sixth.silent(
    "frozen at random", "the loop that freezes runs after the head was replaced"
)
def new_head_is_frozen(t: Training) -> None:
    """First the new head, then all of ``model.parameters()`` is frozen.

    Only the last block is thawed again.
    Source: PyTorch's transfer-learning tutorial freezes first ("parameters of newly
    constructed modules have requires_grad=True"); threads with the other order.
    Visible: the head is as it was drawn.
    """
    split = digits().inputs(lambda x: 1 - x)
    model = cnn()
    pretrain(model, digits(), 100)
    model[-1] = nn.Linear(64, 10)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in (model[7], *([] if t.sick else [model[-1]])):
        layer.requires_grad_(True)
    drawn = model[-1].weight.detach().clone()
    optimizer = Adam([p for p in model.parameters() if p.requires_grad], 2e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(200, len(split.x), 32):
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(
        t,
        fault=torch.equal(drawn, model[-1].weight),
        reached=accuracy > 0.7,
        harms=False,
    )


def answers() -> tuple[Tensor, Tensor]:
    """Lines as rows of tokens, of lengths from 8 to 40."""
    rows = padded([line for line in lines_of_code() if len(line) > 7], 40)
    return rows[:-200], rows[-200:]


@sixth.silent(
    "accumulation", "micro-batches count alike, however many tokens they have"
)
def mean_of_means(t: Training) -> None:
    """Each micro-batch's mean is divided by their number: short answers weigh more.

    Source: unsloth.ai/blog/gradient and github.com/huggingface/transformers/pull/34191;
    github.com/ml-explore/mlx-lm/pull/1413, github.com/huggingface/trl/issues/4719.
    Visible: the accumulated gradient is 5 % off that of the mean over all tokens.
    """
    known, new = answers()
    model = CharacterModel(N_CHARACTERS, 32, nn.GRU)
    optimizer = Adam(model.parameters(), 5e-3)
    t.watch(model)
    off = 0.0
    for step in t.steps(120):
        chosen = known[t.draw(len(known), 16)]
        parts = chosen[(chosen != 0).sum(1).argsort()].split(4)
        n_all = int((chosen[:, 1:] != 0).sum())
        optimizer.zero_grad()
        for part in parts:
            n = int((part[:, 1:] != 0).sum())
            loss = functional.cross_entropy(
                model(part[:, :-1]), part[:, 1:].masked_fill(part[:, 1:] == 0, -100)
            )
            share = 1 / len(parts) if t.sick else n / n_all
            (loss * share).backward()
        if step == 119:
            off = _off(model, chosen)
        optimizer.step()
    loss = in_evaluation(
        model,
        lambda: functional.cross_entropy(
            model(new[:, :-1]), new[:, 1:].masked_fill(new[:, 1:] == 0, -100)
        ),
    )
    t.note(loss=float(loss), off=off)
    conclude(t, fault=off > 0.05, reached=loss < 2.9, harms=False)


def _off(model: nn.Module, chosen: Tensor) -> float:
    """How far the gradients are from those of the mean over all tokens."""
    ours = torch.cat([p.grad.flatten() for p in model.parameters()])
    labels = chosen[:, 1:].masked_fill(chosen[:, 1:] == 0, -100)
    loss = functional.cross_entropy(model(chosen[:, :-1]), labels)
    true = torch.autograd.grad(loss, list(model.parameters()))
    whole = torch.cat([g.flatten() for g in true])
    return float((ours - whole).norm() / whole.norm())


@sixth.silent(
    "accumulation", "the loss of micro-batches is not divided by their number"
)
def micro_batches_add_up(t: Training) -> None:
    """``loss.backward()`` for eight micro-batches, without ``loss / 8``.

    Source: github.com/verl-project/verl/pull/3332.
    Visible: the gradient is eight times that of the whole batch.
    """
    split = digits()
    model = mlp([64, 64, 10])
    optimizer, criterion = SGD(model.parameters(), 0.05), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    times = 1.0
    for _, rows in t.batches(160, len(split.x), 128, drop_last=True):
        optimizer.zero_grad()
        parts = rows.split(16)
        for part in parts:
            loss = criterion(model(split.x[part]), split.y[part])
            (loss if t.sick else loss / len(parts)).backward()
        ours = model[0].weight.grad
        whole = criterion(model(split.x[rows]), split.y[rows])
        (true,) = torch.autograd.grad(whole, model[0].weight)
        times = float(ours.norm() / true.norm())
        optimizer.step()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(times=times, accuracy=accuracy)
    conclude(t, fault=times > 4, reached=accuracy > 0.75, harms=False)


@sixth.silent(
    "clipping without effect", "clip_grad_norm_ is given a generator that is used up"
)
def clips_an_exhausted_generator(t: Training) -> None:
    """``params = model.parameters()`` is read by the optimizer, then given to clipping.

    Source: github.com/pytorch/pytorch/issues/148259,
    github.com/PixArt-alpha/PixArt-alpha/pull/160, pytorch/torchtitan/pull/1258.
    Visible: after "clipping" the norm is above the limit.
    """
    stream = text()
    model = CharacterModel(N_CHARACTERS, 32, nn.RNN)
    parameters = model.parameters()
    optimizer = SGD(parameters if t.sick else list(model.parameters()), 1.0)
    t.watch(model)
    norms, losses = [], []
    for _ in t.steps(150):
        x, y = windows(stream, t.draw(len(stream) - 40, 24), 32)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters if t.sick else model.parameters(), 0.25)
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        norms.append(float(norm))
        optimizer.step()
        losses.append(float(loss.detach()))
    last = mean(losses[-20:])
    t.note(norm=max(norms), last=last)
    conclude(t, fault=max(norms) > 0.26, reached=last < 3.3, harms=False)


def scheduled(t: Training, kind: str) -> None:
    """Five epochs of the digits under a schedule that is stepped as *kind* says."""
    split = digits()
    model = cnn()
    criterion = nn.CrossEntropyLoss()
    optimizer = SGD(model.parameters(), 0.1, 0.9)
    per_epoch, epochs = len(split.x) // 32, 5
    total = per_epoch * epochs
    every = 1
    if kind == "one cycle":
        schedule = OneCycleLR(optimizer, 0.1, epochs=epochs, steps_per_epoch=per_epoch)
        every = per_epoch if t.sick else 1
    elif kind == "warm-up":
        warm = 5000 if t.sick else 50
        schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm))
    else:
        schedule = CosineAnnealingLR(optimizer, total)
    t.watch(model, criterion)
    rates = []
    n_processes = 4 if t.sick and kind == "processes" else 1
    for step, rows in t.batches(total, len(split.x), 32, drop_last=True):
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
        rates.append(optimizer.param_groups[0]["lr"])
        if (step + 1) % every == 0:
            for _ in range(n_processes):
                schedule.step()
    accuracy = held_out(model, split.x_val, split.y_val)
    highest, late = max(rates), mean(rates[3 * total // 8 : 5 * total // 8])
    t.note(accuracy=accuracy, highest=highest, late=late)
    if kind == "processes":
        rises = any(b > a for a, b in itertools.pairwise(rates))
        conclude(t, fault=rises, reached=accuracy > 0.9, harms=False)
    else:
        conclude(t, fault=highest < 0.02, reached=accuracy > 0.93)


@sixth.silent("schedule", "OneCycleLR counts batches and is stepped once an epoch")
def one_cycle_of_epochs(t: Training) -> None:
    """``scheduler.step()`` stands at the end of the epoch.

    Source: github.com/pytorch/pytorch/issues/65417, ageron/handson-mlp/issues/28,
    ultralytics/yolov5/issues/7485.
    Visible: of five cycles' worth the rate never comes to a fifth of its maximum.
    """
    scheduled(t, "one cycle")


@sixth.silent("schedule", "a warm-up of 5000 steps for a training of 210")
def warms_up_to_the_end(t: Training) -> None:
    """The warm-up of a large model's recipe is longer than this training.

    Source: forum threads on fine-tuning with num_warmup_steps=10000.
    Visible: the rate never comes to a fifth of its maximum.
    """
    scheduled(t, "warm-up")


@sixth.silent("schedule", "each of four processes steps the schedule")
def schedule_of_all_processes(t: Training) -> None:
    """A prepared schedule is stepped once per process: it runs four times as fast.

    Source: github.com/huggingface/accelerate/issues/2142, /1398 and /2926,
    github.com/ContextualAI/HALOs/pull/33 ("increase the LR again after reaching 0").
    Visible: a cosine that should fall to zero at the end rises again.
    """
    scheduled(t, "processes")


@sixth.silent(
    "optimizer state", "the optimizer begins anew when the training is resumed"
)
def resumed_without_moments(t: Training) -> None:
    """The checkpoint holds the weights alone.

    Source: github.com/Lightning-AI/pytorch-lightning/issues/2613 ("serious convergence
    issues"), github.com/NVlabs/stylegan2-ada-pytorch/issues/108.
    Visible: after resumption Adam's second moments are below a tenth of what they were.
    """
    split = digits()
    model = mlp([64, 64, 10])
    optimizer, criterion = Adam(model.parameters(), 5e-3), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    losses: list[float] = []
    before = after = 0.0
    for step, rows in t.batches(240, len(split.x), 32):
        if step == 160:
            before = _moments(optimizer)
            file = io.BytesIO()
            torch.save((model.state_dict(), optimizer.state_dict()), file)
            file.seek(0)
            weights, state = torch.load(file)
            model.load_state_dict(weights)
            optimizer = Adam(model.parameters(), 5e-3)
            if not t.sick:
                optimizer.load_state_dict(state)
        losses.append(
            descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
        )
        if step == 160:
            after = _moments(optimizer)
    accuracy = held_out(model, split.x_val, split.y_val)
    rose = mean(losses[161:171]) / mean(losses[150:160])
    t.note(accuracy=accuracy, rose=rose, left=after / before)
    conclude(t, fault=after < 0.1 * before, reached=accuracy > 0.9, harms=False)


def _moments(optimizer: Adam) -> float:
    return sum(float(s["exp_avg_sq"].sum()) for s in optimizer.state.values())


@sixth.silent(
    "optimizer of another's weights", "the generator's optimizer has the critic, too"
)
def generator_trains_its_judge(t: Training) -> None:
    """``chain(G.parameters(), D.parameters())`` for the generator's step.

    Source: forum threads on two optimizers of a GAN, and which parameters each holds.
    Visible: the generator's step changes the discriminator.
    """
    split = digits()
    generator, judge = mlp([8, 64, 64]), mlp([64, 64, 1])
    both = nn.ModuleDict({"generator": generator, "judge": judge})
    ours = both.parameters() if t.sick else generator.parameters()
    of_generator, of_judge = Adam(ours, 2e-3), Adam(judge.parameters(), 1e-3)
    t.watch(both)
    moved = 0.0
    for _, rows in t.batches(600, len(split.x), 64, drop_last=True):
        fake = generator(torch.randn(64, 8)).sigmoid()
        told = torch.cat((judge(split.x[rows]), judge(fake.detach())))
        truth = torch.cat((torch.ones(64, 1), torch.zeros(64, 1)))
        descend(of_judge, functional.binary_cross_entropy_with_logits(told, truth))
        before = judge[0].weight.detach().clone()
        loss = functional.binary_cross_entropy_with_logits(
            judge(fake), torch.ones(64, 1)
        )
        descend(of_generator, loss)
        moved = max(moved, float((judge[0].weight.detach() - before).abs().max()))
    with torch.no_grad():
        made = generator(torch.randn(300, 8)).sigmoid()
        off = float((made.mean(0) - split.x.mean(0)).abs().mean())
    t.note(moved=moved, off=off)
    conclude(t, fault=moved > 0, reached=off < 0.35, harms=False)


@sixth.silent(
    "weights made anew", "weights are initialized after the checkpoint was loaded"
)
def initialized_after_loading(t: Training) -> None:
    """``model.apply(init_weights)`` stands below ``load_state_dict``.

    Source: github.com/huggingface/transformers/pull/45079 (post_init overwrites a
    resized head with random weights).
    Visible: no weight is that of the checkpoint; after 40 steps on 100 images of the
    new kind fewer than 80 % are recognized.
    """
    split = digits().inputs(lambda x: x.flip(1)).take(torch.arange(100))
    known = cnn()
    pretrain(known, digits().inputs(lambda x: x.flip(1)), 120)
    model = cnn()
    model.load_state_dict(copy.deepcopy(known.state_dict()))

    def initialize(layer: nn.Module) -> None:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)

    if t.sick:
        model.apply(initialize)
    same = torch.equal(model[1].weight, known[1].weight)
    optimizer, criterion = Adam(model.parameters(), 3e-4), nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, rows in t.batches(40, len(split.x), 20):
        descend(optimizer, criterion(model(split.x[rows]), split.y[rows]))
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=not same, reached=accuracy > 0.9)
