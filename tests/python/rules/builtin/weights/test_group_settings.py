"""OptimizerMisuse, on settings of groups that are not what they look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer

import tdbg
import tdbg.pytorch as td
from tdbg.rules import OptimizerMisuse
from tdbg.run.findings import Finding, Severity

Make = Callable[[nn.Sequential], Optimizer]


def found(run_dir: Path, make: Make) -> list[Finding]:
    """What the rule says of a training with this optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = make(model)
    with td.Hook(run_dir, rules=[OptimizerMisuse()], min_free_bytes=0) as hook:
        hook.register_module(model)
        for _ in range(6):
            inputs = torch.randn(16, 4)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), inputs.argmax(1))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, [OptimizerMisuse()], record=False).findings)


def grouped(settings: dict[str, Any], kind: Callable[..., Optimizer] = AdamW) -> Make:
    """Give the first layer settings of its own."""

    def make(model: nn.Sequential) -> Optimizer:
        first = {"params": list(model[0].parameters()), **settings}
        return kind([first, {"params": list(model[2].parameters())}], lr=1e-3)

    return make


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"learning_rate": 1e-4},
            'the setting "learning_rate" of one of its groups, 0',
        ),
        ({"LR": 1e-4}, "calls this one lr. So lr is 0.001 for 0.weight, 0.bias"),
        ({"wd": 0.0}, "calls this one weight_decay. So weight_decay is 0.01 for 0.w"),
        ({"wieght_decay": 0.0}, "calls this one weight_decay"),
        ({"weight-decay": 0.0}, "calls this one weight_decay"),
        ({"epsilon": 1e-3}, "calls this one eps"),
    ],
)
def test_a_setting_that_pytorch_does_not_read(
    run_dir: Path, settings: dict[str, float], said: str
) -> None:
    (finding,) = found(run_dir, grouped(settings))
    assert finding.severity is Severity.WARNING
    assert said in finding.message
    assert '{"params": ..., "' in finding.advice


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 1e-4, "weight_decay": 0.0},
        {"lr_mult": 10.0, "lr_scale": 0.1, "name": "first", "decays": False},
        {"lr": 1e-4, "initial_lr": 1e-4, "max_lr": 1e-3, "base_lr": 1e-4},
        {"lr": 1e-4, "learning_rate": 1e-4},  # Both, to be sure.
        {"wd": 0.01},  # It is that anyway.
        {"layer_decay": 0.7, "group_id": 3, "warmup": 100, "no_decay": 1},
    ],
)
def test_settings_that_are_read_and_marks_of_a_program(
    run_dir: Path, settings: dict[str, Any]
) -> None:
    assert found(run_dir, grouped(settings)) == []


def test_a_setting_that_the_program_reads_itself(run_dir: Path) -> None:
    class Own(SGD):
        """Reads more than its base class."""

    assert found(run_dir, grouped({"decay": 0.1}, Own)) == []

    def make(model: nn.Sequential) -> Optimizer:
        optimizer = grouped({"l2": 0.1})(model)
        for group in optimizer.param_groups:
            assert group.get("l2", 0.0) >= 0.0
        return optimizer

    assert found(run_dir / "read", make) == []


def test_betas_that_are_exchanged(run_dir: Path) -> None:
    (finding,) = found(run_dir, lambda m: Adam(m.parameters(), betas=(0.999, 0.9)))
    assert finding.severity is Severity.WARNING
    assert "two betas of Adam are exchanged: betas = (0.999, 0.9)" in finding.message
    assert "covers about 1,000 steps" in finding.message
    assert "betas=(0.9, 0.999)" in finding.advice


@pytest.mark.parametrize(
    "betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99), (0.95, 0.95), (0.99, 0.999)]
)
def test_betas_that_people_choose(run_dir: Path, betas: tuple[float, float]) -> None:
    assert found(run_dir, lambda m: Adam(m.parameters(), betas=betas)) == []
