"""Samples that a loader fetches again: whether they are still what they were.

A dataset may change what it has in memory, whenever somebody asks for it.  A random
flip of an image, and of no mask, trains a segmentation on wrong labels: the first
samples of a loader are kept, and compared with themselves as they come again.

Thread safety: the thread that iterates over the loader.

Errors: those of batches that are not what they seem.
"""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MovedMasks", "StoredSamples", "arrays_of", "length_of"]

# Arrays of a dataset that are looked at; bytes of a sample that are read, samples that
# are remembered, and comparisons of stored ones.
_MOST_HELD, _MOST_BYTES, _MOST_INDICES, _MOST_COMPARED = 16, 4096, 1 << 17, 64

# Samples that are kept, numbers of each and of all, and epochs that are looked at.
_MOST_KEPT, _LEAST_SIDE, _MOST_NUMBERS, _MOST_EPOCHS = 32, 4, 1 << 20, 8
# Samples whose mask has not moved; how alike a moved image is, and how much less it is
# if it is moved otherwise.
_LEAST_MOVED, _ALIKE, _LESS = 4, 0.95, 0.1
_MOVES = ("not at all", "left to right", "upside down", "by half a turn")


class _Pair(NamedTuple):
    """An image, or one channel of it, and its mask."""

    image: NDArray[Any]
    mask: NDArray[Any]


class MovedMasks:
    """Compares samples with what they were before.

    Attributes:
        found: Samples whose image has moved otherwise than its mask, and how many
            have moved; None: nothing is wrong so far.
        is_open: Whether it must still hear of batches.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.found: tuple[int, int, str, str] | None = None
        self._kept: dict[int, _Pair] = {}
        self._waiting: list[Any] = []
        self._n_epochs = self._n_apart = self._n_moved = 0

    def begins(self) -> None:
        """Note that an epoch begins."""
        self._waiting.clear()
        self._n_epochs += 1
        if self._n_epochs > _MOST_EPOCHS:
            self._close()

    def note_indices(self, indices: Any) -> None:
        """Note the indices of a batch that will be given after those before it."""
        self._waiting.append(indices)

    def note_batch(self, batch: Any) -> None:
        """Keep samples of a batch, or compare them with those that are kept."""
        indices = self._waiting.pop(0) if self._waiting else None
        if not isinstance(indices, list):
            self._close()
            return
        is_first = self._n_epochs == 1 and len(self._kept) < _MOST_KEPT
        places = [i for i, index in enumerate(indices) if index in self._kept]
        if not is_first and not places:
            return
        found = _images_and_masks(batch, len(indices))
        if found is None:
            self._close()
            return
        for i in places if not is_first else ():
            self._compare(self._kept[indices[i]], _pair_at(found, i))
        if is_first:
            self._keep(indices, found)

    def _keep(self, indices: list[int], found: _Pair) -> None:
        n = min(_MOST_KEPT, _MOST_NUMBERS // max(1, found.mask[0].size))
        for i, index in enumerate(indices[: max(0, n - len(self._kept))]):
            pair = _pair_at(found, i)
            self._kept[index] = _Pair(pair.image.copy(), pair.mask.copy())
        if not self._kept:
            self._close()

    def _compare(self, before: _Pair, now: _Pair) -> None:
        if before.image.shape != now.image.shape:
            return
        moves = [np.array_equal(each, now.mask) for each in _moved(before.mask)]
        alike = [_likeness(each, now.image) for each in _moved(before.image)]
        best = int(np.argmax(alike))
        others = max(alike[:best] + alike[best + 1 :])
        if alike[best] < _ALIKE or others > alike[best] - _LESS or not any(moves):
            return
        self._n_moved += 1
        if not moves[best]:
            self._n_apart += 1
            if self._n_apart >= _LEAST_MOVED:
                how = _MOVES[best], _MOVES[moves.index(True)]
                self.found = self._n_apart, self._n_moved, *how
                self._close()

    def _close(self) -> None:
        self.is_open = False
        self._kept.clear()
        self._waiting.clear()


def _moved(image: NDArray[Any]) -> list[NDArray[Any]]:
    """Return an image as it is and flipped, in the order of their names."""
    return [image, image[:, ::-1], image[::-1], image[::-1, ::-1]]


def _likeness(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the correlation of two images."""
    first, second = (each - each.mean() for each in (one, other))
    size = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / size if size else 0.0


def _pair_at(found: _Pair, i: int) -> _Pair:
    return _Pair(found.image[i], found.mask[i])


def _images_and_masks(batch: Any, n: int) -> _Pair | None:
    """Return the images of a batch and their masks; None: it has none."""
    parts = [*batch.values()] if isinstance(batch, Mapping) else batch
    if not isinstance(parts, list | tuple):
        return None
    every = [each for each in parts if _is_image(each, n)]
    images = [each for each in every if each.is_floating_point() and each.dim() == 4]
    masks = [each for each in every if _is_mask(each)]
    if len(images) != 1 or len(masks) != 1 or images[0] is masks[0]:
        return None
    image, mask = images[0][:, 0], masks[0]
    mask = mask[:, 0] if mask.dim() == 4 else mask
    if image.shape != mask.shape:
        return None
    return _Pair(image.float().numpy(), mask.numpy())


def _is_image(value: Any, n: int) -> bool:
    shape: tuple[int, ...] = getattr(value, "shape", ())
    is_here = getattr(getattr(value, "device", None), "type", "") == "cpu"
    is_image = len(shape) in {3, 4} and min(shape[-2:]) >= _LEAST_SIDE
    return is_here and is_image and shape[0] == n and hasattr(value, "dim")


def _is_mask(value: Any) -> bool:
    """Return whether numbers say what each place of an image is."""
    if value.dim() == 4 and value.shape[1] != 1:
        return False
    if not value.is_floating_point():
        return True
    return bool(((value == 0) | (value == 1)).all())


# ---- stored samples ----------------------------------------------------------------


class StoredSamples:
    """Watches samples that a dataset holds in memory, as they are fetched.

    A sample that is written when it is fetched for the first time is one that a cache
    takes in; one that changes each time it is fetched gets worse and worse.

    Args:
        dataset: The dataset of a loader.

    Attributes:
        n_changed: Samples that have changed when they were fetched again.
        name: The attribute that has them, with the class of the dataset.
    """

    def __init__(self, dataset: Any) -> None:
        # The dataset's own index of a sample of the loader, subset by subset.
        self._indices: list[Any] = []
        while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
            self._indices.append(dataset.indices)
            dataset = dataset.dataset
        self._held = [*islice(arrays_of(dataset), _MOST_HELD)]
        self._kind = type(dataset).__name__
        self._fetched: set[int] = set()
        self._n_compared = self.n_changed = 0
        self.name = ""

    def before(self, indices: Any) -> tuple[int, list[int]] | None:
        """Note that samples are about to be fetched; return what to compare."""
        if not self._held or self._n_compared >= _MOST_COMPARED:
            return None
        if not isinstance(indices, list) or len(self._fetched) >= _MOST_INDICES:
            return None
        own = [self._own(each) for each in indices]
        again = [each for each in own if each in self._fetched]
        self._fetched.update(own)
        # A sample that is drawn twice in this batch may be new the first time.
        return (again[0], self._digests(again[0])) if again else None

    def after(self, row: tuple[int, list[int]], data: Any) -> None:
        """Note that samples were fetched."""
        index, digests = row
        self._n_compared += 1
        shapes = {tuple(each.shape[1:]) for each in _tensors(data)}
        for (name, held), one, other in zip(
            self._held, digests, self._digests(index), strict=True
        ):
            if one != other and tuple(held[index].shape) in shapes:
                self.n_changed += 1
                self.name = f"{self._kind}.{name}"

    def _own(self, index: Any) -> int:
        for each in self._indices:
            index = each[index]
        return int(index)

    def _digests(self, index: int) -> list[int]:
        return [_digest(held[index]) for _, held in self._held]


def arrays_of(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield what holds one array of numbers for each sample, by its attribute."""
    with contextlib.suppress(Exception):
        n = len(dataset)
        for name, value in vars(dataset).items():
            parts = value if isinstance(value, tuple) else (value,)
            for each in parts[:_MOST_HELD]:
                if n and length_of(each) == n and _is_sample(each[0]):
                    yield name, each


def length_of(value: Any) -> int:
    """Return how many items a list or an array has; -1: it is something else.

    Another dataset may draw random numbers for an item, so no item of it is read.
    """
    if type(value) in {list, tuple}:
        return len(value)
    is_array = isinstance(value, np.ndarray | sys.modules["torch"].Tensor)
    return len(value) if is_array and value.ndim else -1


def _is_sample(value: Any) -> bool:
    """Return whether a value is an array of numbers in the memory of the host."""
    shape, dtype = getattr(value, "shape", None), str(getattr(value, "dtype", ""))
    is_of_numbers = "float" in dtype or "uint8" in dtype
    device = getattr(getattr(value, "device", None), "type", "cpu")
    is_array = shape is not None and len(shape) > 0 and shape[0] > 1
    return is_array and is_of_numbers and device == "cpu"


def _digest(value: Any) -> int:
    numbers = value.detach().numpy() if hasattr(value, "detach") else value
    return zlib.crc32(numbers.tobytes()[:_MOST_BYTES])


def _tensors(data: Any) -> Iterator[Any]:
    parts = data.values() if isinstance(data, Mapping) else data
    parts = (
        parts
        if isinstance(parts, list | tuple) or isinstance(data, Mapping)
        else (data,)
    )
    return (each for each in parts if hasattr(each, "shape"))
