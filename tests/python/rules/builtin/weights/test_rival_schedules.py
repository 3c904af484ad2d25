"""ScheduleMisuse, on schedules that another optimizer or schedule leaves no effect."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler

import tdbg
import tdbg.pytorch as td
from tdbg.rules import ScheduleMisuse
from tdbg.run.findings import Finding, Severity

pytestmark = pytest.mark.torch

N_STEPS = 120


class Training:
    """A classifier of places."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
        self.optimizer: optim.Optimizer = optim.Adam(self.model.parameters(), 0.01)
        self.schedule: Any = None

    def batches(self) -> Iterator[Tensor]:
        for _ in range(N_STEPS):
            yield torch.randn(8, 4)

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(batch), batch.argmax(1))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def per_batch(self) -> None:
        for batch in self.batches():
            self.step(batch)
            self.schedule.step()


Loop = Callable[[Training], None]


def a_new_optimizer_without_a_schedule(training: Training) -> None:
    training.schedule = lr_scheduler.StepLR(training.optimizer, 5)
    training.optimizer = optim.SGD(training.model.parameters(), 0.05)
    training.per_batch()


class Both:
    """Steps several schedules."""

    def __init__(self, *schedules: Any) -> None:
        self.schedules = schedules

    def step(self) -> None:
        for each in self.schedules:
            each.step()


def warm_up_of(training: Training) -> Any:
    return lr_scheduler.LambdaLR(training.optimizer, lambda n: min(1.0, (n + 1) / 30))


def warm_up_beside_a_decay(training: Training) -> None:
    decay = lr_scheduler.LambdaLR(training.optimizer, lambda n: 0.99**n)
    training.schedule = Both(warm_up_of(training), decay)
    training.per_batch()


def step_beside_a_decay(training: Training) -> None:
    steps = lr_scheduler.StepLR(training.optimizer, 7, 0.5)
    decay = lr_scheduler.LambdaLR(training.optimizer, lambda n: 1 - n / 200)
    training.schedule = Both(steps, decay)
    training.per_batch()


def two_that_multiply(training: Training) -> None:
    training.schedule = Both(
        lr_scheduler.LinearLR(training.optimizer, 0.1, total_iters=20),
        lr_scheduler.ExponentialLR(training.optimizer, 0.99),
    )
    training.per_batch()


def one_after_the_other(training: Training) -> None:
    steps = lr_scheduler.LambdaLR(training.optimizer, lambda n: 0.99**n)
    training.schedule = lr_scheduler.SequentialLR(
        training.optimizer, [warm_up_of(training), steps], [30]
    )
    training.per_batch()


def by_hand(training: Training) -> None:
    """A warm-up in the first epochs, and then steps, of which each has its time."""
    warm_up = warm_up_of(training)
    steps = lr_scheduler.StepLR(training.optimizer, 20, 0.5)
    for i, batch in enumerate(training.batches()):
        training.step(batch)
        (warm_up if i < 30 else steps).step()


def rate_of_a_model_schedule(training: Training) -> None:
    """A schedule of an optimizer that is there for its rates only."""
    model = optim.SGD(training.model.parameters(), 0.01)
    schedule = lr_scheduler.StepLR(model, 5)
    for batch in training.batches():
        training.step(batch)
        schedule.step()
        training.optimizer.param_groups[0]["lr"] = schedule.get_last_lr()[0]


def optimizer_of_a_phase_before(training: Training) -> None:
    training.schedule = lr_scheduler.StepLR(training.optimizer, 5)
    training.per_batch()
    training.optimizer = optim.SGD(training.model.parameters(), 0.05)
    training.schedule = Both()
    training.per_batch()


def schedule_of_another_model(training: Training) -> None:
    other = optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    training.schedule = lr_scheduler.StepLR(other, 5)
    training.per_batch()


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (a_new_optimizer_without_a_schedule, "belongs to another optimizer"),
        (warm_up_beside_a_decay, "LambdaLR has no effect"),
        (step_beside_a_decay, "StepLR has no effect"),
    ],
)
def test_says_that_a_schedule_has_no_effect(
    loop: Loop, said: str, run_dir: Path
) -> None:
    (finding,) = judged(loop, run_dir)
    assert finding.severity is Severity.WARNING
    assert said in finding.message
    assert finding.advice


@pytest.mark.parametrize(
    "loop",
    [
        two_that_multiply,
        one_after_the_other,
        by_hand,
        rate_of_a_model_schedule,
        optimizer_of_a_phase_before,
        schedule_of_another_model,
    ],
    ids=lambda loop: loop.__name__,
)
def test_accuses_no_schedule_that_is_meant(loop: Loop, run_dir: Path) -> None:
    assert not judged(loop, run_dir)


def judged(loop: Loop, run_dir: Path) -> list[Finding]:
    training = Training()
    with td.Hook(run_dir, min_free_bytes=0) as hook, warnings.catch_warnings():
        # PyTorch warns of schedules that step before their optimizers.
        warnings.simplefilter("ignore", UserWarning)
        hook.register_module(training.model)
        loop(training)
        assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, rules=[ScheduleMisuse()]).findings)
