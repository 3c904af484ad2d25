"""LossTermMisuse: data and noise that a diffusion mixes, by their shares."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.losses.noise_mixtures import Mixtures
from tdbg.rules.builtin.loss.term_misuse import LossTermMisuse
from tdbg.run.findings import Severity
from tdbg.run.observations import Fault, Observation

N, SIDE = 8, 6
Shares = Callable[[Tensor], tuple[Tensor, Tensor]]


def seen(shares: Shares, *, is_flat: bool = False) -> list[str]:
    """Return whose share has no root, of a step of a diffusion."""
    torch.manual_seed(0)
    images = torch.rand(N, 1, SIDE, SIDE)
    layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1))
    if is_flat:
        images = images.flatten(1)
        layers = nn.Sequential(nn.Linear(SIDE * SIDE, SIDE * SIDE))
    level = torch.linspace(0.1, 0.9, N).view(-1, *[1] * (images.dim() - 1))
    noise = torch.randn_like(images)
    one, other = shares(level)
    noisy = one * images + other * noise
    loss = functional.mse_loss(layers(noisy), noise)
    return [words["of"] for _, _, words in Mixtures()(Graph(loss))]


@pytest.mark.parametrize("is_flat", [False, True])
def test_noise_that_is_weighed_by_a_variance(is_flat: bool) -> None:
    assert seen(lambda a: (a.sqrt(), 1 - a), is_flat=is_flat) == ["noise"]


def test_data_that_are_weighed_by_a_variance() -> None:
    assert seen(lambda a: (a, (1 - a).sqrt())) == ["data"]


@pytest.mark.parametrize(
    "shares",
    [
        lambda a: (a.sqrt(), (1 - a).sqrt()),
        lambda a: (a, 1 - a),
        lambda a: (torch.ones_like(a), a),
        lambda a: (a.cos(), a.sin()),
        lambda a: (0 * a + 0.5**0.5, 0 * a + 0.5),
    ],
    ids=["variance preserved", "straight", "variance grows", "angles", "one level"],
)
def test_shares_as_they_are_meant(shares: Shares) -> None:
    assert seen(shares) == []


def test_a_regression_of_standardized_targets_is_no_diffusion() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(64, 16), torch.randn(64, 16)
    loss = functional.mse_loss(nn.Linear(16, 16)(inputs), targets)
    assert list(Mixtures()(Graph(loss))) == []
    assert len(inputs) == len(targets)


# ---- several batches -----------------------------------------------------------------


def trained(
    level: Callable[[int], Tensor],
    *,
    draw: Callable[[Tensor], Tensor] = torch.randn_like,
) -> list[tuple[Fault, Severity]]:
    """Return what is found in the batches of a diffusion."""
    torch.manual_seed(0)
    layer, mixtures, found = nn.Linear(16, 16), Mixtures(), dict[Fault, Severity]()
    while not mixtures.is_over:
        images = torch.rand(24, 16)
        noise, keep = draw(images), level(len(images)).view(-1, 1)
        noisy = keep.sqrt() * images + (1 - keep).sqrt() * noise
        loss = functional.mse_loss(layer(noisy), noise)
        for fault, numbers, words in mixtures(Graph(loss)):
            seen = Observation(fault, 0, ("Net",), numbers, words)
            assert LossTermMisuse().describe(seen).message
            found[fault] = LossTermMisuse().severity_of(seen)
    return list(found.items())


def test_samples_that_never_are_mostly_noise_are_an_info() -> None:
    found = trained(lambda n: 1 - 0.02 * torch.rand(n))
    assert found == [(Fault.NEVER_ALL_NOISE, Severity.INFO)]


def test_one_level_for_all_samples_of_a_batch_is_an_info() -> None:
    found = trained(lambda n: torch.rand(1).expand(n))
    assert found == [(Fault.ONE_LEVEL_OF_NOISE, Severity.INFO)]


def test_uniform_noise_is_a_warning() -> None:
    found = trained(torch.rand, draw=torch.rand_like)
    assert found == [(Fault.NOISE_IS_UNIFORM, Severity.WARNING)]


@pytest.mark.parametrize(
    "level", [torch.rand, lambda n: 0 * torch.rand(n) + 0.9], ids=["all", "one always"]
)
def test_levels_as_they_are_meant(level: Callable[[int], Tensor]) -> None:
    assert trained(level) == []
