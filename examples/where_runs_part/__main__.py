"""Trains a small model as it was and as it was rewritten, and says where they part.

    python -m examples.where_runs_part [--out runs/part]

Each rewritten training has one fault: another epsilon of a LayerNorm, a weight that its
conversion left transposed, a dropout that stayed on.  The losses differ by little; the
module is named.  Takes some seconds, and no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from tdbg.compare import RunDiff

__all__ = ["FAULTS", "Fault", "Model", "main", "train"]

WIDTH, TOKENS, LENGTH, BATCH, STEPS = 32, 64, 16, 8, 5


class Block(nn.Module):
    """A layer of attention and one of two matrices, each after a normalization."""

    def __init__(self, epsilon: float, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=epsilon)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens, each with something of the others."""
        h = self.norm(x)
        seen = torch.softmax(self.query(h) @ h.transpose(1, 2) / WIDTH**0.5, dim=-1)
        x = x + self.mix(seen @ h)
        return x + self.drop(self.narrow(nn.functional.gelu(self.wide(x))))


class Model(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self, epsilon: float = 1e-5, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.first = Block(1e-5, 0.0)
        self.second = Block(epsilon, dropout)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of the next token."""
        found: torch.Tensor = self.head(self.second(self.first(self.embed(x))))
        return found


def converted(model: Model) -> Model:
    """Bring weights from a checkpoint that stores (inputs, outputs), and forget one."""
    stored = {
        name: each.T.clone() if each.ndim == 2 else each
        for name, each in model.state_dict().items()
    }
    loaded = {
        name: each.T if each.ndim == 2 and name != "second.mix.weight" else each
        for name, each in stored.items()
    }
    model.load_state_dict(loaded)
    return model


@dataclass(frozen=True)
class Fault:
    """A way in which the rewritten training is wrong.

    Attributes:
        what: The fault in words.
        make: Makes the model.
        module: The module that has it.
    """

    what: str
    make: Callable[[], Model]
    module: str


FAULTS = {
    "epsilon": Fault(
        "the LayerNorm has an epsilon of 1e-3, not 1e-5",
        lambda: Model(epsilon=1e-3),
        "second.norm",
    ),
    "transposed": Fault(
        "a conversion left a square weight transposed",
        lambda: converted(Model()),
        "second.mix",
    ),
    "dropout": Fault(
        "a dropout of 0.1 stayed on", lambda: Model(dropout=0.1), "second.drop"
    ),
}


def train(out: Path, make: Callable[[], Model]) -> float:
    """Train for some steps, capture everything, and return the last loss."""
    torch.manual_seed(0)
    model, criterion = make(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    hook = td.Hook(
        out,
        include_collections=["all"],
        save_config=td.SaveConfig(save_interval=1, statistics_interval=1),
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    last = 0.0
    for _ in range(STEPS):
        x = torch.randint(0, TOKENS, (BATCH, LENGTH), generator=generator)
        optimizer.zero_grad()
        loss = criterion(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        last = loss.item()
    hook.close()
    return last


def told(found: RunDiff) -> str:
    """Say in a line where two runs part."""
    if found.first is None:
        return "no difference"
    first = found.first
    note = f": {first.note}" if first.note else ""
    return (
        f"they part at {first.module} ({first.module_class}), step {first.step}, "
        f"{first.excess:,.0f} times beyond rounding{note}"
    )


def main(out: Path) -> dict[str, RunDiff]:
    """Train all, print what is found, and return it by fault."""
    loss = train(out / "as-it-was", Model)
    print(f"as it was: loss {loss:.4f}")
    found = {}
    for name, fault in FAULTS.items():
        loss = train(out / name, fault.make)
        found[name] = tdbg.diff(out / "as-it-was", out / name)
        print(f"{fault.what}: loss {loss:.4f}\n    {told(found[name])}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Says where two trainings part.")
    parser.add_argument("--out", type=Path, default=Path("runs/part"))
    main(parser.parse_args().out)
