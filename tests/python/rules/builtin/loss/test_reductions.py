"""LossTermMisuse: sums and means over samples, and risks along samples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.checks.losses.loss_terms import faults_of_terms
from tdbg.run.observations import Fault

N, WIDTH = 16, 6
Reduction = Callable[[Tensor], Tensor]


def autoencoder(
    rest: Reduction,
    divergence: Reduction,
    *,
    log_variance: Tensor | None = None,
) -> list[Fault]:
    """Return what is said of a loss whose two parts are reduced so."""
    layer = nn.Linear(WIDTH, 2 * WIDTH)
    inputs = torch.randn(N, WIDTH)
    mean, spread = layer(inputs).chunk(2, 1)
    spread = spread if log_variance is None else log_variance
    code = mean + (0.5 * spread).exp() * torch.randn(N, WIDTH)
    apart = -0.5 * (1 + spread - mean.pow(2) - spread.exp())
    loss = rest((code - inputs) ** 2) + divergence(apart)
    return [fault for fault, _, _ in faults_of_terms(Graph(loss))]


def added(x: Tensor) -> Tensor:
    return x.sum()


def averaged(x: Tensor) -> Tensor:
    return x.mean()


def by_sample(x: Tensor) -> Tensor:
    return x.sum(1).mean()


def divided(x: Tensor) -> Tensor:
    return x.sum() / N


@pytest.mark.parametrize(
    ("rest", "divergence"),
    [(averaged, added), (by_sample, added), (divided, added), (added, averaged)],
)
def test_a_divergence_is_reduced_otherwise_than_the_rest(
    rest: Reduction, divergence: Reduction
) -> None:
    assert autoencoder(rest, divergence) == [Fault.REDUCTIONS_DIFFER]


def test_a_small_weight_does_not_balance_a_sum_with_a_mean_over_many_values() -> None:
    layer = nn.Linear(WIDTH, 2 * WIDTH)
    decoder = nn.Linear(WIDTH, 500)
    mean, spread = layer(torch.randn(N, WIDTH)).chunk(2, 1)
    out = decoder(mean + (0.5 * spread).exp() * torch.randn(N, WIDTH))
    apart = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum()
    error = functional.mse_loss(out, torch.randn(N, 500))
    ((fault, numbers, _),) = faults_of_terms(Graph(error + 0.2 * apart))
    assert fault is Fault.REDUCTIONS_DIFFER
    assert numbers["times"] == pytest.approx(0.2 * N * 500)
    assert list(faults_of_terms(Graph(error + apart / (N * 500)))) == []


@pytest.mark.parametrize(
    ("rest", "divergence"),
    [
        (added, added),
        (averaged, averaged),
        (by_sample, by_sample),
        (by_sample, divided),
        (averaged, lambda x: 0.001 * x.sum()),
        (by_sample, lambda x: 0.1 * x.sum()),
        (added, lambda x: 0.1 * x.mean()),
        (lambda x: x.sum() / N * 3, by_sample),
        (lambda x: (x.sum() + 0.0) * 1.0, added),
    ],
)
def test_both_are_reduced_alike_or_a_weight_is_chosen(
    rest: Reduction, divergence: Reduction
) -> None:
    assert autoencoder(rest, divergence) == []


def test_a_divergence_of_weights_has_no_samples() -> None:
    layer = nn.Linear(4, N)
    mean, spread = (nn.Parameter(torch.randn(N, 4)) for _ in range(2))
    weight = mean + (0.5 * spread).exp() * torch.randn(N, 4)
    error = functional.mse_loss(layer(torch.randn(N, 4)) @ weight, torch.randn(N, 4))
    apart = -0.5 * (1 + spread - mean**2 - spread.exp()).sum()
    assert list(faults_of_terms(Graph(error + apart))) == []


def cox(risk: Tensor, event: Tensor) -> Tensor:
    return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum()


def cox_by_hand(risk: Tensor, event: Tensor) -> Tensor:
    return -((risk - risk.exp().cumsum(0).log()) * event).sum() / event.sum()


def patients() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(N, WIDTH), torch.rand(N), (torch.rand(N) < 0.7).float()


@pytest.mark.parametrize("loss", [cox, cox_by_hand])
def test_risks_add_up_along_samples_that_nobody_has_sorted(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    x, time, event = patients()
    assert len(time) == N
    risk = nn.Linear(WIDTH, 1)(x).squeeze(1)
    ((fault, _, words),) = faults_of_terms(Graph(loss(risk, event)))
    assert (fault, words) == (Fault.RISKS_UNSORTED, {"name": "time"})


def test_samples_that_are_sorted_in_the_loss() -> None:
    x, time, event = patients()

    def loss(risk: Tensor) -> Tensor:
        order = time.argsort(descending=True)
        return cox(risk[order], event[order])

    found = faults_of_terms(Graph(loss(nn.Linear(WIDTH, 1)(x).squeeze(1))))
    assert list(found) == []


def test_samples_that_are_sorted_before_the_model() -> None:
    x, time, event = patients()
    order = time.argsort(descending=True)
    risk = nn.Linear(WIDTH, 1)(x[order]).squeeze(1)
    assert list(faults_of_terms(Graph(cox(risk, event[order])))) == []


def test_batches_that_come_sorted() -> None:
    x, time, event = patients()
    time = time.sort(descending=True).values
    risk = nn.Linear(WIDTH, 1)(x).squeeze(1)
    assert len(time) == N
    assert list(faults_of_terms(Graph(cox(risk, event)))) == []


def test_steps_of_one_path_that_add_up() -> None:
    x, time, places = patients()
    steps = nn.Linear(WIDTH, 1)(x).squeeze(1)
    assert len(time) == N
    loss = functional.mse_loss(steps.cumsum(0), places)
    assert list(faults_of_terms(Graph(loss))) == []
