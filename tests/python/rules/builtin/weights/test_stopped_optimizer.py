"""StoppedOptimizer, on real trainings: what stops, and what only takes long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tdbg
import tdbg.pytorch as td
from tdbg.rules import Engine, StoppedOptimizer
from tdbg.run.findings import Finding, Severity
from torch_helpers import digits

# More forwards than an optimizer that goes on leaves out.
LONG = 210


class Training:
    """A classifier of digits."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05)
        self.criterion = nn.CrossEntropyLoss()
        self.batches = digits(4)

    def loss(self) -> Tensor:
        inputs, labels = next(self.batches)
        loss: Tensor = self.criterion(self.model(inputs), labels)
        return loss

    def steps(self, n: int, *, forwards: int = 1) -> None:
        for _ in range(n):
            self.optimizer.zero_grad()
            for _ in range(forwards):
                self.loss().backward()
            self.optimizer.step()


Loop = Callable[[Training], None]


def judged(run_dir: Path, loop: Loop) -> list[Finding]:
    training = Training()
    hook = td.watch(training.model, training.criterion, out=run_dir, min_free_bytes=0)
    loop(training)
    hook.close()
    assert hook.counters()["internal_errors"] == 0
    return list(tdbg.rules.check(run_dir, StoppedOptimizer(), record=False).findings)


def only_the_optimizer(training: Training) -> None:
    training.steps(20)
    for _ in range(LONG):
        training.loss().backward()


def backward_too(training: Training) -> None:
    """As by a ``continue`` after the loss."""
    training.steps(20)
    for _ in range(LONG):
        training.loss()


def the_larger_part_of_a_short_training(training: Training) -> None:
    training.steps(20)
    for _ in range(50):
        training.loss().backward()


@pytest.mark.parametrize(
    "loop", [only_the_optimizer, backward_too, the_larger_part_of_a_short_training]
)
def test_an_optimizer_that_steps_no_more_is_named(run_dir: Path, loop: Loop) -> None:
    (finding,) = judged(run_dir, loop)
    assert (finding.rule, finding.step) == ("StoppedOptimizer", 20)
    assert finding.severity is Severity.WARNING
    assert finding.phase == "begin"
    assert "(SGD) has not stepped since step 20" in finding.message
    assert "optimizer.step()" in finding.advice


def test_an_optimizer_that_never_steps_is_named_at_the_end(run_dir: Path) -> None:
    def loop(training: Training) -> None:
        for _ in range(60):
            training.optimizer.zero_grad()
            training.loss().backward()

    (finding,) = judged(run_dir, loop)
    assert "(SGD) has never stepped" in finding.message


def test_a_pause_after_which_the_optimizer_steps_again_is_forgotten(
    run_dir: Path,
) -> None:
    """As a pass over all data for another purpose."""

    def loop(training: Training) -> None:
        training.steps(LONG)
        only_the_optimizer(training)
        training.steps(5)

    assert judged(run_dir, loop) == []


def test_what_takes_longer_than_all_steps_before_is_told_at_once_until_it_is_over(
    run_dir: Path,
) -> None:
    training = Training()
    hook = td.watch(training.model, training.criterion, out=run_dir, min_free_bytes=0)
    only_the_optimizer(training)
    hook.flush()
    engine = Engine(run_dir, StoppedOptimizer(), record=False)
    (finding,) = engine.poll()
    assert (finding.step, finding.phase) == (20, "begin")
    training.steps(5)
    hook.close()
    (finding,) = engine.poll()
    assert (finding.first_step, finding.phase) == (20, "end")
    trial = tdbg.create_trial(run_dir)
    loss = trial.tensor("CrossEntropyLoss_output_0")
    assert loss.stats(20).count > 190, "losses of the step that went on"
    assert {loss.stats(step).count for step in loss.steps() if step != 20} == {1}


def accumulated(training: Training) -> None:
    """Over 12 batches; 20 times as many is more than the rest of the training."""
    training.steps(3, forwards=12)
    for _ in range(LONG):
        training.loss().backward()


def the_smaller_part_of_a_short_training(training: Training) -> None:
    """As a test set that is gone through in training mode."""
    training.steps(60)
    for _ in range(50):
        training.loss()


def ever_longer_episodes(training: Training) -> None:
    """Of a game that is played better and better: a step for each."""
    for n_moves in (10, 60, LONG, 300):
        training.steps(1, forwards=n_moves)


def evaluated(training: Training) -> None:
    training.steps(20)
    training.model.eval()
    for _ in range(LONG):
        training.loss()


def evaluated_in_training_mode(training: Training) -> None:
    """What has no layer that minds often is not told of evaluation."""
    training.steps(20)
    with torch.no_grad():
        for _ in range(LONG):
            training.loss()


def never_stepped(training: Training) -> None:
    """As by an optimizer that somebody else wrote."""
    for _ in range(LONG):
        training.loss().backward()
        with torch.no_grad():
            for parameter in training.model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.05 * parameter.grad)
                parameter.grad = None


@pytest.mark.parametrize(
    "loop",
    [
        accumulated,
        the_smaller_part_of_a_short_training,
        ever_longer_episodes,
        evaluated,
        evaluated_in_training_mode,
        never_stepped,
    ],
)
def test_what_takes_long_or_is_no_training_is_silent(run_dir: Path, loop: Loop) -> None:
    assert judged(run_dir, loop) == []


def only_evaluated(training: Training) -> None:
    training.model.eval()
    with torch.no_grad():
        for _ in range(4):
            training.loss()


def an_epoch_without_a_batch(training: Training) -> None:
    data = TensorDataset(*next(training.batches))
    loader = DataLoader(data, batch_size=1 + len(data), drop_last=True)
    for _ in loader:
        training.steps(1)
    only_evaluated(training)


def a_checkpoint_is_evaluated(training: Training) -> None:
    weight = training.model[0].weight
    training.optimizer.state[weight] = {"momentum_buffer": torch.zeros_like(weight)}
    only_evaluated(training)


def evaluated_first(training: Training) -> None:
    only_evaluated(training)
    training.steps(4)


@pytest.mark.parametrize(
    ("loop", "severity", "advice"),
    [
        (an_epoch_without_a_batch, Severity.WARNING, "drop_last=False"),
        (only_evaluated, Severity.INFO, "len(loader) > 0"),
        (a_checkpoint_is_evaluated, None, ""),
        (evaluated_first, None, ""),
    ],
)
def test_an_optimizer_of_a_program_that_only_evaluated_is_named_with_the_empty_loader(
    run_dir: Path, loop: Loop, severity: Severity | None, advice: str
) -> None:
    found = judged(run_dir, loop)
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert all(advice in each.advice for each in found)
    assert all("(SGD) has never stepped" in each.message for each in found)
