"""The steps that smdebug's readers see: those at which tensors were saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdbg
import tdbg.compat.smdebug.pytorch as smd
from tdbg.compat.smdebug.core.tensor import StepState
from tdbg.compat.smdebug.exceptions import StepUnavailable
from tdbg.compat.smdebug.rules import Rule, invoke_rule
from tdbg.compat.smdebug.trials import create_trial
from torch_helpers import digits, mlp

pytestmark = pytest.mark.torch
LOSS = "CrossEntropyLoss_output_0"


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    smd.del_hook()


def trained(run_dir: Path, n_steps: int) -> None:
    """Train, with a scalar at each step and tensors at each second one."""
    hook = smd.Hook(run_dir, save_config=smd.SaveConfig(save_interval=2))
    model, criterion = mlp(), nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _, (inputs, labels) in zip(range(n_steps), digits(16), strict=False):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        hook.save_scalar("accuracy", loss.item())
    hook.close()


def test_a_scalar_between_save_steps_makes_no_step(run_dir: Path) -> None:
    trained(run_dir, 20)
    trial = create_trial(str(run_dir))
    every_second = list(range(0, 20, 2))
    assert trial.steps() == trial.steps(smd.modes.TRAIN) == every_second
    assert trial.steps(show_incomplete_steps=True) == every_second
    values = [float(trial.tensor(LOSS).value(step)) for step in trial.steps()]
    assert len(values) == 10
    assert trial.tensor("scalar/accuracy").steps() == list(range(20))
    assert float(trial.tensor("scalar/accuracy").value(3)) > 0.0


def test_a_step_with_nothing_but_a_scalar_is_unavailable(run_dir: Path) -> None:
    trained(run_dir, 4)
    trial = create_trial(str(run_dir))
    states = [trial.has_passed_step(step) for step in range(4)]
    assert states == [StepState.AVAILABLE, StepState.UNAVAILABLE] * 2
    trial.wait_for_steps([0, 2])
    with pytest.raises(StepUnavailable):
        trial.wait_for_steps([1], smd.modes.TRAIN)


def test_a_rule_is_asked_at_the_steps_of_tensors(run_dir: Path) -> None:
    class Asked(Rule):
        def __init__(self, base_trial: Any) -> None:
            super().__init__(base_trial)
            self.steps: list[int] = []

        def invoke_at_step(self, step: int) -> bool:
            self.steps.append(step)
            return float(self.base_trial.tensor(LOSS).value(step)) < 0.0

    trained(run_dir, 8)
    rule = Asked(create_trial(str(run_dir)))
    invoke_rule(rule)
    assert rule.steps == [0, 2, 4, 6]


def test_a_run_of_nothing_but_scalars_has_their_steps(run_dir: Path) -> None:
    hook = smd.Hook(run_dir)
    model = mlp()
    hook.register_module(model)
    for _ in range(3):
        model(torch.zeros(1, 64))
        hook.save_scalar("x", 1.0)
    hook.close()
    trial = create_trial(str(run_dir))
    assert trial.steps() == [0, 1, 2]
    assert trial.has_passed_step(1) is StepState.AVAILABLE
    trial.wait_for_steps([1])


def test_tdbgs_own_steps_have_scalars_unless_tensors_are_asked_for(
    run_dir: Path,
) -> None:
    trained(run_dir, 5)
    trial = tdbg.create_trial(run_dir)
    assert trial.steps() == trial.steps(what="values") == [0, 1, 2, 3, 4]
    assert trial.steps(what="tensors") == [0, 2, 4]
    assert trial.steps("train", what="tensors") == [0, 2, 4]
    assert trial.tensor("scalar/accuracy").steps(what="tensors") == []
    assert trial.tensor(LOSS).steps(what="tensors") == [0, 2, 4]
