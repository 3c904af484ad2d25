"""The trainings that pictures of the dashboard show, each with a fate of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import tdbg
import tdbg.pytorch as td
from benchmarks._harness.machine import ROOT

__all__ = ["TRAININGS", "Training"]

#: What becomes a run, by its name.
Training = Callable[[Path], None]

STEPS, BATCH = 600, 1024
# Of the inputs, so that they cannot be learned by heart.
NOISE = 0.7
# Between steps of evaluation.
EVALUATION = 60
RANKS, ODD_RANK, ODD_FROM = 4, 2, 90


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.ReLU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor = x + self.down(self.act(self.up(self.norm(x))))
        return kept


class Residual(nn.Module):
    """Ten of them, for images of digits."""

    def __init__(self, width: int = 96, depth: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def residual(path: Path, rate: float, growth: float) -> None:
    """Digits by residual blocks; *growth*: by what a step multiplies the rate."""
    torch.manual_seed(1)
    found = load_digits()
    images = torch.tensor(found.data / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(found.target)
    model, criterion = Residual(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    names = ["losses", "gradients", "weights", "outputs", "updates", "scalars"]
    save = tdbg.SaveConfig(save_interval=40, statistics_interval=1)
    rarely = tdbg.SaveConfig(save_interval=40, statistics_interval=10)
    with td.Hook(path, include_collections=names, save_config=save) as hook:
        hook.get_collection("outputs").save_config = rarely
        register(hook, model, criterion)
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = rate * growth**step
            model.train()
            chosen = torch.randint(0, 1500, (BATCH,))
            optimizer.zero_grad()
            noisy = images[chosen] + NOISE * torch.randn(BATCH, 64)
            criterion(model(noisy), labels[chosen]).backward()
            optimizer.step()
            if step % EVALUATION == EVALUATION - 1:
                model.eval()
                with torch.no_grad():
                    criterion(model(images[1500:]), labels[1500:])


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        kept: torch.Tensor = x + self.mlp(self.norm2(x))
        return kept


def transformer(path: Path) -> None:
    """A transformer that counts; for two steps its rate is far too high."""
    torch.manual_seed(0)
    width, words = 64, 50
    model = nn.Sequential(
        nn.Embedding(words, width),
        *(Attention(width) for _ in range(12)),
        nn.LayerNorm(width),
        nn.Linear(width, words),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    names = ["losses", "gradients", "weights"]
    save = tdbg.SaveConfig(save_interval=100, statistics_interval=1)
    with td.Hook(path, include_collections=names, save_config=save) as hook:
        register(hook, model, criterion)
        for step in range(300):
            for group in optimizer.param_groups:
                group["lr"] = 0.3 if step in (40, 41) else 1e-3
            text = torch.arange(24).repeat(16, 1) + torch.randint(0, 26, (16, 1))
            optimizer.zero_grad()
            logits = model(text[:, :-1])
            criterion(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
            optimizer.step()


def ranks(path: Path) -> None:
    """Four ranks, of which one gets labels by chance from some step on."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        torch.multiprocessing.spawn(_rank, (str(path), str(store)), nprocs=RANKS)


def _rank(rank: int, path: str, store: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS
    )
    torch.manual_seed(0)
    plain = nn.Sequential(
        *(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()), nn.Linear(32, 4)
    )
    model = nn.parallel.DistributedDataParallel(plain)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    data = torch.Generator().manual_seed(rank)
    truth = torch.randn(16, 4, generator=torch.Generator().manual_seed(9))
    watched = td.Hook(
        path,
        include_collections=["losses", "gradients", "weights", "outputs"],
        include_workers="all",
        save_config=tdbg.SaveConfig(save_interval=50, statistics_interval=1),
    )
    with watched as hook:
        register(hook, model, criterion)
        for step in range(150):
            x = torch.randn(32, 16, generator=data)
            labels = (x @ truth).argmax(1)
            if rank == ODD_RANK and step > ODD_FROM:
                labels = torch.randint(0, 4, (32,), generator=data)
            optimizer.zero_grad()
            criterion(model(x), labels).backward()
            optimizer.step()
    torch.distributed.destroy_process_group()


def register(hook: td.Hook, model: nn.Module, criterion: nn.Module) -> None:
    hook.register_module(model)
    hook.register_loss(criterion)


def loader_bound(path: Path) -> None:
    """The example that waits for its data."""
    script = ROOT / "examples" / "loader_bound" / "train.py"
    run = [sys.executable, "-m", "tdbg", "run", "--out", str(path), "--"]
    subprocess.run([*run, sys.executable, str(script)], check=True)


#: The newest is the last.
TRAININGS: dict[str, Training] = {
    "loader-bound": loader_bound,
    "ranks": ranks,
    "transformer": transformer,
    "resnet-steady": lambda path: residual(path, 0.02, 1.0),
    "resnet-warmup": lambda path: residual(path, 0.005, 1.0145),
}
