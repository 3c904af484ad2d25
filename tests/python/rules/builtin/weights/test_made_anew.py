"""UnregisteredParameter, on real trainings: layers that are made in forward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def plain(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), labels)


def judged(run_dir: Path, model: nn.Module, loss_of: Loss = plain) -> list[Finding]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        for _ in range(20):
            x = torch.randn(16, 8)
            loss = loss_of(model, x, (x[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return list(check(run_dir, ["UnregisteredParameter"]).findings)


class MadeInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = torch.relu(self.body(x))
        adapter = nn.Linear(h.shape[1], 12)
        return self.head(torch.relu(adapter(h)))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def test_a_layer_that_forward_makes_is_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    (finding,) = judged(tmp_path / "run", MadeInForward())
    assert finding.severity is Severity.WARNING
    assert "A layer is made anew in each forward pass" in finding.message
    assert "(12, 16), (12,)" in finding.message
    assert "in the constructor" in finding.advice


def adversarial(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Perturb the inputs by a parameter of this step."""
    delta = nn.Parameter(1e-2 * torch.randn_like(x))
    (slope,) = torch.autograd.grad(plain(model, x + delta, labels), delta)
    with torch.no_grad():
        delta += 0.1 * slope.sign()
    return plain(model, x + delta, labels)


def meta(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Train a copy for a step, and the model near it, as Reptile does."""
    clone = copy.deepcopy(model)
    inner = torch.optim.SGD(clone.parameters(), 0.1)
    plain(clone, x, labels).backward()
    inner.step()
    pairs = zip(model.parameters(), clone.parameters(), strict=True)
    return sum((p - c.detach()).square().sum() for p, c in pairs)  # type: ignore[return-value]


def prompt(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Weigh the loss by a fresh linear probe of the input that is not trained."""
    probe = nn.Linear(8, 1).requires_grad_(False)
    return plain(model, x, labels) * probe(x).sigmoid().mean()


@pytest.mark.parametrize("loss_of", [plain, adversarial, meta, prompt])
def test_parameters_of_one_step_that_are_meant_are_not_named(
    loss_of: Loss, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    assert not judged(tmp_path / "run", network(), loss_of)


def test_a_layer_that_is_made_once_is_not_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 2))
    model(torch.randn(2, 8))
    assert not judged(tmp_path / "run", model)
