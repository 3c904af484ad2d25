"""Tensors of real trainings for the codec benchmark, made here and nowhere else.

A convolutional network learns scikit-learn's digits (float32, SGD); two byte-level
transformers learn Python's own standard library, one in float32 under bfloat16
autocast, one in pure bfloat16 (AdamW).  What is returned is flat, of a few to some
tens of megabytes: `tensors()["transformer weights bf16"]` is a list of the values at
consecutive steps, oldest first, or of one step for what is never a difference.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["STEPS_KEPT", "tensors"]

STEPS_KEPT = 9  # Of weights: how far a difference may reach back.
Values = NDArray[np.generic]


def as_numpy(pieces: list[Tensor]) -> Values:
    """One flat array of many tensors; bfloat16 by its bits."""
    flat = torch.cat([piece.detach().reshape(-1) for piece in pieces])
    if flat.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return flat.numpy().copy()


class Kept:
    """Weights of the last steps, and gradients, states and outputs of the last."""

    def __init__(self, name: str, model: nn.Module) -> None:
        self.name, self.model = name, model
        self.weights: list[Values] = []
        self.outputs: list[Tensor] = []

    def watch(self, kind: type[nn.Module]) -> None:
        """Keep the outputs of the modules of this kind, of the last forward."""
        for module in self.model.modules():
            if isinstance(module, kind):
                module.register_forward_hook(
                    lambda _m, _i, output: self.outputs.append(output)
                )

    def after_step(self) -> None:
        """Take the weights in."""
        self.weights.append(as_numpy(list(self.model.parameters())))
        del self.weights[:-STEPS_KEPT]

    def gradients(self) -> Values:
        """Return the gradients of the last step."""
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return as_numpy(grads)


def train(
    kept: Kept,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], Tensor],
    steps: int,
) -> None:
    """Run *steps* steps; what is kept is kept."""
    for _ in range(steps):
        kept.outputs.clear()
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        kept.after_step()


def convolutional(steps: int) -> dict[str, list[Values]]:
    """Weights, gradients, momentum and ReLU outputs of a CNN."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    images = functional.interpolate(images, scale_factor=2, mode="bilinear")
    labels = torch.tensor(digits.target)
    layers: list[nn.Module] = []
    for n_in, n_out, stride in ((1, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [nn.Conv2d(n_in, n_out, 3, stride, 1), nn.BatchNorm2d(n_out)]
        layers += [nn.ReLU()]
    model = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(2048, 512), nn.Linear(512, 10)
    )
    kept = Kept("cnn", model)
    kept.watch(nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-2, momentum=0.9)

    def loss() -> Tensor:
        batch = torch.randint(len(images), (64,))
        return functional.cross_entropy(model(images[batch]), labels[batch])

    train(kept, optimizer, loss, steps)
    momentum = [state["momentum_buffer"] for state in optimizer.state.values()]
    return {
        "cnn weights f32": kept.weights,
        "cnn gradients f32": [kept.gradients()],
        "cnn momentum f32": [as_numpy(momentum)],
        "cnn ReLU outputs f32": [as_numpy(kept.outputs)],
    }


class Block(nn.Module):
    """A pre-LN transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gelu = nn.GELU()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, 64)).transpose(1, 2)
            for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(self.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int = 256, depth: int = 4, length: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions)))


def transformer(steps: int, *, pure: bool) -> dict[str, list[Values]]:
    """Weights, gradients, Adam's moments and GELU outputs of a transformer."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:60])
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    model = Transformer().to(torch.bfloat16 if pure else torch.float32)
    kept = Kept("transformer", model)
    kept.watch(nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss() -> Tensor:
        at = torch.randint(len(data) - 129, (8,))
        window = torch.stack([data[i : i + 129] for i in at])
        with torch.autocast("cpu", torch.bfloat16, enabled=not pure):
            logits = model(window[:, :-1])
        return functional.cross_entropy(
            logits.float().flatten(0, 1), window[:, 1:].flatten()
        )

    train(kept, optimizer, loss, steps)
    if pure:
        return {
            "transformer weights bf16": kept.weights,
            "transformer gradients bf16": [kept.gradients()],
            "transformer GELU outputs bf16": [as_numpy(kept.outputs)],
        }
    states = list(optimizer.state.values())
    return {
        "transformer weights f32": kept.weights,
        "transformer gradients f32": [kept.gradients()],
        "transformer first moment f32": [as_numpy([s["exp_avg"] for s in states])],
        "transformer second moment f32": [as_numpy([s["exp_avg_sq"] for s in states])],
    }


def tensors(steps: int = 40, seed: int = 0) -> dict[str, list[Values]]:
    """Train, and return the values by name."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    return (
        convolutional(steps)
        | transformer(steps, pure=False)
        | transformer(steps, pure=True)
    )
