"""Handwritten digits: 1,797 real images of 8 x 8 pixels, part of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

__all__ = ["Digits", "load"]

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Digits:
    """Images as float32 (n, 1, 8, 8) of mean 0 and deviation 1; labels as int64."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels

    def batches(self, size: int, seed: int) -> Iterator[tuple[Images, Labels]]:
        """Yield training batches for ever, shuffled anew in each epoch."""
        rng = np.random.default_rng(seed)
        n = len(self.train_labels)
        while True:
            order = rng.permutation(n)
            for start in range(0, n - size + 1, size):
                chosen = order[start : start + size]
                yield self.train_images[chosen], self.train_labels[chosen]

    def rows(self) -> tuple[Images, Images]:
        """The images to learn and those to test with, as rows of 64 pixels."""
        return self.train_images.reshape(-1, 64), self.test_images.reshape(-1, 64)


def load(n_test: int = 360) -> Digits:
    """Load the digits and hold *n_test* of them back for testing."""
    raw = load_digits()
    images = raw.images.astype(np.float32)[:, None]
    labels = raw.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:n_test], order[n_test:]
    images = (images - images[train].mean()) / images[train].std()
    return Digits(images[train], labels[train], images[test], labels[test])
