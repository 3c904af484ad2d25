"""The same training of digits for every framework, healthy or with one fault.

Everything that decides how a training goes is made here with NumPy: the images in
their order, the weights that it starts from, the rate. A program of a framework
(programs/) only builds the layers, and feeds the batches in the order given. So what
the rules say of one framework should be what they say of another, at about the same
step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

__all__ = ["TRAININGS", "Layer", "Training", "by_name"]

Array = NDArray[np.float32]
Labels = NDArray[np.int64]

_N_CLASSES = 10
_N_VALIDATION = 297


@dataclass(frozen=True)
class Layer:
    """A dense layer as it is before the first step.

    Attributes:
        kernel: Of inputs times units, as Keras and Flax have it.
        bias: One for each unit.
        is_trained: Whether the optimizer gets its parameters.
    """

    kernel: Array
    bias: Array
    is_trained: bool = True


@dataclass(frozen=True)
class Training:
    """A training, or the same with one fault.

    Attributes:
        name: Of the fault, or ``healthy``.
        named_by: The rules that may name the fault.
        activation: Of all layers but the last: ``relu`` or ``sigmoid``.
        hidden: Units of each of these layers.
        bias: Of hidden units at the beginning.
        n_frozen: Layers, from the first on, that are not trained.
        rate: Learning rate of plain stochastic gradient descent.
        kept_of_minority: Share of the images kept of all classes but 0.
        n_of_class: Images of each class to train on; None: all.
        wrong_labels: Share of the labels that are drawn at random.
        n_epochs: How often they are gone through.
        batch_size: Images in a step.
    """

    name: str
    named_by: tuple[str, ...] = ()
    activation: str = "relu"
    hidden: tuple[int, ...] = (64, 32)
    bias: float = 0.0
    n_frozen: int = 0
    rate: float = 0.1
    kept_of_minority: float = 1.0
    n_of_class: int | None = None
    wrong_labels: float = 0.0
    n_epochs: int = 10
    batch_size: int = 50
    seed: int = field(default=0, repr=False)

    def layers(self) -> list[Layer]:
        """Return the layers as they are before the first step."""
        generator = np.random.default_rng(self.seed)
        sizes = [64, *self.hidden, _N_CLASSES]
        layers = []
        for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
            is_hidden = i < len(self.hidden)
            bound = (6.0 / (n_in + n_out)) ** 0.5  # Glorot's, the default of Keras.
            kernel = generator.uniform(-bound, bound, (n_in, n_out))
            bias = np.full(n_out, self.bias if is_hidden else 0.0)
            layers.append(
                Layer(
                    kernel.astype(np.float32),
                    bias.astype(np.float32),
                    is_trained=i >= self.n_frozen,
                )
            )
        return layers

    def data(self) -> tuple[Array, Labels]:
        """Return normalised images (n, 64) and labels (n), in a random order."""
        images, labels = _digits(self.seed)
        images, labels = images[_N_VALIDATION:], labels[_N_VALIDATION:]
        if self.kept_of_minority < 1.0:
            generator = np.random.default_rng(self.seed)
            is_kept = generator.random(len(labels)) < self.kept_of_minority
            keep = is_kept | (labels == 0)
            images, labels = images[keep], labels[keep]
        if self.n_of_class is not None:
            found = [np.flatnonzero(labels == each) for each in range(_N_CLASSES)]
            keep = np.sort(np.concatenate([each[: self.n_of_class] for each in found]))
            images, labels = images[keep], labels[keep]
        if self.wrong_labels:
            generator = np.random.default_rng(self.seed)
            drawn = generator.integers(_N_CLASSES, size=len(labels))
            is_wrong = generator.random(len(labels)) < self.wrong_labels
            labels = np.where(is_wrong, drawn, labels)
        n = len(images) - len(images) % self.batch_size
        return images[:n], labels[:n]

    def validation(self) -> tuple[Array, Labels]:
        """Return 297 images and their labels, which are not trained on."""
        images, labels = _digits(self.seed)
        return images[:_N_VALIDATION], labels[:_N_VALIDATION]

    def batches(self) -> Iterator[tuple[Array, Labels]]:
        """Go once through the data, always in the same order."""
        images, labels = self.data()
        for start in range(0, len(images), self.batch_size):
            stop = start + self.batch_size
            yield images[start:stop], labels[start:stop]


def _digits(seed: int) -> tuple[Array, Labels]:
    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    images = found.data[order]
    images = (images - images.mean()) / images.std()
    return images.astype(np.float32), found.target[order].astype(np.int64)


_HEALTHY = Training("healthy")

TRAININGS = (
    _HEALTHY,
    replace(
        _HEALTHY,
        name="deep sigmoids",
        named_by=("VanishingGradient", "PoorWeightInitialization"),
        activation="sigmoid",
        hidden=(32,) * 8,
    ),
    replace(_HEALTHY, name="dead ReLUs", named_by=("DeadRelu",), bias=-8.0),
    replace(
        _HEALTHY,
        name="exploding rate",
        named_by=("WeightUpdateRatio", "ExplodingTensor"),
        rate=100.0,
    ),
    replace(
        _HEALTHY,
        name="frozen layers",
        named_by=("NotInOptimizer", "UnchangedTensor"),
        n_frozen=2,
    ),
    replace(
        _HEALTHY,
        name="class imbalance",
        named_by=("ClassImbalance",),
        kept_of_minority=0.02,
        n_epochs=40,
        batch_size=20,
    ),
    replace(
        _HEALTHY,
        name="overfit",
        named_by=("Overfit",),
        hidden=(256, 256),
        n_of_class=20,
        wrong_labels=0.6,
        batch_size=20,
        n_epochs=30,
    ),
)
"""The healthy training, and one of each fault."""


def by_name(name: str) -> Training:
    """Return the training of this name."""
    return next(each for each in TRAININGS if each.name == name)
