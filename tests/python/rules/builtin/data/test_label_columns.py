"""LabelMisuse, on real trainings: columns of the inputs that are the label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

N, BATCH = 192, 32
Loss = Callable[[Tensor, Tensor], Tensor]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def found(
    run_dir: Path, x: Tensor, y: Tensor, loss_of: Loss, n_outputs: int = 1
) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), n_outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0):
        for _ in range(2):
            for rows in torch.randperm(len(x)).split(BATCH):
                loss = loss_of(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return list(tdbg.rules.check(run_dir, rules=[tdbg.rules.LabelMisuse()]).findings)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(outputs[:, 0], y)


def logits(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, y[:, None])


def bits() -> Tensor:
    return (numbers(N) > 0).float()


def test_a_column_that_is_the_target_is_found(tmp_path: Path) -> None:
    x = numbers(N, 5)
    (said,) = found(tmp_path, x, x[:, 3].clone(), squared)
    assert said.severity == Severity.WARNING
    assert "inputs[:, 3]" in said.message


def test_a_column_that_is_the_class_is_found(tmp_path: Path) -> None:
    x, y = numbers(N, 5), bits()
    x[:, 0] = y
    assert found(tmp_path / "bits", x, y, logits)
    loss_of = functional.cross_entropy
    assert found(tmp_path / "classes", x, y.long(), loss_of, n_outputs=2)


def test_a_window_whose_last_value_is_the_target_is_found(tmp_path: Path) -> None:
    windows = numbers(N + 8).unfold(0, 8, 1)[:N, :, None].repeat(1, 1, 2)
    windows[..., 1] = numbers(N, 8)
    (said,) = found(tmp_path, windows, windows[:, -1, 0].clone(), squared)
    assert "inputs[:, -1, 0]" in said.message
    assert "latest value that the model sees" in said.message


def test_a_scaled_column_is_an_info(tmp_path: Path) -> None:
    x = numbers(N, 5)
    (said,) = found(tmp_path, x, 3 * x[:, 2] + 1, squared)
    assert said.severity == Severity.INFO
    assert "factor and an offset" in said.message


def next_values() -> tuple[Tensor, Tensor]:
    series = numbers(N + 8)
    return series.unfold(0, 8, 1)[:N], series[8 : N + 8]


def remembered() -> tuple[Tensor, Tensor]:
    x = numbers(N, 6, 2)
    return x, x[:, 0, 0].clone()


def most() -> tuple[Tensor, Tensor]:
    x, y = numbers(N, 5), bits()
    x[:, 1] = torch.where(numbers(N) > 2, 1 - y, y)
    return x, y


def one_column() -> tuple[Tensor, Tensor]:
    x = numbers(N, 1)
    return x, x[:, 0].clone()


def constant() -> tuple[Tensor, Tensor]:
    x = numbers(N, 4)
    x[:, 2] = 1
    return x, torch.ones(N)


HEALTHY = {
    "the next value": next_values,
    "the first value, to be remembered": remembered,
    "a column that nearly is": most,
    "the identity of one number": one_column,
    "a constant": constant,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_may_be_meant_is_silent(tmp_path: Path, name: str) -> None:
    x, y = HEALTHY[name]()
    assert not found(tmp_path, x, y, squared)


def test_an_autoencoder_is_silent(tmp_path: Path) -> None:
    x = numbers(N, 5)
    assert not found(tmp_path, x, x, functional.mse_loss, n_outputs=5)
