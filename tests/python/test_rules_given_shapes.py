"""Underfitting's third part: outputs that are compared with all targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.findings import Severity
from tdbg.rules import Underfitting, check
from tdbg.rules.loss.broadcast import all_with_all

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("outputs", "targets", "both"),
    [
        ((32, 1), (32,), (32, 32)),
        ((32,), (32, 1), (32, 32)),
        ((32, 1), (1, 7), (32, 7)),
        ((32, 1), (32, 1), None),
        ((32, 8), (32, 1), None),
        ((32, 8), (8,), None),
        ((1, 1), (1,), None),
        ((), (32,), None),
        ((32, 3), (32,), None),
        ((0, 1), (0,), None),
    ],
)
def test_what_is_compared_with_more_than_its_own_target(
    outputs: Shape, targets: Shape, both: Shape | None
):
    assert all_with_all(outputs, targets) == both


def regressed(name: str, outputs: Shape, targets: Shape) -> FakeRun:
    run = FakeRun(every=10)
    given = {
        f"{name}_input_0": np.linspace(0.0, 1.0, int(np.prod(outputs))),
        f"{name}_input_1": np.linspace(0.0, 1.0, int(np.prod(targets))),
    }
    for step in range(6):
        run.step(step, given)
        run.value(step, f"{name}_input_0", given[f"{name}_input_0"].reshape(outputs))
        run.value(step, f"{name}_input_1", given[f"{name}_input_1"].reshape(targets))
    return run


@pytest.mark.parametrize("loss", ["MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"])
def test_a_column_against_a_row_is_named_at_the_first_batch(loss: str):
    run = regressed(loss, (16, 1), (16,))
    (finding,) = judge(run, Underfitting())
    assert (finding.tensor, finding.step) == (f"{loss}_input_0", 0)
    assert finding.severity is Severity.WARNING
    assert "outputs of shape (16, 1) and targets of shape (16,)" in finding.message
    assert (finding.value, finding.threshold) == (256.0, 16.0)
    assert "unsqueeze(1)" in finding.advice
    assert judge_in_parts(run, range(6), Underfitting()) == [finding]


@pytest.mark.parametrize(
    "run",
    [
        regressed("MSELoss", (16, 1), (16, 1)),
        regressed("MSELoss", (16, 4), (4,)),
        # Whose shapes mean something else.
        regressed("CosineEmbeddingLoss", (16, 1), (16,)),
    ],
)
def test_shapes_that_are_meant_are_not_named(run: FakeRun):
    assert judge(run, Underfitting()) == []


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("sick", [True, False])
def test_a_training_whose_targets_are_a_row(tmp_path: Path, *, sick: bool):
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, 1), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    hook = td.Hook(tmp_path / "run", rules=["Underfitting"])
    hook.register_module(model)
    hook.register_loss(criterion)
    for _ in range(3):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        criterion(model(x), x.sum(1) if sick else x.sum(1, keepdim=True)).backward()
        optimizer.step()
    hook.close()
    found = check(tmp_path / "run", ["Underfitting"], record=False).findings
    assert [(each.tensor, each.step) for each in found] == (
        [("MSELoss_input_0", 0)] if sick else []
    )
