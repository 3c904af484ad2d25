"""Trainings of kinds that the tolerance was not tuned on, and faults in them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

import tdbg
import tdbg.pytorch as td
from ranks import run_ranks

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*script.* is deprecated:DeprecationWarning"),
]

STEPS, BATCH = 4, 32
Batch = tuple[torch.Tensor, torch.Tensor]


class Images(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(16, eps=epsilon, momentum=momentum)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm1(self.conv1(x)))
        x = functional.relu(self.norm2(self.conv2(x)))
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out

    @staticmethod
    def batch(generator: torch.Generator) -> Batch:
        return torch.randn(BATCH, 3, 12, 12, generator=generator), labels(generator)


class Words(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(40, 16), nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.rnn(self.embed(x))[0][:, -1])
        return out

    @staticmethod
    def batch(generator: torch.Generator) -> Batch:
        return torch.randint(0, 40, (BATCH, 20), generator=generator), labels(generator)


EDGES = torch.randint(0, 20, (2, 80), generator=torch.Generator().manual_seed(5))


class Messages(nn.Module):
    """A layer of a graph network: sums over neighbours, by scatter or by a matrix."""

    def __init__(self, scatters: bool, is_mean: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.scatters, self.is_mean = scatters, is_mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        source, target = EDGES
        if self.scatters:
            out = torch.zeros_like(h).index_add(1, target, h[:, source])
        else:
            ones = torch.ones(source.shape[0])
            matrix = torch.zeros(20, 20)
            out = matrix.index_put((target, source), ones, accumulate=True) @ h
        if self.is_mean:
            out = out / torch.bincount(target, minlength=20).clamp(min=1)[:, None]
        return out


class Graph(nn.Module):
    def __init__(self, scatters: bool = True, is_mean: bool = False) -> None:
        super().__init__()
        self.layer1 = Messages(scatters, False)
        self.layer2 = Messages(scatters, is_mean)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer2(functional.relu(self.layer1(x)))
        out: torch.Tensor = self.head(h.mean(1))
        return out

    @staticmethod
    def batch(generator: torch.Generator) -> Batch:
        return torch.randn(BATCH, 20, 16, generator=generator), labels(generator)


class Attention(nn.Module):
    """Projections of their own for queries, keys and values, as in large models."""

    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)
        self.v, self.o = nn.Linear(32, 32), nn.Linear(32, 32)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each(x).view(*x.shape[:2], 4, 8).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        found = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale
        )
        out: torch.Tensor = self.o(found.transpose(1, 2).reshape(x.shape))
        return out


class Layer(nn.Module):
    def __init__(self, scale: float | None, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attention = Attention(scale)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return out


class Tokens(nn.Module):
    """A small transformer, as Hugging Face's are made."""

    def __init__(
        self, scale: float | None = None, dropout: float = 0.0, n_layers: int = 2
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        first = [Layer(None, 0.0) for _ in range(n_layers - 1)]
        self.layers = nn.ModuleList([*first, Layer(scale, dropout)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        out: torch.Tensor = self.head(self.norm(h).mean(1))
        return out

    batch = staticmethod(Words.batch)


def of_one_layer(dropout: float = 0.0) -> Tokens:
    """A transformer that is compiled in half the time."""
    return Tokens(dropout=dropout, n_layers=1)


def labels(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 10, (BATCH,), generator=generator)


def adamw(**settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, **settings)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@dataclass
class Training:
    """A way to train a model."""

    make: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer] = field(default_factory=adamw)
    micro_batches: int = 1
    divides: bool = True
    convert: Callable[[nn.Module], nn.Module] = lambda model: model
    convert_input: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    is_compiled: bool = False

    def run(self, out: Path) -> Path:
        torch.manual_seed(0)
        model, criterion = self.convert(self.make()), nn.CrossEntropyLoss()
        optimizer = self.optimizer(model.parameters())
        hook = hook_for(out)
        hook.register_module(model)
        hook.register_loss(criterion)
        called = torch.compile(model) if self.is_compiled else model
        generator = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            x, y = model.batch(generator)  # type: ignore[operator]
            optimizer.zero_grad()
            parts = zip(
                self.convert_input(x).chunk(self.micro_batches),
                y.chunk(self.micro_batches),
                strict=True,
            )
            for inputs, targets in parts:
                with self.around():
                    logits = called(inputs)
                if logits.dtype == torch.bfloat16:
                    logits = logits.float()
                loss = criterion(logits, targets)
                (loss / (self.micro_batches if self.divides else 1)).backward()
            optimizer.step()
        hook.close()
        return out


def hook_for(out: Path, **settings: Any) -> td.Hook:
    return td.Hook(
        out,
        **settings,
        include_collections=["all"],
        save_config=td.SaveConfig(save_interval=1, statistics_interval=1),
    )


def channels_last(value: Any) -> Any:
    return value.to(memory_format=torch.channels_last)


def of_math() -> AbstractContextManager[Any]:
    return sdpa_kernel(SDPBackend.MATH)


def narrow() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def without_onednn() -> AbstractContextManager[Any]:
    return torch.backends.mkldnn.flags(enabled=False)  # type: ignore[no-untyped-call, no-any-return]


def double(model: nn.Module) -> nn.Module:
    return model.double()


HEALTHY = {
    "channels last": (
        Training(Images),
        Training(Images, convert=channels_last, convert_input=channels_last),
    ),
    "another convolution": (
        Training(Images, sgd),
        Training(Images, sgd, around=without_onednn),
    ),
    "convolutions in bfloat16": (
        Training(Images, sgd),
        Training(Images, sgd, around=narrow),
    ),
    "another LSTM": (Training(Words), Training(Words, around=without_onednn)),
    "scatter and a matrix": (Training(Graph), Training(lambda: Graph(False))),
    "float64": (
        Training(Graph),
        Training(Graph, convert=double, convert_input=torch.Tensor.double),
    ),
    "another attention": (Training(Tokens), Training(Tokens, around=of_math)),
    "attention in bfloat16": (Training(Tokens), Training(Tokens, around=narrow)),
    "four micro-batches": (Training(Tokens), Training(Tokens, micro_batches=4)),
    "a fused optimizer": (Training(Tokens), Training(Tokens, adamw(fused=True))),
    "compiled": (Training(of_one_layer), Training(of_one_layer, is_compiled=True)),
}

FAULTS = {
    "an epsilon": (Images, lambda: Training(lambda: Images(1e-3)), "norm2", "norm2_"),
    "a momentum": (
        Images,
        lambda: Training(lambda: Images(momentum=0.01)),
        "norm2",
        "buffer/norm2.running_mean",
    ),
    "a mean for a sum": (
        Graph,
        lambda: Training(lambda: Graph(is_mean=True)),
        "layer2",
        "layer2_output_0",
    ),
    "a scale of attention": (
        Tokens,
        lambda: Training(lambda: Tokens(scale=0.2)),
        "layers.1.attention.o",
        "layers.1.attention.o_input_0",
    ),
    "a scale, in bfloat16": (
        Tokens,
        lambda: Training(lambda: Tokens(scale=2.0), around=narrow),
        "layers.1.attention.o",
        "layers.1.attention.o_input_0",
    ),
    "a dropout, compiled": (
        of_one_layer,
        lambda: Training(lambda: of_one_layer(0.1), is_compiled=True),
        "layers.0.drop",
        "layers.0.drop_output_0",
    ),
    "a loss that is not divided": (
        Tokens,
        lambda: Training(Tokens, micro_batches=4, divides=False),
        "head",
        "gradient/head.",
    ),
    "a weight decay": (
        Tokens,
        lambda: Training(Tokens, adamw(weight_decay=0.1)),
        "",
        "scalar/optimizer/",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.mark.parametrize("pair", HEALTHY)
def test_a_healthy_pair_is_no_difference(folder: Path, pair: str) -> None:
    one, other = HEALTHY[pair]
    found = tdbg.diff(one.run(folder / pair / "1"), other.run(folder / pair / "2"))
    assert found.is_same, found.first or found.missing
    assert found.n_judged >= 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_at_its_module(folder: Path, fault: str) -> None:
    make, other, module, name = FAULTS[fault]
    runs = Training(make).run(folder / fault / "1"), other().run(folder / fault / "2")
    first = tdbg.diff(*runs).first
    assert first is not None
    assert (first.module, first.step) == (module, 0)
    assert first.name.startswith(name)


# --- Ranks ------------------------------------------------------------------


def train_on_a_rank(
    rank: int, out: str, world: int, epsilon: float, workers: str
) -> None:
    torch.manual_seed(0)
    model = Images(epsilon)
    for name in ("norm1", "norm2"):
        # Of a batch norm each rank has its own statistics.
        width, eps = getattr(model, name).num_features, getattr(model, name).eps
        setattr(model, name, nn.GroupNorm(2, width, eps=eps))
    hook = hook_for(Path(out), include_workers=workers)
    ddp = DistributedDataParallel(model)
    hook.register_module(ddp)
    criterion = nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x, y = (each.chunk(world)[rank] for each in Images.batch(generator))
        optimizer.zero_grad()
        criterion(ddp(x), y).backward()
        optimizer.step()
    hook.close()


def test_one_rank_and_two_are_no_difference_and_a_fault_is_named(
    tmp_path: Path,
) -> None:
    for name, world, epsilon, workers in (
        ("1", 1, 1e-5, "all"),
        ("2", 2, 1e-5, "all"),
        ("leader", 2, 1e-5, "one"),
        ("fault", 2, 1e-2, "all"),
    ):
        out = str(tmp_path / name)
        run_ranks(train_on_a_rank, world, out, world, epsilon, workers)
    for name, has_samples in (("2", True), ("leader", False)):
        found = tdbg.diff(tmp_path / "1", tmp_path / name)
        assert found.is_same, found.first or found.missing
        assert found.has_samples == has_samples
    first = tdbg.diff(tmp_path / "1", tmp_path / "fault").first
    assert first is not None
    assert (first.module, first.step) == ("norm2", 0)


# --- Frameworks -------------------------------------------------------------

IN_KERAS = """
import sys
import keras
import numpy as np
import tdbg.keras as tk

with np.load(sys.argv[1]) as saved:
    arrays = dict(saved)
model = keras.Sequential([
    keras.Input((16,)),
    keras.layers.Dense(32, name="inner"),
    keras.layers.LayerNormalization(epsilon=float(sys.argv[3]), name="norm"),
    keras.layers.Dense(10, activation="tanh", name="outer"),
])
for layer in ("inner", "outer"):
    weights = [arrays[f"{layer}.weight"].T, arrays[f"{layer}.bias"]]
    model.get_layer(layer).set_weights(weights)
model.compile(keras.optimizers.SGD(0.05), "mse")
hook = tk.Hook(
    sys.argv[2],
    include_collections=["all"],
    save_config=tk.SaveConfig(save_interval=1, statistics_interval=1),
)
model.fit(
    arrays["x"], arrays["y"], batch_size=32, shuffle=False, verbose=0, callbacks=[hook]
)
hook.close()
"""

NAMES = {
    r"^(gradient/)?(\w+)\.weight$": r"\1\2/kernel",
    r"^(gradient/)?(\w+)\.bias$": r"\1\2/bias",
    r"norm/kernel": "norm/gamma",
    r"norm/bias": "norm/beta",
}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(16, 32), nn.LayerNorm(32, eps=1e-3)
        self.outer = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.tanh(self.outer(self.norm(self.inner(x))))
        return out


def train_in_torch(out: Path, weights: Path) -> None:
    torch.manual_seed(0)
    model, criterion = Plain(), nn.MSELoss()
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(STEPS * 32, n, generator=generator) for n in (16, 10))
    arrays = {name: each.numpy() for name, each in model.state_dict().items()}
    np.savez(weights, x=x.numpy(), y=y.numpy(), **arrays)  # type: ignore[arg-type]
    hook = hook_for(out)
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, targets in zip(x.chunk(STEPS), y.chunk(STEPS), strict=True):
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
    hook.close()


def train_in_keras(out: Path, weights: Path, epsilon: float) -> None:
    told = [sys.executable, "-c", IN_KERAS, str(weights), str(out), str(epsilon)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(told, check=True, env=environment, capture_output=True)


def test_a_map_of_names_compares_pytorch_and_keras(tmp_path: Path) -> None:
    weights = tmp_path / "weights.npz"
    train_in_torch(tmp_path / "torch", weights)
    train_in_keras(tmp_path / "keras", weights, 1e-3)
    found = tdbg.diff(tmp_path / "torch", tmp_path / "keras", name_map=NAMES)
    assert found.is_same, found.first or found.missing
    assert ("inner.weight", "transposed") in found.layouts
    train_in_keras(tmp_path / "fault", weights, 1e-2)
    faulty = tdbg.diff(tmp_path / "torch", tmp_path / "fault", name_map=NAMES)
    assert faulty.first is not None
    assert (faulty.first.module, faulty.first.step) == ("norm", 0)
