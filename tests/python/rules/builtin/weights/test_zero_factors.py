"""PoorWeightInitialization, on factors that multiply each other and begin at zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import tdbg.pytorch as td
from tdbg.rules import AllZero, PoorWeightInitialization, VanishingGradient, check
from tdbg.run.findings import Finding, Severity


class Factors(nn.Module):
    """Ratings as products of what is known of users and of items."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 4), nn.Embedding(30, 4)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(1)


class Adapted(nn.Module):
    """A frozen layer with a change of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8).requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(2, 16))
        self.up = nn.Parameter(torch.zeros(8, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.linear(inputs) + inputs @ self.down.T @ self.up.T
        return out


def findings(run_dir: Path, model: Factors | Adapted) -> list[Finding]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    rules = [PoorWeightInitialization(), AllZero(), VanishingGradient()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(model)
        for _ in range(20):
            optimizer.zero_grad()
            if isinstance(model, Factors):
                made = model(torch.randint(20, (32,)), torch.randint(30, (32,)))
                loss = F.mse_loss(made, torch.randn(32))
            else:
                inputs = torch.randn(32, 16)
                loss = F.mse_loss(model(inputs), inputs[:, :8])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return list(check(run_dir, rules=rules).findings)


@pytest.mark.parametrize("kind", [Factors, Adapted])
def test_two_factors_at_zero_are_the_cause_of_all_that_follows(
    run_dir: Path, kind: type[Factors | Adapted]
) -> None:
    torch.manual_seed(0)
    model = kind()
    for parameter in model.parameters():
        nn.init.zeros_(parameter.data)
    first, *others = sorted(findings(run_dir, model), key=lambda each: each.first_step)
    assert (first.rule, first.step) == ("PoorWeightInitialization", 0)
    assert first.severity is Severity.ERROR
    assert (
        "All initial weights of this layer are zero, and so is their gradient"
        in first.message
    )
    assert "only one may start at zero" in first.advice
    assert others
    assert {each.cause and each.cause.rule for each in others} == {first.rule}


@pytest.mark.parametrize("kind", [Factors, Adapted])
def test_one_factor_at_zero_learns(
    run_dir: Path, kind: type[Factors | Adapted]
) -> None:
    torch.manual_seed(0)
    model = kind()
    if isinstance(model, Factors):
        nn.init.zeros_(model.items.weight)
    assert findings(run_dir, model) == []
