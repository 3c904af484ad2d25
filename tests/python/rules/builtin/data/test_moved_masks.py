"""LoaderMisuse, on images that are flipped without their masks."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.rules.builtin.data.loader_misuse import LoaderMisuse
from tdbg.run.findings import Severity

pytestmark = pytest.mark.torch
SIDE, N = 12, 24
Augment = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def _child_handler() -> Iterator[None]:
    """PyTorch handles the ends of workers, and goes on to."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


class Shapes(Dataset[Any]):
    """Rectangles in noise, with masks."""

    def __init__(self, augment: Augment, *, has_shapes: bool = True) -> None:
        rng = np.random.default_rng(0)
        self.augment = augment
        self.masks = torch.zeros(N, SIDE, SIDE, dtype=torch.long)
        for mask in self.masks if has_shapes else ():
            top, left = rng.integers(0, 6, 2)
            mask[top : top + 4, left : left + 5] = 1
        noise = torch.randn(N, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
        self.images = (self.masks + 0.2 * noise)[:, None].float()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self.augment(self.images[index], self.masks[index])


def said_of_masks(out: Path, data: Dataset[Any], **settings: Any) -> list[str]:
    random.seed(0)
    model, criterion = nn.Conv2d(1, 2, 3, padding=1), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.watch(model, criterion, out=out)
    loader = DataLoader(data, 4, shuffle=True, **settings)
    for _ in range(6):
        for image, mask in loader:
            optimizer.zero_grad()
            criterion(model(image), mask).backward()
            optimizer.step()
    assert hook.counters()["internal_errors"] == 0
    hook.close()
    found = check(out, [LoaderMisuse()], record=False).findings
    return [each.message for each in found if each.severity is Severity.WARNING]


def image_alone(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return (image.flip(-1) if random.random() < 0.5 else image), mask


def drawn_twice(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    image = image.flip(-2) if random.random() < 0.5 else image
    return image, (mask.flip(-2) if random.random() < 0.5 else mask)


def brighter_too(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return image_alone(image * random.uniform(0.7, 1.4) + 0.3, mask)


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (image_alone, "left to right"),
        (drawn_twice, "upside down"),
        (brighter_too, "left to right"),
    ],
)
def test_images_that_are_flipped_without_their_masks_are_found(
    tmp_path: Path, augment: Augment, words: str
) -> None:
    (said,) = said_of_masks(tmp_path, Shapes(augment))
    assert "flips images and masks apart" in said
    assert words in said


def test_masks_that_workers_leave_are_found(tmp_path: Path) -> None:
    (said,) = said_of_masks(tmp_path, Shapes(image_alone), num_workers=1)
    assert "flips images and masks apart" in said


def both(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    for axis in (-1, -2):
        if random.random() < 0.5:
            image, mask = image.flip(axis), mask.flip(axis)
    return image, mask


def neither(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return image, mask


def noisy(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return both(image + 0.3 * torch.randn_like(image), mask)


@pytest.mark.parametrize("augment", [both, neither, noisy])
def test_masks_that_move_with_their_images_are_right(
    tmp_path: Path, augment: Augment
) -> None:
    assert not said_of_masks(tmp_path, Shapes(augment))


def test_a_mask_of_nothing_looks_the_same_when_it_is_flipped(tmp_path: Path) -> None:
    assert not said_of_masks(tmp_path, Shapes(image_alone, has_shapes=False))


def test_a_class_of_an_image_is_no_mask(tmp_path: Path) -> None:
    class Classified(Shapes):
        def __getitem__(self, index: int) -> Any:
            image, _ = image_alone(self.images[index], self.masks[index])
            return image, torch.full((SIDE, SIDE), index % 2)

    assert not said_of_masks(tmp_path, Classified(both))
