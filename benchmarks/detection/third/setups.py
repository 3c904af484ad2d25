"""The model is not what the script says: not loaded, not registered, zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.detection.corpus.case import sick
from benchmarks.detection.corpus.data import digits
from benchmarks.detection.corpus.loops import fit
from benchmarks.detection.corpus.models import mlp
from benchmarks.detection.corpus.probes import below_accuracy, lasting
from benchmarks.detection.corpus.training import Training
from benchmarks.detection.third.views import alike_for_all, constantly, pretrain


@sick(
    named_by={
        "NotInOptimizer",
        "UnchangedTensor",
        "Underfitting",
        "LossNotDecreasing",
    },
    diagnosis="the checkpoint's names begin with module.: nothing of it was loaded",
)
def prefix_of_data_parallel(t: Training) -> None:
    """load_state_dict(strict=False) ignores every name; the frozen trunk is random.

    Source: PyTorch's forum, DataParallel's checkpoints.  Visible: from the 80th step
    on, when the head recognizes less than 80 % of what the trunk was trained for.
    """
    split = digits()
    trained = mlp([64, 48, 48, 8, 10], nn.Tanh)
    pretrain(trained, split, 250)
    checkpoint = {f"module.{k}": v for k, v in trained.state_dict().items()}
    model = mlp([64, 48, 48, 8, 10], nn.Tanh)
    if not t.sick:
        checkpoint = {k.removeprefix("module."): v for k, v in checkpoint.items()}
    model.load_state_dict(checkpoint, strict=False)
    model[-1] = nn.Linear(8, 10)
    for weight in model[:-1].parameters():
        weight.requires_grad_(requires_grad=False)
    fit(
        t,
        model,
        split,
        torch.optim.Adam(model[-1].parameters(), 0.02),
        n_steps=200,
        visible=below_accuracy(0.8, 80),
        learned=0.9,
    )


class Stack(nn.Module):
    """Narrow layers of tanh and a head."""

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        layers = [nn.Linear(64, 10), *(nn.Linear(10, 10) for _ in range(3))]
        self.hidden = nn.ModuleList(layers) if registered else layers
        self.head = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        out: Tensor = self.head(x)
        return out


@sick(
    named_by={
        "Underfitting",
        "LossNotDecreasing",
        "NotInOptimizer",
        "MissingGradient",
        "UnchangedTensor",
    },
    diagnosis="layers in a Python list are no parameters of the model",
)
def layers_in_a_plain_list(t: Training) -> None:
    """self.hidden = [nn.Linear(...), ...] instead of a ModuleList.

    Source: PyTorch's forum; Humbatova 2020.  Visible: from the 120th step on, when less
    than 60 % of the training data are recognized.
    """
    model = Stack(registered=not t.sick)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 0.01),
        n_steps=260,
        visible=below_accuracy(0.6, 120),
        learned=0.85,
    )


@sick(
    named_by={
        "PoorWeightInitialization",
        "AllZero",
        "TensorVariance",
        "VanishingGradient",
        "Underfitting",
        "LossNotDecreasing",
    },
    diagnosis="all vectors begin at zero, those of normalizations too",
)
def norms_zeroed_by_init(t: Training) -> None:
    """xavier_uniform_ for matrices, zeros_ "for biases": and for LayerNorm's scales.

    Source: initialization loops over parameters() by dim().  Visible: when for ten
    steps all images have had the same outputs.
    """
    model = mlp([64, 48, 48, 10], norm=nn.LayerNorm)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
        elif t.sick or name.endswith("bias"):
            nn.init.zeros_(weight)
    fit(
        t,
        model,
        digits(),
        torch.optim.Adam(model.parameters(), 3e-3),
        n_steps=200,
        visible=lasting(alike_for_all(1e-4), 10),
        learned=0.95,
    )


class LowRank(nn.Module):
    """A frozen layer and a product of two narrow matrices beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 6, *, zeros: bool) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.zeros(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        if not zeros:
            nn.init.kaiming_uniform_(self.down, 5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + x @ self.down.T @ self.up.T
        return out


@sick(
    named_by={
        "PoorWeightInitialization",
        "VanishingGradient",
        "UnchangedTensor",
        "AllZero",
        "LossNotDecreasing",
        "WeightUpdateRatio",
    },
    diagnosis="both factors of the adapters begin at zero, and stay there",
)
def adapters_of_zeros(t: Training) -> None:
    """LoRA of which both matrices are zero: neither gets a gradient.

    Source: LoRA written by hand.  Visible: when in ten steps no adapter has moved.
    """
    split = digits()
    base = mlp([64, 64, 64, 10])
    pretrain(base, split, 200)
    for weight in base.parameters():
        weight.requires_grad_(requires_grad=False)
    for i in (0, 2, 4):
        base[i] = LowRank(base[i], zeros=t.sick)  # type: ignore[arg-type]
    upright = split.inputs(
        lambda x: x.view(-1, 8, 8).transpose(1, 2).flatten(1).contiguous()
    )
    adapters = [name for name, w in base.named_parameters() if w.requires_grad]
    fit(
        t,
        base,
        upright,
        torch.optim.Adam([w for w in base.parameters() if w.requires_grad], 0.01),
        n_steps=220,
        visible=constantly(adapters, 10),
        learned=0.85,
    )
