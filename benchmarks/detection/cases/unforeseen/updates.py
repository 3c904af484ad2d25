"""What the optimizer is given, and what moves though it must not."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import N_CHARACTERS, digits, lines
from benchmarks.detection.kit.harm import conclude, held_out
from benchmarks.detection.kit.loops import pretrain
from benchmarks.detection.kit.models import Lines, cnn, mlp
from benchmarks.detection.kit.training import Training


@tenth.silent(
    Cause(
        r"(not|no longer|never|missing|absent).{0,20}(in|to|of|by) (the|any) optimizer"
        r"|NotInOptimizer|optimizer .*(not|never|lacks?|misses|without|leaves out)"
        r"|(thaw|unfr[eo]ze)|requires_grad.*(but|yet|though).*(not|never)",
        r"add_param_group|optimizer|after (the )?(thaw|unfreez)",
    ),
    "layers are thawed, but the optimizer has not got them",
)
def thawed_after_the_optimizer(t: Training) -> None:
    """The head first, then all; the optimizer was made of what was not frozen.

    Source: github.com/fastai/fastai/issues/2133 ("the optimizer needs to be created
    again because at creation, it only takes trainable parameters"),
    github.com/skorch-dev/skorch/issues/261.
    Visible: after the thawing the weights of the backbone are what they were.
    """
    split = digits()
    parity = replace(split, y=split.y % 2, y_val=split.y_val % 2)
    backbone = nn.Sequential(mlp([64, 48, 16]), nn.ReLU())
    pretrain(nn.Sequential(backbone, nn.Linear(16, 2)), parity, 150)
    model = nn.Sequential(backbone, nn.Linear(16, 10))
    for param in backbone.parameters():
        param.requires_grad = False
    optimizer = Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=optimizer)
    before = [p.detach().clone() for p in backbone.parameters()]
    for step, rows in t.batches(260, len(split.x), 64):
        if step == 80:
            for param in backbone.parameters():
                param.requires_grad = True
            if not t.sick:
                optimizer.add_param_group({"params": backbone.parameters()})
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    stands = all(map(torch.equal, before, backbone.parameters()))
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=stands, reached=accuracy > 0.85)


@tenth.silent(
    Cause(
        r"(weight )?decay.*(row|frozen|embedding|zero(ed)? gradient|without (a )?grad"
        r"|grad\w* (is|are|of) (zero|0)|masked)|(row|frozen|embedding|masked|gradient "
        r"(is|of) (zero|0)).*(decay|shr[aiu]nk)",
        r"weight_decay|decay|group|SGD|copy back|restore",
    ),
    "rows whose gradient is zeroed are shrunk by the decay",
)
def kept_rows_decay(t: Training) -> None:
    """Vectors of known characters are kept by zeroing their gradient; AdamW decays.

    Source: github.com/OPTML-Group/Unlearn-Saliency/issues/32 ("Weight decay changes
    the masked parameters"),
    discuss.pytorch.org/t/why-there-is-still-a-small-change-in-frozen-layer-parameters/153740.
    Visible: the rows that must stay are other ones after the first step.
    """
    split = lines(24)
    known = Lines(N_CHARACTERS, 5)
    pretrain(known, split, 60)
    model = Lines(N_CHARACTERS, 5)
    keep = torch.zeros(N_CHARACTERS, 1)
    keep[: N_CHARACTERS // 2] = 1.0
    vectors = model.embedding.weight
    with torch.no_grad():
        vectors.lerp_(known.embedding.weight, keep.expand_as(vectors))
    others = [p for n, p in model.named_parameters() if not n.startswith("embedding")]
    if t.sick:
        optimizer = AdamW(model.parameters(), lr=5e-3, weight_decay=0.2)
    else:
        groups: list[dict[str, Any]] = [
            {"params": [vectors], "weight_decay": 0.0},
            {"params": others},
        ]
        optimizer = AdamW(groups, lr=5e-3, weight_decay=0.2)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=optimizer)
    before = vectors.detach().clone()
    for _, rows in t.batches(200, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        if vectors.grad is not None:
            vectors.grad *= 1 - keep
        optimizer.step()
    moved = ((vectors.detach() - before).abs() * keep).max()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(moved=float(moved), accuracy=accuracy)
    conclude(t, fault=moved > 0, reached=accuracy > 0.42, harms=False)


@tenth.silent(
    Cause(
        r"prun|mask\w* .*(once|again|lost|not (re)?appl|undone|overwrit|after)"
        r"|spars\w*.*(lost|fell|falls|gone|shr)|(zero|0)s?\b.*(weights?|entries).*"
        r"(again|back|grow|fill|become|became|no longer)"
        r"|weights? .*(set to|were|was|exactly) (zero|0)\b.*(again|chang|updat"
        r"|nonzero)",
        r"mask|prune|after (each|every) step|reappl|hook",
    ),
    "weights that were pruned grow again",
)
def pruned_weights_grow_again(t: Training) -> None:
    """Four fifths of the weights are set to zero once, then the network is tuned.

    Source: github.com/jacobgil/pytorch-pruning/issues/41 ("after stepping, it will be
    no longer 0"), github.com/he-y/filter-pruning-geometric-median/issues/47.
    Visible: of the pruned weights most are not zero after one step.
    """
    split = digits()
    model = mlp([64, 96, 64, 10])
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=optimizer)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    masks: list[Tensor] = []

    @torch.no_grad()
    def apply_masks() -> None:
        for layer, mask in zip(layers, masks, strict=True):
            layer.weight *= mask

    for step, rows in t.batches(240, len(split.x), 64):
        if step == 120:
            for layer in layers:
                size = layer.weight.detach().abs()
                masks.append((size > size.quantile(0.8)).float())
            apply_masks()
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        if masks and not t.sick:
            apply_masks()
    alive = [
        float((layer.weight[mask == 0] != 0).float().mean())
        for layer, mask in zip(layers, masks, strict=True)
    ]
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(alive=alive[1], accuracy=accuracy)
    conclude(t, fault=min(alive) > 0.1, reached=accuracy > 0.9, harms=False)


@tenth.silent(
    Cause(
        r"LambdaLR|lr_lambda|factor|multipl\w* .*(rate|base|initial)|rate .*(multipl"
        r"|squared|twice|times (the )?(base|initial|itself))"
        r"|(rate|lr) .*(below|less|smaller|lower|not) .*(than )?(the )?(base|initial"
        r"|given"
        r"|meant|set|asked)",
        r"factor|multipl|lambda|divid|relative",
    ),
    "LambdaLR is given the rate itself, not a factor",
)
def lambda_gives_the_rate(t: Training) -> None:
    """The function of ``LambdaLR`` returns a rate, which multiplies the rate.

    Source: github.com/lhoyer/MIC/issues/60 ("this causes the base lr to be multiplied
    twice"), github.com/pytorch/pytorch/issues/78917.
    Visible: at the first step the rate is 0.0225 instead of 0.15.
    """
    split = digits()
    model = mlp([64, 64, 10])
    base_lr, n_steps = 0.15, 240
    optimizer = SGD(model.parameters(), lr=base_lr, momentum=0.5)

    def cosine(step: int) -> float:
        share = 0.5 * (1 + math.cos(math.pi * step / n_steps))
        return base_lr * share if t.sick else share

    scheduler = LambdaLR(optimizer, lr_lambda=cosine)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=optimizer)
    rates = []
    for _, rows in t.batches(n_steps, len(split.x), 64):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        scheduler.step()
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(rate=max(rates), accuracy=accuracy)
    conclude(t, fault=max(rates) < base_lr / 2, reached=accuracy > 0.89)


@tenth.silent(
    Cause(
        r"best\b.*(overwrit|forgot|lost|reset|worse|lower|replac|not (restored|saved"
        r"|loaded|the best))|(resum|restart)\w*.*best|(restor|load|final|kept"
        r"|saved)\w* "
        r".*(worse|lower|not the best|below the best)",
        r"best|checkpoint|save|restore",
    ),
    "the best score so far is forgotten when the run is resumed",
)
def best_score_forgotten(t: Training) -> None:
    """After a crash ``best_acc`` begins at 0, and a worse model becomes the best.

    Source: github.com/facebookresearch/ConvNeXt/issues/94,
    github.com/open-mmlab/mmfewshot/issues/30, facebookresearch/fairchem/pull/349.
    Visible: the model that is kept scores less than one that was seen.
    """
    noise = torch.Generator().manual_seed(3)
    split = digits().take(torch.arange(320))
    wrong = torch.rand(320, generator=noise) < 0.35
    labels = torch.where(wrong, torch.randint(10, (320,), generator=noise), split.y)
    model = mlp([64, 192, 10])
    optimizer = Adam(model.parameters(), lr=4e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=optimizer)
    best_acc, scores = 0.0, []
    checkpoint: dict[str, object] = {}
    best = copy.deepcopy(model.state_dict())
    for step, rows in t.batches(240, 320, 32):
        if step == 150:
            model.load_state_dict(checkpoint["model"])  # type: ignore[arg-type]
            optimizer.load_state_dict(checkpoint["optimizer"])  # type: ignore[arg-type]
            best_acc = 0.0 if t.sick else float(str(checkpoint["best_acc"]))
        optimizer.zero_grad()
        criterion(model(split.x[rows]), labels[rows]).backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            _, outputs = t.evaluate(model, criterion, split.x_val, split.y_val)
            acc = float((outputs.argmax(1) == split.y_val).float().mean())
            scores.append(acc)
            if acc > best_acc:
                best_acc, best = acc, copy.deepcopy(model.state_dict())
            checkpoint = {
                "model": copy.deepcopy(model.state_dict()),
                "optimizer": copy.deepcopy(optimizer.state_dict()),
                "best_acc": best_acc,
            }
    model.load_state_dict(best)
    kept = held_out(model, split.x_val, split.y_val)
    t.note(kept=kept, best=max(scores))
    is_best = kept >= max(scores) - 1e-6
    conclude(t, fault=not is_best, reached=is_best and kept > 0.7)


@tenth.silent(
    Cause(
        r"(replica|rank|worker|process|copies|copy|device)s?\b.*(differ|diverg|other"
        r"|not "
        r"the same|apart|unequal|own|broadcast)|(differ|unequal|other)\w* .*(replica"
        r"|rank"
        r"|worker)|broadcast|gradients? .*(not|other than|differ).*(own|this model"
        r"|loss)"
        r"|gradient\w* .*(another|other) (model|weights|copy)",
        r"broadcast|same (seed|weights)|load_state_dict|DistributedDataParallel|DDP",
    ),
    "the replicas begin with other weights",
)
def replicas_begin_apart(t: Training) -> None:
    """Two workers average their gradients, but each has made its own weights.

    Without DDP nobody broadcasts those of rank 0.
    Source: pytorch.org/tutorials/intermediate/dist_tuto.html, whose hand-written
    averaging of gradients needs that all ranks seed alike.
    Visible: after the last step the replicas' weights are not the same.
    """
    split = digits()
    replicas = []
    for rank in range(2):
        torch.manual_seed(t.seed + (rank if t.sick else 0))
        replicas.append(cnn(4))
    optimizers = [SGD(m.parameters(), lr=0.05, momentum=0.9) for m in replicas]
    criterion = nn.CrossEntropyLoss()
    model = replicas[0]
    t.watch(model, criterion, optimizer=optimizers[0])
    for _, rows in t.batches(220, len(split.x), 64, drop_last=True):
        for rank, replica in enumerate(replicas):
            shard = rows[rank::2]
            optimizers[rank].zero_grad()
            criterion(replica(split.x[shard]), split.y[shard]).backward()
        for pair in zip(*(m.parameters() for m in replicas), strict=True):
            mean = torch.stack([p.grad for p in pair if p.grad is not None]).mean(0)
            for param in pair:
                param.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    apart = max(
        float((a - b).detach().abs().max())
        for a, b in zip(*(m.parameters() for m in replicas), strict=True)
    )
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(apart=apart, accuracy=accuracy)
    conclude(t, fault=apart > 1e-3, reached=accuracy > 0.9, harms=False)
