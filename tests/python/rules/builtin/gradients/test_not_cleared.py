"""GradientsNotCleared, on real trainings: what clears gradients, and what does not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tdbg
import tdbg.pytorch as td
from tdbg.rules import GradientsNotCleared
from tdbg.run.findings import Finding, Severity
from torch_helpers import digits

N_STEPS = 16
Loop = Callable[["Training"], None]


class Training:
    """A classifier of digits; what differs is how the gradients are cleared."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.optimizer: torch.optim.Optimizer
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        self.criterion = nn.CrossEntropyLoss()
        self.batches = digits(16)

    def backward(self) -> torch.Tensor:
        inputs, labels = next(self.batches)
        loss: torch.Tensor = self.criterion(self.model(inputs), labels)
        loss.backward()
        return loss


def set_to_zero(training: Training) -> None:
    training.optimizer.zero_grad(set_to_none=False)


def by_hand(training: Training) -> None:
    for parameter in training.model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def to_none(training: Training) -> None:
    for parameter in training.model.parameters():
        parameter.grad = None


def nothing(_: Training) -> None:
    pass


def clip(training: Training) -> None:
    nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)


def accumulating(n_batches: int, *, before: bool, clear: Loop) -> Loop:
    """Clear once in each step: before the backward passes, or after the update."""

    def loop(training: Training) -> None:
        for _ in range(N_STEPS):
            if before:
                clear(training)
            for _ in range(n_batches):
                training.backward()
            training.optimizer.step()
            if not before:
                clear(training)

    return loop


def adam(training: Training) -> None:
    training.optimizer = torch.optim.Adam(training.model.parameters())
    accumulating(1, before=True, clear=nothing)(training)


def with_clipping(clear: Loop) -> Loop:
    def loop(training: Training) -> None:
        for _ in range(N_STEPS):
            clear(training)
            training.backward()
            clip(training)
            training.optimizer.step()

    return loop


def with_a_scaler(clear: Loop) -> Loop:
    def loop(training: Training) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(N_STEPS):
            clear(training)
            inputs, labels = next(training.batches)
            loss = training.criterion(training.model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(training.optimizer)
            scaler.step(training.optimizer)
            scaler.update()

    return loop


def one_of_two_optimizers(training: Training) -> None:
    head, trunk = training.model[2], training.model[0]
    optimizers = [torch.optim.SGD(each.parameters(), 0.05) for each in (head, trunk)]
    for _ in range(N_STEPS):
        optimizers[0].zero_grad()
        training.backward()
        for each in optimizers:
            each.step()


def adversaries(training: Training) -> None:
    """The gradients of one that the other's loss leaves behind are cleared in time."""
    critic = nn.Linear(10, 1)
    critics = torch.optim.SGD(critic.parameters(), 0.05)
    for _ in range(N_STEPS):
        inputs, _labels = next(training.batches)
        set_to_zero(training)
        critic(training.model(inputs)).mean().backward()
        training.optimizer.step()
        critics.zero_grad(set_to_none=False)
        (-critic(training.model(inputs))).mean().backward()
        critics.step()


def with_a_closure(clear: Loop) -> Loop:
    def loop(training: Training) -> None:
        optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=2)

        def closure() -> torch.Tensor:
            clear(training)
            return training.backward()

        for _ in range(N_STEPS):
            optimizer.step(closure)

    return loop


def updated_by_hand(clear: Loop, n_batches: int = 1) -> Loop:
    """No optimizer: the program changes its parameters itself."""

    def loop(training: Training) -> None:
        del training.optimizer
        gc.collect()
        for _ in range(N_STEPS):
            for _ in range(n_batches):
                training.backward()
            with torch.no_grad():
                for parameter in training.model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(0.05 * parameter.grad)
            clear(training)

    return loop


def late(training: Training) -> None:
    """Kept at first, and cleared before it is certain that nobody clears them."""
    for step in range(N_STEPS):
        if step >= 4:
            set_to_zero(training)
        training.backward()
        training.optimizer.step()


def judged(run_dir: Path, loop: Loop) -> list[Finding]:
    training = Training()
    with td.Hook(run_dir, rules=[GradientsNotCleared()], min_free_bytes=0) as hook:
        hook.register_module(training.model)
        hook.register_loss(training.criterion)
        loop(training)
        assert hook.counters()["internal_errors"] == 0
        assert all(not each._backward_hooks for each in training.model.parameters())
    report = tdbg.rules.check(run_dir, rules=[GradientsNotCleared()])
    return list(report.findings)


@pytest.mark.parametrize(
    "loop",
    [
        accumulating(1, before=True, clear=nothing),
        accumulating(3, before=True, clear=nothing),
        adam,
        with_clipping(nothing),
        with_a_scaler(nothing),
        one_of_two_optimizers,
        with_a_closure(nothing),
    ],
    ids=[
        "SGD", "accumulated", "Adam", "clipped", "scaled", "one of two", "closure",
    ],
)  # fmt: skip
def test_gradients_that_nobody_clears(run_dir: Path, loop: Loop) -> None:
    (finding,) = judged(run_dir, loop)
    assert finding.severity is Severity.ERROR
    assert finding.step < 10
    assert "used the sum of all gradients so far" in finding.message
    assert "optimizer.zero_grad()" in finding.advice


@pytest.mark.parametrize("n_batches", [1, 3])
def test_gradients_that_nobody_clears_after_updates_by_hand(
    run_dir: Path, n_batches: int
) -> None:
    (finding,) = judged(run_dir, updated_by_hand(nothing, n_batches))
    assert finding.severity is Severity.ERROR
    assert "every update used the sum of all gradients" in finding.message
    assert "model.zero_grad()" in finding.advice


@pytest.mark.parametrize(
    "loop",
    [
        accumulating(1, before=True, clear=to_none),
        accumulating(1, before=True, clear=set_to_zero),
        accumulating(1, before=False, clear=set_to_zero),
        accumulating(1, before=False, clear=by_hand),
        accumulating(3, before=True, clear=by_hand),
        with_clipping(set_to_zero),
        with_a_scaler(set_to_zero),
        adversaries,
        with_a_closure(set_to_zero),
        with_a_closure(to_none),
        updated_by_hand(by_hand),
        updated_by_hand(to_none),
        updated_by_hand(by_hand, n_batches=3),
        late,
    ],
    ids=[
        "to none", "to zero", "after the update", "by hand", "accumulated", "clipped",
        "scaled", "adversaries", "closure", "closure to none", "updated by hand",
        "updated by hand to none", "updated by hand and accumulated", "late",
    ],
)  # fmt: skip
def test_gradients_that_are_cleared(run_dir: Path, loop: Loop) -> None:
    assert judged(run_dir, loop) == []
