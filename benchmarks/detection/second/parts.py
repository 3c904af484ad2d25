"""More real data, and what generated data stands for it; epochs instead of draws."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

from benchmarks.detection.corpus.data import Split, encode, source
from benchmarks.detection.corpus.loops import Batches
from benchmarks.detection.corpus.training import Training

__all__ = [
    "MODULES",
    "epochs",
    "houses",
    "lines",
    "padded",
    "parted",
    "patches",
    "thinned",
    "words",
]

#: Whose lines are told apart.
MODULES = ("argparse", "json.decoder", "heapq", "textwrap", "string")


def parted(x: Tensor, y: Tensor, seed: int = 1) -> Split:
    """A fifth of it, chosen at random, to validate with."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    n_val = len(x) // 5
    x, y = x[order], y[order]
    return Split(x[n_val:], y[n_val:], x[:n_val], y[:n_val])


def epochs(t: Training, split: Split, size: int) -> Batches:
    """Batches without replacement, one epoch after the other."""
    left: list[Tensor] = []

    def batch(_: int) -> tuple[Tensor, Tensor]:
        if not left:
            order = torch.randperm(len(split.x), generator=t.order)
            left.extend(torch.split(order, size)[: len(order) // size])
        chosen = left.pop()
        return split.x[chosen], split.y[chosen]

    return batch


def thinned(split: Split, classes: list[int], keep: float) -> Split:
    """Of these classes only a share is left to train on."""
    rare = torch.isin(split.y, torch.tensor(classes))
    luck = torch.rand(len(rare), generator=torch.Generator().manual_seed(3))
    return split.take(~rare | (luck < keep))


def houses(*, scaled: bool) -> Split:
    """Generated like California's: 1600 blocks, 8 columns, and prices in dollars.

    With *scaled* columns and prices have mean 0 and deviation 1.
    """
    rng = np.random.default_rng(5)
    n = 1600
    income = rng.lognormal(1.2, 0.45, n)
    age = rng.uniform(1, 52, n)
    rooms = rng.normal(5.4, 1.1, n) + 0.1 * income
    bedrooms = rng.normal(1.1, 0.1, n)
    people = rng.lognormal(7.0, 0.7, n)
    occupancy = rng.normal(3.0, 0.6, n)
    latitude = rng.uniform(32.5, 42.0, n)
    longitude = -114.0 - 0.8 * (latitude - 32.5) + rng.normal(0, 1.0, n)
    coast = np.exp(-np.abs(longitude + 114.5 + 0.8 * (latitude - 32.5)))
    price = (
        45_000 * income * (1 + 0.5 * coast)
        + 700 * age
        + 9_000 * rooms
        - 12_000 * occupancy
        + rng.normal(0, 20_000, n)
    )
    columns = [income, age, rooms, bedrooms, people, occupancy, latitude, longitude]
    x = torch.tensor(np.stack(columns, 1), dtype=torch.float32)
    y = torch.tensor(price, dtype=torch.float32)[:, None]
    if scaled:
        x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    return parted(x, y)


@cache
def patches(size: int = 12) -> Split:
    """Patches of two photographs, 3 colours from 0 to 255: which one are they of?"""
    found, labels = [], []
    for label, image in enumerate(datasets.load_sample_images().images):
        pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1)
        rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
        for i in range(0, rows * columns, 3):
            top, left = size * (i // columns), size * (i % columns)
            found.append(pixels[:, top : top + size, left : left + size])
            labels.append(label)
    return parted(torch.stack(found).float(), torch.tensor(labels))


@cache
def _lines() -> tuple[tuple[str, int], ...]:
    return tuple(
        (line.strip(), label)
        for label, module in enumerate(MODULES)
        for line in source(module).splitlines()
        if len(line.strip()) >= 6
    )


def padded(rows: list[Tensor], length: int) -> Tensor:
    """Cut or filled with 0 behind."""
    out = torch.zeros(len(rows), length, dtype=torch.int64)
    for into, row in zip(out, rows, strict=True):
        n = min(len(row), length)
        into[:n] = row[:n]
    return out


#: Lines of one module, so that no class is rare.
MOST = 400


def _at_most(n: int | None) -> list[tuple[str, int]]:
    """Of each module so many lines, spread over it; None: all."""
    kept: list[tuple[str, int]] = []
    for label in range(len(MODULES)):
        of_module = [line for line in _lines() if line[1] == label]
        stride = 1 if n is None else max(1, len(of_module) // n)
        kept += of_module[::stride][:n]
    return kept


def lines(length: int = 32, most: int | None = MOST) -> Split:
    """Lines of code as characters; of which module are they?"""
    found = _at_most(most)
    x = padded([encode(text) for text, _ in found], length)
    return parted(x, torch.tensor([label for _, label in found]))


def words(n_known: int, length: int = 6) -> Split:
    """Lines of code as words; 0 is padding, 1 a word that is not known.

    Lines with fewer than 3 words are left out.
    """
    split_up = [(re.findall(r"\w+", text), label) for text, label in _at_most(2 * MOST)]
    kept = [(line, label) for line, label in split_up if len(line) >= 3]
    counts: dict[str, int] = {}
    for line, _ in kept:
        for word in line:
            counts[word] = counts.get(word, 0) + 1
    common = sorted(counts, key=lambda word: (-counts[word], word))[:n_known]
    numbers = {word: i + 2 for i, word in enumerate(common)}
    rows = [torch.tensor([numbers.get(w, 1) for w in line]) for line, _ in kept]
    return parted(padded(rows, length), torch.tensor([label for _, label in kept]))
