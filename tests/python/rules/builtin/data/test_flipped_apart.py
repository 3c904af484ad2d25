"""LabelMisuse: images and targets of their size that are flipped apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

N, SIDE = 16, 12
Pair = tuple[Tensor, Tensor]
Augment = Callable[[Tensor, Tensor], Pair]


def shapes(n: int = N) -> Pair:
    """Bars at random places, in noise, and where they are."""
    mask = torch.zeros(n, 1, SIDE, SIDE)
    for each in mask:
        top, left = torch.randint(0, SIDE - 4, (2,)).tolist()
        each[0, top : top + 3, left : left + 4] = 1.0
    return mask + 0.2 * torch.randn_like(mask), mask


def coins(n: int = N) -> Tensor:
    return (torch.rand(n) < 0.5)[:, None, None, None]


def flipped(x: Tensor, coin: Tensor) -> Tensor:
    return torch.where(coin, x.flip(3), x)


def apart(x: Tensor, y: Tensor) -> Pair:
    return flipped(x, coins(len(x))), flipped(y, coins(len(x)))


def only_the_image(x: Tensor, y: Tensor) -> Pair:
    return flipped(x, coins(len(x))), y


def upside_down(x: Tensor, y: Tensor) -> Pair:
    coin = coins(len(x))
    return torch.where(coin, x.flip(2), x), y


def together(x: Tensor, y: Tensor) -> Pair:
    coin = coins(len(x))
    return flipped(x, coin), flipped(y, coin)


def as_they_are(x: Tensor, y: Tensor) -> Pair:
    return x, y


def mirrors(x: Tensor, y: Tensor) -> Pair:
    """The task is to mirror."""
    return x, y.flip(3)


def unlike(x: Tensor, y: Tensor) -> Pair:
    """Targets that no image resembles, such as noise."""
    return x, torch.randn_like(y)


def restored(_: Tensor, y: Tensor) -> Pair:
    return y + 0.3 * torch.randn_like(y), y


def symmetric(x: Tensor, y: Tensor) -> Pair:
    return apart(x + x.flip(3), y + y.flip(3))


def judged(run_dir: Path, augment: Augment, n: int = N) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1)
    )
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with td.watch(model, criterion, out=run_dir, budget="off") as hook:
        for _ in range(12):
            x, y = augment(*shapes(n))
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        assert hook.counters()["internal_errors"] == 0
    return list(check(run_dir, ["LabelMisuse"], record=False).findings)


@pytest.mark.parametrize("augment", [apart, only_the_image, upside_down])
def test_masks_that_are_flipped_apart_are_a_warning(
    augment: Augment, run_dir: Path
) -> None:
    (finding,) = judged(run_dir, augment)
    assert finding.severity is Severity.WARNING
    assert "Images and targets are flipped apart" in finding.message
    assert finding.advice.startswith("Draw each flip once")


@pytest.mark.parametrize(
    "augment", [together, as_they_are, mirrors, unlike, restored, symmetric]
)
def test_pairs_that_belong_together_are_not_accused(
    augment: Augment, run_dir: Path
) -> None:
    assert judged(run_dir, augment) == []


def test_single_images_are_too_few(run_dir: Path) -> None:
    assert judged(run_dir, apart, n=1) == []
