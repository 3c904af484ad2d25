"""Faults that ruin trainings which go well without them.

Each changes one of the parts of a training.  What is left without it is the healthy
twin, so that the difference between the two is the fault and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from watched import Batch, Optimizers, Parts, adam, layers, sgd, wine

__all__ = [
    "bf16_weights",
    "classes_mixed",
    "constant_inputs",
    "cut_off",
    "dead_layer",
    "deep_sigmoids",
    "equal_weights",
    "few_of_a_class",
    "few_samples",
    "forgotten_layer",
    "hashed_tokens",
    "labels_of_others",
    "large_weights",
    "left_in_eval",
    "nan_in_a_batch",
    "of_bytes",
    "one_outlier",
    "padded_text",
    "rate_of",
    "tiny_loss",
    "unmeasured",
    "unused_layer",
    "wrong_batches",
]

Fault = Callable[[Parts], None]


def rate_of(rate: float, kind: Callable[[float], Optimizers] = sgd) -> Fault:
    """A learning rate that is not right."""

    def change(parts: Parts) -> None:
        parts.optimizer = kind(rate)

    return change


class _CutOff(nn.CrossEntropyLoss):
    """Its value requires a gradient, and none comes to the model."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input, target).detach().requires_grad_()


def cut_off(parts: Parts) -> None:
    """A loss made anew of its value, since backward() complained."""
    parts.criterion = _CutOff()


def dead_layer(parts: Parts) -> None:
    """Biases so far below zero that no unit of the first layer is ever active."""
    with torch.no_grad():
        parts.model.get_parameter("0.bias").fill_(-20.0)


def deep_sigmoids(parts: Parts) -> None:
    """Sigmoids in place of ReLUs, each of which lets a quarter through at most."""
    parts.model = layers(64, *[32] * 8, 10, between=nn.Sigmoid)


def equal_weights(parts: Parts) -> None:
    """All weights begin with the same number."""
    with torch.no_grad():
        for parameter in parts.model.parameters():
            if parameter.dim() > 1:
                parameter.fill_(0.01)


def large_weights(parts: Parts) -> None:
    """Weights with a deviation of 10, whatever the width of their layer."""
    with torch.no_grad():
        for parameter in parts.model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 10.0)


def forgotten_layer(parts: Parts) -> None:
    """The optimizer is not given the layer in the middle."""
    parts.trained = lambda model: (
        parameter
        for name, parameter in model.named_parameters()
        if not name.startswith("2.")
    )


class PartlyUsed(nn.Module):
    """A network with a layer that the forward leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.used = layers(64, 32, 10)
        self.unused = nn.Linear(32, 32)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.used(images)
        return out


def unused_layer(parts: Parts) -> None:
    """A layer is made, and given to the optimizer, and never called."""
    parts.model = PartlyUsed()


def left_in_eval(parts: Parts) -> None:
    """Somebody looked at what the new model says, and never called train() again."""
    parts.model = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    ).eval()


def of_bytes(parts: Parts) -> None:
    """Nobody divides the pixels by 255."""
    images, labels = parts.data
    parts.data = images * 255.0, labels


def unmeasured(parts: Parts) -> None:
    """Measurements as they are: alcohol in percent beside proline in mg/l."""
    parts.data = wine()


def constant_inputs(parts: Parts) -> None:
    """All images are the same gray."""
    images, labels = parts.data
    parts.data = torch.full_like(images, 0.5), labels


def few_of_a_class(parts: Parts) -> None:
    """Of the images of a 3 only every twentieth was kept."""
    images, labels = parts.data
    kept = (labels != 3) | (torch.arange(len(labels)) % 20 == 0)
    parts.data = images[kept], labels[kept]


def classes_mixed(parts: Parts) -> None:
    """More than half of the threes are labelled as eights."""
    images, labels = parts.data
    wrong = (labels == 3) & (torch.rand(len(labels)) < 0.6)
    parts.data = images, torch.where(wrong, 8, labels)


def labels_of_others(parts: Parts) -> None:
    """Every batch has its labels in another order than its images."""
    parts.batch = lambda _, x, y: (x, y[torch.randperm(len(y))])


def few_samples(parts: Parts) -> None:
    """Forty images, many steps of a large rate, and no regularization."""
    parts.data = parts.data[0][:40], parts.data[1][:40]
    parts.optimizer = adam(1e-2)


def at(step: int, change: Callable[[Tensor, Tensor], Batch], n_steps: int = 1) -> Fault:
    """Other batches at some steps."""

    def changed(now: int, x: Tensor, y: Tensor) -> Batch:
        return change(x, y) if step <= now < step + n_steps else (x, y)

    def fault(parts: Parts) -> None:
        parts.batch = changed

    return fault


nan_in_a_batch = at(20, lambda x, y: (x.index_fill(1, torch.tensor(5), torch.nan), y))
one_outlier = at(40, lambda x, y: (x * 1e4, y))
wrong_batches = at(100, lambda x, y: (x, (y + 5) % 10), 4)


def padded_text(parts: Parts) -> None:
    """Only two of eight characters are there, the rest is padding."""
    tokens, following = parts.data
    parts.data = tokens.index_fill(1, torch.arange(2, 8), 0), following


def hashed_tokens(parts: Parts) -> None:
    """Characters become the remainder of 16."""
    tokens, following = parts.data
    parts.data = tokens % 16, following


def tiny_loss(parts: Parts) -> None:
    """A loss that is divided by more than float16 has room for."""
    parts.criterion.by = 2.0**18  # type: ignore[assignment]


def bf16_weights(parts: Parts) -> None:
    """The weights are kept in bfloat16, which has eight bits for a number."""
    parts.model = parts.model.to(torch.bfloat16)
    parts.data = parts.data[0].to(torch.bfloat16), parts.data[1]
