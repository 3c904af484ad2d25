"""What a run holds of its labels, predictions and images; who is taken for whom."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tdbg
from examples.case_study.train import load

__all__ = [
    "Batch",
    "Lookalike",
    "Pair",
    "confusion",
    "lookalikes",
    "mirrored_share",
    "pairs",
    "read",
]

N_CLASSES = 10
# What is told of a flipped image, by the axes that were flipped.
FLIPS = {
    (): "as it is",
    (2,): "mirrored left to right",
    (1,): "mirrored upside down",
    (1, 2): "mirrored both ways",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """One step, as it was captured: entries belong together."""

    step: int
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    answers: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pair:
    """Images of one digit that are taken for another, as a share of the first."""

    label: int
    taken_for: int
    share: float


@dataclass(frozen=True, slots=True)
class Lookalike:
    """A mistaken image, and the nearest that was trained with under the wrong label.

    Attributes:
        image: The test image.
        nearest: The captured training image.
        flip: What had been done to it, in words; "as it is" for nothing.
    """

    image: NDArray[np.float32]
    nearest: NDArray[np.float32]
    flip: str

    @property
    def is_mirrored(self) -> bool:
        """Whether the training showed an image that nobody has written."""
        return self.flip != FLIPS[()]


def read(run: Path, mode: tdbg.ModeKeys) -> list[Batch]:
    """The batches of a mode of which all three were captured, by step."""
    trial = tdbg.create_trial(run)
    of = {
        role: trial.tensor(trial.tensor_names(collection=role)[0])
        for role in ("model_inputs", "labels", "predictions")
    }
    found = []
    steps = [set(each.steps(mode=mode, what="values")) for each in of.values()]
    for step in sorted(set.intersection(*steps)):
        images, labels, scores = (each.value(step, mode=mode) for each in of.values())
        found.append(Batch(step, images[:, 0], labels, scores.argmax(axis=1)))
    return found


def confusion(batch: Batch) -> NDArray[np.int64]:
    """How many images there are, by label and answer."""
    counts = np.zeros((N_CLASSES, N_CLASSES), np.int64)
    np.add.at(counts, (batch.labels, batch.answers), 1)
    return counts


def pairs(counts: NDArray[np.int64], least: float) -> list[Pair]:
    """The pairs of which a share of *least* and more is confused, worst first."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(shares, 0.0)
    found = [Pair(i, j, float(shares[i, j])) for i, j in np.ndindex(*counts.shape)]
    return sorted((p for p in found if p.share >= least), key=lambda p: -p.share)


def lookalikes(pair: Pair, test: Batch, trained: list[Batch]) -> list[Lookalike]:
    """The mistaken images of a pair, each with what it was mistaken for."""
    mistaken = (test.labels == pair.label) & (test.answers == pair.taken_for)
    shown = _of_digit(trained, pair.taken_for)
    flips = _flips()
    found = []
    for image in test.images[mistaken]:
        nearest = shown[((shown - image) ** 2).sum(axis=(1, 2)).argmin()]
        found.append(Lookalike(image, nearest, flips[nearest.tobytes()]))
    return found


def mirrored_share(trained: list[Batch], digit: int) -> float:
    """Of the captured training images of a digit, the share that are mirrored."""
    flips = _flips()
    images = _of_digit(trained, digit)
    return float(np.mean([flips[image.tobytes()] != FLIPS[()] for image in images]))


def _of_digit(batches: list[Batch], digit: int) -> NDArray[np.float32]:
    return np.concatenate([batch.images[batch.labels == digit] for batch in batches])


@functools.cache
def _flips() -> dict[bytes, str]:
    """What was done to an image of the training data, by its bytes."""
    images = load().train_images[:, 0].numpy()
    found: dict[bytes, str] = {}
    for axes, name in FLIPS.items():
        for image in np.flip(images, axes) if axes else images:
            # A symmetric image counts as what it is.
            found.setdefault(image.tobytes(), name)
    return found
