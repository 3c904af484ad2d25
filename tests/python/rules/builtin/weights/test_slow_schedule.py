"""SlowSchedule, on real trainings: schedules in batches, in epochs, and others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import tdbg
import tdbg.pytorch as td
from tdbg.rules import SlowSchedule
from tdbg.run.findings import Finding, Severity

EPOCHS, BATCHES = 6, 22
STEPS = EPOCHS * BATCHES

Make = Callable[[torch.optim.Optimizer], Any]


def warm_up(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    left = (num_training_steps - step) / (num_training_steps - num_warmup_steps)
    return min(step / num_warmup_steps, left)


def trained(hook: td.Hook, make: Make, *, each: bool, n_epochs: int) -> None:
    """Train in a function that drops its schedule before the hook is closed."""
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = make(optimizer)
    hook.register_module(model)
    by_loss = isinstance(schedule, lr_scheduler.ReduceLROnPlateau)
    for _ in range(n_epochs):
        for _ in range(BATCHES):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hook.save_scalar("loss", loss.item())
            if each:
                schedule.step()
        if not each:
            schedule.step(loss.item()) if by_loss else schedule.step()


def judged(
    run_dir: Path, make: Make, *, each: bool = False, n_epochs: int = EPOCHS
) -> list[Finding]:
    with td.Hook(run_dir, rules=[SlowSchedule()]) as hook:
        trained(hook, make, each=each, n_epochs=n_epochs)
    return list(tdbg.rules.check(run_dir, rules=[SlowSchedule()]).findings)


def cosine(length: int) -> Make:
    return partial(lr_scheduler.CosineAnnealingLR, T_max=length)


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS)


def linear(optimizer: torch.optim.Optimizer) -> Any:
    function = partial(warm_up, num_warmup_steps=10, num_training_steps=STEPS)
    return lr_scheduler.LambdaLR(optimizer, function)


@pytest.mark.parametrize(
    ("make", "name", "setting", "severity"),
    [
        (cosine(STEPS), "CosineAnnealingLR", "T_max", Severity.INFO),
        (one_cycle, "OneCycleLR", "total_steps", Severity.WARNING),
        (linear, "LambdaLR", "num_training_steps", Severity.WARNING),
    ],
)
def test_a_schedule_in_batches_that_steps_once_an_epoch_has_hardly_begun(
    run_dir: Path, make: Make, name: str, setting: str, severity: Severity
) -> None:
    """A length that may be in epochs may equal the steps of a shorter training."""
    (finding,) = judged(run_dir, make)
    assert finding.severity is severity
    assert f"({name}) has hardly begun: it is 132 steps long" in finding.message
    assert f"length ({setting})" in finding.advice


@pytest.mark.parametrize(
    ("make", "each", "n_epochs"),
    [
        (cosine(EPOCHS), False, EPOCHS),
        (cosine(100), False, EPOCHS),
        (cosine(STEPS), True, EPOCHS),
        (cosine(STEPS), True, 2),
        (one_cycle, True, EPOCHS),
        (linear, True, EPOCHS),
        (partial(lr_scheduler.LinearLR, total_iters=10), True, EPOCHS),
        (lr_scheduler.ReduceLROnPlateau, False, EPOCHS),
    ],
)
def test_schedules_that_step_as_they_are_meant_to_are_sound(
    run_dir: Path, make: Make, each: bool, n_epochs: int
) -> None:
    assert judged(run_dir, make, each=each, n_epochs=n_epochs) == []
