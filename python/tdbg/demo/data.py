"""Handwritten digits: 1,797 real images of 8 x 8 pixels, part of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor

__all__ = ["Digits", "load"]


@dataclass(frozen=True, slots=True)
class Digits:
    """Images as float32 (n, 1, 8, 8) of mean 0 and deviation 1; labels as int64."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def batches(self, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield training batches for ever, shuffled anew in each epoch."""
        generator = torch.Generator().manual_seed(seed)
        n = len(self.train_labels)
        while True:
            order = torch.randperm(n, generator=generator)
            for start in range(0, n - size + 1, size):
                chosen = order[start : start + size]
                yield self.train_images[chosen], self.train_labels[chosen]


def load(n_test: int = 360) -> Digits:
    """Load the digits and hold *n_test* of them back for testing."""
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:n_test], order[n_test:]
    mean, deviation = images[train].mean(), images[train].std()
    images = (images - mean) / deviation
    return Digits(images[train], labels[train], images[test], labels[test])
