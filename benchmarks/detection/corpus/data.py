"""Real data that every machine has: scikit-learn's, and Python's own sources.

Splits are the same for every seed: a seed changes initial weights and order only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

__all__ = [
    "Split",
    "breast_cancer",
    "diabetes",
    "digits",
    "encode",
    "lines_of_code",
    "source",
    "text",
    "windows",
    "wine",
]

#: Characters that the sources consist of; 0 is padding, 1 whatever is not here.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
N_CHARACTERS = len(ALPHABET) + 2
SOURCES = ("textwrap", "json.decoder", "argparse", "csv", "heapq", "bisect", "string")


@dataclass(frozen=True, slots=True)
class Split:
    """Data to train on, and data to validate with."""

    x: Tensor
    y: Tensor
    x_val: Tensor
    y_val: Tensor

    def take(self, chosen: Tensor) -> Split:
        """Only these rows to train on."""
        return replace(self, x=self.x[chosen], y=self.y[chosen])

    def inputs(self, change: Callable[[Tensor], Tensor]) -> Split:
        """The same with other inputs."""
        return replace(self, x=change(self.x), x_val=change(self.x_val))


def digits() -> Split:
    """1347 and 450 images of 8 x 8 pixels from 0 to 1, flat, of 10 classes."""
    return _split(datasets.load_digits, 16.0)


def wine(*, raw: bool = False) -> Split:
    """133 and 45 wines, 13 measurements, 3 classes; standardized unless *raw*."""
    return _standard(_split(datasets.load_wine), raw=raw)


def breast_cancer(*, raw: bool = False) -> Split:
    """426 and 143 tumours, 30 measurements, 2 classes: 0 is malignant, of 37 %."""
    return _standard(_split(datasets.load_breast_cancer), raw=raw)


def diabetes(*, raw_targets: bool = False) -> Split:
    """331 and 111 patients, 10 measurements and how the disease went on, (n, 1)."""
    split = _standard(_split(datasets.load_diabetes), raw=False)
    y, y_val = split.y.float()[:, None], split.y_val.float()[:, None]
    if not raw_targets:
        mean, deviation = y.mean(), y.std()
        y, y_val = (y - mean) / deviation, (y_val - mean) / deviation
    return replace(split, y=y, y_val=y_val)


@cache
def text() -> Tensor:
    """Sources of Python as character numbers, one after the other."""
    return encode("".join(map(source, SOURCES)))


def lines_of_code(shortest: int = 8) -> list[Tensor]:
    """Lines of these sources that are not blank, as character numbers."""
    lines = [line for name in SOURCES for line in source(name).splitlines()]
    return [encode(line) for line in lines if len(line.strip()) >= shortest]


def encode(characters: str) -> Tensor:
    """Numbers of characters."""
    numbers = {character: i + 2 for i, character in enumerate(ALPHABET)}
    return torch.tensor([numbers.get(character, 1) for character in characters])


def windows(stream: Tensor, chosen: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Stretches of text that begin at *chosen*, and what follows each character."""
    at = chosen[:, None] + torch.arange(length)
    return stream[at], stream[at + 1]


def source(module: str) -> str:
    """The text of a module of Python."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        msg = f"Python has no source of {module}"
        raise FileNotFoundError(msg)
    return Path(spec.origin).read_text(encoding="utf-8")


@cache
def _split(load: Callable[..., Any], scale: float = 1.0) -> Split:
    x, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    n_val = len(x) // 4
    inputs = torch.tensor(x[order] / scale, dtype=torch.float32)
    targets = torch.tensor(y[order])
    return Split(inputs[n_val:], targets[n_val:], inputs[:n_val], targets[:n_val])


def _standard(split: Split, *, raw: bool) -> Split:
    if raw:
        return split
    mean, deviation = split.x.mean(0), split.x.std(0)
    return split.inputs(lambda x: (x - mean) / deviation)
