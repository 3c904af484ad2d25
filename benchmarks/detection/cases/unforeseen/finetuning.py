"""Adapters, heads and vocabularies of models that somebody has trained before."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from benchmarks.detection.kit.case import tenth
from benchmarks.detection.kit.causes import Cause
from benchmarks.detection.kit.data import (
    N_CHARACTERS,
    Split,
    digits,
    kinds_of_lines,
    lines,
    parted,
    rows_of,
)
from benchmarks.detection.kit.harm import conclude, held_out, in_evaluation
from benchmarks.detection.kit.loops import pretrain
from benchmarks.detection.kit.models import Lines, mlp
from benchmarks.detection.kit.training import Training


class LoRALinear(nn.Module):
    """A linear layer that is kept, and a product of two small matrices beside it."""

    def __init__(self, base: nn.Linear, r: int = 4, alpha: int = 16) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.zeros(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r
        self.merged = False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        if self.merged:
            return out
        return out + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling

    def reset(self) -> None:
        """Begin as the layer that is kept."""
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B)


def adapted(split: Split) -> tuple[nn.Sequential, list[LoRALinear]]:
    """A network that has learned odd and even, with adapters and a new head."""
    parity = replace(split, y=split.y % 2, y_val=split.y_val % 2)
    body = mlp([64, 64, 24])
    pretrain(nn.Sequential(body, nn.ReLU(), nn.Linear(24, 2)), parity, 120)
    layers = [LoRALinear(m) for m in body if isinstance(m, nn.Linear)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), nn.Linear(24, 10))
    return model, layers


@tenth.silent(
    Cause(
        r"lora|adapter|(weight|matri|parameter)\w*.*(stay|remain|all|both|exactly"
        r"|still|"
        r"are|is) (at )?(zeros?|0)\b|(zero|no|vanish\w*) gradient"
        r"|gradient\w* .*(exactly |always )?(zero|0)\b|never (moves?|changes?|learns?)",
        r"init|random|kaiming|normal|not (both )?zero",
    ),
    "both matrices of the adapters begin at zero and stay there",
)
def adapter_of_zeros(t: Training) -> None:
    """``lora_A`` and ``lora_B`` are both zero: neither has a gradient; the head learns.

    Source: github.com/Guitaricet/relora/issues/18 ("your gradients for A and B would
    be zero all time"), github.com/NovaSky-AI/SkyRL/pull/852,
    github.com/nvidia-cosmos/cosmos-predict2.5/pull/15.
    Visible: after the last step all adapters are zero.
    """
    split = digits()
    model, layers = adapted(split)
    if not t.sick:
        for layer in layers:
            layer.reset()
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=optimizer)
    for _, rows in t.batches(260, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    largest = max(float(layer.lora_B.detach().abs().max()) for layer in layers)
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(largest=largest, accuracy=accuracy)
    conclude(t, fault=largest == 0.0, reached=accuracy > 0.8)


@tenth.silent(
    Cause(
        r"merg|lora|adapter|scal(e|ing)|alpha|(evaluat|validat)\w* .*(other|differ\w*) "
        r"(weights|model|outputs)|weights? .*(chang|writ|replac|jump)\w*.*(outside"
        r"|between"
        r"|without|other than|not by)",
        r"scal|alpha|merge|unmerge",
    ),
    "the adapter is merged without its scale",
)
def merged_without_scale(t: Training) -> None:
    """For validation ``B A`` is added to the weights, but not ``alpha / r`` times.

    Source: github.com/hao-ai-lab/FastVideo/pull/870, huggingface/peft/pull/2489,
    github.com/ml-explore/mlx-examples/issues/622 ("my fine tuning is disappearing
    after fusing").
    Visible: the merged model says something else than the one that was trained.
    """
    split = digits()
    model, layers = adapted(split)
    for layer in layers:
        layer.reset()
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=optimizer)
    apart = 0.0
    accuracy = 0.0
    for step, rows in t.batches(260, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
        if (step + 1) % 65:
            continue
        trained = in_evaluation(model, lambda: model(split.x_val))
        kept = [layer.base.weight.detach().clone() for layer in layers]
        for layer in layers:
            delta = layer.lora_B.detach() @ layer.lora_A.detach()
            layer.base.weight.data += delta if t.sick else delta * layer.scaling
            layer.merged = True
        _, merged = t.evaluate(model, criterion, split.x_val, split.y_val)
        accuracy = float((merged.argmax(1) == split.y_val).float().mean())
        apart = float((merged - trained).abs().mean())
        for layer, weight in zip(layers, kept, strict=True):
            layer.base.weight.data.copy_(weight)
            layer.merged = False
    t.note(apart=apart, accuracy=accuracy)
    conclude(t, fault=apart > 0.1, reached=accuracy > 0.8)


@tenth.silent(
    Cause(
        r"(new|added|special) (token|row|character|word)|(row|token|embedding|vocab)\w*"
        r".*(frozen|freez|never|not (train|chang|updat|learn)|random|initial|stand|stay"
        r"|requires_grad|no gradient)|(frozen|no gradient|requires_grad).*(embedding"
        r"|row)",
        r"modules_to_save|train|requires_grad|thaw|unfreeze|embedding|trainable_token",
    ),
    "new rows of a frozen embedding stay as they were drawn",
)
def new_tokens_stay_random(t: Training) -> None:
    """The vocabulary grows, the embedding is frozen, as all that is not adapted.

    Source: github.com/huggingface/peft/issues/334, /pull/1147 and /pull/2376 ("this is
    typically needed when adding new tokens").
    Visible: after the last step the rows of new tokens are what was drawn.
    """
    split = lines(24)
    known = 70
    old = split.inputs(lambda x: torch.where(x < known, x, 1))
    pretrained = Lines(known, 5)
    pretrain(pretrained, old, 80)
    model = Lines(N_CHARACTERS, 5)
    state = copy.deepcopy(pretrained.state_dict())
    vectors = model.embedding.weight
    with torch.no_grad():
        vectors[:known] = state.pop("embedding.weight")
    model.load_state_dict(state, strict=False)
    if t.sick:
        model.embedding.requires_grad_(False)
    optimizer = Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    criterion = nn.CrossEntropyLoss()
    t.watch(model, criterion, optimizer=optimizer)
    drawn = vectors[known:].detach().clone()
    for _, rows in t.batches(200, len(split.x), 64):
        optimizer.zero_grad()
        criterion(model(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    stay = torch.equal(vectors[known:].detach(), drawn)
    accuracy = held_out(model, split.x_val, split.y_val)
    t.note(accuracy=accuracy)
    conclude(t, fault=stay, reached=accuracy > 0.42, harms=False)


@tenth.silent(
    Cause(
        r"regress|MSE|mean.?square|num_labels|problem_type|squared (error|loss)"
        r"|(loss|output)\w* .*(not|no) .*(classif|entropy|logit)",
        r"num_labels|problem_type|cross.?entropy|BCE|two (labels|outputs)",
    ),
    "one label means regression, and its output is read as a logit",
)
def one_label_is_regression(t: Training) -> None:
    """``num_labels=1`` for two classes: transformers takes the squared error.

    Source: github.com/huggingface/transformers/issues/7496 and /issues/1541 ("if
    config.num_labels == 1 a regression loss is computed"), and
    mosaicml/composer/issues/1018.
    Visible: read as a logit, the output says the same class of nearly all lines.
    """
    from transformers import BertConfig, BertForSequenceClassification

    prose, code = kinds_of_lines()[0][:500], kinds_of_lines()[1][:500]
    x = rows_of([*prose, *code], 24)
    split = parted(x, torch.arange(1000) // 500)
    config = BertConfig(
        vocab_size=N_CHARACTERS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=1,
        problem_type=None if t.sick else "multi_label_classification",
    )
    model = BertForSequenceClassification(config)
    model.train()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    t.watch(model, optimizer=optimizer)
    for _, rows in t.batches(130, len(split.x), 32):
        labels = split.y[rows].float()[:, None]
        mask = (split.x[rows] != 0).long()
        out = model(input_ids=split.x[rows], attention_mask=mask, labels=labels)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    mask = (split.x_val != 0).long()
    logits = in_evaluation(
        model, lambda: model(input_ids=split.x_val, attention_mask=mask).logits
    )
    says = (torch.sigmoid(logits[:, 0]) > 0.5).long()
    accuracy = float((says == split.y_val).float().mean())
    t.note(accuracy=accuracy, positive=float(says.float().mean()))
    regression = model.config.problem_type == "regression"
    conclude(t, fault=regression, reached=accuracy > 0.8, harms=False)
