"""AccumulationMisuse, on real trainings: how micro-batches are put together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tdbg
import tdbg.pytorch as td
from tdbg.rules import AccumulationMisuse
from tdbg.run.findings import Finding, Severity

N_STEPS = 10


class Training:
    """A classifier of places; in micro-batches, of which each may have few labels."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
        self.optimizer: torch.optim.Optimizer
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)

    def steps(self) -> Iterator[int]:
        for step in range(N_STEPS):
            self.optimizer.zero_grad()
            yield step
            self.optimizer.step()

    def loss(self, n_labels: int = 16, reduction: str = "mean") -> Tensor:
        inputs = torch.randn(16, 4)
        labels = inputs.argmax(1)
        labels[n_labels:] = -100
        return functional.cross_entropy(self.model(inputs), labels, reduction=reduction)


Loop = Callable[[Training], None]
Weigh = Callable[[Tensor, int], Tensor]


def accumulating(counts: list[int], weigh: Weigh, reduction: str = "mean") -> Loop:
    def loop(training: Training) -> None:
        for _ in training.steps():
            for n in counts:
                backward(weigh(training.loss(n, reduction), n))

    return loop


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def with_a_scaler(training: Training) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(N_STEPS):
        training.optimizer.zero_grad()
        for n in (16, 4):
            backward(scaler.scale(training.loss(n) / 2))
        scaler.step(training.optimizer)
        scaler.update()


def adam(training: Training) -> None:
    training.optimizer = torch.optim.Adam(training.model.parameters())
    accumulating([16] * 4, lambda loss, _: loss)(training)


def divided_gradients(training: Training) -> None:
    for _ in training.steps():
        for _ in range(4):
            backward(training.loss())
        for parameter in training.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= 4


def cleared(weight: float, *, at: int = -1, n: int = 4) -> Loop:
    """Clear the gradients before each micro-batch, or before one of them only."""

    def loop(training: Training) -> None:
        for _ in training.steps():
            for i in range(n):
                if at in {-1, i}:
                    training.optimizer.zero_grad()
                backward(weight * training.loss())

    return loop


def compared(training: Training, n: int = 4) -> None:
    """The gradient of each task is read and cleared, and their mean is used."""
    parameters = list(training.model.parameters())
    for _ in training.steps():
        found = []
        for _ in range(n):
            training.optimizer.zero_grad()
            backward(training.loss())
            found.append([each.grad for each in parameters])
        for parameter, *gradients in zip(parameters, *found, strict=True):
            parameter.grad = torch.stack(gradients).mean(0)


def clipped(training: Training) -> None:
    for _ in training.steps():
        for _ in range(4):
            backward(training.loss())
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)


def two_tasks(training: Training) -> None:
    """A head for each task, which have different numbers of labels."""
    heads = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 2)])
    for _ in training.steps():
        for n, head in zip((32, 4), heads, strict=True):
            inputs = torch.randn(n, 4)
            scores = head(training.model(inputs))
            backward(functional.cross_entropy(scores, inputs[:, :2].argmax(1)) / 2)


def real_and_fake(training: Training) -> None:
    """A critic learns from two batches in turn."""
    for _ in training.steps():
        for wanted in (0.0, 1.0):
            scores = training.model(torch.randn(16, 4))
            wanted_scores = torch.full_like(scores, wanted)
            backward(functional.binary_cross_entropy_with_logits(scores, wanted_scores))


def a_smaller_last_batch(training: Training) -> None:
    for step in training.steps():
        for n in (16, 8 if step % 4 == 3 else 16):
            backward(training.loss(n) / 2)


def judged(run_dir: Path, loop: Loop) -> list[Finding]:
    training = Training()
    rules = [AccumulationMisuse()]
    with td.Hook(run_dir, rules=rules, min_free_bytes=0) as hook:
        hook.register_module(training.model)
        hook.save_scalar("began", 1.0)
        loop(training)
        assert hook.counters()["internal_errors"] == 0
    for each in training.model.parameters():
        assert not each._post_accumulate_grad_hooks
    return list(tdbg.rules.check(run_dir, rules=rules).findings)


@pytest.mark.parametrize(
    ("loop", "severity", "said"),
    [
        (accumulating([16, 4], lambda x, _: x / 2), Severity.WARNING, "4 times"),
        (accumulating([16, 12], lambda x, _: x / 2), Severity.INFO, "1.33 times"),
        (with_a_scaler, Severity.WARNING, "weighs 4 times as much"),
        (accumulating([16] * 4, lambda x, _: x), Severity.INFO, "4 micro-batches"),
    ],
    ids=["unequal", "a little unequal", "scaled", "undivided"],
)
def test_micro_batches_that_count_as_they_should_not(
    run_dir: Path, loop: Loop, severity: Severity, said: str
) -> None:
    (finding,) = judged(run_dir, loop)
    assert finding.severity is severity
    assert said in finding.message


@pytest.mark.parametrize(
    "loop",
    [
        accumulating([16], lambda loss, _: loss),
        accumulating([16] * 4, lambda loss, _: loss / 4),
        accumulating([16, 4], lambda loss, n: loss * n / 20),
        accumulating([16, 4], lambda loss, _: loss / 20, "sum"),
        accumulating([16, 4], lambda loss, _: loss, "sum"),
        adam,
        divided_gradients,
        clipped,
        two_tasks,
        real_and_fake,
        a_smaller_last_batch,
    ],
    ids=[
        "one", "divided", "weighted", "sums", "sums alone", "Adam", "gradients",
        "clipped", "tasks", "critic", "last batch",
    ],
)  # fmt: skip
def test_micro_batches_that_count_as_they_should(run_dir: Path, loop: Loop) -> None:
    assert judged(run_dir, loop) == []


def test_micro_batches_of_which_the_last_one_counts(run_dir: Path) -> None:
    (finding,) = judged(run_dir, cleared(0.25))
    assert finding.severity == Severity.WARNING
    assert "uses the last micro-batch only: each step has 4 backward" in finding.message
    assert "zero_grad() once for each step" in finding.advice


def test_a_loop_over_batches_of_which_the_last_one_counts(run_dir: Path) -> None:
    """The step stands behind the loop, and zero_grad() in it."""
    (finding,) = judged(run_dir, cleared(1.0, n=12))
    assert finding.severity == Severity.WARNING
    assert "The optimizer uses one batch of 12: each step has 12" in finding.message
    assert "inside the loop over the batches" in finding.advice


def measured(training: Training) -> None:
    """The gradients of many batches are measured before they are cleared."""
    parameters = list(training.model.parameters())
    for _ in training.steps():
        total = [torch.zeros_like(each) for each in parameters]
        for _ in range(12):
            training.optimizer.zero_grad()
            backward(training.loss())
            for mean, each in zip(total, parameters, strict=True):
                mean.add_(0 if each.grad is None else each.grad / 12)
        for mean, each in zip(total, parameters, strict=True):
            if each.grad is not None:
                each.grad.copy_(mean)


@pytest.mark.parametrize(
    "loop",
    [
        cleared(0.25, at=0),
        compared,
        functools.partial(compared, n=12),
        measured,
        cleared(1.0),
    ],
)
def test_micro_batches_that_are_cleared_on_purpose(run_dir: Path, loop: Loop) -> None:
    assert judged(run_dir, loop) == []


def divided_twice_by_adam(training: Training) -> None:
    training.optimizer = torch.optim.Adam(training.model.parameters())
    accumulating([16] * 4, lambda loss, _: loss / 4 / 4)(training)


@pytest.mark.parametrize(
    ("loop", "severity", "said"),
    [
        (
            accumulating([16] * 4, lambda loss, _: loss / 4 / 4),
            Severity.WARNING,
            "updates are 4 times as small",
        ),
        (
            accumulating([16] * 3, lambda loss, _: loss * (1 / 3) / 3),
            Severity.WARNING,
            "3 backward passes",
        ),
        (divided_twice_by_adam, Severity.INFO, "Adam hardly depends on that"),
    ],
    ids=["SGD", "product", "Adam"],
)
def test_micro_batches_that_are_divided_twice(
    run_dir: Path, loop: Loop, severity: Severity, said: str
) -> None:
    (finding,) = judged(run_dir, loop)
    assert finding.severity is severity
    assert said in finding.message
    assert "Divide the loss in one place" in finding.advice


@pytest.mark.parametrize(
    "loop",
    [
        accumulating([16] * 2, lambda loss, _: 0.5 * loss / 2),
        accumulating([16] * 4, lambda loss, _: 0.5 * loss / 4),
        accumulating([16] * 4, lambda loss, _: loss / 16),
        accumulating([16], lambda loss, _: loss / 4 / 4),
    ],
    ids=["half a loss", "weight", "another share", "one pass"],
)
def test_micro_batches_whose_loss_has_a_weight(run_dir: Path, loop: Loop) -> None:
    assert judged(run_dir, loop) == []
