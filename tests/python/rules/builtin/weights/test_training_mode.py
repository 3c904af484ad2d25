"""RunningStatistics, on models that are evaluated in training mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

After = Callable[[nn.Module, int], object]


def network(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    layer = {
        "dropout": nn.Dropout(0.3),
        "normalization": nn.BatchNorm1d(16),
        "plain": nn.Identity(),
    }[kind]
    return nn.Sequential(nn.Linear(8, 16), layer, nn.ReLU(), nn.Linear(16, 3))


def judged(run_dir: Path, model: nn.Module, after: After) -> list[Finding]:
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    with td.watch(model, out=run_dir, budget="off", min_free_bytes=0) as hook:
        for step in range(100):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            loss: Any = functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            loss.backward()
            optimizer.step()
            after(model, step)
    assert hook.counters()["internal_errors"] == 0
    assert len(model._forward_pre_hooks) == 0
    rule = tdbg.rules.RunningStatistics()
    return list(tdbg.rules.check(run_dir, rule, record=False).findings)


def answers(model: nn.Module, *inputs: Tensor) -> None:
    with torch.no_grad():
        for each in inputs:
            model(each)


def batches() -> list[Tensor]:
    return [torch.randn(16, 8) for _ in range(3)]


def validate(model: nn.Module, step: int) -> None:
    if step % 20 == 19:
        answers(model, *batches())


def of_slices(model: nn.Module, step: int) -> None:
    if step % 20 == 19:
        x_val = torch.randn(32, 8)
        with torch.no_grad():
            for i in range(0, 32, 16):
                model(x_val[i : i + 16])


@pytest.mark.parametrize("after", [validate, of_slices])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("dropout", "dropout is on"),
        ("normalization", "normalization uses the statistics of each batch"),
    ],
)
def test_evaluations_in_training_mode(
    run_dir: Path, kind: str, told: str, after: After
) -> None:
    (finding,) = judged(run_dir, network(kind), after)
    assert finding.severity is Severity.WARNING
    assert "The model is evaluated in training mode" in finding.message
    assert told in finding.message
    assert "model.eval()" in finding.advice


def unnamed(model: nn.Module, step: int) -> None:
    if step % 20 == 19:
        answers(model, *batches())


def test_forwards_that_nothing_says_evaluate(run_dir: Path) -> None:
    (finding,) = judged(run_dir, network("dropout"), unnamed)
    assert finding.severity is Severity.INFO


def validate_in_eval(model: nn.Module, step: int) -> None:
    model.eval()
    validate(model, step)
    model.train()


def validate_several_times(model: nn.Module, step: int) -> None:
    """Monte Carlo dropout."""
    if step % 20 == 19:
        x = torch.randn(16, 8)
        answers(model, x, x, x)


def validate_at_each_step(model: nn.Module, _: int) -> None:
    answers(model, *batches())


def validate_what_is_trained(model: nn.Module, step: int) -> None:
    """Hard samples are chosen by their losses."""
    if step % 20 == 19:
        (x, *_) = batches()
        answers(model, x)
        model(x).sum().backward()


def validate_once(model: nn.Module, step: int) -> None:
    if step == 99:
        answers(model, *batches())


@pytest.mark.parametrize(
    "after",
    [
        validate_in_eval,
        validate_several_times,
        validate_at_each_step,
        validate_what_is_trained,
        validate_once,
    ],
)
def test_healthy_forwards(run_dir: Path, after: After) -> None:
    assert judged(run_dir, network("dropout"), after) == []


def test_a_model_whose_answers_do_not_depend_on_the_mode(run_dir: Path) -> None:
    assert judged(run_dir, network("plain"), validate) == []
