"""Numbers that are too coarse for what they hold."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Adam

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import digits, parted
from benchmarks.detection.kit.harm import conclude, in_evaluation, right
from benchmarks.detection.kit.loops import pretrain
from benchmarks.detection.kit.models import mlp
from benchmarks.detection.kit.training import Training


@tenth.silent(
    Cause(
        r"float32|precision|resolution|round(ed|ing)?\b|coarse|float64|double|mantissa"
        r"|2\^24|16777216|significant (digits|bits)|(few|only|coarse) .*(distinct"
        r"|different) (values|phases)|quanti[sz]",
        r"float64|double|before|subtract|offset|int64|relative",
    ),
    "seconds since 1970 do not fit into float32",
)
def seconds_in_float32(t: Training) -> None:
    """Times are cast to float32 first, and the phase is taken afterwards.

    Source: github.com/open-mmlab/mmdetection3d/issues/296 ("timestamp value loses its
    precision when cast"), facebookresearch/fairo/pull/537.
    Visible: times are wrong by up to 64 seconds, a fifth of a cycle; much less of the
    load is explained.
    """
    luck = torch.Generator().manual_seed(4)
    seconds = 1_700_000_000 + torch.randint(2_600_000, (2000,), generator=luck)
    angle = 2 * math.pi * (seconds % 300).double() / 300
    load = angle.sin() + 0.5 * (2 * angle).cos()
    load = load + 0.2 * torch.randn(2000, generator=luck, dtype=torch.float64)
    y = load.float()[:, None]

    def features(times: Tensor) -> Tensor:
        times = times.to(torch.float32 if t.sick else torch.float64)
        phase = 2 * math.pi * torch.remainder(times, 300) / 300
        return torch.stack([phase.sin(), phase.cos()], dim=1).float()

    split = parted(features(seconds), y)
    model = mlp([2, 32, 32, 1])
    optimizer = Adam(model.parameters(), lr=5e-3)
    criterion = nn.MSELoss()
    t.watch(model, criterion)
    for step, idx in t.batches(250, len(split.x), 64):
        optimizer.zero_grad()
        loss = criterion(model(split.x[idx]), split.y[idx])
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            t.evaluate(model, criterion, split.x_val, split.y_val)
    out = in_evaluation(model, lambda: model(split.x_val))
    explained = 1 - float((out - split.y_val).pow(2).mean() / split.y_val.var())
    exact = torch.stack([angle.sin(), angle.cos()], dim=1).float()
    wrong = float((features(seconds) - exact).abs().max())
    t.note(explained=explained, wrong=wrong)
    conclude(t, fault=wrong > 0.3, reached=explained > 0.85)


@tenth.silent(
    Cause(
        r"bfloat16|bf16|half precision|precision|round(ed|ing|s)?\b|(updates?|steps?) "
        r".*(lost|vanish|too small|swallow|no effect|below)|(weights?|parameters?) .*"
        r"(do(es)? not (change|move)|never (change|move)|unchanged|stand still|stay)",
        r"float32|fp32|full precision|master|autocast|stochastic round|Kahan|precision",
    ),
    "weights in bfloat16 are too coarse for small steps",
)
def steps_lost_in_bfloat16(t: Training) -> None:
    """A trained model is cast with ``model.bfloat16()`` and fine-tuned by small steps.

    Source: github.com/workofart/ml-by-hand/pull/85 ("0 / 768 moved"),
    pytorch/ao/pull/1124, kyegomez/SingLoRA/issues/6.
    Visible: most weights are what they were, and the new classes are not learned.
    """
    split = digits()
    model = mlp([64, 128, 10])
    known = split.take(torch.nonzero(split.y < 7).flatten())
    pretrain(model, known, 150)
    dtype = torch.bfloat16 if t.sick else torch.float32
    model = model.to(dtype)
    before = [p.detach().clone() for p in model.parameters()]

    optimizer = Adam(model.parameters(), lr=2e-4)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion)
    for _, idx in t.batches(400, len(split.x), 32):
        logits = model(split.x[idx].to(dtype))
        loss = criterion(logits.float(), split.y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pairs = list(zip(before, model.parameters(), strict=True))
    stood = sum(int((a == b).sum()) for a, b in pairs) / sum(a.numel() for a in before)
    logits = in_evaluation(model, lambda: model(split.x_val.to(dtype)))
    accuracy = right(logits, split.y_val)
    t.note(accuracy=accuracy, stood=stood)
    conclude(t, fault=stood > 0.5, reached=accuracy > 0.74, harms=False)
