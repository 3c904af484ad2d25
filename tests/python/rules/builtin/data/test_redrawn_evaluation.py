"""RedrawnEvaluation, on evaluations that get other inputs each time, or do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from tdbg.rules import check
from tdbg.rules.builtin.data.redrawn_evaluation import RedrawnEvaluation
from tdbg.run.findings import Severity

pytestmark = pytest.mark.torch
INFO, WARNING = Severity.INFO, Severity.WARNING


def evaluated(
    out: Path,
    labels: torch.Tensor,
    given: Callable[[torch.Tensor], torch.Tensor],
    *,
    augments: bool = True,
) -> list[tuple[Severity, str]]:
    """Return what is found where evaluation is given some inputs for the labels."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 12), torch.arange(64) % 3
    model, criterion = nn.Sequential(nn.Linear(12, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = td.watch(model, criterion, out=out)
    for _ in range(6):
        for at in range(0, 64, 16):
            noise = torch.randn(16, 12) if augments else 0.0
            optimizer.zero_grad()
            criterion(model(x[at : at + 16] + noise), y[at : at + 16]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            criterion(model(given(labels)), labels)
        model.train()
    hook.close()
    found = check(out, [RedrawnEvaluation()], record=False).findings
    return [(each.severity, each.message) for each in found]


def with_noise(labels: torch.Tensor) -> torch.Tensor:
    fixed = torch.arange(12 * len(labels)).reshape(-1, 12) / 100
    return fixed + torch.randn(len(labels), 12)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_evaluation_that_is_augmented(tmp_path: Path, is_sorted: bool) -> None:
    labels = torch.randint(3, (80,), generator=torch.Generator().manual_seed(1))
    labels = labels.sort().values if is_sorted else labels
    ((severity, message),) = evaluated(tmp_path / "run", labels, with_noise)
    assert severity is WARNING
    assert "the same 80 labels in the same order, but not one input" in message


def test_evaluation_with_noise_on_purpose_is_an_info(tmp_path: Path) -> None:
    labels = torch.randint(3, (80,), generator=torch.Generator().manual_seed(1))
    found = evaluated(tmp_path / "run", labels, with_noise, augments=False)
    assert [severity for severity, _ in found] == [INFO]


@pytest.mark.parametrize(
    ("labels", "given"),
    [
        (torch.randint(3, (80,)), lambda labels: torch.ones(len(labels), 12).cumsum(1)),
        (torch.randint(3, (40,)), with_noise),
        (torch.arange(81) % 3, with_noise),
        (torch.arange(3).repeat_interleave(27), with_noise),
        (
            torch.randint(3, (80,)),
            lambda labels: torch.randn(
                len(labels), 12, generator=torch.Generator().manual_seed(2)
            ),
        ),
    ],
    ids=["no noise", "few", "made up", "made up by class", "seeded"],
)
def test_evaluation_that_is_sound(
    tmp_path: Path,
    labels: torch.Tensor,
    given: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert evaluated(tmp_path / "run", labels, given) == []
