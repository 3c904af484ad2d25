"""Real data of other kinds: photographs, prose, lines of several kinds, raw tables."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pydoc_data.topics import topics

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

from benchmarks.detection.corpus.data import Split, encode, source

__all__ = [
    "KINDS",
    "PAD",
    "UNKNOWN",
    "characters",
    "flowers",
    "halved",
    "kinds_of_lines",
    "patches",
    "patients",
    "prose",
    "vocabulary",
    "words_of",
]

PAD, UNKNOWN = 0, 1
#: What a line can be.
KINDS = ("prose", "code", "comment", "name of a character")
MODULES = ("argparse", "ast", "calendar", "difflib", "inspect", "pathlib", "tarfile")


def halved(x: Tensor, y: Tensor) -> Split:
    """Three quarters of the rows to train on; always the same ones."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    n = len(x) // 4
    return Split(x[order[n:]], y[order[n:]], x[order[:n]], y[order[:n]])


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
    return halved(torch.tensor(x, dtype=torch.float32), targets)


@cache
def flowers() -> Split:
    """150 irises, 4 measurements, normalized, of 3 kinds."""
    x, y = datasets.load_iris(return_X_y=True)
    inputs = torch.tensor(x, dtype=torch.float32)
    return halved((inputs - inputs.mean(0)) / inputs.std(0), torch.tensor(y))


@cache
def prose() -> str:
    """What Python's help says about its topics: English, half a million letters."""
    return "\n".join(topics[name] for name in sorted(topics))


@cache
def kinds_of_lines() -> tuple[tuple[str, ...], ...]:
    """Lines of each kind, in an order by chance that is always the same."""
    code = [line.strip() for name in MODULES for line in source(name).splitlines()]
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


def characters(lines: Iterable[str], length: int) -> Tensor:
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
