"""Real data that every machine has: scikit-learn's, and Python's own sources.

Splits are the same for every seed: a seed changes initial weights and order only.
"""

from __future__ import annotations

import importlib.util
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

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


@cache
def _split(load: Callable[..., Any], scale: float = 1.0) -> Split:
    x, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    n_val = len(x) // 4
    inputs = torch.tensor(x[order] / scale, dtype=torch.float32)
    targets = torch.tensor(y[order])
    return Split(inputs[n_val:], targets[n_val:], inputs[:n_val], targets[:n_val])


def digits() -> Split:
    """1347 and 450 images of 8 x 8 pixels from 0 to 1, flat, of 10 classes."""
    return _split(datasets.load_digits, 16.0)


def _standard(split: Split, *, raw: bool) -> Split:
    if raw:
        return split
    mean, deviation = split.x.mean(0), split.x.std(0)
    return split.inputs(lambda x: (x - mean) / deviation)


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


def encode(characters: str) -> Tensor:
    """Numbers of characters."""
    numbers = {character: i + 2 for i, character in enumerate(ALPHABET)}
    return torch.tensor([numbers.get(character, 1) for character in characters])


def source(module: str) -> str:
    """The text of a module of Python."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        msg = f"Python has no source of {module}"
        raise FileNotFoundError(msg)
    return Path(spec.origin).read_text(encoding="utf-8")


@cache
def text() -> Tensor:
    """Sources of Python as character numbers, one after the other."""
    return encode("".join(map(source, SOURCES)))


def lines_of_code(shortest: int = 8) -> list[Tensor]:
    """Lines of these sources that are not blank, as character numbers."""
    lines = [line for name in SOURCES for line in source(name).splitlines()]
    return [encode(line) for line in lines if len(line.strip()) >= shortest]


def windows(stream: Tensor, chosen: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Stretches of text that begin at *chosen*, and what follows each character."""
    at = chosen[:, None] + torch.arange(length)
    return stream[at], stream[at + 1]


def thin_out(split: Split, label: int, keep: int) -> Split:
    """Keep only so many examples of a class."""
    of_class = torch.nonzero(split.y == label).flatten()
    others = torch.nonzero(split.y != label).flatten()
    return split.take(torch.cat((others, of_class[:keep])))


PAD, UNKNOWN = 0, 1
OF_LINES = ("argparse", "ast", "calendar", "difflib", "inspect", "pathlib", "tarfile")


@cache
def patches(size: int = 16, n: int = 1600) -> Split:
    """Pieces of two photographs as bytes (n, 3, size, size); which of the two it is.

    Those to validate with are from the right quarter of each photograph.
    """
    luck = np.random.default_rng(5)
    parts: dict[bool, list[Tensor]] = {False: [], True: []}
    labels: dict[bool, list[int]] = {False: [], True: []}
    photos = [torch.tensor(p) for p in datasets.load_sample_images().images]
    for i in range(n):
        photo = photos[i % 2].permute(2, 0, 1)
        border = photo.shape[2] * 3 // 4
        to_train = i % 8 < 6
        first, last = (0, border) if to_train else (border, photo.shape[2])
        top = int(luck.integers(photo.shape[1] - size))
        left = int(luck.integers(first, last - size))
        piece = photo[:, top : top + size, left : left + size]
        parts[to_train].append(piece.float())
        labels[to_train].append(i % 2)
    return Split(
        torch.stack(parts[True]),
        torch.tensor(labels[True]),
        torch.stack(parts[False]),
        torch.tensor(labels[False]),
    )


@cache
def patients() -> Split:
    """Diabetes with age in years, pressure in mmHg, ...; targets normalized."""
    x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    targets = torch.tensor(y, dtype=torch.float32)[:, None]
    targets = (targets - targets.mean()) / targets.std()
    return parted(torch.tensor(x, dtype=torch.float32), targets, 3, 4)


@cache
def flowers() -> Split:
    """150 irises, 4 measurements, normalized, of 3 kinds."""
    x, y = datasets.load_iris(return_X_y=True)
    inputs = torch.tensor(x, dtype=torch.float32)
    return parted((inputs - inputs.mean(0)) / inputs.std(0), torch.tensor(y), 3, 4)


@cache
def prose() -> str:
    """What Python's help says about its topics: English, half a million letters."""
    return "\n".join(topics[name] for name in sorted(topics))


@cache
def kinds_of_lines() -> tuple[tuple[str, ...], ...]:
    """Lines of each kind, in an order by chance that is always the same."""
    code = [line.strip() for name in OF_LINES for line in source(name).splitlines()]
    names = (unicodedata.name(chr(i), "") for i in range(0x20, 0x3000))
    found: Sequence[Iterable[str]] = (
        (line.strip() for line in prose().splitlines() if len(line) > 40),
        (line for line in code if re.search(r"[=(:]", line) and line[0] not in "#\"'"),
        (line for line in code if line.startswith("#")),
        names,
    )
    luck = np.random.default_rng(11)
    sorted_lines = (sorted({line for line in of if len(line) > 12}) for of in found)
    return tuple(
        tuple(lines[i] for i in luck.permutation(len(lines))) for lines in sorted_lines
    )


def rows_of(lines: Iterable[str], length: int) -> Tensor:
    """Lines as rows of character numbers, cut or padded with 0."""
    rows = list(lines)
    filled = torch.stack([encode(line[:length].ljust(length)) for line in rows])
    inside = torch.tensor([[i < len(line) for i in range(length)] for line in rows])
    return filled * inside


def words_of(text: str) -> list[str]:
    """Words of a text, in small letters."""
    return re.findall(rf"[a-z_]+|[{re.escape(string.punctuation)}]", text.lower())


def vocabulary(words: Iterable[str], at_least: int) -> dict[str, int]:
    """Numbers of the words that are so frequent; 0 is padding, 1 unknown."""
    frequent = [w for w, n in Counter(words).most_common() if n >= at_least]
    return {word: i + 2 for i, word in enumerate(frequent)}


def pictures() -> Split:
    """Digits that are to be drawn again."""
    split = digits()
    return replace(split, y=split.x, y_val=split.x_val)


#: Whose lines are told apart.
TOLD_APART = ("argparse", "json.decoder", "heapq", "textwrap", "string")


def parted(x: Tensor, y: Tensor, seed: int = 1, part: int = 5) -> Split:
    """A fifth of it, or another part, chosen at random, to validate with."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    n_val = len(x) // part
    x, y = x[order], y[order]
    return Split(x[n_val:], y[n_val:], x[:n_val], y[:n_val])


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
def _lines() -> tuple[tuple[str, int], ...]:
    return tuple(
        (line.strip(), label)
        for label, module in enumerate(TOLD_APART)
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
    for label in range(len(TOLD_APART)):
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
